//! A training job as a program writes it: a model, data, how to train, and `run`.

mod apart;
mod ending;
mod evaluation;
mod events;
#[cfg(test)]
mod tests;
mod told;

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tensorwire_graph::Placement;
use tensorwire_launch::rendezvous::{Composition, Detected};
use tensorwire_launch::{Assignment, Hosts, HostsError, Member, Transport};
use tensorwire_nn::{Data, Model, Optimizer, Schedule};
use tensorwire_train::{
    Budget, CheckpointConfig, FinishedStep, FloatType, Kernels, LossGrowth, Prepared,
    StepAggregator, Strategy, Summary, TRAIN, TrainConfig, TrainOutcome, Weights, WireType,
    Workload, train_local, train_member,
};

use crate::error::{Error, Result};
use crate::program::{self, Lead};
use crate::strategies::IntoStrategy;
use apart::launch_apart;
use ending::UnderWay;
use events::Events;
use told::{is_shown, say_how_it_begins, say_what_happened};

/// Jobs that this process has run, or has left to the process that started it.
static RUNS: AtomicUsize = AtomicUsize::new(0);
/// What the jobs of this process came to, in order: a member that is started for a later one is told.
static DONE: Mutex<Vec<Summary>> = Mutex::new(Vec::new());

/// What a member's payload has beside the job's own: the number of the job in the program, and what those before it came to.
const RUN: &str = "run";
const EARLIER: &str = "earlier";

/// How messages call what a user can do. Other front ends have other names for it.
#[derive(Clone, Copy, Debug)]
pub struct Remedies {
    /// What goes on from a checkpoint.
    pub resume: &'static str,
    /// What has checkpoints written.
    pub checkpoint: &'static str,
    /// What a smaller step is made by.
    pub rate: &'static str,
}

impl Default for Remedies {
    fn default() -> Remedies {
        Remedies {
            resume: "Training::resume",
            checkpoint: "Training::checkpoint",
            rate: "the optimizer's rate",
        }
    }
}

/// Who is told of a step.
type OnStep = Box<dyn FnMut(&FinishedStep) + Send>;

/// A training job.
///
/// Every process of the job runs this same program with the same arguments, as under mpirun: what stands before
/// [`Training::run`] happens in each of them. `run` returns where the job was started; elsewhere it does a member's part and ends
/// the process.
///
/// Under mpirun, srun, torchrun and Kubernetes the processes that they started are the job's. Else `run` starts them itself, here
/// or on [`Training::hosts`].
#[must_use = "a job does nothing until it is run"]
pub struct Training {
    workload: Workload,
    config: TrainConfig,
    hosts: Result<Option<Hosts>, HostsError>,
    shell: Option<String>,
    /// What a member is started as, with its arguments, if not as this program.
    members: Option<(PathBuf, Vec<String>)>,
    has_strategy: bool,
    on_step: Option<OnStep>,
    /// Steps between two lines.
    progress: Option<u64>,
    tensorboard: Option<PathBuf>,
    remedies: Remedies,
}

impl fmt::Debug for Training {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Training").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Training {
    /// A job that trains `model` on `data`: two workers and two parameter servers on this machine, momentum at a rate of 0.05,
    /// batches of 64, 20 epochs.
    pub fn new(model: impl Model + 'static, data: impl Into<Data>) -> Training {
        let workload = Workload::new(model, data.into());
        let config = TrainConfig {
            model: workload.model.name(),
            data: workload.data.train.name(),
            ..TrainConfig::default()
        };
        Training {
            workload,
            config,
            hosts: Ok(None),
            shell: None,
            members: None,
            has_strategy: false,
            on_step: None,
            progress: None,
            tensorboard: None,
            remedies: Remedies::default(),
        }
    }

    fn with(mut self, set: impl FnOnce(&mut TrainConfig)) -> Training {
        set(&mut self.config);
        self
    }

    /// How the processes train together; see [`crate::strategies`]. Without this: two workers and two parameter servers, or under
    /// mpirun and its like as many of both as processes were started.
    pub fn strategy(self, strategy: impl IntoStrategy) -> Training {
        let training = self.with(|config| {
            // what an earlier strategy said is not of this one
            let TrainConfig { asynchronous, store, clients, .. } = TrainConfig::default();
            (config.asynchronous, config.store, config.clients) = (asynchronous, store, clients);
            strategy.configure(config);
        });
        Training { has_strategy: true, ..training }
    }

    /// Which server gets which variable, with [`ParameterServers`](crate::strategies::ParameterServers). Without this: by
    /// bytes, and by rows what is above a server's share and 4 MiB (64 MiB where all processes share memory).
    pub fn placement(self, placement: Placement) -> Training {
        self.with(|config| config.placement = placement)
    }

    /// How a variable changes, given the mean gradient of a step.
    pub fn optimizer(self, optimizer: Optimizer) -> Training {
        self.with(|config| config.optimizer = optimizer)
    }

    /// The rate of each step, as a factor of the optimizer's. Without this: the same in all steps.
    pub fn schedule(self, schedule: Schedule) -> Training {
        self.with(|config| config.schedule = schedule)
    }

    /// The rate of each step as a function of the program's own, in the place of a schedule: it is given the step, from 1, and
    /// returns what the optimizer's rate is multiplied by. It must return the same in all processes.
    pub fn rate(mut self, factor: impl Fn(u64) -> f64 + Send + Sync + 'static) -> Training {
        self.workload.rates = Some(Arc::new(factor));
        self
    }

    /// Scales the mean gradient of all variables down to this norm where its own is larger.
    pub fn clip_norm(self, norm: f64) -> Training {
        self.with(|config| config.clip_norm = Some(norm))
    }

    /// Parameters of these names do not decay, as those of fewer than two dimensions do not; `*` in one stands for any
    /// characters.
    pub fn no_decay<'n>(self, names: impl IntoIterator<Item = &'n str>) -> Training {
        let names = names.into_iter().map(str::to_string).collect();
        self.with(|config| config.no_decay = names)
    }

    /// Averages the parameters over the steps (EMA): a ← decay·a + (1 − decay)·w. The averages are evaluated and saved in the
    /// parameters' place.
    pub fn ema(self, decay: f64) -> Training {
        self.with(|config| config.ema = Some(decay))
    }

    /// Makes a step of so many batches of each worker, in the memory of one.
    pub fn accumulate(self, batches: usize) -> Training {
        self.with(|config| config.accumulate = batches)
    }

    /// What gradients and weights of f32 cross as between processes.
    pub fn wire(self, wire: WireType) -> Training {
        self.with(|config| config.wire = wire)
    }

    /// The type of activations, if it is another than that of variables: bf16 beside variables and slots of f32.
    pub fn activations(self, dtype: FloatType) -> Training {
        self.with(|config| config.activations = Some(dtype))
    }

    /// Samples per worker and batch.
    pub fn batch(self, samples: usize) -> Training {
        self.with(|config| config.batch = samples)
    }

    /// Trains for so many passes over the data.
    pub fn epochs(self, epochs: u64) -> Training {
        self.with(|config| config.budget = Budget::Epochs(epochs))
    }

    /// Trains for so many steps.
    pub fn steps(self, steps: u64) -> Training {
        self.with(|config| config.budget = Budget::Steps(steps))
    }

    /// What first values, the order of samples and dropout depend on.
    pub fn seed(self, seed: u64) -> Training {
        self.with(|config| config.seed = seed)
    }

    /// The type of variables and activations.
    pub fn dtype(self, dtype: FloatType) -> Training {
        self.with(|config| config.dtype = dtype)
    }

    /// How bytes travel between processes. Without this: shared memory on one host; else RDMA if every host can, else TCP.
    pub fn transport(self, transport: Transport) -> Training {
        self.with(|config| config.transport = transport)
    }

    /// Where the processes run, round-robin: `NAME`, `USER@NAME` or an address, with `:SLOTS` behind it where it takes several
    /// in a turn. They are started by ssh; the program must be at the same path everywhere.
    pub fn hosts<H: AsRef<str>>(mut self, hosts: impl IntoIterator<Item = H>) -> Training {
        let list: Vec<String> = hosts.into_iter().map(|host| host.as_ref().to_string()).collect();
        self.hosts = list.join(",").parse().map(Some);
        self.started()
    }

    /// The command that starts a process on another host, in place of ssh.
    pub fn remote_shell(mut self, command: &str) -> Training {
        self.shell = Some(command.to_string());
        self.started()
    }

    /// The hosts with the shell, in whatever order they were given.
    fn started(mut self) -> Training {
        if let Some(shell) = &self.shell {
            self.hosts =
                self.hosts.and_then(|hosts| hosts.unwrap_or_default().started_by(shell).map(Some));
        }
        self
    }

    /// The program that members are started as, and its arguments, in place of this one with its own. It makes the same job,
    /// as its first, and runs it. Where some are on other hosts ([`Training::hosts`]) and the variable `TENSORWIRE_RUN_WITH_PARENT`
    /// is set, it becomes what stands behind these arguments instead, by [`program::run_with_parent`].
    pub fn members(
        mut self,
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = String>,
    ) -> Training {
        self.members = Some((program.into(), arguments.into_iter().collect()));
        self
    }

    /// Threads that compute in each process. Without this: each host's cores shared among its workers.
    pub fn threads(self, threads: usize) -> Training {
        self.with(|config| config.threads = Some(threads))
    }

    /// How long a step waits at most for processes that are alive, and one operator or batch may take. Without this: 10 minutes.
    pub fn step_deadline(self, deadline: Duration) -> Training {
        self.with(|config| config.step_deadline_ms = milliseconds(deadline))
    }

    /// Which kernels compute.
    pub fn kernels(self, kernels: Kernels) -> Training {
        self.with(|config| config.kernels = kernels)
    }

    /// Evaluates with the test's samples after every so many steps, too: what is found comes with the step
    /// ([`FinishedStep::evaluation`]).
    pub fn evaluate_every(self, steps: u64) -> Training {
        self.with(|config| config.evaluate_every = Some(steps))
    }

    /// Ends when the loss of so many of these evaluations in a row was no smaller than the smallest before. All processes end
    /// behind the same step.
    pub fn early_stop(self, evaluations: u64) -> Training {
        self.with(|config| config.early_stop = Some(evaluations))
    }

    /// Begins with the weights of a safetensors file, of a checkpoint, or of the newest in a folder of checkpoints.
    pub fn load(self, path: impl Into<PathBuf>) -> Training {
        self.with(|config| config.load = Some(path.into()))
    }

    /// Writes the trained weights to a safetensors file.
    pub fn save(self, path: impl Into<PathBuf>) -> Training {
        self.with(|config| config.save = Some(path.into()))
    }

    /// Writes checkpoints of the whole job beside training, each a folder in `path`: one every so many steps, and one in the
    /// end. The last 3 stay; see [`Training::keep`]. One that cannot be written is a warning.
    pub fn checkpoint(self, path: impl Into<PathBuf>, every: u64) -> Training {
        self.with(|config| {
            let new = CheckpointConfig::new(path);
            let old = config.checkpoint.take().unwrap_or(new.clone());
            config.checkpoint =
                Some(CheckpointConfig { path: new.path, every: Some(every), ..old });
        })
    }

    /// Writes a checkpoint after each evaluation, too, and keeps the one with the smallest loss, which is called `best`, once
    /// [`Training::checkpoint`] has said that there are any.
    pub fn keep_best(self) -> Training {
        self.with(|config| {
            config.checkpoint.iter_mut().for_each(|checkpoint| checkpoint.best = true);
        })
    }

    /// How many checkpoints stay, once [`Training::checkpoint`] has said that there are any.
    pub fn keep(self, count: u64) -> Training {
        self.with(|config| {
            config.checkpoint.iter_mut().for_each(|checkpoint| checkpoint.keep = count);
        })
    }

    /// Goes on from the newest whole checkpoint in this folder; where workers train in step, to the bits of a job that nobody
    /// stopped. Steps and epochs count from the very first step. `auto` stands for the job's own folder, once there are any in it.
    pub fn resume(self, path: impl Into<PathBuf>) -> Training {
        self.with(|config| config.resume = Some(path.into()))
    }

    /// Starts all processes again when the job fails, at most so many times, from its newest checkpoint; without
    /// [`Training::checkpoint`] from where it began.
    pub fn restarts(self, most: u64) -> Training {
        self.with(|config| config.restarts = most)
    }

    /// Processes whose launcher is killed wait so long for another, which this program is when it is started again with
    /// [`Training::checkpoint`] and [`Training::resume`] of `auto`.
    pub fn launcher_patience(self, patience: Duration) -> Training {
        self.with(|config| config.launcher_patience_ms = Some(milliseconds(patience)))
    }

    /// Goes on with fewer workers where some are lost, and with more again, but with no fewer than these
    /// ([`TrainConfig::fewest_workers`]).
    pub fn fewest_workers(self, fewest: u32) -> Training {
        self.with(|config| config.fewest_workers = Some(fewest))
    }

    /// Changes anything else of the configuration.
    pub fn configure(self, change: impl FnOnce(&mut TrainConfig)) -> Training {
        self.with(change)
    }

    /// Is told of each step that all workers have finished.
    pub fn on_step(mut self, told: impl FnMut(&FinishedStep) + Send + 'static) -> Training {
        self.on_step = Some(Box::new(told));
        self
    }

    /// Prints a line to standard error after every so many steps, at the end of each epoch, and where there is an evaluation:
    /// epoch, step, loss and samples per second ([`FinishedStep::line`]). Without this a job prints nothing of its steps.
    pub fn progress(mut self, steps: u64) -> Training {
        self.progress = Some(steps);
        self
    }

    /// Writes an event file to a folder, which TensorBoard shows: loss and samples per second by step, and what is evaluated.
    pub fn tensorboard(mut self, folder: impl Into<PathBuf>) -> Training {
        self.tensorboard = Some(folder.into());
        self
    }

    /// How messages call what a user can do, where that is not to call this type.
    pub fn remedies(mut self, remedies: Remedies) -> Training {
        self.remedies = remedies;
        self
    }

    /// Trains, and returns what came of it. In a process that is a member of the job it does not return. One that trains alone
    /// ends with status 1, and says why, where a thread is stopped for as long as others would wait for it
    /// ([`TrainConfig::liveness`]), or an operator, a batch or a loop takes longer than the step deadline.
    ///
    /// # Errors
    /// The user's mistake, or the first cause of the job's failure, which names the process and the step.
    pub fn run(mut self) -> Result<Summary> {
        program::init()?;
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        if let Some(assignment) = program::assigned() {
            return self.take_part(run, assignment);
        }
        if let Some(hosts) = std::mem::replace(&mut self.hosts, Ok(None))? {
            self.config.hosts = hosts;
        }
        let found = if self.config.hosts.any_remote() { None } else { program::detected()? };
        // one process that somebody started starts those of the job itself
        match found.filter(|found| found.world > 1 || found.counts.is_some()) {
            None => self.run_own(run, None),
            Some(_) if run > 0 => Err(Error::SecondJob),
            Some(found) if found.launched_as.is_launcher() => self.lead(run, &found),
            Some(found) => {
                program::follow(&found, |member| self.part_of(member))?;
                std::process::exit(0)
            }
        }
    }

    /// A member's part, if this is the job that it was started for; what an earlier one came to otherwise.
    fn take_part(self, run: usize, assignment: Assignment) -> Result<Summary> {
        let of = |key: &str| assignment.payload.get(key).cloned().unwrap_or_default();
        let wanted: usize = serde_json::from_value(of(RUN)).map_err(Error::Garbled)?;
        if run < wanted {
            let mut earlier: Vec<Summary> =
                serde_json::from_value(of(EARLIER)).map_err(Error::Garbled)?;
            let lacking = run >= earlier.len();
            return if lacking { Err(Error::SecondJob) } else { Ok(earlier.swap_remove(run)) };
        }
        program::take_part(assignment, None, |member| self.part_of(member))?;
        std::process::exit(0)
    }

    /// Does a member's part; it has told the launcher what failed.
    fn part_of(&self, member: &Member) -> std::result::Result<(), ()> {
        train_member(member, &self.workload).map_err(drop)
    }

    /// Leads the processes that somebody else started.
    fn lead(mut self, run: usize, found: &Detected) -> Result<Summary> {
        let lead = Lead::open(found, self.config.listen)?;
        let gathering = lead.gathering.clone();
        let topology = self.config.topology();
        let composition = match topology.weights {
            Weights::Local => Composition::OneProcess,
            _ if topology.servers == 0 => Composition::Workers,
            _ => Composition::WorkersAndServers,
        };
        let asked = self.has_strategy.then_some((self.config.workers, self.config.servers));
        let asked = (asked.map(|(workers, _)| workers), asked.map(|(_, servers)| servers));
        let done = lead.gather(found, composition, asked).map_err(Error::from).and_then(|counts| {
            (self.config.workers, self.config.servers) = counts;
            self.config.hosts = lead.gathering.hosts();
            self.run_own(run, Some(lead))
        });
        done.inspect_err(|error| {
            // said before the others end: whoever started them ends this process then
            program::say(&format!("error: {error}"));
            // as of a `main` that returns an error
            gathering.dismiss("the job has ended", 1);
        })
    }

    /// Runs the job with processes of its own, or with those that `lead` gathered.
    fn run_own(mut self, run: usize, lead: Option<Lead>) -> Result<Summary> {
        let prepared = Prepared::new(self.config, &self.workload)?;
        if let Some(resumed) = &prepared.resumed {
            program::say(&resumed.to_string());
        }
        let mut steps = StepAggregator::new(&prepared);
        let mut events = Events::create(self.tensorboard.as_deref())?;
        let mut told = self.on_step.take().unwrap_or_else(|| Box::new(|_| {}));
        let (all, epoch, every) =
            (prepared.steps(), prepared.steps_per_epoch(), self.progress.take());
        let remedies = self.remedies;
        let (under_way, mut growth) = (UnderWay::new(&prepared, remedies), LossGrowth::default());
        let mut on_step = |step: &FinishedStep| {
            events.step(step);
            under_way.did(step);
            if let Some(grown) = growth.step(step) {
                let rate = remedies.rate;
                program::say(&format!("warning: {grown}; if it does not fall again, lower {rate}"));
            }
            if every.is_some_and(|every| is_shown(step, every, epoch, all)) {
                program::say(&step.line(all));
            }
            told(step);
        };
        say_how_it_begins(&prepared);
        let outcome = if prepared.config.strategy == Strategy::Local {
            let interrupt = under_way.interrupt()?;
            steps.begin();
            let told = &mut |progress| on_step(&steps.all_did(&progress));
            let report = train_local(&prepared, &interrupt, told, &program::say_or_end);
            report.map(TrainOutcome::alone).map_err(Error::from)
        } else {
            let (gathering, interrupt) = match lead {
                // they may be told to end twice: what ended the job is to be said first
                Some(Lead { gathering, interrupt }) => (Some(gathering), interrupt),
                None => (None, under_way.interrupt()?),
            };
            let mut how = program::job_spec_until(TRAIN, Vec::new(), interrupt)?;
            let hears_another = gathering.is_none();
            how.gathering = gathering;
            how.payload = match self.members.take() {
                // their program has run no job before
                Some((program, arguments)) => {
                    // behind its own arguments it is told what to become
                    how.run_with_parent = arguments.clone();
                    (how.program, how.arguments) = (program, arguments);
                    serde_json::json!({ RUN: 0, EARLIER: [] })
                }
                None => {
                    let done = DONE.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    serde_json::json!({ RUN: run, EARLIER: done })
                }
            };
            launch_apart(&prepared, &self.workload, &how, &mut |update| {
                say_what_happened(&update, hears_another);
                steps.update(&update);
                while let Some(step) = steps.take() {
                    on_step(&step);
                }
            })
        };
        let outcome = outcome.inspect_err(|error| {
            let has_run = match error {
                Error::Job(failure) => !failure.is_user_error(),
                Error::Train(error) => !error.is_user_error(),
                _ => false,
            };
            if has_run {
                under_way.say_what_is_kept();
            }
        })?;
        let summary = Summary::new(&prepared, &outcome, &steps)?;
        events.end(&summary)?;
        DONE.lock().unwrap_or_else(PoisonError::into_inner).push(summary.clone());
        Ok(summary)
    }
}

/// As many as there are, or as many as a number holds.
fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
