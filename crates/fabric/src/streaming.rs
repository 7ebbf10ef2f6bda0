//! Copies of bytes that another core reads next.

/// From so many bytes on. Fewer may stay in a cache that both cores share, and are read from there sooner.
#[cfg(any(test, target_arch = "x86_64"))]
const STREAMED_MIN: usize = 32 << 10;

/// Copies bytes into memory that another process reads next.
///
/// An ordinary store takes its line from the cache of the core that read it last, though nothing of it is kept, and the reader takes
/// it back from here. A streaming store sends whole lines to memory and leaves the reader's copy invalid. On processors of AMD a
/// write of 64 KiB to 1 MiB takes a third of the time so, and with its reading 0.55 to 0.65 (docs/internals.md, "What is copied"); others
/// were not measured, and copy as usual.
///
/// # Safety
/// As for [`std::ptr::copy`].
pub(crate) unsafe fn copy_for_another_core(source: *const u8, target: *mut u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        let overlaps = source.addr().abs_diff(target.addr()) < bytes;
        if bytes >= STREAMED_MIN && !overlaps && x86::streams() {
            // SAFETY: promised by the caller, and just seen not to overlap.
            return unsafe { x86::stream(source, target, bytes) };
        }
    }
    // SAFETY: promised by the caller.
    unsafe { std::ptr::copy(source, target, bytes) }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__cpuid, __m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    use std::sync::LazyLock;

    /// Bytes of a line of the caches.
    const LINE: usize = 64;

    /// True on processors where streaming stores were measured to help.
    pub(super) fn streams() -> bool {
        static IS_AMD: LazyLock<bool> = LazyLock::new(|| {
            // Miri knows neither the question nor the stores
            if cfg!(miri) {
                return false;
            }
            // SAFETY: every processor of this architecture answers. In later Rust it is safe to ask.
            #[allow(unused_unsafe, reason = "in some versions of Rust it is safe")]
            let vendor = unsafe { __cpuid(0) };
            [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"AuthenticAMD"
        });
        *IS_AMD
    }

    /// # Safety
    /// As for [`std::ptr::copy_nonoverlapping`].
    pub(super) unsafe fn stream(source: *const u8, target: *mut u8, bytes: usize) {
        let head = target.align_offset(LINE).min(bytes);
        let lines = (bytes - head) / LINE;
        let tail = head + lines * LINE;
        // SAFETY: head, lines and tail are the bytes that the caller promised; lines of the target begin at multiples of 64, and every
        // processor of this architecture has these instructions.
        unsafe {
            std::ptr::copy_nonoverlapping(source, target, head);
            for line in 0..lines {
                let at = head + line * LINE;
                let from = source.add(at).cast::<__m128i>();
                let to = target.add(at).cast::<__m128i>();
                let parts: [__m128i; 4] =
                    std::array::from_fn(|part| _mm_loadu_si128(from.add(part)));
                for (part, value) in parts.into_iter().enumerate() {
                    _mm_stream_si128(to.add(part), value);
                }
            }
            std::ptr::copy_nonoverlapping(source.add(tail), target.add(tail), bytes - tail);
            // what is signalled behind this is not to come before it
            _mm_sfence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no streaming stores")]
    fn every_byte_comes_and_no_other_changes() {
        for bytes in [0, 1, 63, STREAMED_MIN - 1, STREAMED_MIN, STREAMED_MIN + 77, 3 * STREAMED_MIN]
        {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (13, 57)] {
                let source: Vec<u8> = (0..bytes + from).map(|at| (at % 251) as u8 + 1).collect();
                let mut target = vec![0; to + bytes + 64];
                // SAFETY: both have room, and are two.
                unsafe {
                    let target = target.as_mut_ptr().add(to);
                    copy_for_another_core(source.as_ptr().add(from), target, bytes);
                }
                assert!(target[..to].iter().chain(&target[to + bytes..]).all(|byte| *byte == 0));
                assert!(target[to..to + bytes] == source[from..], "{bytes} from {from} to {to}");
            }
        }
    }

    #[test]
    fn what_overlaps_is_moved() {
        let bytes = 2 * STREAMED_MIN;
        let mut memory: Vec<u8> = (0..bytes + 100).map(|at| (at % 251) as u8).collect();
        let before = memory.clone();
        let start = memory.as_mut_ptr();
        // SAFETY: both places lie inside.
        unsafe { copy_for_another_core(start, start.add(100), bytes) };
        assert!(memory[100..] == before[..bytes]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no streaming stores")]
    fn the_streaming_copy_is_right_where_it_is_not_chosen() {
        let source: Vec<u8> = (0..1000).map(|at| (at % 251) as u8).collect();
        let mut target = vec![0; 1000];
        // SAFETY: both have room, and are two.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            x86::stream(source.as_ptr(), target.as_mut_ptr(), 1000);
        }
        #[cfg(not(target_arch = "x86_64"))]
        target.copy_from_slice(&source);
        assert!(target == source);
    }
}
