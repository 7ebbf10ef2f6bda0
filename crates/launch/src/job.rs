//! A job as data: what is to be launched, what is told of it while it runs, what its members reported, and why it was
//! not done. What members say is in the job's own form ([`Messages`]), and is decoded here, once.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tensorwire_base::{Rank, number_of};
use tensorwire_fabric::{VerbsOptions, VerbsUnusable};

use crate::clock::ClockReading;
use crate::hosts::{Hosts, HostsError};
use crate::launcher;
use crate::negotiate::TransportChoice;
use crate::rendezvous::{Gathering, RendezvousError};
use crate::standing::StillMember;
use crate::status::StatusServer;
use crate::store_job::StoreJob;
use crate::takeover::{Abandoned, Takeover};
use crate::transport::Transport;
use crate::verdict::FirstFailure;

/// How long a silent member is believed to be alive where nothing else is said.
const LIVENESS: Duration = Duration::from_secs(6);

/// A job to launch.
///
/// A spec is made by [`JobSpec::new`] and completed by struct update: `JobSpec { hosts, ..JobSpec::new(…) }`.
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// The program that becomes a member: it reads its [`crate::Assignment`] from standard input.
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// Told to the members, so that one program can serve several kinds of jobs.
    pub kind: String,
    /// What each member is, by rank: `worker 0`, `server 1`.
    pub roles: Vec<String>,
    /// What the members are told of the job, in its own form ([`JobSpec::with_payload`]).
    pub payload: Value,
    /// Where the members run.
    pub hosts: Hosts,
    /// Where members wait that somebody else started; those who are not there are started by the launcher.
    pub gathering: Option<Arc<Gathering>>,
    /// Arguments with which `program` becomes the command in the arguments behind them, and ends when its
    /// parent does: what starts the members of other hosts is run so.
    pub run_with_parent: Vec<String>,
    /// Members are told by the environment that they are some ([`crate::MEMBER`], [`crate::RUN_WITH_PARENT`]), so that the
    /// arguments can be the program's own.
    pub marks_members: bool,
    /// Where members of other hosts begin, if there is such a folder; none: where a login does.
    pub folder: Option<PathBuf>,
    /// RDMA is wanted and nothing else: a job with members here is not begun if this host cannot.
    pub verbs: Option<VerbsOptions>,
    /// Where to listen for the members; port 0: the system chooses. None: on loopback, or where the
    /// other hosts reach this one.
    pub listen: Option<SocketAddr>,
    /// The launcher is the scheduler of a store of workers and servers, in this order of ranks. Whoever comes
    /// behind them has no part in the store, and the job cannot do without.
    pub store: Option<StoreJob>,
    /// How long a silent member is believed to be alive.
    pub liveness: Duration,
    /// How long a step of the set-up may wait for members that live: until they have read their data, and what they go on from.
    /// None: four times as long as a silent one is believed to be alive.
    pub set_up: Option<Duration>,
    /// Set to end the job.
    pub interrupt: Arc<AtomicBool>,
    /// Set to end a job that is interrupted without waiting for a step ([`JobSpec::wind_down`]).
    pub at_once: Arc<AtomicBool>,
    /// Set beside `interrupt` where it is somebody else who has it end ([`crate::stop_job`]).
    pub stopped: Arc<AtomicBool>,
    /// What it is, in a few words, and how many steps it has, for whoever asks how it stands.
    pub title: String,
    pub steps: Option<u64>,
    /// Behind which step it begins.
    pub steps_done: u64,
    /// Where whoever of this user asks how it stands finds it ([`crate::job_status`]); none: nobody is answered.
    pub status_folder: Option<PathBuf>,
    /// What answers there, of a job that is launched more than once; none: its launcher does, as long as it runs.
    pub status: Option<Arc<StatusServer>>,
    /// What may be asked of the job while it runs, beside how it stands.
    pub control: Option<Arc<dyn JobControl>>,
    /// Members that make the same steps end behind the same one when the job is interrupted, as long as one of them does
    /// something ([`crate::Member::is_watched`]), and for so long behind that; none: at once.
    pub wind_down: Option<Duration>,
    /// Members outlive a launcher that is killed, and wait for another. Not where somebody else started them.
    pub takeover: Option<Takeover>,
    /// The job runs already, and its launcher was killed: this one takes it over.
    pub abandoned: Option<Abandoned>,
}

impl JobSpec {
    /// A job on this host, with a member for each of `roles`: each is `program`, started without arguments and told
    /// nothing. A member is believed to be alive for 6 s after its last word.
    pub fn new(program: impl Into<PathBuf>, kind: &str, roles: Vec<String>) -> JobSpec {
        JobSpec {
            program: program.into(),
            arguments: Vec::new(),
            kind: kind.to_string(),
            roles,
            payload: Value::Null,
            hosts: Hosts::default(),
            gathering: None,
            run_with_parent: Vec::new(),
            marks_members: false,
            folder: None,
            verbs: None,
            listen: None,
            store: None,
            liveness: LIVENESS,
            set_up: None,
            interrupt: Arc::default(),
            at_once: Arc::default(),
            stopped: Arc::default(),
            title: kind.to_string(),
            steps: None,
            steps_done: 0,
            status_folder: None,
            status: None,
            control: None,
            wind_down: None,
            takeover: None,
            abandoned: None,
        }
    }

    /// The same job, whose members are told `payload`.
    ///
    /// # Errors
    /// When it has no form in JSON, such as a map whose keys are no text.
    pub fn with_payload(self, payload: &impl Serialize) -> Result<JobSpec, JobError> {
        Ok(JobSpec { payload: serde_json::to_value(payload).map_err(JobError::Payload)?, ..self })
    }
}

/// What may be asked of a job while it runs.
pub trait JobControl: std::fmt::Debug + Send + Sync {
    /// Is to go on so; returns what comes of it.
    ///
    /// # Errors
    /// Why it cannot, and how to mend it.
    fn scale(&self, wanted: &Resize) -> Result<Scaled, String>;

    /// Returns how the job is to go on, while all members are to end behind the same step for that, as if it were interrupted
    /// ([`JobSpec::wind_down`]).
    fn pauses_for(&self) -> Option<Resize>;
}

/// How a job is to go on behind the step that it is in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resize {
    pub workers: u32,
    /// Where its processes are to run; none: where they do.
    pub hosts: Option<Hosts>,
    /// Where its launcher is to listen, with other hosts; none: where it did.
    pub listen: Option<SocketAddr>,
}

/// What comes of what was asked of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scaled {
    /// In words.
    pub said: String,
    /// It ends behind its present step for that; otherwise it runs so already.
    pub changes: bool,
}

/// What the members of one kind of job say to their launcher. Implemented by a type without values.
pub trait Messages {
    /// What a member shows while it runs ([`crate::Member::progress`]).
    type Progress: DeserializeOwned;
    /// What it records ([`crate::Member::record`]).
    type Record: DeserializeOwned;
    /// What it says at the end ([`crate::Member::finish`]).
    type Report: DeserializeOwned;
}

/// Members that only report, with an `R`; what else they say is not looked at.
#[derive(Debug)]
pub struct Reports<R>(PhantomData<R>);

impl<R: DeserializeOwned> Messages for Reports<R> {
    type Progress = IgnoredAny;
    type Record = IgnoredAny;
    type Report = R;
}

/// Why all end behind a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// By a signal, such as Ctrl-C.
    Interrupted,
    /// Somebody asked the job to ([`crate::stop_job`]).
    Stopped,
    /// The job goes on in another way.
    GoesOn,
}

/// What happens while a job runs. `P` is what its members show, and `T` what they record.
#[derive(Clone, Debug)]
pub enum JobUpdate<P, T> {
    /// Members of other hosts call this address.
    Listening {
        at: SocketAddr,
    },
    /// How bytes travel, where that was not given or not sure.
    Transport(TransportChoice),
    Started {
        rank: Rank,
        pid: u32,
    },
    /// What a member chose, for people; said once, whoever else chose so.
    Said {
        line: String,
    },
    /// All members have been introduced to each other.
    Introduced,
    /// The members of a launcher that was killed are more or fewer than the job began with.
    WasResized {
        /// What each member is, by rank, and which worker.
        roles: Vec<String>,
        workers: Vec<Option<u32>>,
    },
    /// The members of a launcher that was killed go on with this one; the furthest is in this step. What they make behind `told`
    /// is told from now on.
    TakenOver {
        step: u64,
        told: u64,
    },
    /// They could not; what is left of them was ended, and the job begins behind this step.
    NotTakenOver {
        why: String,
        step: u64,
    },
    /// Nothing has moved for some time, and these members, which live, hold it up.
    StandsStill {
        members: Vec<StillMember>,
    },
    /// All end behind this step.
    Ending {
        step: u64,
        cause: EndCause,
    },
    Progress {
        rank: Rank,
        step: u64,
        value: P,
    },
    /// The clock of a member on another host was read.
    Clock {
        rank: Rank,
        reading: ClockReading,
    },
    /// What a member recorded, in order.
    Recorded {
        rank: Rank,
        values: Vec<T>,
    },
    /// A worker of an elastic store was lost; `left` of them go on.
    Shrunk {
        rank: Rank,
        why: String,
        left: usize,
    },
    /// A server of a store was lost; the member `by` is started to take its place.
    Replacing {
        server: u32,
        rank: Rank,
        why: String,
        by: Rank,
    },
    /// It is up: the workers bring it up to date.
    Replaced {
        server: u32,
        by: Rank,
    },
    /// The job failed, and whoever launched it does so again: it goes on behind `step`. What was said of later steps is
    /// said once more.
    Restarting {
        why: String,
        step: u64,
        /// From 1.
        restart: u64,
        most: u64,
        /// In how long.
        pause: Duration,
    },
    /// A host without which the job cannot be launched again does not answer, and is waited for.
    AwaitsHost {
        why: String,
        host: String,
    },
    /// The job ended, and whoever launched it does so with other members: it goes on behind `step`, as above.
    Resizing {
        why: String,
        step: u64,
        /// What each member is from now on, by rank, and which worker.
        roles: Vec<String>,
        workers: Vec<Option<u32>>,
    },
}

/// A job that was done.
#[derive(Clone, Debug)]
pub struct JobOutcome<R> {
    /// What each member reported, by rank; those whose loss the job survived reported nothing.
    pub reports: BTreeMap<Rank, R>,
    /// What the members agreed on, where they were asked.
    pub negotiated: Option<Transport>,
}

/// Why a job was not done.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    #[error(
        "cannot listen on {at}: {source}; give another --listen ADDRESS:PORT, or port 0 to let the system choose"
    )]
    Listen { at: SocketAddr, source: std::io::Error },
    #[error("{0}")]
    Hosts(#[from] HostsError),
    #[error("{0}")]
    Rendezvous(#[from] RendezvousError),
    #[error("{0}")]
    Verbs(#[from] VerbsUnusable),
    #[error("cannot start {role}: {program}: {source}")]
    Spawn { role: String, program: PathBuf, source: std::io::Error },
    #[error("interrupted")]
    Interrupted,
    #[error("{role} (rank {rank}) made another plan than {first}; do all run the same version?")]
    PlansDiffer { rank: Rank, role: String, first: String },
    #[error(
        "{role} (rank {rank}): its {what} makes no sense: {source}; do all run the same version?"
    )]
    Garbled { rank: Rank, role: String, what: &'static str, source: serde_json::Error },
    #[error("what the members are to be told cannot be written as JSON: {0}")]
    Payload(serde_json::Error),
    /// The members gave up a launcher that was stopped itself.
    #[error(
        "the launcher itself was stopped for {for_s:.1} s, and its members gave it up; raise --deadline to survive that"
    )]
    Suspended { for_s: f64 },
    #[error("{0}")]
    Failed(Box<FirstFailure>),
}

impl JobError {
    /// True if the user's command made this, so that another command fixes it.
    pub fn is_user_error(&self) -> bool {
        match self {
            JobError::Listen { .. } | JobError::Hosts(_) | JobError::Verbs(_) => true,
            JobError::Failed(failure) => failure.user_error,
            _ => false,
        }
    }
}

/// Launches a job whose members speak as `M` says, and stays until it is done or has failed. All members have ended
/// when it returns.
///
/// # Errors
/// When a member fails that the job cannot do without, says what is no message of `M`, or the job is interrupted.
///
/// # Panics
/// If there is a store whose nodes are others than the roles.
pub fn launch<M: Messages>(
    spec: &JobSpec,
    on_update: &mut dyn FnMut(JobUpdate<M::Progress, M::Record>),
) -> Result<JobOutcome<M::Report>, JobError> {
    let launched = launcher::run(spec, &mut |update| {
        on_update(decode::<M>(spec, update)?);
        Ok(())
    })?;
    let decode = |(rank, report)| Ok((rank, read(spec, rank, "report", report)?));
    let reports = launched.reports.into_iter().map(decode).collect::<Result<_, JobError>>()?;
    Ok(JobOutcome { reports, negotiated: launched.negotiated })
}

/// Returns the line that tells of a restart.
pub fn restarting(why: &str, step: u64, (restart, most): (u64, u64), pause: Duration) -> String {
    let when = match pause.as_secs() {
        0 => String::new(),
        seconds => format!(" in {seconds} s"),
    };
    format!("{why}; restart {restart} of {most}{when}, from step {step}")
}

/// Returns the line that tells of a host that is waited for ([`JobUpdate::AwaitsHost`]).
pub fn awaiting(why: &str, host: &str) -> String {
    format!("{why}; {host} does not answer, and the job waits for it")
}

/// Returns the line that tells of a job that had gone on with other workers ([`JobUpdate::WasResized`]).
pub fn was_resized(workers: &[Option<u32>]) -> String {
    let count = number_of(workers.iter().flatten().count(), "worker");
    format!("the job has gone on with {count} since it began; `tensorwire scale` changes that")
}

/// Says that all end behind a step ([`JobUpdate::Ending`]); `hears_another`: the launcher ends them at once when Ctrl-C comes again.
/// None where the job goes on: what comes then is said then.
pub fn ending_behind(step: u64, cause: EndCause, hears_another: bool) -> Option<String> {
    let (why, another) = match cause {
        EndCause::GoesOn => return None,
        EndCause::Stopped => ("stopped", ""),
        EndCause::Interrupted if hears_another => {
            ("interrupted", "; another Ctrl-C ends them at once")
        }
        EndCause::Interrupted => ("interrupted", ""),
    };
    Some(match step {
        0 => format!("{why}: all end before the first step{another}"),
        _ => format!("{why}: all end behind step {step}, once its checkpoint is written{another}"),
    })
}

/// An update as it comes from the members, and who takes it: an error ends the job.
pub(crate) type RawUpdate = JobUpdate<Value, Value>;
pub(crate) type OnUpdate<'a> = dyn FnMut(RawUpdate) -> Result<(), JobError> + 'a;

fn decode<M: Messages>(
    spec: &JobSpec,
    update: RawUpdate,
) -> Result<JobUpdate<M::Progress, M::Record>, JobError> {
    Ok(match update {
        JobUpdate::Progress { rank, step, value } => {
            JobUpdate::Progress { rank, step, value: read(spec, rank, "progress", value)? }
        }
        JobUpdate::Recorded { rank, values } => {
            let values = values.into_iter().map(|value| read(spec, rank, "record", value));
            JobUpdate::Recorded { rank, values: values.collect::<Result<_, _>>()? }
        }
        JobUpdate::Listening { at } => JobUpdate::Listening { at },
        JobUpdate::Transport(choice) => JobUpdate::Transport(choice),
        JobUpdate::Started { rank, pid } => JobUpdate::Started { rank, pid },
        JobUpdate::Clock { rank, reading } => JobUpdate::Clock { rank, reading },
        JobUpdate::Said { line } => JobUpdate::Said { line },
        JobUpdate::Introduced => JobUpdate::Introduced,
        JobUpdate::WasResized { roles, workers } => JobUpdate::WasResized { roles, workers },
        JobUpdate::TakenOver { step, told } => JobUpdate::TakenOver { step, told },
        JobUpdate::NotTakenOver { why, step } => JobUpdate::NotTakenOver { why, step },
        JobUpdate::StandsStill { members } => JobUpdate::StandsStill { members },
        JobUpdate::Ending { step, cause } => JobUpdate::Ending { step, cause },
        JobUpdate::Shrunk { rank, why, left } => JobUpdate::Shrunk { rank, why, left },
        JobUpdate::Replacing { server, rank, why, by } => {
            JobUpdate::Replacing { server, rank, why, by }
        }
        JobUpdate::Replaced { server, by } => JobUpdate::Replaced { server, by },
        JobUpdate::Restarting { why, step, restart, most, pause } => {
            JobUpdate::Restarting { why, step, restart, most, pause }
        }
        JobUpdate::AwaitsHost { why, host } => JobUpdate::AwaitsHost { why, host },
        JobUpdate::Resizing { why, step, roles, workers } => {
            JobUpdate::Resizing { why, step, roles, workers }
        }
    })
}

/// What a member said, in the job's form.
fn read<T: DeserializeOwned>(
    spec: &JobSpec,
    rank: Rank,
    what: &'static str,
    value: Value,
) -> Result<T, JobError> {
    serde_json::from_value(value).map_err(|source| {
        // whoever comes later replaces a server
        let role = spec.roles.get(rank.index()).map_or("a new server", String::as_str);
        JobError::Garbled { rank, role: role.to_string(), what, source }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Seen {
        count: u32,
    }

    struct Tests;

    impl Messages for Tests {
        type Progress = Seen;
        type Record = bool;
        type Report = Seen;
    }

    fn spec() -> JobSpec {
        JobSpec::new("program", "tests", vec!["worker 0".to_string(), "server 0".to_string()])
    }

    #[test]
    fn what_members_say_is_decoded_once() {
        let said = JobUpdate::Progress { rank: Rank(1), step: 3, value: json!({"count": 7}) };
        let Ok(JobUpdate::Progress { rank: Rank(1), step: 3, value }) =
            decode::<Tests>(&spec(), said)
        else {
            panic!("it is progress");
        };
        assert_eq!(value, Seen { count: 7 });
        let said = JobUpdate::Recorded { rank: Rank(0), values: vec![true.into(), false.into()] };
        let Ok(JobUpdate::Recorded { values, .. }) = decode::<Tests>(&spec(), said) else {
            panic!("they are records");
        };
        assert_eq!(values, [true, false]);
    }

    #[test]
    fn what_makes_no_sense_names_the_member_that_said_it() {
        let said = JobUpdate::Progress { rank: Rank(1), step: 3, value: json!({"count": "seven"}) };
        let error = decode::<Tests>(&spec(), said).unwrap_err().to_string();
        assert!(error.starts_with("server 0 (rank 1): its progress makes no sense"), "{error}");
        let said = JobUpdate::Recorded { rank: Rank(0), values: vec![true.into(), 2.into()] };
        let error = decode::<Tests>(&spec(), said).unwrap_err().to_string();
        assert!(error.starts_with("worker 0 (rank 0): its record makes no sense"), "{error}");
        let error = read::<Seen>(&spec(), Rank(2), "report", Value::Null).unwrap_err().to_string();
        assert!(error.starts_with("a new server (rank 2): its report"), "{error}");
    }

    #[test]
    fn a_payload_that_is_no_json_is_an_error() {
        let odd = BTreeMap::from([((1, 2), 3)]);
        assert!(matches!(spec().with_payload(&odd), Err(JobError::Payload(_))));
        assert_eq!(spec().with_payload(&[1, 2]).unwrap().payload, json!([1, 2]));
    }
}
