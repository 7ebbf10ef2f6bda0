//! Every schedule, run in a machine of its own: any order of members gives the reduction of all, nothing hangs, and
//! rounds and elements on the wire are those of theory.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use proptest::prelude::*;
use tensorwire_collectives::Algorithm;
use tensorwire_collectives::schedule::{
    Addend, GroupShape, Into, OperationKind, Owners, Schedule, Step, Tag, schedule, through,
};

/// An element remembers who was reduced into it, in which order; or, where elements are moved, whose it was and which.
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
    /// Parts outside of vectors, by member.
    gives: Vec<Vec<Vec<Element>>>,
    gets: Vec<Vec<Vec<Element>>>,
    /// Who has said to a member that it left.
    left: Vec<usize>,
    wire: HashMap<(usize, usize, (usize, Tag)), VecDeque<Write>>,
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
    fn new(
        kind: OperationKind,
        shape: GroupShape,
        schedules: &[Schedule],
        is_eager: bool,
    ) -> Machine {
        let first = |i, at| if reduces(kind) { vec![i] } else { vec![i, at] };
        let member = |i| (0..shape.len).map(|at| first(i, at)).collect();
        Machine {
            vectors: (0..shape.size).map(member).collect(),
            landings: schedules.iter().map(|s| vec![Vec::new(); s.landing]).collect(),
            gives: Vec::new(),
            gets: Vec::new(),
            left: vec![0; shape.size],
            wire: HashMap::new(),
            at: schedules.iter().map(|s| vec![0; s.sequences.len()]).collect(),
            rounds: schedules.iter().map(|s| vec![0; s.sequences.len()]).collect(),
            sent: vec![0; shape.size],
            is_eager,
        }
    }

    /// Does the next step of a sequence; false if it must wait.
    fn step(&mut self, me: usize, sequence: usize, step: &Step) -> bool {
        match step {
            Step::Send { to, range, into, tag } => {
                self.sent[me] += range.len();
                self.write(me, *to, (sequence, *tag), Some((*into, range.clone())));
            }
            Step::Signal { to, tag } => self.write(me, *to, (sequence, *tag), None),
            Step::Receive { from, tag } => {
                let Some(write) =
                    self.wire.entry((*from, me, (sequence, *tag))).or_default().pop_front()
                else {
                    return false;
                };
                self.rounds[me][sequence] = self.rounds[me][sequence].max(write.round);
                if let Some((into, range)) = write.payload {
                    let now = || self.vectors[*from][range.clone()].to_vec();
                    let elements = write.left.unwrap_or_else(now);
                    let target = match into {
                        Into::Vector => &mut self.vectors[me][range],
                        Into::VectorAt(at) => &mut self.vectors[me][at..at + range.len()],
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
            Step::Reduce { range, addends, is_whole } => {
                for i in range.clone() {
                    let addend = |addend: &Addend| match addend {
                        Addend::Own => self.vectors[me][i].clone(),
                        Addend::Landed(at) => self.landings[me][at + i - range.start].clone(),
                    };
                    let reduced: Element = addends.iter().flat_map(addend).collect();
                    assert_eq!(*is_whole, reduced.len() == self.vectors.len(), "{reduced:?}");
                    self.vectors[me][i] = reduced;
                }
            }
            Step::ReduceShared { range, to } => {
                for i in range.clone() {
                    let reduced: Element = self.vectors.iter().flat_map(|v| v[i].clone()).collect();
                    for member in 0..self.vectors.len() {
                        if *to == Owners::All || *to == Owners::One(member) {
                            self.vectors[member][i] = reduced.clone();
                        }
                    }
                }
            }
            Step::Pull { from, range, at } => {
                let pulled = self.vectors[*from][range.clone()].to_vec();
                self.vectors[me][*at..at + range.len()].clone_from_slice(&pulled);
            }
            Step::Copy { range, at } => {
                let own = self.vectors[me][range.clone()].to_vec();
                self.vectors[me][*at..at + range.len()].clone_from_slice(&own);
            }
            Step::Stage { from, range } => {
                let given = &self.gives[me][from.part][from.at..from.at + range.len()];
                self.vectors[me][range.clone()].clone_from_slice(given);
            }
            Step::Fetch { from, range, to } => {
                let fetched = self.vectors[*from][range.clone()].to_vec();
                self.gets[me][to.part][to.at..to.at + range.len()].clone_from_slice(&fetched);
            }
            Step::Keep { from, to, len } => {
                let own = self.gives[me][*from][..*len].to_vec();
                self.gets[me][*to][..*len].clone_from_slice(&own);
            }
            Step::ReduceStaged { range, own, to, leaves } => {
                for (skipped, i) in range.clone().enumerate() {
                    let given = |member: usize| match member == me {
                        true => self.gives[me][own.part][own.at + skipped].clone(),
                        false => self.vectors[member][i].clone(),
                    };
                    let reduced: Element = (0..self.vectors.len()).flat_map(given).collect();
                    if let Some(to) = to {
                        self.gets[me][to.part][to.at + skipped] = reduced.clone();
                    }
                    if *leaves {
                        self.vectors[me][i] = reduced;
                    }
                }
            }
            // awaited by what comes next
            Step::Leave { to } => self.left[*to] += 1,
        }
        true
    }

    fn write(
        &mut self,
        me: usize,
        to: usize,
        (sequence, tag): (usize, Tag),
        payload: Option<(Into, Range<usize>)>,
    ) {
        let round = self.rounds[me][sequence] + 1;
        let on_its_way = self.wire.entry((me, to, (sequence, tag))).or_default();
        on_its_way.push_back(Write { payload, left: None, round });
        if self.is_eager {
            leave(on_its_way, &self.vectors[me]);
        }
    }

    /// Runs everything, whoever is next by `pick`.
    fn run(&mut self, schedules: &[Schedule], mut pick: impl FnMut(usize) -> usize) {
        let mut stuck = 0;
        let sequences: Vec<(usize, usize)> = (0..schedules.len())
            .flat_map(|me| (0..schedules[me].sequences.len()).map(move |sequence| (me, sequence)))
            .collect();
        while !sequences.is_empty() && stuck < 50 * sequences.len() {
            let (me, sequence) = sequences[pick(sequences.len())];
            let steps = &schedules[me].sequences[sequence];
            let at = self.at[me][sequence];
            if at < steps.len() && self.step(me, sequence, &steps[at]) {
                self.at[me][sequence] += 1;
                stuck = 0;
            } else {
                stuck += 1;
            }
        }
        for (me, schedule) in schedules.iter().enumerate() {
            for (sequence, steps) in schedule.sequences.iter().enumerate() {
                assert_eq!(
                    self.at[me][sequence],
                    steps.len(),
                    "member {me} waits in sequence {sequence}"
                );
            }
        }
        assert!(self.wire.values().all(VecDeque::is_empty), "something was sent and not awaited");
    }
}

fn shape(size: usize, len: usize) -> GroupShape<'static> {
    GroupShape {
        size,
        me: 0,
        len,
        segment: 7,
        window: 2,
        rings: 2,
        deterministic: false,
        hosts: &[],
    }
}

fn schedules(algorithm: Algorithm, kind: OperationKind, shape: GroupShape) -> Vec<Schedule> {
    (0..shape.size).map(|me| schedule(algorithm, kind, GroupShape { me, ..shape })).collect()
}

fn reduces(kind: OperationKind) -> bool {
    use OperationKind::{AllReduce, Reduce, ReduceScatter};
    matches!(kind, AllReduce | ReduceScatter | Reduce { .. })
}

/// What a member must have in the end, of element `i`; none: anything.
fn wanted(kind: OperationKind, shape: GroupShape, me: usize, i: usize) -> Option<Element> {
    let all = || (0..shape.size).collect();
    let owner = || (0..shape.size).find(|j| shape.piece(*j).contains(&i));
    match kind {
        OperationKind::AllReduce => Some(all()),
        OperationKind::ReduceScatter => shape.piece(me).contains(&i).then(all),
        OperationKind::Reduce { root } => (root == me).then(all),
        OperationKind::AllGather => owner().map(|j| vec![j, i]),
        // what is not said to be gathered or scattered stays
        OperationKind::Gather { root } if root == me => owner().map(|j| vec![j, i]),
        OperationKind::Gather { .. } => Some(vec![me, i]),
        OperationKind::Scatter { root } => {
            Some(vec![if owner() == Some(me) { root } else { me }, i])
        }
        OperationKind::AllToAll => {
            let part = shape.len / (2 * shape.size);
            Some(match i.checked_sub(shape.size * part).filter(|at| *at < shape.size * part) {
                None => vec![me, i],
                Some(at) => vec![at / part, me * part + at % part],
            })
        }
        OperationKind::Broadcast { root } => Some(vec![root, i]),
    }
}

fn check(
    algorithm: Algorithm,
    kind: OperationKind,
    shape: GroupShape,
    mut pick: impl FnMut(usize) -> usize,
) {
    let schedules = schedules(algorithm, kind, shape);
    let is_eager = pick(2) == 0;
    let mut machine = Machine::new(kind, shape, &schedules, is_eager);
    machine.run(&schedules, pick);
    for me in 0..shape.size {
        for i in 0..shape.len {
            let mut found = machine.vectors[me][i].clone();
            if let Some(wanted) = wanted(kind, shape, me, i) {
                if reduces(kind) && !shape.deterministic {
                    found.sort_unstable();
                }
                assert_eq!(found, wanted, "{algorithm:?} {kind:?} {shape:?}: {i} of member {me}");
            }
        }
    }
}

/// Runs what goes through vectors of members that share them, and looks at what each has then.
fn check_through(
    kind: OperationKind,
    size: usize,
    part: usize,
    at_once: bool,
    pick: impl FnMut(usize) -> usize,
) {
    use OperationKind::{
        AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
    };
    let parts = if matches!(kind, ReduceScatter | Scatter { .. } | AllToAll) { size } else { 1 };
    let shape = shape(size, parts * part);
    let of = |me| through(kind, GroupShape { me, ..shape }, part, at_once);
    let schedules: Vec<Schedule> = (0..size).map(of).collect();
    assert!(schedules.iter().all(|schedule| schedule.is_left && schedule.landing == 0));
    let mut machine = Machine::new(kind, shape, &schedules, true);
    let given = |me: usize, at: usize, i: usize| {
        if reduces(kind) { vec![me] } else { vec![me, at, i] }
    };
    let part_of = |me, at| (0..part).map(|i| given(me, at, i)).collect();
    let all = |me| (0..size).map(|at| part_of(me, at)).collect();
    machine.gives = (0..size).map(all).collect();
    // nobody's, at first
    machine.gets = vec![vec![vec![Vec::new(); part]; size]; size];
    machine.run(&schedules, pick);
    assert_eq!(machine.left, vec![size - 1; size]);
    let whole: Element = (0..size).collect();
    for me in 0..size {
        for at in 0..size {
            for i in 0..part {
                let wanted = match kind {
                    AllReduce | ReduceScatter if at == 0 => whole.clone(),
                    Reduce { root } if at == 0 && me == root => whole.clone(),
                    AllGather => vec![at, 0, i],
                    Gather { root } if me == root => vec![at, 0, i],
                    Scatter { root } if at == 0 => vec![root, me, i],
                    // where the root has what it gives
                    Broadcast { root } if at == 0 && me != root => vec![root, 0, i],
                    AllToAll => vec![at, me, i],
                    _ => Vec::new(),
                };
                let found = &machine.gets[me][at][i];
                assert_eq!(*found, wanted, "{kind:?} of {size}: {i} of part {at} of {me}");
            }
        }
    }
}

#[test]
fn what_goes_through_shared_vectors_comes_where_it_must() {
    for size in [2, 3, 4, 5, 8] {
        for part in [1, 2, 7, 64] {
            for (kind, at_once) in kinds(size).into_iter().flat_map(|k| [(k, false), (k, true)]) {
                for first in 0..3 {
                    let mut next = first;
                    check_through(kind, size, part, at_once, |sequences| {
                        next += 1;
                        next % sequences
                    });
                }
            }
        }
    }
}

fn kinds(size: usize) -> Vec<OperationKind> {
    let root = size - 1;
    vec![
        OperationKind::AllReduce,
        OperationKind::ReduceScatter,
        OperationKind::AllGather,
        OperationKind::Broadcast { root },
        OperationKind::Reduce { root },
        OperationKind::Broadcast { root: 0 },
        OperationKind::Gather { root },
        OperationKind::Scatter { root },
        OperationKind::Scatter { root: 0 },
        OperationKind::AllToAll,
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
                    let shape = GroupShape { deterministic, ..shape(size, len) };
                    for first in [0, 1] {
                        let mut next = first;
                        check(algorithm, kind, shape, |sequences| {
                            next += 1;
                            next % sequences
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
        at in 0usize..10,
        hosts in proptest::collection::vec(0usize..4, 10),
        seed: u64,
    ) {
        let hosts = &hosts[..size];
        let shape = GroupShape { size, me: 0, len, segment, window, rings, deterministic, hosts };
        let mut state = seed | 1;
        check(algorithm, kinds(size)[at], shape, |sequences| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // fits: a remainder
            (state % sequences as u64) as usize
        });
    }
}

/// Elements that each member sends, and the longest chain of writes.
fn cost(algorithm: Algorithm, kind: OperationKind, shape: GroupShape) -> (Vec<usize>, usize) {
    let schedules = schedules(algorithm, kind, shape);
    let mut machine = Machine::new(kind, shape, &schedules, true);
    let mut next = 0;
    machine.run(&schedules, |sequences| {
        next += 1;
        next % sequences
    });
    (machine.sent, machine.rounds.into_iter().flatten().max().unwrap_or(0))
}

#[test]
fn rounds_and_elements_on_the_wire_are_those_of_theory() {
    for size in [2, 3, 4, 5, 8, 16] {
        let len = 16 * 9 * 5 * 7;
        let shape = GroupShape { segment: len, ..shape(size, len) };
        let all_reduce = |algorithm| cost(algorithm, OperationKind::AllReduce, shape);
        // 2(n−1)/n of the vector, but for what pieces are rounded
        let least = 2 * (size - 1) * len / size;
        let near = |sent: &[usize]| sent.iter().all(|sent| sent.abs_diff(least) <= 2 * size);
        for (algorithm, rounds) in [
            (Algorithm::Direct, 2),
            (Algorithm::Ring, 2 * (size - 1)),
            (Algorithm::MultiRing, 2 * (size - 1)),
        ] {
            let (sent, found) = all_reduce(algorithm);
            assert!(near(&sent), "{algorithm:?} of {size}: {sent:?}, not {least}");
            assert_eq!(found, rounds, "{algorithm:?} of {size}");
        }
        let (sent, rounds) = all_reduce(Algorithm::Exchange);
        assert_eq!((sent, rounds), (vec![(size - 1) * len; size], 1));
        assert_eq!(all_reduce(Algorithm::Shared).0, vec![0; size]);
        let (sent, rounds) = all_reduce(Algorithm::ReduceBroadcast);
        let of_others = std::iter::repeat_n(len, size - 1);
        let all: Vec<usize> = std::iter::once((size - 1) * len).chain(of_others).collect();
        assert_eq!((sent, rounds), (all, 2));
        let (sent, rounds) = all_reduce(Algorithm::RecursiveDoubling);
        let doubled = size.ilog2() as usize;
        match size.is_power_of_two() {
            true => assert_eq!((sent, rounds), (vec![doubled * len; size], doubled)),
            false => {
                assert!(sent.iter().all(|sent| *sent <= (doubled + 1) * len), "{sent:?}");
                // what comes from a pair may wait for nothing of the next round
                assert!((doubled + 1..=doubled + 2).contains(&rounds), "{rounds} of {size}");
            }
        }
        let (sent, rounds) = all_reduce(Algorithm::HalvingDoubling);
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

/// Over the wire go, of all members of a host together, as many elements as one member of a group of as many hosts sends.
#[test]
fn what_crosses_hosts_is_the_least_that_can() {
    for hosts in [
        &[0, 0, 0, 0, 4, 4, 4, 4][..],
        &[0, 1, 0, 1, 0, 1],
        &[0, 0, 2, 2, 4, 4],
        &[5, 5, 5, 1],
        &[0, 0, 0, 3, 3],
        &[9, 8, 7, 9],
    ] {
        let (size, len) = (hosts.len(), 16 * 9 * 5 * 7);
        let shape = GroupShape { segment: 500, hosts, ..shape(size, len) };
        let mut next = 0;
        check(Algorithm::Hierarchical, OperationKind::AllReduce, shape, |sequences| {
            next += 1;
            next % sequences
        });
        let made = schedules(Algorithm::Hierarchical, OperationKind::AllReduce, shape);
        let of: std::collections::BTreeSet<usize> = hosts.iter().copied().collect();
        let least = 2 * (of.len() - 1) * len / of.len();
        for host in of {
            let members = (0..size).filter(|member| hosts[*member] == host);
            let sends = members.flat_map(|member| made[member].sequences.iter().flatten());
            let leaves = |step: &Step| match step {
                Step::Send { to, range, .. } if hosts[*to] != host => range.len(),
                _ => 0,
            };
            let sent: usize = sends.map(leaves).sum();
            // but for what shares are rounded
            assert!(sent.abs_diff(least) <= 200, "host {host} of {hosts:?}: {sent}, not {least}");
        }
    }
}

/// No byte of what goes from one to each, from each to one or from each to each crosses twice, and all at once.
#[test]
fn what_is_moved_crosses_once() {
    for size in [2, 3, 5, 8] {
        let part = 30;
        let shape = shape(size, 2 * size * part);
        for algorithm in Algorithm::ALL {
            let shares = algorithm == Algorithm::Shared;
            let sent = |of: &dyn Fn(usize) -> usize| -> Vec<usize> {
                (0..size).map(|me| if shares { 0 } else { of(me) }).collect()
            };
            let root = size / 2;
            let piece = 2 * part;
            for (kind, wanted) in [
                (OperationKind::AllToAll, sent(&|_| (size - 1) * part)),
                (OperationKind::Gather { root }, sent(&|me| if me == root { 0 } else { piece })),
                (
                    OperationKind::Scatter { root },
                    sent(&|me| if me == root { (size - 1) * piece } else { 0 }),
                ),
            ] {
                let (sent, rounds) = cost(algorithm, kind, shape);
                assert_eq!(sent, wanted, "{algorithm:?} {kind:?} of {size}");
                // where memory is shared, all meet before and after
                assert_eq!(rounds, if shares { 2 } else { 1 }, "{algorithm:?} {kind:?} of {size}");
            }
        }
    }
}

#[test]
fn rings_go_to_the_next_member_only() {
    let shape = shape(5, 100);
    for (me, schedule) in
        schedules(Algorithm::Ring, OperationKind::AllReduce, shape).iter().enumerate()
    {
        for step in schedule.sequences.iter().flatten() {
            if let Step::Send { to, .. } = step {
                assert_eq!(*to, (me + 1) % 5);
            }
        }
    }
    let sequences = |rings| {
        let shape = GroupShape { rings, ..shape };
        schedules(Algorithm::MultiRing, OperationKind::AllReduce, shape)[0].sequences.len()
    };
    assert_eq!((sequences(1), sequences(3)), (1, 3));
}
