//! The names of classes, which are saved beside the weights: data that number them otherwise are told from those of training.

use std::path::Path;

use sha2::{Digest, Sha256};
use tensorwire_nn::Data;

use crate::checkpoint::{CheckpointError, CheckpointState, FoundCheckpoint};
use crate::config::ConfigError;
use crate::origin::WeightsOrigin;
use crate::weights::WeightsError;

/// Characters of a name that are said.
const SAID_MAX: usize = 40;

/// What to do where weights are used with other classes.
const EVALUATES: &str = "give data with the same classes; rows of another table are numbered alike by --data csv:TRAIN,NEW, \
                                    with the file that was trained on first";
const GOES_ON: &str = "give the data of its training, or begin with its weights alone: --load in the place of --resume";

/// The data of a job, as it calls them.
#[derive(Clone, Copy)]
pub(crate) struct Named<'a> {
    pub(crate) data: &'a Data,
    pub(crate) name: &'a str,
}

impl Named<'_> {
    /// Refuses these data if the weights at `path`, a file or a checkpoint, were trained on classes of other names: one number
    /// would be two classes. Weights and data without names go with all.
    pub(crate) fn check_loaded(self, path: &Path) -> Result<(), WeightsError> {
        self.check(path, trained_on(path).as_deref(), EVALUATES)
    }

    /// The same of a checkpoint to go on from.
    pub(crate) fn check_resumed(
        self,
        path: &Path,
        state: &CheckpointState,
    ) -> Result<(), WeightsError> {
        self.check(path, state.class_names.as_deref(), GOES_ON)
    }

    /// An error of weights with other shapes, or of other classes where these are why.
    pub(crate) fn explained(self, error: ConfigError) -> ConfigError {
        let (path, mend) = match &error {
            ConfigError::Weights(WeightsError::OtherModel { path, .. }) => (path, EVALUATES),
            ConfigError::Checkpoint(CheckpointError::OtherJob { path, .. }) => (path, GOES_ON),
            _ => return error,
        };
        let checked = self.check(path, trained_on(path).as_deref(), mend);
        checked.err().map_or(error, ConfigError::from)
    }

    fn check(
        self,
        path: &Path,
        trained: Option<&[String]>,
        mend: &'static str,
    ) -> Result<(), WeightsError> {
        let (Some(trained), Some(found)) = (trained, self.data.train.class_names()) else {
            return Ok(());
        };
        let Some(difference) = difference(trained, found) else { return Ok(()) };
        let (path, data) = (path.to_path_buf(), self.name.to_string());
        Err(WeightsError::OtherClasses { path, data, difference, mend })
    }
}

/// The names of the classes that weights were trained on, if they say them.
fn trained_on(path: &Path) -> Option<Vec<String>> {
    match path.is_dir() {
        true => FoundCheckpoint::at(path).and_then(|found| found.state()).ok()?.class_names,
        false => WeightsOrigin::read(path)?.class_names,
    }
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
