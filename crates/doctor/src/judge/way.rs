//! Judges trials of transports, and another host. Tells small writes that arrive while large ones do not
//! from a way on which nothing does: the first is an MTU somewhere between, the second an address, a
//! firewall or a cable.

use tensorwire_base::{human_bytes, human_seconds};

use super::{Finding, Severity, machine, memlock};
use crate::facts::Facts;
use crate::peer::{Difference, PeerExamined};
use crate::trial::Trial;
use tensorwire_launch::Transport;

/// What a trial means: one finding. `host`: the other end, where that is another host.
pub(crate) fn trial(trial: &Trial, facts: &Facts, host: Option<&str>) -> Option<Finding> {
    let name = trial.transport.name();
    let to =
        host.map_or_else(|| "on this machine".to_string(), |host| format!("to {host} and back"));
    let Some(failure) = &trial.failure else {
        let what = format!("{name} {to}: every byte arrived{}", figures(trial));
        return Some(Finding::new(
            Severity::Ok,
            id(trial, true),
            what,
            "writes of 8 B to 1 MiB, and a read",
        ));
    };
    let why = match (trial.transport, host) {
        (Transport::Verbs, _) => {
            "--transport auto would take verbs between hosts, and training would fail"
        }
        (_, Some(_)) => "no job can have processes on both hosts",
        (Transport::Shm, None) => "--transport auto takes it on one host, and training would fail",
        (_, None) => "the processes of a job call their launcher over it",
    };
    if let (Transport::Verbs, Some((arrived, failed))) = (trial.transport, trial.large_ones_fail())
    {
        let what = format!(
            "verbs {to}: writes of {} arrive and those of {} do not ({failure}): packets of full size are lost \
             on the way",
            human_bytes(arrived),
            human_bytes(failed)
        );
        let finding = Finding::new(Severity::Error, "verbs-mtu", what, why);
        return Some(finding.mended_by(narrower(facts, host)));
    }
    let what = format!("{name} {to}: {failure}");
    Some(
        Finding::new(Severity::Error, id(trial, false), what, why)
            .mended_by(mend(trial, facts, host)),
    )
}

fn id(trial: &Trial, passed: bool) -> &'static str {
    match (trial.transport, passed) {
        (Transport::Shm | Transport::Auto, true) => "shm",
        (Transport::Shm | Transport::Auto, false) => "shm-fails",
        (Transport::Tcp, true) => "tcp",
        (Transport::Tcp, false) => "tcp-fails",
        (Transport::Verbs, true) => "verbs",
        (Transport::Verbs, false) => "verbs-fails",
    }
}

/// Time of a round trip and speed, where they were measured.
fn figures(trial: &Trial) -> String {
    let trip =
        trial.round_trip_us.map(|us| format!(", {} there and back", human_seconds(us * 1e-6)));
    // fits: bytes a second, shown to a person
    let speed = trial.bytes_per_second.map(|speed| format!(", {}/s", human_bytes(speed as u64)));
    trip.unwrap_or_default() + &speed.unwrap_or_default()
}

/// The interface whose packets are too large for the way, and what every way takes.
fn narrower(facts: &Facts, host: Option<&str>) -> String {
    let port = facts.rdma.picked_port().map(|(_, port, _)| port);
    let interface = port.and_then(|port| port.interface.as_deref()).unwrap_or("INTERFACE");
    let payload = port.and_then(|port| port.interface_mtu).unwrap_or(1500).saturating_sub(28);
    let host = host.unwrap_or("HOST");
    format!(
        "ip link set dev {interface} mtu 1500 on both hosts, or raise the MTU of the switches between until \
         this works: ping -M do -c 3 -s {payload} {host}"
    )
}

fn mend(trial: &Trial, facts: &Facts, host: Option<&str>) -> String {
    let interface = facts.rdma.picked_port().and_then(|(_, port, _)| port.interface.clone());
    let interface = interface.unwrap_or_else(|| "INTERFACE".to_string());
    // too little to lock is in the way before anything is written
    let locked =
        memlock(facts).filter(|_| trial.transport == Transport::Verbs && trial.writes.is_empty());
    if let Some(mend) = locked.and_then(|finding| finding.mend) {
        return mend;
    }
    match (trial.transport, host) {
        (Transport::Verbs, Some(host)) => format!(
            "iptables -I INPUT -p udp --dport 4791 -j ACCEPT on both hosts; does ping -I {interface} {host} work? \
             else name a GID that reaches it: --gid INDEX"
        ),
        (Transport::Verbs, None) => {
            format!(
                "dmesg | tail; is {interface} up (ip link set dev {interface} up)? another GID: --gid INDEX"
            )
        }
        (_, Some(host)) => format!(
            "let {host} start this program and call back: a login without a password (--rsh), the same version at \
             the same path, no firewall between, --listen ADDRESS:0 for this machine's right address"
        ),
        (Transport::Shm | Transport::Auto, None) => "ulimit -a; free -m; dmesg | tail".to_string(),
        (Transport::Tcp, None) => "ip link set dev lo up".to_string(),
    }
}

/// What was found out about another host, and about the way there.
pub(crate) fn peer(here: &Facts, peer: &PeerExamined) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(there) = &peer.facts {
        let theirs = machine(there, false).into_iter();
        let theirs = theirs.filter(|finding| finding.severity > Severity::Ok);
        findings.extend(theirs.map(|finding| Finding { host: Some(peer.host.clone()), ..finding }));
    }
    findings.extend(peer.differences.iter().filter_map(|one| difference(one, &peer.host)));
    findings.extend(peer.trials.iter().filter_map(|one| trial(one, here, Some(&peer.host))));
    findings
}

/// What it means that something is not the same on both hosts.
fn difference(difference: &Difference, host: &str) -> Option<Finding> {
    let Difference { what, here, there } = difference;
    let finding = |severity, id, thing: &str, why: &str, mend: String| {
        let what = format!("{thing}: {here} here, {there} on {host}");
        Some(Finding::new(severity, id, what, why).mended_by(mend))
    };
    match *what {
        "version" => finding(
            Severity::Error,
            "versions-differ",
            "tensorwire's version",
            "processes of one job must be of one version",
            format!("scp \"$(command -v tensorwire)\" {host}:   # to the same path"),
        ),
        "link" if here != "none" && there != "none" => finding(
            Severity::Warning,
            "links-differ",
            "the NIC's link",
            "InfiniBand and Ethernet do not meet",
            "choose NICs of one kind: --nic NAME".to_string(),
        ),
        "gid" if here != "none" && there != "none" => finding(
            Severity::Warning,
            "gids-differ",
            "the GID's kind",
            "RoCE v1 and v2 do not understand each other",
            "tensorwire doctor --peer HOST --gid INDEX, with an index of the same kind on both"
                .to_string(),
        ),
        "mtu" if here != "none" && there != "none" => finding(
            Severity::Note,
            "mtus-differ",
            "the bytes a packet carries",
            "the smaller is taken, so nothing breaks",
            "ip link set dev INTERFACE mtu 4200 on both, and on the switches between".to_string(),
        ),
        "interface_mtu" if here != "none" && there != "none" => finding(
            Severity::Note,
            "interface-mtus-differ",
            "the interface's MTU",
            "packets of one are too large for the other, which TCP finds out and others may not",
            "ip link set dev INTERFACE mtu N, the same on both".to_string(),
        ),
        _ => None,
    }
}
