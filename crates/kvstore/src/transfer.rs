//! How a value gets from one end to the other: decided here, for both ends and for whoever wants to know
//! beforehand. Pure.

use crate::key::ValueSpec;

/// How a value is pushed and pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferMode {
    /// Not at all: whoever wants it reads it where it lies.
    PeerMapped,
    /// By one one-sided write, to where it belongs.
    Written,
    /// As a block of a message.
    InMessages,
}

/// The sizes in bytes from which on a wire does more with a value than to carry it in a message; none: it never does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferThresholds {
    /// [`crate::wire::Wire::direct_from`].
    pub direct_from: Option<usize>,
    /// [`crate::wire::Wire::mapped_from`] of the peer.
    pub mapped_from: Option<usize>,
}

impl TransferThresholds {
    /// How this many bytes travel: a value or a shard of one, or `by_rows` some of its rows, which lie
    /// together nowhere and so cannot be mapped.
    pub fn mode(self, bytes: usize, by_rows: bool) -> TransferMode {
        let is_from = |from: Option<usize>| from.is_some_and(|from| bytes >= from);
        if !by_rows && is_from(self.mapped_from) {
            TransferMode::PeerMapped
        } else if is_from(self.direct_from) {
            TransferMode::Written
        } else {
            TransferMode::InMessages
        }
    }

    /// Does a server keep memory for what a worker pushes of this shard? Not where all that can be pushed is
    /// mapped: the rows of a value of one column are not pushed one by one.
    pub fn needs_slot(self, shard: &ValueSpec) -> bool {
        shard.columns != 1 || self.mode(shard.bytes(), false) != TransferMode::PeerMapped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorwire_tensor::DType;

    const SHM: TransferThresholds =
        TransferThresholds { direct_from: Some(100), mapped_from: Some(50) };
    const TCP: TransferThresholds =
        TransferThresholds { direct_from: Some(100), mapped_from: None };
    const MESSAGES: TransferThresholds =
        TransferThresholds { direct_from: None, mapped_from: None };

    #[test]
    fn what_is_large_is_shown_where_it_can_be_and_else_written() {
        for (bytes, by_rows, expected) in [
            (49, false, [TransferMode::InMessages; 3]),
            (
                50,
                false,
                [TransferMode::PeerMapped, TransferMode::InMessages, TransferMode::InMessages],
            ),
            (
                100,
                false,
                [TransferMode::PeerMapped, TransferMode::Written, TransferMode::InMessages],
            ),
            (99, true, [TransferMode::InMessages; 3]),
            (100, true, [TransferMode::Written, TransferMode::Written, TransferMode::InMessages]),
        ] {
            let found = [SHM, TCP, MESSAGES].map(|sizes| sizes.mode(bytes, by_rows));
            assert_eq!(found, expected, "{bytes} bytes, by rows: {by_rows}");
        }
    }

    #[test]
    fn a_slot_is_there_for_all_that_may_be_sent() {
        let spec = |rows, columns| ValueSpec { dtype: DType::U8, rows, columns };
        assert!(SHM.needs_slot(&spec(49, 1)));
        assert!(!SHM.needs_slot(&spec(50, 1)));
        assert!(SHM.needs_slot(&spec(50, 2)), "its rows are sent");
        assert!(TCP.needs_slot(&spec(1000, 1)) && MESSAGES.needs_slot(&spec(1000, 1)));
    }
}
