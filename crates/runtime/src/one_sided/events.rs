//! What happens on a fabric, as a session waits for it.

use tensorwire_base::Deadline;
use tensorwire_fabric::{Fabric, Ticket};

use super::OneSided;
use super::giving_up::Withdrawal;
use crate::error::ExchangeError;
use crate::ports::{Events, Ports};

/// What happens on a fabric, as a source of [`Events`].
#[derive(Debug)]
struct FabricEvents {
    fabric: Fabric,
    observed: Ticket,
    withdrawal: Withdrawal,
}

impl Events for FabricEvents {
    fn observe(&mut self) {
        self.observed = self.fabric.ticket();
    }

    fn wait(&mut self, deadline: Deadline) -> Result<(), ExchangeError> {
        let check = || check_peers(&self.fabric).and_then(|()| self.withdrawal.check());
        check()?;
        self.fabric.wait(self.observed, deadline);
        check()
    }
}

/// Fails with the first peer that was lost.
pub(super) fn check_peers(fabric: &Fabric) -> Result<(), ExchangeError> {
    fabric.fault().map_or(Ok(()), |fault| Err(fault.into()))
}

impl OneSided {
    /// What happens at its peers.
    pub fn events(&self) -> impl Events + use<> {
        let (fabric, observed) = (self.fabric.clone(), self.fabric.ticket());
        FabricEvents { fabric, observed, withdrawal: self.withdrawal.clone() }
    }
}

impl From<OneSided> for Ports {
    /// The ports of a session whose edges all cross here.
    fn from(exchange: OneSided) -> Ports {
        Ports::new(exchange.events()).with_exchange(exchange)
    }
}
