//! Tensor collectives (Mamidala et al. §6): a *tensor* is the vectors that the devices of one worker hold, one of each,
//! and is reduced, broadcast and gathered as if it were one vector. Devices reduce their vectors among themselves, one
//! vector goes over the wire, and devices take what comes back.
//!
//! | design | in the paper | how |
//! |---|---|---|
//! | `multi-ring` | ring-IBMGpu, Figure 9 | in slices: devices reduce one while others are on the wire |
//! | `single-ring` | ring-NCCL: "one ring as NCCL operations are blocking" | in slices, each after the one before is done |
//! | `omp-ring` | omp_ring-IBMGpu | all is reduced, goes around, and is copied back |
//! | `reg` | reg-IBMGpu: the default MPI_Allreduce | the same, with whatever algorithm the group takes |
//! | `flat-ring` | Baidu's, Figure 20 | no tensor: every device is a member of one larger ring |
//!
//! Figures 17 to 19 compare the first four, Figure 20 the first and the last. Here a device is a thread that the
//! caller lends ([`Devices`]); this file knows the order of things, and neither threads nor what elements are.

mod operation;
mod slices;

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tensorwire_base::Deadline;
use tensorwire_memory::{Arena, Buffer, Copies, CopyPurpose, Place, Slab};

use crate::error::GroupError;
use crate::ports::{CollectiveCall, Collectives, GroupStats, Reducer, VectorId};
use crate::schedule::Algorithm;

use operation::Operation;
use slices::Slices;

/// What a device is given to do.
pub type Work = Box<dyn FnOnce() + Send>;

/// The devices of one worker: each does what it is given in that order, beside the others and beside the caller.
pub trait Devices: Debug + Send + Sync {
    /// How many there are: at least one.
    fn count(&self) -> usize;

    /// Gives a device something to do, and returns at once.
    fn submit(&self, device: usize, work: Work);
}

/// How a tensor is reduced; see the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Design {
    MultiRing,
    SingleRing,
    OmpRing,
    Reg,
    FlatRing,
}

impl Design {
    pub const ALL: [Design; 5] =
        [Design::MultiRing, Design::SingleRing, Design::OmpRing, Design::Reg, Design::FlatRing];

    /// As `--design` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Design::MultiRing => "multi-ring",
            Design::SingleRing => "single-ring",
            Design::OmpRing => "omp-ring",
            Design::Reg => "reg",
            Design::FlatRing => "flat-ring",
        }
    }

    /// What the paper's group takes for it; none: whatever suits.
    pub fn algorithm(self) -> Option<Algorithm> {
        (self != Design::Reg).then_some(Algorithm::Ring)
    }

    /// Are vectors cut into slices?
    fn cuts(self) -> bool {
        matches!(self, Design::MultiRing | Design::SingleRing)
    }

    /// May slices go on side by side?
    fn overlaps(self) -> bool {
        self == Design::MultiRing
    }
}

/// A tensor that all members have bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorId(usize);

/// A group whose members have several devices each.
#[derive(Debug)]
pub struct TensorGroup {
    group: Box<dyn Collectives>,
    devices: Arc<dyn Devices>,
    design: Design,
    slices: usize,
    tensors: Vec<Bound>,
    copies: Copies,
}

/// A tensor's memory.
#[derive(Debug)]
struct Bound {
    slices: Slices,
    /// By device: its vector as a whole.
    vectors: Vec<Buffer>,
    /// By slice and part: the same places in every device's vector.
    of_devices: Vec<Vec<Vec<Buffer>>>,
    /// By slice and part: where devices reduce to, and take from.
    on_wire: Vec<Vec<Buffer>>,
    /// By slice: what goes over the wire.
    bound: Vec<VectorId>,
}

impl TensorGroup {
    /// A group for tensors of these devices. All members have as many devices and the same design. `slices`: at
    /// most so many of a vector (the paper's NUM_RINGS), where the design cuts it.
    ///
    /// # Errors
    /// When there is no device, or several are to be one member ([`Design::FlatRing`]).
    pub fn new(
        group: Box<dyn Collectives>,
        devices: Arc<dyn Devices>,
        design: Design,
        slices: usize,
    ) -> Result<TensorGroup, GroupError> {
        match devices.count() {
            0 => Err(GroupError::Failed("a worker without devices has no tensor".into())),
            2.. if design == Design::FlatRing => Err(GroupError::Failed(
                "in a flat ring every device is a member of its own; open a group of all of them"
                    .into(),
            )),
            _ => {
                let (tensors, copies) = (Vec::new(), Copies::default());
                Ok(TensorGroup { group, devices, design, slices, tensors, copies })
            }
        }
    }

    /// Makes a tensor of vectors of `bytes` bytes, which every member does in the same order. Waits for the others.
    ///
    /// # Errors
    /// As of [`Collectives::bind`], and when there is no memory.
    pub fn bind(&mut self, bytes: usize, deadline: Deadline) -> Result<TensorId, GroupError> {
        let parts = self.devices.count();
        let most = if self.design.cuts() { self.slices } else { 1 };
        let slices = Slices::new(bytes, most, parts);
        let failed = |error: &dyn std::error::Error| GroupError::Failed(error.to_string());
        let (mut vectors, mut of_devices) = (Vec::new(), Vec::new());
        for _ in 0..self.devices.count() {
            let slab = Slab::anonymous(bytes).map_err(|error| failed(&error))?;
            let whole = [Place { offset: 0, bytes }];
            let (mut whole, parts) = cut(&slab, &whole, &slices)?;
            vectors.append(&mut whole);
            of_devices.push(parts);
        }
        let on_wire = self.group.alloc(bytes)?;
        let (wire, on_wire) = cut(&on_wire, &slices.all(), &slices)?;
        let bound = self.group.bind(&wire, deadline)?;
        self.tensors.push(Bound { slices, vectors, of_devices, on_wire, bound });
        Ok(TensorId(self.tensors.len() - 1))
    }

    /// The vectors of a tensor, by device, to fill and to read between operations.
    ///
    /// # Errors
    /// When there is no such tensor. So everywhere below.
    pub fn vectors(&self, tensor: TensorId) -> Result<&[Buffer], GroupError> {
        Ok(&self.bound(tensor)?.vectors)
    }

    /// The bytes of a vector that are `member`'s, when elements have so many: in order, of every slice its piece.
    ///
    /// # Errors
    /// See above.
    pub fn pieces(
        &self,
        tensor: TensorId,
        member: usize,
        element_bytes: usize,
    ) -> Result<Vec<Range<usize>>, GroupError> {
        let slices = &self.bound(tensor)?.slices;
        check_elements(element_bytes)?;
        let size = self.group.size();
        Ok((0..slices.count()).map(|at| slices.piece(at, member, size, element_bytes)).collect())
    }

    /// Does it, with vectors for members and elements of all devices for elements:
    ///
    /// | call | before | after |
    /// |---|---|---|
    /// | all-reduce | | every vector has the reduction of all vectors of all members |
    /// | reduce-scatter | | every vector of a member has the reduction of its pieces |
    /// | all-gather | the first vector of a member has its pieces | every vector has everybody's |
    /// | gather | the first vector of a member has its pieces | every vector of the root has everybody's |
    /// | scatter | the root's first vector | every vector of a member has its pieces |
    /// | broadcast | the root's first vector | every vector has it |
    /// | reduce | | every vector of the root has the reduction of all |
    ///
    /// What else is in a vector afterwards is undefined. A mean is that of all vectors. There is no all-to-all: slices
    /// have no halves.
    ///
    /// # Errors
    /// When there is no such call of tensors, a vector is lent, a member is lost, or it is not over before the deadline.
    pub fn run(
        &mut self,
        tensor: TensorId,
        call: &CollectiveCall,
        deadline: Deadline,
    ) -> Result<(), GroupError> {
        let bound = self.tensors.get(tensor.0).ok_or_else(|| no_such(tensor))?;
        match call {
            CollectiveCall::AllGather { element_bytes }
            | CollectiveCall::Gather { element_bytes, .. }
            | CollectiveCall::Scatter { element_bytes, .. } => check_elements(*element_bytes)?,
            CollectiveCall::AllToAll { .. } => return Err(no_all_to_all()),
            _ => {}
        }
        let (me, overlaps) = (self.group.me(), self.design.overlaps());
        let call = of_all_vectors(call, self.devices.count());
        let mut operation = Operation::new(bound, self.devices.as_ref(), &call, me, overlaps);
        loop {
            self.group.observe();
            let has_moved = self.group.progress()?;
            if operation.advance(self.group.as_mut())? || has_moved {
                if operation.is_done() {
                    self.copies.add(CopyPurpose::Staging, operation.bytes_copied());
                    return Ok(());
                }
                continue;
            }
            if deadline.passed() {
                return Err(GroupError::TimedOut {
                    waiting_for: operation.waiting_for(&*self.group),
                });
            }
            operation.wait(self.group.as_mut(), deadline)?;
        }
    }

    /// The group of members, for barriers and to close it.
    pub fn members(&mut self) -> &mut dyn Collectives {
        self.group.as_mut()
    }

    /// What the members' group did, with what devices copied to its memory and from there.
    pub fn stats(&self) -> GroupStats {
        let mut stats = self.group.stats();
        stats.copies.merge(&self.copies);
        stats
    }

    fn bound(&self, tensor: TensorId) -> Result<&Bound, GroupError> {
        self.tensors.get(tensor.0).ok_or_else(|| no_such(tensor))
    }
}

/// The same with vectors counted where members are.
fn of_all_vectors(call: &CollectiveCall, devices: usize) -> CollectiveCall {
    let of_all = |reducer: &Arc<dyn Reducer>| -> Arc<dyn Reducer> {
        Arc::new(TensorReducer { reducer: reducer.clone(), devices })
    };
    match call {
        CollectiveCall::AllReduce(reducer) => CollectiveCall::AllReduce(of_all(reducer)),
        CollectiveCall::ReduceScatter(reducer) => CollectiveCall::ReduceScatter(of_all(reducer)),
        CollectiveCall::Reduce { root, reducer } => {
            CollectiveCall::Reduce { root: *root, reducer: of_all(reducer) }
        }
        CollectiveCall::AllGather { .. }
        | CollectiveCall::Gather { .. }
        | CollectiveCall::Scatter { .. }
        | CollectiveCall::AllToAll { .. }
        | CollectiveCall::Broadcast { .. } => call.clone(),
    }
}

/// A reduction of what devices have reduced: a mean is divided by the number of their vectors.
#[derive(Debug)]
struct TensorReducer {
    reducer: Arc<dyn Reducer>,
    devices: usize,
}

impl Reducer for TensorReducer {
    fn element_bytes(&self) -> usize {
        self.reducer.element_bytes()
    }

    fn reduce(&self, parts: &[&[u8]], into: &mut [u8], whole: Option<usize>) {
        self.reducer.reduce(parts, into, whole.map(|members| members * self.devices));
    }

    fn reduce_into(&self, into: &mut [u8], from: &[u8], whole: Option<usize>) {
        self.reducer.reduce_into(into, from, whole.map(|members| members * self.devices));
    }
}

/// Pieces are of whole elements.
fn check_elements(element_bytes: usize) -> Result<(), GroupError> {
    let none = || GroupError::Failed("elements have at least one byte".to_string());
    if element_bytes == 0 { Err(none()) } else { Ok(()) }
}

fn no_all_to_all() -> GroupError {
    GroupError::Failed(
        "tensors have no all-to-all, whose halves slices do not have; take a vector of the group"
            .to_string(),
    )
}

fn no_such(TensorId(tensor): TensorId) -> GroupError {
    GroupError::Failed(format!("there is no tensor {tensor} in this group"))
}

/// Buffers of these places, and by slice and part. They overlap: a loan of one keeps the others' writers out.
fn cut(
    slab: &Slab,
    places: &[Place],
    slices: &Slices,
) -> Result<(Vec<Buffer>, Vec<Vec<Buffer>>), GroupError> {
    let parts = (0..slices.count()).map(|slice| slices.parts(slice));
    let all: Vec<Place> = places.iter().copied().chain(parts.flatten()).collect();
    let arena = Arena::new(slab, &all).map_err(|error| GroupError::Failed(error.to_string()))?;
    let mut buffers = arena.into_buffers().into_iter();
    let firsts = buffers.by_ref().take(places.len()).collect();
    let of_slice = |slice| buffers.by_ref().take(slices.parts(slice).len()).collect();
    Ok((firsts, (0..slices.count()).map(of_slice).collect()))
}
