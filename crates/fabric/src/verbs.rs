//! Hosts with an RDMA NIC: reliable connected queue pairs of libibverbs, which is loaded when a fabric
//! is opened and nowhere needed to build. A region is registered memory; a memcpy is one write or read
//! that the NICs carry out between them; the peer's processor takes no part.
//!
//! Arrival rule, agreed when two fabrics connect (`arrival.rs`): `write-imm`, where a signal is a
//! completion at the receiver, is right on every device and the default. A slot and an epoch ride in
//! the 32 bits of an immediate where they are small enough together, in a 16-byte message otherwise.
//!
//! Beside the queue pairs each peer has a control connection over TCP (`control/`), through which they
//! are introduced to each other, at first and after a failure, and by whose end a death is known.
//!
//! | file | what |
//! |---|---|
//! | `ibv.rs` | libibverbs with owners; all calls of it |
//! | `ibv/sys.rs` | the library as it is: loaded, its functions, structures and constants |
//! | `survey.rs`, `choice.rs` | which NICs there are, and which to use |
//! | `failure.rs` | what a bad completion means |
//! | `wire.rs` | what the ends tell each other |

mod choice;
mod device;
mod failure;
mod ibv;
mod progress;
mod queue_pair;
mod region;
mod survey;
mod wire;

use std::net::IpAddr;

pub use choice::{NicChoice, choose};
pub(crate) use device::{VerbsDevice, open};
pub(crate) use ibv::{MemoryRegion, Remote};
pub use survey::{Gid, GidKind, LinkLayer, Nic, Port, PortState, survey};
pub use wire::fuzz_wire;

#[cfg(test)]
mod tests;

/// The NIC, and how to use it. What is not given is chosen, and the choice is logged.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct VerbsOptions {
    /// Each `mlx5_0`, or with its port, `mlx5_0:2`. Of several, each process takes one.
    #[serde(default)]
    pub nics: Vec<String>,
    /// The address that peers see.
    pub gid: Option<GidChoice>,
    /// How packets go.
    #[serde(default)]
    pub path: PathChoice,
    /// The PCI address of the GPU whose tensors cross, as in `0000:3b:00.0`: of several NICs the nearest to it is taken.
    #[serde(default)]
    pub beside: Option<String>,
    /// Which of several NICs that are as good this process takes: its number among those of its host.
    #[serde(default)]
    pub turn: u32,
    /// The processes of a host reach each other otherwise. Over RoCE a host does not always reach one of its NICs by another, so that
    /// else all take the same, but where several are named.
    #[serde(default)]
    pub between_hosts: bool,
}

/// What switches are told of packets: the lane that a fabric keeps for RDMA is its operator's to say. As NCCL's `NCCL_IB_TC`,
/// `NCCL_IB_SL` and `NCCL_IB_PKEY`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PathChoice {
    /// RoCE: the byte of the IP header that has DSCP, times four, and ECN. InfiniBand: of the GRH.
    pub traffic_class: u8,
    /// InfiniBand's service level, 0 to 15; with RoCE the VLAN's priority.
    pub service_level: u8,
    /// Index into the port's table of partitions.
    pub partition: u16,
}

/// The entry of a port's GID table that peers see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GidChoice {
    /// The entry of this index.
    Index(u32),
    /// The entry that is this address.
    Address(IpAddr),
}

/// Why a process cannot use RDMA, and the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("RDMA cannot be used here: {reason}; {mend}")]
pub struct VerbsUnusable {
    pub reason: String,
    /// A line that says what to do.
    pub mend: String,
}

/// Returns the NIC, port and GID that [`crate::Backend::Verbs`] would take here, with the reason, in one line. `near` is where
/// this process would listen, if that is known.
///
/// # Errors
/// If it would not open: the obstacle, and the fix.
pub fn verbs_usable(options: &VerbsOptions, near: Option<IpAddr>) -> Result<String, VerbsUnusable> {
    device::usable(options, near)
}
