//! Everybody talks with everybody.

use super::{Addend, GroupShape, Into, OperationKind, Schedule, Step, Tag};

/// Who reduces where one member does it for all.
const ROOT: usize = 0;

/// One round: whole vectors.
pub(super) fn exchange(kind: OperationKind, shape: GroupShape) -> Schedule {
    let GroupShape { me, len, size, .. } = shape;
    let root = match kind {
        OperationKind::AllReduce => None,
        OperationKind::Reduce { root } => Some(root),
        _ => return schedule(kind, shape),
    };
    let tag = Tag::First;
    let lands = |to| Into::Landing(GroupShape::slot(me, to) * len);
    let is_reduced_by = |member| root.is_none_or(|root| root == member);
    let mut steps = Vec::new();
    for to in shape.others().filter(|to| is_reduced_by(*to)) {
        steps.push(Step::Send { to, range: 0..len, into: lands(to), tag });
    }
    if is_reduced_by(me) {
        steps.extend(shape.others().map(|from| Step::Receive { from, tag }));
        // the result takes the place of what is sent
        steps.push(Step::Flush);
        let addends = addends(shape, |slot| slot * len);
        steps.push(Step::Reduce { range: 0..len, addends, is_whole: true });
    }
    Schedule {
        sequences: vec![steps],
        landing: (size - 1) * len,
        alternates: true,
        ..Schedule::default()
    }
}

/// All to the first member, and the result to all.
pub(super) fn reduce_broadcast(kind: OperationKind, shape: GroupShape) -> Schedule {
    if kind != OperationKind::AllReduce {
        return schedule(kind, shape);
    }
    let GroupShape { me, len, size, .. } = shape;
    let (tag, range) = (Tag::First, 0..len);
    let mut steps = Vec::new();
    if me == ROOT {
        steps.extend(shape.others().map(|from| Step::Receive { from, tag }));
        let addends = addends(shape, |slot| slot * len);
        steps.push(Step::Reduce { range: range.clone(), addends, is_whole: true });
        let send = |to| Step::Send { to, range: range.clone(), into: Into::Vector, tag };
        steps.extend(shape.others().map(send));
    } else {
        let into = Into::Landing(GroupShape::slot(me, ROOT) * len);
        steps.push(Step::Send { to: ROOT, range, into, tag });
        steps.push(Step::Receive { from: ROOT, tag });
    }
    Schedule { sequences: vec![steps], landing: (size - 1) * len, ..Schedule::default() }
}

/// What a member does that has no others.
pub(super) fn alone(kind: OperationKind, shape: GroupShape) -> Schedule {
    let sequences = match kind {
        OperationKind::AllToAll => vec![vec![keep(shape)]],
        _ => Vec::new(),
    };
    Schedule { sequences, ..Schedule::default() }
}

/// What a member sends to itself in an all-to-all.
pub(super) fn keep(shape: GroupShape) -> Step {
    Step::Copy { range: shape.sent_to(shape.me), at: shape.come_from(shape.me) }
}

/// Pieces to their owners, results to all.
pub(super) fn schedule(kind: OperationKind, shape: GroupShape) -> Schedule {
    let mut steps = Vec::new();
    let mut landing = landing(shape);
    match kind {
        OperationKind::AllReduce => scatter(&mut steps, shape, |_| true),
        OperationKind::ReduceScatter => scatter(&mut steps, shape, |_| false),
        OperationKind::Reduce { root } => scatter(&mut steps, shape, |to| to == root),
        OperationKind::AllGather => {
            landing = 0;
            let tag = Tag::First;
            let send =
                |to| Step::Send { to, range: shape.piece(shape.me), into: Into::Vector, tag };
            steps.extend(shape.others().map(send));
            steps.extend(shape.others().map(|from| Step::Receive { from, tag }));
        }
        OperationKind::Gather { root } => {
            landing = 0;
            let tag = Tag::First;
            if root == shape.me {
                steps.extend(shape.others().map(|from| Step::Receive { from, tag }));
            } else {
                let range = shape.piece(shape.me);
                steps.push(Step::Send { to: root, range, into: Into::Vector, tag });
            }
        }
        OperationKind::Scatter { root } => {
            landing = 0;
            let tag = Tag::First;
            let send = |to| Step::Send { to, range: shape.piece(to), into: Into::Vector, tag };
            if root == shape.me {
                steps.extend(shape.others().map(send));
            } else {
                steps.push(Step::Receive { from: root, tag });
            }
        }
        OperationKind::AllToAll => {
            landing = 0;
            let (tag, into) = (Tag::First, Into::VectorAt(shape.come_from(shape.me)));
            let send = |to| Step::Send { to, range: shape.sent_to(to), into, tag };
            steps.extend(shape.others().map(send));
            // while they are on their way
            steps.push(keep(shape));
            steps.extend(shape.others().map(|from| Step::Receive { from, tag }));
        }
        OperationKind::Broadcast { root } => {
            landing = 0;
            let (tag, range) = (Tag::First, 0..shape.len);
            let send = |to| Step::Send { to, range: range.clone(), into: Into::Vector, tag };
            if root == shape.me {
                steps.extend(shape.others().map(send));
            } else {
                steps.push(Step::Receive { from: root, tag });
            }
        }
    }
    Schedule { sequences: vec![steps], landing, ..Schedule::default() }
}

/// Elements of the segments of all others that are on their way to be reduced.
pub(super) fn landing(shape: GroupShape) -> usize {
    (shape.size - 1) * slots(shape) * stride(shape)
}

/// Segments of one member that have a place.
fn slots(shape: GroupShape) -> usize {
    shape.window.clamp(1, shape.segment_count())
}

/// Elements of a segment's place.
fn stride(shape: GroupShape) -> usize {
    shape.segment.clamp(1, shape.piece_max().max(1))
}

/// Everybody reduces his piece, in the order of members, segment by segment. A result goes to those who are to have
/// it; the others hear that their addend was reduced. A segment is sent when an earlier one has left its place, so
/// that what lands stays in a cache.
pub(super) fn scatter(
    steps: &mut Vec<Step>,
    shape: GroupShape,
    gets_result: impl Fn(usize) -> bool,
) {
    let GroupShape { me, .. } = shape;
    let (count, slots, stride) = (shape.segment_count(), slots(shape), stride(shape));
    let place = |slot: usize, i: usize| (slot * slots + i % slots) * stride;
    let give = |steps: &mut Vec<Step>, i: usize| {
        for to in shape.others() {
            let range = shape.segment_of(shape.piece(to), i);
            let into = Into::Landing(place(GroupShape::slot(me, to), i));
            steps.push(Step::Send { to, range, into, tag: Tag::First });
        }
    };
    let await_all = |steps: &mut Vec<Step>, tag| {
        steps.extend(shape.others().map(|from| Step::Receive { from, tag }));
    };
    (0..slots).for_each(|i| give(steps, i));
    let mut answered = 0;
    for i in 0..count {
        // one behind: what is awaited here has had the time of a segment to come
        if i > 0 && i - 1 + slots < count {
            await_all(steps, Tag::Second);
            answered += 1;
            give(steps, i - 1 + slots);
        }
        await_all(steps, Tag::First);
        let range = shape.segment_of(shape.piece(me), i);
        let addends = addends(shape, |slot| place(slot, i));
        steps.push(Step::Reduce { range: range.clone(), addends, is_whole: true });
        for to in shape.others() {
            let (range, tag) = (range.clone(), Tag::Second);
            steps.push(match gets_result(to) {
                true => Step::Send { to, range, into: Into::Vector, tag },
                false => Step::Signal { to, tag },
            });
        }
    }
    for _ in answered..count {
        await_all(steps, Tag::Second);
    }
}

/// All members', in their order.
fn addends(shape: GroupShape, place: impl Fn(usize) -> usize) -> Vec<Addend> {
    let of = |member| match member {
        member if member == shape.me => Addend::Own,
        member => Addend::Landed(place(GroupShape::slot(member, shape.me))),
    };
    (0..shape.size).map(of).collect()
}
