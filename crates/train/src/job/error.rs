//! Why training ended early, and whose fault that is as far as a process knows. Knows not what the launcher makes of it.

use tensorwire_base::Rank;
use tensorwire_collectives::GroupError;
use tensorwire_kvstore::StoreError;
use tensorwire_launch::{Blame, JoinError};
use tensorwire_memory::TensorError;
use tensorwire_runtime::{RunError, SessionError};

use super::loader::NoBatch;
use crate::checkpoint::CheckpointError;
use crate::config::ConfigError;
use crate::group::ClientError;
use crate::open_part::PartError;
use crate::store::OpenStoreError;
use crate::trace::TraceError;
use crate::weights::WeightsError;

/// Why training ended early.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Part(#[from] PartError),
    #[error(transparent)]
    Device(#[from] tensorwire_cuda::CudaError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("the thread that writes checkpoints cannot be started: {0}; free memory or processes")]
    Saver(std::io::Error),
    #[error("'{name}': {source}")]
    Tensor { name: String, source: TensorError },
    #[error("step {step}: the loss is {loss}: training diverged; lower --lr")]
    Diverged { step: u64, loss: f32 },
    #[error(transparent)]
    OpenStore(#[from] OpenStoreError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("telling the launcher: {0}")]
    Control(#[from] std::io::Error),
    #[error("interrupted")]
    Interrupted,
    #[error("the thread that makes batches cannot be started: {0}; free memory or processes")]
    Loader(std::io::Error),
    #[error("step {step}: {source}")]
    Batch { step: u64, source: tensorwire_nn::Error },
    #[error("evaluating: {0}")]
    TestBatch(tensorwire_nn::Error),
    #[error("step {step}: {source}")]
    NoBatch { step: u64, source: NoBatch },
    #[error("evaluating: {0}")]
    NoTestBatch(NoBatch),
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl TrainError {
    /// Did the user's command make this, so that another command mends it?
    pub fn is_user_error(&self) -> bool {
        match self {
            TrainError::Config(_) | TrainError::Weights(_) | TrainError::Checkpoint(_) => true,
            TrainError::Part(error) => error.is_user_error(),
            _ => false,
        }
    }

    /// Returns whose fault this is, as far as this process knows.
    pub(super) fn blame(&self) -> Blame {
        let waited = match self {
            TrainError::Run(error) => error.is_of_others(),
            TrainError::Session(error) => error.is_of_others(),
            TrainError::Store(error) => matches!(error, StoreError::TimedOut { .. }),
            TrainError::Client(ClientError::Group(error)) => {
                matches!(error, GroupError::TimedOut { .. })
            }
            TrainError::Client(ClientError::Nccl(error)) => error.is_of_others(),
            // the word that all wait for
            TrainError::Control(error) => error.kind() == std::io::ErrorKind::TimedOut,
            _ => false,
        };
        if waited { Blame::Others } else { Blame::of(self.is_user_error(), self.lost_peer()) }
    }

    /// The peer whose loss made this, if that was the cause.
    pub fn lost_peer(&self) -> Option<Rank> {
        match self {
            TrainError::Run(error) => error.lost_peer(),
            TrainError::Session(error) => error.lost_peer(),
            TrainError::Part(error) => error.lost_peer(),
            TrainError::OpenStore(error) => error.lost_peer(),
            TrainError::Store(error) => error.lost_peer(),
            TrainError::Client(error) => error.lost_peer(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use tensorwire_runtime::ExchangeError;

    use super::*;

    #[test]
    fn whoever_reads_behind_a_peer_that_gave_up_is_not_to_blame() {
        let given_up =
            |peer, cause| ExchangeError::GivenUp { peer: Rank(peer), cause: Rank(cause) };
        let read = |source| TrainError::from(SessionError::Peer { name: "loss".into(), source });
        let run = |source| TrainError::from(RunError::Exchange { step: 3, source });
        for (cause, blame, lost) in [(1, Blame::Others, None), (2, Blame::Peer(2), Some(Rank(2)))] {
            for error in [read(given_up(1, cause)), run(given_up(1, cause))] {
                assert_eq!((error.blame(), error.lost_peer()), (blame, lost), "{error}");
            }
        }
        let own = SessionError::NotKept { name: "loss".into() };
        assert_eq!(TrainError::from(own).blame(), Blame::Own);
    }
}
