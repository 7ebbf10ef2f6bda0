//! A simulated job: one scheduler, its workers and servers, and the network, the clock and the deaths around
//! them, all from one seed.

mod ends;
mod event;

use std::collections::{BTreeSet, BinaryHeap, HashMap};

use tensorwire_base::{Incarnation, Rank};
use tensorwire_fabric::Identity;
use tensorwire_kvstore::message::RequestId;
use tensorwire_kvstore::proto::{Scheduler, SchedulerAction, SchedulerEvent, SchedulerOptions};
use tensorwire_testkit::random::Random;

use super::network::{Context, Note, Out, Payload, Seen};
use super::plan::{Death, Fault, Plan, Victim};
use super::server::{ServerSim, Snapshot};
use super::worker::WorkerSim;
use event::{Entry, Event};

/// A job that is not over by then is stuck: a death is noticed within seconds, the rest takes less.
const TIME_MAX_MS: u64 = 30_000;
const HEARTBEAT_MS: u64 = 1_000;
const LIVENESS_MS: u64 = 3_500;
const REPLACEMENTS_MAX: u32 = 3;

#[derive(Debug)]
enum Does {
    Work(Box<WorkerSim>),
    Serve(Box<ServerSim>),
}

/// A node's process.
#[derive(Debug)]
struct Process {
    does: Does,
    member: Identity,
    is_dead: bool,
    /// It does nothing any more, and nobody is told.
    hangs: bool,
    joined: bool,
}

/// A job under way.
#[derive(Debug)]
pub(crate) struct Job {
    plan: Plan,
    fault: Fault,
    random: Random,
    now_ms: u64,
    events: u64,
    queue: BinaryHeap<Entry>,
    numbers: u64,
    scheduler: Scheduler,
    /// By rank; a place without a process is a replacement that is not up yet.
    processes: Vec<Option<Process>>,
    workers: Vec<Identity>,
    /// When the last message between two nodes, or a node and the scheduler, arrives.
    last_ms: HashMap<(u32, u32), u64>,
    optimizers: Vec<bool>,
    pulled: HashMap<(Rank, RequestId), u64>,
    disk: Vec<Vec<(Identity, Snapshot)>>,
    released: u64,
    /// Ranks that the scheduler was told of.
    joined: BTreeSet<u32>,
    /// Workers that have done their part.
    left: usize,
    end: Option<Rank>,
    /// A server died when a worker had left already, so that nobody could tell its replacement everything.
    died_late: Vec<bool>,
    seen: Seen,
}

/// The scheduler's end of a control connection.
const LAUNCHER: u32 = u32::MAX;

impl Process {
    fn new(does: Does, member: Identity) -> Process {
        Process { does, member, is_dead: false, hangs: false, joined: false }
    }
}

fn node(member: Identity) -> Identity {
    Identity { rank: member.rank, incarnation: member.incarnation }
}

impl Job {
    pub(crate) fn new(seed: u64, fault: Fault) -> Job {
        let mut random = Random::new(seed);
        let plan = Plan::new(&mut random);
        let (workers, servers) = (plan.workers as u32, plan.servers as u32);
        let member = |rank: u32, random: &mut Random| Identity {
            rank: Rank(rank),
            incarnation: Incarnation(random.draw()),
        };
        let members: Vec<Identity> =
            (0..workers + servers).map(|r| member(r, &mut random)).collect();
        let (of_workers, of_servers) = members.split_at(plan.workers);
        let work = of_workers.iter().zip(0..).map(|(member, index)| {
            Does::Work(Box::new(WorkerSim::new(*member, index, &plan, of_servers.to_vec())))
        });
        let serve = of_servers.iter().zip(0..).map(|(member, index)| {
            Does::Serve(Box::new(ServerSim::new(
                *member,
                index,
                (&plan, fault),
                of_workers.to_vec(),
            )))
        });
        let process = |(does, member)| Some(Process::new(does, member));
        let processes = work.chain(serve).zip(members.iter().copied()).map(process).collect();
        let options = SchedulerOptions {
            elastic: plan.elastic,
            replace_servers: plan.checkpoint,
            replacements_max: REPLACEMENTS_MAX,
            liveness_ms: Some(LIVENESS_MS),
            ..SchedulerOptions::new(workers, servers)
        };
        let mut job = Job {
            scheduler: Scheduler::new(options),
            processes,
            workers: of_workers.to_vec(),
            optimizers: vec![false; plan.servers],
            disk: vec![Vec::new(); plan.servers],
            died_late: vec![false; plan.servers],
            now_ms: 0,
            events: 0,
            queue: BinaryHeap::new(),
            numbers: 0,
            last_ms: HashMap::new(),
            pulled: HashMap::new(),
            released: 0,
            joined: BTreeSet::new(),
            left: 0,
            end: None,
            seen: Seen::default(),
            plan,
            fault,
            random,
        };
        for rank in 0..workers + servers {
            let at_ms = job.delay_ms();
            job.schedule(at_ms, Event::Join { rank: Rank(rank) });
        }
        job.schedule(HEARTBEAT_MS, Event::Tick);
        job
    }

    /// Runs the job to its end.
    pub(crate) fn run(mut self) -> Result<Seen, String> {
        let ran = self.run_on();
        ran.map_err(|what| format!("at {} ms, {what}\n{:?}", self.now_ms, self.plan))?;
        Ok(self.seen)
    }

    fn run_on(&mut self) -> Result<(), String> {
        while let Some(Entry { at_ms, event, .. }) = self.queue.pop() {
            self.now_ms = at_ms;
            self.events += 1;
            self.strike()?;
            self.seen.note(at_ms);
            self.take(event)?;
            if let Some(rank) = self.end {
                return self.check_end(rank);
            }
            if self.is_finished() {
                return self.check_finished();
            }
            if at_ms > TIME_MAX_MS {
                return self.check_stuck();
            }
        }
        Err("nothing happens any more".to_owned())
    }

    fn take(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Join { rank } => self.join(rank),
            Event::Arrives { from, to, payload } => self.arrives(from, to, payload),
            Event::Left { server, sending } => {
                self.serve(server, |server, context| server.on_sent(sending, context))
            }
            Event::Durable { server, snapshot } => self.durable(server, snapshot),
            Event::ToScheduler(event) => self.schedule_on(event),
            Event::FromScheduler { to, note } => self.noted(to, &note),
            Event::Timer { rank } => self.work(rank, |worker, context| worker.on_timer(context)),
            Event::Heartbeat { rank } => {
                if let Some(node) = self.up(rank).map(|process| node(process.member)) {
                    self.tell_scheduler(rank, SchedulerEvent::Heard { node });
                    self.schedule(HEARTBEAT_MS, Event::Heartbeat { rank });
                }
                Ok(())
            }
            Event::Tick => {
                self.schedule(HEARTBEAT_MS / 2, Event::Tick);
                self.schedule_on(SchedulerEvent::Tick)
            }
            Event::Start { server, rank } => self.start(server as usize, rank),
        }
    }

    fn join(&mut self, rank: Rank) -> Result<(), String> {
        let Some(process) = self.up(rank) else {
            return Ok(());
        };
        process.joined = true;
        let node = node(process.member);
        self.tell_scheduler(rank, SchedulerEvent::Joined { node });
        self.schedule(HEARTBEAT_MS, Event::Heartbeat { rank });
        self.work(rank, |worker, context| worker.advance(context))
    }

    fn arrives(&mut self, from: Identity, to: Identity, payload: Payload) -> Result<(), String> {
        let is_there = self.up(to.rank).is_some_and(|process| process.member == to);
        if !is_there {
            return Ok(());
        }
        self.seen.note(u64::from(to.rank.0));
        match payload {
            Payload::Request(request, value) => {
                self.seen.note(request.id.0);
                self.serve(to.rank, |server, context| {
                    server.on_request(from, &request, value, context)
                })
            }
            Payload::Reply(reply, value) => {
                self.seen.note(reply.id.0);
                self.work(to.rank, |worker, context| worker.on_reply(from, &reply, value, context))
            }
        }
    }

    fn durable(&mut self, server: Rank, snapshot: Snapshot) -> Result<(), String> {
        let up = self.processes[server.index()].as_mut().filter(|process| !process.is_dead);
        let Some(Process { does: Does::Serve(sim), hangs: false, .. }) = up else {
            return Ok(());
        };
        let (index, member) = (sim.index, sim.member);
        // one that was begun earlier and took longer must not take a later one's place
        let last = self.disk[index].last().filter(|(life, _)| *life == member);
        if last.is_none_or(|(_, last)| last.number < snapshot.number) {
            sim.on_durable(&snapshot);
            self.disk[index].push((member, snapshot));
        }
        Ok(())
    }

    fn noted(&mut self, to: Rank, note: &Note) -> Result<(), String> {
        match note {
            Note::World { alive } => {
                self.serve(to, |server, context| server.on_world(alive, context))?;
            }
            Note::Release { .. } | Note::Replaced { .. } => {}
        }
        self.work(to, |worker, context| worker.on_note(note, context))
    }

    /// Another process takes over a server.
    fn start(&mut self, index: usize, rank: Rank) -> Result<(), String> {
        let member = Identity { rank, incarnation: Incarnation(self.random.draw()) };
        let workers = self.workers.clone();
        let server = match self.disk[index].last() {
            Some((_, last)) => {
                let mut snapshot = last.clone();
                let earlier = self.disk[index].iter().rev().nth(1);
                if let Some((_, earlier)) = earlier.filter(|_| self.fault == Fault::MixesSnapshots)
                {
                    for (key, value) in &mut snapshot.values {
                        if let Some(earlier) = earlier.values.get(key) {
                            value.clone_from(earlier);
                        }
                    }
                }
                ServerSim::restored(member, index, (&self.plan, self.fault), workers, &snapshot)
            }
            None => {
                self.seen.replaced_from_nothing += 1;
                ServerSim::new(member, index, (&self.plan, self.fault), workers)
            }
        };
        self.seen.replaced += 1;
        self.processes[rank.index()] = Some(Process::new(Does::Serve(Box::new(server)), member));
        self.join(rank)
    }

    fn schedule_on(&mut self, event: SchedulerEvent) -> Result<(), String> {
        if let SchedulerEvent::Joined { node } = &event {
            self.joined.insert(node.rank.0);
        }
        let mut actions = Vec::new();
        self.scheduler.handle(self.now_ms, event, &mut actions);
        actions.into_iter().try_for_each(|action| self.obey(action))
    }

    fn obey(&mut self, action: SchedulerAction) -> Result<(), String> {
        match action {
            SchedulerAction::Release { barrier, to } => {
                self.check_release(barrier, &to)?;
                self.tell(&to, &Note::Release { barrier });
            }
            SchedulerAction::World { alive, to, .. } => {
                // not by a worker that has done its part, and not told again to a replacement
                let shrunk = alive.len() + self.left < self.plan.workers && to.len() > 1;
                self.seen.shrunk += u64::from(shrunk);
                self.tell(&to, &Note::World { alive });
            }
            SchedulerAction::GiveUp { rank, .. } => {
                let process = self.processes[rank.index()].as_ref();
                if !process.is_some_and(|process| process.hangs) {
                    return Err(format!("rank {rank} is given up and did nothing wrong"));
                }
                self.kill(rank);
            }
            SchedulerAction::Replace { server, rank, .. } => {
                self.processes.resize_with(rank.index() + 1, || None);
                let after_ms = 20 + self.delay_ms();
                self.schedule(after_ms, Event::Start { server, rank });
            }
            SchedulerAction::Spare { rank } => {
                if !self.scheduler.workers().is_empty() {
                    return Err(format!("rank {rank} is lost, and workers need it"));
                }
            }
            SchedulerAction::Replaced { server, node, to, .. } => {
                self.tell(&to, &Note::Replaced { server, node });
            }
            SchedulerAction::End { rank, .. } => self.end = Some(rank),
        }
        Ok(())
    }

    /// A barrier opens once, in order, and when every worker that lives is there.
    fn check_release(&mut self, barrier: u64, to: &[Rank]) -> Result<(), String> {
        if barrier == self.released + 1 {
            self.released = barrier;
            self.seen.barriers += 1;
        } else if barrier > self.released || to.len() != 1 {
            return Err(format!("barrier {barrier} opens after {}", self.released));
        }
        for process in self.processes.iter().flatten().filter(|process| !process.is_dead) {
            if let Does::Work(worker) = &process.does
                && worker.entered < barrier
            {
                let rank = process.member.rank;
                return Err(format!("barrier {barrier} opens and rank {rank} is not there"));
            }
        }
        Ok(())
    }

    /// Ends who is to die after so many events.
    fn strike(&mut self) -> Result<(), String> {
        let now = self.events;
        for at in 0..self.plan.deaths.len() {
            let Death { at, victim, hangs } = self.plan.deaths[at];
            if at != now {
                continue;
            }
            let is_victim = |process: &&mut Process| match (&process.does, victim) {
                (Does::Work(worker), Victim::Worker(index)) => {
                    process.member == self.workers[index] && !worker.left
                }
                (Does::Serve(server), Victim::Server(index)) => server.index == index,
                _ => false,
            };
            let up = |process: &&mut Process| !process.is_dead && !process.hangs && process.joined;
            let found = self.processes.iter_mut().flatten().filter(up).find(is_victim);
            let Some(process) = found else {
                continue;
            };
            match &process.does {
                Does::Work(_) => self.seen.worker_deaths += 1,
                Does::Serve(_) => self.seen.server_deaths += 1,
            }
            let rank = process.member.rank;
            if hangs {
                process.hangs = true;
                self.seen.hung += 1;
            } else {
                self.kill(rank);
                let why = "killed".to_owned();
                self.tell_scheduler(rank, SchedulerEvent::Died { rank, why });
            }
            self.note_death_after_leave(rank);
        }
        Ok(())
    }

    fn kill(&mut self, rank: Rank) {
        if let Some(process) = &mut self.processes[rank.index()] {
            process.is_dead = true;
        }
    }

    /// A server that dies when a worker has left has nobody to tell its replacement of that worker's pushes.
    fn note_death_after_leave(&mut self, rank: Rank) {
        if let Some(Process { does: Does::Serve(server), .. }) = &self.processes[rank.index()] {
            self.died_late[server.index] |= self.left > 0;
        }
    }

    /// The same for one that died before, where the worker learnt of it after it came to its last barrier.
    fn note_leave(&mut self, rank: Rank) {
        self.left += 1;
        let Some(Process { does: Does::Work(worker), .. }) = &self.processes[rank.index()] else {
            return;
        };
        for (late, known) in self.died_late.iter_mut().zip(worker.servers()) {
            let process = self.processes[known.rank.index()].as_ref();
            let is_gone = process.is_none_or(|process| process.is_dead || process.hangs);
            *late |= is_gone || !worker.is_caught_up();
        }
    }

    fn up(&mut self, rank: Rank) -> Option<&mut Process> {
        let process = self.processes.get_mut(rank.index())?.as_mut()?;
        (!process.is_dead && !process.hangs).then_some(process)
    }

    fn work(
        &mut self,
        rank: Rank,
        step: impl FnOnce(&mut WorkerSim, &mut Context<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        self.with(rank, |does, context| match does {
            // who has left listens no more
            Does::Work(worker) if !worker.left => step(worker, context),
            Does::Work(_) | Does::Serve(_) => Ok(()),
        })
    }

    fn serve(
        &mut self,
        rank: Rank,
        step: impl FnOnce(&mut ServerSim, &mut Context<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        self.with(rank, |does, context| match does {
            Does::Serve(server) => step(server, context),
            Does::Work(_) => Ok(()),
        })
    }

    fn with(
        &mut self,
        rank: Rank,
        step: impl FnOnce(&mut Does, &mut Context<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let process = self.processes.get_mut(rank.index()).and_then(Option::as_mut);
        let Some(process) = process.filter(|process| !process.is_dead && !process.hangs) else {
            return Ok(());
        };
        let mut context = Context {
            job: &self.plan,
            fault: self.fault,
            now_ms: self.now_ms,
            out: Vec::new(),
            seen: &mut self.seen,
            optimizers: &mut self.optimizers,
            pulled: &mut self.pulled,
            disk: &mut self.disk,
        };
        let done = step(&mut process.does, &mut context);
        let (out, from) = (context.out, process.member);
        done?;
        out.into_iter().for_each(|out| self.put_out(from, out));
        Ok(())
    }

    fn put_out(&mut self, from: Identity, out: Out) {
        match out {
            Out::Message { to, payload } => self.send(from, to, payload),
            Out::Sending(sending) => {
                let after_ms = self.random.below(self.plan.delay_max_ms) as u64;
                self.schedule(after_ms, Event::Left { server: from.rank, sending });
            }
            Out::Snapshot(snapshot) => {
                let link = (from.rank.0, from.rank.0);
                let after_ms = 5 + self.random.below(100) as u64;
                let at_ms = self.in_order(link, after_ms);
                self.schedule_at(at_ms, Event::Durable { server: from.rank, snapshot });
            }
            Out::Scheduler(event) => {
                let lie = matches!(event, SchedulerEvent::Entered { .. })
                    && self.fault == Fault::LiesAtBarriers;
                if let (SchedulerEvent::Entered { barrier, .. }, true) = (&event, lie) {
                    let (node, barrier) = (node(self.workers[0]), *barrier);
                    self.tell_scheduler(from.rank, SchedulerEvent::Entered { node, barrier });
                }
                if matches!(event, SchedulerEvent::Left { .. }) {
                    self.note_leave(from.rank);
                }
                self.tell_scheduler(from.rank, event);
            }
            Out::Timer(at_ms) => self.schedule_at(at_ms, Event::Timer { rank: from.rank }),
        }
    }

    /// What the network does to a message.
    fn send(&mut self, from: Identity, to: Identity, payload: Payload) {
        self.seen.messages += 1;
        let is_request = matches!(payload, Payload::Request(..));
        if is_request && self.random.happens(self.plan.forged) {
            self.seen.forged += 1;
            let former = Identity { incarnation: Incarnation(from.incarnation.0 ^ 1), ..from };
            self.deliver(former, to, payload.clone());
        }
        if self.random.happens(self.plan.repeated) {
            self.seen.repeated += 1;
            self.deliver(from, to, payload.clone());
        }
        if self.random.happens(self.plan.lost) {
            self.seen.lost += 1;
        } else {
            self.deliver(from, to, payload);
        }
    }

    fn deliver(&mut self, from: Identity, to: Identity, payload: Payload) {
        let delay_ms = self.delay_ms();
        let at_ms = match self.plan.steady {
            true => self.in_order((from.rank.0, to.rank.0), delay_ms),
            false => self.now_ms + delay_ms,
        };
        self.schedule_at(at_ms, Event::Arrives { from, to, payload });
    }

    /// The control connection keeps order and loses nothing; now and then something comes twice.
    fn tell_scheduler(&mut self, from: Rank, event: SchedulerEvent) {
        for _ in 0..self.times() {
            let delay_ms = self.delay_ms();
            let at_ms = self.in_order((from.0, LAUNCHER), delay_ms);
            self.schedule_at(at_ms, Event::ToScheduler(event.clone()));
        }
    }

    fn tell(&mut self, to: &[Rank], note: &Note) {
        for to in to {
            for _ in 0..self.times() {
                let delay_ms = self.delay_ms();
                let at_ms = self.in_order((LAUNCHER, to.0), delay_ms);
                self.schedule_at(at_ms, Event::FromScheduler { to: *to, note: note.clone() });
            }
        }
    }

    fn times(&mut self) -> usize {
        1 + usize::from(self.random.happens(5))
    }

    fn delay_ms(&mut self) -> u64 {
        self.random.below(self.plan.delay_max_ms) as u64
    }

    /// When something arrives that leaves now, behind what left before it.
    fn in_order(&mut self, link: (u32, u32), delay_ms: u64) -> u64 {
        let last_ms = self.last_ms.entry(link).or_default();
        *last_ms = (*last_ms).max(self.now_ms + delay_ms);
        *last_ms
    }

    fn schedule(&mut self, after_ms: u64, event: Event) {
        self.schedule_at(self.now_ms + after_ms, event);
    }

    fn schedule_at(&mut self, at_ms: u64, event: Event) {
        self.numbers += 1;
        self.queue.push(Entry { at_ms, number: self.numbers, event });
    }
}
