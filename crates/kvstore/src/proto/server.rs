//! A server's side: which push goes into which version, who is answered when, what survives a death. It
//! knows no value, only that one is in a slot; the driver carries its actions out at once and in order.
//!
//! What it remembers is bounded: for each shard and worker one push that waits, one pull that waits and
//! numbers; for each worker the last answer to a [`Control`]. An answer to a push is made again from the numbers.

mod shard;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tensorwire_fabric::Identity;

use self::shard::{Pull, Pulled, Push, Shard};
use super::{Control, Mode};
use crate::key::{ShardKey, ValueSpec};
use crate::message::{Answer, Ask, Reply, Request, RequestId, RequestRefusal};
use crate::wire::RemotePlace;

/// More rounds and versions than any job has. A snapshot may say anything, and counting on from it must not
/// overflow.
const COUNT_MAX: u64 = u64::MAX / 2;

/// What a server is told at its start.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub mode: Mode,
    /// Who may push and pull; a worker's index here is its number, and the order in which pushes are applied.
    pub workers: Vec<Identity>,
    /// The keys of the shards that belong to this server.
    pub range: Range<u64>,
}

/// Everything that a server knows but the bytes of the values and of the optimizer's state: with those, a
/// snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerState {
    /// Rank and incarnation of each worker. Another life of a worker starts at round 1 again.
    pub workers: Vec<(u32, u64)>,
    pub shards: Vec<ShardState>,
    /// The last [`Ask::SetOptimizer`](crate::message::Ask::SetOptimizer).
    pub optimizer: Option<Vec<u8>>,
    /// For each worker the number of its last [`Control`] that was done, and the answer.
    pub controls: Vec<Option<(RequestId, Answer)>>,
}

/// A shard in a [`ServerState`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardState {
    pub shard: ShardKey,
    pub spec: ValueSpec,
    /// It has a value; else its weights are not to be saved.
    pub seeded: bool,
    /// Updates so far.
    pub version: u64,
    /// For each worker the rounds that are in.
    pub rounds: Vec<u64>,
}

/// What the driver does with the values that came with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A push: value and rows go into the sender's slot of the shard, before the next [`Server::poll`]. A
    /// pull: its rows are kept for the sender and shard until the [`ServerAction::Send`].
    Store,
    /// A repetition, or refused: nothing is kept.
    Drop,
}

/// What the driver does next.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerAction {
    /// Weights, and a slot for every worker, of a new shard; [`Server::on_not_created`] where there is no memory.
    Create { shard: ShardKey, spec: ValueSpec },
    /// Answers [`Answer::Placed`] with this worker's slot and `rounds`.
    Place { to: Identity, id: RequestId, shard: ShardKey, rounds: u64 },
    /// The worker's slot is the first value of the weights.
    Seed { shard: ShardKey, worker: usize },
    /// One update with the slots of these workers, in this order, makes `version`; [`Server::on_not_applied`]
    /// where it fails.
    Apply { shard: ShardKey, workers: Vec<usize>, version: u64 },
    /// An answer without a value.
    Reply { to: Identity, reply: Reply },
    /// Answers [`Answer::Value`] with the weights as they are now, or with the rows kept for this worker
    /// where `sparse`. The driver calls [`Server::on_sent`] when they may change again. Of what waits to go to one
    /// worker, a larger `priority` goes first.
    Send {
        to: Identity,
        id: RequestId,
        shard: ShardKey,
        version: u64,
        priority: i32,
        into: Option<RemotePlace>,
        sparse: bool,
    },
    /// Does it and calls [`Server::on_done`], which answers. No value is being sent during a load.
    Control { from: Identity, id: RequestId, what: Control },
}

/// A server's state.
#[derive(Debug)]
pub struct Server {
    mode: Mode,
    range: Range<u64>,
    workers: Vec<WorkerState>,
    /// Ordered, so that the same events give the same actions.
    shards: BTreeMap<ShardKey, Shard>,
    optimizer: Option<Vec<u8>>,
    /// Values on their way out of the weights.
    sending: usize,
    /// Loads that wait until no value is being sent; at most one of each worker.
    loads: VecDeque<(Identity, RequestId, Control)>,
    /// Loads that the driver does; no value is sent until they are done.
    loading: Vec<(Identity, RequestId)>,
    actions: VecDeque<ServerAction>,
    /// How many answers stand behind each update among the actions, and behind the one that was polled last.
    answers: VecDeque<usize>,
    answers_last: usize,
}

/// A worker as a server sees it.
#[derive(Debug)]
struct WorkerState {
    member: Identity,
    alive: bool,
    asked: Option<Asked>,
}

/// The last control request of a worker.
#[derive(Debug)]
struct Asked {
    id: RequestId,
    /// What it makes the optimizer if it succeeds.
    optimizer: Option<Vec<u8>>,
    /// None while it is being done.
    answer: Option<Answer>,
}

impl Server {
    pub fn new(config: ServerConfig) -> Server {
        let worker_state = |member| WorkerState { member, alive: true, asked: None };
        Server {
            mode: config.mode,
            range: config.range,
            workers: config.workers.into_iter().map(worker_state).collect(),
            shards: BTreeMap::new(),
            optimizer: None,
            sending: 0,
            loads: VecDeque::new(),
            loading: Vec::new(),
            actions: VecDeque::new(),
            answers: VecDeque::new(),
            answers_last: 0,
        }
    }

    /// The server that a snapshot describes; the driver makes the shards' weights and slots itself. All of
    /// `config.workers` are taken to live until [`Server::on_world`].
    pub fn restored(config: ServerConfig, state: ServerState) -> Server {
        let mut server = Server::new(config);
        let same: Vec<bool> = server
            .workers
            .iter()
            .zip(state.workers.iter().map(Some).chain(std::iter::repeat(None)))
            .map(|(worker_state, saved)| saved == Some(&written(worker_state.member)))
            .collect();
        for saved in state.shards.iter().filter(|saved| server.range.contains(&saved.shard.0)) {
            let mut shard = Shard::new(saved.spec, same.len());
            (shard.seeded, shard.version) = (saved.seeded, saved.version.min(COUNT_MAX));
            shard.created = true;
            for (worker, _) in same.iter().enumerate().filter(|(_, same)| **same) {
                let rounds = saved.rounds.get(worker).copied().unwrap_or(0).min(COUNT_MAX);
                (shard.slots[worker].rounds, shard.slots[worker].durable) = (rounds, rounds);
            }
            server.shards.insert(saved.shard, shard);
        }
        for (worker, control) in state.controls.into_iter().enumerate() {
            if let Some((id, answer)) = control
                && same.get(worker) == Some(&true)
            {
                let asked = Asked { id, optimizer: None, answer: Some(answer) };
                server.workers[worker].asked = Some(asked);
            }
        }
        server.optimizer = state.optimizer;
        server
    }

    /// What a snapshot holds beside the values. Taken when [`Server::poll`] has nothing more, or nothing but
    /// answers.
    pub fn state(&self) -> ServerState {
        use ServerAction::{Apply, Create, Seed};
        let changes =
            |action: &ServerAction| matches!(action, Create { .. } | Seed { .. } | Apply { .. });
        assert!(!self.actions.iter().any(changes), "a snapshot of what is half done");
        let shard = |(key, shard): (&ShardKey, &Shard)| ShardState {
            shard: *key,
            spec: shard.spec,
            seeded: shard.seeded,
            version: shard.version,
            rounds: shard.slots.iter().map(|slot| slot.rounds).collect(),
        };
        let control = |worker_state: &WorkerState| {
            let asked = worker_state.asked.as_ref()?;
            Some((asked.id, asked.answer.clone()?))
        };
        ServerState {
            workers: self.workers.iter().map(|worker_state| written(worker_state.member)).collect(),
            shards: self.shards.iter().map(shard).collect(),
            optimizer: self.optimizer.clone(),
            controls: self.workers.iter().map(control).collect(),
        }
    }

    /// Takes a request.
    pub fn on_request(&mut self, from: Identity, request: &Request) -> Taken {
        let Some(worker) = self.worker_of(from) else {
            return self.refuse(from, request.id, RequestRefusal::Foreign);
        };
        let id = request.id;
        match &request.what {
            Ask::Init { shard, dtype, rows, columns } => {
                let told = (*dtype, *rows, *columns);
                self.on_init(worker, id, *shard, told);
                Taken::Drop
            }
            Ask::Push { shard, round, rows, .. } => {
                self.on_push(worker, id, *shard, (*round, rows.is_some()))
            }
            Ask::PushEncoded { shard, round, .. } => {
                self.on_push(worker, id, *shard, (*round, false))
            }
            Ask::Pull { shard, round, priority, into, rows, wide } => {
                let sparse = rows.is_some() || *wide;
                let pull = Pull { id, round: *round, priority: *priority, into: *into, sparse };
                self.on_pull(worker, *shard, pull)
            }
            Ask::SetOptimizer { bytes } => {
                self.on_control(worker, id, Control::SetOptimizer { bytes: bytes.clone() })
            }
            Ask::Call { head, body } => {
                self.on_control(worker, id, Control::Call { head: *head, body: body.clone() })
            }
            // the driver knows of which answer
            Ask::Taken { .. } => Taken::Drop,
            Ask::Save { path } => self.on_control(worker, id, Control::Save { path: path.clone() }),
            Ask::Load { path } => self.on_control(worker, id, Control::Load { path: path.clone() }),
        }
    }

    /// An answer's value has left the weights of this shard, or its receiver is lost: once per
    /// [`ServerAction::Send`].
    pub fn on_sent(&mut self, shard: ShardKey) {
        let state = self.shards.get_mut(&shard).filter(|state| state.readers > 0);
        assert!(state.is_some(), "more values of shard {} left than were sent", shard.0);
        if let Some(state) = state {
            state.readers -= 1;
            self.sending -= 1;
        }
        self.settle(shard);
        self.start_loads();
    }

    /// A shard of [`ServerAction::Create`] cannot be held: whoever asked for it is told why, and it is as if
    /// nobody had.
    pub fn on_not_created(&mut self, shard: ShardKey, why: &str) {
        self.shards.remove(&shard);
        for action in &mut self.actions {
            if let ServerAction::Place { to, id, shard: of, .. } = action
                && *of == shard
            {
                let what = Answer::Refused { why: RequestRefusal::Failed(why.to_string()) };
                *action = ServerAction::Reply { to: *to, reply: Reply { id: *id, what } };
            }
        }
    }

    /// The update of the [`ServerAction::Apply`] that was polled last failed: whoever pushed is told why. The
    /// round is over.
    pub fn on_not_applied(&mut self, why: &str) {
        for action in self.actions.iter_mut().take(std::mem::take(&mut self.answers_last)) {
            if let ServerAction::Reply { reply, .. } = action {
                reply.what = Answer::Refused { why: RequestRefusal::Failed(why.to_string()) };
            }
        }
    }

    /// A [`ServerAction::Control`] was done: [`Answer::Done`], [`Answer::Returned`] or a refusal. Whoever
    /// takes snapshots takes one between this and the next [`Server::poll`] for whatever a replacement
    /// cannot do without: an optimizer, a load.
    pub fn on_done(&mut self, from: Identity, id: RequestId, answer: Answer) {
        let loading = self.loading.len();
        self.loading.retain(|of| *of != (from, id));
        if self.loading.len() < loading && self.loading.is_empty() {
            self.settle_all();
        }
        let worker_state = self.workers.iter_mut().find(|worker_state| worker_state.member == from);
        let asked = worker_state
            .and_then(|worker_state| worker_state.asked.as_mut())
            .filter(|asked| asked.id == id);
        let Some(asked) = asked else {
            return;
        };
        asked.answer = Some(answer.clone());
        if let (Some(optimizer), Answer::Done) = (asked.optimizer.take(), &answer) {
            self.optimizer = Some(optimizer);
        }
        self.reply(from, id, answer);
    }

    /// Only these workers are to be waited for now: the others died, or have done their part. What the others had pushed whole still counts; nobody waits for them.
    pub fn on_world(&mut self, alive: &[Identity]) {
        for (worker, worker_state) in self.workers.iter_mut().enumerate() {
            if worker_state.alive && !alive.contains(&worker_state.member) {
                worker_state.alive = false;
                self.shards.values_mut().for_each(|shard| shard.slots[worker].pull = None);
            }
        }
        self.settle_all();
    }

    /// A snapshot with this state will survive this server: a replacement starts from it or from a later one,
    /// never from one that was begun earlier and written more slowly.
    pub fn on_snapshot(&mut self, state: &ServerState) {
        for saved in &state.shards {
            let Some(shard) = self.shards.get_mut(&saved.shard) else {
                continue;
            };
            for (slot, rounds) in shard.slots.iter_mut().zip(&saved.rounds) {
                slot.durable = slot.durable.max(*rounds);
            }
        }
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<ServerAction> {
        let action = self.actions.pop_front()?;
        let of_shard = match &action {
            ServerAction::Create { shard, .. }
            | ServerAction::Seed { shard, .. }
            | ServerAction::Apply { shard, .. }
            | ServerAction::Send { shard, sparse: true, .. } => self.shards.get_mut(shard),
            _ => None,
        };
        let Some(of_shard) = of_shard else { return Some(action) };
        // what the driver has done before it takes another request may be written over by that
        match &action {
            ServerAction::Seed { worker, .. } => of_shard.slots[*worker].is_due = false,
            ServerAction::Apply { workers, .. } => {
                workers.iter().for_each(|worker| of_shard.slots[*worker].is_due = false);
                self.answers_last = self.answers.pop_front().unwrap_or_default();
            }
            ServerAction::Send { to, .. } => {
                let seats = self.workers.iter().zip(&mut of_shard.slots);
                for (_, slot) in seats.filter(|(worker_state, _)| worker_state.member == *to) {
                    slot.is_pull_due = false;
                }
            }
            _ => of_shard.created = true,
        }
        Some(action)
    }

    fn worker_of(&self, from: Identity) -> Option<usize> {
        self.workers
            .iter()
            .position(|worker_state| worker_state.member == from && worker_state.alive)
    }

    fn on_init(&mut self, worker: usize, id: RequestId, key: ShardKey, told: (u8, u64, u64)) {
        let to = self.workers[worker].member;
        if !self.range.contains(&key.0) {
            self.refuse(to, id, RequestRefusal::NotMine { shard: key });
            return;
        }
        let (dtype, rows, columns) = told;
        let Some(spec) = ValueSpec::told(dtype, rows, columns) else {
            let why = format!("type {dtype} with {rows} x {columns} elements is no value");
            self.refuse(to, id, RequestRefusal::Failed(why));
            return;
        };
        let here = self.shards.get(&key).map(|shard| shard.spec);
        if let Some(here) = here.filter(|here| *here != spec) {
            let (here, told) = (here.to_string(), spec.to_string());
            self.refuse(to, id, RequestRefusal::OtherSpec { shard: key, here, told });
            return;
        }
        if here.is_none() {
            self.shards.insert(key, Shard::new(spec, self.workers.len()));
            self.actions.push_back(ServerAction::Create { shard: key, spec });
        }
        let rounds = self.shards.get(&key).map_or(0, |shard| shard.slots[worker].rounds);
        self.actions.push_back(ServerAction::Place { to, id, shard: key, rounds });
    }

    fn on_push(
        &mut self,
        worker: usize,
        id: RequestId,
        key: ShardKey,
        (round, is_rows): (u64, bool),
    ) -> Taken {
        let (to, mode) = (self.workers[worker].member, self.mode);
        let shard = match self.shard(key) {
            Ok(shard) => shard,
            Err(why) => return self.refuse(to, id, why),
        };
        let verdict = shard.on_push(mode, worker, id, (round, is_rows));
        match verdict {
            Push::Taken => {
                self.settle(key);
                Taken::Store
            }
            Push::First => {
                self.actions.push_back(ServerAction::Seed { shard: key, worker });
                self.reply(to, id, Answer::Applied { version: 0, durable: 0 });
                self.settle(key);
                Taken::Store
            }
            Push::Waits => Taken::Drop,
            Push::Known { version, durable } => {
                self.reply(to, id, Answer::Applied { version, durable });
                Taken::Drop
            }
            Push::OutOfTurn { expected } => self.refuse(
                to,
                id,
                RequestRefusal::OutOfTurn { shard: key, expected, found: round },
            ),
            Push::TooSoon => self.refuse(to, id, RequestRefusal::TooSoon { shard: key }),
            Push::Mixed => self.refuse(to, id, RequestRefusal::Mixed { shard: key }),
        }
    }

    fn on_pull(&mut self, worker: usize, key: ShardKey, pull: Pull) -> Taken {
        let to = self.workers[worker].member;
        let shard = match self.shard(key) {
            Ok(shard) => shard,
            Err(why) => return self.refuse(to, pull.id, why),
        };
        let Pull { id, sparse, .. } = pull;
        match shard.on_pull(worker, pull) {
            Pulled::Taken => {}
            Pulled::Known => return Taken::Drop,
            Pulled::TooSoon => return self.refuse(to, id, RequestRefusal::TooSoon { shard: key }),
        }
        self.settle(key);
        if sparse { Taken::Store } else { Taken::Drop }
    }

    fn on_control(&mut self, worker: usize, id: RequestId, what: Control) -> Taken {
        let from = self.workers[worker].member;
        let last = self.workers[worker].asked.as_ref();
        if let Some(last) = last.filter(|last| id <= last.id) {
            // what is older than the last was answered, or there would be no last
            if let Some(answer) = last.answer.clone().filter(|_| last.id == id) {
                self.reply(from, id, answer);
            }
            return Taken::Drop;
        }
        let optimizer = match &what {
            Control::SetOptimizer { bytes } => Some(bytes.clone()),
            _ => None,
        };
        let no_change = optimizer.is_some() && optimizer == self.optimizer;
        self.workers[worker].asked = Some(Asked { id, optimizer, answer: None });
        if no_change {
            self.on_done(from, id, Answer::Done);
        } else if matches!(what, Control::Load { .. }) {
            self.loads.retain(|(of, ..)| *of != from);
            self.loads.push_back((from, id, what));
            self.start_loads();
        } else {
            self.actions.push_back(ServerAction::Control { from, id, what });
        }
        Taken::Drop
    }

    /// The shard, or why there is none.
    fn shard(&mut self, key: ShardKey) -> Result<&mut Shard, RequestRefusal> {
        if !self.range.contains(&key.0) {
            return Err(RequestRefusal::NotMine { shard: key });
        }
        let shard = self.shards.get_mut(&key).ok_or(RequestRefusal::Unknown { shard: key })?;
        if shard.created { Ok(shard) } else { Err(RequestRefusal::TooSoon { shard: key }) }
    }

    /// Loads replace weights, so they wait for readers, and new readers wait for them.
    fn start_loads(&mut self) {
        if self.loads.is_empty() || self.sending > 0 {
            return;
        }
        while let Some((from, id, what)) = self.loads.pop_front() {
            self.loading.push((from, id));
            self.actions.push_back(ServerAction::Control { from, id, what });
        }
    }

    fn settle_all(&mut self) {
        let keys: Vec<ShardKey> = self.shards.keys().copied().collect();
        keys.into_iter().for_each(|key| self.settle(key));
    }

    /// Does what a shard is due: updates, and answers to pulls.
    fn settle(&mut self, key: ShardKey) {
        let Some(shard) = self.shards.get_mut(&key) else {
            return;
        };
        while let Some((workers, version)) = shard.apply(self.mode, &self.workers) {
            let pushed: Vec<_> = workers.iter().map(|worker| shard.answer_push(*worker)).collect();
            let seats = workers.iter().map(|worker| &self.workers[*worker]);
            let answers = seats
                .zip(pushed)
                .filter(|(worker_state, _)| worker_state.alive)
                .filter_map(|(worker_state, (id, durable))| {
                    let what = Answer::Applied { version, durable };
                    Some(ServerAction::Reply {
                        to: worker_state.member,
                        reply: Reply { id: id?, what },
                    })
                });
            let answers: Vec<_> = answers.collect();
            self.answers.push_back(answers.len());
            self.actions.push_back(ServerAction::Apply { shard: key, workers, version });
            self.actions.extend(answers);
        }
        if !self.loads.is_empty() || !self.loading.is_empty() {
            return;
        }
        while let Some((worker, pull)) = shard.next_pull(self.mode, &self.workers) {
            self.sending += 1;
            let Pull { id, priority, into, sparse, .. } = pull;
            let (to, version) = (self.workers[worker].member, shard.version);
            self.actions.push_back(ServerAction::Send {
                to,
                id,
                shard: key,
                version,
                priority,
                into,
                sparse,
            });
        }
    }

    fn reply(&mut self, to: Identity, id: RequestId, what: Answer) {
        self.actions.push_back(ServerAction::Reply { to, reply: Reply { id, what } });
    }

    fn refuse(&mut self, to: Identity, id: RequestId, why: RequestRefusal) -> Taken {
        self.reply(to, id, Answer::Refused { why });
        Taken::Drop
    }
}

fn written(member: Identity) -> (u32, u64) {
    (member.rank.0, member.incarnation.0)
}
