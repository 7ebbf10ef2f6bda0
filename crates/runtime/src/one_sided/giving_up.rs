//! Steps that are given up, and how peers hear of it. Whoever gives up a step that its device was told as a whole opens the
//! device's gates, so that no stream waits for good, and the stream computes on with whatever is there. What it writes then may be
//! what a peer still reads: in its own memory, where peers read it, or in a peer's, where it writes.
//!
//! **Why nobody uses what is torn, where devices map each other's memory.** Before the gates are opened a slot of each peer is
//! raised ([`OneSided::tell_peers`]): it is raised when that returns, in memory of the host that both have. A gate is opened by
//! a store with release order, and a device sees no open gate without what was stored before it. So the slot is raised before
//! anything is written that is not to be read. A peer looks at its slot ([`Withdrawal::check`]) behind its reading: its device
//! has said by a word or an event that what read is done, and a fence keeps the look behind that. If anything that it read was
//! written behind an open gate, the slot is raised by then. It looks before anything is made of what was read: before a
//! tensor, the news of one, or leave to write one again is posted, before a run counts as done, and before a caller gets bytes
//! of a device's memory that were copied for it.
//!
//! **Where a NIC reads a device's memory** nobody else does, and what was posted may still be on its way with the right signal
//! behind it. The gates are opened when that is over ([`OneSided::let_go`]).

use std::sync::atomic::{Ordering, fence};

use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::{ArrivalSlot, Channel, Fabric, Signal};

use super::events::check_peers;
use super::{Lent, OneSided};
use crate::error::ExchangeError;

/// Where a part hears that a peer gave up a step. Its slot says who did, and who was lost before.
#[derive(Clone, Debug)]
pub(super) struct Withdrawal {
    fabric: Fabric,
    slot: ArrivalSlot,
}

/// Who gave up, and who was the cause, as the epoch of a slot: never 0.
fn epoch_of(peer: Rank, cause: Rank) -> u64 {
    (u64::from(peer.0) + 1) << 32 | u64::from(cause.0)
}

/// The same of an epoch that a peer wrote, which may be any.
fn named_by(epoch: u64) -> (Rank, Rank) {
    // fits: each is a half
    let [peer, cause] = [(epoch >> 32) as u32, epoch as u32].map(Rank);
    (Rank(peer.0.saturating_sub(1)), cause)
}

impl Withdrawal {
    pub(super) fn new(fabric: &Fabric, slot: ArrivalSlot) -> Withdrawal {
        Withdrawal { fabric: fabric.clone(), slot }
    }

    /// Fails if a peer gave up a step.
    pub(super) fn check(&self) -> Result<(), ExchangeError> {
        // behind what told that the device has read: a word, or an event
        fence(Ordering::Acquire);
        match self.fabric.arrived(self.slot) {
            0 => Ok(()),
            epoch => {
                // who was lost is known here, too, or not yet
                check_peers(&self.fabric)?;
                let (peer, cause) = named_by(epoch);
                Err(ExchangeError::GivenUp { peer, cause })
            }
        }
    }

    /// Who is the cause, for others: the peer that was lost first, as far as it is known here.
    fn cause(&self, own: Rank) -> Rank {
        match self.check() {
            Err(ExchangeError::GivenUp { cause, .. }) => cause,
            _ => self.fabric.fault().map_or(own, |fault| fault.rank),
        }
    }
}

impl OneSided {
    /// Tells all peers that share memory that a step is given up.
    pub(super) fn tell_peers(&self) {
        let epoch = epoch_of(self.rank, self.withdrawal.cause(self.rank));
        for (channel, slot) in &self.withdrawals {
            // who shares no memory reads none of it
            channel.raise(Signal { slot: *slot, epoch });
        }
    }

    /// Waits until no NIC reads memory of the device any more. What failed is over, too.
    pub(super) fn let_go(&mut self, deadline: Deadline) {
        let is_of_device = |loan: &Option<Lent>| matches!(loan, Some(Lent::OnDevice { .. }));
        loop {
            let ticket = self.fabric.ticket();
            for (edge, _) in self.completions.poll(&self.fabric) {
                self.loans.remove(&edge);
            }
            if !self.loans.values().any(is_of_device) || deadline.passed() {
                return;
            }
            self.fabric.wait(ticket, deadline);
        }
    }
}

/// The peers' slots, by the channels to them.
pub(super) type Withdrawals = Vec<(Channel, ArrivalSlot)>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_names_both() {
        for (peer, cause) in [(0, 0), (3, 1), (u32::MAX - 1, u32::MAX)] {
            let (peer, cause) = (Rank(peer), Rank(cause));
            assert_ne!(epoch_of(peer, cause), 0);
            assert_eq!(named_by(epoch_of(peer, cause)), (peer, cause));
        }
        // whatever a peer writes
        assert_eq!(named_by(7), (Rank(0), Rank(7)));
    }
}
