//! Memory and who may touch it now: slabs (raw memory that is kept alive), arenas (a slab cut into
//! planned places), heaps (a slab handed out while a job runs), buffers (one place, lent out by
//! flags) and windows (a slab used by ranges, as agreed with those outside). A slab may be memory of a
//! device: it is cut and lent as any other, and never becomes a slice. Knows no ranks, no operators, and not
//! who registered a slab with a NIC.

mod arena;
mod buffer;
mod copies;
mod device_loan;
mod dma_buf;
mod heap;
#[cfg(test)]
#[cfg(loom)]
mod loom_tests;
mod peer_mapped;
mod slab;
mod tensor;
mod window;

pub use arena::{Arena, ArenaError, Place};
pub use buffer::{Buffer, Loan, LoanError, ReadGuard, WriteGuard, WriteLoan};
pub use copies::{Copies, CopyPurpose};
pub use device_loan::{DeviceLoan, DeviceWriteLoan};
pub use dma_buf::DmaBuf;
pub use heap::Heap;
pub use peer_mapped::PeerMapped;
pub use slab::{ALIGNMENT, CutMark, HUGE_PAGE, Keepalive, Slab, SlabError};
pub use tensor::{TensorError, TensorMut, TensorRef};
pub use window::Window;
