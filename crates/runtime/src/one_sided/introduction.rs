//! What two parts tell each other before the first step: where their memory is, and for each edge that
//! one of them listens at, the arrival slot and the place. Off the critical path; little-endian.

use tensorwire_fabric::RegionDescriptor;
use tensorwire_graph::EdgeId;

/// A part's word to one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Introduction {
    /// The registered lane.
    pub(super) lane: RegionDescriptor,
    /// The slots for metadata.
    pub(super) slots: RegionDescriptor,
    /// The arrival slot where it hears that the peer gave up a step.
    pub(super) withdrawal: u32,
    /// By number of the part's device.
    pub(super) devices: Vec<DeviceMemory>,
    pub(super) ears: Vec<Ear>,
}

/// The memory of a device of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceMemory {
    /// By whose key it is had, and its bytes.
    pub(super) region: RegionDescriptor,
    /// What is written there is copied on to the device in pieces of so many bytes, each with news of its own; 0: it lies
    /// where it belongs, and the news is of the whole.
    pub(super) piece_bytes: u64,
}

/// Where a part listens for news of one edge. The receiver of an edge listens for its tensors, the
/// sender of a dynamic one for acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ear {
    pub(super) edge: EdgeId,
    /// Arrival slot.
    pub(super) slot: u32,
    /// Where the tensor goes in the lane, or its metadata in the slots; nothing for the rest.
    pub(super) offset: u64,
    /// The tensor's size, so that two plans that differ are noticed.
    pub(super) bytes: u64,
}

const EAR_BYTES: usize = 24;
/// More devices than any process has.
const DEVICES_MAX: u64 = 1 << 10;

impl Introduction {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = self.lane.to_bytes().to_vec();
        body.extend_from_slice(&self.slots.to_bytes());
        body.extend_from_slice(&self.withdrawal.to_le_bytes());
        // fits: devices of a process are few
        body.extend_from_slice(&(self.devices.len() as u64).to_le_bytes());
        for device in &self.devices {
            body.extend_from_slice(&device.region.to_bytes());
            body.extend_from_slice(&device.piece_bytes.to_le_bytes());
        }
        for ear in &self.ears {
            body.extend_from_slice(&ear.edge.0.to_le_bytes());
            body.extend_from_slice(&ear.slot.to_le_bytes());
            body.extend_from_slice(&ear.offset.to_le_bytes());
            body.extend_from_slice(&ear.bytes.to_le_bytes());
        }
        body
    }

    pub(super) fn decode(body: &[u8]) -> Result<Introduction, String> {
        let length = RegionDescriptor::WIRE_BYTES;
        let few = || format!("{} bytes are too few for regions", body.len());
        let u32_at = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let u64_at = |bytes: &[u8]| u64::from(u32_at(bytes)) | u64::from(u32_at(&bytes[4..])) << 32;
        let region =
            |bytes: &[u8]| RegionDescriptor::from_bytes(bytes).map_err(|error| error.to_string());
        let (head, rest) = body.split_at_checked(2 * length + 12).ok_or_else(few)?;
        let (lane, rest_of_head) = head.split_at(length);
        let (slots, numbers) = rest_of_head.split_at(length);
        let (lane, slots) = (region(lane)?, region(slots)?);
        let (withdrawal, count) = (u32_at(numbers), u64_at(&numbers[4..]));
        if count > DEVICES_MAX {
            return Err(format!("no process has {count} devices"));
        }
        // fits: few
        let all = count as usize * (length + 8);
        let (devices, rest) = rest.split_at_checked(all).ok_or_else(few)?;
        let device = |bytes: &[u8]| {
            let (descriptor, piece_bytes) = bytes.split_at(length);
            Ok(DeviceMemory { region: region(descriptor)?, piece_bytes: u64_at(piece_bytes) })
        };
        let devices =
            devices.chunks_exact(length + 8).map(device).collect::<Result<_, String>>()?;
        if rest.len() % EAR_BYTES != 0 {
            return Err(format!("{} bytes are no whole number of edges", rest.len()));
        }
        let ears = rest.chunks_exact(EAR_BYTES).map(|word| Ear {
            edge: EdgeId(u32_at(word)),
            slot: u32_at(&word[4..]),
            offset: u64_at(&word[8..]),
            bytes: u64_at(&word[16..]),
        });
        Ok(Introduction { lane, slots, withdrawal, devices, ears: ears.collect() })
    }
}

/// Any bytes as an introduction: [`crate::fuzz`].
pub(crate) fn fuzz_introductions(bytes: &[u8]) {
    if let Ok(found) = Introduction::decode(bytes) {
        assert_eq!(found.encode(), bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn introductions_survive_the_wire() {
        let region = |key| RegionDescriptor { key, bytes: 1 << 40 };
        let ear = |n: u32| Ear { edge: EdgeId(n), slot: n + 1, offset: 5 << 32, bytes: u64::MAX };
        let ears: Vec<Ear> = (0..3).map(ear).collect();
        let (lane, slots) = (region(1), region(u64::MAX));
        let device = |key| DeviceMemory { region: region(key), piece_bytes: key << 40 };
        for count in 0..3 {
            let (ears, devices) = (Vec::clone(&ears), (7..7 + count).map(device).collect());
            let sent = Introduction { lane, slots, withdrawal: 9, devices, ears };
            assert_eq!(Introduction::decode(&sent.encode()), Ok(sent));
        }
    }

    #[test]
    fn devices_that_are_not_there_are_missed() {
        let region = RegionDescriptor { key: 1, bytes: 1 };
        let (devices, ears) = (vec![], vec![]);
        let sent = Introduction { lane: region, slots: region, withdrawal: 0, devices, ears };
        let count = 2 * RegionDescriptor::WIRE_BYTES + 4;
        for (said, what) in [(2, "too few"), (u64::MAX, "no process has")] {
            let mut body = sent.encode();
            body[count..count + 8].copy_from_slice(&u64::to_le_bytes(said));
            let refused = Introduction::decode(&body).unwrap_err();
            assert!(refused.contains(what), "{refused}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(found) = Introduction::decode(&bytes) {
                prop_assert_eq!(found.encode(), bytes);
            }
        }
    }
}
