//! Recursive halving and doubling (Rabenseifner): members at distance 1, 2, 4, … exchange halves of what they hold,
//! then results. Where the size is no power of two, the first members pair up and one of each pair stands for both.

use std::ops::Range;

use super::{Addend, GroupShape, Into, OperationKind, Schedule, Step, Tag, direct};

const TAG: Tag = Tag::First;

pub(super) fn schedule(kind: OperationKind, shape: GroupShape) -> Schedule {
    let GroupShape { size, deterministic, .. } = shape;
    match kind {
        OperationKind::Broadcast { root } => broadcast(shape, root),
        OperationKind::AllReduce if deterministic && size.is_power_of_two() => {
            let mut steps = Vec::new();
            direct::scatter(&mut steps, shape, |_| false);
            // pieces of the reduction, in the order of members: doubling has them side by side
            double(&mut steps, shape, shape.me, size, |at| shape.piece(at), &|at| at);
            Schedule {
                sequences: vec![steps],
                landing: direct::landing(shape),
                ..Schedule::default()
            }
        }
        OperationKind::AllReduce if !deterministic => all_reduce(shape),
        _ => direct::schedule(kind, shape),
    }
}

/// Who takes part where the size is no power of two: as many as the largest below it. Of the first members, every second stands
/// for the one before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) count: usize,
    /// Pairs.
    pub(super) extra: usize,
}

impl Places {
    pub(super) fn of(size: usize) -> Places {
        let count = if size.is_power_of_two() { size } else { size.next_power_of_two() / 2 };
        Places { count, extra: size - count }
    }

    pub(super) fn is_stood_for(self, member: usize) -> bool {
        member < 2 * self.extra && member.is_multiple_of(2)
    }

    pub(super) fn stands_for_two(self, member: usize) -> bool {
        member < 2 * self.extra && !member.is_multiple_of(2)
    }

    /// Of one who takes part; those who stand for two come first.
    pub(super) fn place(self, member: usize) -> usize {
        if member < 2 * self.extra { member / 2 } else { member - self.extra }
    }

    pub(super) fn member(self, place: usize) -> usize {
        if place < self.extra { 2 * place + 1 } else { place + self.extra }
    }
}

fn all_reduce(shape: GroupShape) -> Schedule {
    let GroupShape { size, me, len, .. } = shape;
    let places = Places::of(size);
    let Places { count: half, extra } = places;
    let whole = 0..len;
    let mut steps = Vec::new();
    if places.is_stood_for(me) {
        steps.push(Step::Send { to: me + 1, range: whole, into: Into::Landing(0), tag: TAG });
        steps.push(Step::Receive { from: me + 1, tag: TAG });
        return Schedule {
            sequences: vec![steps],
            landing: landing(len, half, extra),
            ..Schedule::default()
        };
    }
    if places.stands_for_two(me) {
        steps.push(Step::Receive { from: me - 1, tag: TAG });
        let addends = vec![Addend::Landed(0), Addend::Own];
        steps.push(Step::Reduce { range: whole.clone(), addends, is_whole: half == 1 });
    }
    let (place, member) = (places.place(me), |place| places.member(place));
    let mut at = if extra > 0 { len } else { 0 };
    let mut held = 0..half;
    let range = |held: &Range<usize>| held.start * len / half..held.end * len / half;
    let mut distance = half / 2;
    while distance > 0 {
        let (low, high) = (held.start..held.start + distance, held.start + distance..held.end);
        let (kept, given) = if place & distance == 0 { (low, high) } else { (high, low) };
        let to = member(place ^ distance);
        steps.push(Step::Send { to, range: range(&given), into: Into::Landing(at), tag: TAG });
        steps.push(Step::Receive { from: to, tag: TAG });
        let addends = match place & distance {
            0 => vec![Addend::Own, Addend::Landed(at)],
            _ => vec![Addend::Landed(at), Addend::Own],
        };
        steps.push(Step::Reduce { range: range(&kept), addends, is_whole: distance == 1 });
        // both of a pair count alike
        at += range(&kept).len().max(range(&given).len());
        held = kept;
        distance /= 2;
    }
    let pieces = |at: usize| at * len / half..(at + 1) * len / half;
    double(&mut steps, shape, place, half, pieces, &member);
    if places.stands_for_two(me) {
        steps.push(Step::Send { to: me - 1, range: whole, into: Into::Vector, tag: TAG });
    }
    Schedule { sequences: vec![steps], landing: landing(len, half, extra), ..Schedule::default() }
}

/// What a pair gives, and what halving brings: less than the vector and an element a round.
fn landing(len: usize, half: usize, extra: usize) -> usize {
    let rounds = half.ilog2() as usize;
    len + rounds + if extra > 0 { len } else { 0 }
}

/// Whoever holds the result of a piece ends with all: members at distance 1, 2, 4, … exchange what they hold.
fn double(
    steps: &mut Vec<Step>,
    shape: GroupShape,
    place: usize,
    places: usize,
    piece: impl Fn(usize) -> Range<usize>,
    member: &dyn Fn(usize) -> usize,
) {
    let mut distance = 1;
    while distance < places {
        let first = place / distance * distance;
        let range = piece(first).start..piece(first + distance - 1).end;
        let to = member(place ^ distance);
        steps.push(Step::Send { to, range, into: Into::Vector, tag: TAG });
        steps.push(Step::Receive { from: to, tag: TAG });
        distance *= 2;
    }
    debug_assert!(places <= shape.size);
}

/// A binomial tree.
fn broadcast(shape: GroupShape, root: usize) -> Schedule {
    let GroupShape { size, me, len, .. } = shape;
    let distance = (me + size - root) % size;
    let member = |distance: usize| (root + distance) % size;
    let mut steps = Vec::new();
    // the highest power of two in the distance says from whom it comes
    let mut next = 1;
    if distance > 0 {
        let reach = 1 << distance.ilog2();
        steps.push(Step::Receive { from: member(distance - reach), tag: TAG });
        next = 2 * reach;
    }
    while distance + next < size {
        let to = member(distance + next);
        steps.push(Step::Send { to, range: 0..len, into: Into::Vector, tag: TAG });
        next *= 2;
    }
    Schedule { sequences: vec![steps], ..Schedule::default() }
}
