//! What two ends of a pair of rings tell each other before the first message: where the ring is that the
//! other writes into, and where each listens. Goes by a message of the fabric.

use serde::{Deserialize, Serialize};
use tensorwire_fabric::{ArrivalSlot, RegionDescriptor, Signal};

use super::ring::WORD_BYTES;
use super::shares::SHARE_BYTES_MIN;

/// One end's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Introduction {
    /// A descriptor: key and size.
    pub(super) region: (u64, u64),
    /// The peer's share of the region.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// The slot that says how much was written here.
    pub(super) arrival: u32,
    /// The slot that says how much the peer has consumed of what was written there.
    pub(super) credit: u32,
}

impl Introduction {
    pub(super) fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("plain numbers into memory")
    }

    /// The error says what is wrong with it.
    pub(super) fn decode(body: &[u8]) -> Result<Introduction, String> {
        let refused = |error| format!("it introduced itself with {} bytes: {error}", body.len());
        let told: Introduction = postcard::from_bytes(body).map_err(refused)?;
        let end = told.offset.checked_add(told.bytes);
        // fits: constants
        let (least, word) = (SHARE_BYTES_MIN as u64, WORD_BYTES as u64);
        let is_ring = told.bytes >= least && told.bytes.is_multiple_of(word);
        if !is_ring || end.is_none_or(|end| end > told.region.1) {
            let (Introduction { offset, bytes, .. }, of) = (told, told.region.1);
            return Err(format!("it has a ring at {offset}..+{bytes} of {of} bytes"));
        }
        Ok(told)
    }

    pub(super) fn region(&self) -> RegionDescriptor {
        RegionDescriptor { key: self.region.0, bytes: self.region.1 }
    }

    /// "So much is written."
    pub(super) fn written(&self, count: u64) -> Signal {
        Signal { slot: ArrivalSlot(self.arrival), epoch: count }
    }

    /// "So much is consumed."
    pub(super) fn consumed(&self, count: u64) -> Signal {
        Signal { slot: ArrivalSlot(self.credit), epoch: count }
    }
}

/// Any bytes as an introduction: [`crate::fuzz`].
pub(crate) fn fuzz_introductions(bytes: &[u8]) {
    let Ok(told) = Introduction::decode(bytes) else { return };
    assert!(told.offset + told.bytes <= told.region().bytes);
    assert_eq!(Introduction::decode(&told.encode()), Ok(told));
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Introduction = Introduction {
        region: (7, 1 << 20),
        offset: 3 << 18,
        bytes: 1 << 18,
        arrival: 2,
        credit: 3,
    };

    #[test]
    fn an_introduction_travels() {
        assert_eq!(Introduction::decode(&GOOD.encode()), Ok(GOOD));
    }

    #[test]
    fn a_ring_outside_its_region_or_of_no_use_is_refused() {
        for (offset, bytes) in
            [(3 << 18, (1 << 18) + 8), (u64::MAX, 1 << 18), (0, 8), (0, (1 << 17) + 1)]
        {
            let bad = Introduction { offset, bytes, ..GOOD };
            assert!(Introduction::decode(&bad.encode()).is_err(), "{bad:?}");
        }
        assert!(Introduction::decode(b"hello").is_err());
        assert!(Introduction::decode(&[]).is_err());
    }
}
