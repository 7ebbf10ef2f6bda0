//! Members that share memory: nothing is sent but two signals.

use super::{GroupShape, OperationKind, Owners, Schedule, Step};

pub(super) fn schedule(kind: OperationKind, shape: GroupShape) -> Schedule {
    let reducer = |to| vec![Step::ReduceShared { range: shape.piece(shape.me), to }];
    let work = match kind {
        OperationKind::AllReduce => reducer(Owners::All),
        OperationKind::ReduceScatter => reducer(Owners::One(shape.me)),
        OperationKind::Reduce { root } => reducer(Owners::One(root)),
        OperationKind::AllGather => {
            shape.others().map(|from| Step::Pull { from, range: shape.piece(from) }).collect()
        }
        OperationKind::Broadcast { root } if root == shape.me => Vec::new(),
        OperationKind::Broadcast { root } => vec![Step::Pull { from: root, range: 0..shape.len }],
    };
    // nobody's vector is touched before he has come, nor after he has gone
    let mut steps = shape.meet();
    steps.extend(work);
    steps.extend(shape.meet());
    Schedule { sequences: vec![steps], ..Schedule::default() }
}
