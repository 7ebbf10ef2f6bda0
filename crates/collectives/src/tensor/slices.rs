//! Where a vector is cut: into slices, which go over the wire one by one, and each of these into parts, one for each
//! device to work on. Pure.

use std::ops::Range;

use tensorwire_memory::{ALIGNMENT, Place};

/// A slice of fewer bytes would cost more than it hides.
const SLICE_BYTES_MIN: usize = 64 << 10;

/// The cuts of one vector, in bytes.
#[derive(Clone, Debug)]
pub(super) struct Slices {
    bytes: usize,
    slices: usize,
    parts: usize,
}

impl Slices {
    /// At most so many slices, of so many parts each.
    pub(super) fn new(bytes: usize, slices_max: usize, parts: usize) -> Slices {
        let slices = (bytes / SLICE_BYTES_MIN).clamp(1, slices_max.max(1));
        Slices { bytes, slices, parts }
    }

    pub(super) fn count(&self) -> usize {
        self.slices
    }

    pub(super) fn all(&self) -> Vec<Place> {
        (0..self.slices).map(|slice| place(self.slice(slice))).collect()
    }

    /// The parts of a slice; of a short one, some are empty.
    pub(super) fn parts(&self, slice: usize) -> Vec<Place> {
        let slice = self.slice(slice);
        (0..self.parts).map(|part| place(aligned(slice.clone(), part, self.parts))).collect()
    }

    /// Member `i`'s piece of a slice, as bytes of the vector.
    pub(super) fn piece(
        &self,
        slice: usize,
        i: usize,
        members: usize,
        element_bytes: usize,
    ) -> Range<usize> {
        let slice = self.slice(slice);
        let len = slice.len() / element_bytes;
        let at = |i: usize| slice.start + i * len / members * element_bytes;
        at(i)..at(i + 1)
    }

    fn slice(&self, slice: usize) -> Range<usize> {
        aligned(0..self.bytes, slice, self.slices)
    }
}

/// The `i`th of `count` nearly equal parts of a range that starts at a cache line; so does each part.
fn aligned(range: Range<usize>, i: usize, count: usize) -> Range<usize> {
    let at = |i: usize| match i == count {
        true => range.end,
        false => range.start + i * range.len() / count / ALIGNMENT * ALIGNMENT,
    };
    at(i)..at(i + 1)
}

fn place(range: Range<usize>) -> Place {
    Place { offset: range.start, bytes: range.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte is in one slice and in one part of it, in order, and every start is aligned.
    #[test]
    fn slices_and_parts_tile_the_vector() {
        for bytes in [0, 4, 60, 64, 68, 1000, 64 << 10, (128 << 10) + 4, (1 << 20) - 4, 1 << 20] {
            for (most, parts) in [(1, 1), (1, 3), (4, 2), (7, 5)] {
                let slices = Slices::new(bytes, most, parts);
                let mut end = 0;
                for (at, slice) in slices.all().into_iter().enumerate() {
                    assert_eq!(slice.offset, end);
                    for part in slices.parts(at) {
                        assert_eq!((part.offset, part.offset % ALIGNMENT), (end, 0));
                        end += part.bytes;
                    }
                    assert_eq!(end, slice.offset + slice.bytes);
                }
                assert_eq!(end, bytes);
                assert!(slices.count() <= most, "{bytes} {most}");
            }
        }
    }

    #[test]
    fn short_vectors_are_not_cut() {
        let count = |bytes| Slices::new(bytes, 4, 2).count();
        assert_eq!([0, 64 << 10, 128 << 10, 1 << 20].map(count), [1, 1, 2, 4]);
    }

    #[test]
    fn pieces_of_a_slice_are_whole_elements_and_all_of_it() {
        let slices = Slices::new((256 << 10) + 12, 3, 2);
        for slice in 0..3 {
            let place = slices.all()[slice];
            let mut end = place.offset;
            for member in 0..5 {
                let piece = slices.piece(slice, member, 5, 4);
                assert_eq!((piece.start, piece.len() % 4), (end, 0));
                end = piece.end;
            }
            assert_eq!(end, place.offset + place.bytes);
        }
    }
}
