//! Whose memory something lies in.

/// A memory space: who reads and writes what lies there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Space {
    /// The host's: this process reads and writes it.
    #[default]
    Host,
    /// A device's, by its number among those of its process, from 0 on: this process has its address, and the device reads and
    /// writes it.
    Device(u32),
}

impl Space {
    /// True if it is a device's.
    pub fn is_device(self) -> bool {
        matches!(self, Space::Device(_))
    }
}
