//! The names of classes, which are saved beside the weights: data that number them otherwise are told from those of training.

use std::fmt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tensorwire_nn::Data;

use crate::checkpoint::{CheckpointError, CheckpointState};
use crate::config::ConfigError;
use crate::origin::WeightsOrigin;
use crate::weights::WeightsError;

/// Characters of a name that are said.
const SAID_MAX: usize = 40;

/// What weights of other classes were to be used for.
#[derive(Clone, Copy)]
enum Use {
    /// Evaluated, or begun with.
    Loads,
    GoesOn,
}

/// The data of a job, as it calls them.
#[derive(Clone, Copy)]
pub(crate) struct JobData<'a> {
    pub(crate) data: &'a Data,
    pub(crate) name: &'a str,
}

/// Weights that a job begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BeginsWith {
    pub weights: PathBuf,
    /// How their classes were others than those of the data, in words; none: they were the same, or are not known.
    pub other_classes: Option<String>,
}

impl fmt::Display for BeginsWith {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "begins with the weights of {}", self.weights.display())?;
        match &self.other_classes {
            Some(others) => write!(f, "; their classes were others: {others}"),
            None => Ok(()),
        }
    }
}

impl JobData<'_> {
    /// Refuses these data if the weights at `path`, a file or a checkpoint, were trained on classes of other names: one number
    /// would be two classes. Weights and data without names go with all.
    pub(crate) fn check_loaded(self, path: &Path) -> Result<(), WeightsError> {
        self.check(path, trained_on(path).as_deref(), Use::Loads)
    }

    /// The same of a checkpoint to go on from.
    pub(crate) fn check_resumed(
        self,
        path: &Path,
        state: &CheckpointState,
    ) -> Result<(), WeightsError> {
        self.check(path, state.class_names.as_deref(), Use::GoesOn)
    }

    /// An error of weights with other shapes, or of other classes where these are why.
    pub(crate) fn explained(self, error: ConfigError) -> ConfigError {
        let (path, to) = match &error {
            ConfigError::Weights(WeightsError::OtherModel { path, .. }) => (path, Use::Loads),
            ConfigError::Checkpoint(CheckpointError::OtherJob { path, .. }) => (path, Use::GoesOn),
            _ => return error,
        };
        let checked = self.check(path, trained_on(path).as_deref(), to);
        checked.err().map_or(error, ConfigError::from)
    }

    /// How the classes are others than those that the weights at `path` were trained on, in words.
    pub(crate) fn difference(self, path: &Path) -> Option<String> {
        difference(&trained_on(path)?, self.data.train.class_names()?)
    }

    fn check(self, path: &Path, trained: Option<&[String]>, to: Use) -> Result<(), WeightsError> {
        let (Some(trained), Some(found)) = (trained, self.data.train.class_names()) else {
            return Ok(());
        };
        let Some(difference) = difference(trained, found) else { return Ok(()) };
        // the last layer is of so many
        let are_as_many = trained.len() == found.len();
        let mend = match to {
            Use::Loads if self.name.starts_with("csv:") => {
                "give data with the same classes; eval numbers rows of another table alike by --data csv:TRAIN,NEW"
            }
            Use::Loads => "give data with the same classes",
            Use::GoesOn if are_as_many => {
                "give the data of its training, or begin with its weights alone: --load in the place of --resume"
            }
            Use::GoesOn => "give the data of its training",
        };
        let (path, data) = (path.to_path_buf(), self.name.to_string());
        Err(WeightsError::OtherClasses { path, data, difference, mend })
    }
}

/// The names of the classes that weights were trained on, if they say them.
fn trained_on(path: &Path) -> Option<Vec<String>> {
    WeightsOrigin::read(path)?.class_names
}

/// The first class that is another, in words.
fn difference(trained: &[String], found: &[String]) -> Option<String> {
    let absent = |from: &[String], among: &[String]| {
        from.iter().find(|name| !among.contains(name)).map(|name| said(name))
    };
    if trained == found {
        return None;
    }
    Some(match (absent(found, trained), absent(trained, found)) {
        (Some(new), Some(lacks)) => {
            format!("it knows no '{new}', which is there, and '{lacks}' is not")
        }
        (Some(new), None) => format!("it knows no '{new}', which is there"),
        (None, Some(lacks)) => format!("it knows '{lacks}', which is not there"),
        (None, None) => "it has them in another order".to_string(),
    })
}

/// A name on one line, and not longer than people read.
fn said(name: &str) -> String {
    let shown: String = name.escape_debug().take(SAID_MAX).collect();
    let more = if name.escape_debug().count() > SAID_MAX { "…" } else { "" };
    shown + more
}

/// SHA-256 over the names of the classes of data, if they have such.
pub(crate) fn sha256(data: &Data) -> Option<String> {
    let mut hash = Sha256::new();
    for name in data.train.class_names()? {
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
    }
    Some(hex::encode(hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_that_is_another_is_named() {
        let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        let said = |found: &[&str]| difference(&names(&["a", "b"]), &names(found));
        assert_eq!(said(&["a", "b"]), None);
        for (found, says) in [
            (&["a", "c"][..], "it knows no 'c', which is there, and 'b' is not"),
            (&["a"], "it knows 'b', which is not there"),
            (&["a", "b", "c\n"], r"it knows no 'c\n', which is there"),
            (&["b", "a"], "it has them in another order"),
        ] {
            assert_eq!(said(found).as_deref(), Some(says));
        }
        assert_eq!(super::said(&"é".repeat(50)), "é".repeat(40) + "…");
    }
}
