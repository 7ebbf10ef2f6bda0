//! Collective operations from their own schedules, for any number of members. All members do the same at the same
//! time, each with other peers: so one member's schedule is read, and what it receives is what it sends, as seen from
//! the other side. Of `reduce-broadcast` it is the first member's, who does most: what comes to it counts as one round a
//! message, each with its latency. Like messages of a moment are one, and so are like rounds in a row.

use std::collections::HashMap;

use tensorwire_collectives::schedule::{GroupShape, OperationKind, Step, Tag, schedule};
use tensorwire_collectives::{Algorithm, GroupOptions};

use crate::cluster::Cluster;
use crate::engine::{Activity, ActivityId, Engine};

/// Bytes of an element.
const ELEMENT: usize = 4;

/// Some processes that do something together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Group {
    pub(crate) size: usize,
    /// Members that are neighbours of each other on one machine.
    pub(crate) on_one: usize,
}

/// What a member does, in groups of like things.
#[derive(Clone, Debug, PartialEq)]
enum Item {
    Send(Messages),
    /// Waits for what the others sent when this one sent these items.
    Receive(Vec<usize>),
    /// Bytes that are read and written.
    Fold(f64),
}

/// Messages that leave at once, or one round after another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Messages {
    rounds: usize,
    /// Of all rounds: how many, and their bytes.
    count: usize,
    bytes: f64,
    /// As many of the messages, and of the bytes, as go to another machine.
    far: f64,
    far_bytes: f64,
}

impl Group {
    /// True if members share machines, as many each, and there are several of those.
    pub(crate) fn shares_machines(self) -> bool {
        let Group { size, on_one } = self;
        on_one > 1 && on_one < size && size.is_multiple_of(on_one)
    }

    /// By member, its machine, where members share some.
    pub(crate) fn hosts(self) -> Vec<usize> {
        match self.shares_machines() {
            true => (0..self.size).map(|member| member / self.on_one).collect(),
            false => Vec::new(),
        }
    }

    /// The part of the messages to the member at this distance that leaves the machine.
    fn far(self, algorithm: Algorithm, distance: usize) -> f64 {
        let Group { size, on_one } = self;
        if on_one >= size {
            return 0.0;
        }
        // fits: counts of processes
        match algorithm {
            _ if is_mutual(algorithm) => f64::from(u8::from(distance >= on_one)),
            _ => distance.min(size - distance).min(on_one) as f64 / on_one as f64,
        }
    }

    fn shape(self, me: usize, bytes: usize, hosts: &[usize]) -> GroupShape<'_> {
        let options = GroupOptions::default();
        let (size, window) = (self.size, options.window(self.size));
        let (len, segment) = (bytes.div_ceil(ELEMENT), options.segment(self.size) / ELEMENT);
        let GroupOptions { rings, deterministic, .. } = options;
        GroupShape { size, me, len, segment, window, rings, deterministic, hosts }
    }

    /// Adds an all-reduce of a vector that begins when `start` is over; its end.
    pub(crate) fn all_reduce(
        self,
        engine: &mut Engine,
        cluster: &Cluster<'_>,
        (algorithm, bytes): (Algorithm, usize),
        start: ActivityId,
    ) -> ActivityId {
        let end = engine.add(Activity::nothing());
        engine.order(start, end);
        for sequence in self.sequences(algorithm, bytes) {
            let mut last = start;
            let mut sent = Vec::with_capacity(sequence.len());
            for item in &sequence {
                let next = match item {
                    Item::Send(messages) => engine.add(messages.activity(cluster)),
                    Item::Receive(_) => engine.add(Activity::nothing()),
                    Item::Fold(bytes) => engine.add(cluster.fold(*bytes)),
                };
                engine.order(last, next);
                engine.order(next, end);
                if let Item::Receive(of) = item {
                    of.iter().for_each(|at: &usize| engine.order(sent[*at], next));
                }
                sent.push(next);
                // what is sent is on its way while the next thing is done
                if !matches!(item, Item::Send(_)) {
                    last = next;
                }
            }
        }
        end
    }

    /// What a member does, by sequence.
    fn sequences(self, algorithm: Algorithm, bytes: usize) -> Vec<Vec<Item>> {
        // where the size is no power of two, the second member stands for two
        let me = usize::from(goes_in_pairs(algorithm) && !self.size.is_power_of_two());
        let hosts = self.hosts();
        let shape = self.shape(me, bytes, &hosts);
        let made = schedule(algorithm, OperationKind::AllReduce, shape);
        made.sequences.iter().map(|steps| in_rounds(self.items(algorithm, shape, steps))).collect()
    }

    fn items(self, algorithm: Algorithm, shape: GroupShape<'_>, steps: &[Step]) -> Vec<Item> {
        let GroupShape { size, me, len, .. } = shape;
        // by way and tag: the items that sent, and how many of them were awaited
        let mut sent: HashMap<(usize, Tag), (Vec<usize>, usize)> = HashMap::new();
        let pairs = is_mutual(algorithm);
        let out = |to: usize| if pairs { to } else { (to + size - me) % size };
        let back = |from: usize| if pairs { from } else { (me + size - from) % size };
        let distance = |peer: usize| if pairs { peer ^ me } else { out(peer) };
        let mut items: Vec<Item> = Vec::new();
        for step in steps {
            match step {
                Step::Send { .. } | Step::Signal { .. } => {
                    let (to, tag, elements) = match step {
                        Step::Send { to, range, tag, .. } => (*to, *tag, range.len()),
                        Step::Signal { to, tag } => (*to, *tag, 0),
                        _ => continue,
                    };
                    let far = self.far(algorithm, distance(to));
                    // what stays on the machine is there long before what leaves it
                    let joins =
                        |sent: &Messages| algorithm != Algorithm::Hierarchical || sent.far() == far;
                    if !matches!(items.last(), Some(Item::Send(sent)) if joins(sent)) {
                        items.push(Item::Send(Messages { rounds: 1, ..Messages::default() }));
                    }
                    let at = items.len() - 1;
                    sent.entry((out(to), tag)).or_default().0.push(at);
                    if let Some(Item::Send(messages)) = items.last_mut() {
                        messages.add(elements, far);
                    }
                }
                Step::Receive { from, tag } => {
                    let (all, awaited) = sent.entry((back(*from), *tag)).or_default();
                    let of = match all.get(*awaited) {
                        Some(at) => *at,
                        // who stands for two gets the other's whole vector first, which it sends back at last
                        None => {
                            let mut messages = Messages { rounds: 1, ..Messages::default() };
                            messages.add(len, self.far(algorithm, distance(*from)));
                            items.push(Item::Send(messages));
                            items.len() - 1
                        }
                    };
                    *awaited += 1;
                    match items.last_mut() {
                        Some(Item::Receive(awaits)) if awaits.contains(&of) => {}
                        Some(Item::Receive(awaits)) => awaits.push(of),
                        _ => items.push(Item::Receive(vec![of])),
                    }
                }
                Step::Flush => {
                    let is_send = |at: &usize| matches!(items[*at], Item::Send(_));
                    let all: Vec<usize> = (0..items.len()).filter(is_send).collect();
                    items.push(Item::Receive(all));
                }
                Step::Reduce { range, addends, .. } => {
                    items.push(Item::Fold(touched(range.len(), addends.len() + 1)));
                }
                Step::ReduceShared { range, .. } => {
                    items.push(Item::Fold(touched(range.len(), 2 * size)));
                }
                Step::Pull { range, .. }
                | Step::Copy { range, .. }
                | Step::Stage { range, .. }
                | Step::Fetch { range, .. } => items.push(Item::Fold(touched(range.len(), 2))),
                Step::Keep { len, .. } => items.push(Item::Fold(touched(*len, 2))),
                Step::ReduceStaged { range, .. } => {
                    items.push(Item::Fold(touched(range.len(), size + 1)));
                }
                // nobody waits for it
                Step::Leave { .. } => {}
            }
        }
        items
    }

    /// Adds a broadcast from the first member that begins when `start` is over; its end. What takes longest is the
    /// way to the last member: at each sender of the way, what it sends until that message has left.
    pub(crate) fn broadcast(
        self,
        engine: &mut Engine,
        cluster: &Cluster<'_>,
        (algorithm, bytes): (Algorithm, usize),
        start: ActivityId,
    ) -> ActivityId {
        // what else is done so goes the straight way
        let algorithm = match algorithm {
            Algorithm::Hierarchical => Algorithm::Direct,
            other => other,
        };
        let steps = |me: usize| {
            let shape = self.shape(me, bytes, &[]);
            let made = schedule(algorithm, OperationKind::Broadcast { root: 0 }, shape);
            made.sequences.into_iter().flatten().collect::<Vec<Step>>()
        };
        let (mut at, mut messages) = (self.size - 1, Messages::default());
        let mut below = steps(at);
        let mut activity = Activity::nothing();
        if below.iter().any(|step| matches!(step, Step::Pull { .. })) {
            activity = cluster.fold(touched(bytes.div_ceil(ELEMENT), 2));
            at = 0;
        }
        while at > 0 {
            let from = below.iter().rev().find_map(|step| match step {
                Step::Receive { from, .. } => Some(*from),
                _ => None,
            });
            let Some(from) = from else { break };
            let above = steps(from);
            let begins = above.iter().rposition(|step| matches!(step, Step::Receive { .. }));
            let is_to = |step: &Step| matches!(step, Step::Send { to, .. } if *to == at);
            let ends = above.iter().rposition(is_to).unwrap_or(above.len() - 1);
            for step in &above[begins.map_or(0, |at| at + 1)..=ends] {
                if let Step::Send { range, .. } = step {
                    let far = self.far(algorithm, (at + self.size - from) % self.size);
                    messages.add(range.len(), far);
                }
            }
            messages.rounds += 1;
            (at, below) = (from, above);
        }
        if messages.rounds > 0 {
            activity = messages.activity(cluster);
        }
        let end = engine.add(activity);
        engine.order(start, end);
        end
    }
}

impl Messages {
    fn add(&mut self, elements: usize, far: f64) {
        self.count += 1;
        self.bytes += touched(elements, 1);
        self.far += far;
        self.far_bytes += touched(elements, 1) * far;
    }

    /// The part that goes to another machine, 0 to 1: of the bytes, if there are any.
    fn far(&self) -> f64 {
        match self.bytes > 0.0 {
            true => self.far_bytes / self.bytes,
            // fits: counts far below 2^53
            false => self.far / self.count.max(1) as f64,
        }
    }

    fn activity(&self, cluster: &Cluster<'_>) -> Activity {
        // fits: counts far below 2^53
        let (count, rounds) = (self.count as f64, self.rounds.max(1) as f64);
        cluster.exchange(self.bytes, count / rounds, self.far(), rounds)
    }

    /// Is this a round like each of `others`? Pieces of a vector differ by an element.
    fn is_like(&self, others: &Messages) -> bool {
        // fits: counts far below 2^53
        let of_them = others.bytes / others.rounds as f64;
        let slack = touched(self.count + 1, 1);
        self.count * others.rounds == others.count
            && (self.bytes - of_them).abs() <= slack
            && (self.far() - others.far()).abs() < 0.5
    }
}

/// Members meet in pairs, at distance 1, 2, 4 and so on.
fn goes_in_pairs(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::RecursiveDoubling | Algorithm::HalvingDoubling)
}

/// What a member sends to another, that one sends back: they need not be as far apart around a ring.
fn is_mutual(algorithm: Algorithm) -> bool {
    goes_in_pairs(algorithm) || algorithm == Algorithm::Hierarchical
}

/// Rounds in which a member sends, waits for what the others sent then, and maybe reduces it: like ones in a row are
/// one, with all their bytes and waits.
fn in_rounds(items: Vec<Item>) -> Vec<Item> {
    let round = |at: usize| -> Option<(Messages, Option<f64>)> {
        let (Item::Send(messages), Item::Receive(of)) = (items.get(at)?, items.get(at + 1)?) else {
            return None;
        };
        let folded = match items.get(at + 2) {
            Some(Item::Fold(bytes)) => Some(*bytes),
            _ => None,
        };
        (*of == [at]).then_some((*messages, folded))
    };
    // what else is there refers to items by their place: all of them are rounds, or none is touched
    let (mut merged, mut at): (Vec<(Messages, Option<f64>)>, usize) = (Vec::new(), 0);
    while at < items.len() {
        let Some((messages, folded)) = round(at) else { return items };
        at += if folded.is_some() { 3 } else { 2 };
        match merged.last_mut() {
            Some((all, sum)) if messages.is_like(all) && folded.is_some() == sum.is_some() => {
                all.rounds += 1;
                all.count += messages.count;
                all.bytes += messages.bytes;
                all.far += messages.far;
                all.far_bytes += messages.far_bytes;
                *sum = sum.zip(folded).map(|(sum, more)| sum + more);
            }
            _ => merged.push((messages, folded)),
        }
    }
    let mut found = Vec::new();
    for (messages, folded) in merged {
        found.push(Item::Send(messages));
        found.push(Item::Receive(vec![found.len() - 1]));
        found.extend(folded.map(Item::Fold));
    }
    found
}

/// Bytes of so many elements, so many times.
fn touched(elements: usize, times: usize) -> f64 {
    // fits: sizes in memory, far below 2^53
    (elements * ELEMENT) as f64 * times as f64
}
