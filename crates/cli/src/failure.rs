//! How a command ends when it does not succeed.

use std::fmt;
use std::path::Path;

use tensorwire::program::status_by_signal;
use tensorwire_launch::{JobError, Remark};
use tensorwire_train::{ConfigError, EventFileError, JobFailure, TrainError};

/// The exit status of what `tensorwire stop` ends: that of what Ctrl-C does.
const STOPPED: u8 = 130;

/// An error with its exit status.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) message: String,
    /// What else was seen; shown before the message, which stays last.
    remarks: Vec<String>,
    pub(crate) user_error: bool,
    /// It was told to end, and nothing went wrong.
    pub(crate) interrupted: bool,
    /// It was `tensorwire stop` that told it so.
    pub(crate) stopped: bool,
}

impl Failure {
    /// Another command line fixes it: exit status 2.
    pub(crate) fn user(message: impl fmt::Display) -> Failure {
        let (message, remarks) = (message.to_string(), Vec::new());
        Failure { message, remarks, user_error: true, interrupted: false, stopped: false }
    }

    /// A file that is given for `what` cannot be written, or made.
    pub(crate) fn unwritable(what: &str, file: &Path, error: &std::io::Error) -> Failure {
        let shown = file.display();
        let missing = file.parent().filter(|folder| {
            !folder.as_os_str().is_empty() && matches!(folder.try_exists(), Ok(false))
        });
        Failure::user(match missing {
            Some(folder) => format!(
                "cannot write {what} to {shown}: there is no folder {0}; make it first: mkdir -p {0}",
                folder.display()
            ),
            None => format!("cannot write {what} to {shown}: {error}; choose another file"),
        })
    }

    /// The system gives no thread.
    pub(crate) fn no_thread(error: std::io::Error) -> Failure {
        Failure::other(format!(
            "the system gives no thread: {error}; free memory, or raise its limit or that of processes (ulimit -v, -u)"
        ))
    }

    /// Anything else: exit status 1.
    pub(crate) fn other(message: impl fmt::Display) -> Failure {
        Failure { user_error: false, ..Failure::user(message) }
    }

    /// A signal told this process to end.
    pub(crate) fn interrupted() -> Failure {
        Failure { interrupted: true, ..Failure::other("interrupted") }
    }

    /// The exit status: of a user's mistake, of a signal that told this process to end, or of anything else.
    pub(crate) fn status(&self) -> u8 {
        match self.user_error {
            true => 2,
            false => {
                let of_itself = if self.stopped { STOPPED } else { 1 };
                status_by_signal().unwrap_or(of_itself)
            }
        }
    }

    /// The same failure, of a job that `tensorwire stop` had end, or not.
    pub(crate) fn stopped_if(mut self, stopped: bool) -> Failure {
        if stopped && self.interrupted {
            self.message = "stopped".to_string();
        }
        Failure { stopped, ..self }
    }

    /// The same failure, of which there is this to say besides.
    pub(crate) fn with(mut self, more: impl fmt::Display) -> Failure {
        self.message = format!("{}; {more}", self.message);
        self
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
        let (user_error, interrupted) =
            (error.is_user_error(), matches!(error, TrainError::Interrupted));
        Failure { user_error, interrupted, ..Failure::user(error) }
    }
}

impl From<JobError> for Failure {
    fn from(error: JobError) -> Failure {
        JobFailure::from(error).into()
    }
}

impl From<JobFailure> for Failure {
    fn from(failure: JobFailure) -> Failure {
        let (user_error, interrupted) = (failure.is_user_error(), failure.is_interrupted());
        let remarks = failure.first().map(|first| first.remarks.as_slice()).unwrap_or_default();
        let remarks = remarks.iter().map(Remark::to_string).collect();
        Failure { remarks, user_error, interrupted, ..Failure::user(failure) }
    }
}
