//! The GPU in a group of GPUs of other processes, who reduce vectors in their memory by NCCL. It tells the stream that
//! computes, some time after it is asked to: until then the stream is told nothing else.

use std::sync::Arc;

use tensorwire_base::Deadline;
use tensorwire_device::nccl::{
    Nccl, NcclCommunicator, NcclElement, NcclError, NcclId, NcclReduction,
};
use tensorwire_memory::DeviceWriteLoan;
use tensorwire_tensor::DType;

use super::{CudaKernels, Failed};

/// What this GPU is in its group. Whoever drops it without leaving ends what the others wait for.
#[derive(Debug)]
pub(super) struct Membership {
    communicator: Option<NcclCommunicator>,
    /// NCCL tells the stream something.
    is_telling: bool,
    reductions: u64,
}

impl Membership {
    pub(super) fn reductions(&self) -> u64 {
        self.reductions
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Some(communicator) = &mut self.communicator {
            communicator.abort();
        }
    }
}

impl CudaKernels {
    /// Becomes member `place.0` of a group of `place.1` GPUs, once the others do.
    ///
    /// # Errors
    /// When the others do not come before the deadline, or NCCL finds no way between their GPUs.
    pub fn join(
        &mut self,
        (nccl, id): (&Arc<Nccl>, &NcclId),
        place: (usize, usize),
        deadline: Deadline,
    ) -> Result<(), NcclError> {
        let communicator = NcclCommunicator::join(nccl, &self.device, id, place, deadline)?;
        let communicator = Some(communicator);
        self.membership = Some(Membership { communicator, is_telling: false, reductions: 0 });
        Ok(())
    }

    /// Starts reducing what the GPUs of the group have of vectors, in their place and behind all that this GPU was
    /// told. Until [`CudaKernels::has_told_group`] returns true it is told nothing else. All members start the same ones, in the
    /// same order, and as many at once.
    ///
    /// # Errors
    /// When a member is lost, or NCCL or the GPU failed; the group does nothing any more then.
    pub fn start_all_reduces(
        &mut self,
        vectors: Vec<(DeviceWriteLoan, DType)>,
        reduction: NcclReduction,
    ) -> Result<(), NcclError> {
        let told = self.check().and_then(|()| self.flush());
        if let Err(failed) = told {
            self.failure.get_or_insert_with(|| failed.clone());
            return Err(match failed {
                Failed::Device(error) => error.into(),
                // whoever looks at the GPU next is told
                Failed::Kernel(..) => NcclError::Aborted,
            });
        }
        let Some(membership) = &mut self.membership else { return Err(NcclError::Aborted) };
        let Some(communicator) = &mut membership.communicator else {
            return Err(NcclError::Aborted);
        };
        let element = |dtype| match dtype {
            DType::F64 => NcclElement::F64,
            DType::BF16 => NcclElement::BF16,
            // floating ones alone are reduced
            _ => NcclElement::F32,
        };
        let vectors: Vec<_> =
            vectors.into_iter().map(|(vector, dtype)| (vector, element(dtype))).collect();
        communicator.start_all_reduces(&self.stream, &vectors, reduction)?;
        membership.is_telling = true;
        // fits: few
        membership.reductions += vectors.len() as u64;
        Ok(())
    }

    /// True if the stream was told all that was started; an error also if a member was lost later.
    ///
    /// # Errors
    /// As for [`CudaKernels::start_all_reduces`].
    pub fn has_told_group(&mut self) -> Result<bool, NcclError> {
        let Some(membership) = &mut self.membership else { return Ok(true) };
        let Some(communicator) = &mut membership.communicator else { return Ok(true) };
        let has_told = communicator.has_told()?;
        membership.is_telling &= !has_told;
        Ok(has_told)
    }

    /// Leaves the group in good order: all that was started is over at all members.
    pub fn leave(&mut self) {
        if let Some(membership) = &mut self.membership {
            membership.communicator = None;
        }
    }

    /// Leaves the group as it is: what it still does ends early, here and at the others.
    pub fn abandon_group(&mut self) {
        self.membership = None;
    }

    /// True while the group tells the stream something.
    pub(super) fn is_held(&self) -> bool {
        self.membership.as_ref().is_some_and(|membership| membership.is_telling)
    }
}
