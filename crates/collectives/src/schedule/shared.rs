//! Members that share memory: nothing is sent but two signals.

use std::ops::Range;

use super::{GroupShape, OperationKind, Owners, Schedule, Step, direct};

pub(super) fn schedule(kind: OperationKind, shape: GroupShape) -> Schedule {
    let reducer = |to| vec![Step::ReduceShared { range: shape.piece(shape.me), to }];
    let pull = |from, range: Range<usize>| Step::Pull { from, at: range.start, range };
    let work = match kind {
        OperationKind::AllReduce => reducer(Owners::All),
        OperationKind::ReduceScatter => reducer(Owners::One(shape.me)),
        OperationKind::Reduce { root } => reducer(Owners::One(root)),
        OperationKind::AllGather => {
            shape.others().map(|from| pull(from, shape.piece(from))).collect()
        }
        OperationKind::Gather { root } if root == shape.me => {
            shape.others().map(|from| pull(from, shape.piece(from))).collect()
        }
        OperationKind::Gather { .. } => Vec::new(),
        OperationKind::Scatter { root } | OperationKind::Broadcast { root } if root == shape.me => {
            Vec::new()
        }
        OperationKind::Scatter { root } => vec![pull(root, shape.piece(shape.me))],
        OperationKind::Broadcast { root } => vec![pull(root, 0..shape.len)],
        OperationKind::AllToAll => {
            let range = shape.sent_to(shape.me);
            let pull = |from| Step::Pull { from, range: range.clone(), at: shape.come_from(from) };
            shape.others().map(pull).chain([direct::keep(shape)]).collect()
        }
    };
    // nobody's vector is touched before he has come, nor after he has gone
    let mut steps = shape.meet();
    steps.extend(work);
    steps.extend(shape.meet());
    Schedule { sequences: vec![steps], meets: true, ..Schedule::default() }
}
