//! Everybody talks with everybody.

use super::{Addend, Into, Kind, Schedule, Shape, Step, Stream};

/// One round: whole vectors.
pub(super) fn exchange(kind: Kind, shape: Shape) -> Schedule {
    let Shape { me, len, size, .. } = shape;
    let root = match kind {
        Kind::AllReduce => None,
        Kind::Reduce { root } => Some(root),
        _ => return schedule(kind, shape),
    };
    let stream = Stream::First;
    let lands = |to| Into::Landing(Shape::seat(me, to) * len);
    let is_folded_by = |member| root.is_none_or(|root| root == member);
    let mut steps = Vec::new();
    for to in shape.others().filter(|to| is_folded_by(*to)) {
        steps.push(Step::Send { to, range: 0..len, into: lands(to), stream });
    }
    if is_folded_by(me) {
        steps.extend(shape.others().map(|from| Step::Receive { from, stream }));
        // the result takes the place of what is sent
        steps.push(Step::Flush);
        let addends = addends(shape, |seat| seat * len);
        steps.push(Step::Fold { range: 0..len, addends, is_whole: true });
    }
    Schedule { lanes: vec![steps], landing: (size - 1) * len, alternates: true }
}

/// Pieces to their owners, results to all.
pub(super) fn schedule(kind: Kind, shape: Shape) -> Schedule {
    let mut steps = Vec::new();
    let mut landing = landing(shape);
    match kind {
        Kind::AllReduce => scatter(&mut steps, shape, |_| true),
        Kind::ReduceScatter => scatter(&mut steps, shape, |_| false),
        Kind::Reduce { root } => scatter(&mut steps, shape, |to| to == root),
        Kind::AllGather => {
            landing = 0;
            let stream = Stream::First;
            let send =
                |to| Step::Send { to, range: shape.piece(shape.me), into: Into::Vector, stream };
            steps.extend(shape.others().map(send));
            steps.extend(shape.others().map(|from| Step::Receive { from, stream }));
        }
        Kind::Broadcast { root } => {
            landing = 0;
            let (stream, range) = (Stream::First, 0..shape.len);
            let send = |to| Step::Send { to, range: range.clone(), into: Into::Vector, stream };
            if root == shape.me {
                steps.extend(shape.others().map(send));
            } else {
                steps.push(Step::Receive { from: root, stream });
            }
        }
    }
    Schedule { lanes: vec![steps], landing, alternates: false }
}

/// Elements of the segments of all others that are on their way to be folded.
pub(super) fn landing(shape: Shape) -> usize {
    (shape.size - 1) * seats(shape) * stride(shape)
}

/// Segments of one member that have a place.
fn seats(shape: Shape) -> usize {
    shape.window.clamp(1, shape.segment_count())
}

/// Elements of a segment's place.
fn stride(shape: Shape) -> usize {
    shape.segment.clamp(1, shape.piece_max().max(1))
}

/// Everybody folds his piece, in the order of members, segment by segment. A result goes to those who are to have
/// it; the others hear that their addend was folded. A segment is sent when an earlier one has left its place, so
/// that what lands stays in a cache.
pub(super) fn scatter(steps: &mut Vec<Step>, shape: Shape, gets_result: impl Fn(usize) -> bool) {
    let Shape { me, .. } = shape;
    let (count, seats, stride) = (shape.segment_count(), seats(shape), stride(shape));
    let place = |seat: usize, i: usize| (seat * seats + i % seats) * stride;
    let give = |steps: &mut Vec<Step>, i: usize| {
        for to in shape.others() {
            let range = shape.segment_of(shape.piece(to), i);
            let into = Into::Landing(place(Shape::seat(me, to), i));
            steps.push(Step::Send { to, range, into, stream: Stream::First });
        }
    };
    let await_all = |steps: &mut Vec<Step>, stream| {
        steps.extend(shape.others().map(|from| Step::Receive { from, stream }));
    };
    (0..seats).for_each(|i| give(steps, i));
    let mut answered = 0;
    for i in 0..count {
        // one behind: what is awaited here has had the time of a segment to come
        if i > 0 && i - 1 + seats < count {
            await_all(steps, Stream::Second);
            answered += 1;
            give(steps, i - 1 + seats);
        }
        await_all(steps, Stream::First);
        let range = shape.segment_of(shape.piece(me), i);
        let addends = addends(shape, |seat| place(seat, i));
        steps.push(Step::Fold { range: range.clone(), addends, is_whole: true });
        for to in shape.others() {
            let (range, stream) = (range.clone(), Stream::Second);
            steps.push(match gets_result(to) {
                true => Step::Send { to, range, into: Into::Vector, stream },
                false => Step::Signal { to, stream },
            });
        }
    }
    for _ in answered..count {
        await_all(steps, Stream::Second);
    }
}

/// All members', in their order.
fn addends(shape: Shape, place: impl Fn(usize) -> usize) -> Vec<Addend> {
    let of = |member| match member {
        member if member == shape.me => Addend::Own,
        member => Addend::Landed(place(Shape::seat(member, shape.me))),
    };
    (0..shape.size).map(of).collect()
}
