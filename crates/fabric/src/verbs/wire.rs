//! What two ends of queue pairs tell each other, over the job's authenticated connection and in the
//! messages between signals. Fixed little-endian forms; any bytes decode or fail, none panic.

use crate::api::{ArrivalSlot, Signal};
use crate::arrival::ArrivalMode;

use super::ibv::{Address, Remote};

const VERSION: u16 = 1;
/// More queue pairs than `check_config` allows.
const QUEUE_PAIRS_MAX: u32 = 4096;
/// Of a [`Note`].
pub(super) const NOTE_BYTES: usize = 16;

/// The first word of each end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Introduction {
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    pub(super) by_lid: bool,
    pub(super) mtu: u32,
    /// Reads that it may have outstanding, and that it serves at the same time.
    pub(super) reads_max: u8,
    pub(super) read_targets_max: u8,
    /// How it signals.
    pub(super) arrival: ArrivalMode,
    /// Signals of ours that it has room for, on each queue pair.
    pub(super) window: u32,
    pub(super) queue_pairs: Vec<Introduced>,
}

/// One of its queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Introduced {
    pub(super) number: u32,
    pub(super) first_packet: u32,
    /// Where flags go that are written through it; all zero where none are taken.
    pub(super) flags: Remote,
}

/// News of one queue pair that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct News {
    pub(super) queue_pair: u32,
    pub(super) generation: u32,
    pub(super) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// This end's next life, and how many signals it took in all lives before.
    Rebuilt { number: u32, first_packet: u32, signals_taken: u64 },
    /// This end can receive.
    Ready,
}

/// A message between the signals of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// A signal that an immediate has no room for.
    Signal(Signal),
    /// So many signals were taken, in all.
    Taken(u64),
    /// Nothing comes behind it.
    Goodbye,
    GoodbyeAck,
}

/// Bytes that are none of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} that cannot be read")]
pub(super) struct WireError(&'static str);

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

impl Introduction {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut wire = Vec::with_capacity(64 + 20 * self.queue_pairs.len());
        wire.extend_from_slice(&VERSION.to_le_bytes());
        wire.extend_from_slice(&self.gid);
        wire.extend_from_slice(&self.lid.to_le_bytes());
        let mode = match self.arrival {
            ArrivalMode::WriteImm => 0,
            ArrivalMode::FlagSeparate => 1,
            ArrivalMode::FlagTail => 2,
        };
        wire.extend([u8::from(self.by_lid), self.reads_max, self.read_targets_max, mode]);
        wire.extend_from_slice(&self.mtu.to_le_bytes());
        wire.extend_from_slice(&self.window.to_le_bytes());
        let count = u32::try_from(self.queue_pairs.len()).expect("at most 1024, by check_config");
        wire.extend_from_slice(&count.to_le_bytes());
        for Introduced { number, first_packet, flags } in &self.queue_pairs {
            wire.extend_from_slice(&number.to_le_bytes());
            wire.extend_from_slice(&first_packet.to_le_bytes());
            wire.extend_from_slice(&encode_remote(*flags));
        }
        wire
    }

    pub(super) fn decode(wire: &[u8]) -> Result<Introduction, WireError> {
        let mut reader = Reader(wire);
        let mut read = || {
            let version = reader.u16()?;
            let gid = reader.take::<16>()?;
            let lid = reader.u16()?;
            let [by_lid, reads_max, read_targets_max, mode] = reader.take::<4>()?;
            let arrival = match mode {
                0 => ArrivalMode::WriteImm,
                1 => ArrivalMode::FlagSeparate,
                2 => ArrivalMode::FlagTail,
                _ => return None,
            };
            let (mtu, window) = (reader.u32()?, reader.u32()?);
            let count = reader.u32().filter(|&count| count <= QUEUE_PAIRS_MAX)?;
            let mut introduced = || {
                let (number, first_packet) = (reader.u32()?, reader.u32()?);
                let flags = Remote { address: reader.u64()?, key: reader.u32()? };
                Some(Introduced { number, first_packet, flags })
            };
            let queue_pairs: Option<Vec<Introduced>> = (0..count).map(|_| introduced()).collect();
            let queue_pairs = queue_pairs?;
            reader.end()?;
            let known = version == VERSION && mtu >= 256 && window > 0;
            known.then_some(Introduction {
                gid,
                lid,
                by_lid: by_lid != 0,
                mtu,
                reads_max,
                read_targets_max,
                arrival,
                window,
                queue_pairs,
            })
        };
        read().ok_or(WireError("an introduction of queue pairs"))
    }

    /// The address of one of its queue pairs.
    pub(super) fn address(&self, number: u32, first_packet: u32) -> Address {
        Address { gid: self.gid, lid: self.lid, queue_pair: number, first_packet }
    }
}

impl News {
    pub(super) fn encode(&self) -> Vec<u8> {
        let (kind, number, first_packet, taken) = match self.what {
            What::Rebuilt { number, first_packet, signals_taken } => {
                (1u32, number, first_packet, signals_taken)
            }
            What::Ready => (2, 0, 0, 0),
        };
        let words = [self.queue_pair, self.generation, kind, number, first_packet];
        let mut wire: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        wire.extend_from_slice(&taken.to_le_bytes());
        wire
    }

    pub(super) fn decode(wire: &[u8]) -> Result<News, WireError> {
        let mut reader = Reader(wire);
        let mut read = || {
            let (queue_pair, generation, kind) = (reader.u32()?, reader.u32()?, reader.u32()?);
            let (number, first_packet) = (reader.u32()?, reader.u32()?);
            let signals_taken = reader.u64()?;
            reader.end()?;
            let what = match kind {
                1 => What::Rebuilt { number, first_packet, signals_taken },
                2 => What::Ready,
                _ => return None,
            };
            Some(News { queue_pair, generation, what })
        };
        read().ok_or(WireError("news of a queue pair"))
    }
}

impl Note {
    pub(super) fn encode(&self) -> [u8; NOTE_BYTES] {
        let (kind, slot, value) = match self {
            Note::Signal(signal) => (1u32, signal.slot.0, signal.epoch),
            Note::Taken(count) => (2, 0, *count),
            Note::Goodbye => (3, 0, 0),
            Note::GoodbyeAck => (4, 0, 0),
        };
        let mut wire = [0; NOTE_BYTES];
        wire[0..4].copy_from_slice(&kind.to_le_bytes());
        wire[4..8].copy_from_slice(&slot.to_le_bytes());
        wire[8..16].copy_from_slice(&value.to_le_bytes());
        wire
    }

    pub(super) fn decode(wire: &[u8]) -> Result<Note, WireError> {
        let mut reader = Reader(wire);
        let mut read = || {
            let (kind, slot, value) = (reader.u32()?, reader.u32()?, reader.u64()?);
            reader.end()?;
            Some(match kind {
                1 => Note::Signal(Signal { slot: ArrivalSlot(slot), epoch: value }),
                2 => Note::Taken(value),
                3 => Note::Goodbye,
                4 => Note::GoodbyeAck,
                _ => return None,
            })
        };
        read().ok_or(WireError("a message on a queue pair"))
    }
}

/// What a peer must know of a region to name it to the NIC.
pub(super) fn encode_remote(remote: Remote) -> Vec<u8> {
    [&remote.address.to_le_bytes()[..], &remote.key.to_le_bytes()].concat()
}

pub(super) fn decode_remote(wire: &[u8]) -> Result<Remote, WireError> {
    let mut reader = Reader(wire);
    let mut read = || {
        let remote = Remote { address: reader.u64()?, key: reader.u32()? };
        reader.end()?;
        Some(remote)
    };
    read().ok_or(WireError("a region's key"))
}

/// A signal in the 32 bits of an immediate, where slot and epoch are small enough together; `slots` is
/// the size of the receiver's arrival table, which both ends know.
pub(super) fn to_immediate(signal: Signal, slots: u64) -> Option<u32> {
    let bits = epoch_bits(slots);
    let epoch = u32::try_from(signal.epoch).ok().filter(|&epoch| u64::from(epoch) >> bits == 0)?;
    let slot = u64::from(signal.slot.index());
    (slot < slots).then_some(((slot << bits) as u32) | epoch) // fits: slot has 32 - bits bits
}

/// The signal in an immediate; None where the slot does not exist.
pub(super) fn from_immediate(immediate: u32, slots: u64) -> Option<Signal> {
    let bits = epoch_bits(slots);
    let slot = u64::from(immediate) >> bits;
    let epoch = u64::from(immediate) & ((1 << bits) - 1);
    // fits: below 2^32
    (slot < slots).then_some(Signal { slot: ArrivalSlot(slot as u32), epoch })
}

/// Bits of an immediate that a slot leaves to the epoch.
fn epoch_bits(slots: u64) -> u32 {
    32u32.saturating_sub(u64::BITS - slots.max(2).saturating_sub(1).leading_zeros())
}

/// Any bytes as what ends of queue pairs say: [`crate::fuzz`].
pub fn fuzz_wire(bytes: &[u8]) {
    if let Ok(found) = Introduction::decode(bytes) {
        assert_eq!(Introduction::decode(&found.encode()), Ok(found));
    }
    if let Ok(found) = News::decode(bytes) {
        assert_eq!(News::decode(&found.encode()), Ok(found));
    }
    if let Ok(found) = Note::decode(bytes) {
        assert_eq!(Note::decode(&found.encode()), Ok(found));
    }
    if let Ok(found) = decode_remote(bytes) {
        assert_eq!(encode_remote(found), bytes);
    }
    if let Some((immediate, slots)) = bytes.split_first_chunk() {
        let immediate = u32::from_le_bytes(*immediate);
        // no table has more: `check_config`
        let slots = slots.first_chunk().map_or(0, |slots| u32::from_le_bytes(*slots) % (1 << 28));
        let slots = u64::from(slots);
        if let Some(signal) = from_immediate(immediate, slots) {
            assert!(u64::from(signal.slot.index()) < slots);
            assert_eq!(to_immediate(signal, slots), Some(immediate));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn introduction(pairs: Vec<(u32, u32, u64)>) -> Introduction {
        let introduced = |(number, first_packet, address)| Introduced {
            number,
            first_packet,
            flags: Remote { address, key: first_packet },
        };
        let queue_pairs = pairs.into_iter().map(introduced).collect();
        Introduction {
            gid: std::array::from_fn(|i| i as u8),
            lid: 7,
            by_lid: true,
            mtu: 4096,
            reads_max: 16,
            read_targets_max: 8,
            arrival: ArrivalMode::FlagTail,
            window: 512,
            queue_pairs,
        }
    }

    proptest! {
        #[test]
        fn everything_survives_the_wire(
            pairs in prop::collection::vec(any::<(u32, u32, u64)>(), 0..9), a: u32, b: u32, c: u64,
        ) {
            let introduction = introduction(pairs);
            prop_assert_eq!(Introduction::decode(&introduction.encode()), Ok(introduction));
            let rebuilt = What::Rebuilt { number: a, first_packet: b, signals_taken: c };
            for what in [rebuilt, What::Ready] {
                let news = News { queue_pair: b, generation: a, what };
                prop_assert_eq!(News::decode(&news.encode()), Ok(news));
            }
            let signal = Signal { slot: ArrivalSlot(a), epoch: c };
            for note in [Note::Signal(signal), Note::Taken(c), Note::Goodbye, Note::GoodbyeAck] {
                prop_assert_eq!(Note::decode(&note.encode()), Ok(note));
            }
            let remote = Remote { address: c, key: a };
            prop_assert_eq!(decode_remote(&encode_remote(remote)), Ok(remote));
        }

        #[test]
        fn any_bytes_decode_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            // the results are free; that there are some is the point
            let _ = Introduction::decode(&bytes);
            let _ = News::decode(&bytes);
            let _ = Note::decode(&bytes);
            let _ = decode_remote(&bytes);
        }

        #[test]
        fn an_immediate_holds_a_signal_or_says_that_it_does_not(
            slots in 1u64..=(1 << 28), slot: u32, epoch: u64, small in 0u64..1 << 20,
        ) {
            for epoch in [epoch, small] {
                let slot = ArrivalSlot((u64::from(slot) % slots) as u32);
                let signal = Signal { slot, epoch };
                if let Some(immediate) = to_immediate(signal, slots) {
                    prop_assert_eq!(from_immediate(immediate, slots), Some(signal));
                } else {
                    prop_assert!(epoch >= 1 << 4, "16 epochs fit beside the largest table");
                }
            }
        }
    }

    #[test]
    fn a_slot_that_is_not_there_is_noticed() {
        assert_eq!(from_immediate(u32::MAX, 5), None);
        assert_eq!(to_immediate(Signal { slot: ArrivalSlot(5), epoch: 0 }, 5), None);
        assert_eq!(epoch_bits(16 << 10), 18, "the default table leaves 262,143 steps");
    }
}
