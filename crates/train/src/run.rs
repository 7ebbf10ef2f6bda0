//! A whole job, as whoever launches it sees it: its members are started and watched, what they say is told as it comes,
//! and what they report is there at the end.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use tensorwire_base::{Rank, counted};
use tensorwire_launch::{
    Abandoned, FirstFailure, JobError, JobSpec, JobUpdate, Messages, Recorder, StatusServer,
    TakeoverError, Transport, launch,
};

use serde::{Deserialize, Serialize};

use crate::attempts::{Attempts, Next};
use crate::awaiting::{
    Awaited, HOST_BOOTS, await_host, behind_wait, launched_within, silent_host, wait,
};
use crate::checkpoint::{CheckpointError, CheckpointFolder, Saver, ShardReport};
use crate::config::{ConfigError, TrainConfig};
use crate::job::taking_over::{abandoned, begin_instead, take_over};
use crate::job::{Prepared, Supply};
use crate::report::{Evaluation, Progress, TrainReport};
use crate::resizing::Resizing;
use crate::trace::{Collector, TraceError, TraceEvent, TraceSummary};

/// The kind of job that [`crate::train_member`] takes part in.
pub const TRAIN: &str = "train";

/// What the members of a training job say to their launcher.
#[derive(Debug)]
struct Training;

impl Messages for Training {
    type Progress = Progress;
    type Record = MemberRecord;
    type Report = TrainReport;
}

/// What a member records for its launcher alone.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MemberRecord {
    /// What it did, and when.
    Trace(TraceEvent),
    /// What became of its file of a checkpoint.
    Shard(ShardReport),
    /// What it found behind a step.
    Evaluated { step: u64, evaluation: Evaluation },
}

/// What writes a member's files of checkpoints and tells the launcher what became of each, while nobody looks.
///
/// # Errors
/// When the system has no thread to give.
pub(crate) fn telling_saver(
    recorder: Recorder,
    folder: CheckpointFolder,
    shard: &str,
) -> std::io::Result<Saver> {
    Saver::telling(folder, shard, move |report| {
        // a launcher that is gone is noticed by the thread that watches it
        let _ = recorder.record_lasting(&[MemberRecord::Shard(report.clone())]);
    })
}

/// What happens while a training job runs. What members record is not told.
pub type TrainUpdate = JobUpdate<Progress, MemberRecord>;

/// A training job that was done.
#[derive(Clone, Debug)]
pub struct TrainOutcome {
    /// What each member reported, by rank; those whose loss the job survived reported nothing.
    pub reports: BTreeMap<Rank, TrainReport>,
    /// What bytes travelled over: what was given, or what the members agreed on. [`Transport::Auto`]: nothing travelled.
    pub transport: Transport,
    /// Servers that were lost, and whose place another process took.
    pub servers_replaced: u64,
    /// How often the job failed and was started again.
    pub restarts: u64,
    /// How often it went on with other workers.
    pub resizes: u64,
    /// The step behind which it began the last time.
    pub began_behind: u64,
    /// What the trace shows, if one was asked for.
    pub trace: Option<TraceSummary>,
}

impl TrainOutcome {
    /// Of a process that trained alone ([`crate::train_local`]).
    pub fn alone(report: TrainReport) -> TrainOutcome {
        let reports = BTreeMap::from([(Rank(0), report)]);
        let transport = Transport::Auto;
        let (servers_replaced, restarts, resizes, began_behind) = (0, 0, 0, 0);
        let trace = None;
        TrainOutcome {
            reports,
            transport,
            servers_replaced,
            restarts,
            resizes,
            began_behind,
            trace,
        }
    }

    /// The hash of the weights that were evaluated; none if nobody did.
    pub fn weights_sha256(&self) -> Option<&str> {
        self.reports.values().find_map(|report| report.weights_sha256.as_deref())
    }

    /// The share of the test's labels that the weights find; none if nobody evaluated.
    pub fn test_accuracy(&self) -> Option<f64> {
        self.reports.values().find_map(|report| report.test_accuracy)
    }
}

/// Why a launched job was not done.
#[derive(Debug, thiserror::Error)]
pub enum JobFailure {
    #[error(transparent)]
    Job(#[from] JobError),
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Takeover(#[from] TakeoverError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(
        "--restarts is of jobs whose processes tensorwire starts itself; let who started these start them again (torchrun \
         --max-restarts N, sbatch --requeue, a pod's restartPolicy), with --checkpoint DIR --resume auto"
    )]
    RestartByOthers,
    #[error(
        "workers that come and go (fewest_workers) are of jobs whose processes tensorwire starts itself; here as many take part \
         as were started"
    )]
    ResizeByOthers,
    #[error(
        "--launcher-patience is of jobs whose processes tensorwire starts itself; these end with who started them, which may start \
         them again with --checkpoint DIR --resume auto"
    )]
    TakeoverByOthers,
    #[error("{failure}; started again {restarts} times, as --restarts allows")]
    Restarted { failure: Box<JobFailure>, restarts: u64 },
    #[error(
        "{failure}; the job has no fewer workers to go on with (--workers MIN..MAX), and --restarts has none left"
    )]
    Fewest { failure: Box<JobFailure> },
    #[error("{failure}; {host} did not answer for {} h", HOST_BOOTS.as_secs() / 3600)]
    HostGone { failure: Box<JobFailure>, host: String },
    #[error("{failure}; it did so twice, and is not started again")]
    Repeated { failure: Box<JobFailure> },
    #[error("{failure}; it cannot be started again: {why}")]
    NotRestarted { failure: Box<JobFailure>, why: CheckpointError },
    #[error("{failure}; it cannot go on with other workers: {why}")]
    NotResized { failure: Box<JobFailure>, why: ConfigError },
}

impl JobFailure {
    /// True if the user's command made this, so that another command fixes it.
    pub fn is_user_error(&self) -> bool {
        match self {
            JobFailure::Job(error) => error.is_user_error(),
            JobFailure::RestartByOthers
            | JobFailure::ResizeByOthers
            | JobFailure::TakeoverByOthers
            | JobFailure::Takeover(_)
            | JobFailure::Checkpoint(_) => true,
            _ => false,
        }
    }

    /// Why the job failed, if a member of it was the cause.
    pub fn first(&self) -> Option<&FirstFailure> {
        match self {
            JobFailure::Job(JobError::Failed(first)) => Some(first),
            JobFailure::Restarted { failure, .. }
            | JobFailure::Fewest { failure }
            | JobFailure::HostGone { failure, .. }
            | JobFailure::Repeated { failure }
            | JobFailure::NotRestarted { failure, .. }
            | JobFailure::NotResized { failure, .. } => failure.first(),
            _ => None,
        }
    }

    /// True if the same job may do better another time. What could be read once, when its members had met, may be read again.
    pub(crate) fn may_pass(&self, has_met: bool) -> bool {
        match self {
            JobFailure::Job(JobError::Failed(first)) => {
                !first.user_error || has_met && first.unread
            }
            JobFailure::Job(JobError::Suspended { .. }) => true,
            _ => false,
        }
    }

    /// True if it ended behind a step because it was told to.
    pub fn is_interrupted(&self) -> bool {
        matches!(self, JobFailure::Job(JobError::Interrupted))
    }

    /// True if a member, whichever, said the same of itself in the same step: one would a third time. A disk may answer then.
    pub(crate) fn repeats(&self, earlier: &JobFailure) -> bool {
        let said = |failure: &JobFailure| {
            let first = failure.first().filter(|first| first.is_own_word && !first.unread)?;
            Some((first.step, first.cause.clone()))
        };
        said(self).is_some_and(|this| said(earlier) == Some(this))
    }
}

impl Prepared {
    /// The job to launch. `how` says how a member is started, who waits for it and what ends it; the rest is the
    /// configuration's.
    pub(crate) fn job(&self, how: &JobSpec) -> JobSpec {
        JobSpec {
            kind: TRAIN.to_string(),
            roles: self.roles(),
            payload: with_fields(self.payload(), &how.payload),
            hosts: self.config.hosts.clone(),
            verbs: self.config.verbs_wanted(),
            listen: self.config.listen,
            store: self.store_job(),
            liveness: self.config.liveness(),
            // until the slowest has read its data, and the checkpoint
            set_up: Some(self.config.disk_deadline()),
            title: self.title(),
            steps: Some(self.steps()),
            steps_done: self.steps_done(),
            // where nothing is kept there is nothing to wait for
            takeover: self.takeover(how),
            wind_down: self.config.checkpoint.as_ref().map(|_| self.config.disk_deadline()),
            ..how.clone()
        }
    }
}

impl Prepared {
    /// What the job is, in a few words.
    pub fn title(&self) -> String {
        let workers = self.workers_by_rank().into_iter().flatten().count();
        let (servers, config) = (self.roles().len() - workers, &self.config);
        let (workers, servers) = (counted(workers, "worker"), counted(servers, "server"));
        format!("{} on {}, {}{workers}{servers}", config.model, config.data, config.strategy.name())
    }
}

/// A payload with whatever else its members are told by whoever launches them.
fn with_fields(mut payload: serde_json::Value, more: &serde_json::Value) -> serde_json::Value {
    if let (Some(payload), Some(more)) = (payload.as_object_mut(), more.as_object()) {
        payload.extend(more.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
    payload
}

/// Launches the members of a training job and stays until it is done or has failed, as [`launch`] does; then writes the
/// trace, if there is to be one, however the job ended. `how` says how a member is started
/// ([`JobSpec::program`], its arguments, [`JobSpec::run_with_parent`]), who waits for it ([`JobSpec::gathering`]) and what
/// ends the job ([`JobSpec::interrupt`]); the fields of its payload are told beside the job's own. Its other fields are filled in.
///
/// A job that fails is started again from its newest checkpoint, as often as it may be ([`crate::TrainConfig::restarts`]), unless
/// the user can mend it, or it fails in the same step by the same error twice. Where the number of workers may change
/// ([`crate::TrainConfig::fewest_workers`]) it goes on with fewer or more of them, whose model `supply` has.
///
/// Where an earlier launcher of this job was killed, and its members wait ([`crate::TrainConfig::launcher_patience_ms`]), it goes on
/// with them; those of a job with another configuration are ended.
///
/// # Errors
/// As [`launch`], or when the trace cannot be written.
pub fn launch_train(
    prepared: &Prepared,
    supply: &dyn Supply,
    how: &JobSpec,
    on_update: &mut dyn FnMut(TrainUpdate),
) -> Result<TrainOutcome, JobFailure> {
    let config = &prepared.config;
    check_starter(config, how)?;
    let resizing = Resizing::of(prepared);
    let control = resizing.as_ref().map(Resizing::control);
    let mut how = JobSpec { control, ..how.clone() };
    let mut attempts = Attempts::of(config.restarts);
    let mut told = None;
    // says which launcher has the job, where a folder that is claimed names nobody
    let is_known = abandoned(prepared, &how)?.is_some();
    // before anybody is started, or ended
    let _claim = prepared.claim()?;
    let mut again = take_over(prepared, resizing.as_ref(), supply, &mut how, on_update)?;
    // those of a launcher that is not found from here
    let _processes = prepared.process_file(is_known, how.abandoned.is_some())?;
    // answers over all that the job is launched as
    how.status = how.status_folder.as_deref().and_then(StatusServer::open);
    let asked = how.abandoned.as_ref().and_then(Abandoned::asked);
    if let Some((resizing, wanted)) = resizing.as_ref().zip(asked) {
        resizing.goes_on_with(wanted);
    }
    loop {
        let now = again.as_ref().unwrap_or(prepared);
        let mut has_members = how.abandoned.is_none();
        let launched = launch_once(now, &how, &mut |update| {
            let have_met = matches!(update, JobUpdate::Introduced);
            has_members |= have_met;
            attempts.has_met |= have_met;
            if let (Some(resizing), JobUpdate::Progress { .. }) = (&resizing, &update) {
                resizing.made_a_step();
            }
            if let JobUpdate::TakenOver { .. } = update
                && let Some(resized) = now.resized_from(prepared)
            {
                attempts.resizes += 1;
                on_update(resized);
            }
            match update {
                // said again only where a job that is started anew has another
                JobUpdate::Transport(choice) if told.as_ref() == Some(&choice) => {}
                JobUpdate::Transport(choice) => {
                    on_update(JobUpdate::Transport(told.insert(choice).clone()));
                }
                update => on_update(update),
            }
        });
        let left = how.abandoned.take();
        let failure = match launched {
            Ok(done) => {
                let Attempts { restarts, resizes, .. } = attempts;
                let began_behind = now.steps_done();
                return Ok(TrainOutcome { restarts, resizes, began_behind, ..done });
            }
            Err(failure) => failure,
        };
        if how.interrupt.load(Ordering::Relaxed) {
            return Err(failure);
        }
        if let (Some(left), false) = (left, has_members) {
            resizing.iter().for_each(Resizing::begins_whole);
            again = Some(begin_instead(prepared, &how, left, failure, on_update)?);
            continue;
        }
        let job = now.job(&how);
        // one that never took part may be called otherwise
        let has_part = attempts.has_met || resizing.is_some();
        let may_go_on = resizing.is_some() || !attempts.was_last();
        let is_asked = has_part && may_go_on && failure.may_pass(attempts.has_met);
        let silent = is_asked.then(|| silent_host(&failure, &job)).flatten();
        if how.interrupt.load(Ordering::Relaxed) {
            return Err(failure);
        }
        let mut after = attempts.after(&failure, resizing.as_ref(), silent.as_deref());
        let mut why = failure.to_string();
        let mut answers_again = false;
        if let Next::Await(host) = after {
            on_update(JobUpdate::AwaitsHost { why, host: host.clone() });
            why = format!("{host} answers again");
            let awaited = await_host(&host, &job);
            answers_again = awaited == Awaited::Answers;
            after = match behind_wait(awaited, &why, resizing.as_ref()) {
                Ok(next) => next,
                Err(Awaited::Silent) => {
                    return Err(JobFailure::HostGone { failure: Box::new(failure), host });
                }
                Err(_) => return Err(failure),
            };
        }
        let next = match (after, &resizing) {
            (Next::Resize(why), Some(resizing)) => {
                let (why, next) = match resizing.resized(why, supply) {
                    Ok(resized) => resized,
                    Err(why) => {
                        return Err(JobFailure::NotResized { failure: Box::new(failure), why });
                    }
                };
                attempts.resizes += 1;
                how.status.iter().for_each(|status| status.launches_again(&why));
                let (step, roles, workers) =
                    (next.steps_done(), next.roles(), next.workers_by_rank());
                on_update(JobUpdate::Resizing { why, step, roles, workers });
                // a host that comes and goes before anything is kept is launched on ever later
                let pause = answers_again.then(|| attempts.pause(step > now.steps_done()));
                if pause.is_some_and(|pause| !wait(pause, &next.job(&how), &launched_within(pause)))
                {
                    return Err(failure);
                }
                next
            }
            (Next::Restart, _) => {
                let begun = begin_again(now, &mut attempts, why, &how, on_update);
                match begun {
                    Ok(Some(next)) => next,
                    // it was interrupted
                    Ok(None) => return Err(failure),
                    Err(why) => {
                        return Err(JobFailure::NotRestarted { failure: Box::new(failure), why });
                    }
                }
            }
            (Next::Fails | Next::Resize(_) | Next::Await(_), _) => return Err(failure),
            (Next::Repeats, _) => return Err(JobFailure::Repeated { failure: Box::new(failure) }),
            (Next::IsFewest, _) => return Err(JobFailure::Fewest { failure: Box::new(failure) }),
            (Next::WasLast, _) => {
                let restarts = attempts.restarts;
                return Err(JobFailure::Restarted { failure: Box::new(failure), restarts });
            }
        };
        (again, attempts.earlier) = (Some(next), Some(failure));
    }
}

/// Refuses what only a launcher can do that starts the processes itself.
fn check_starter(config: &TrainConfig, how: &JobSpec) -> Result<(), JobFailure> {
    match how.gathering {
        None => Ok(()),
        Some(_) if config.restarts > 0 => Err(JobFailure::RestartByOthers),
        Some(_) if config.fewest_workers.is_some() => Err(JobFailure::ResizeByOthers),
        Some(_) if config.launcher_patience_ms.is_some() => Err(JobFailure::TakeoverByOthers),
        Some(_) => Ok(()),
    }
}

/// Returns the job as it begins once more, for `why`, when it is to; none if it is interrupted before. A disk that does not
/// answer costs a restart.
///
/// # Errors
/// When there is nothing to go on from, or what there is cannot be read and this was the last restart.
fn begin_again(
    now: &Prepared,
    attempts: &mut Attempts,
    mut why: String,
    how: &JobSpec,
    on_update: &mut dyn FnMut(TrainUpdate),
) -> Result<Option<Prepared>, CheckpointError> {
    loop {
        let next = match now.again() {
            Err(unread) if unread.is_unread() && !attempts.was_last() => Err(unread),
            next => Ok(next?),
        };
        let began = now.steps_done();
        let step = next.as_ref().map_or(began, Prepared::steps_done);
        attempts.restarts += 1;
        let pause = attempts.pause(step > began);
        let (restart, most) = (attempts.restarts, attempts.most);
        let told = next.as_ref().map_or_else(|unread| format!("{why}; {unread}"), |_| why.clone());
        how.status.iter().for_each(|status| status.launches_again(&told));
        on_update(JobUpdate::Restarting { why: told, step, restart, most, pause });
        let job = next.as_ref().unwrap_or(now).job(how);
        if !wait(pause, &job, &launched_within(pause)) {
            return Ok(None);
        }
        match next {
            Ok(next) => return Ok(Some(next)),
            Err(unread) => why = unread.to_string(),
        }
    }
}

fn launch_once(
    prepared: &Prepared,
    how: &JobSpec,
    on_update: &mut dyn FnMut(TrainUpdate),
) -> Result<TrainOutcome, JobFailure> {
    let mut collector = prepared.collector();
    let keeper = prepared.keeper(how.abandoned.is_some());
    let mut servers_replaced = 0;
    let outcome = launch::<Training>(&prepared.job(how), &mut |update| {
        match (&mut collector, &update) {
            (Some(trace), JobUpdate::Started { rank, pid }) => {
                let is_here = prepared.config.hosts.is_here(*rank);
                trace.started(prepared.part_of(*rank), *rank, *pid, is_here);
            }
            (trace, JobUpdate::Clock { rank, reading }) => {
                if let Some(trace) = trace {
                    trace.read_clock(prepared.part_of(*rank), *reading);
                }
                return;
            }
            (trace, JobUpdate::Recorded { rank, values }) => {
                let mut events = Vec::with_capacity(values.len());
                for value in values {
                    match (value, &keeper) {
                        (MemberRecord::Trace(event), _) => events.push(*event),
                        (MemberRecord::Shard(shard), Some(keeper)) => keeper.add(shard.clone()),
                        (MemberRecord::Evaluated { step, evaluation }, Some(keeper)) => {
                            keeper.evaluated(*step, evaluation.clone());
                        }
                        // nobody asked for it
                        (_, None) => {}
                    }
                }
                if let Some(trace) = trace {
                    trace.add(prepared.part_of(*rank), &events);
                }
                return;
            }
            (_, JobUpdate::Replacing { .. }) => servers_replaced += 1,
            // worker 0 evaluates while the job runs
            (_, JobUpdate::Shrunk { rank: Rank(0), .. }) => {
                if let Some(keeper) = &keeper {
                    keeper.evaluator_is_lost();
                }
            }
            _ => {}
        }
        on_update(update);
    });
    if let (Some(keeper), Ok(done)) = (&keeper, &outcome) {
        done.reports
            .values()
            .filter(|report| !report.interrupted)
            .for_each(|r| keeper.concluded(r));
    }
    // the last checkpoint is there when this returns
    drop(keeper);
    let written = collector.map(Collector::write).transpose();
    let (done, trace) = first_error(outcome.map_err(JobFailure::from), written)?;
    if done.reports.values().any(|report| report.interrupted) {
        return Err(JobError::Interrupted.into());
    }
    let settled = done.negotiated.or(prepared.config.settled_transport());
    let transport = settled.unwrap_or(prepared.config.transport);
    let reports = done.reports;
    Ok(TrainOutcome {
        reports,
        transport,
        servers_replaced,
        restarts: 0,
        resizes: 0,
        began_behind: 0,
        trace,
    })
}

/// Why a job failed matters more than why its trace was not written.
pub(crate) fn first_error<T, E: From<TraceError>>(
    done: Result<T, E>,
    written: Result<Option<TraceSummary>, TraceError>,
) -> Result<(T, Option<TraceSummary>), E> {
    match (done, written) {
        (Ok(done), Ok(trace)) => Ok((done, trace)),
        (Ok(_), Err(error)) => Err(error.into()),
        (Err(first), written) => {
            if let Err(error) = written {
                tracing::warn!("{error}");
            }
            Err(first)
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What a failure says where a file could not be read.
    pub(crate) const UNREAD: &str = "cannot read";

    /// A failure of worker 0.
    pub(crate) fn failed(
        step: u64,
        cause: &str,
        is_own_word: bool,
        user_error: bool,
    ) -> JobFailure {
        let (step, cause, role) = (Some(step), cause.to_string(), "worker 0".to_string());
        let (rank, pid, host, remarks) = (Rank(0), 7, None, Vec::new());
        let unread = cause == UNREAD;
        let first = FirstFailure {
            rank,
            role,
            pid,
            host,
            step,
            cause,
            is_own_word,
            user_error,
            unread,
            remarks,
        };
        JobError::Failed(Box::new(first)).into()
    }

    #[test]
    fn what_the_user_can_mend_is_not_tried_again_nor_what_fails_twice_by_its_own_word() {
        assert!(failed(3, "killed", false, false).may_pass(false));
        assert!(!failed(3, "no such file", true, true).may_pass(true));
        assert!(!JobFailure::from(JobError::Interrupted).may_pass(true));
        let disk = || failed(3, UNREAD, true, true);
        assert!(!disk().may_pass(false) && disk().may_pass(true));
        assert!(!disk().repeats(&disk()), "it may answer the third time");
        let diverged = || failed(3, "diverged", true, false);
        assert!(diverged().repeats(&diverged()));
        assert!(!diverged().repeats(&failed(4, "diverged", true, false)));
        assert!(!failed(3, "killed", false, false).repeats(&failed(3, "killed", false, false)));
    }
}
