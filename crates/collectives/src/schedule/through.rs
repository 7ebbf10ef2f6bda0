//! Operations on memory outside of vectors, where members share those: what others take is staged in one's vector, and what
//! they have is fetched from theirs. Nothing is staged that nobody takes.

use super::{GroupShape, OperationKind, PartSpot, Schedule, Step};

/// `part`: elements of each part that a member gives or gets. `at_once`: an all-reduce is short, and everybody reduces all of
/// it. The vector holds all parts where each goes to another member, else one.
pub(super) fn schedule(
    kind: OperationKind,
    shape: GroupShape,
    part: usize,
    at_once: bool,
) -> Schedule {
    let me = shape.me;
    let whole = 0..part;
    let of = |i: usize| i * part..(i + 1) * part;
    let stage = |of, range| Step::Stage { from: PartSpot { part: of, at: 0 }, range };
    let fetch = |from, range, of| Step::Fetch { from, range, to: PartSpot { part: of, at: 0 } };
    let keep = |from, to| Step::Keep { from, to, len: part };
    let meet = || shape.meet();
    let mut steps = Vec::new();
    match kind {
        OperationKind::AllReduce if at_once => {
            steps.push(stage(0, whole.clone()));
            steps.extend(meet());
            let here = PartSpot { part: 0, at: 0 };
            steps.push(Step::ReduceStaged {
                range: whole,
                own: here,
                to: Some(here),
                leaves: false,
            });
        }
        OperationKind::AllReduce | OperationKind::Reduce { .. } => {
            let is_for = |member| kind.root().is_none_or(|root| root == member);
            let spot = |at| PartSpot { part: 0, at };
            for owner in shape.others() {
                let range = shape.piece(owner);
                steps.push(Step::Stage { from: spot(range.start), range });
            }
            steps.extend(meet());
            let range = shape.piece(me);
            let own = spot(range.start);
            let leaves = (0..shape.size).any(|member| member != me && is_for(member));
            let to = is_for(me).then_some(own);
            steps.push(Step::ReduceStaged { range, own, to, leaves });
            steps.extend(meet());
            for from in shape.others().filter(|_| is_for(me)) {
                let range = shape.piece(from);
                steps.push(Step::Fetch { from, to: spot(range.start), range });
            }
        }
        OperationKind::ReduceScatter => {
            steps.extend(shape.others().map(|to| stage(to, of(to))));
            steps.extend(meet());
            let (own, to) = (PartSpot { part: me, at: 0 }, Some(PartSpot { part: 0, at: 0 }));
            steps.push(Step::ReduceStaged { range: of(me), own, to, leaves: false });
        }
        OperationKind::AllGather => {
            steps.push(stage(0, whole.clone()));
            steps.extend(meet());
            steps.push(keep(0, me));
            steps.extend(shape.others().map(|from| fetch(from, whole.clone(), from)));
        }
        OperationKind::Gather { root } if root == me => {
            steps.extend(meet());
            steps.push(keep(0, me));
            steps.extend(shape.others().map(|from| fetch(from, whole.clone(), from)));
        }
        OperationKind::Scatter { root } if root == me => {
            steps.extend(shape.others().map(|to| stage(to, of(to))));
            steps.extend(meet());
            steps.push(keep(me, 0));
        }
        OperationKind::Broadcast { root } if root != me => {
            steps.extend(meet());
            steps.push(fetch(root, whole, 0));
        }
        OperationKind::Gather { .. } | OperationKind::Broadcast { .. } => {
            steps.push(stage(0, whole));
            steps.extend(meet());
        }
        OperationKind::Scatter { root } => {
            steps.extend(meet());
            steps.push(fetch(root, of(me), 0));
        }
        OperationKind::AllToAll => {
            steps.extend(shape.others().map(|to| stage(to, of(to))));
            steps.extend(meet());
            steps.push(keep(me, me));
            steps.extend(shape.others().map(|from| fetch(from, of(me), from)));
        }
    }
    // nobody waits for it now: whatever goes through the vector next waits first
    steps.extend(shape.others().map(|to| Step::Leave { to }));
    Schedule { sequences: vec![steps], is_left: true, ..Schedule::default() }
}
