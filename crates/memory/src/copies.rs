//! The count of bytes that the runtime itself copies from memory to memory, by purpose. Promise 1 of the project is
//! that it stays 0 for tensors on their static path, and that whatever else is copied is told apart and printed.
//!
//! What does not count: what a kernel computes, the transfer itself (one write or read of a peer's memory, by a NIC, a
//! socket or, where both share memory, a `memcpy`), headers and metadata of a few bytes, and files.

/// Why the runtime copies bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CopyPurpose {
    /// A tensor that is sent, or reduced by a group, from elsewhere than the memory where it was computed.
    Staging,
    /// Tensors into and out of messages, where they cross as messages.
    Messages,
    /// Values of a store that do not travel from place to place: small ones into and out of messages, sums of
    /// devices, logs.
    Store,
    /// Gradients and values by rows: sorted for a store, or gathered by it; and what it fetches that a value is rounded from.
    Rows,
    /// Samples of a batch into the inputs of a model.
    Feeding,
    /// Weights from and to what elastic averaging keeps beside them.
    Averaging,
    /// First values through the vectors by which a group's first member broadcasts them.
    Broadcast,
    /// Results of a reduction from where their addends were put together.
    Reduction,
    /// Values into checkpoints, out of and into snapshots, and out of files of weights.
    Checkpoint,
    /// Tensors from the host's memory to a device's, by the device.
    ToDevice,
    /// Tensors from a device's memory to the host's, by the device.
    ToHost,
    /// Tensors from a device's memory to that of another of the same process, by the devices.
    BetweenDevices,
    /// Tensors of unknown size from the memory of another process's device to that of one's own, by the latter.
    FromPeers,
    /// Values of a store, and what is pushed to them, between the memory of their server's device and the host's, by the device.
    StoreStaging,
    /// Tensors from a device's memory to that of another process's, by the former, in one write where the latter uses them.
    ToPeers,
}

impl CopyPurpose {
    /// All purposes, in the order in which they are shown.
    pub const ALL: [CopyPurpose; 15] = [
        CopyPurpose::Staging,
        CopyPurpose::Messages,
        CopyPurpose::Store,
        CopyPurpose::Rows,
        CopyPurpose::Feeding,
        CopyPurpose::Averaging,
        CopyPurpose::Broadcast,
        CopyPurpose::Reduction,
        CopyPurpose::Checkpoint,
        CopyPurpose::ToDevice,
        CopyPurpose::ToHost,
        CopyPurpose::BetweenDevices,
        CopyPurpose::FromPeers,
        CopyPurpose::StoreStaging,
        CopyPurpose::ToPeers,
    ];

    /// Its name in reports, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            CopyPurpose::Staging => "staging",
            CopyPurpose::Messages => "messages",
            CopyPurpose::Store => "store",
            CopyPurpose::Rows => "rows",
            CopyPurpose::Feeding => "feeding",
            CopyPurpose::Averaging => "averaging",
            CopyPurpose::Broadcast => "broadcast",
            CopyPurpose::Reduction => "reduction",
            CopyPurpose::Checkpoint => "checkpoint",
            CopyPurpose::ToDevice => "to_device",
            CopyPurpose::ToHost => "to_host",
            CopyPurpose::BetweenDevices => "between_devices",
            CopyPurpose::FromPeers => "from_peers",
            CopyPurpose::StoreStaging => "store_staging",
            CopyPurpose::ToPeers => "to_peers",
        }
    }

    /// True if bytes are copied on their way from one process to another, in every step.
    pub fn is_exchange(self) -> bool {
        matches!(self, CopyPurpose::Staging | CopyPurpose::Messages | CopyPurpose::Store)
    }
}

/// Bytes copied so far, by purpose. Sums stop at the largest number there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// In the order of [`CopyPurpose::ALL`].
    bytes: [u64; CopyPurpose::ALL.len()],
}

impl Copies {
    /// Copies `source` over `target` and counts it.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy(&mut self, purpose: CopyPurpose, source: &[u8], target: &mut [u8]) {
        target.copy_from_slice(source);
        // fits: a length is at most isize::MAX
        self.add(purpose, source.len() as u64);
    }

    /// Counts `bytes` that were copied.
    pub fn add(&mut self, purpose: CopyPurpose, bytes: u64) {
        let counted = &mut self.bytes[purpose as usize];
        *counted = counted.saturating_add(bytes);
    }

    /// Adds what `other` counted.
    pub fn merge(&mut self, other: &Copies) {
        for purpose in CopyPurpose::ALL {
            self.add(purpose, other.of(purpose));
        }
    }

    /// Bytes copied for one purpose.
    pub fn of(&self, purpose: CopyPurpose) -> u64 {
        self.bytes[purpose as usize]
    }

    /// Bytes copied for any purpose.
    pub fn bytes(&self) -> u64 {
        self.bytes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Bytes copied on their way from one process to another; see [`CopyPurpose::is_exchange`].
    pub fn exchanged(&self) -> u64 {
        let purposes = CopyPurpose::ALL.into_iter().filter(|purpose| purpose.is_exchange());
        purposes.fold(0, |sum, purpose| sum.saturating_add(self.of(purpose)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_purpose_has_a_place_and_a_name_of_its_own() {
        let mut copies = Copies::default();
        for (at, purpose) in CopyPurpose::ALL.into_iter().enumerate() {
            assert_eq!(purpose as usize, at);
            copies.add(purpose, 1 << at);
        }
        for (at, purpose) in CopyPurpose::ALL.into_iter().enumerate() {
            assert_eq!(copies.of(purpose), 1 << at);
        }
        assert_eq!(
            (copies.bytes(), copies.exchanged()),
            ((1 << CopyPurpose::ALL.len()) - 1, 0b111)
        );
        let names: std::collections::HashSet<&str> =
            CopyPurpose::ALL.into_iter().map(CopyPurpose::name).collect();
        assert_eq!(names.len(), CopyPurpose::ALL.len());
    }

    #[test]
    fn sums_stop_at_the_largest_number() {
        let (mut copies, mut target) = (Copies::default(), [0; 3]);
        copies.copy(CopyPurpose::Staging, &[1, 2, 3], &mut target);
        assert_eq!((target, copies.of(CopyPurpose::Staging)), ([1, 2, 3], 3));
        copies.add(CopyPurpose::Store, u64::MAX);
        let same = copies;
        copies.merge(&same);
        assert_eq!(copies.of(CopyPurpose::Staging), 6);
        assert_eq!(copies.of(CopyPurpose::Store), u64::MAX);
        assert_eq!((copies.bytes(), copies.exchanged()), (u64::MAX, u64::MAX));
    }
}
