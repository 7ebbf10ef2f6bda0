//! Judges: what the facts and the trials mean for training, how much it matters, and what to type. Pure.
//! RDMA that is not there keeps nobody from training, and is a note; RDMA that is there and does not work
//! would be taken for granted by a job, and is worse.

mod gpu;
mod way;

use std::fmt;

use serde::Serialize;
use tensorwire_base::{LOADS_NOTHING, human_bytes};
use tensorwire_fabric::{GidKind, PortState};

use super::facts::{Facts, GidFacts, NicFacts, PortFacts};

pub(super) use way::{peer, trial};

/// So many files a process of a job opens at most, with many peers.
const OPEN_FILES: u64 = 1024;

/// What a container needs to use the host's NIC.
const DOCKER: &str = "docker run --device=/dev/infiniband --network=host --ulimit memlock=-1 …";

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Looked at, and in order.
    Ok,
    /// Good to know.
    Note,
    /// Training works, and slower or less surely than it could.
    Warning,
    /// Training, or what was asked for, does not work.
    Error,
}

/// Something that was looked at, and what it means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub severity: Severity,
    /// For programs: stays the same when the words change.
    pub id: &'static str,
    /// The other host, where it is about that.
    pub host: Option<String>,
    pub what: String,
    /// Why it matters.
    pub why: String,
    /// What to type.
    pub mend: Option<String>,
}

impl Finding {
    fn new(severity: Severity, id: &'static str, what: String, why: &str) -> Finding {
        let (why, mend) = (why.to_string(), None);
        Finding { severity, id, host: None, what, why, mend }
    }

    fn mended_by(self, mend: impl Into<String>) -> Finding {
        Finding { mend: Some(mend.into()), ..self }
    }
}

/// The worst there is.
pub(super) fn worst(findings: &[Finding]) -> Severity {
    findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok)
}

/// What a machine's facts mean. `asked`: the user named a NIC or a GID, so that it must be there.
pub(super) fn machine(facts: &Facts, asked: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(shared_memory(facts));
    findings.extend(computer(facts));
    findings.push(rdma(facts, asked));
    if facts.rdma.obstacle.is_none() {
        findings.extend(port(facts));
    }
    findings.extend(memlock(facts));
    findings.extend(gpu::gpus(facts));
    findings
}

fn shared_memory(facts: &Facts) -> Option<Finding> {
    let error = facts.shared_memory.memfd_error.as_ref()?;
    let what = format!("anonymous shared memory cannot be made ({error})");
    let why = "processes of one host train through it";
    let mend = match &facts.computer.container {
        Some(_) => "docker run --security-opt seccomp=unconfined …",
        None => "ulimit -n 65536",
    };
    Some(Finding::new(Severity::Error, "no-shared-memory", what, why).mended_by(mend))
}

fn computer(facts: &Facts) -> Vec<Finding> {
    let computer = &facts.computer;
    let mut findings = Vec::new();
    // a process raises its own limit as far as it may
    if let Some(hard) = computer.open_files.hard.filter(|&hard| hard < OPEN_FILES) {
        let what = format!("a process may open {hard} files");
        let why = "each connection to a peer is one; a job with many processes needs more";
        let finding = Finding::new(Severity::Warning, "open-files", what, why);
        let mend = match &computer.container {
            Some(_) => "docker run --ulimit nofile=65536 …",
            None => {
                "echo '* - nofile 65536' | sudo tee /etc/security/limits.d/files.conf   # and log in again; \
                 a service: LimitNOFILE=65536"
            }
        };
        findings.push(finding.mended_by(mend));
    }
    // fits: a count of cores
    if let Some(granted) = computer.cores_granted.filter(|&g| g + 0.01 < f64::from(computer.cores))
    {
        let what = format!("a control group grants {granted:.1} of {} cores", computer.cores);
        let why = "processes are stopped for the rest of each period when they have used that up";
        let finding = Finding::new(Severity::Note, "cores-granted", what, why);
        findings.push(
            finding.mended_by(format!("docker run --cpus={} …, or --threads 1", computer.cores)),
        );
    }
    if let Some(granted) = computer.memory_granted_bytes.filter(|&g| g < computer.memory_bytes) {
        let (granted, all) = (human_bytes(granted), human_bytes(computer.memory_bytes));
        let what = format!("a control group grants {granted} of {all} of memory");
        let why = "what is over that is killed (SIGKILL), although the machine has more";
        let finding = Finding::new(Severity::Note, "memory-granted", what, why);
        findings.push(
            finding.mended_by("docker run --memory=… (or the limit of your container or service)"),
        );
    }
    findings
}

/// Whether RDMA can be had, or what is in the way.
fn rdma(facts: &Facts, asked: bool) -> Finding {
    let rdma = &facts.rdma;
    let Some(obstacle) = &rdma.obstacle else {
        let why = rdma.pick.as_ref().map(|pick| pick.why.clone());
        let what = why.unwrap_or_else(|| "RDMA can be used".to_string());
        return Finding::new(Severity::Ok, "rdma", what, "what --transport verbs would take");
    };
    let there = !rdma.devices.is_empty() || !rdma.nics.is_empty();
    let (severity, why) = match () {
        () if asked => {
            (Severity::Error, "a NIC or a GID was named, and a job with it would end here")
        }
        () if there => (
            Severity::Warning,
            "several hosts train over TCP although there is an RDMA NIC, or not at all with --transport verbs",
        ),
        () => (
            Severity::Note,
            "several hosts train over TCP, which costs processor time and latency; one host does not mind",
        ),
    };
    let (id, what, mend) = match there {
        true => unusable(facts, asked),
        false => missing(facts),
    }
    .unwrap_or_else(|| ("rdma-unusable", obstacle.reason.clone(), obstacle.mend.clone()));
    Finding::new(severity, id, what, why).mended_by(mend)
}

/// A finding's id, what it is, and what mends it.
type InTheWay = Option<(&'static str, String, String)>;

fn library(facts: &Facts) -> InTheWay {
    let error = facts.rdma.library.error.as_ref()?;
    let what = format!("libibverbs cannot be loaded ({error})");
    let usual = "apt-get install rdma-core ibverbs-providers";
    Some(("rdma-library", what, LOADS_NOTHING.map_or(usual, |program| program.mend).into()))
}

/// Why there is no NIC.
fn missing(facts: &Facts) -> InTheWay {
    library(facts).or_else(|| {
        let interface = facts.rdma.default_interface.as_deref().unwrap_or("INTERFACE");
        let soft = format!("modprobe rdma_rxe && rdma link add rxe0 type rxe netdev {interface}");
        let (what, mend) = match facts.computer.container {
            Some(_) => (
                "there is no RDMA NIC in this container",
                format!("{DOCKER}, if the host has one, or has: {soft}"),
            ),
            None => ("there is no RDMA NIC; to try RDMA, a software device will do", soft),
        };
        Some(("rdma-no-nic", what.into(), mend))
    })
}

/// Why a NIC that is there cannot be used, from the bottom up: each hides the next.
fn unusable(facts: &Facts, asked: bool) -> InTheWay {
    let rdma = &facts.rdma;
    if rdma.library.error.is_some() {
        return library(facts);
    }
    if rdma.files.is_empty() {
        let what = format!("{} is there, and no /dev/infiniband/uverbs*", rdma.devices.join(", "));
        let mend = match facts.computer.container {
            Some(_) => DOCKER,
            None => "modprobe ib_uverbs",
        };
        return Some(("rdma-no-file", what, mend.into()));
    }
    if let Some(file) = rdma.files.iter().find(|file| !file.usable) {
        let what = format!("this user may not open {}", file.path);
        return Some(("rdma-permission", what, format!("sudo chmod a+rw {}", file.path)));
    }
    if let (true, Some(name)) = (rdma.nics.is_empty(), rdma.devices.first()) {
        let what = format!("libibverbs has no driver for {name}, or cannot open it");
        return Some(("rdma-provider", what, "apt-get install ibverbs-providers".into()));
    }
    let mut ports = rdma.nics.iter().flat_map(|nic| nic.ports.iter().map(move |port| (nic, port)));
    let (nic, port) = ports.clone().next()?;
    if asked || ports.any(|(_, port)| port.state == PortState::Active) {
        return None;
    }
    let what = format!("port {} of {} is {}", port.number, nic.name, port.state);
    let interface = port.interface.as_deref().unwrap_or("INTERFACE");
    Some(("rdma-port-down", what, format!("ip link set dev {interface} up")))
}

/// What to say of the port and the GID that a job would take.
fn port(facts: &Facts) -> Vec<Finding> {
    let Some((nic, port, gid)) = facts.rdma.picked_port() else {
        return Vec::new();
    };
    mtu(nic, port).into_iter().chain(address(port, gid)).collect()
}

fn mtu(nic: &NicFacts, port: &PortFacts) -> Option<Finding> {
    let (interface, interface_mtu) = (port.interface.as_ref()?, port.interface_mtu?);
    if port.mtu >= port.mtu_max {
        return None;
    }
    let what = format!(
        "packets of {} carry {} of at most {} bytes, for the MTU of {interface} is {interface_mtu}",
        nic.name, port.mtu, port.mtu_max
    );
    let why =
        "more packets a tensor; every host, and every switch between them, must take larger ones";
    let finding = Finding::new(Severity::Note, "rdma-mtu", what, why);
    Some(finding.mended_by(format!("ip link set dev {interface} mtu {}", frame(port.mtu_max))))
}

/// The interface's MTU that packets of so many bytes need, with their headers.
fn frame(mtu: u32) -> u32 {
    mtu + 104
}

fn address(port: &PortFacts, gid: &GidFacts) -> Option<Finding> {
    let interface = port.interface.as_deref().unwrap_or("INTERFACE");
    let link_local = match gid.address {
        std::net::IpAddr::V4(address) => address.is_link_local(),
        std::net::IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let (id, what) = match gid.kind {
        GidKind::InfiniBand => return None,
        GidKind::RoceV1 => ("rdma-gid-v1", format!("the best GID, {}, is of RoCE v1", gid.address)),
        GidKind::RoceV2 if link_local => {
            ("rdma-gid-link-local", format!("the best GID, {}, is link-local", gid.address))
        }
        GidKind::RoceV2 => return None,
    };
    let why = "it reaches no host beyond the same switch, and some not even there";
    let finding = Finding::new(Severity::Warning, id, what, why);
    Some(finding.mended_by(format!("ip addr add ADDRESS/24 dev {interface}")))
}

fn memlock(facts: &Facts) -> Option<Finding> {
    let limit = facts.locking.memlock;
    let soft = limit.soft.filter(|&soft| soft < facts.computer.memory_bytes)?;
    if facts.locking.ipc_lock || facts.rdma.nics.is_empty() {
        return None;
    }
    let what = format!("this process may lock {} in memory", human_bytes(soft));
    let why = "what an RDMA NIC reads and writes is locked: a larger model ends with an error";
    let mend = match (&facts.computer.container, limit.hard) {
        (Some(_), _) => {
            "docker run --ulimit memlock=-1 …; Kubernetes: LimitMEMLOCK=infinity for containerd, or a pod of root's with IPC_LOCK"
        }
        (None, None) => "ulimit -l unlimited",
        (None, Some(_)) => {
            "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/rdma.conf   # and log in again; \
             a service: LimitMEMLOCK=infinity"
        }
    };
    Some(Finding::new(Severity::Warning, "memlock", what, why).mended_by(mend))
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// One line, without what mends it.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(host) = &self.host {
            write!(f, "{host}: ")?;
        }
        write!(f, "{}; {}", self.what, self.why)
    }
}

#[cfg(test)]
mod tests;
