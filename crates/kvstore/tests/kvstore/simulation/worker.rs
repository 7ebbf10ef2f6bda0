//! A simulated worker: runs the seed's program over the state machine, and holds what it sees against what
//! it did.

use std::collections::{BTreeMap, BTreeSet};

use tensorwire_fabric::Identity;
use tensorwire_kvstore::ValueSpec;
use tensorwire_kvstore::message::{Answer, Ask, Carried, Reply, Request, Rows};
use tensorwire_kvstore::proto::{
    Control, RequestBody, SchedulerEvent, ToSend, Worker, WorkerEvent,
};
use tensorwire_kvstore::wire::RemotePlace;
use tensorwire_tensor::DType;

use super::network::{Context, Note, Out, Payload};
use super::plan::{Fault, Plan, Step};
use super::value::{Gradient, Value};

/// What all values are here; only that workers agree on it matters.
const SPEC: ValueSpec = ValueSpec { dtype: DType::F32, rows: 4, columns: 1 };

/// One worker.
#[derive(Debug)]
pub(crate) struct WorkerSim {
    pub(crate) member: Identity,
    pub(crate) index: usize,
    machine: Worker,
    /// The life of each server that it knows.
    servers: Vec<Identity>,
    /// All lives, in order.
    lives: Vec<(Identity, usize)>,
    at: usize,
    /// Barriers that it came to, and those that it passed.
    pub(crate) entered: u64,
    pub(crate) passed: u64,
    begun: BTreeMap<u64, Begun>,
    next_op: u64,
    shards: Vec<ShardSim>,
    /// Shard and round of what it would replay.
    log: BTreeSet<(usize, u64)>,
    /// Calls that were answered.
    pub(crate) called: Vec<u64>,
    pub(crate) left: bool,
    timer_ms: Option<u64>,
}

/// What a worker did with a shard.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardSim {
    pub(crate) pushed: u64,
    folded: u64,
    pulling: bool,
    /// The last version it saw of the server's present life.
    seen: u64,
    server: usize,
}

/// An operation that is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begun {
    Init,
    Push { shard: usize, round: u64 },
    Pull { shard: usize, round: u64, sparse: bool },
    SetOptimizer { server: usize },
    Call { tag: u64 },
    Load,
}

impl WorkerSim {
    pub(crate) fn new(
        member: Identity,
        index: usize,
        plan: &Plan,
        servers: Vec<Identity>,
    ) -> WorkerSim {
        let shard = |server| ShardSim { server, ..ShardSim::default() };
        WorkerSim {
            member,
            index,
            machine: Worker::new(servers.len(), plan.resend_after_ms),
            lives: servers.iter().copied().zip(0..).collect(),
            servers,
            at: 0,
            entered: 0,
            passed: 0,
            begun: BTreeMap::new(),
            next_op: 0,
            shards: plan.shards.iter().map(|plan| shard(plan.server)).collect(),
            log: BTreeSet::new(),
            called: Vec::new(),
            left: false,
            timer_ms: None,
        }
    }

    pub(crate) fn shards(&self) -> &[ShardSim] {
        &self.shards
    }

    /// All that it pushed is with the servers that it knows.
    pub(crate) fn is_caught_up(&self) -> bool {
        self.machine.is_caught_up()
    }

    /// The life of each server that it knows.
    pub(crate) fn servers(&self) -> &[Identity] {
        &self.servers
    }

    /// Runs the program as far as it goes, and sends what may go.
    pub(crate) fn advance(&mut self, context: &mut Context<'_>) -> Result<(), String> {
        while let Some(step) = context.job.program.get(self.at) {
            if !self.step(*step, context) {
                break;
            }
            self.at += 1;
        }
        if self.at == context.job.program.len() && !self.left {
            self.left = true;
            context.out.push(Out::Scheduler(SchedulerEvent::Left { node: self.node() }));
        }
        for server in 0..self.servers.len() {
            while let Some(to_send) = self.machine.poll(server, context.now_ms) {
                self.send(server, to_send, context)?;
            }
        }
        let next_ms = self.machine.next_timeout_ms();
        if let Some(next_ms) = next_ms.filter(|next| self.timer_ms.is_none_or(|set| *next < set)) {
            self.timer_ms = Some(next_ms);
            context.out.push(Out::Timer(next_ms));
        }
        Ok(())
    }

    pub(crate) fn on_timer(&mut self, context: &mut Context<'_>) -> Result<(), String> {
        self.timer_ms = self.timer_ms.filter(|set| *set > context.now_ms);
        self.advance(context)
    }

    pub(crate) fn on_note(&mut self, note: &Note, context: &mut Context<'_>) -> Result<(), String> {
        match *note {
            Note::Release { barrier } if barrier > self.entered => {
                return Err(format!(
                    "barrier {barrier} opens, and worker {} is not there",
                    self.index
                ));
            }
            Note::Release { barrier } => self.passed = self.passed.max(barrier),
            Note::World { .. } => {}
            Note::Replaced { server, node } => {
                let server = server as usize;
                let member = Identity { rank: node.rank, incarnation: node.incarnation };
                if self.servers[server].rank < node.rank {
                    self.servers[server] = member;
                    self.lives.push((member, server));
                    let shards = self.shards.iter_mut().filter(|shard| shard.server == server);
                    shards.for_each(|shard| shard.seen = 0);
                    self.machine.on_replaced(server);
                }
            }
        }
        self.advance(context)
    }

    pub(crate) fn on_reply(
        &mut self,
        from: Identity,
        reply: &Reply,
        value: Option<Value>,
        context: &mut Context<'_>,
    ) -> Result<(), String> {
        let life = self.lives.iter().find(|(member, _)| *member == from);
        let server = life.ok_or("an answer from nowhere")?.1;
        if context.job.steady && self.servers[server] != from {
            return Ok(()); // the connection was closed, and what was in it is gone
        }
        if let (Answer::Value { value: Carried::InPlace, .. }, Some(value)) = (&reply.what, &value)
        {
            let shard = value.first.map(|first| first.shard);
            let at = context.job.shards.iter().position(|plan| Some(plan.key) == shard);
            if !at.is_some_and(|at| self.shards[at].pulling) {
                return Err(format!("{shard:?} is written over what worker {} reads", self.index));
            }
        }
        if let Some(event) = self.machine.on_reply(server, reply) {
            self.on_event(event, value, context)?;
        }
        self.advance(context)
    }

    fn node(&self) -> Identity {
        Identity { rank: self.member.rank, incarnation: self.member.incarnation }
    }

    /// Takes a step; false: not yet.
    fn step(&mut self, step: Step, context: &mut Context<'_>) -> bool {
        let (index, op) = (self.index, self.next_op);
        let plan = context.job;
        let begun = match step {
            Step::Init { shard } => {
                let ShardSim { server, .. } = self.shards[shard];
                self.machine.init(op, server, plan.shards[shard].key, SPEC);
                Begun::Init
            }
            Step::Seed { shard } if index == plan.first => {
                self.machine.seed(op, plan.shards[shard].key, 0);
                Begun::Push { shard, round: 0 }
            }
            Step::SetOptimizer { server } if index == plan.first => {
                self.machine.ask(op, server, Control::SetOptimizer { bytes: vec![1] });
                Begun::SetOptimizer { server }
            }
            Step::Push { shard, priority } => {
                let round = self.machine.push(op, plan.shards[shard].key, priority);
                self.shards[shard].pushed = round;
                Begun::Push { shard, round }
            }
            Step::Pull { shard, priority, sparse } => {
                self.machine.pull(op, plan.shards[shard].key, priority);
                Begun::Pull { shard, round: self.shards[shard].pushed, sparse }
            }
            Step::Call { worker, server } if index == worker => {
                // fits: a program has fewer steps
                let tag = self.at as u32;
                self.machine.ask(op, server, Control::Call { head: tag, body: vec![tag as u8] });
                Begun::Call { tag: tag.into() }
            }
            Step::Load { worker, server } if index == worker => {
                self.machine.ask(op, server, Control::Load { path: String::new() });
                Begun::Load
            }
            Step::Wait => return self.begun.is_empty(),
            Step::Barrier => return self.barrier(context),
            _ => return true,
        };
        self.begun.insert(op, begun);
        self.next_op += 1;
        true
    }

    fn barrier(&mut self, context: &mut Context<'_>) -> bool {
        let so_far = context.job.program[..self.at].iter();
        let number = 1 + so_far.filter(|step| matches!(step, Step::Barrier)).count() as u64;
        if self.entered < number && self.machine.is_caught_up() {
            self.entered = number;
            let node = self.node();
            let event = SchedulerEvent::Entered { node, barrier: number };
            context.out.push(Out::Scheduler(event));
        }
        self.passed >= number
    }

    fn send(
        &mut self,
        server: usize,
        to_send: ToSend,
        context: &mut Context<'_>,
    ) -> Result<(), String> {
        let ToSend { id, op, again, what, priority } = to_send;
        context.seen.resent += u64::from(again);
        if again && context.fault == Fault::NeverResends {
            return Ok(());
        }
        let begun = op.and_then(|op| self.begun.get(&op)).copied();
        let mut value = None;
        let what = match what {
            RequestBody::Init { shard, spec } => {
                let (rows, columns) = (spec.rows as u64, spec.columns as u64);
                Ask::Init { shard, dtype: spec.dtype as u8, rows, columns }
            }
            RequestBody::Push { shard: key, round } => {
                let shard = self.shard_of(key, context)?;
                if op.is_none() && !self.log.contains(&(shard, round)) {
                    return Err(format!("round {round} of shard {} is not in the log", key.0));
                }
                if op.is_some() && begun != Some(Begun::Push { shard, round }) {
                    return Err(format!("round {round} of shard {} was not begun", key.0));
                }
                context.seen.replayed += u64::from(op.is_none());
                if context.job.checkpoint {
                    self.log.insert((shard, round));
                }
                if op.is_none() && context.fault == Fault::SkipsReplay {
                    let what = Answer::Applied { version: 0, durable: 0 };
                    self.machine.on_reply(server, &Reply { id, what });
                    return Ok(());
                }
                let direct = context.job.is_direct(key);
                context.seen.direct += u64::from(direct);
                value = (!(direct && again)).then_some(Gradient {
                    worker: self.index,
                    shard: key,
                    round,
                });
                let carried = if direct { Carried::InPlace } else { Carried::Block(0) };
                Ask::Push { shard: key, round, value: carried, rows: None }
            }
            RequestBody::Pull { shard: key, round } => {
                let shard = self.shard_of(key, context)?;
                let Some(Begun::Pull { sparse, .. }) = begun else {
                    return Err(format!("a pull of shard {} was not begun", key.0));
                };
                self.shards[shard].pulling = true;
                context.pulled.insert((self.member.rank, id), round);
                let place =
                    RemotePlace { region: (key.0, 0), offset: 0, bytes: 16, on_device: false };
                let into = context.job.is_direct(key).then_some(place);
                Ask::Pull {
                    shard: key,
                    round,
                    priority,
                    into,
                    rows: sparse.then_some(Rows { count: 1, indices: Carried::Block(0) }),
                    wide: false,
                }
            }
            RequestBody::Control(control) => control.into(),
        };
        let payload = Payload::Request(Request { id, what }, value);
        context.out.push(Out::Message { to: self.servers[server], payload });
        Ok(())
    }

    fn shard_of(
        &self,
        key: tensorwire_kvstore::ShardKey,
        context: &Context<'_>,
    ) -> Result<usize, String> {
        let at = context.job.shards.iter().position(|plan| plan.key == key);
        at.ok_or_else(|| format!("shard {} is none", key.0))
    }

    fn on_event(
        &mut self,
        event: WorkerEvent,
        value: Option<Value>,
        context: &mut Context<'_>,
    ) -> Result<(), String> {
        match event {
            WorkerEvent::Placed { op, .. } => {
                op.map_or(Ok(()), |op| self.end(op, |begun| begun == Begun::Init))?;
            }
            WorkerEvent::Applied { op, shard, round, durable, .. } => {
                let at = self.shard_of(shard, context)?;
                if let Some(op) = op {
                    self.end(op, |begun| begun == Begun::Push { shard: at, round })?;
                }
                self.shards[at].folded = self.shards[at].folded.max(round);
                self.log.retain(|(shard, round)| {
                    *shard != at || *round > durable || (*round == 0 && durable == 0)
                });
            }
            WorkerEvent::Value { op, shard, version, .. } => {
                let at = self.shard_of(shard, context)?;
                let begun = self.begun.get(&op).copied();
                self.end(op, |begun| matches!(begun, Begun::Pull { shard, .. } if shard == at))?;
                let value = value.ok_or("a value without a value")?;
                if let Some(Begun::Pull { round, .. }) = begun {
                    self.look_at(at, round, version, &value)?;
                }
                self.shards[at].pulling = false;
                context.seen.pulls += 1;
            }
            WorkerEvent::Returned { op, body } => {
                let Some(Begun::Call { tag }) = self.begun.remove(&op) else {
                    return Err(format!("operation {op} was no call"));
                };
                if body != [tag as u8] {
                    return Err(format!("call {tag} returned {body:?}"));
                }
                self.called.push(tag);
                context.seen.calls += 1;
            }
            WorkerEvent::Done { op } => {
                if let Some(Begun::SetOptimizer { server }) = self.begun.get(&op) {
                    context.optimizers[*server] = true;
                }
                self.end(op, |begun| matches!(begun, Begun::SetOptimizer { .. } | Begun::Load))?;
            }
            WorkerEvent::Refused { why, .. } => {
                return Err(format!("worker {} was refused: {why}", self.index));
            }
            WorkerEvent::Unfit { .. } => return Err(format!("worker {}: {event:?}", self.index)),
        }
        Ok(())
    }

    /// Holds what a pull brought against what this worker did and saw.
    fn look_at(
        &mut self,
        at: usize,
        round: u64,
        version: u64,
        value: &Value,
    ) -> Result<(), String> {
        let shard = &mut self.shards[at];
        let own = value.rounds(self.index);
        let who = format!("worker {} sees version {version} of shard {at}", self.index);
        if value.version() != version {
            return Err(format!("{who}, which is {}", value.version()));
        }
        if own < round || own > shard.pushed {
            return Err(format!("{who} with {own} of its {round} rounds"));
        }
        if version < shard.seen {
            return Err(format!("{who} after {}", shard.seen));
        }
        shard.seen = version;
        Ok(())
    }

    fn end(&mut self, op: u64, is_it: impl Fn(Begun) -> bool) -> Result<(), String> {
        match self.begun.remove(&op) {
            Some(begun) if is_it(begun) => Ok(()),
            other => Err(format!("operation {op} ended as something else than {other:?}")),
        }
    }
}
