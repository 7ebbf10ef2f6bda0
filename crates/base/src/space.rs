//! Whose memory something lies in.

/// A memory space: who reads and writes what lies there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Space {
    /// The host's: this process reads and writes it.
    #[default]
    Host,
    /// A device's: this process has its address, and the device reads and writes it.
    Device,
}
