//! How a command ends when it does not succeed.

use std::fmt;

use tensorwire_launch::{JobError, Remark};
use tensorwire_train::{ConfigError, EventFileError, JobFailure, TrainError};

/// An error with its exit status.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) message: String,
    /// What else was seen; shown before the message, which stays last.
    remarks: Vec<String>,
    pub(crate) user_error: bool,
}

impl Failure {
    /// Another command line fixes it: exit status 2.
    pub(crate) fn user(message: impl fmt::Display) -> Failure {
        Failure { message: message.to_string(), remarks: Vec::new(), user_error: true }
    }

    /// The system gives no thread.
    pub(crate) fn no_thread(error: std::io::Error) -> Failure {
        Failure::other(format!(
            "the system gives no thread: {error}; free memory, or raise its limit or that of processes (ulimit -v, -u)"
        ))
    }

    /// Anything else: exit status 1.
    pub(crate) fn other(message: impl fmt::Display) -> Failure {
        Failure { message: message.to_string(), remarks: Vec::new(), user_error: false }
    }

    pub(crate) fn status(&self) -> u8 {
        if self.user_error { 2 } else { 1 }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for remark in &self.remarks {
            writeln!(f, "then {remark}")?;
        }
        write!(f, "error: {}", self.message)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Failure {
        Failure::user(error)
    }
}

impl From<EventFileError> for Failure {
    fn from(error: EventFileError) -> Failure {
        match error {
            EventFileError::Create { .. } => Failure::user(error),
            EventFileError::Write { .. } => Failure::other(error),
        }
    }
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Failure {
        let user_error = error.is_user_error();
        Failure { message: error.to_string(), remarks: Vec::new(), user_error }
    }
}

impl From<JobError> for Failure {
    fn from(error: JobError) -> Failure {
        JobFailure::from(error).into()
    }
}

impl From<JobFailure> for Failure {
    fn from(failure: JobFailure) -> Failure {
        let (message, user_error) = (failure.to_string(), failure.is_user_error());
        let remarks = failure.first().map(|first| first.remarks.as_slice()).unwrap_or_default();
        Failure { message, remarks: remarks.iter().map(Remark::to_string).collect(), user_error }
    }
}
