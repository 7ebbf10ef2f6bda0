//! What a step's time, and that of cores, goes into.

use std::collections::BTreeMap;

use serde::Serialize;

/// A part of a step that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Component {
    /// The replicas' kernels.
    Compute,
    /// Optimizers, at servers or at workers, with the sums of gradients that servers make.
    Updates,
    /// What members of a group add.
    Reduction,
    /// Bytes that cores copy: before a write, into rings and out of them, to another process of the machine.
    Copies,
    /// Codecs: tensors made messages, and messages tensors.
    Serialization,
    /// Links: bytes between machines.
    Wire,
    /// Of cores alone: what the system's sockets cost them, for each byte that is sent or received.
    Sockets,
    /// Between the memory of an accelerator and the machine's.
    Bus,
    /// What a message takes whatever its size.
    Messages,
}

impl Component {
    pub fn name(self) -> &'static str {
        match self {
            Component::Compute => "compute",
            Component::Updates => "updates",
            Component::Reduction => "reduction",
            Component::Copies => "copies",
            Component::Serialization => "serialization",
            Component::Wire => "wire",
            Component::Sockets => "sockets",
            Component::Bus => "bus",
            Component::Messages => "messages",
        }
    }
}

/// Seconds by component; those that are not there took none.
pub type Seconds = BTreeMap<Component, f64>;

/// Adds some seconds of a component.
pub(crate) fn add(to: &mut Seconds, component: Component, seconds: f64) {
    if seconds > 0.0 {
        *to.entry(component).or_default() += seconds;
    }
}
