//! The libraries that compute what kernels of this crate need not, and what they answered of an operator's commands.

use std::sync::Arc;

use tensorwire_device::{
    ConvolutionPlan, CublasLt, CudaLibrary, Cudnn, Device, DeviceError, LibrarySearch, ProductPlan,
    Stream,
};

use crate::gpus::{NO_LIBRARY, computed_by, unused};
use crate::{Command, Lowered, Lowering, Rounding};

/// Bytes that a library's product may take besides, at most: as many as NVIDIA recommends for its newest GPUs. Convolutions
/// may take as much more as their tensors have, which some engines turn.
const WORKSPACE: usize = 32 << 20;

/// What computes, or why kernels of this crate do.
#[derive(Debug)]
pub(super) struct Libraries {
    products: Result<Arc<CublasLt>, String>,
    convolutions: Result<Arc<Cudnn>, String>,
}

/// What a library does for one of its commands.
#[derive(Debug)]
pub(super) enum LibraryPlan {
    Product(ProductPlan),
    Convolution(ConvolutionPlan),
}

impl Libraries {
    pub(super) fn open(device: &Arc<Device>, search: Option<&LibrarySearch>) -> Libraries {
        let Some(search) = search else {
            let none = || NO_LIBRARY.to_owned();
            return Libraries { products: Err(none()), convolutions: Err(none()) };
        };
        let products = CublasLt::open(device, search).map(Arc::new);
        let convolutions = Cudnn::open(device, search).map(Arc::new);
        Libraries {
            products: products.map_err(|error| unused(CudaLibrary::CublasLt, &error)),
            convolutions: convolutions.map_err(|error| unused(CudaLibrary::Cudnn, &error)),
        }
    }

    /// What computes, for people.
    pub(super) fn describe(&self, rounding: Rounding) -> String {
        let products = self.products.as_ref().map(|library| library.library());
        let convolutions = self.convolutions.as_ref().map(|library| library.library());
        computed_by(products, convolutions, rounding)
    }

    /// As `otherwise`, with commands of the libraries that there are.
    pub(super) fn lowering(&self, otherwise: Lowering) -> Lowering {
        Lowering {
            products_by_library: self.products.is_ok(),
            convolutions_by_library: self.convolutions.is_ok(),
            ..otherwise
        }
    }

    /// The plans for the libraries' commands, in their order; none, where a library lacks one.
    pub(super) fn planned(
        &self,
        lowered: &Lowered,
    ) -> Result<Option<Vec<LibraryPlan>>, DeviceError> {
        let mut plans = Vec::new();
        for command in &lowered.commands {
            let plan = match (command, &self.products, &self.convolutions) {
                (Command::Product(product), Ok(library), _) => {
                    library.plan(&product.product, WORKSPACE)?.map(LibraryPlan::Product)
                }
                (Command::Convolution(convolution), _, Ok(library)) => {
                    let of = &convolution.convolution;
                    let most = of.bytes().saturating_add(WORKSPACE);
                    library.plan(of, most)?.map(LibraryPlan::Convolution)
                }
                _ => continue,
            };
            match plan {
                Some(plan) => plans.push(plan),
                None => return Ok(None),
            }
        }
        Ok(Some(plans))
    }
}

impl LibraryPlan {
    pub(super) fn workspace_bytes(&self) -> usize {
        match self {
            LibraryPlan::Product(plan) => plan.workspace_bytes(),
            LibraryPlan::Convolution(plan) => plan.workspace_bytes(),
        }
    }

    /// # Safety
    /// As of [`ProductPlan::launch`] and of [`ConvolutionPlan::launch`].
    pub(super) unsafe fn launch(
        &self,
        stream: &Stream,
        operands: [u64; 3],
        workspace: u64,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's duty.
        unsafe {
            match self {
                LibraryPlan::Product(plan) => plan.launch(stream, operands, workspace),
                LibraryPlan::Convolution(plan) => plan.launch(stream, operands, workspace),
            }
        }
    }
}
