//! Recursive doubling (Thakur, Rabenseifner and Gropp 2005, §3.3): members at distance 1, 2, 4, … exchange all of what they have
//! reduced so far. Where the size is no power of two, the first members pair up and one of each pair stands for both.

use super::halving::Places;
use super::{Addend, GroupShape, Into, OperationKind, Schedule, Step, Tag, direct};

const TAG: Tag = Tag::First;

/// What is not an all-reduce, or is to be in the order of members, is done directly.
pub(super) fn schedule(kind: OperationKind, shape: GroupShape) -> Schedule {
    if kind != OperationKind::AllReduce || shape.deterministic {
        return direct::schedule(kind, shape);
    }
    let GroupShape { me, len, .. } = shape;
    let places = Places::of(shape.size);
    let (mut steps, mut lands) = (Vec::new(), 0);
    let whole = 0..len;
    let landing = len * landings(shape.size);
    let made = |steps| Schedule {
        sequences: vec![steps],
        landing,
        // a member that is done may meet one that has not reduced what it sent in the round before
        alternates: true,
        ..Schedule::default()
    };
    if places.is_stood_for(me) {
        steps.push(Step::Send { to: me + 1, range: whole, into: Into::Landing(0), tag: TAG });
        steps.push(Step::Receive { from: me + 1, tag: TAG });
        return made(steps);
    }
    if places.stands_for_two(me) {
        steps.push(Step::Receive { from: me - 1, tag: TAG });
        let addends = vec![Addend::Landed(0), Addend::Own];
        steps.push(Step::Reduce { range: whole.clone(), addends, is_whole: places.count == 1 });
    }
    if places.extra > 0 {
        lands += len;
    }
    let place = places.place(me);
    let mut distance = 1;
    while distance < places.count {
        let to = places.member(place ^ distance);
        steps.push(Step::Send { to, range: whole.clone(), into: Into::Landing(lands), tag: TAG });
        steps.push(Step::Receive { from: to, tag: TAG });
        // the sum takes the place of what is sent
        steps.push(Step::Flush);
        // in the same order at both, which so have the same bits
        let addends = match place & distance {
            0 => vec![Addend::Own, Addend::Landed(lands)],
            _ => vec![Addend::Landed(lands), Addend::Own],
        };
        distance *= 2;
        let is_whole = distance == places.count;
        steps.push(Step::Reduce { range: whole.clone(), addends, is_whole });
        lands += len;
    }
    if places.stands_for_two(me) {
        steps.push(Step::Send { to: me - 1, range: whole, into: Into::Vector, tag: TAG });
    }
    made(steps)
}

/// Vectors that land in an operation of so many members.
pub(crate) fn landings(size: usize) -> usize {
    let places = Places::of(size);
    places.count.ilog2() as usize + usize::from(places.extra > 0)
}
