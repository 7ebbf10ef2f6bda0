//! The names of classes, which weights are saved with: data that number them otherwise are refused.

use std::path::Path;

use safetensors::SafeTensors;
use tensorwire_nn::Data;

use crate::checkpoint::{CheckpointState, FoundCheckpoint};
use crate::weights::{WeightsError, of_checkpoint, read};

/// Where a file of weights has them, an array of JSON.
pub(crate) const ENTRY: &str = "classes";

/// The data of a job, as it calls them.
#[derive(Clone, Copy)]
pub(crate) struct Named<'a> {
    pub(crate) data: &'a Data,
    pub(crate) name: &'a str,
}

/// Refuses data whose classes have other names than those that these weights, a file or a checkpoint, were trained on: one number
/// would be two classes. Weights and data without names go with all.
pub(crate) fn check_loaded(path: &Path, now: Named<'_>) -> Result<(), WeightsError> {
    if now.data.train.class_names().is_none() {
        return Ok(());
    }
    let trained = match path.is_dir() {
        true => FoundCheckpoint::at(path).and_then(|found| found.state()),
        false => return check(path, said_in(path)?.as_deref(), now),
    };
    check_resumed(path, &trained.map_err(of_checkpoint)?, now)
}

/// The same of a checkpoint that was read.
pub(crate) fn check_resumed(
    path: &Path,
    trained: &CheckpointState,
    now: Named<'_>,
) -> Result<(), WeightsError> {
    check(path, trained.class_names.as_deref(), now)
}

fn check(path: &Path, trained: Option<&[String]>, now: Named<'_>) -> Result<(), WeightsError> {
    let (Some(trained), Some(found)) = (trained, now.data.train.class_names()) else {
        return Ok(());
    };
    let Some(difference) = difference(trained, found) else { return Ok(()) };
    let (path, data) = (path.to_path_buf(), now.name.to_string());
    Err(WeightsError::OtherClasses { path, data, difference })
}

/// The names that a file of weights says.
fn said_in(path: &Path) -> Result<Option<Vec<String>>, WeightsError> {
    let image = read(path)?;
    let header = SafeTensors::read_metadata(&image);
    let said = header.ok().and_then(|(_, header)| header.metadata().as_ref()?.get(ENTRY).cloned());
    // another program's entry of that name may be anything
    Ok(said.and_then(|said| serde_json::from_str(&said).ok()))
}

/// The first class that is another, in words.
fn difference(trained: &[String], found: &[String]) -> Option<String> {
    let mut both = trained.iter().zip(found).enumerate();
    match both.find(|(_, (was, is))| was != is) {
        Some((class, (was, is))) => Some(format!("class {class} was '{was}', and is '{is}'")),
        None if trained.len() == found.len() => None,
        None => Some(format!("there were {}, and are {}", trained.len(), found.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_other_class_is_named() {
        let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        let said = |found: &[&str]| difference(&names(&["a", "b"]), &names(found));
        assert_eq!(said(&["a", "b"]), None);
        assert_eq!(said(&["a", "c"]).unwrap(), "class 1 was 'b', and is 'c'");
        assert_eq!(said(&["a"]).unwrap(), "there were 2, and are 1");
    }
}
