//! The rule by which a tensor counts as arrived: a mode, on which two fabrics agree when they connect. Does not
//! know how a backend keeps it.

use std::fmt;

/// The way of a signal, and what therefore proves that its payload is there.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum ArrivalMode {
    /// The signal is a completion at the receiver, behind the payload: right on every device.
    #[default]
    WriteImm,
    /// The signal is a write of its own, of an 8-byte epoch, behind the payload: right where two
    /// writes of one queue pair become visible in their order (strictly ordered memory).
    FlagSeparate,
    /// The signal is the last 8 bytes of the payload's own write, which is what Xue et al. §3.2 poll:
    /// right only where the bytes of one write become visible in ascending order.
    FlagTail,
}

impl ArrivalMode {
    /// Returns the name by which it is configured.
    pub fn name(self) -> &'static str {
        match self {
            ArrivalMode::WriteImm => "write-imm",
            ArrivalMode::FlagSeparate => "flag-separate",
            ArrivalMode::FlagTail => "flag-tail",
        }
    }
}

impl fmt::Display for ArrivalMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
