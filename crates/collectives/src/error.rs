//! What can go wrong in a group.

use tensorwire_base::Rank;

use crate::mail::MailError;

/// Why a group cannot go on, or cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    #[error("member {member} of the group (rank {rank}) is lost: {reason}")]
    Lost { member: usize, rank: Rank, reason: String },
    #[error("nothing moved before the deadline; waiting for {waiting_for}")]
    TimedOut { waiting_for: String },
    #[error(
        "member {member} (rank {rank}) binds {theirs} where this one binds {ours}; do all run the same program?"
    )]
    Differs { member: usize, rank: Rank, theirs: String, ours: String },
    #[error("vector {vector}: {what}")]
    Vector { vector: u32, what: String },
    #[error("mail of member {member} (rank {rank}): {error}")]
    Mail { member: usize, rank: Rank, error: MailError },
    #[error("{0}")]
    Failed(String),
}

impl GroupError {
    /// The peer whose loss made this, if that was the cause.
    pub fn lost_peer(&self) -> Option<Rank> {
        match self {
            GroupError::Lost { rank, .. } => Some(*rank),
            _ => None,
        }
    }
}
