//! When each node ran: stamps for benchmarks and traces. Off unless asked for.

use tensorwire_graph::NodeId;

/// One execution of one node, in nanoseconds of the host's monotonic clock. A Send starts when it is
/// posted and ends when its buffer may be written again; a Recv is the moment its tensor was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub step: u64,
    pub node: NodeId,
    pub start_ns: u64,
    pub end_ns: u64,
}

/// The events of a session, in the order in which they ended.
#[derive(Debug, Default)]
pub struct Timeline {
    events: Vec<Event>,
}

impl Timeline {
    pub(crate) fn record(&mut self, event: Event) {
        self.events.push(event);
    }

    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Forgets what was recorded so far.
    pub fn clear(&mut self) {
        self.events.clear();
    }
}
