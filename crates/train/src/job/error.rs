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
    #[error("step {step}: the loss is {loss}: training diverged; lower the learning rate")]
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
            TrainError::Part(PartError::Member(error)) => error.is_of_others(),
            _ => false,
        };
        match self.lost_peer() {
            _ if waited => Blame::Others,
            None if self.is_unread() => Blame::Unread,
            lost => Blame::of(self.is_user_error(), lost),
        }
    }

    /// True if a file of the data, of weights or of a checkpoint could not be read.
    fn is_unread(&self) -> bool {
        let source: &dyn std::error::Error = match self {
            TrainError::Config(error) => error,
            TrainError::Weights(WeightsError::Write { .. }) => return false,
            TrainError::Weights(error) => error,
            TrainError::Checkpoint(error) => return error.is_unread(),
            TrainError::Batch { source, .. } | TrainError::TestBatch(source) => source,
            _ => return false,
        };
        is_of_a_file(source)
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

/// True if the system refused what this comes of.
fn is_of_a_file(error: &(dyn std::error::Error + 'static)) -> bool {
    use tensorwire_nn::Error;
    // what a data set said shows its own sources, and not itself
    let other = |error: &(dyn std::error::Error + 'static)| {
        let boxed = error.downcast_ref::<Box<Error>>().map(|error| &**error);
        match error.downcast_ref::<Error>().or(boxed) {
            Some(Error::Other(said)) => said.is::<std::io::Error>(),
            _ => false,
        }
    };
    let mut sources = std::iter::successors(Some(error), |error| error.source());
    sources.any(|error| error.is::<std::io::Error>() || other(error))
}

#[cfg(test)]
mod tests {
    use tensorwire_launch::MemberError;
    use tensorwire_runtime::ExchangeError;

    use super::*;

    #[test]
    fn what_comes_of_a_file_is_told_from_what_comes_of_a_command() {
        let disk = || std::io::Error::from_raw_os_error(5);
        let of_data = |source: tensorwire_nn::Error| TrainError::Config(ConfigError::from(source));
        let in_step = |cause| TrainError::Batch { step: 3, source: cause };
        let sample = || tensorwire_nn::Error::Sample {
            data: "images".into(),
            sample: 7,
            reason: "no disk".into(),
            cause: Some(Box::new(tensorwire_nn::Error::other(disk()))),
        };
        let weights = WeightsError::Read { path: "w".into(), source: disk() };
        let checkpoint = CheckpointError::Read { path: "c".into(), source: disk() };
        for error in [
            of_data(tensorwire_nn::Error::other(disk())),
            of_data(sample()),
            in_step(sample()),
            weights.into(),
            checkpoint.into(),
        ] {
            assert_eq!(error.blame(), Blame::Unread, "{error}");
        }
        let wrong = tensorwire_nn::Error::Mismatch("no words".into());
        assert_eq!(of_data(wrong).blame(), Blame::User);
        let unwritten = WeightsError::Write { path: "w".into(), source: disk() };
        assert_eq!(TrainError::from(unwritten).blame(), Blame::User);
        assert_eq!(TrainError::Control(disk()).blame(), Blame::Own);
        let late = MemberError::NoPeers { waited_s: 600 };
        assert_eq!(TrainError::Part(PartError::Member(late)).blame(), Blame::Others);
    }

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
