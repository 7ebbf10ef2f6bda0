//! Exchanges by message where the baselines are left out of the build: there are none.

use tensorwire_base::{Deadline, Rank};
use tensorwire_graph::Plan;
use tensorwire_launch::Member;

use crate::config::Exchange as Crossing;
use crate::open_part::{Opened, PartOptions, SessionRanks};

/// This build has no baselines.
pub(crate) const BUILT_IN: bool = false;

/// Never made.
#[derive(Debug)]
pub(crate) enum MessageEnd {}

/// Never made.
#[derive(Debug, thiserror::Error)]
pub enum OpenMessagesError {}

impl OpenMessagesError {
    pub(crate) fn lost_peer(&self) -> Option<Rank> {
        match *self {}
    }
}

impl MessageEnd {
    pub(crate) fn bytes_sent(&self) -> u64 {
        match *self {}
    }

    pub(crate) fn bytes_copied(&self) -> u64 {
        match *self {}
    }
}

pub(crate) fn refusal(_exchange: Crossing, _name: &str, _bytes: usize) -> Option<String> {
    None
}

pub(crate) fn open(
    _member: &Member,
    _plan: &Plan,
    _sessions: &SessionRanks,
    _options: &PartOptions,
) -> Result<Option<(Opened, MessageEnd)>, OpenMessagesError> {
    Ok(None)
}

pub(crate) fn close(end: &MessageEnd, _deadline: Deadline) -> Result<(), OpenMessagesError> {
    match *end {}
}
