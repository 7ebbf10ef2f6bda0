//! What weights say that they are of: a file in its header, where this program wrote it, and a checkpoint.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use crate::checkpoint::{CheckpointState, FoundCheckpoint};

/// Entry of a header that says the version of this program: another one's entries are anything.
pub(crate) const WRITER: &str = "tensorwire";
pub(crate) const MODEL: &str = "model";
pub(crate) const DATA: &str = "data";
pub(crate) const SEED: &str = "seed";
/// Entry with the names of the classes, an array of JSON.
pub(crate) const CLASSES: &str = "classes";
/// Bytes of the length of a header, before it.
const LENGTH_BYTES: usize = 8;

/// What weights are of, as their file says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightsOrigin {
    pub model: String,
    /// As `--data` was given.
    pub data: String,
    /// None: an earlier version did not say.
    pub seed: Option<u64>,
    /// By their numbers; none: they have numbers alone, or an earlier version did not say.
    pub class_names: Option<Vec<String>>,
}

/// What is read of a header.
#[derive(Deserialize)]
struct Header {
    #[serde(rename = "__metadata__", default)]
    entries: HashMap<String, String>,
}

impl WeightsOrigin {
    /// Reads the header of a file, or what a checkpoint says. None if it cannot be read, or another program wrote it.
    pub fn read(path: &Path) -> Option<WeightsOrigin> {
        if path.is_dir() {
            let CheckpointState { model, data, seed, class_names, .. } =
                FoundCheckpoint::at(path).and_then(|found| found.state()).ok()?;
            return Some(WeightsOrigin { model, data, seed: Some(seed), class_names });
        }
        let mut file = File::open(path).ok()?;
        let most = file.metadata().ok()?.len();
        let mut length = [0; LENGTH_BYTES];
        file.read_exact(&mut length).ok()?;
        let length = Some(u64::from_le_bytes(length)).filter(|length| *length <= most)?;
        let mut header = Vec::new();
        file.take(length).read_to_end(&mut header).ok()?;
        let Header { mut entries } = serde_json::from_slice(&header).ok()?;
        entries.get(WRITER)?;
        Some(WeightsOrigin {
            class_names: entries.get(CLASSES).and_then(|names| serde_json::from_str(names).ok()),
            seed: entries.get(SEED).and_then(|seed| seed.parse().ok()),
            model: entries.remove(MODEL)?,
            data: entries.remove(DATA)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_what_it_is_of_if_this_program_wrote_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w");
        let read = |header: &str| {
            let length = (header.len() as u64).to_le_bytes();
            std::fs::write(&path, [&length[..], header.as_bytes()].concat()).unwrap();
            WeightsOrigin::read(&path)
        };
        let of = |more: &str| {
            format!(
                r#"{{"__metadata__":{{"model":"mlp","data":"csv:a.csv","seed":"7"{more}}},"w":{{"dtype":"F32"}}}}"#
            )
        };
        let (model, data) = ("mlp".to_string(), "csv:a.csv".to_string());
        let named = Some(vec!["a".to_string(), "b".to_string()]);
        let ours = WeightsOrigin { model, data, seed: Some(7), class_names: named };
        let found = read(&of(r#","tensorwire":"0.1","classes":"[\"a\",\"b\"]""#));
        assert_eq!(found, Some(ours.clone()));
        let unnamed = read(&of(r#","tensorwire":"0.1","classes":"a, b""#));
        assert_eq!(unnamed, Some(WeightsOrigin { class_names: None, ..ours }));
        for other in [of(r#","classes":"[\"a\"]""#).as_str(), "{}", "no JSON"] {
            assert_eq!(read(other), None, "{other}");
        }
        std::fs::write(&path, u64::MAX.to_le_bytes()).unwrap();
        assert_eq!(WeightsOrigin::read(&path), None);
    }
}
