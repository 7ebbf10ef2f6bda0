//! How a value gets from one end to the other: decided here, for both ends and for whoever wants to know
//! beforehand. Pure.

use crate::key::ValueSpec;

/// How a value is pushed and pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Travels {
    /// Not at all: whoever wants it reads it where it lies.
    Shown,
    /// By one one-sided write, to where it belongs.
    Written,
    /// As a block of a message.
    InMessages,
}

/// The sizes in bytes from which on a wire does more with a value than to carry it in a message; none: it never does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// [`crate::wire::Wire::direct_from`].
    pub direct_from: Option<usize>,
    /// [`crate::wire::Wire::shown_from`] of the peer.
    pub shown_from: Option<usize>,
}

impl Sizes {
    /// How this many bytes travel: a value or a part of one, or `by_rows` some of its rows, which lie
    /// together nowhere and so cannot be shown.
    pub fn travels(self, bytes: usize, by_rows: bool) -> Travels {
        let is_from = |from: Option<usize>| from.is_some_and(|from| bytes >= from);
        if !by_rows && is_from(self.shown_from) {
            Travels::Shown
        } else if is_from(self.direct_from) {
            Travels::Written
        } else {
            Travels::InMessages
        }
    }

    /// Does a server keep memory for what a worker pushes of this part? Not where all that can be pushed is
    /// shown: the rows of a value of one column are not pushed one by one.
    pub fn needs_slot(self, part: &ValueSpec) -> bool {
        part.columns != 1 || self.travels(part.bytes(), false) != Travels::Shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorwire_tensor::DType;

    const SHM: Sizes = Sizes { direct_from: Some(100), shown_from: Some(50) };
    const TCP: Sizes = Sizes { direct_from: Some(100), shown_from: None };
    const MESSAGES: Sizes = Sizes { direct_from: None, shown_from: None };

    #[test]
    fn what_is_large_is_shown_where_it_can_be_and_else_written() {
        for (bytes, by_rows, expected) in [
            (49, false, [Travels::InMessages; 3]),
            (50, false, [Travels::Shown, Travels::InMessages, Travels::InMessages]),
            (100, false, [Travels::Shown, Travels::Written, Travels::InMessages]),
            (99, true, [Travels::InMessages; 3]),
            (100, true, [Travels::Written, Travels::Written, Travels::InMessages]),
        ] {
            let found = [SHM, TCP, MESSAGES].map(|sizes| sizes.travels(bytes, by_rows));
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
