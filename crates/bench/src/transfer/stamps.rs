//! Stamps of monotonic clocks, taken by two processes, joined by step.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use tensorwire_launch::MemberClock;

/// The sender's side of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sent {
    pub(super) step: u64,
    pub(super) start_ns: u64,
}

/// The receiver's side of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Received {
    pub(super) step: u64,
    pub(super) found_ns: u64,
    pub(super) consumed_ns: u64,
}

/// One step, both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) transfer_ns: u64,
    pub(super) end_to_end_ns: u64,
}

/// Why two lists of stamps are not of one run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StampError {
    #[error("there are none")]
    None,
    #[error("step {step} was stamped on one side only, or twice")]
    Unpaired { step: u64 },
    #[error("step {step} arrived before it was sent, by more than the clocks may be wrong")]
    Backwards { step: u64 },
    #[error(
        "the clock of the other host was not read in so short a measurement; give more --iterations"
    )]
    NoClock,
}

/// Puts stamps of another host in the launcher's time; returns most that one may be wrong.
///
/// # Errors
/// When nothing is known of the other clock.
pub(super) fn put_in_time_of<'a>(
    clock: &MemberClock,
    stamps: impl Iterator<Item = &'a mut u64>,
) -> Result<Option<u64>, StampError> {
    let mut most = None;
    for stamp in stamps {
        let (by_launcher, error) = clock.by_launcher(*stamp).ok_or(StampError::NoClock)?;
        *stamp = by_launcher;
        most = most.max(Some(error));
    }
    Ok(most)
}

/// The spans of all steps, in the receiver's order. Stamps may be wrong by `error_ns` beside each other.
pub(super) fn join(
    sent: &[Sent],
    received: &[Received],
    error_ns: u64,
) -> Result<Vec<Span>, StampError> {
    let mut starts: HashMap<u64, u64> = HashMap::with_capacity(sent.len());
    for &Sent { step, start_ns } in sent {
        if starts.insert(step, start_ns).is_some() {
            return Err(StampError::Unpaired { step });
        }
    }
    let mut spans = Vec::with_capacity(received.len());
    for &Received { step, found_ns, consumed_ns } in received {
        let start_ns = starts.remove(&step).ok_or(StampError::Unpaired { step })?;
        let since = |later: u64| match later.checked_sub(start_ns) {
            None if start_ns - later > error_ns => Err(StampError::Backwards { step }),
            since => Ok(since.unwrap_or(0)),
        };
        let (transfer_ns, end_to_end_ns) = (since(found_ns)?, since(consumed_ns)?);
        spans.push(Span { transfer_ns, end_to_end_ns });
    }
    match starts.keys().min() {
        Some(&step) => Err(StampError::Unpaired { step }),
        None => Ok(spans),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(step: u64, start_ns: u64) -> Sent {
        Sent { step, start_ns }
    }

    fn received(step: u64, found_ns: u64, consumed_ns: u64) -> Received {
        Received { step, found_ns, consumed_ns }
    }

    #[test]
    fn stamps_are_joined_by_step() {
        let spans =
            join(&[sent(7, 100), sent(3, 10)], &[received(3, 15, 18), received(7, 101, 140)], 0);
        let expected =
            [Span { transfer_ns: 5, end_to_end_ns: 8 }, Span { transfer_ns: 1, end_to_end_ns: 40 }];
        assert_eq!(spans.unwrap(), expected);
    }

    #[test]
    fn a_step_on_one_side_only_is_an_error() {
        let unpaired = |step| Err(StampError::Unpaired { step });
        assert_eq!(join(&[sent(1, 0)], &[], 0), unpaired(1));
        assert_eq!(join(&[], &[received(2, 0, 0)], 0), unpaired(2));
        assert_eq!(join(&[sent(1, 0), sent(1, 5)], &[], 0), unpaired(1));
        assert_eq!(join(&[sent(1, 0)], &[received(1, 1, 1), received(1, 1, 1)], 0), unpaired(1));
    }

    #[test]
    fn nothing_arrives_before_it_was_sent() {
        let spans = |error| join(&[sent(1, 10)], &[received(1, 8, 12)], error);
        assert_eq!(spans(1), Err(StampError::Backwards { step: 1 }));
        // but as far as the clocks may be apart
        assert_eq!(spans(2).unwrap(), [Span { transfer_ns: 0, end_to_end_ns: 2 }]);
    }

    #[test]
    fn stamps_of_another_host_are_put_in_this_ones_time() {
        let mut clock = MemberClock::default();
        let mut stamps = [5_000_100, 5_000_300];
        assert_eq!(put_in_time_of(&clock, stamps.iter_mut()), Err(StampError::NoClock));
        clock.add(tensorwire_launch::ClockReading::of(0, 5_000_000, 20).unwrap());
        assert_eq!(put_in_time_of(&clock, stamps.iter_mut()), Ok(Some(10)));
        assert_eq!(stamps, [110, 310]);
    }
}
