//! What stands before the bytes of a fragment, in little endian. Whatever a peer wrote there is checked.

use super::{CONTENT_BYTES_MAX, SLOT_BYTES};
use crate::transport::HEAD_BYTES_MAX;

/// A fragment is its header, the message's head if it is the first, and some of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fragment {
    /// Of the content that have not gone, this fragment's included.
    pub(super) left: usize,
    /// Of the content in this fragment.
    pub(super) bytes: usize,
    /// Of the head; none but in a message's first fragment.
    pub(super) head: Option<usize>,
}

pub(super) const HEADER_BYTES: usize = 16;
/// Stands for no head.
const NO_HEAD: u32 = u32::MAX;

impl Fragment {
    /// The next fragment of a message of which `left` bytes have not gone.
    pub(super) fn next(left: usize, head: Option<usize>) -> Fragment {
        let room = SLOT_BYTES - HEADER_BYTES - head.unwrap_or_default();
        Fragment { left, bytes: left.min(room), head }
    }

    /// In the slot, header included.
    pub(super) fn slot_bytes(&self) -> usize {
        HEADER_BYTES + self.head.unwrap_or_default() + self.bytes
    }

    pub(super) fn is_last(&self) -> bool {
        self.bytes == self.left
    }

    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&(self.left as u64).to_le_bytes());
        // fits: a slot has far less than 4 GiB
        header[8..12].copy_from_slice(&(self.bytes as u32).to_le_bytes());
        let head = self.head.map_or(NO_HEAD, |bytes| bytes as u32);
        header[12..].copy_from_slice(&head.to_le_bytes());
        header
    }

    /// What a slot begins with.
    pub(super) fn decode(header: &[u8; HEADER_BYTES]) -> Result<Fragment, String> {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        let left = u64::from_le_bytes(std::array::from_fn(|i| header[i]));
        let left = usize::try_from(left).ok().filter(|left| *left <= CONTENT_BYTES_MAX);
        let left = left.ok_or("a message that is longer than any may be")?;
        // fits: usize is 64 bits wide
        let head = Some(word(12)).filter(|head| *head != NO_HEAD).map(|head| head as usize);
        if head.is_some_and(|head| head > HEAD_BYTES_MAX) {
            return Err("a head that is longer than any may be".to_string());
        }
        let fragment = Fragment { left, bytes: word(8) as usize, head };
        match fragment == Fragment::next(left, head) {
            true => Ok(fragment),
            false => Err(format!("a fragment that nobody would send: {fragment:?}")),
        }
    }
}

/// Any bytes as a header: [`crate::fuzz`].
pub(crate) fn fuzz_fragments(bytes: &[u8]) {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return };
    if let Ok(fragment) = Fragment::decode(header) {
        assert!(fragment.slot_bytes() <= SLOT_BYTES && fragment.bytes <= fragment.left);
        assert_eq!(fragment.encode(), *header);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_survive_the_wire_and_make_up_the_message() {
        for content in [0, 1, SLOT_BYTES, SLOT_BYTES * 3 + 5] {
            let (mut left, mut head, mut slots) = (content, Some(40), 0);
            loop {
                let fragment = Fragment::next(left, head.take());
                assert_eq!(Fragment::decode(&fragment.encode()), Ok(fragment));
                assert!(fragment.slot_bytes() <= SLOT_BYTES);
                (left, slots) = (left - fragment.bytes, slots + 1);
                if fragment.is_last() {
                    break;
                }
            }
            assert_eq!(left, 0);
            assert_eq!(slots, (content + 40).div_ceil(SLOT_BYTES - HEADER_BYTES).max(1));
        }
    }

    #[test]
    fn what_no_peer_would_write_is_refused() {
        let good = Fragment::next(SLOT_BYTES, None);
        for bad in [
            Fragment { bytes: good.bytes + 1, ..good },
            Fragment { bytes: good.bytes - 1, ..good },
            Fragment { left: CONTENT_BYTES_MAX + 1, ..good },
            Fragment { head: Some(HEAD_BYTES_MAX + 1), ..good },
        ] {
            assert!(Fragment::decode(&bad.encode()).is_err(), "{bad:?}");
        }
    }
}
