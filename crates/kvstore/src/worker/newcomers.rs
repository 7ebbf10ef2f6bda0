//! Servers that took over from others: a worker meets them when they come, and goes on with the others meanwhile.

use tensorwire_base::Deadline;

use super::KvWorker;
use crate::error::StoreError;
use crate::ports::MembershipEvent;
use crate::wire::WireError;

impl KvWorker {
    /// Takes what the scheduler told, and goes on with the servers that have come.
    pub(super) fn meet_newcomers(&mut self) -> Result<(), StoreError> {
        let KvWorker { wire, membership, core, newcomers, .. } = self;
        let patience = core.options.patience;
        for event in membership.events().map_err(StoreError::Membership)? {
            let MembershipEvent::ServerReplaced { server, rank } = event else { continue };
            let before = newcomers.get(&server).map(|(rank, _)| *rank);
            let before = before.or_else(|| core.options.servers.get(server).copied());
            if before.is_some_and(|before| rank > before) {
                let next = (rank, Deadline::after(patience));
                if let Some((replaced, _)) = newcomers.insert(server, next) {
                    wire.give_up(replaced);
                }
            }
        }
        let mut met = Ok(());
        newcomers.retain(|server, (rank, until)| {
            match wire.connect(*rank, Deadline::after(patience)) {
                Ok(()) => core.replaced(*server, *rank),
                Err(WireError::Late { .. }) if !until.passed() => return true,
                // another will take its place in turn
                Err(WireError::Lost { .. }) => {}
                Err(error) => met = Err(error.into()),
            }
            false
        });
        met
    }

    /// True if no server is lost whose place another will take, and none of those is yet to open its wire.
    pub(super) fn has_all_servers(&self) -> bool {
        self.newcomers.is_empty() && self.core.links.iter().all(|link| link.lost.is_none())
    }
}
