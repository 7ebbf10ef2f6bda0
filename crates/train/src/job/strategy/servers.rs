//! Variables on servers that are parts of the graph, a replica at each worker (Xue et al.). Synchronous: one plan over all
//! members. Asynchronous: the plan is that of one worker and the servers; each worker runs it at its own pace, and a server
//! runs its part once for each worker, all over the same variables.

use std::time::Duration;

use tensorwire_base::{Deadline, Rank};
use tensorwire_graph::Plan;
use tensorwire_launch::Member;
use tensorwire_memory::{Copies, CopyPurpose};
use tensorwire_nn::Program;
use tensorwire_runtime::{RunError, Session, run_sessions};

use super::{Connected, Strategy};
use crate::config::{ConfigError, TrainConfig};
use crate::job::trainer::Trainer;
use crate::job::worker::{Link, Worker};
use crate::job::{Part, SPIN, TrainError, cores, default_threads, kernel_choice};
use crate::open_part::{OpenSessions, PartOptions, SessionRanks, open_sessions};
use crate::rates::Rates;
use crate::report::{Polling, TrainReport};
use crate::topology::Topology;

pub(super) struct Servers;

impl Strategy for Servers {
    fn check(&self, config: &TrainConfig, plan: &Plan) -> Result<(), ConfigError> {
        config.exchange.check_plan(plan)
    }

    fn connect<'a>(&self, member: &'a Member, part: &'a Part) -> Result<Connected<'a>, TrainError> {
        let Part { config, topology, plan, .. } = part;
        let rank = member.rank();
        let crowded = member.members_here() > cores();
        let options = PartOptions {
            transport: config.transport,
            exchange: config.exchange,
            verbs: config.verbs.clone(),
            arrival: config.arrival,
            spin: if crowded { Duration::ZERO } else { SPIN },
            kernels: kernel_choice(config, &part.program),
            threads: config.threads.unwrap_or_else(|| default_threads(config, rank)),
            step_deadline: config.step_deadline(),
            timeline: config.trace.is_some(),
            dynamic_bytes_max: config.dynamic_bytes_max,
        };
        let mut open = open_sessions(member, plan, &sessions_of(topology, rank), options)?;
        let worker = topology.worker(rank);
        if topology.is_asynchronous() && worker.is_none() {
            return Ok(Connected::Serves(Box::new(move || serve(member, part, open))));
        }
        let (replicas, shard) = match worker {
            None => (0..0, 0),
            // fits: workers are few
            Some(worker) if topology.plans_one_worker() => (0..1, worker as usize),
            Some(worker) => (worker..worker + 1, 0),
        };
        let (session, kernels) = (open.sessions.remove(0), open.kernels.clone());
        let worker_zero = worker == Some(0);
        let opened = Worker::new(session, kernels, replicas, Box::new(Edges { member, open }));
        let worker = Worker { shard, concludes: worker_zero, ..opened };
        Ok(Connected::Steps(Box::new(worker)))
    }
}

/// Returns the sessions that a member runs.
fn sessions_of(topology: &Topology, rank: Rank) -> SessionRanks {
    SessionRanks { part: topology.part(rank), ranks: topology.sessions(rank) }
}

/// The edges to the other members.
struct Edges<'a> {
    member: &'a Member,
    open: OpenSessions,
}

impl Link for Edges<'_> {
    fn leave(&mut self, report: &mut TrainReport) -> Result<(), TrainError> {
        report.bytes_written = self.open.bytes_written();
        let mut messages = Copies::default();
        messages.add(CopyPurpose::Messages, self.open.bytes_copied());
        report.add_copies(&messages);
        Ok(self.open.close(Deadline::after(self.member.setup_patience()))?)
    }
}

/// A server's part where it has a session for each worker.
fn serve(member: &Member, part: &Part, mut open: OpenSessions) -> Result<TrainReport, TrainError> {
    let Part { config, program, plan, shape, rates, .. } = part;
    let session = &mut open.sessions[0];
    let trainer = Trainer::new(config, program, plan, shape, session, 0..0);
    trainer.initialise()?;
    let mut report = TrainReport { kernels: open.kernels.clone(), ..TrainReport::default() };
    report.add_copies(&trainer.carried.copies());
    let mut told = Ok(());
    serve_all(&mut open.sessions, shape.steps, rates, &mut |step| {
        // a launcher that is gone is noticed by the thread that watches it
        told = member.begin_step(step);
    })?;
    told?;
    report.polling = open.sessions.iter().map(|session| Polling::from(session.counters())).sum();
    // all gradients are in: worker 0 may have the variables
    open.sessions[0].run(Program::FETCH)?;
    open.sessions.iter().for_each(|session| report.add_copies(session.copies()));
    Edges { member, open }.leave(&mut report)?;
    Ok(report)
}

/// Serves `steps` of each worker, in whatever order their gradients come. `begin` is told of the furthest worker's steps.
fn serve_all(
    sessions: &mut [Session],
    steps: u64,
    rates: &Rates,
    begin: &mut dyn FnMut(u64),
) -> Result<(), RunError> {
    let mut begun = vec![0; sessions.len()];
    let mut furthest = 0;
    run_sessions(sessions, &mut |index, session| {
        if begun[index] == steps {
            return None;
        }
        begun[index] += 1;
        session.set_rate_factor(rates.factor(begun[index]));
        if begun[index] > furthest {
            furthest = begun[index];
            begin(furthest);
        }
        Some(Program::TRAIN)
    })
}
