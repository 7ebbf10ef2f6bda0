//! A second host: a network namespace, with a link to this one that can be cut, or slow. Takes root and `ip`.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::machine::on_path;

/// Links that this process has made.
static MADE: AtomicU32 = AtomicU32::new(0);

/// The link to the second host; the host goes with it.
#[derive(Debug)]
pub struct HostLink {
    namespace: String,
    /// The end of the link on this host.
    here: String,
    network: String,
}

impl HostLink {
    /// Makes the second host.
    ///
    /// # Errors
    /// Why there can be none here, in words.
    pub fn make() -> Result<HostLink, String> {
        if on_path("ip").is_none() || on_path("tc").is_none() {
            return Err("there is no ip or tc here".to_string());
        }
        let process = std::process::id();
        // of this process alone, and of no others that are likely here
        let number = MADE.fetch_add(1, Ordering::Relaxed) % 250 + 1;
        let namespace = format!("faults{process}n{number}");
        let here = format!("f{process}n{number}");
        let network = format!("10.{}.{number}", 64 + process % 128);
        let link = HostLink { namespace, here, network };
        let HostLink { namespace, here, network } = &link;
        run(&format!("ip netns add {namespace}"))?;
        for command in [
            format!("ip link add {here} type veth peer name there netns {namespace}"),
            format!("ip addr add {network}.1/24 dev {here}"),
            format!("ip link set {here} up"),
            format!("ip -n {namespace} addr add {network}.2/24 dev there"),
            format!("ip -n {namespace} link set lo up"),
            format!("ip -n {namespace} link set there up"),
        ] {
            // what was made goes with `link`
            run(&command)?;
        }
        Ok(link)
    }

    /// A script that, in the place of ssh, runs on the second host what it is told to.
    pub(super) fn shell(&self) -> String {
        // the command takes its place, so that its process is the launcher's child
        format!("exec ip netns exec {} sh -c \"$2\"\n", self.namespace)
    }

    /// The arguments by which a job has every second process on the second host, or, where hosts are unequal, every third.
    pub(super) fn arguments(&self, script: &Path, is_unequal: bool) -> Vec<String> {
        let network = &self.network;
        let slots = if is_unequal { ":2" } else { "" };
        let hosts = format!("{network}.1{slots},{network}.2");
        let (listen, shell) = (format!("{network}.1:0"), format!("sh {}", script.display()));
        ["--hosts", &hosts, "--listen", &listen, "--rsh", &shell].map(str::to_string).to_vec()
    }

    /// The second host's address.
    pub(super) fn there(&self) -> String {
        format!("{}.2", self.network)
    }

    /// Nothing passes any more.
    pub(super) fn cut(&self) -> Result<(), String> {
        run(&format!("ip -n {} link set there down", self.namespace))
    }

    /// Nothing passes any more from the second host to this one.
    pub(super) fn cut_one_way(&self) -> Result<(), String> {
        // no packet fits into what may be sent
        let nothing = "tbf rate 8bit burst 1 limit 1";
        run(&format!("tc -n {} qdisc add dev there root {nothing}", self.namespace))
    }

    /// Less passes in both directions than a job sends, a step in seconds; packets wait for their turn, and too many are lost.
    pub(super) fn make_slow(&self) -> Result<(), String> {
        let HostLink { namespace, here, .. } = self;
        let little = "tbf rate 4mbit burst 16kb latency 200ms";
        run(&format!("tc -n {namespace} qdisc add dev there root {little}"))?;
        run(&format!("tc qdisc add dev {here} root {little}"))
    }

    /// As much passes as before it was slow.
    pub(super) fn make_fast(&self) -> Result<(), String> {
        let HostLink { namespace, here, .. } = self;
        run(&format!("tc -n {namespace} qdisc del dev there root"))?;
        run(&format!("tc qdisc del dev {here} root"))
    }
}

impl Drop for HostLink {
    fn drop(&mut self) {
        // the link goes with the namespace
        let _ = run(&format!("ip netns del {}", self.namespace));
        let _ = run(&format!("ip link del {}", self.here));
    }
}

fn run(command: &str) -> Result<(), String> {
    let mut words = command.split(' ');
    let program = words.next().and_then(on_path).ok_or("no such program")?;
    let done = Command::new(program).args(words).output();
    let done = done.map_err(|error| format!("{command}: {error}"))?;
    match done.status.success() {
        true => Ok(()),
        false => Err(format!("{command}: {}", String::from_utf8_lossy(&done.stderr).trim())),
    }
}
