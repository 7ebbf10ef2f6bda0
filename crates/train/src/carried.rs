//! Counts the tensors that a worker exchanges, and the bytes that are copied for its training, for whoever reports them
//! while it trains.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tensorwire_memory::{Copies, CopyPurpose};

use crate::report::Traffic;

/// What was counted so far: one count, however many hold it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Carried {
    store: Arc<AtomicU64>,
    client: Arc<AtomicU64>,
    copies: Arc<Mutex<Copies>>,
}

impl Carried {
    /// A tensor was pushed to a store, or pulled from it.
    pub(crate) fn to_store(&self, bytes: usize) {
        // fits: sizes in memory
        self.store.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A vector is reduced among `members`.
    pub(crate) fn reduced(&self, bytes: usize, members: usize) {
        // fits: sizes in memory, and members are few
        let (bytes, members) = (bytes as u64, members.max(1) as u64);
        self.client.fetch_add(2 * (members - 1) * bytes / members, Ordering::Relaxed);
    }

    /// Tensors go to others of the client.
    pub(crate) fn sent_in_client(&self, bytes: u64) {
        self.client.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A vector comes from the client's first member.
    pub(crate) fn broadcast(&self, bytes: usize) {
        // fits: sizes in memory
        self.client.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes were copied from memory to memory here.
    pub(crate) fn copied(&self, purpose: CopyPurpose, bytes: usize) {
        // fits: sizes in memory
        self.copies.lock().add(purpose, bytes as u64);
    }

    pub(crate) fn copies(&self) -> Copies {
        *self.copies.lock()
    }

    pub(crate) fn traffic(&self) -> Traffic {
        Traffic {
            store_bytes: self.store.load(Ordering::Relaxed),
            client_bytes: self.client.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_n_members_sends_2_n_minus_1_nths_of_what_they_reduce() {
        let carried = Carried::default();
        let same = carried.clone();
        same.reduced(400, 4);
        assert_eq!(carried.traffic(), Traffic { store_bytes: 0, client_bytes: 600 });
        same.reduced(400, 1);
        same.broadcast(7);
        same.to_store(5);
        assert_eq!(carried.traffic(), Traffic { store_bytes: 5, client_bytes: 607 });
    }
}
