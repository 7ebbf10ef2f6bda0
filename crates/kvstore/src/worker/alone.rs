//! The scheduler of a store in one process.

use crate::ports::{Membership, MembershipEvent};

/// The scheduler of a store of one: there is nobody to wait for.
#[derive(Default)]
pub(super) struct Alone(u64);

impl Membership for Alone {
    fn enter_barrier(&mut self) -> Result<u64, String> {
        self.0 += 1;
        Ok(self.0)
    }

    fn is_released(&mut self, _barrier: u64) -> bool {
        true
    }

    fn events(&mut self) -> Result<Vec<MembershipEvent>, String> {
        Ok(Vec::new())
    }
}
