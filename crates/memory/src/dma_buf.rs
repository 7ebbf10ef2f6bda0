//! Memory of a device as a NIC's driver takes it. Plain data: who makes it and who takes it are elsewhere.

use std::os::fd::OwnedFd;

/// A dma-buf, and which part of it is meant.
#[derive(Debug)]
pub struct DmaBuf {
    pub fd: OwnedFd,
    /// Where the part starts in what the descriptor shows, which starts at a page.
    pub offset: u64,
    pub bytes: u64,
}
