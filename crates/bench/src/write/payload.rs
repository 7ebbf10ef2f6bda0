//! What a write carries: a pattern that depends on the place alone, and at the start of every block, and
//! at the very end, the number of the write. So a write that arrived in part, or an earlier one, differs.

/// Words between two stamps: 4 KiB, the payload of the largest RDMA packet.
const BLOCK_WORDS: usize = 1024;
const WORD: usize = 4;

/// Fills memory with the pattern, as write 0.
pub(super) fn fill(bytes: &mut [u8]) {
    let words = bytes.len() / WORD;
    for (index, word) in bytes.chunks_exact_mut(WORD).enumerate() {
        word.copy_from_slice(&expected(index, words, 0).to_le_bytes());
    }
}

/// Makes it the write of that number.
pub(super) fn stamp(bytes: &mut [u8], number: u32) {
    let stamp = number.to_le_bytes();
    bytes.chunks_mut(BLOCK_WORDS * WORD).for_each(|block| block[..WORD].copy_from_slice(&stamp));
    if let Some(last) = bytes.last_chunk_mut() {
        *last = stamp;
    }
}

/// Returns the number that it says it has.
#[cfg(any(test, feature = "baselines"))]
pub(super) fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|word| u32::from_le_bytes(*word))
}

/// The first byte at which it is not the whole write of that number.
pub(super) fn first_difference(bytes: &[u8], number: u32) -> Option<usize> {
    let words = bytes.len() / WORD;
    let differs =
        |(index, word): (usize, &[u8])| word != expected(index, words, number).to_le_bytes();
    bytes.chunks_exact(WORD).enumerate().position(differs).map(|index| index * WORD)
}

/// Makes it no write's.
pub(super) fn spoil(bytes: &mut [u8]) {
    bytes.fill(0xee);
}

fn expected(index: usize, words: usize, number: u32) -> u32 {
    if index.is_multiple_of(BLOCK_WORDS) || index + 1 == words {
        number
    } else {
        // spreads neighbours over all bits (Fibonacci hashing, Knuth TAOCP 6.4); fits: the low 32 bits
        (index as u32).wrapping_mul(0x9e37_79b9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_told_from_the_one_before() {
        for bytes in [4, 8, 4096, 4100, 12_288] {
            let mut memory = vec![0; bytes];
            fill(&mut memory);
            assert_eq!(first_difference(&memory, 0), None);
            stamp(&mut memory, 7);
            assert_eq!(number(&memory), Some(7));
            assert_eq!(first_difference(&memory, 7), None, "{bytes} bytes");
            assert_eq!(first_difference(&memory, 8), Some(0));
        }
    }

    #[test]
    fn a_write_that_arrived_in_part_is_found() {
        let mut memory = vec![0; 12_288];
        fill(&mut memory);
        stamp(&mut memory, 7);
        // the second block is still the write before
        memory[4096..4100].copy_from_slice(&6u32.to_le_bytes());
        assert_eq!(first_difference(&memory, 7), Some(4096));
        stamp(&mut memory, 7);
        spoil(&mut memory[12_000..12_004]);
        assert_eq!(first_difference(&memory, 7), Some(12_000));
    }
}
