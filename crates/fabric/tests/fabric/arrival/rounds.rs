//! Rounds of tensors between two fabrics that one thread drives. Rank 0 has the tensors: some it writes to
//! rank 1, some rank 1 reads. A buffer is used again only when a signal has given it back, and whoever gets
//! a tensor looks at all of it as soon as it may.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Add;

use tensorwire_base::Rank;
use tensorwire_fabric::{
    ArrivalMode, ArrivalSlot, Backend, Channel, Completion, CompletionError, Direction, Fabric,
    FaultCause, LocalSlice, Memcpy, PostError, Region, RemoteRegion, RemoteSlice, Signal, SimKnobs,
    SimNetwork,
};
use tensorwire_testkit::mesh::{connect, fill_range, mismatch, open, soon};

use super::Random;

/// Steps after which a run counts as stuck; the longest take some ten thousand.
const STEPS_MAX: u64 = 3_000_000;
const ROUNDS: u64 = 4;
/// Of the buffers' contents between two rounds.
const SCRIBBLE: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) mode: ArrivalMode,
    pub(crate) knobs: SimKnobs,
    pub(crate) trust_tail: bool,
    /// Tensors may be several writes, of which only the last signals.
    pub(crate) has_parts: bool,
}

/// What a seed showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Tensors that were whole when their signal, or the completion of their read, was there.
    pub(crate) whole: u64,
    pub(crate) torn: u64,
    pub(crate) posts: u64,
    /// Completions: of memcpys that failed alone, that a queue pair died of, for which there was no room,
    /// that were not carried out, and of other queue pairs of a peer that was lost.
    pub(crate) injected: u64,
    pub(crate) died: u64,
    pub(crate) not_ready: u64,
    pub(crate) flushed: u64,
    pub(crate) lost: u64,
}

impl Add for Seen {
    type Output = Seen;

    fn add(self, more: Seen) -> Seen {
        Seen {
            whole: self.whole + more.whole,
            torn: self.torn + more.torn,
            posts: self.posts + more.posts,
            injected: self.injected + more.injected,
            died: self.died + more.died,
            not_ready: self.not_ready + more.not_ready,
            flushed: self.flushed + more.flushed,
            lost: self.lost + more.lost,
        }
    }
}

/// One tensor, round after round.
struct Way {
    is_read: bool,
    bytes: u64,
    parts: u64,
    queue_pair: usize,
    /// At rank 0, and at rank 1.
    here: Region,
    there: Region,
    here_remote: RemoteRegion,
    there_remote: RemoteRegion,
    /// At rank 1: the tensor has arrived, or may be read.
    forth: ArrivalSlot,
    /// At rank 0: the buffer may be used again.
    back: ArrivalSlot,
    sender_round: u64,
    receiver_round: u64,
    /// Posts of rank 0 for this round that have not completed.
    pending: u64,
    /// The read of this round is under way.
    is_reading: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The `n`th part of a tensor that is written.
    Part(u64),
    /// "You may read."
    Ready,
    Read,
    /// "I have it."
    Ack,
}

#[derive(Clone, Copy, Debug)]
struct Post {
    from: usize,
    way: usize,
    kind: Kind,
    round: u64,
}

/// A queue pair as one end sees it.
#[derive(Default)]
struct Lane {
    /// Tokens in the order of their posts.
    posted: VecDeque<u64>,
    /// What the first error said, once the queue pair died.
    dead: Option<String>,
    is_lost: bool,
}

struct Run {
    network: SimNetwork,
    fabrics: Vec<Fabric>,
    ways: Vec<Way>,
    /// To be posted by each rank, in order.
    queued: [VecDeque<Post>; 2],
    posts: Vec<Post>,
    lanes: BTreeMap<(usize, usize), Lane>,
    seen: Seen,
}

/// Small steps, and one that changes every byte.
pub(crate) fn epoch(round: u64) -> u64 {
    round | (round << 40) | (round << 20)
}

fn pattern(way: usize, round: u64) -> u64 {
    round * 100 + way as u64
}

pub(crate) fn run(plan: &Plan, random: &mut Random) -> Result<Seen, String> {
    let network = SimNetwork::new(random.draw(), plan.knobs);
    let queue_depth = random.of(&[1, 4, 64]);
    let fabrics = open(&Backend::Sim(network.clone()), 2, |config| {
        config.arrival = Some(plan.mode);
        config.trust_tail = plan.trust_tail;
        (config.queue_depth, config.queue_pairs_per_peer) = (queue_depth, 2);
        (config.completion_queues, config.arrival_slots) = (1, 16);
    });
    connect(&fabrics);
    let count = 1 + random.below(4);
    let ways = (0..count).map(|_| Way::new(plan, &fabrics, random)).collect();
    let (queued, posts, lanes, seen) = Default::default();
    let mut run = Run { network, fabrics, ways, queued, posts, lanes, seen };
    for _ in 0..STEPS_MAX {
        match random.below(4) {
            0 => drop(run.network.advance()),
            1 => run.collect(random.below(2))?,
            2 => run.post_all(random.below(2))?,
            _ => run.act(random.below(count))?,
        }
        if run.is_over() {
            return run.finish();
        }
    }
    let rounds: Vec<_> =
        run.ways.iter().map(|way| (way.sender_round, way.receiver_round)).collect();
    Err(format!("stuck after {STEPS_MAX} steps, in rounds {rounds:?}"))
}

impl Way {
    fn new(plan: &Plan, fabrics: &[Fabric], random: &mut Random) -> Way {
        let bytes = 8 * random.below(60) as u64;
        let queue_pair = random.below(2);
        let [here, there] = [0, 1].map(|at| fabrics[at].alloc_region(bytes + 8).unwrap());
        let remote = |from: usize, to: u32, region: &Region| {
            let channel = fabrics[from].channel(Rank(to), queue_pair).unwrap();
            channel.open_region(&region.descriptor(), soon()).unwrap()
        };
        let (here_remote, there_remote) = (remote(1, 0, &here), remote(0, 1, &there));
        let is_read = random.below(3) == 0;
        let forth = match is_read {
            false => fabrics[1].alloc_tail_arrival(&there, bytes).unwrap(),
            true => fabrics[1].alloc_arrival().unwrap(),
        };
        let back = fabrics[0].alloc_arrival().unwrap();
        let parts = if plan.has_parts { 1 + random.below(3) as u64 } else { 1 };
        let (sender_round, receiver_round, pending, is_reading) = (0, 1, 0, false);
        Way {
            is_read,
            bytes,
            parts,
            queue_pair,
            here,
            there,
            here_remote,
            there_remote,
            forth,
            back,
            sender_round,
            receiver_round,
            pending,
            is_reading,
        }
    }

    fn memcpy(&self, post: &Post, token: u64) -> Memcpy<'_> {
        let signal = |slot| Some(Signal { slot, epoch: epoch(post.round) });
        let (local, remote) = match post.from {
            0 => (&self.here, &self.there_remote),
            _ => (&self.there, &self.here_remote),
        };
        let (mut start, mut bytes, mut direction) = (0, 0, Direction::Write);
        let signal = match post.kind {
            Kind::Part(part) => {
                let cut = |part| self.bytes * part / self.parts;
                (start, bytes) = (cut(part), cut(part + 1) - cut(part));
                signal(self.forth).filter(|_| part + 1 == self.parts)
            }
            Kind::Ready => signal(self.forth),
            Kind::Read => {
                (bytes, direction) = (self.bytes, Direction::Read);
                signal(self.back)
            }
            Kind::Ack => signal(self.back),
        };
        Memcpy {
            local: LocalSlice { region: local, offset: start },
            remote: RemoteSlice { region: remote, offset: start },
            bytes,
            direction,
            signal,
            token,
        }
    }
}

impl Run {
    /// Every round is over, or nothing goes on any more.
    fn is_over(&self) -> bool {
        let is_done = |way: &Way| way.sender_round > ROUNDS;
        self.ways.iter().all(is_done) || self.fabrics.iter().any(|fabric| fabric.fault().is_some())
    }

    /// What either end of a way does next, if it may.
    fn act(&mut self, index: usize) -> Result<(), String> {
        self.act_here(index)?;
        self.act_there(index)
    }

    /// Rank 0: the next round, when the buffer came back.
    fn act_here(&mut self, index: usize) -> Result<(), String> {
        let way = &mut self.ways[index];
        let given_back = self.fabrics[0].arrived(way.back);
        if given_back > epoch(way.sender_round) {
            return Err(format!("way {index} got a buffer back that it did not give"));
        }
        if way.pending > 0 || given_back < epoch(way.sender_round) || way.sender_round > ROUNDS {
            return Ok(());
        }
        fill_range(&way.here, 0, way.bytes, SCRIBBLE);
        way.sender_round += 1;
        let round = way.sender_round;
        if round > ROUNDS {
            return Ok(());
        }
        fill_range(&way.here, 0, way.bytes, pattern(index, round));
        let kinds = match way.is_read {
            false => (0..way.parts).map(Kind::Part).collect(),
            true => vec![Kind::Ready],
        };
        way.pending = kinds.len() as u64;
        let post = |kind| Post { from: 0, way: index, kind, round };
        self.queued[0].extend(kinds.into_iter().map(post));
        Ok(())
    }

    /// Rank 1: look at the tensor, or read it, when its signal is there.
    fn act_there(&mut self, index: usize) -> Result<(), String> {
        let way = &mut self.ways[index];
        let (round, arrived) = (way.receiver_round, self.fabrics[1].arrived(way.forth));
        // what is read has been taken a while before its reader knows
        let latest = if way.is_reading { round + 1 } else { round };
        if arrived > epoch(latest) {
            return Err(format!("epoch {arrived:#x} came to way {index} out of round {round}"));
        }
        if arrived < epoch(round) || way.is_reading {
            return Ok(());
        }
        let post = |kind| Post { from: 1, way: index, kind, round };
        if way.is_read {
            way.is_reading = true;
            self.queued[1].push_back(post(Kind::Read));
            return Ok(());
        }
        self.queued[1].push_back(post(Kind::Ack));
        self.look(index);
        Ok(())
    }

    fn look(&mut self, index: usize) {
        let way = &mut self.ways[index];
        let wrong = mismatch(&way.there, 0, way.bytes, pattern(index, way.receiver_round));
        match wrong {
            None => self.seen.whole += 1,
            Some(_) => self.seen.torn += 1,
        }
        way.receiver_round += 1;
        fill_range(&way.there, 0, way.bytes, SCRIBBLE);
    }

    /// Posts until the queue is full.
    fn post_all(&mut self, from: usize) -> Result<(), String> {
        while let Some(post) = self.queued[from].front().copied() {
            let way = &self.ways[post.way];
            let peer = Rank(1 - from as u32);
            let channel: Channel = self.fabrics[from].channel(peer, way.queue_pair).unwrap();
            let token = self.posts.len() as u64;
            match channel.memcpy(way.memcpy(&post, token)) {
                Ok(()) => {}
                Err(PostError::Full { .. }) => return Ok(()),
                Err(PostError::PeerLost { .. }) if self.fabrics[from].fault().is_some() => {
                    self.queued[from].clear();
                    return Ok(());
                }
                Err(error) => return Err(format!("{post:?}: {error}")),
            }
            self.lanes.entry((from, way.queue_pair)).or_default().posted.push_back(token);
            self.posts.push(post);
            self.seen.posts += 1;
            self.queued[from].pop_front();
        }
        Ok(())
    }

    fn collect(&mut self, at: usize) -> Result<(), String> {
        let mut done = Vec::new();
        self.fabrics[at].poll(&mut done);
        done.into_iter().try_for_each(|done| self.completed(at, done))
    }

    fn completed(&mut self, at: usize, done: Completion) -> Result<(), String> {
        let post = *self.posts.get(done.token as usize).ok_or("a token from nowhere")?;
        let queue_pair = self.ways[post.way].queue_pair;
        let lane = self.lanes.get_mut(&(at, queue_pair)).ok_or("a completion from nowhere")?;
        if lane.posted.pop_front() != Some(done.token) {
            return Err(format!("{post:?} completed twice, or not in its order"));
        }
        let is_over = lane.dead.is_some() || lane.is_lost;
        match done.result {
            Ok(()) if !is_over => self.succeeded(post),
            Err(CompletionError::Injected) if !is_over => {
                self.seen.injected += 1;
                self.queued[at].push_back(post);
            }
            Err(CompletionError::QueuePairFailed { .. }) if !is_over => {
                lane.dead = Some(done.result.unwrap_err().to_string());
                self.seen.died += 1;
            }
            Err(CompletionError::ReceiverNotReady { .. }) if !is_over => {
                lane.dead = Some(done.result.unwrap_err().to_string());
                self.seen.not_ready += 1;
            }
            Err(CompletionError::Flushed { cause, .. }) if lane.dead.as_ref() == Some(&cause) => {
                self.seen.flushed += 1;
            }
            Err(CompletionError::PeerLost { .. }) if lane.dead.is_none() => {
                lane.is_lost = true;
                self.seen.lost += 1;
            }
            result => return Err(format!("{post:?} completed with {result:?} out of its order")),
        }
        Ok(())
    }

    fn succeeded(&mut self, post: Post) {
        let way = &mut self.ways[post.way];
        match post.kind {
            Kind::Part(_) | Kind::Ready => way.pending -= 1,
            Kind::Ack => {}
            Kind::Read => {
                way.is_reading = false;
                self.look(post.way);
            }
        }
    }

    /// Nothing is posted any more; what is in flight ends, and so must every post.
    fn finish(mut self) -> Result<Seen, String> {
        loop {
            let is_moving = self.network.advance();
            (0..2).try_for_each(|at| self.collect(at))?;
            // signals that had landed speak for whole tensors, whatever came later
            (0..self.ways.len()).try_for_each(|way| self.act_there(way))?;
            if !is_moving {
                break;
            }
        }
        if let Some((lane, _)) = self.lanes.iter().find(|(_, lane)| !lane.posted.is_empty()) {
            return Err(format!("posts of (rank, queue pair) {lane:?} never completed"));
        }
        let faults: Vec<_> = self.fabrics.iter().map(Fabric::fault).collect();
        let dead: Vec<&String> =
            self.lanes.values().filter_map(|lane| lane.dead.as_ref()).collect();
        match (&faults[..], &dead[..]) {
            ([None, None], []) => Ok(self.seen),
            ([Some(here), Some(there)], [..]) if here.cause == there.cause => {
                let FaultCause::QueuePair { detail, .. } = &here.cause else {
                    return Err(format!("lost for another cause: {here}"));
                };
                // the end that found out had the cause in its first error
                match dead.contains(&detail) {
                    true => Ok(self.seen),
                    false => Err(format!("'{detail}' is not what a first error said: {dead:?}")),
                }
            }
            _ => Err(format!("faults {faults:?} after the first errors {dead:?}")),
        }
    }
}
