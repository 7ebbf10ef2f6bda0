//! Every schedule, run in a machine of its own: any order of members gives the fold of all, nothing hangs, and
//! rounds and elements on the wire are those of theory.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use proptest::prelude::*;
use tensorwire_collectives::Algorithm;
use tensorwire_collectives::schedule::{
    Addend, Into, Kind, Owners, Schedule, Shape, Step, Stream, schedule,
};

/// An element remembers who was folded into it, in which order.
type Element = Vec<usize>;

/// A write on its way.
struct Write {
    /// Where to, and what: a range of the sender's vector. None for a signal.
    payload: Option<(Into, Range<usize>)>,
    /// What was there when it left; none while it has not.
    left: Option<Vec<Element>>,
    /// The longest chain of writes that led to it, itself included.
    round: usize,
}

struct Machine {
    vectors: Vec<Vec<Element>>,
    landings: Vec<Vec<Element>>,
    wire: HashMap<(usize, usize, (usize, Stream)), VecDeque<Write>>,
    at: Vec<Vec<usize>>,
    rounds: Vec<Vec<usize>>,
    sent: Vec<usize>,
    /// Writes leave when they are posted; else as late as they may: when they are awaited.
    is_eager: bool,
}

/// Takes what is on its way from the sender's vector.
fn leave(writes: &mut VecDeque<Write>, vector: &[Element]) {
    for write in writes.iter_mut().filter(|write| write.left.is_none()) {
        write.left = write.payload.as_ref().map(|(_, range)| vector[range.clone()].to_vec());
    }
}

impl Machine {
    fn new(shape: Shape, schedules: &[Schedule], is_eager: bool) -> Machine {
        let member = |i| (0..shape.len).map(|_| vec![i]).collect();
        Machine {
            vectors: (0..shape.size).map(member).collect(),
            landings: schedules.iter().map(|s| vec![Vec::new(); s.landing]).collect(),
            wire: HashMap::new(),
            at: schedules.iter().map(|s| vec![0; s.lanes.len()]).collect(),
            rounds: schedules.iter().map(|s| vec![0; s.lanes.len()]).collect(),
            sent: vec![0; shape.size],
            is_eager,
        }
    }

    /// Does the next step of a lane; false if it must wait.
    fn step(&mut self, me: usize, lane: usize, step: &Step) -> bool {
        match step {
            Step::Send { to, range, into, stream } => {
                self.sent[me] += range.len();
                self.write(me, *to, (lane, *stream), Some((*into, range.clone())));
            }
            Step::Signal { to, stream } => self.write(me, *to, (lane, *stream), None),
            Step::Receive { from, stream } => {
                let Some(write) =
                    self.wire.entry((*from, me, (lane, *stream))).or_default().pop_front()
                else {
                    return false;
                };
                self.rounds[me][lane] = self.rounds[me][lane].max(write.round);
                if let Some((into, range)) = write.payload {
                    let now = || self.vectors[*from][range.clone()].to_vec();
                    let elements = write.left.unwrap_or_else(now);
                    let target = match into {
                        Into::Vector => &mut self.vectors[me][range],
                        Into::Landing(at) => &mut self.landings[me][at..at + range.len()],
                    };
                    target.clone_from_slice(&elements);
                }
            }
            Step::Flush => {
                for write in self.wire.iter_mut().filter(|((from, ..), _)| *from == me) {
                    leave(write.1, &self.vectors[me]);
                }
            }
            Step::Fold { range, addends, is_whole } => {
                for i in range.clone() {
                    let addend = |addend: &Addend| match addend {
                        Addend::Own => self.vectors[me][i].clone(),
                        Addend::Landed(at) => self.landings[me][at + i - range.start].clone(),
                    };
                    let folded: Element = addends.iter().flat_map(addend).collect();
                    assert_eq!(*is_whole, folded.len() == self.vectors.len(), "{folded:?}");
                    self.vectors[me][i] = folded;
                }
            }
            Step::FoldShared { range, to } => {
                for i in range.clone() {
                    let folded: Element = self.vectors.iter().flat_map(|v| v[i].clone()).collect();
                    for member in 0..self.vectors.len() {
                        if *to == Owners::All || *to == Owners::One(member) {
                            self.vectors[member][i] = folded.clone();
                        }
                    }
                }
            }
            Step::Pull { from, range } => {
                let pulled = self.vectors[*from][range.clone()].to_vec();
                self.vectors[me][range.clone()].clone_from_slice(&pulled);
            }
        }
        true
    }

    fn write(
        &mut self,
        me: usize,
        to: usize,
        (lane, stream): (usize, Stream),
        payload: Option<(Into, Range<usize>)>,
    ) {
        let round = self.rounds[me][lane] + 1;
        let on_its_way = self.wire.entry((me, to, (lane, stream))).or_default();
        on_its_way.push_back(Write { payload, left: None, round });
        if self.is_eager {
            leave(on_its_way, &self.vectors[me]);
        }
    }

    /// Runs everything, whoever is next by `pick`.
    fn run(&mut self, schedules: &[Schedule], mut pick: impl FnMut(usize) -> usize) {
        let mut stuck = 0;
        let lanes: Vec<(usize, usize)> = (0..schedules.len())
            .flat_map(|me| (0..schedules[me].lanes.len()).map(move |lane| (me, lane)))
            .collect();
        while !lanes.is_empty() && stuck < 50 * lanes.len() {
            let (me, lane) = lanes[pick(lanes.len())];
            let steps = &schedules[me].lanes[lane];
            let at = self.at[me][lane];
            if at < steps.len() && self.step(me, lane, &steps[at]) {
                self.at[me][lane] += 1;
                stuck = 0;
            } else {
                stuck += 1;
            }
        }
        for (me, schedule) in schedules.iter().enumerate() {
            for (lane, steps) in schedule.lanes.iter().enumerate() {
                assert_eq!(self.at[me][lane], steps.len(), "member {me} waits in lane {lane}");
            }
        }
        assert!(self.wire.values().all(VecDeque::is_empty), "something was sent and not awaited");
    }
}

fn shape(size: usize, len: usize) -> Shape {
    Shape { size, me: 0, len, segment: 7, window: 2, rings: 2, deterministic: false }
}

fn schedules(algorithm: Algorithm, kind: Kind, shape: Shape) -> Vec<Schedule> {
    (0..shape.size).map(|me| schedule(algorithm, kind, Shape { me, ..shape })).collect()
}

/// What a member must have in the end, of element `i`; none: anything.
fn wanted(kind: Kind, shape: Shape, me: usize, i: usize) -> Option<Element> {
    let all = || (0..shape.size).collect();
    match kind {
        Kind::AllReduce => Some(all()),
        Kind::ReduceScatter => shape.piece(me).contains(&i).then(all),
        Kind::Reduce { root } => (root == me).then(all),
        Kind::AllGather => (0..shape.size).find(|j| shape.piece(*j).contains(&i)).map(|j| vec![j]),
        Kind::Broadcast { root } => Some(vec![root]),
    }
}

fn check(algorithm: Algorithm, kind: Kind, shape: Shape, mut pick: impl FnMut(usize) -> usize) {
    let schedules = schedules(algorithm, kind, shape);
    let is_eager = pick(2) == 0;
    let mut machine = Machine::new(shape, &schedules, is_eager);
    machine.run(&schedules, pick);
    for me in 0..shape.size {
        for i in 0..shape.len {
            let mut found = machine.vectors[me][i].clone();
            if let Some(wanted) = wanted(kind, shape, me, i) {
                if !shape.deterministic {
                    found.sort_unstable();
                }
                assert_eq!(found, wanted, "{algorithm:?} {kind:?} {shape:?}: {i} of member {me}");
            }
        }
    }
}

fn kinds(size: usize) -> Vec<Kind> {
    let root = size - 1;
    vec![
        Kind::AllReduce,
        Kind::ReduceScatter,
        Kind::AllGather,
        Kind::Broadcast { root },
        Kind::Reduce { root },
        Kind::Broadcast { root: 0 },
    ]
}

#[test]
fn every_member_has_what_it_must_for_every_size_and_length() {
    for size in [1, 2, 3, 4, 5, 6, 7, 8, 13] {
        for len in [0, 1, 2, 5, 8, 64, 100] {
            for (algorithm, deterministic) in
                Algorithm::ALL.into_iter().flat_map(|a| [(a, false), (a, true)])
            {
                for kind in kinds(size) {
                    let shape = Shape { deterministic, ..shape(size, len) };
                    for first in [0, 1] {
                        let mut next = first;
                        check(algorithm, kind, shape, |lanes| {
                            next += 1;
                            next % lanes
                        });
                    }
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn any_order_of_members_gives_the_same(
        size in 2usize..10,
        len in 0usize..70,
        (segment, window, rings) in (1usize..20, 1usize..5, 1usize..5),
        deterministic: bool,
        algorithm in proptest::sample::select(Algorithm::ALL.to_vec()),
        at in 0usize..6,
        seed: u64,
    ) {
        let shape = Shape { size, me: 0, len, segment, window, rings, deterministic };
        let mut state = seed | 1;
        check(algorithm, kinds(size)[at], shape, |lanes| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // fits: a remainder
            (state % lanes as u64) as usize
        });
    }
}

/// Elements that each member sends, and the longest chain of writes.
fn cost(algorithm: Algorithm, shape: Shape) -> (Vec<usize>, usize) {
    let schedules = schedules(algorithm, Kind::AllReduce, shape);
    let mut machine = Machine::new(shape, &schedules, true);
    let mut next = 0;
    machine.run(&schedules, |lanes| {
        next += 1;
        next % lanes
    });
    (machine.sent, machine.rounds.into_iter().flatten().max().unwrap_or(0))
}

#[test]
fn rounds_and_elements_on_the_wire_are_those_of_theory() {
    for size in [2, 3, 4, 5, 8, 16] {
        let len = 16 * 9 * 5 * 7;
        let shape = Shape { segment: len, ..shape(size, len) };
        // 2(n−1)/n of the vector, but for what pieces are rounded
        let least = 2 * (size - 1) * len / size;
        let near = |sent: &[usize]| sent.iter().all(|sent| sent.abs_diff(least) <= 2 * size);
        for (algorithm, rounds) in [
            (Algorithm::Direct, 2),
            (Algorithm::Ring, 2 * (size - 1)),
            (Algorithm::MultiRing, 2 * (size - 1)),
        ] {
            let (sent, found) = cost(algorithm, shape);
            assert!(near(&sent), "{algorithm:?} of {size}: {sent:?}, not {least}");
            assert_eq!(found, rounds, "{algorithm:?} of {size}");
        }
        let (sent, rounds) = cost(Algorithm::Exchange, shape);
        assert_eq!((sent, rounds), (vec![(size - 1) * len; size], 1));
        assert_eq!(cost(Algorithm::Shared, shape).0, vec![0; size]);
        let (sent, rounds) = cost(Algorithm::HalvingDoubling, shape);
        if size.is_power_of_two() {
            assert!(near(&sent), "halving of {size}: {sent:?}, not {least}");
            assert_eq!(rounds, 2 * size.ilog2() as usize);
        } else {
            // a pair's one gives all and gets all; the other has that beside its share
            assert!(sent.iter().all(|sent| *sent <= 3 * len), "{sent:?}");
            assert_eq!(rounds, 2 * size.ilog2() as usize + 2);
        }
    }
}

#[test]
fn rings_go_to_the_next_member_only() {
    let shape = shape(5, 100);
    for (me, schedule) in schedules(Algorithm::Ring, Kind::AllReduce, shape).iter().enumerate() {
        for step in schedule.lanes.iter().flatten() {
            if let Step::Send { to, .. } = step {
                assert_eq!(*to, (me + 1) % 5);
            }
        }
    }
    let lanes = |rings| {
        let shape = Shape { rings, ..shape };
        schedules(Algorithm::MultiRing, Kind::AllReduce, shape)[0].lanes.len()
    };
    assert_eq!((lanes(1), lanes(3)), (1, 3));
}
