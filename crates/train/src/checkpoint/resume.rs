//! Which checkpoint a job goes on from, whether it is of the same model, and what else is other than it was.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorwire_nn::{Variable, is_residual};

use super::shard::ShardIndex;
use super::{
    CheckpointError, CheckpointFolder, CheckpointState, FoundCheckpoint, Kept, SampleCounts,
};
use crate::config::TrainConfig;
use crate::weights;

/// How often a checkpoint is read before one that is older is taken.
const READS_MAX: usize = 3;
/// And how soon once more.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// The checkpoint that a job goes on from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resumed {
    pub path: PathBuf,
    pub state: CheckpointState,
    /// What is other in this job than in that which wrote it, each in a few words.
    pub changes: Vec<String>,
    /// Why newer ones are passed over.
    pub damaged: Vec<String>,
    /// Clients that average begin at the centre, with a fresh optimizer: it has no state of as many.
    #[serde(default)]
    pub centre_alone: bool,
}

impl std::fmt::Display for Resumed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Resumed { path, state, changes, .. } = self;
        write!(f, "goes on from {}, after step {}", path.display(), state.step)?;
        match changes.is_empty() {
            true => Ok(()),
            false => write!(f, "; now {}", changes.join(", ")),
        }
    }
}

impl Resumed {
    /// Opens its files.
    pub(crate) fn index(&self) -> Result<ShardIndex, CheckpointError> {
        ShardIndex::open(&self.path, self.state.files.keys())
    }
}

/// True if no checkpoint is found in a folder, which need not be there.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn is_fresh(path: &Path) -> Result<bool, CheckpointError> {
    match CheckpointFolder::new(path).found() {
        Err(CheckpointError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {
            Ok(true)
        }
        found => Ok(found?.is_empty()),
    }
}

/// What decides the bits of a job that is to go on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now<'a> {
    pub(crate) config: &'a TrainConfig,
    pub(crate) recipe: &'a BTreeMap<String, String>,
    pub(crate) steps_per_epoch: u64,
    pub(crate) counts: SampleCounts,
}

/// Behind which steps a job may go on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Behind {
    Any,
    /// One before this one.
    Before(u64),
}

/// Takes the newest checkpoint of a folder whose files are as they were written. `kept` is what the job has in its own.
///
/// # Errors
/// When there is none, or it is of another model.
pub(crate) fn choose(
    folder: &Path,
    kept: &Kept,
    now: &Now<'_>,
    behind: Behind,
) -> Result<Resumed, CheckpointError> {
    let path = folder.to_path_buf();
    let (mut damaged, mut unread) = (Vec::new(), None);
    let mut all = CheckpointFolder::new(folder).found()?;
    if let Behind::Before(end) = behind {
        all.retain(|found| found.step < end);
    }
    for found in all {
        let opened = read_again(|| {
            let state = found.verified()?;
            Ok((found.index(&state)?, state))
        });
        let (index, state) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                tracing::warn!("{error}; it is passed over");
                damaged.push(error.to_string());
                if error.is_unread() {
                    unread.get_or_insert(error);
                }
                continue;
            }
        };
        compare(&found, &index, &state, kept)?;
        let mut changes = changes(&state, now);
        let centre_alone = !kept.of_clients.is_empty() && !has_clients(&index, kept);
        let is_kept = |name: &str| kept.of_workers.iter().any(|own| own.name == name);
        let is_there =
            |own: &Variable| index.value(&own.name).is_some_and(|value| value.is(&own.spec));
        if index.values().any(|(name, _)| is_residual(name) && !is_kept(name))
            || !kept.of_workers.iter().all(is_there)
        {
            changes.push("what some workers had not sent yet of gradients is left out".to_string());
        }
        if centre_alone {
            changes.push("each client begins at the centre with a fresh optimizer".to_string());
        }
        return Ok(Resumed { path: found.path, state, changes, damaged, centre_alone });
    }
    match unread {
        // it may be whole
        Some(error) => Err(error),
        None if damaged.is_empty() => Err(CheckpointError::Empty { path }),
        None => Err(CheckpointError::AllDamaged { path, damages: damaged.join("; ") }),
    }
}

/// Reads a checkpoint, and once more where a disk does not answer for a moment.
fn read_again<T>(read: impl Fn() -> Result<T, CheckpointError>) -> Result<T, CheckpointError> {
    let mut found = read();
    for _ in 1..READS_MAX {
        if !found.as_ref().is_err_and(CheckpointError::is_unread) {
            break;
        }
        std::thread::sleep(READ_AGAIN);
        found = read();
    }
    found
}

/// Fails if a checkpoint has other tensors than a job. With a centre it is the weights that count: clients can do without
/// what was beside them.
fn compare(
    found: &FoundCheckpoint,
    index: &ShardIndex,
    state: &CheckpointState,
    kept: &Kept,
) -> Result<(), CheckpointError> {
    let mut differences = Vec::new();
    for Variable { name, spec, .. } in &kept.shared {
        match index.value(name) {
            None => differences.push(format!("'{name}' is missing")),
            Some(value) if !value.is(spec) => {
                let (dtype, dims) = (value.dtype, &value.dims);
                differences.push(format!("'{name}' is {dtype:?}{dims:?}, not {spec}"));
            }
            Some(_) => {}
        }
    }
    for (name, _) in index.values() {
        let is_left_out = !kept.of_clients.is_empty() && state.is_slot(name);
        // whoever takes it up; a job does without, which is said
        if !is_left_out
            && !is_residual(name)
            && !kept.shared.iter().any(|variable| variable.name == name)
        {
            differences.push(format!("'{name}' is unknown"));
        }
    }
    if differences.is_empty() {
        return Ok(());
    }
    let differences = weights::listed(differences);
    Err(CheckpointError::OtherJob { path: found.path.clone(), differences })
}

/// True if a checkpoint has what each client of a job has for itself, and nothing else beside the centre.
fn has_clients(index: &ShardIndex, kept: &Kept) -> bool {
    let is_there = |own: &Variable| index.value(&own.name).is_some_and(|value| value.is(&own.spec));
    let count = kept.shared.len() + kept.of_clients.len();
    index.values().count() == count && kept.of_clients.iter().all(is_there)
}

/// What decides the bits and is other than it was.
fn changes(
    state: &CheckpointState,
    &Now { config, recipe, steps_per_epoch, counts }: &Now<'_>,
) -> Vec<String> {
    let topology = config.topology();
    let per_epoch = state.position.steps_per_epoch;
    let pairs = [
        ("model", state.model.clone(), config.model.clone()),
        ("data", state.data.clone(), config.data.clone()),
        ("strategy", state.strategy.name().to_string(), config.strategy.name().to_string()),
        ("workers", state.workers.to_string(), config.workers.to_string()),
        ("servers", state.servers.to_string(), topology.servers.to_string()),
        ("batch", state.batch.to_string(), config.batch.to_string()),
        ("batches a step", state.accumulate.to_string(), config.accumulate.to_string()),
        ("devices a worker", state.devices.to_string(), config.devices_per_worker.to_string()),
        ("seed", state.seed.to_string(), config.seed.to_string()),
        ("steps an epoch", per_epoch.to_string(), steps_per_epoch.to_string()),
    ];
    // an earlier version did not say how it learned
    let learned = recipe.iter().filter_map(|(what, is)| {
        Some((what.as_str(), state.recipe.get(what)?.clone(), is.clone()))
    });
    // the order of samples depends on how many there are
    let data = state.samples.map(|was| ("data", was.to_string(), counts.to_string()));
    let changed = pairs.into_iter().chain(data).chain(learned).filter(|(_, was, is)| was != is);
    changed.map(|(what, was, is)| format!("{what} {is} (was {was})")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::state;
    use super::super::{ShardPiece, write_shard};
    use super::*;
    use tensorwire_graph::Init;
    use tensorwire_tensor::{DType, TensorSpec};

    use super::super::recipe;

    const COUNTS: SampleCounts = SampleCounts { train: Some(90), test: None };

    fn now<'a>(config: &'a TrainConfig, recipe: &'a BTreeMap<String, String>) -> Now<'a> {
        Now { config, recipe, steps_per_epoch: 11, counts: COUNTS }
    }

    fn variable(name: &str, dims: &[usize]) -> Variable {
        let spec = TensorSpec::new(DType::F32, dims).unwrap();
        Variable { name: name.to_string(), spec, init: Init::Zeros }
    }

    fn publish(folder: &Path, step: u64) -> PathBuf {
        let folder = CheckpointFolder::new(folder);
        let partial = folder.partial(step);
        std::fs::create_dir_all(&partial).unwrap();
        let (dims, bytes) = (&[2], &[7; 8]);
        let (name, dtype, whole, first_element) = ("w", DType::F32, dims, 0);
        let piece = ShardPiece { name, dtype, dims, whole, first_element, bytes };
        let written = write_shard(&partial.join("shard"), &[piece]).unwrap();
        let files = [("shard".to_string(), written)].into();
        folder.publish(&CheckpointState { step, files, ..state() }).unwrap()
    }

    #[test]
    fn the_newest_whole_one_is_taken_and_the_others_are_named() {
        let place = tempfile::tempdir().unwrap();
        let config = TrainConfig { batch: 8, workers: 3, accumulate: 2, ..TrainConfig::default() };
        let kept = Kept { shared: vec![variable("w", &[2])], ..Kept::default() };
        let chosen_behind =
            |behind| choose(place.path(), &kept, &now(&config, &recipe(&config)), behind);
        let chosen = || chosen_behind(Behind::Any);
        let fresh = [place.path(), Path::new("/none")].map(|path| is_fresh(path).unwrap());
        assert_eq!(fresh, [true, true]);
        assert!(is_fresh(Path::new("/proc/self/stat")).is_err(), "it cannot be read");
        assert!(matches!(chosen(), Err(CheckpointError::Empty { .. })));
        let all: Vec<PathBuf> = [10, 20, 30].map(|step| publish(place.path(), step)).into();
        let step_before = |end| chosen_behind(Behind::Before(end)).unwrap().state.step;
        assert_eq!([31, 30, 11].map(step_before), [30, 20, 10]);
        assert!(matches!(chosen_behind(Behind::Before(10)), Err(CheckpointError::Empty { .. })));
        std::fs::write(all[2].join("shard"), "torn").unwrap();
        let resumed = chosen().unwrap();
        assert_eq!((resumed.path, resumed.state.step), (all[1].clone(), 20));
        assert_eq!(resumed.changes, ["workers 3 (was 2)", "batches a step 2 (was 1)"]);
        assert!(resumed.damaged[0].contains("step-00000030"), "{:?}", resumed.damaged);
        all.iter().for_each(|path| std::fs::remove_file(path.join("shard")).unwrap());
        assert!(matches!(chosen(), Err(CheckpointError::AllDamaged { .. })));
        // a file whose first byte is an error of input and output
        std::os::unix::fs::symlink("/proc/self/mem", all[1].join("shard")).unwrap();
        let error = chosen().unwrap_err();
        assert!(error.is_unread() && error.to_string().contains("step-00000020"), "{error}");
    }

    #[test]
    fn clients_take_what_was_theirs_and_else_begin_at_the_centre() {
        let place = tempfile::tempdir().unwrap();
        publish(place.path(), 10);
        let shared = vec![variable("w", &[2])];
        let config = TrainConfig::default();
        let recipe = recipe(&config);
        let chosen = |of_clients: Vec<Variable>| {
            let kept = Kept { shared: shared.clone(), of_clients, ..Kept::default() };
            choose(place.path(), &kept, &now(&config, &recipe), Behind::Any).unwrap()
        };
        assert!(!chosen(Vec::new()).centre_alone, "there is none");
        let resumed = chosen(vec![variable("client0/w", &[2])]);
        assert!(resumed.centre_alone);
        assert!(resumed.changes.last().unwrap().contains("begins at the centre"));
    }

    #[test]
    fn a_checkpoint_of_an_earlier_version_says_nothing_of_how_it_learned() {
        let mut earlier = serde_json::to_value(state()).unwrap();
        for field in ["recipe", "samples"] {
            assert!(earlier.as_object_mut().unwrap().remove(field).is_some());
        }
        let mut state: CheckpointState = serde_json::from_value(earlier).unwrap();
        let config = TrainConfig { batch: 8, ..TrainConfig::default() };
        let kernels = |name: &str| ("kernels".to_string(), name.to_string());
        let mut own = recipe(&config);
        own.extend([kernels("own")]);
        let all = now(&config, &own);
        let fewer = Now { counts: SampleCounts { train: Some(89), ..COUNTS }, ..all };
        assert_eq!(changes(&state, &fewer), [""; 0]);
        state.recipe = recipe(&TrainConfig { clip_norm: Some(2.0), ..config.clone() });
        assert_eq!(changes(&state, &all), ["clip norm none (was 2.0)"]);
        state.samples = Some(COUNTS);
        state.recipe.extend([kernels("onednn 3.2 on 2 threads")]);
        let said = [
            "data 89 samples (was 90 samples)",
            "clip norm none (was 2.0)",
            "kernels own (was onednn 3.2 on 2 threads)",
        ];
        assert_eq!(changes(&state, &fewer), said);
    }

    #[test]
    fn one_of_another_model_is_refused_with_what_differs() {
        let place = tempfile::tempdir().unwrap();
        publish(place.path(), 10);
        let shared = vec![variable("w", &[1, 2]), variable("v", &[3])];
        let kept = Kept { shared, ..Kept::default() };
        let config = TrainConfig::default();
        let recipe = recipe(&config);
        let error = choose(place.path(), &kept, &now(&config, &recipe), Behind::Any).unwrap_err();
        let text = error.to_string();
        for part in ["'w' is F32[2], not f32[1×2]", "'v' is missing", "--load "] {
            assert!(text.contains(part), "{text}");
        }
    }
}
