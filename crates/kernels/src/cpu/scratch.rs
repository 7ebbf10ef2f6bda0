//! Working memory of the matrix product, kept by each thread for its next call. Never an output.

use std::cell::Cell;

use tensorwire_tensor::Element;

/// Start of a scratch slice: a cache line, and an AVX-512 vector.
const ALIGNMENT: usize = 64;

thread_local! {
    /// Taken out while in use: a thread that waits for its pool may be handed other work meanwhile,
    /// which then finds nothing here and makes its own.
    static KEPT: Cell<Vec<u64>> = const { Cell::new(Vec::new()) };
}

/// Calls `body` with `len` elements of scratch, whose contents are unspecified.
pub(super) fn with_scratch<T: Element, R>(len: usize, body: impl FnOnce(&mut [T]) -> R) -> R {
    let bytes = len * size_of::<T>();
    let mut words = KEPT.take();
    let needed = (bytes + ALIGNMENT).div_ceil(size_of::<u64>());
    if words.len() < needed {
        words = vec![0; needed];
    }
    let all: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    let start = all.as_ptr().align_offset(ALIGNMENT);
    let result = body(bytemuck::cast_slice_mut(&mut all[start..][..bytes]));
    KEPT.set(words);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_is_aligned_nests_and_is_kept() {
        let outer_address = with_scratch::<f32, _>(1000, |outer| {
            outer.fill(1.0);
            with_scratch::<f64, _>(3, |inner| inner.fill(2.0));
            assert!(outer.iter().all(|&x| x == 1.0));
            assert_eq!(outer.len(), 1000);
            outer.as_ptr() as usize
        });
        assert_eq!(outer_address % ALIGNMENT, 0);
        with_scratch::<f32, _>(10, |again| assert_eq!(again.as_ptr() as usize, outer_address));
        with_scratch::<f32, _>(0, |none| assert!(none.is_empty()));
    }
}
