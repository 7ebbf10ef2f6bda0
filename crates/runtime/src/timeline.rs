//! What an executor did, and when: stamps for benchmarks and traces. Off unless asked for.

use tensorwire_graph::NodeId;

/// What an executor did for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Ran a kernel; one of a device's: started it.
    Kernel(NodeId),
    /// Had a device copy a tensor to or from the host's memory, until that was noticed to be over. Other things happen
    /// meanwhile.
    Copy(NodeId),
    /// Started to have a device copy what the next run is fed, while this one computes.
    CopyAhead(NodeId),
    /// Had a tensor under way: from when it was posted to when its buffer may be written again. Other
    /// things happen meanwhile, other sends included.
    Send { node: NodeId, epoch: u64 },
    /// Asked for a tensor and found it: the end is the moment it was found.
    Recv { node: NodeId, epoch: u64 },
    /// Had asked a peer for a tensor: from then to when it was found. Other things happen meanwhile. What peers send unasked has
    /// none.
    Pull { node: NodeId, epoch: u64 },
    /// Had a tensor in a group's hands: from when it was there to when the group's other members had
    /// done theirs, as far as it was noticed. Other things happen meanwhile.
    Collective(NodeId),
    /// Was blocked, since nothing could run until something arrived or was sent.
    Wait,
}

impl EventKind {
    /// The node that it did; none for a wait, which is for many.
    pub fn node(self) -> Option<NodeId> {
        match self {
            EventKind::Kernel(node)
            | EventKind::Copy(node)
            | EventKind::CopyAhead(node)
            | EventKind::Collective(node) => Some(node),
            EventKind::Send { node, .. }
            | EventKind::Recv { node, .. }
            | EventKind::Pull { node, .. } => Some(node),
            EventKind::Wait => None,
        }
    }
}

/// One thing done in one run, in nanoseconds of the host's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub step: u64,
    pub what: EventKind,
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
