//! A client as its members see it: workers that reduce their gradients among themselves, and broadcast what their first
//! one gets.

#[cfg(test)]
mod early_tests;
mod edges;
mod exchange;
mod nccl;
mod reducer;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorwire_base::{Deadline, Rank};
use tensorwire_collectives::{
    CollectiveCall, Collectives, Group, GroupError, GroupOptions, LinkCost, VectorId,
};
use tensorwire_cuda::NcclError;
use tensorwire_fabric::Fabric;
use tensorwire_graph::{NodeId, Op, Part};
use tensorwire_kernels::{FoldKind, NoFold};
use tensorwire_launch::Transport;
use tensorwire_memory::{Arena, ArenaError, Buffer, LoanError, Place};
use tensorwire_runtime::Storage;

pub(crate) use edges::{
    BesideGroup, GroupEdges, OpenEdges, crosses_on_host, is_of_group, sent_in_group,
};
pub(crate) use exchange::{OrderOnly, master_ports, member_ports};
pub(crate) use nccl::{NcclLibrary, NcclPlace, nccl_ports};
pub use reducer::VectorReducer;

/// The way between processes that share no memory, of one host or, `spread`, of several.
pub fn link_cost(transport: Transport, spread: bool) -> LinkCost {
    match transport {
        Transport::Verbs => LinkCost::RDMA,
        _ if spread => LinkCost::TCP,
        _ => LinkCost::LOOPBACK,
    }
}

/// A group that a session and its trainer share.
pub(crate) type SharedGroup = Arc<Mutex<Group>>;

/// Why a client cannot do what it is to do.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error(transparent)]
    Fold(#[from] NoFold),
    #[error("vector {vector} of the group: {source}")]
    Lent { vector: u32, source: LoanError },
    #[error(transparent)]
    Nccl(#[from] NcclError),
    #[error(
        "the first worker of the group told of no communicator of NCCL; do all members run the same version?"
    )]
    NcclId,
    #[error("this worker has neither a client nor a store; do all members run the same version?")]
    Alone,
    #[error("node '{name}' has no place that the group knows")]
    Unplaced { name: String },
}

impl ClientError {
    /// The peer whose loss made this, if that was the cause.
    pub fn lost_peer(&self) -> Option<Rank> {
        match self {
            ClientError::Group(error) => error.lost_peer(),
            _ => None,
        }
    }
}

/// Opens this process's end of a group of `ranks`, to all of whom `fabric` is connected. If it `measures` the way between its
/// hosts, that is returned, where there are several.
pub(crate) fn open_group(
    fabric: Fabric,
    ranks: &[Rank],
    me: Rank,
    (options, measures): (GroupOptions, bool),
    deadline: Deadline,
) -> Result<(SharedGroup, Option<LinkCost>), ClientError> {
    let at = ranks.iter().position(|rank| *rank == me);
    let outside = || GroupError::Failed(format!("rank {me} is not of the group {ranks:?}"));
    let mut group = Group::open(fabric, ranks, at.ok_or_else(outside)?, options, deadline)?;
    let measured = if measures { group.measure_link(deadline)? } else { None };
    if at == Some(0) {
        let by = |bytes: usize| group.algorithm(bytes).name();
        tracing::info!(
            members = ranks.len(),
            "all-reduce: 4 KiB by {}, 1 MiB by {}, 64 MiB by {}",
            by(4 << 10),
            by(1 << 20),
            by(64 << 20)
        );
    }
    Ok((Arc::new(Mutex::new(group)), measured))
}

/// What the nodes of a part do in its group.
#[derive(Debug, Default)]
pub(crate) struct Bound {
    calls: HashMap<NodeId, (VectorId, CollectiveCall)>,
    widest: Option<Widest>,
}

/// The largest vector of a group.
#[derive(Clone, Debug)]
pub(crate) struct Widest {
    vector: VectorId,
    buffer: Buffer,
}

/// Makes the vectors of a part's nodes known to its group. All members do, each with its part.
pub(crate) fn bind_part(
    group: &SharedGroup,
    part: &Part,
    storage: &Storage,
    deadline: Deadline,
) -> Result<Bound, ClientError> {
    let of_group = part.graph.nodes().filter_map(|(id, node)| Some((node.op.vector()?, id)));
    let mut nodes: Vec<(u32, NodeId)> = of_group.collect();
    // the same order at all members
    nodes.sort_unstable();
    let (mut buffers, mut calls) = (Vec::new(), Vec::new());
    for (_, id) in &nodes {
        let node = part.graph.node(*id);
        let unplaced = || ClientError::Unplaced { name: node.name.clone() };
        buffers.push(storage.buffer((*id).into()).ok_or_else(unplaced)?);
        calls.push(match node.op {
            Op::Broadcast { .. } => CollectiveCall::Broadcast { root: 0 },
            _ => {
                let dtype = part.graph.fact((*id).into()).dtype;
                CollectiveCall::AllReduce(Arc::new(VectorReducer::new(dtype, FoldKind::Mean)?))
            }
        });
    }
    let vectors = group.lock().bind(&buffers, deadline)?;
    let widest = vectors.iter().zip(&buffers).max_by_key(|(_, buffer)| buffer.bytes());
    let widest = widest.map(|(vector, buffer)| Widest { vector: *vector, buffer: buffer.clone() });
    let calls = nodes.iter().zip(vectors.into_iter().zip(calls));
    Ok(Bound { calls: calls.map(|((_, id), call)| (*id, call)).collect(), widest })
}

/// One vector with room for `bytes`, for what has none of its own. All members bind it.
pub(crate) fn bind_widest(
    group: &SharedGroup,
    bytes: usize,
    deadline: Deadline,
) -> Result<Option<Widest>, ClientError> {
    let mut group = group.lock();
    let slab = group.alloc(bytes)?;
    let places = [Place { offset: 0, bytes }];
    let failed = |error: ArenaError| GroupError::Failed(error.to_string());
    let buffers = Arena::new(&slab, &places).map_err(failed)?.into_buffers();
    let vectors = group.bind(&buffers, deadline)?;
    let bound = vectors.into_iter().zip(buffers).next();
    Ok(bound.map(|(vector, buffer)| Widest { vector, buffer }))
}

impl Bound {
    /// The largest vector, if there is one.
    pub(crate) fn widest(&self) -> Option<Widest> {
        self.widest.clone().filter(|widest| widest.buffer.bytes() > 0)
    }
}

impl Widest {
    /// Gives all members the first one's `values`, through this vector, before anything else uses it. All have values
    /// of these sizes. Returns the bytes that were copied here, into the vector or out of it, once all members have them: who
    /// gave them would count the others' fetching as a step of its own.
    pub(crate) fn broadcast(
        &self,
        group: &SharedGroup,
        values: &mut [&mut [u8]],
        deadline: Deadline,
    ) -> Result<usize, ClientError> {
        let mut copied = 0;
        let Widest { vector, buffer } = self;
        let mut group = group.lock();
        let is_first = group.me() == 0;
        let lent = |source| ClientError::Lent { vector: vector.0, source };
        let pieces = values.iter_mut().flat_map(|value| value.chunks_mut(buffer.bytes()));
        let mut pieces = pieces.peekable();
        while pieces.peek().is_some() {
            // as many at once as have room, and no more of the vector than they are
            let (mut round, mut end) = (Vec::new(), 0);
            while let Some(piece) = pieces.next_if(|piece| end + piece.len() <= buffer.bytes()) {
                let range = end..end + piece.len();
                end = range.end;
                copied += piece.len();
                round.push((range, piece));
            }
            if is_first {
                let mut all = buffer.write().map_err(lent)?;
                round.iter().for_each(|(range, piece)| all[range.clone()].copy_from_slice(piece));
            }
            let handle = group.start_part(*vector, end, CollectiveCall::Broadcast { root: 0 })?;
            group.wait(handle, deadline)?;
            if !is_first {
                let all = buffer.read().map_err(lent)?;
                round.into_iter().for_each(|(range, piece)| piece.copy_from_slice(&all[range]));
            }
        }
        group.barrier(deadline)?;
        Ok(copied)
    }
}

#[cfg(test)]
mod tests {
    use tensorwire_fabric::Backend;
    use tensorwire_testkit::mesh::{mesh, soon};

    use super::*;

    #[test]
    fn first_values_come_in_rounds_and_all_meet_behind_the_last() {
        let broadcast = |(me, fabric): (usize, Fabric)| {
            let ranks = [Rank(0), Rank(1)];
            let group = Group::open(fabric, &ranks, me, GroupOptions::default(), soon()).unwrap();
            let group = Arc::new(Mutex::new(group));
            let widest = bind_widest(&group, 8, soon()).unwrap().unwrap();
            let before = group.lock().stats();
            let (mut first, mut second) = ([if me == 0 { 7 } else { 0 }; 8], [me as u8; 3]);
            widest.broadcast(&group, &mut [&mut first, &mut second], soon()).unwrap();
            assert_eq!((first, second), ([7; 8], [0; 3]));
            let after = group.lock().stats();
            // one each, for the vector has no room for both, and the barrier
            assert_eq!(after.operations - before.operations, 2 + 1);
            // and not the vector's end, where nothing of the second is
            let sent = if me == 0 { 8 + 3 } else { 0 };
            assert_eq!(after.bytes_sent - before.bytes_sent, sent);
        };
        std::thread::scope(|scope| {
            for member in mesh(|| Backend::Tcp, 2).into_iter().enumerate() {
                scope.spawn(move || broadcast(member));
            }
        });
    }
}
