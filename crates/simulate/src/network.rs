//! The cluster that is simulated, as a file describes it: links, machines, and what moving a byte costs. Units are in
//! the names: `us` microseconds, `gbs` 10⁹ bytes a second.

use serde::{Deserialize, Serialize};

/// A cluster of like machines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    pub name: String,
    pub link: Link,
    pub local: LocalLink,
    pub machine: SimulatedMachine,
    pub rpc: Rpc,
}

/// The way from one machine to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// From the end of a write to the moment in which the receiver knows.
    pub latency_us: f64,
    /// Of one port, in each direction.
    pub bandwidth_gbs: f64,
    /// NIC ports of a machine; traffic is spread over them.
    pub ports: u32,
    /// What all ports together can send, over what the core of the network can carry; 1: all of it.
    pub oversubscription: f64,
    /// What a message costs its sender.
    pub message_us: f64,
    /// Bytes that a core sends or receives in a second, by the system's sockets; none: the NIC does all the work.
    pub core_gbs: Option<f64>,
}

/// The way from one process of a machine to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalLink {
    pub latency_us: f64,
    pub message_us: f64,
    /// Receivers read a tensor where its sender keeps it: nothing moves.
    pub by_reference: bool,
    /// Bytes that a core moves in a second where something does.
    pub core_gbs: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedMachine {
    pub cores: u32,
    /// Workers of a machine; 0: all are on one.
    pub workers: u32,
    /// Servers have machines of their own; else they are on the workers', as many in a row as workers, round-robin.
    pub servers_apart: bool,
    /// What computes instead of the cores; 0: the cores do.
    pub accelerators: u32,
    /// Between an accelerator's memory and the machine's, in each direction; none: it need not cross.
    pub device_gbs: Option<f64>,
    /// Bytes that a core copies in a second.
    pub copy_gbs: f64,
    /// Bytes that all cores read and write in a second; a copy reads and writes each once.
    pub memory_gbs: f64,
    /// Bytes that all cores read and write in a second when they update weights by one gradient that others made.
    pub update_gbs: f64,
    /// The same when each core updates weights of its own by a gradient that it has just made.
    pub own_update_gbs: f64,
    /// Bytes of each further gradient that they fold into it in a second: many places that are read by turns.
    pub fold_gbs: f64,
}

/// What the exchanges cost that tensorwire is compared with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rpc {
    /// Bytes that a core serializes, or makes a tensor of again, in a second; the whole tensor before it is sent.
    pub serialize_gbs: f64,
    /// Bytes that a core sends or receives in a second through the system's TCP.
    pub tcp_gbs: f64,
}

/// A network that makes no sense.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("network '{network}': {field} must be {range}, not {found:?}")]
pub struct NetworkError {
    pub network: String,
    pub field: &'static str,
    pub range: &'static str,
    pub found: f64,
}

/// Between what a number must be: far past any machine's, and no time of a step is infinite or nothing for it.
struct Limits {
    least: f64,
    most: f64,
    range: &'static str,
}

const RATE_GBS: Limits = Limits { least: 1e-6, most: 1e6, range: "from 1e-6 to 1e6 GB/s" };
const TIME_US: Limits = Limits { least: 0.0, most: 1e9, range: "from 0 to 1e9 µs" };
const COUNT: Limits = Limits { least: 1.0, most: f64::INFINITY, range: "1 or more" };
const CORE: Limits = Limits { least: 1.0, most: 1e6, range: "from 1 to 1e6" };

/// How a tensor crosses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SimulatedExchange {
    /// One write; on one machine none where it can be read in place.
    ZeroCopy,
    /// A copy before the write: Xue et al.'s RDMA.cp.
    Copy,
    /// Serialized into a ring, written, copied out of it and made a tensor of: a core works at both ends.
    GrpcRdma,
    /// Serialized, sent through the system's TCP, and made a tensor of.
    GrpcTcp,
}

impl SimulatedExchange {
    pub fn name(self) -> &'static str {
        match self {
            SimulatedExchange::ZeroCopy => "zero-copy",
            SimulatedExchange::Copy => "copy",
            SimulatedExchange::GrpcRdma => "grpc-rdma",
            SimulatedExchange::GrpcTcp => "grpc-tcp",
        }
    }
}

impl Network {
    /// The networks that come with the program.
    pub const PRESETS: [&str; 4] = ["rdma-100g", "paper-xue", "paper-mamidala", "loopback"];

    /// The network of this name.
    pub fn preset(name: &str) -> Option<Network> {
        let rdma = Network {
            name: name.to_string(),
            link: Link {
                latency_us: 2.0,
                bandwidth_gbs: 12.5,
                ports: 1,
                oversubscription: 1.0,
                message_us: 0.3,
                core_gbs: None,
            },
            local: LocalLink {
                latency_us: 1.0,
                message_us: 0.3,
                by_reference: true,
                core_gbs: 10.0,
            },
            machine: SimulatedMachine {
                cores: 32,
                workers: 1,
                servers_apart: false,
                accelerators: 0,
                device_gbs: None,
                copy_gbs: 10.0,
                memory_gbs: 200.0,
                update_gbs: 200.0,
                own_update_gbs: 200.0,
                fold_gbs: 200.0,
            },
            // with both codecs 1 GB/s, as TensorFlow's gRPC was measured over loopback
            rpc: Rpc { serialize_gbs: 4.0, tcp_gbs: 2.0 },
        };
        match name {
            "rdma-100g" => Some(rdma),
            // §5: dual E5-2690v4 (2 × 14 cores, 2 × 76.8 GB/s by Intel's data sheet), P100s behind PCIe 3.0 ×16
            // without GPUDirect, 100 Gb/s InfiniBand; §5.2: a worker and a server on each machine. The worker
            // and the server of one machine talked as those of two: nothing is read in place.
            "paper-xue" => Some(Network {
                local: LocalLink { by_reference: false, ..rdma.local },
                machine: SimulatedMachine {
                    cores: 28,
                    accelerators: 1,
                    device_gbs: Some(12.0),
                    memory_gbs: 153.6,
                    update_gbs: 153.6,
                    own_update_gbs: 153.6,
                    fold_gbs: 153.6,
                    ..rdma.machine
                },
                ..rdma
            }),
            // §7, testbed2: Minsky nodes of two sockets, a worker each with two P100s by NVLink (both are one accelerator
            // here), one 100 Gb/s InfiniBand adapter. §7.3: memory is written at 38.4 GB/s a socket, and read as fast here;
            // GPUs reduce into the host's memory at 30 GB/s, which stands for what a core adds at, and read from it at 28.
            // §6.3: rings go by the host's memory alone. Two sockets of ten cores by IBM's data sheet.
            "paper-mamidala" => Some(Network {
                local: LocalLink { by_reference: false, ..rdma.local },
                machine: SimulatedMachine {
                    cores: 20,
                    workers: 2,
                    accelerators: 2,
                    device_gbs: Some(2.0 * 28.0),
                    copy_gbs: 30.0,
                    memory_gbs: 153.6,
                    update_gbs: 153.6,
                    own_update_gbs: 153.6,
                    fold_gbs: 153.6,
                    ..rdma.machine
                },
                ..rdma
            }),
            // two cores: memcpy at 12.9 GB/s, as a machine of Zen 4 was measured
            "loopback" => Some(Network {
                local: LocalLink { latency_us: 20.0, message_us: 2.0, ..rdma.local },
                machine: SimulatedMachine {
                    cores: 2,
                    workers: 0,
                    memory_gbs: 25.0,
                    update_gbs: 25.0,
                    own_update_gbs: 35.0,
                    fold_gbs: 10.0,
                    ..rdma.machine
                },
                ..rdma
            }),
            _ => None,
        }
    }

    /// Checks what a file says.
    ///
    /// # Errors
    /// The first number that makes no sense.
    pub fn check(&self) -> Result<(), NetworkError> {
        let Network { link, local, machine, rpc, .. } = self;
        let given = |option: Option<f64>| option.unwrap_or(1.0);
        let rates = [
            ("link.bandwidth_gbs", link.bandwidth_gbs),
            ("link.core_gbs", given(link.core_gbs)),
            ("local.core_gbs", local.core_gbs),
            ("machine.device_gbs", given(machine.device_gbs)),
            ("machine.copy_gbs", machine.copy_gbs),
            ("machine.memory_gbs", machine.memory_gbs),
            ("machine.update_gbs", machine.update_gbs),
            ("machine.own_update_gbs", machine.own_update_gbs),
            ("machine.fold_gbs", machine.fold_gbs),
            ("rpc.serialize_gbs", rpc.serialize_gbs),
            ("rpc.tcp_gbs", rpc.tcp_gbs),
        ];
        let times = [
            ("link.latency_us", link.latency_us),
            ("link.message_us", link.message_us),
            ("local.latency_us", local.latency_us),
            ("local.message_us", local.message_us),
        ];
        let counts =
            [("link.ports", f64::from(link.ports)), ("machine.cores", f64::from(machine.cores))];
        let cores = [("link.oversubscription", link.oversubscription)];
        let all: [(&[(&'static str, f64)], &Limits); 4] =
            [(&rates, &RATE_GBS), (&counts, &COUNT), (&times, &TIME_US), (&cores, &CORE)];
        for (fields, Limits { least, most, range }) in all {
            // not a number is within no limits
            let wrong = fields.iter().find(|(_, found)| !(*least..=*most).contains(found));
            if let Some((field, found)) = wrong.copied() {
                return Err(NetworkError { network: self.name.clone(), field, range, found });
            }
        }
        Ok(())
    }
}
