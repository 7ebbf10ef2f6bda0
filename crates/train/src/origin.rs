//! What weights say that they are of: a file in its header, where this program wrote it, and a checkpoint.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use crate::checkpoint::{CheckpointState, FoundCheckpoint};
use crate::config::TrainConfig;

/// Entry of a header that says the version of this program: another one's entries are anything.
const WRITER: &str = "tensorwire";
const MODEL: &str = "model";
const DATA: &str = "data";
const STRATEGY: &str = "strategy";
const SEED: &str = "seed";
const STEPS: &str = "steps";
/// Entry with the names of the classes, an array of JSON.
const CLASSES: &str = "classes";
/// Bytes of the length of a header, before it.
const LENGTH_BYTES: usize = 8;

/// What weights are of, as their file says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightsOrigin {
    /// Of the program that wrote them.
    pub version: String,
    pub model: String,
    /// As `--data` was given.
    pub data: String,
    /// What trained them, by its name.
    pub strategy: String,
    /// None: an earlier version did not say. The same of what follows.
    pub seed: Option<u64>,
    /// The steps that were made.
    pub steps: Option<u64>,
    /// By their numbers; none, too, where they have numbers alone.
    pub class_names: Option<Vec<String>>,
}

/// What is read of a header.
#[derive(Deserialize)]
struct Header {
    #[serde(rename = "__metadata__", default)]
    entries: BTreeMap<String, String>,
}

impl From<&CheckpointState> for WeightsOrigin {
    fn from(state: &CheckpointState) -> WeightsOrigin {
        WeightsOrigin {
            version: state.version.clone(),
            model: state.model.clone(),
            data: state.data.clone(),
            strategy: state.strategy.name().to_string(),
            seed: Some(state.seed),
            steps: Some(state.step),
            class_names: state.class_names.clone(),
        }
    }
}

impl WeightsOrigin {
    /// Of weights that this program has trained for so many steps, on classes of these names.
    pub(crate) fn here(
        config: &TrainConfig,
        steps: u64,
        class_names: Option<&[String]>,
    ) -> WeightsOrigin {
        WeightsOrigin {
            version: env!("CARGO_PKG_VERSION").to_string(),
            model: config.model.clone(),
            data: config.data.clone(),
            strategy: config.strategy.name().to_string(),
            seed: Some(config.seed),
            steps: Some(steps),
            class_names: class_names.map(<[String]>::to_vec),
        }
    }

    /// The entries of a header that say it, for people and for other programs.
    pub(crate) fn entries(&self) -> BTreeMap<&'static str, String> {
        let WeightsOrigin { version, model, data, strategy, seed, steps, class_names } = self;
        let texts = [(WRITER, version), (MODEL, model), (DATA, data), (STRATEGY, strategy)];
        let numbers = [(SEED, seed), (STEPS, steps)];
        let numbers = numbers.into_iter().filter_map(|(name, of)| Some((name, of.as_ref()?)));
        let names = class_names.iter().map(|names| (CLASSES, serde_json::json!(names).to_string()));
        texts
            .map(|(name, text)| (name, text.clone()))
            .into_iter()
            .chain(numbers.map(|(name, number)| (name, number.to_string())))
            .chain(names)
            .collect()
    }

    /// Reads the header of a file, or what a checkpoint says. None if it cannot be read, or another program wrote it.
    pub fn read(path: &Path) -> Option<WeightsOrigin> {
        if path.is_dir() {
            let state = FoundCheckpoint::at(path).and_then(|found| found.state()).ok()?;
            return Some(WeightsOrigin::from(&state));
        }
        let mut file = File::open(path).ok()?;
        let most = file.metadata().ok()?.len();
        let mut length = [0; LENGTH_BYTES];
        file.read_exact(&mut length).ok()?;
        let length = Some(u64::from_le_bytes(length)).filter(|length| *length <= most)?;
        let mut header = Vec::new();
        file.take(length).read_to_end(&mut header).ok()?;
        let Header { mut entries } = serde_json::from_slice(&header).ok()?;
        let version = entries.remove(WRITER)?;
        let number = |name: &str| entries.get(name).and_then(|number| number.parse().ok());
        Some(WeightsOrigin {
            seed: number(SEED),
            steps: number(STEPS),
            class_names: entries.get(CLASSES).and_then(|names| serde_json::from_str(names).ok()),
            version,
            model: entries.remove(MODEL)?,
            data: entries.remove(DATA)?,
            strategy: entries.remove(STRATEGY)?,
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
                r#"{{"__metadata__":{{"model":"mlp","data":"csv:a.csv","strategy":"ps","seed":"7"{more}}},"w":{{"dtype":"F32"}}}}"#
            )
        };
        let named = Some(vec!["a".to_string(), "b".to_string()]);
        let config = TrainConfig {
            model: "mlp".to_string(),
            data: "csv:a.csv".to_string(),
            seed: 7,
            ..TrainConfig::default()
        };
        let ours = WeightsOrigin {
            version: "0.1".to_string(),
            ..WeightsOrigin::here(&config, 9, named.as_deref())
        };
        let found = read(&of(r#","tensorwire":"0.1","steps":"9","classes":"[\"a\",\"b\"]""#));
        assert_eq!(found, Some(ours.clone()));
        let written = serde_json::json!({ "__metadata__": ours.entries() }).to_string();
        assert_eq!(read(&written), Some(ours.clone()));
        let unnamed = read(&of(r#","tensorwire":"0.1","classes":"a, b""#));
        assert_eq!(unnamed, Some(WeightsOrigin { class_names: None, steps: None, ..ours }));
        for other in [of(r#","classes":"[\"a\"]""#).as_str(), "{}", "no JSON"] {
            assert_eq!(read(other), None, "{other}");
        }
        std::fs::write(&path, u64::MAX.to_le_bytes()).unwrap();
        assert_eq!(WeightsOrigin::read(&path), None);
    }
}
