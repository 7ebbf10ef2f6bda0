//! A simulated server: carries out what the state machine says, on symbolic values, and holds each action
//! against what must hold.

use std::collections::BTreeMap;

use tensorwire_fabric::Identity;
use tensorwire_kvstore::ShardKey;
use tensorwire_kvstore::message::{Answer, Ask, Carried, Reply, Request, RequestId};
use tensorwire_kvstore::proto::{
    Control, Mode, Server, ServerAction, ServerConfig, ServerState, Taken,
};
use tensorwire_kvstore::wire::RemotePlace;

use super::network::{Context, Out, Payload};
use super::plan::{Fault, Plan};
use super::value::{Gradient, Value};

/// What a snapshot file holds.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    /// A [`ServerState`] as bytes.
    pub(crate) state: Vec<u8>,
    pub(crate) values: BTreeMap<ShardKey, Value>,
    pub(crate) calls: Vec<(usize, u64)>,
    pub(crate) has_optimizer: bool,
    /// Of its server's life, how many came before.
    pub(crate) number: u64,
}

/// One life of a server.
#[derive(Debug)]
pub(crate) struct ServerSim {
    pub(crate) member: Identity,
    pub(crate) index: usize,
    workers: Vec<Identity>,
    machine: Server,
    shards: BTreeMap<ShardKey, Held>,
    /// Whom it was told to live.
    alive: Vec<bool>,
    has_optimizer: bool,
    /// Worker and tag of every call that it or those before it did.
    pub(crate) calls: Vec<(usize, u64)>,
    folds: u64,
    /// Requests that were given another number.
    aliases: u64,
    snapshots: u64,
}

/// Above all numbers of requests.
const ALIAS: u64 = 1 << 32;

#[derive(Debug)]
struct Held {
    weights: Value,
    slots: Vec<Option<Gradient>>,
    /// Rows that wait for their pull.
    rows: Vec<Option<RequestId>>,
    readers: usize,
}

/// A value that is leaving the weights: what it was when it began.
#[derive(Clone, Debug)]
pub(crate) struct Sending {
    pub(crate) shard: ShardKey,
    pub(crate) to: Identity,
    pub(crate) reply: Reply,
    pub(crate) value: Value,
}

impl Held {
    fn new(weights: Value, workers: usize) -> Held {
        Held { weights, slots: vec![None; workers], rows: vec![None; workers], readers: 0 }
    }
}

impl ServerSim {
    pub(crate) fn new(
        member: Identity,
        index: usize,
        (plan, fault): (&Plan, Fault),
        workers: Vec<Identity>,
    ) -> ServerSim {
        let machine = Server::new(config(index, plan, fault, &workers));
        ServerSim {
            member,
            index,
            machine,
            shards: BTreeMap::new(),
            alive: vec![true; workers.len()],
            has_optimizer: false,
            calls: Vec::new(),
            folds: 0,
            aliases: 0,
            snapshots: 0,
            workers,
        }
    }

    pub(crate) fn restored(
        member: Identity,
        index: usize,
        (plan, fault): (&Plan, Fault),
        workers: Vec<Identity>,
        snapshot: &Snapshot,
    ) -> ServerSim {
        let state: ServerState = postcard::from_bytes(&snapshot.state).unwrap();
        let (count, config) = (workers.len(), config(index, plan, fault, &workers));
        let mut server = ServerSim::new(member, index, (plan, fault), workers);
        let values = snapshot.values.iter();
        server.shards =
            values.map(|(key, value)| (*key, Held::new(value.clone(), count))).collect();
        server.machine = Server::restored(config, state);
        server.calls.clone_from(&snapshot.calls);
        server.has_optimizer = snapshot.has_optimizer;
        server
    }

    pub(crate) fn weights(&self, shard: ShardKey) -> Option<&Value> {
        self.shards.get(&shard).map(|held| &held.weights)
    }

    pub(crate) fn on_request(
        &mut self,
        from: Identity,
        request: &Request,
        value: Option<Gradient>,
        context: &mut Context<'_>,
    ) -> Result<(), String> {
        let mut request = request.clone();
        let worker = self.workers.iter().position(|worker| worker.rank == from.rank);
        let worker = worker.ok_or("a request from nowhere")?;
        let lives = self.workers[worker] == from;
        if let (Ask::Push { shard, value: Carried::InPlace, .. }, Some(value), true) =
            (&request.what, value, lives)
        {
            // it was written before the message came, whatever the server thinks of it
            self.store(*shard, worker, value)?;
        }
        let taken_for = self.spoil(worker, from, &mut request, context.fault);
        let taken = self.machine.on_request(taken_for, &request);
        if taken == Taken::Store && !(lives && self.alive[worker]) {
            return Err(format!("{from:?}, which is no live worker, was listened to"));
        }
        match request.what {
            Ask::Push { shard, value: Carried::Block(_), .. } if taken == Taken::Store => {
                let value = value.ok_or("a push without a value")?;
                self.store(shard, worker, value)?;
            }
            Ask::Pull { shard, .. } if taken == Taken::Store => {
                let held = self.shards.get_mut(&shard).ok_or("a pull of no shard was taken")?;
                held.rows[worker] = Some(request.id);
            }
            _ => {}
        }
        self.drain(context)
    }

    /// A value has left: what its receiver gets is what the weights are now.
    pub(crate) fn on_sent(
        &mut self,
        mut sending: Sending,
        context: &mut Context<'_>,
    ) -> Result<(), String> {
        let held = self.shards.get_mut(&sending.shard).ok_or("a value of no shard was sent")?;
        if held.weights != sending.value {
            return Err(format!("shard {} changed while it was being sent", sending.shard.0));
        }
        sending.value.clone_from(&held.weights);
        held.readers -= 1;
        if context.fault != Fault::IgnoresReaders {
            self.machine.on_sent(sending.shard);
        }
        let Sending { to, reply, value, .. } = sending;
        context.out.push(Out::Message { to, payload: Payload::Reply(reply, Some(value)) });
        self.drain(context)
    }

    pub(crate) fn on_world(
        &mut self,
        alive: &[u32],
        context: &mut Context<'_>,
    ) -> Result<(), String> {
        let numbers = 0u32..;
        for (flag, worker) in self.alive.iter_mut().zip(numbers) {
            *flag &= alive.contains(&worker);
        }
        let members = self.workers.iter().copied().zip(&self.alive);
        let alive: Vec<Identity> = members.filter(|(_, live)| **live).map(|(m, _)| m).collect();
        self.machine.on_world(&alive);
        self.drain(context)
    }

    pub(crate) fn on_durable(&mut self, snapshot: &Snapshot) {
        self.machine.on_snapshot(&postcard::from_bytes(&snapshot.state).unwrap());
    }

    fn snapshot(&mut self) -> Snapshot {
        self.snapshots += 1;
        Snapshot {
            state: postcard::to_stdvec(&self.machine.state()).unwrap(),
            values: self.shards.iter().map(|(key, held)| (*key, held.weights.clone())).collect(),
            calls: self.calls.clone(),
            has_optimizer: self.has_optimizer,
            number: self.snapshots,
        }
    }

    /// Breaks what the seed says is broken.
    fn spoil(
        &mut self,
        worker: usize,
        from: Identity,
        request: &mut Request,
        fault: Fault,
    ) -> Identity {
        let repeated = |server: &ServerSim, shard: ShardKey, round: u64| {
            let rounds = server.shards.get(&shard).map(|held| held.weights.rounds(worker));
            rounds.filter(|rounds| round > 0 && round <= *rounds)
        };
        match (&mut request.what, fault) {
            (Ask::Push { shard, round, .. }, Fault::CountsRepeatedPushes) => {
                if let Some(rounds) = repeated(self, *shard, *round) {
                    *round = rounds + 1;
                }
            }
            (Ask::Call { .. }, Fault::RepeatsCalls) => {
                // no number is remembered: every one is new
                self.aliases += 1;
                request.id.0 += self.aliases * ALIAS;
            }
            (Ask::Pull { into, .. }, Fault::RepeatsDirectAnswers) => *into = None,
            (_, Fault::AdmitsFormerLives) => return self.workers[worker],
            _ => {}
        }
        from
    }

    fn store(&mut self, shard: ShardKey, worker: usize, value: Gradient) -> Result<(), String> {
        let held = self.shards.get_mut(&shard).ok_or("a push to no shard was taken")?;
        let waits = held.slots[worker].filter(|there| there.round > held.weights.rounds(worker));
        if let Some(there) = waits.filter(|there| *there != value) {
            return Err(format!("{there:?} waits in its slot and {value:?} is written over it"));
        }
        held.slots[worker] = Some(value);
        Ok(())
    }

    fn drain(&mut self, context: &mut Context<'_>) -> Result<(), String> {
        while let Some(action) = self.machine.poll() {
            self.carry_out(action, context)?;
        }
        if context.job.checkpoint && self.folds >= context.job.snapshot_every {
            self.folds = 0;
            let snapshot = self.snapshot();
            if context.fault == Fault::PromisesSnapshots {
                self.on_durable(&snapshot);
            }
            context.out.push(Out::Snapshot(snapshot));
        }
        Ok(())
    }

    fn carry_out(&mut self, action: ServerAction, context: &mut Context<'_>) -> Result<(), String> {
        match action {
            ServerAction::Create { shard, .. } => {
                let held = Held::new(Value::default(), self.workers.len());
                match self.shards.insert(shard, held) {
                    None => Ok(()),
                    Some(_) => Err(format!("shard {} is made twice", shard.0)),
                }
            }
            ServerAction::Place { to, id, shard, rounds } => {
                let direct = context.job.is_direct(shard);
                let place = RemotePlace {
                    region: (shard.0, to.rank.0.into()),
                    offset: 0,
                    bytes: 8,
                    on_device: false,
                };
                let what = Answer::Placed { place: direct.then_some(place), rounds };
                let payload = Payload::Reply(Reply { id, what }, None);
                context.out.push(Out::Message { to, payload });
                Ok(())
            }
            ServerAction::Seed { shard, worker } => {
                let held = self.shards.get_mut(&shard).ok_or("a seed of no shard")?;
                let value = held.slots[worker].ok_or("a seed without a value")?;
                let right = value == Gradient { worker, shard, round: 0 };
                if !right || held.weights.first.replace(value).is_some() {
                    return Err(format!("shard {} is seeded again, or by {value:?}", shard.0));
                }
                Ok(())
            }
            ServerAction::Apply { shard, workers, version } => {
                self.apply(shard, &workers, version, context)
            }
            ServerAction::Reply { to, mut reply } => {
                reply.id.0 %= ALIAS;
                if matches!(reply.what, Answer::Refused { .. }) {
                    context.seen.refused += 1;
                }
                context.out.push(Out::Message { to, payload: Payload::Reply(reply, None) });
                Ok(())
            }
            ServerAction::Send { to, id, shard, version, into, sparse, .. } => {
                // where the fault is that a direct answer is taken for one in a message, it stays direct
                let blind = context.fault == Fault::RepeatsDirectAnswers;
                let direct = into.is_some() || (blind && context.job.is_direct(shard));
                let value = if direct { Carried::InPlace } else { Carried::Block(0) };
                let reply = Reply { id, what: Answer::Value { version, value } };
                self.send(to, reply, shard, sparse, context)
            }
            ServerAction::Control { from, id, what } => self.control(from, id, what, context),
        }
    }

    fn apply(
        &mut self,
        shard: ShardKey,
        workers: &[usize],
        version: u64,
        context: &mut Context<'_>,
    ) -> Result<(), String> {
        let held = self.shards.get_mut(&shard).ok_or("a fold of no shard")?;
        let gradients: Option<Vec<Gradient>> =
            workers.iter().map(|worker| held.slots[*worker]).collect();
        held.weights.apply(shard, &gradients.ok_or("a fold of an empty slot")?)?;
        if held.weights.version() != version {
            return Err(format!("version {version} of shard {} is none", shard.0));
        }
        if held.readers > 0 && context.fault != Fault::IgnoresReaders {
            return Err(format!("shard {} is folded under a reader", shard.0));
        }
        let whole = (0..self.workers.len()).all(|w| !self.alive[w] || workers.contains(&w));
        match context.job.mode {
            Mode::Sync if !whole => {
                return Err(format!("version {version} of shard {} lacks a worker", shard.0));
            }
            Mode::Sync if !workers.is_sorted_by(|a, b| a < b) => {
                return Err(format!("version {version} of shard {} is out of order", shard.0));
            }
            _ => {}
        }
        if context.optimizers[self.index] && !self.has_optimizer {
            return Err(format!("version {version} of shard {} is made by no optimizer", shard.0));
        }
        self.folds += 1;
        context.seen.folds += 1;
        Ok(())
    }

    fn send(
        &mut self,
        to: Identity,
        reply: Reply,
        shard: ShardKey,
        sparse: bool,
        context: &mut Context<'_>,
    ) -> Result<(), String> {
        let held = self.shards.get_mut(&shard).ok_or("an answer of no shard")?;
        let worker = self.workers.iter().position(|member| *member == to);
        let worker = worker.ok_or("an answer to nobody")?;
        if sparse && held.rows[worker].take() != Some(reply.id) {
            return Err(format!("rows of shard {} are not those asked for", shard.0));
        }
        if held.weights.first.is_none() {
            return Err(format!("shard {} is pulled before it has a value", shard.0));
        }
        if let Mode::Async { max_delay: Some(delay) } = context.job.mode {
            // what was asked for is checked by who gets it; here, that nobody lags behind it
            let own = context.pulled.get(&(to.rank, reply.id)).copied().unwrap_or(0);
            let slowest = (0..self.workers.len()).filter(|worker| self.alive[*worker]);
            let slowest = slowest.map(|worker| held.weights.rounds(worker)).min();
            if slowest.is_some_and(|slowest| slowest + delay < own) {
                return Err(format!(
                    "worker {worker} is answered {own} rounds, {slowest:?} are in"
                ));
            }
        }
        held.readers += 1;
        let value = held.weights.clone();
        if context.fault == Fault::IgnoresReaders {
            self.machine.on_sent(shard);
        }
        context.out.push(Out::Sending(Sending { shard, to, reply, value }));
        Ok(())
    }

    fn control(
        &mut self,
        from: Identity,
        id: RequestId,
        what: Control,
        context: &mut Context<'_>,
    ) -> Result<(), String> {
        let answer = match what {
            Control::Call { head, body } => {
                let worker = self.workers.iter().position(|member| *member == from);
                let call = (worker.ok_or("a call of nobody")?, u64::from(head));
                if self.calls.contains(&call) {
                    return Err(format!("call {call:?} is done twice"));
                }
                self.calls.push(call);
                Answer::Returned { body }
            }
            Control::SetOptimizer { .. } => {
                self.has_optimizer = true;
                Answer::Done
            }
            Control::Save { .. } => Answer::Done,
            Control::Load { .. } => {
                if self.shards.values().any(|held| held.readers > 0) {
                    return Err("weights are loaded under a reader".to_owned());
                }
                Answer::Done
            }
        };
        let must_last = answer == Answer::Done && context.job.checkpoint;
        self.machine.on_done(from, id, answer);
        if must_last {
            // before the answer goes out, so that nobody relies on what a replacement would not know
            let snapshot = self.snapshot();
            self.on_durable(&snapshot);
            context.disk[self.index].push((self.member, snapshot));
        }
        Ok(())
    }
}

fn config(index: usize, plan: &Plan, fault: Fault, workers: &[Identity]) -> ServerConfig {
    let first = index as u64 * 1000;
    let mode = match (plan.mode, fault) {
        (Mode::Sync, Fault::FoldsAlone) => Mode::Async { max_delay: None },
        (Mode::Async { .. }, Fault::IgnoresDelay) => Mode::Async { max_delay: None },
        (mode, _) => mode,
    };
    ServerConfig { mode, workers: workers.to_vec(), range: first..first + 1000 }
}
