//! Working memory of products and convolutions, kept by each thread for its next call. Never an output.

use std::cell::{Cell, RefCell};

use tensorwire_tensor::Element;

/// Start of a scratch slice: a cache line, and an AVX-512 vector.
const ALIGNMENT: usize = 64;

thread_local! {
    /// One piece of memory for each depth of nesting. Taken out while in use: a thread that waits for its
    /// pool may be handed other work meanwhile, which then counts as nested.
    static KEPT: RefCell<Vec<Vec<u64>>> = const { RefCell::new(Vec::new()) };
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Calls `body` with `len` elements of scratch, whose contents are unspecified.
pub(super) fn with_scratch<T: Element, R>(len: usize, body: impl FnOnce(&mut [T]) -> R) -> R {
    let bytes = len * size_of::<T>();
    let depth = DEPTH.get();
    let mut words = KEPT.with_borrow_mut(|kept| match kept.get_mut(depth) {
        Some(words) => std::mem::take(words),
        None => Vec::new(),
    });
    let needed = (bytes + ALIGNMENT).div_ceil(size_of::<u64>());
    if words.len() < needed {
        drop(words); // before the larger one is made, so that both are never there
        words = vec![0; needed];
    }
    let all: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    let start = all.as_ptr().align_offset(ALIGNMENT);
    DEPTH.set(depth + 1);
    let result = body(bytemuck::cast_slice_mut(&mut all[start..][..bytes]));
    DEPTH.set(depth);
    KEPT.with_borrow_mut(|kept| {
        if kept.len() <= depth {
            kept.resize_with(depth + 1, Vec::new);
        }
        kept[depth] = words;
    });
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_is_aligned_nests_and_is_kept() {
        let (mut outer_address, mut inner_address) = (0, 0);
        with_scratch::<f32, _>(1000, |outer| {
            outer.fill(1.0);
            with_scratch::<f64, _>(3, |inner| {
                inner.fill(2.0);
                inner_address = inner.as_ptr() as usize;
            });
            assert!(outer.iter().all(|&x| x == 1.0));
            assert_eq!(outer.len(), 1000);
            outer_address = outer.as_ptr() as usize;
        });
        assert_eq!(outer_address % ALIGNMENT, 0);
        with_scratch::<f32, _>(10, |again| {
            assert_eq!(again.as_ptr() as usize, outer_address);
            with_scratch::<f32, _>(3, |inner| assert_eq!(inner.as_ptr() as usize, inner_address));
        });
        with_scratch::<f32, _>(0, |none| assert!(none.is_empty()));
    }
}
