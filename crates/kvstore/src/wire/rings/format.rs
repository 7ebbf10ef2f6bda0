//! A message as it lies in a ring: the first paper's Table 1 behind one word that a ring needs. Knows
//! neither peers nor what metadata means, and believes nothing that it reads.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | length of all that follows, without the padding; all ones: the ring goes on at its beginning |
//! | 8 | block count N |
//! | N × 8 | size of each block |
//! | the rest | metadata |
//! | the sizes' sum | blocks |
//! | 0 to 7 | padding |
//!
//! All numbers are little-endian.

use tensorwire_memory::{Copies, CopyPurpose};

use super::ring::{WORD_BYTES, frame_bytes_max};

/// Blocks whose sizes fit beside the largest metadata and blocks that a peer is told of.
const BLOCKS: usize = 64;

/// Instead of a length: the rest up to the end of the ring was left out.
pub(super) const LEFT_OUT: [u8; WORD_BYTES] = [0xff; WORD_BYTES];

/// What lies at the beginning of some bytes of a ring.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    /// Nothing up to the end of the ring.
    LeftOut,
    /// A message with these metadata, whose frame has `bytes` bytes.
    Message { meta: &'a [u8], bytes: usize },
}

/// Bytes that are no frame.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error("{bytes} bytes are too few for a message")]
    Short { bytes: usize },
    #[error("a message of {length} bytes in {bytes}")]
    Length { length: u64, bytes: usize },
    #[error("{count} blocks in a message of {length} bytes")]
    Count { count: u64, length: usize },
    #[error("blocks of more bytes than the {rest} there are")]
    TransferThresholds { rest: usize },
}

/// Bytes of the frame of a message; None if they cannot be counted.
pub(super) fn frame_bytes(meta: &[u8], blocks: &[&[u8]]) -> Option<usize> {
    let head = (2 + blocks.len()).checked_mul(WORD_BYTES)?.checked_add(meta.len())?;
    let all = blocks.iter().try_fold(head, |sum, block| sum.checked_add(block.len()))?;
    all.checked_next_multiple_of(WORD_BYTES)
}

/// Most bytes of metadata and blocks, so that they fit a ring with the sizes of up to [`BLOCKS`] blocks.
pub(super) fn message_bytes_max(capacity: usize) -> usize {
    let frame = frame_bytes_max(capacity) / WORD_BYTES * WORD_BYTES;
    frame.saturating_sub((2 + BLOCKS) * WORD_BYTES)
}

/// Writes the frame of a message.
///
/// # Panics
/// If `target` has not [`frame_bytes`] bytes.
pub(super) fn write(target: &mut [u8], meta: &[u8], blocks: &[&[u8]], copies: &mut Copies) {
    let data: usize = blocks.iter().map(|block| block.len()).sum();
    let head = (2 + blocks.len()) * WORD_BYTES;
    let length = head - WORD_BYTES + meta.len() + data;
    let words = [length, blocks.len()].into_iter().chain(blocks.iter().map(|block| block.len()));
    let (table, mut rest) = target.split_at_mut(head);
    for (word, value) in table.chunks_exact_mut(WORD_BYTES).zip(words) {
        // fits: usize is 64 bits wide
        word.copy_from_slice(&(value as u64).to_le_bytes());
    }
    let (here, behind) = rest.split_at_mut(meta.len());
    // what is said of values is no copy of any
    here.copy_from_slice(meta);
    rest = behind;
    for block in blocks {
        let (here, behind) = rest.split_at_mut(block.len());
        copies.copy(CopyPurpose::Store, block, here);
        rest = behind;
    }
    // the padding goes over the wire: nothing of earlier messages goes with it
    rest.fill(0);
}

/// Reads the frame at the beginning of `bytes`, and its blocks into `blocks`.
pub(super) fn read<'a>(
    bytes: &'a [u8],
    blocks: &mut Vec<&'a [u8]>,
) -> Result<Frame<'a>, Malformed> {
    let short = Malformed::Short { bytes: bytes.len() };
    let (length, behind) = bytes.split_first_chunk::<WORD_BYTES>().ok_or(short)?;
    if *length == LEFT_OUT {
        return Ok(Frame::LeftOut);
    }
    let length = u64::from_le_bytes(*length);
    let wrong = Malformed::Length { length, bytes: bytes.len() };
    let length = usize::try_from(length).ok().filter(|length| *length <= behind.len());
    let length = length.ok_or(wrong)?;
    let (count, rest) = behind[..length]
        .split_first_chunk::<WORD_BYTES>()
        .ok_or(Malformed::Short { bytes: length })?;
    let count = u64::from_le_bytes(*count);
    let table = usize::try_from(count).ok().and_then(|count| count.checked_mul(WORD_BYTES));
    let (table, rest) = table
        .and_then(|table| rest.split_at_checked(table))
        .ok_or(Malformed::Count { count, length })?;
    let too_large = || Malformed::TransferThresholds { rest: rest.len() };
    let sizes = || table.chunks_exact(WORD_BYTES).map(size);
    let data = sizes().try_fold(0_usize, |sum, size| sum.checked_add(size?));
    let meta_bytes = data.and_then(|data| rest.len().checked_sub(data)).ok_or_else(too_large)?;
    let (meta, mut data) = rest.split_at(meta_bytes);
    blocks.clear();
    for size in sizes() {
        let block = size.and_then(|size| data.split_at_checked(size)).ok_or_else(too_large)?;
        blocks.push(block.0);
        data = block.1;
    }
    let bytes_taken = (WORD_BYTES + length).next_multiple_of(WORD_BYTES);
    if bytes_taken > bytes.len() {
        // fits: usize is 64 bits wide
        return Err(Malformed::Length { length: length as u64, bytes: bytes.len() });
    }
    Ok(Frame::Message { meta, bytes: bytes_taken })
}

fn size(word: &[u8]) -> Option<usize> {
    let word = word.first_chunk::<WORD_BYTES>()?;
    usize::try_from(u64::from_le_bytes(*word)).ok()
}

/// Any bytes of a ring: [`crate::fuzz`].
pub(crate) fn fuzz_frames(bytes: &[u8]) {
    let mut blocks = Vec::new();
    let Ok(Frame::Message { meta, bytes: taken }) = read(bytes, &mut blocks) else { return };
    assert_eq!(frame_bytes(meta, &blocks), Some(taken));
    let mut again = vec![0; taken];
    write(&mut again, meta, &blocks, &mut Copies::default());
    let mut blocks_again = Vec::new();
    let frame = read(&again, &mut blocks_again).expect("what we write is what we read");
    assert_eq!(frame, Frame::Message { meta, bytes: taken });
    assert_eq!(blocks_again, blocks);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..70)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            meta in bytes(), blocks in prop::collection::vec(bytes(), 0..9), behind in bytes(),
        ) {
            let blocks: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
            let length = frame_bytes(&meta, &blocks).unwrap();
            let data: usize = blocks.iter().map(|block| block.len()).sum();
            prop_assert_eq!(length, (16 + 8 * blocks.len() + meta.len() + data).next_multiple_of(8));
            let (mut frame, mut copies) = (vec![0xaa; length], Copies::default());
            write(&mut frame, &meta, &blocks, &mut copies);
            prop_assert_eq!(copies.bytes(), data as u64);
            frame.extend_from_slice(&behind);
            let mut found = vec![&[1_u8][..]];
            let read = read(&frame, &mut found);
            prop_assert_eq!(read, Ok(Frame::Message { meta: &meta, bytes: length }));
            prop_assert_eq!(found, blocks);
        }

        /// A frame that a stranger bent: read or refused, in bounds and without a large allocation.
        #[test]
        fn garbage_is_refused_or_in_bounds(
            words in prop::collection::vec(prop_oneof![0_u64..64, any::<u64>()], 0..12),
            cut in 0_usize..8,
        ) {
            let mut garbage: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            garbage.truncate(garbage.len().saturating_sub(cut));
            let mut blocks = Vec::new();
            if let Ok(Frame::Message { meta, bytes }) = read(&garbage, &mut blocks) {
                let data: usize = blocks.iter().map(|block| block.len()).sum();
                prop_assert!(bytes <= garbage.len() && bytes % 8 == 0);
                let told = 16 + 8 * blocks.len() + meta.len() + data;
                prop_assert_eq!(told.next_multiple_of(8), bytes);
            }
            prop_assert!(blocks.capacity() <= 64);
        }

        #[test]
        fn a_cut_frame_is_refused(meta in bytes(), block in bytes(), keep in 0_usize..200) {
            let mut frame = vec![0; frame_bytes(&meta, &[&block]).unwrap()];
            write(&mut frame, &meta, &[&block], &mut Copies::default());
            let keep = keep % frame.len();
            prop_assert!(read(&frame[..keep], &mut Vec::new()).is_err());
        }
    }

    #[test]
    fn each_lie_has_its_name() {
        let read = |words: &[u64]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            read(&bytes, &mut Vec::new()).map(|_| ()).unwrap_err()
        };
        assert_eq!(read(&[]), Malformed::Short { bytes: 0 });
        assert_eq!(read(&[0]), Malformed::Short { bytes: 0 });
        assert_eq!(read(&[9, 0]), Malformed::Length { length: 9, bytes: 16 });
        assert_eq!(read(&[8, 1]), Malformed::Count { count: 1, length: 8 });
        assert_eq!(read(&[8, u64::MAX]), Malformed::Count { count: u64::MAX, length: 8 });
        assert_eq!(read(&[16, 1, 1]), Malformed::TransferThresholds { rest: 0 });
        assert_eq!(read(&[24, 2, u64::MAX, 1]), Malformed::TransferThresholds { rest: 0 });
    }

    #[test]
    fn all_ones_send_the_reader_back_to_the_beginning() {
        assert_eq!(read(&LEFT_OUT, &mut Vec::new()), Ok(Frame::LeftOut));
    }
}
