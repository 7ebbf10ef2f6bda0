//! Everybody talks with everybody.

use std::ops::Range;

use super::{Addend, Into, Kind, Schedule, Shape, Step};

/// One round: whole vectors.
pub(super) fn exchange(kind: Kind, shape: Shape) -> Schedule {
    let Shape { me, len, size, .. } = shape;
    let root = match kind {
        Kind::AllReduce => None,
        Kind::Reduce { root } => Some(root),
        _ => return schedule(kind, shape),
    };
    let lands = |to| Into::Landing(Shape::seat(me, to) * len);
    let is_folded_by = |member| root.is_none_or(|root| root == member);
    let mut steps = Vec::new();
    for to in shape.others().filter(|to| is_folded_by(*to)) {
        steps.push(Step::Send { to, range: 0..len, into: lands(to) });
    }
    if is_folded_by(me) {
        steps.extend(shape.others().map(|from| Step::Receive { from }));
        // the result takes the place of what is sent
        steps.push(Step::Flush);
        let addends = addends(shape, len, 0);
        steps.push(Step::Fold { range: 0..len, addends, is_whole: true });
    }
    Schedule { lanes: vec![steps], landing: (size - 1) * len, alternates: true }
}

/// Pieces to their owners, results to all.
pub(super) fn schedule(kind: Kind, shape: Shape) -> Schedule {
    let mut steps = Vec::new();
    let landing = match kind {
        Kind::AllReduce => {
            scatter(&mut steps, shape, |steps, range| tell_all(steps, shape, range));
            await_pieces(&mut steps, shape);
            landing(shape)
        }
        Kind::ReduceScatter => {
            scatter(&mut steps, shape, |_, _| {});
            landing(shape)
        }
        Kind::Reduce { root } => {
            gather_folds(&mut steps, shape, root);
            landing(shape)
        }
        Kind::AllGather => {
            gather(&mut steps, shape);
            0
        }
        Kind::Broadcast { root } if root == shape.me => {
            tell_all(&mut steps, shape, 0..shape.len);
            0
        }
        Kind::Broadcast { root } => {
            steps.push(Step::Receive { from: root });
            0
        }
    };
    Schedule { lanes: vec![steps], landing, alternates: false }
}

/// Every member's addends of a piece, but the owner's.
pub(super) fn landing(shape: Shape) -> usize {
    (shape.size - 1) * shape.piece_max()
}

/// Everybody folds his piece, in the order of members, segment by segment; `then` is what follows each.
pub(super) fn scatter(
    steps: &mut Vec<Step>,
    shape: Shape,
    mut then: impl FnMut(&mut Vec<Step>, Range<usize>),
) {
    let Shape { me, .. } = shape;
    for i in 0..shape.segment_count() {
        for to in shape.others() {
            let range = shape.segment_of(shape.piece(to), i);
            let at =
                Shape::seat(me, to) * shape.piece_max() + (range.start - shape.piece(to).start);
            steps.push(Step::Send { to, range, into: Into::Landing(at) });
        }
    }
    for i in 0..shape.segment_count() {
        steps.extend(shape.others().map(|from| Step::Receive { from }));
        let range = shape.segment_of(shape.piece(me), i);
        let offset = range.start - shape.piece(me).start;
        let addends = addends(shape, shape.piece_max(), offset);
        steps.push(Step::Fold { range: range.clone(), addends, is_whole: true });
        then(steps, range);
    }
}

/// Everybody has folded his piece, and the root gets it.
fn gather_folds(steps: &mut Vec<Step>, shape: Shape, root: usize) {
    scatter(steps, shape, |steps, range| {
        if root != shape.me {
            steps.push(Step::Send { to: root, range, into: Into::Vector });
        }
    });
    if root == shape.me {
        await_pieces(steps, shape);
    }
}

/// Everybody sends his piece to everybody.
pub(super) fn gather(steps: &mut Vec<Step>, shape: Shape) {
    for i in 0..shape.segment_count() {
        tell_all(steps, shape, shape.segment_of(shape.piece(shape.me), i));
    }
    await_pieces(steps, shape);
}

fn tell_all(steps: &mut Vec<Step>, shape: Shape, range: Range<usize>) {
    let send = |to| Step::Send { to, range: range.clone(), into: Into::Vector };
    steps.extend(shape.others().map(send));
}

fn await_pieces(steps: &mut Vec<Step>, shape: Shape) {
    for _ in 0..shape.segment_count() {
        steps.extend(shape.others().map(|from| Step::Receive { from }));
    }
}

/// All members', in their order; each other's place is `stride` elements.
fn addends(shape: Shape, stride: usize, offset: usize) -> Vec<Addend> {
    let of = |member| match member {
        member if member == shape.me => Addend::Own,
        member => Addend::Landed(Shape::seat(member, shape.me) * stride + offset),
    };
    (0..shape.size).map(of).collect()
}
