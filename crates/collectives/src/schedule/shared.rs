//! Members that share memory: nothing is sent but two signals.

use super::{Kind, Owners, Schedule, Shape, Step};

pub(super) fn schedule(kind: Kind, shape: Shape) -> Schedule {
    let fold = |to| vec![Step::FoldShared { range: shape.piece(shape.me), to }];
    let work = match kind {
        Kind::AllReduce => fold(Owners::All),
        Kind::ReduceScatter => fold(Owners::One(shape.me)),
        Kind::Reduce { root } => fold(Owners::One(root)),
        Kind::AllGather => {
            shape.others().map(|from| Step::Pull { from, range: shape.piece(from) }).collect()
        }
        Kind::Broadcast { root } if root == shape.me => Vec::new(),
        Kind::Broadcast { root } => vec![Step::Pull { from: root, range: 0..shape.len }],
    };
    // nobody's vector is touched before he has come, nor after he has gone
    let mut steps = shape.meet();
    steps.extend(work);
    steps.extend(shape.meet());
    Schedule { lanes: vec![steps], ..Schedule::default() }
}
