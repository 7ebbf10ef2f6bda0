//! A server's side: which push goes into which version, who is answered when, what survives a death. It
//! knows no value, only that one is in a slot; the driver carries its actions out at once and in order.
//!
//! What it remembers is bounded: for each part and worker one push that waits, one pull that waits and
//! numbers; for each worker the last answer to a [`Control`]. An answer to a push is made again from the numbers.

mod part;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tensorwire_fabric::Member;

use self::part::{Part, Pull, Pulled, Push};
use super::{Control, Mode};
use crate::key::{PartKey, ValueSpec};
use crate::message::{Answer, Ask, Refusal, Reply, Request, RequestId};
use crate::wire::RemotePlace;

/// More rounds and versions than any job has. A snapshot may say anything, and counting on from it must not
/// overflow.
const COUNT_MAX: u64 = u64::MAX / 2;

/// What a server is told at its start.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub mode: Mode,
    /// Who may push and pull; a worker's index here is its number, and the order in which pushes are folded.
    pub workers: Vec<Member>,
    /// The keys of the parts that belong to this server.
    pub range: Range<u64>,
}

/// Everything that a server knows but the bytes of the values and of the optimizer's state: with those, a
/// snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerState {
    /// Rank and incarnation of each worker. Another life of a worker starts at round 1 again.
    pub workers: Vec<(u32, u64)>,
    pub parts: Vec<PartState>,
    /// The last [`Ask::SetOptimizer`](crate::message::Ask::SetOptimizer).
    pub optimizer: Option<Vec<u8>>,
    /// For each worker the number of its last [`Control`] that was done, and the answer.
    pub controls: Vec<Option<(RequestId, Answer)>>,
}

/// A part in a [`ServerState`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartState {
    pub part: PartKey,
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
    /// A push: value and rows go into the sender's slot of the part, before the next [`Server::poll`]. A
    /// pull: its rows are kept for the sender and part until the [`ServerAction::Send`].
    Store,
    /// A repetition, or refused: nothing is kept.
    Drop,
}

/// What the driver does next.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerAction {
    /// Weights, and a slot for every worker, of a new part; [`Server::on_not_created`] where there is no memory.
    Create { part: PartKey, spec: ValueSpec },
    /// Answers [`Answer::Placed`] with this worker's slot and `rounds`.
    Place { to: Member, id: RequestId, part: PartKey, rounds: u64 },
    /// The worker's slot is the first value of the weights.
    Seed { part: PartKey, worker: usize },
    /// One update with the slots of these workers, in this order, makes `version`; [`Server::on_not_folded`]
    /// where it fails.
    Fold { part: PartKey, workers: Vec<usize>, version: u64 },
    /// An answer without a value.
    Reply { to: Member, reply: Reply },
    /// Answers [`Answer::Value`] with the weights as they are now, or with the rows kept for this worker
    /// where `sparse`. The driver calls [`Server::on_sent`] when they may change again.
    Send {
        to: Member,
        id: RequestId,
        part: PartKey,
        version: u64,
        into: Option<RemotePlace>,
        sparse: bool,
    },
    /// Does it and calls [`Server::on_done`], which answers. No value is being sent during a load.
    Control { from: Member, id: RequestId, what: Control },
}

/// A server's state.
#[derive(Debug)]
pub struct Server {
    mode: Mode,
    range: Range<u64>,
    workers: Vec<Seat>,
    /// Ordered, so that the same events give the same actions.
    parts: BTreeMap<PartKey, Part>,
    optimizer: Option<Vec<u8>>,
    /// Values on their way out of the weights.
    sending: usize,
    /// Loads that wait until no value is being sent; at most one of each worker.
    loads: VecDeque<(Member, RequestId, Control)>,
    actions: VecDeque<ServerAction>,
    /// How many answers stand behind each fold among the actions, and behind the one that was polled last.
    answers: VecDeque<usize>,
    answers_last: usize,
}

/// A worker as a server sees it.
#[derive(Debug)]
struct Seat {
    member: Member,
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
        let seat = |member| Seat { member, alive: true, asked: None };
        Server {
            mode: config.mode,
            range: config.range,
            workers: config.workers.into_iter().map(seat).collect(),
            parts: BTreeMap::new(),
            optimizer: None,
            sending: 0,
            loads: VecDeque::new(),
            actions: VecDeque::new(),
            answers: VecDeque::new(),
            answers_last: 0,
        }
    }

    /// The server that a snapshot describes; the driver makes the parts' weights and slots itself. All of
    /// `config.workers` are taken to live until [`Server::on_world`].
    pub fn restored(config: ServerConfig, state: ServerState) -> Server {
        let mut server = Server::new(config);
        let same: Vec<bool> = server
            .workers
            .iter()
            .zip(state.workers.iter().map(Some).chain(std::iter::repeat(None)))
            .map(|(seat, saved)| saved == Some(&written(seat.member)))
            .collect();
        for saved in state.parts.iter().filter(|saved| server.range.contains(&saved.part.0)) {
            let mut part = Part::new(saved.spec, same.len());
            (part.seeded, part.version) = (saved.seeded, saved.version.min(COUNT_MAX));
            part.created = true;
            for (worker, _) in same.iter().enumerate().filter(|(_, same)| **same) {
                let rounds = saved.rounds.get(worker).copied().unwrap_or(0).min(COUNT_MAX);
                (part.slots[worker].rounds, part.slots[worker].durable) = (rounds, rounds);
            }
            server.parts.insert(saved.part, part);
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
        use ServerAction::{Create, Fold, Seed};
        let changes =
            |action: &ServerAction| matches!(action, Create { .. } | Seed { .. } | Fold { .. });
        assert!(!self.actions.iter().any(changes), "a snapshot of what is half done");
        let part = |(key, part): (&PartKey, &Part)| PartState {
            part: *key,
            spec: part.spec,
            seeded: part.seeded,
            version: part.version,
            rounds: part.slots.iter().map(|slot| slot.rounds).collect(),
        };
        let control = |seat: &Seat| {
            let asked = seat.asked.as_ref()?;
            Some((asked.id, asked.answer.clone()?))
        };
        ServerState {
            workers: self.workers.iter().map(|seat| written(seat.member)).collect(),
            parts: self.parts.iter().map(part).collect(),
            optimizer: self.optimizer.clone(),
            controls: self.workers.iter().map(control).collect(),
        }
    }

    /// Takes a request.
    pub fn on_request(&mut self, from: Member, request: &Request) -> Taken {
        let Some(worker) = self.worker_of(from) else {
            return self.refuse(from, request.id, Refusal::Foreign);
        };
        let id = request.id;
        match &request.what {
            Ask::Init { part, dtype, rows, columns } => {
                let told = (*dtype, *rows, *columns);
                self.on_init(worker, id, *part, told);
                Taken::Drop
            }
            Ask::Push { part, round, rows, .. } => {
                self.on_push(worker, id, *part, (*round, rows.is_some()))
            }
            Ask::Pull { part, round, into, rows } => {
                let pull = Pull { id, round: *round, into: *into, sparse: rows.is_some() };
                self.on_pull(worker, *part, pull)
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

    /// An answer's value has left the weights of this part, or its receiver is lost: once per
    /// [`ServerAction::Send`].
    pub fn on_sent(&mut self, part: PartKey) {
        let state = self.parts.get_mut(&part).filter(|state| state.readers > 0);
        assert!(state.is_some(), "more values of part {} left than were sent", part.0);
        if let Some(state) = state {
            state.readers -= 1;
            self.sending -= 1;
        }
        self.settle(part);
        self.start_loads();
    }

    /// A part of [`ServerAction::Create`] cannot be held: whoever asked for it is told why, and it is as if
    /// nobody had.
    pub fn on_not_created(&mut self, part: PartKey, why: &str) {
        self.parts.remove(&part);
        for action in &mut self.actions {
            if let ServerAction::Place { to, id, part: of, .. } = action
                && *of == part
            {
                let what = Answer::Refused { why: Refusal::Failed(why.to_string()) };
                *action = ServerAction::Reply { to: *to, reply: Reply { id: *id, what } };
            }
        }
    }

    /// The update of the [`ServerAction::Fold`] that was polled last failed: whoever pushed is told why. The
    /// round is over.
    pub fn on_not_folded(&mut self, why: &str) {
        for action in self.actions.iter_mut().take(std::mem::take(&mut self.answers_last)) {
            if let ServerAction::Reply { reply, .. } = action {
                reply.what = Answer::Refused { why: Refusal::Failed(why.to_string()) };
            }
        }
    }

    /// A [`ServerAction::Control`] was done: [`Answer::Done`], [`Answer::Returned`] or a refusal. Whoever
    /// takes snapshots takes one between this and the next [`Server::poll`] for whatever a replacement
    /// cannot do without: an optimizer, a load.
    pub fn on_done(&mut self, from: Member, id: RequestId, answer: Answer) {
        let seat = self.workers.iter_mut().find(|seat| seat.member == from);
        let asked = seat.and_then(|seat| seat.asked.as_mut()).filter(|asked| asked.id == id);
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
    pub fn on_world(&mut self, alive: &[Member]) {
        for (worker, seat) in self.workers.iter_mut().enumerate() {
            if seat.alive && !alive.contains(&seat.member) {
                seat.alive = false;
                self.parts.values_mut().for_each(|part| part.slots[worker].pull = None);
            }
        }
        self.settle_all();
    }

    /// A snapshot with this state will survive this server: a replacement starts from it or from a later one,
    /// never from one that was begun earlier and written more slowly.
    pub fn on_snapshot(&mut self, state: &ServerState) {
        for saved in &state.parts {
            let Some(part) = self.parts.get_mut(&saved.part) else {
                continue;
            };
            for (slot, rounds) in part.slots.iter_mut().zip(&saved.rounds) {
                slot.durable = slot.durable.max(*rounds);
            }
        }
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<ServerAction> {
        let action = self.actions.pop_front()?;
        let of_part = match &action {
            ServerAction::Create { part, .. }
            | ServerAction::Seed { part, .. }
            | ServerAction::Fold { part, .. }
            | ServerAction::Send { part, sparse: true, .. } => self.parts.get_mut(part),
            _ => None,
        };
        let Some(of_part) = of_part else { return Some(action) };
        // what the driver has done before it takes another request may be written over by that
        match &action {
            ServerAction::Seed { worker, .. } => of_part.slots[*worker].is_due = false,
            ServerAction::Fold { workers, .. } => {
                workers.iter().for_each(|worker| of_part.slots[*worker].is_due = false);
                self.answers_last = self.answers.pop_front().unwrap_or_default();
            }
            ServerAction::Send { to, .. } => {
                let seats = self.workers.iter().zip(&mut of_part.slots);
                for (_, slot) in seats.filter(|(seat, _)| seat.member == *to) {
                    slot.is_pull_due = false;
                }
            }
            _ => of_part.created = true,
        }
        Some(action)
    }

    fn worker_of(&self, from: Member) -> Option<usize> {
        self.workers.iter().position(|seat| seat.member == from && seat.alive)
    }

    fn on_init(&mut self, worker: usize, id: RequestId, key: PartKey, told: (u8, u64, u64)) {
        let to = self.workers[worker].member;
        if !self.range.contains(&key.0) {
            self.refuse(to, id, Refusal::NotMine { part: key });
            return;
        }
        let (dtype, rows, columns) = told;
        let Some(spec) = ValueSpec::told(dtype, rows, columns) else {
            let why = format!("type {dtype} with {rows} x {columns} elements is no value");
            self.refuse(to, id, Refusal::Failed(why));
            return;
        };
        let here = self.parts.get(&key).map(|part| part.spec);
        if let Some(here) = here.filter(|here| *here != spec) {
            let (here, told) = (here.to_string(), spec.to_string());
            self.refuse(to, id, Refusal::OtherSpec { part: key, here, told });
            return;
        }
        if here.is_none() {
            self.parts.insert(key, Part::new(spec, self.workers.len()));
            self.actions.push_back(ServerAction::Create { part: key, spec });
        }
        let rounds = self.parts.get(&key).map_or(0, |part| part.slots[worker].rounds);
        self.actions.push_back(ServerAction::Place { to, id, part: key, rounds });
    }

    fn on_push(
        &mut self,
        worker: usize,
        id: RequestId,
        key: PartKey,
        (round, is_rows): (u64, bool),
    ) -> Taken {
        let (to, mode) = (self.workers[worker].member, self.mode);
        let part = match self.part(key) {
            Ok(part) => part,
            Err(why) => return self.refuse(to, id, why),
        };
        let verdict = part.on_push(mode, worker, id, (round, is_rows));
        match verdict {
            Push::Taken => {
                self.settle(key);
                Taken::Store
            }
            Push::First => {
                self.actions.push_back(ServerAction::Seed { part: key, worker });
                self.reply(to, id, Answer::Folded { version: 0, durable: 0 });
                self.settle(key);
                Taken::Store
            }
            Push::Waits => Taken::Drop,
            Push::Known { version, durable } => {
                self.reply(to, id, Answer::Folded { version, durable });
                Taken::Drop
            }
            Push::OutOfTurn { expected } => {
                self.refuse(to, id, Refusal::OutOfTurn { part: key, expected, found: round })
            }
            Push::TooSoon => self.refuse(to, id, Refusal::TooSoon { part: key }),
            Push::Mixed => self.refuse(to, id, Refusal::Mixed { part: key }),
        }
    }

    fn on_pull(&mut self, worker: usize, key: PartKey, pull: Pull) -> Taken {
        let to = self.workers[worker].member;
        let part = match self.part(key) {
            Ok(part) => part,
            Err(why) => return self.refuse(to, pull.id, why),
        };
        let Pull { id, sparse, .. } = pull;
        match part.on_pull(worker, pull) {
            Pulled::Taken => {}
            Pulled::Known => return Taken::Drop,
            Pulled::TooSoon => return self.refuse(to, id, Refusal::TooSoon { part: key }),
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

    /// The part, or why there is none.
    fn part(&mut self, key: PartKey) -> Result<&mut Part, Refusal> {
        if !self.range.contains(&key.0) {
            return Err(Refusal::NotMine { part: key });
        }
        let part = self.parts.get_mut(&key).ok_or(Refusal::Unknown { part: key })?;
        if part.created { Ok(part) } else { Err(Refusal::TooSoon { part: key }) }
    }

    /// Loads replace weights, so they wait for readers, and new readers wait for them.
    fn start_loads(&mut self) {
        if self.loads.is_empty() || self.sending > 0 {
            return;
        }
        while let Some((from, id, what)) = self.loads.pop_front() {
            self.actions.push_back(ServerAction::Control { from, id, what });
        }
        self.settle_all();
    }

    fn settle_all(&mut self) {
        let keys: Vec<PartKey> = self.parts.keys().copied().collect();
        keys.into_iter().for_each(|key| self.settle(key));
    }

    /// Does what a part is due: folds, and answers to pulls.
    fn settle(&mut self, key: PartKey) {
        let Some(part) = self.parts.get_mut(&key) else {
            return;
        };
        while let Some((workers, version)) = part.fold(self.mode, &self.workers) {
            let pushed: Vec<_> = workers.iter().map(|worker| part.answer_push(*worker)).collect();
            let seats = workers.iter().map(|worker| &self.workers[*worker]);
            let answers = seats.zip(pushed).filter(|(seat, _)| seat.alive).filter_map(
                |(seat, (id, durable))| {
                    let what = Answer::Folded { version, durable };
                    Some(ServerAction::Reply { to: seat.member, reply: Reply { id: id?, what } })
                },
            );
            let answers: Vec<_> = answers.collect();
            self.answers.push_back(answers.len());
            self.actions.push_back(ServerAction::Fold { part: key, workers, version });
            self.actions.extend(answers);
        }
        if !self.loads.is_empty() {
            return;
        }
        while let Some((worker, pull)) = part.next_pull(self.mode, &self.workers) {
            self.sending += 1;
            let Pull { id, into, sparse, .. } = pull;
            let (to, version) = (self.workers[worker].member, part.version);
            self.actions.push_back(ServerAction::Send { to, id, part: key, version, into, sparse });
        }
    }

    fn reply(&mut self, to: Member, id: RequestId, what: Answer) {
        self.actions.push_back(ServerAction::Reply { to, reply: Reply { id, what } });
    }

    fn refuse(&mut self, to: Member, id: RequestId, why: Refusal) -> Taken {
        self.reply(to, id, Answer::Refused { why });
        Taken::Drop
    }
}

fn written(member: Member) -> (u32, u64) {
    (member.rank.0, member.incarnation.0)
}
