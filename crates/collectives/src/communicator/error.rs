//! What can go wrong in a communicator, said so that it can be acted upon.

use std::sync::Arc;
use std::time::Duration;

use crate::error::GroupError;

/// Why an operation failed. All operations behind it fail with the same.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CommunicatorError {
    #[error("{call}: {member} is lost: {reason}")]
    Lost { call: String, member: String, reason: String },
    #[error(
        "{call}: its timeout of {} s has passed; waiting for {waiting_for}", .within.as_secs_f64()
    )]
    TimedOut { call: String, within: Duration, waiting_for: String },
    #[error(
        "this member calls {ours}, where {member} calls {theirs}; all members call the same operations in the same order"
    )]
    Differs { ours: String, member: String, theirs: String },
    #[error("{call}: {what}")]
    Call { call: String, what: String },
    #[error("{why}")]
    Aborted { why: String },
    #[error("{call}: {error}")]
    Group { call: String, error: Arc<GroupError> },
}
