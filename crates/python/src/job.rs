//! A training job of an imported module, or of a model that is shipped: one folder has all that its processes read.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use serde::Deserialize;
use serde_json::Value;
use tensorwire::import::{ImportedModel, Module};
use tensorwire::launch::Hosts;
use tensorwire::strategies::IntoStrategy;
use tensorwire::train::{CheckpointConfig, CheckpointFolder, FinishedStep, TrainConfig, Weights};
use tensorwire::zoo::data::{Arrays, Source};
use tensorwire::{Remedies, Training, zoo};

use crate::import::parsed;
use crate::optimizers::optimizer;

create_exception!(
    _native,
    JobFailed,
    PyRuntimeError,
    "A job was not done: the first cause, which names the process and the step."
);

/// Adds what runs jobs.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("JobFailed", module.py().get_type::<JobFailed>())?;
    module.add_function(wrap_pyfunction!(run_job, module)?)?;
    module.add_function(wrap_pyfunction!(run_with_parent, module)?)?;
    module.add_function(wrap_pyfunction!(job_members, module)?)
}

/// `job.json` of a job's folder.
#[derive(Deserialize)]
struct Job {
    subject: Subject,
    optimizer: String,
    learning_rate: f64,
    /// What else the optimizer has, by name; as usual where it is not given.
    parameters: HashMap<String, f64>,
    /// What else differs from the usual, by the names of [`TrainConfig`].
    config: Value,
}

/// As `tensorwire.training.train` calls them.
const REMEDIES: Remedies =
    Remedies { resume: "resume=FOLDER", checkpoint: "checkpoint=FOLDER", rate: "learning_rate" };

/// What others call an argument of `tensorwire.train`.
const NAMES: [(&str, &str); 5] = [
    ("lr", "learning_rate"),
    ("epoch", "epochs"),
    ("num_workers", "workers"),
    ("batch_size", "the loader's, or batch"),
    ("rsh", "given beside hosts=\"node0,node1\""),
];

/// What is trained on what.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Subject {
    /// An imported module. Beside `job.json` lie `constants.safetensors`, `first.safetensors`, and a file for each tensor of
    /// the data.
    Imported { module: Box<Module>, samples: usize, shuffle: bool },
    /// What is shipped, by the names that the command line has.
    Shipped { model: String, data: String },
}

/// All of a configuration but what is trained. Whoever leads processes that others started holds them against its numbers.
struct Whole(TrainConfig);

impl IntoStrategy for Whole {
    fn configure(self, config: &mut TrainConfig) {
        let (model, data) = (config.model.clone(), config.data.clone());
        *config = TrainConfig { model, data, ..self.0 };
    }
}

/// Runs the job of a folder, and returns its summary as JSON. Processes of it are started as `program` with `arguments`, which
/// call this with the same folder; in one of these it does a member's part and ends the process. `on_step` is told of each
/// step, as JSON. `again`: the job was begun before, and goes on from its newest checkpoint, if it has one.
#[pyfunction]
fn run_job(
    py: Python<'_>,
    folder: PathBuf,
    program: PathBuf,
    arguments: Vec<String>,
    on_step: Py<PyAny>,
    again: bool,
) -> PyResult<String> {
    let training = py.detach(|| training(&folder, again))?.members(program, arguments);
    let training = training.on_step(move |step| tell(&on_step, step));
    // a job outlives nobody who waits for it; members are tied to the launcher
    let dies = Some(rustix::process::Signal::TERM);
    rustix::process::set_parent_process_death_signal(dies)
        .map_err(|error| JobFailed::new_err(error.to_string()))?;
    let summary = py.detach(|| training.run()).map_err(|error| match error {
        tensorwire::Error::Config(error) => PyValueError::new_err(error.to_string()),
        error => failed(error),
    })?;
    serde_json::to_string(&summary).map_err(failed)
}

/// Becomes another command, which ends when the process does that started this one. Does not return.
#[pyfunction]
fn run_with_parent(command: Vec<OsString>) {
    tensorwire::program::run_with_parent(command)
}

fn tell(on_step: &Py<PyAny>, step: &FinishedStep) {
    let Ok(said) = serde_json::to_string(step) else { return };
    Python::attach(|py| {
        if let Err(error) = on_step.call1(py, (said,)) {
            // training does not depend on who is told
            error.print(py);
        }
    });
}

/// Returns how many workers and how many servers the job of a folder has.
#[pyfunction]
fn job_members(folder: PathBuf) -> PyResult<(u32, u32)> {
    let config = configured(read(&folder)?.config)?;
    config.check().map_err(refused)?;
    let topology = config.topology();
    let workers = if topology.weights == Weights::Local { 1 } else { topology.workers };
    Ok((workers, topology.servers))
}

fn read(folder: &Path) -> PyResult<Job> {
    parsed(&std::fs::read_to_string(folder.join("job.json"))?)
}

fn training(folder: &Path, again: bool) -> PyResult<Training> {
    let job = read(folder)?;
    let optimizer = optimizer(&job.optimizer, Some(job.learning_rate), job.parameters)?;
    let mut config = TrainConfig {
        optimizer,
        save: Some(folder.join("trained.safetensors")),
        ..configured(job.config)?
    };
    if let Some(CheckpointConfig { path, .. }) = config.checkpoint.as_ref().filter(|_| again) {
        let has_any = CheckpointFolder::new(path).found().is_ok_and(|found| !found.is_empty());
        config.resume = has_any.then(|| path.clone()).or(config.resume);
    }
    let (training, first) = match job.subject {
        Subject::Shipped { model, data } => {
            let model = zoo::model(&model).map_err(refused)?;
            let data: Source = data.parse().map_err(refused)?;
            let data = data.open(model.samples(), config.seed).map_err(refused)?;
            (Training::new(model, data), None)
        }
        Subject::Imported { module, samples, shuffle } => {
            let constants = std::fs::read(folder.join("constants.safetensors"))?;
            let model = ImportedModel::new(*module, &constants).map_err(failed)?;
            let data = Arrays::open(folder, model.data(), samples, shuffle).map_err(failed)?;
            (Training::new(model, data), Some(folder.join("first.safetensors")))
        }
    };
    // a checkpoint has what the first values became
    let begins =
        config.resume.as_deref().is_none_or(|path| path == Path::new(CheckpointConfig::AUTO));
    config.load = config.load.or(first.filter(|_| begins));
    Ok(training.strategy(Whole(config)).remedies(REMEDIES))
}

/// The usual configuration, with what differs.
fn configured(differs: Value) -> PyResult<TrainConfig> {
    let differs = with_hosts(differs)?;
    let usual = serde_json::to_value(TrainConfig::default()).map_err(failed)?;
    let with = |differs: Value| -> PyResult<_> {
        let mut config = usual.clone();
        merge(&mut config, differs).map_err(PyValueError::new_err)?;
        Ok(serde_json::from_value::<TrainConfig>(config))
    };
    with(differs.clone())?.map_err(|error| {
        // which option it is that is not understood
        let alone = |(name, value): (&String, &Value)| {
            let one = Value::Object([(name.clone(), value.clone())].into_iter().collect());
            with(one).ok()?.err().map(|error| format!("{name}: {error}"))
        };
        let named = differs.as_object().and_then(|all| all.iter().find_map(alone));
        PyValueError::new_err(named.unwrap_or_else(|| error.to_string()))
    })
}

/// Puts hosts that are given as `--hosts` and `--rsh` take them in the form of a configuration.
fn with_hosts(mut differs: Value) -> PyResult<Value> {
    let Some(all) = differs.as_object_mut() else { return Ok(differs) };
    let Some(Value::String(names)) = all.get("hosts") else { return Ok(differs) };
    let hosts: Hosts = names.parse().map_err(refused)?;
    let hosts = match all.remove("rsh") {
        None => hosts,
        Some(Value::String(rsh)) => hosts.started_by(&rsh).map_err(refused)?,
        Some(other) => return Err(refused(format!("rsh: a command, not {other}"))),
    };
    all.insert("hosts".to_string(), serde_json::to_value(hosts).map_err(failed)?);
    Ok(differs)
}

fn merge(config: &mut Value, differs: Value) -> Result<(), String> {
    let (Value::Object(config), Value::Object(differs)) = (config, differs) else {
        return Err("the options of a job are no object".to_string());
    };
    for (name, value) in differs {
        let Some(usual) = config.get_mut(&name) else {
            let known: Vec<&str> = config.keys().map(String::as_str).collect();
            if let Some((_, ours)) = NAMES.iter().find(|(theirs, _)| *theirs == name) {
                return Err(format!("there is no option '{name}'; here it is {ours}"));
            }
            return Err(format!("there is no option '{name}'; there are {}", known.join(", ")));
        };
        match (usual.is_object(), &value) {
            // of what is chosen from several forms the whole is given
            (true, Value::Object(_)) if name == "store" || name == "clients" => {
                merge(usual, value)?
            }
            _ => *usual = value,
        }
    }
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> PyErr {
    JobFailed::new_err(error.to_string())
}

fn refused(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}
