//! What the doctor found, for people: sections with a fact a line, and the findings at the end.

mod gpus;

use std::fmt::{Display, Write};

use tensorwire_base::{human_bytes, human_seconds};
use tensorwire_doctor::{
    Examination, Facts, Finding, Limit, PeerExamined, PortFacts, Rdma, Severity, Trial,
};

use crate::output::wrapped;
use crate::table::table;

/// So many columns for what a line is about.
const LABEL: usize = 16;
/// What each host has of its own.
const OWN: [&str; 2] = ["name", "GID"];

/// The page, of `columns` at most. Lines end with a line break.
pub(crate) fn page(found: &Examination, columns: Option<usize>) -> String {
    let facts = &found.facts;
    let mut page = Page { text: String::new(), columns };
    page.text(format_args!(
        "tensorwire {} on {}, Linux {}",
        facts.version, facts.host, facts.kernel
    ));
    machine(&mut page, facts);
    rdma(&mut page, facts);
    gpus::gpus(&mut page, facts);
    page.section("transports");
    page.line("auto, one host", facts.auto.one_host.name());
    let several = format!("{}: {}", facts.auto.several_hosts.name(), facts.auto.why);
    page.line("auto, several", several);
    for trial in &found.trials {
        page.line(trial.transport.name(), tried(trial));
    }
    if let Some(peer) = &found.peer {
        way(&mut page, facts, peer);
    }
    page.section("findings");
    let findings = found.findings.iter().filter(|finding| finding.severity > Severity::Ok);
    let mut findings: Vec<&Finding> = findings.collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    for finding in &findings {
        let host = finding.host.as_ref().map(|host| format!("{host}: ")).unwrap_or_default();
        page.line(finding.severity.name(), format_args!("{host}{}", finding.what));
        page.line("", &finding.why);
        if let Some(mend) = &finding.mend {
            page.line("", format_args!("→ {mend}"));
        }
    }
    if findings.is_empty() {
        page.line("ok", "nothing to fix");
    }
    page.text
}

struct Page {
    text: String,
    columns: Option<usize>,
}

impl Page {
    fn text(&mut self, text: impl Display) {
        // a string takes everything
        let _ = writeln!(self.text, "{text}");
    }

    fn section(&mut self, name: impl Display) {
        self.text(format_args!("\n{name}"));
    }

    fn line(&mut self, label: &str, value: impl Display) {
        let line = format!("  {label:LABEL$} {value}");
        // what a line is about stands alone
        self.text(wrapped(&line, self.columns, LABEL + 3));
    }
}

fn machine(page: &mut Page, facts: &Facts) {
    let computer = &facts.computer;
    page.section("machine");
    page.line("cores", cores(facts));
    page.line("memory", memory(facts));
    page.line("container", computer.container.as_deref().unwrap_or("no sign of one"));
    page.line("open files", limit(computer.open_files, |count| count.to_string()));
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_string(), human_bytes);
    let shared = &facts.shared_memory;
    let memfd = match &shared.memfd_error {
        None => "works".to_string(),
        Some(error) => format!("fails ({error})"),
    };
    page.line(
        "shared memory",
        format_args!(
            "memfd {memfd}; /dev/shm has {}, {} free (tensorwire does not use it)",
            size(shared.dev_shm_bytes),
            size(shared.dev_shm_available_bytes)
        ),
    );
}

fn rdma(page: &mut Page, facts: &Facts) {
    let rdma = &facts.rdma;
    page.section("RDMA");
    page.line("libibverbs", library(rdma));
    let there = rdma.providers.iter().filter(|provider| provider.library.is_some());
    let names: Vec<&str> = there.map(|provider| provider.name.as_str()).collect();
    let missing = rdma.providers.iter().filter(|provider| provider.library.is_none());
    let missing: Vec<&str> = missing.map(|provider| provider.name.as_str()).collect();
    let without = if missing.is_empty() {
        String::new()
    } else {
        format!("; without their library: {}", missing.join(" "))
    };
    page.line("providers", format_args!("{}{without}", or_none(&names.join(" "))));
    page.line("kernel modules", or_none(&rdma.modules.join(" ")));
    let files = rdma.files.iter().map(|file| {
        let path = &file.path;
        if file.usable { path.clone() } else { format!("{path} (no permission)") }
    });
    page.line("device files", or_none(&files.collect::<Vec<_>>().join(" ")));
    page.line("devices", or_none(&rdma.devices.join(" ")));
    for nic in &rdma.nics {
        for port in &nic.ports {
            page.line(&format!("{} port {}", nic.name, port.number), line_of(port));
            for gid in &port.gids {
                let mark = if gid.picked { "  ← taken" } else { "" };
                let label = format!("  GID {}", gid.index);
                page.line(&label, format_args!("{}  {}{mark}", gid.kind, gid.address));
            }
        }
    }
    if let Some(pick) = &rdma.pick {
        page.line("taken", &pick.why);
    }
    page.line("locked memory", locked(facts));
    page.line("GPUDirect", gpu(facts));
}

fn cores(facts: &Facts) -> String {
    let granted = facts.computer.cores_granted;
    let granted = granted.map(|granted| format!(", of which a control group grants {granted:.1}"));
    format!("{}{}", facts.computer.cores, granted.unwrap_or_default())
}

fn memory(facts: &Facts) -> String {
    let computer = &facts.computer;
    let granted = computer.memory_granted_bytes;
    let granted =
        granted.map(|granted| format!("; a control group grants {}", human_bytes(granted)));
    let (all, available) = (computer.memory_bytes, computer.memory_available_bytes);
    let (all, available) = (human_bytes(all), human_bytes(available));
    format!("{all}, {available} available{}", granted.unwrap_or_default())
}

fn library(rdma: &Rdma) -> String {
    match (&rdma.library.path, &rdma.library.error) {
        (Some(path), _) => {
            format!("{} ({path})", rdma.library.version.as_deref().unwrap_or("of unknown version"))
        }
        (None, Some(error)) => format!("cannot be loaded: {error}"),
        (None, None) => "loaded".to_string(),
    }
}

fn line_of(port: &PortFacts) -> String {
    let rate = port.rate.as_ref().map(|rate| format!(", {rate}")).unwrap_or_default();
    let interface = port.interface.as_ref().map(|interface| {
        let mtu = port.interface_mtu.map(|mtu| format!(" (MTU {mtu})"));
        format!(", interface {interface}{}", mtu.unwrap_or_default())
    });
    format!(
        "{}, {}{rate}, MTU {} of at most {}{}",
        port.state,
        port.link,
        port.mtu,
        port.mtu_max,
        interface.unwrap_or_default()
    )
}

fn locked(facts: &Facts) -> String {
    let capability = match facts.locking.ipc_lock {
        true => "; CAP_IPC_LOCK is in effect, which lifts the limit",
        false => "; without CAP_IPC_LOCK",
    };
    format!("{}{capability}", limit(facts.locking.memlock, human_bytes))
}

fn gpu(facts: &Facts) -> String {
    let gpu = &facts.gpu;
    let Some(driver) = &gpu.driver else {
        return "not needed: there is no NVIDIA driver".to_string();
    };
    let way = gpu.direct().map_or_else(|| "none".to_string(), |way| format!("by {way}"));
    let yes = |it: bool| if it { "yes" } else { "no" };
    format!(
        "{way}; {} GPUs, {driver}; nvidia-peermem: {}; dma-buf: kernel {}, open modules {}",
        gpu.devices,
        yes(gpu.peermem),
        yes(gpu.dmabuf_kernel),
        yes(gpu.open_modules)
    )
}

/// What was tried over one transport, in one line.
fn tried(trial: &Trial) -> String {
    let arrived = trial.writes.iter().filter(|write| write.error.is_none());
    let largest = arrived.map(|write| write.bytes).max();
    if let Some(failure) = &trial.failure {
        let largest =
            largest.map(|bytes| format!(" (writes of up to {} arrived)", human_bytes(bytes)));
        return format!("fails{}: {failure}", largest.unwrap_or_default());
    }
    let trip =
        trial.round_trip_us.map(|us| format!("; {} there and back", human_seconds(us * 1e-6)));
    // fits: bytes a second, shown to a person
    let speed = trial.bytes_per_second.map(|speed| format!("; {}/s", human_bytes(speed as u64)));
    format!(
        "writes of 8 B to {} both ways and a read, every byte right{}{}",
        human_bytes(largest.unwrap_or(0)),
        trip.unwrap_or_default(),
        speed.unwrap_or_default()
    )
}

/// Both hosts side by side, and the way between.
fn way(page: &mut Page, here: &Facts, peer: &PeerExamined) {
    page.section(format_args!("this machine and {}", peer.host));
    if let Some(there) = &peer.facts {
        let rows = brief(here).into_iter().zip(brief(there)).map(|((what, here), (_, there))| {
            let mark = if here == there || OWN.contains(&what) { "" } else { "differs" };
            vec![format!("  {what}"), here, there, mark.to_string()]
        });
        let header = ["", "here", peer.host.as_str(), ""];
        page.text(table(&header, &rows.collect::<Vec<_>>(), &[]));
    }
    for trial in &peer.trials {
        page.line(trial.transport.name(), tried(trial));
        for choice in &trial.choices {
            page.line("", choice);
        }
    }
}

/// What two hosts are compared by.
fn brief(facts: &Facts) -> Vec<(&'static str, String)> {
    let none = || "none".to_string();
    let picked = facts.rdma.picked_port();
    let port =
        |of: &dyn Fn(&PortFacts) -> String| picked.map_or_else(none, |(_, port, _)| of(port));
    let mtu = |mtu: Option<u32>| mtu.map_or_else(none, |mtu| mtu.to_string());
    vec![
        ("name", facts.host.clone()),
        ("tensorwire", facts.version.clone()),
        ("kernel", facts.kernel.clone()),
        ("cores", cores(facts)),
        ("memory", human_bytes(facts.computer.memory_bytes)),
        ("libibverbs", facts.rdma.library.version.clone().unwrap_or_else(none)),
        (
            "NIC",
            picked.map_or_else(none, |(nic, port, _)| format!("{} port {}", nic.name, port.number)),
        ),
        ("link", port(&|port| port.link.to_string())),
        ("rate", port(&|port| port.rate.clone().unwrap_or_else(none))),
        ("MTU", port(&|port| port.mtu.to_string())),
        ("interface MTU", port(&|port| mtu(port.interface_mtu))),
        ("GID's kind", picked.map_or_else(none, |(_, _, gid)| gid.kind.to_string())),
        ("GID", picked.map_or_else(none, |(_, _, gid)| gid.address.to_string())),
        ("locked memory", limit(facts.locking.memlock, human_bytes)),
        ("CAP_IPC_LOCK", if facts.locking.ipc_lock { "yes" } else { "no" }.to_string()),
        ("between hosts", facts.auto.several_hosts.name().to_string()),
    ]
}

fn limit(limit: Limit, show: fn(u64) -> String) -> String {
    let show = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_string(), show);
    match limit.soft == limit.hard {
        true => show(limit.soft),
        false => format!("{} (may be raised to {})", show(limit.soft), show(limit.hard)),
    }
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}
