//! What can go wrong with MPI.

use tensorwire_collectives::GroupError;
use tensorwire_fabric::{ConnectError, EndpointError, OpenFabricError};

/// Why MPI cannot be used, or did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum MpiError {
    #[error(
        "MPI was opened in this process before; it can be once, and the World that did is to be used"
    )]
    Opened,
    #[error(
        "this MPI lets no two threads call it in turn; use one that supports MPI_THREAD_SERIALIZED"
    )]
    OneThread,
    #[error(
        "'{library}' is not known to be Open MPI or an MPICH, whose values of MPI_IN_PLACE are known here"
    )]
    UnknownLibrary { library: String },
    #[error("{call} failed: {why}")]
    Failed { call: &'static str, why: String },
    #[error(
        "{bytes} bytes in one operation; MPI counts no more than 2147483647: bind smaller vectors"
    )]
    TooLarge { bytes: usize },
    #[error(
        "{call} was not over before the deadline; are all processes alive, and do all run the same program?"
    )]
    TimedOut { call: &'static str },
    #[error("{groups} groups of this world are open; close them first")]
    InUse { groups: usize },
    #[error("rank {rank} told what is no endpoint of a fabric: {source}")]
    Endpoint { rank: usize, source: EndpointError },
    #[error("rank {rank} told {bytes} bytes of what is no peer")]
    Peer { rank: usize, bytes: usize },
    #[error("this process' fabric: {0}")]
    Fabric(#[from] OpenFabricError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

impl From<MpiError> for GroupError {
    fn from(error: MpiError) -> GroupError {
        match error {
            MpiError::TimedOut { call } => GroupError::TimedOut { waiting_for: call.to_string() },
            other => GroupError::Failed(other.to_string()),
        }
    }
}
