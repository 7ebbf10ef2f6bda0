//! Variables on servers that are parts of the graph, a replica at each worker (Xue et al.). Synchronous: one plan over all
//! members. Asynchronous: the plan is that of one worker and the servers; each worker runs it at its own pace, and a server
//! runs its part once for each worker, all over the same variables.

use std::time::Duration;

use tensorwire_base::{Deadline, Rank};
use tensorwire_graph::{Plan, PlanOptions};
use tensorwire_kernels::SharedDevice;
use tensorwire_launch::{Member, StepWord};
use tensorwire_memory::{Copies, CopyPurpose};
use tensorwire_nn::Program;
use tensorwire_runtime::{Session, run_sessions};

use super::{Connected, SharedBy, Strategy};
use crate::carried::Carried;
use crate::checkpoint::{CheckpointFolder, own_variables};
use crate::config::{ConfigError, SendOrder, TrainConfig};
use crate::job::computing::{open_device, verbs_options};
use crate::job::keeping::PartFiles;
use crate::job::trainer::Trainer;
use crate::job::whereabouts::Phase;
use crate::job::worker::{Link, Worker};
use crate::job::{JobShape, Part, SPIN, TrainError, cores, default_threads, kernel_choice};
use crate::open_part::{OpenSessions, PartOptions, SessionRanks, open_sessions};
use crate::report::{Polling, TrainReport};
use crate::run::telling_saver;
use crate::topology::Topology;

pub(super) struct Servers;

impl Strategy for Servers {
    /// Where all make the same steps, weights cross to a host once, whoever needs them there.
    fn plan_options(&self, config: &TrainConfig, topology: &Topology) -> PlanOptions {
        let options = config.exchange.plan_options(config.transport, &config.host_numbers());
        PlanOptions { relays: !topology.is_asynchronous(), ..options.shared_by(topology) }
    }

    fn check(&self, config: &TrainConfig, plan: &Plan) -> Result<(), ConfigError> {
        config.exchange.check_plan(plan)
    }

    fn connect<'a>(&self, member: &'a Member, part: &'a Part) -> Result<Connected<'a>, TrainError> {
        let Part { topology, plan, .. } = part;
        let rank = member.rank();
        let options = part_options(member, part, open_device(part, rank)?);
        let mut open = open_sessions(member, plan, &sessions_of(topology, rank), options)?;
        if part.config.send_order == SendOrder::Ready {
            open.sessions.iter_mut().for_each(Session::send_as_changed);
        }
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
        let registered_bytes = registered_bytes(&open);
        let (session, kernels) = (open.sessions.remove(0), open.kernels.clone());
        let worker_zero = worker == Some(0);
        let edges = Edges { member, open, registered_bytes };
        let opened = Worker::new(session, kernels, replicas, Box::new(edges));
        let worker = Worker { shard, concludes: worker_zero, ..opened };
        Ok(Connected::Steps(Box::new(worker)))
    }
}

/// Returns how a member opens its part, which computes on this device what the plan has on one.
pub(super) fn part_options(
    member: &Member,
    part: &Part,
    device: Option<SharedDevice>,
) -> PartOptions {
    let Part { config, .. } = part;
    let rank = member.rank();
    let crowded = member.cores_shared_by() > cores();
    PartOptions {
        transport: config.transport,
        exchange: config.exchange,
        verbs: verbs_options(part, rank),
        arrival: config.arrival,
        encrypt: config.encrypt,
        spin: if crowded { Duration::ZERO } else { SPIN },
        kernels: kernel_choice(config, &part.program),
        threads: config.threads.unwrap_or_else(|| default_threads(config, rank)),
        step_deadline: config.step_deadline(),
        timeline: config.trace.is_some(),
        dynamic_bytes_max: config.dynamic_bytes_max,
        device,
        devices_apart: config.devices_apart,
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
    /// Of the sessions' arenas.
    registered_bytes: u64,
}

/// What peers may touch of the arenas of sessions.
fn registered_bytes(open: &OpenSessions) -> u64 {
    open.sessions.iter().map(|session| session.part().memory.registered_bytes as u64).sum()
}

impl Link for Edges<'_> {
    fn bytes_written(&self) -> u64 {
        self.open.bytes_written()
    }

    fn leave(&mut self, report: &mut TrainReport) -> Result<(), TrainError> {
        report.bytes_written = self.open.bytes_written();
        report.registered_bytes += self.registered_bytes;
        let mut messages = Copies::default();
        messages.add(CopyPurpose::Messages, self.open.bytes_copied());
        report.add_copies(&messages);
        Ok(self.open.close(Deadline::after(self.member.setup_patience()))?)
    }
}

/// A server's part where it has a session for each worker.
fn serve(member: &Member, part: &Part, mut open: OpenSessions) -> Result<TrainReport, TrainError> {
    let Part { config, topology, program, plan, shape, resumed, shard: file, .. } = part;
    part.standing.has_sessions(&open.sessions);
    let session = &mut open.sessions[0];
    let own = own_variables(&session.part().graph, program, topology, None);
    let to = config.checkpoint.as_ref().zip(file.as_ref());
    // it has no moment to look what became of a file: sessions run
    let saver = to.map(|(to, file)| {
        let folder = CheckpointFolder::new(&to.path).of_steps(shape.steps);
        telling_saver(member.recorder(), folder, file)
    });
    let files = PartFiles::new(own.clone(), own, saver.transpose().map_err(TrainError::Saver)?);
    let trainer = Trainer::new(config, program, plan, shape, session, 0..0);
    let trainer = Trainer { files, resumed: resumed.as_ref(), ..trainer };
    trainer.initialise()?;
    let Trainer { files, carried, .. } = trainer;
    let begun = vec![shape.done; open.sessions.len()];
    let mut serving = Serving { member, part, begun, files, carried };
    let interrupted = serving.serve(&mut open.sessions)?;
    let mut report = TrainReport { kernels: open.kernels.clone(), ..TrainReport::default() };
    report.interrupted = interrupted;
    report.polling = open.sessions.iter().map(|session| Polling::from(session.counters())).sum();
    if !interrupted {
        // all gradients are in: worker 0 may have the variables
        open.sessions[0].run(Program::FETCH)?;
    }
    report.add_copies(&serving.carried.copies());
    open.sessions.iter().for_each(|session| report.add_copies(&session.copies()));
    part.standing.enters(Phase::Meets);
    let registered_bytes = registered_bytes(&open);
    Edges { member, open, registered_bytes }.leave(&mut report)?;
    Ok(report)
}

/// A server that has a session for each worker, between its first values and its last step.
struct Serving<'a> {
    member: &'a Member,
    part: &'a Part,
    /// By session: the last step that it has begun.
    begun: Vec<u64>,
    files: PartFiles,
    carried: Carried,
}

impl Serving<'_> {
    /// Serves all steps of each worker, in whatever order their gradients come; true if the job is interrupted before.
    fn serve(&mut self, sessions: &mut [Session]) -> Result<bool, TrainError> {
        let JobShape { steps, .. } = self.part.shape;
        loop {
            // all sessions are at rest here, and only a job that is to end has them at different steps
            let least = self.begun.iter().copied().min().unwrap_or(steps);
            if least == steps {
                return Ok(false);
            }
            let deadline = Deadline::after(self.part.config.step_deadline());
            self.part.standing.enters(Phase::Enters(least + 1));
            let word = self.member.enter_step(least + 1, deadline)?;
            self.part.standing.enters(Phase::Runs);
            if word != StepWord::Begins {
                if self.part.shape.is_kept_early(&self.part.config, least) {
                    self.capture(least, sessions)?;
                }
                return Ok(word == StepWord::Interrupted);
            }
            let until = self.next_kept(least);
            self.serve_until(until, sessions)?;
            let all_came = self.begun.iter().all(|begun| *begun == until);
            if all_came && self.part.shape.is_kept(&self.part.config, until) {
                self.capture(until, sessions)?;
            }
        }
    }

    /// The next step behind which no session begins another before all have come: there is a checkpoint, or the end.
    fn next_kept(&self, step: u64) -> u64 {
        let Part { config, shape, .. } = self.part;
        if config.checkpoint.is_none() {
            return shape.steps;
        }
        (step + 1..shape.steps).find(|step| shape.is_kept(config, *step)).unwrap_or(shape.steps)
    }

    /// Serves steps up to this one, and none that may not begin.
    fn serve_until(&mut self, until: u64, sessions: &mut [Session]) -> Result<(), TrainError> {
        let Serving { member, part, begun, .. } = self;
        let mut told = Ok(());
        run_sessions(sessions, &mut |index, session| {
            let step = begun[index] + 1;
            // that the launcher is gone is said once the sessions are at rest
            let begins = step <= until && told.is_ok() && {
                let asked = member.may_enter_step(step);
                asked.unwrap_or_else(|error| {
                    told = Err(error);
                    false
                })
            };
            if !begins {
                return None;
            }
            begun[index] = step;
            session.set_rate_factor(part.rates.factor(step));
            Some(Program::TRAIN)
        })?;
        Ok(told?)
    }

    /// Copies what is here after a step of all workers, to be written while they go on.
    fn capture(&mut self, step: u64, sessions: &[Session]) -> Result<(), TrainError> {
        self.part.standing.enters(Phase::Keeps(step));
        // all sessions are over the same variables
        self.files.capture(step, &sessions[0], &self.carried).map(drop)
    }
}
