//! Hosts with an RDMA NIC: reliable connected queue pairs of libibverbs, which is loaded when a fabric
//! is opened and nowhere needed to build.

use std::net::IpAddr;
use std::sync::Arc;

use crate::common::Core;
use crate::config::FabricConfig;
use crate::device::Device;
use crate::error::OpenError;

/// Which NIC, and how to use it; everything is chosen, and the choice is logged, where nothing is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct VerbsOptions {
    /// `mlx5_0`, or with its port, `mlx5_0:2`.
    pub nic: Option<String>,
    pub gid: Option<GidChoice>,
}

/// Which entry of a port's GID table peers see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GidChoice {
    Index(u32),
    /// The entry that is this address.
    Address(IpAddr),
}

/// Why a process cannot use RDMA, and the line that mends it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("RDMA cannot be used here: {reason}; {mend}")]
pub struct VerbsUnusable {
    pub reason: String,
    pub mend: String,
}

/// Whether [`crate::Backend::Verbs`] would open here: the NIC, port and GID that it would take and why,
/// in one line, or what is in the way.
pub fn verbs_usable(_options: &VerbsOptions) -> Result<String, VerbsUnusable> {
    Err(VerbsUnusable { reason: "not built yet".into(), mend: "use tcp".into() })
}

pub(crate) fn open(
    options: &VerbsOptions,
    _config: FabricConfig,
) -> Result<(Arc<Core>, Arc<dyn Device>), OpenError> {
    verbs_usable(options)?;
    unreachable!()
}
