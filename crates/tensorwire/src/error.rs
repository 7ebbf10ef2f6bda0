//! Why a program's job was not done.

use tensorwire_launch::HostsError;
use tensorwire_launch::rendezvous::DetectError;
use tensorwire_train::{ConfigError, EventFileError, JobFailure, SummaryError, TrainError};
use tensorwire_zoo::data::DataError;

use crate::program::{LeadError, ProgramError};

/// What [`crate::Training::run`] returns, and a `main` may.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a job was not done. What the user can mend says how.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model, the data or the options make no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("hosts: {0}")]
    Hosts(#[from] HostsError),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Detect(#[from] DetectError),
    #[error(transparent)]
    Lead(#[from] LeadError),
    /// A process failed; the first cause names it and the step.
    #[error(transparent)]
    Job(#[from] JobFailure),
    #[error(transparent)]
    Train(Box<TrainError>),
    #[error(transparent)]
    Summary(#[from] SummaryError),
    /// What TensorBoard was to show cannot be written.
    #[error(transparent)]
    EventFile(#[from] EventFileError),
    #[error("this process's assignment makes no sense: {0}; do all run the same program?")]
    Garbled(serde_json::Error),
    #[error(
        "a program whose processes somebody else started runs one job; start it again for the next, or leave mpirun, srun or torchrun out"
    )]
    SecondJob,
    /// Of a model or of data, made before the job.
    #[error(transparent)]
    Nn(#[from] tensorwire_nn::Error),
    /// Of a [`Source`](tensorwire_zoo::data::Source), before the job.
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// As its text: what `main` returns is shown by this.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl From<TrainError> for Error {
    fn from(error: TrainError) -> Error {
        Error::Train(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use tensorwire_zoo::data::Source;

    /// As a `main` that reads files.
    #[test]
    fn what_is_wrong_with_data_is_returned_as_any_other_error() {
        let open = || -> super::Result<Source> { Ok("npy:x.npy".parse()?) };
        let error = open().unwrap_err();
        assert!(format!("{error:?}").starts_with("'npy:x.npy' does not name its files"), "{error}");
    }
}
