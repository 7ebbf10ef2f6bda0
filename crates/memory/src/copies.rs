//! The count of bytes that the runtime itself copies: promise 1 of the project is that it stays 0 on
//! the static path, so every copy that the runtime makes goes through here.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts bytes copied from memory to memory by the runtime (never by a kernel or the wire).
#[derive(Debug, Default)]
pub struct CopyCounter {
    bytes: AtomicU64,
}

impl CopyCounter {
    /// Copies `source` over `target` and counts it.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy(&self, source: &[u8], target: &mut [u8]) {
        target.copy_from_slice(source);
        // fits: a length is at most isize::MAX
        self.bytes.fetch_add(source.len() as u64, Ordering::Relaxed);
    }

    /// Bytes copied so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}
