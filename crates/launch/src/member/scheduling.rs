//! What a member of a store asks of the launcher, which is the store's scheduler: barriers, and who lives.

use std::sync::Arc;

use tensorwire_kvstore::proto::Role;

use super::line::Line;
use crate::control::FromMember;
use crate::store_job::{BarrierError, ControlEvents, StoreEvent, StorePlace};

/// The launcher as a store's scheduler.
#[derive(Clone, Debug)]
pub struct Scheduling {
    pub(super) control: Arc<Line>,
    pub(super) control_events: Arc<ControlEvents>,
    pub(super) store: Option<StorePlace>,
}

impl Scheduling {
    /// What the launcher has said of the store since the last call, in order. Never blocks: a driver looks
    /// here every few milliseconds, whatever else it waits for.
    pub fn store_events(&self) -> Vec<StoreEvent> {
        self.control_events.take()
    }

    /// Comes to the next barrier and returns its number; [`Scheduling::barrier_passed`] tells when all workers
    /// have. Coming again before that changes nothing.
    ///
    /// # Errors
    /// When this is no worker, or the launcher is gone.
    pub fn enter_barrier(&self) -> Result<u64, BarrierError> {
        if !matches!(self.store.map(|store| store.role), Some(Role::Worker(_))) {
            return Err(BarrierError::NoWorker);
        }
        let number = self.control_events.released() + 1;
        self.control.tell(&FromMember::EnterBarrier { number })?;
        Ok(number)
    }

    /// Have all live workers come to this barrier?
    pub fn barrier_passed(&self, number: u64) -> bool {
        self.control_events.released() >= number
    }
}
