//! The way to another host: a job of two members, the second of which is started there as any job starts
//! its members. It tells the facts of its machine, and the transports are tried between the two. One
//! job a transport, so that one that fails spoils nothing of the others.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::VerbsOptions;

use super::CudaSearch;
use super::facts::Facts;
use super::look;
use super::trial::{self, PATIENCE, Trial};
use tensorwire_launch::Transport;
use tensorwire_launch::{
    Blame, Hosts, HostsError, JobError, JobSpec, JobUpdate, JoinError, Member, MemberError,
    Messages, Peers, QUEUE_PAIRS, WireOptions, launch,
};

/// The kind of job that [`doctor_member`] takes part in.
pub const DOCTOR: &str = "doctor";

/// The member that drives is here, the other on the host in question.
const HERE: Rank = Rank(0);
const THERE: Rank = Rank(1);
/// Two members on two hosts have a core each.
const SPIN: Duration = Duration::from_micros(20);

/// What was found out about another host, and the way to it.
#[derive(Clone, Debug, Serialize)]
pub struct PeerExamined {
    /// As the user gave it.
    pub host: String,
    /// None where no process could be started there, or none called back.
    pub facts: Option<Facts>,
    pub differences: Vec<Difference>,
    pub trials: Vec<Trial>,
}

/// Something that is not the same on both hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub what: &'static str,
    pub here: String,
    pub there: String,
}

/// Why a peer could not be examined.
#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    #[error("--peer: '{found}' is no host; write one NAME, USER@NAME or address")]
    Peer { found: String },
    #[error("{}", of_peer(.0))]
    Hosts(#[from] HostsError),
    #[error(transparent)]
    Job(#[from] JobError),
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Member(#[from] MemberError),
    #[error("the end on this machine reported no trial; do both run the same version?")]
    NoTrial,
    #[error("telling the launcher: {0}")]
    Control(#[from] std::io::Error),
}

/// What both members are told.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Task {
    transport: Transport,
    verbs: VerbsOptions,
    /// Tell the facts first.
    look: bool,
}

/// What the two ends of a trial say: the other one shows its facts if it is asked to.
#[derive(Debug)]
struct Ends;

impl Messages for Ends {
    type Progress = Facts;
    type Record = ();
    type Report = EndReport;
}

/// What an end reports.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum EndReport {
    Drove(Trial),
    /// What went wrong, if anything did.
    Served(Option<String>),
}

impl DoctorError {
    /// True if the user's command made this, so that another command fixes it.
    pub fn is_user_error(&self) -> bool {
        match self {
            DoctorError::Peer { .. } | DoctorError::Hosts(_) => true,
            DoctorError::Job(error) => error.is_user_error(),
            _ => false,
        }
    }
}

/// Examines `host` and the way there. `job` says how to start members; the rest is filled in. `rsh` starts a
/// command there.
///
/// # Errors
/// When `host` or `rsh` makes no sense, or the job is interrupted; what goes wrong with the host is a trial
/// that failed.
pub fn examine_peer(
    host: &str,
    hosts: Hosts,
    options: &VerbsOptions,
    here: &Facts,
    job: &JobSpec,
) -> Result<PeerExamined, DoctorError> {
    let job = JobSpec {
        kind: DOCTOR.to_string(),
        roles: vec!["doctor".to_string(), "doctor's peer".to_string()],
        hosts,
        ..job.clone()
    };
    let mut peer = PeerExamined {
        host: host.to_string(),
        facts: None,
        differences: Vec::new(),
        trials: Vec::new(),
    };
    let trial = try_over(Transport::Tcp, options, &job, &mut peer.facts)?;
    peer.trials.push(trial);
    if let Some(there) = &peer.facts {
        peer.differences = differences(here, there);
        if here.rdma.obstacle.is_none() && there.rdma.obstacle.is_none() {
            let trial = try_over(Transport::Verbs, options, &job, &mut None)?;
            peer.trials.push(trial);
        }
    }
    Ok(peer)
}

/// This machine and one other, where `rsh` starts a process.
///
/// # Errors
/// When it is no host, or one that cannot be found.
pub fn hosts_of_peer(host: &str, rsh: &str) -> Result<Hosts, DoctorError> {
    Ok(hosts(host)?.started_by(rsh)?)
}

fn hosts(host: &str) -> Result<Hosts, DoctorError> {
    // what --hosts would take for a list, or for a file
    if host.contains(',') || host.starts_with('@') {
        return Err(DoctorError::Peer { found: host.to_string() });
    }
    let both = format!("localhost,{host}").parse();
    both.map_err(|error| match error {
        HostsError::BadHost { found } => DoctorError::Peer { found },
        error => error.into(),
    })
}

fn try_over(
    transport: Transport,
    options: &VerbsOptions,
    job: &JobSpec,
    facts: &mut Option<Facts>,
) -> Result<Trial, DoctorError> {
    let task = Task { transport, verbs: options.clone(), look: facts.is_none() };
    let job = job.clone().with_payload(&task)?;
    let done = launch::<Ends>(&job, &mut |update| {
        if let JobUpdate::Progress { rank: THERE, value, .. } = update {
            *facts = Some(value);
        }
    });
    match done {
        Ok(mut outcome) => match outcome.reports.remove(&HERE) {
            Some(EndReport::Drove(trial)) => Ok(trial),
            _ => Err(DoctorError::NoTrial),
        },
        Err(JobError::Failed(failure)) => Ok(Trial::failed(transport, failure.to_string())),
        // another version, perhaps
        Err(error @ JobError::Garbled { .. }) => Ok(Trial::failed(transport, error.to_string())),
        Err(JobError::Hosts(error)) => Err(error.into()),
        Err(error) => Err(error.into()),
    }
}

/// An error of hosts by the option that this one was given by.
fn of_peer(error: &HostsError) -> String {
    error.to_string().replace("--hosts", "--peer")
}

/// What differs and matters: the rest of the facts may.
fn differences(here: &Facts, there: &Facts) -> Vec<Difference> {
    let port = |facts: &Facts, what: &dyn Fn(&super::PortFacts, &super::GidFacts) -> String| {
        facts
            .rdma
            .picked_port()
            .map_or_else(|| "none".to_string(), |(_, port, gid)| what(port, gid))
    };
    let interface_mtu = |port: &super::PortFacts| {
        port.interface_mtu.map_or_else(|| "unknown".to_string(), |mtu| mtu.to_string())
    };
    let all = [
        ("version", here.version.clone(), there.version.clone()),
        (
            "between_hosts",
            here.auto.several_hosts.name().to_string(),
            there.auto.several_hosts.name().to_string(),
        ),
        (
            "link",
            port(here, &|port, _| port.link.to_string()),
            port(there, &|port, _| port.link.to_string()),
        ),
        (
            "mtu",
            port(here, &|port, _| port.mtu.to_string()),
            port(there, &|port, _| port.mtu.to_string()),
        ),
        (
            "interface_mtu",
            port(here, &|port, _| interface_mtu(port)),
            port(there, &|port, _| interface_mtu(port)),
        ),
        (
            "gid",
            port(here, &|_, gid| gid.kind.to_string()),
            port(there, &|_, gid| gid.kind.to_string()),
        ),
    ];
    let differ = all.into_iter().filter(|(_, here, there)| here != there);
    differ.map(|(what, here, there)| Difference { what, here, there }).collect()
}

/// One end of a trial between hosts, from its assignment to its report.
///
/// # Errors
/// When the transport cannot be opened or connected; the launcher has been told then. What goes wrong later
/// is in the report.
pub fn doctor_member(member: &Member) -> Result<(), DoctorError> {
    let done = take_part(member);
    if let Err(error) = &done {
        member.fail(&error.to_string(), Blame::Own);
    }
    done
}

fn take_part(member: &Member) -> Result<(), DoctorError> {
    let task: Task = member.payload()?;
    if task.look && member.rank() == THERE {
        member.progress(look::gather(&task.verbs, &CudaSearch::default()))?;
    }
    let wire = WireOptions {
        transport: task.transport,
        verbs: task.verbs,
        arrival: None,
        encrypt: false,
        spin: SPIN,
        queue_pairs: QUEUE_PAIRS,
        peers: Peers::All,
    };
    let fabric = member.connect(&wire, DOCTOR)?;
    let deadline = Deadline::after(PATIENCE);
    let report = if member.rank() == HERE {
        EndReport::Drove(trial::drive(task.transport, fabric, THERE, deadline))
    } else {
        // the other end sees what goes wrong, and tells it
        let served = trial::serve(fabric, HERE, deadline);
        EndReport::Served(served.err().map(|error| error.to_string()))
    };
    Ok(member.finish(report)?)
}
