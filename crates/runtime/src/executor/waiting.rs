//! How long a run waits for news, and what it says it waits for.

use std::time::Duration;

use tensorwire_base::{Clock, Deadline};
use tensorwire_fabric::pulse;
use tensorwire_graph::{NodeId, Op, Part};

use super::Executor;
use super::device::ASK_AGAIN;
use super::steps::Missing;
use crate::error::RunError;
use crate::timeline::EventKind;

/// How long to wait before a send that found the queue full is tried again, if nothing happens.
const RETRY_FULL: Duration = Duration::from_millis(1);
/// How long to wait at most before a device is asked again, if nothing happens.
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// How long a run waits before it tells whoever looks what it waits for.
const TELLS_AFTER: Duration = Duration::from_secs(1);

impl Executor {
    /// Until when to wait for news at most; an error if nothing has come for too long.
    pub(crate) fn patience(&mut self, part: &Part) -> Result<Deadline, RunError> {
        let step = self.counters.steps;
        let patience = self.options.step_deadline;
        let is_on_device = !self.copying.is_empty() || self.steps.is_whole();
        let deadline = *self.deadline.get_or_insert_with(|| Deadline::after(patience));
        if deadline.passed() || self.events.is_none() && !is_on_device {
            let waited_s = if deadline.passed() { patience.as_secs() } else { 0 };
            let (missing, is_own) = (self.missing(part), !self.waits_for_others(part));
            return Err(RunError::Stalled { step, waited_s, missing, is_own });
        }
        if !self.is_told && deadline.remaining() + TELLS_AFTER.min(patience / 2) <= patience {
            self.is_told = true;
            self.standing.waits(self.missing(part), !self.waits_for_others(part));
        }
        // a full queue may have room again without any news for us
        let is_send = |node: &NodeId| part.graph.node(*node).op.is_send();
        let is_full = !self.prepared.is_empty()
            || !self.held.is_empty()
            || !self.fetching.is_empty()
            || self.ready.iter().any(is_send);
        let waited = patience.saturating_sub(deadline.remaining());
        // copies are over soon; a step that was told as a whole may wait for others for long
        let (spins, pause) = match self.copying.is_empty() {
            true => (waited < PAUSE_MAX, (waited / 8).clamp(ASK_AGAIN, PAUSE_MAX)),
            false => (true, ASK_AGAIN),
        };
        if is_on_device && spins && self.spin_for_device(part)? {
            return Ok(Deadline::after(Duration::ZERO));
        }
        Ok(match (is_on_device, is_full) {
            // nobody tells when it is over
            (true, _) => deadline.min(Deadline::after(pause)),
            (_, true) => deadline.min(Deadline::after(RETRY_FULL)),
            _ => deadline,
        })
    }

    /// Blocks until something may have changed since the last turn that did something, or `until`.
    pub(crate) fn wait_until(&mut self, until: Deadline) -> Result<(), RunError> {
        let step = self.counters.steps;
        pulse::beat();
        let Some(events) = &mut self.events else {
            std::thread::sleep(until.remaining().min(ASK_AGAIN));
            return Ok(());
        };
        self.counters.waits += 1;
        let start_ns = Clock::now_ns();
        let waited = events.wait(until.min(Deadline::after(pulse::BEAT)));
        let end_ns = Clock::now_ns();
        self.counters.wait_ns += end_ns - start_ns;
        self.record(EventKind::Wait, start_ns, end_ns);
        waited.map_err(|source| RunError::Exchange { step, source })
    }

    /// True if anything is missing that others send, take or do together with this process.
    fn waits_for_others(&self, part: &Part) -> bool {
        let is_of_others = |node: &NodeId| {
            let op = &part.graph.node(*node).op;
            op.is_send() || matches!(op, Op::Recv { .. } | Op::RecvDynamic { .. })
        };
        let is_under_way = !self.flights.is_empty() || !self.collectives.is_empty();
        is_under_way
            || self.reduces()
            || !self.held.is_empty()
            || self.steps.waits_for_others()
            || self.ready.iter().any(is_of_others)
    }

    /// What the run waits for, for people.
    fn missing(&self, part: &Part) -> String {
        let name = |node: NodeId| part.graph.node(node).name.clone();
        let waiting = self.ready.iter().map(|node| match part.graph.node(*node).op {
            Op::Recv { edge, .. } | Op::RecvDynamic { edge, .. } => {
                self.edge_names[edge.index()].clone()
            }
            ref op if op.is_send() => format!("room in the queue for '{}'", name(*node)),
            _ => format!("'{}', whose variable another session is sending", name(*node)),
        });
        let sends =
            self.flights.values().map(|flight| format!("the end of '{}'", name(flight.node)));
        let collectives =
            self.collectives.keys().map(|node| format!("the group's '{}'", name(*node)));
        let of_step = self.steps.missing().map(|what| match what {
            Missing::Arrival(edge) => self.edge_names[edge.index()].clone(),
            Missing::Node(node) => format!("'{}'", name(node)),
        });
        let copies = self
            .copying
            .iter()
            .chain(&self.held)
            .map(|copying| format!("'{}'", name(copying.node)));
        let mut missing: Vec<String> =
            waiting.chain(sends).chain(collectives).chain(of_step).chain(copies).collect();
        let more = missing.len().saturating_sub(4);
        missing.truncate(4);
        let list = missing.join(", ");
        if more == 0 { list } else { format!("{list} and {more} more") }
    }
}
