//! A training job of an imported module: one folder has all that its processes read.

use std::path::{Path, PathBuf};

use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use serde::Deserialize;
use serde_json::Value;
use tensorwire::Training;
use tensorwire::import::{ImportedModel, Module};
use tensorwire::nn::Optimizer;
use tensorwire::train::{FinishedStep, TrainConfig};
use tensorwire::zoo::data::Arrays;

use crate::import::parsed;

create_exception!(
    _native,
    JobFailed,
    PyRuntimeError,
    "A job was not done: the first cause, which names the process and the step."
);

/// Adds what runs jobs.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("JobFailed", module.py().get_type::<JobFailed>())?;
    module.add_function(wrap_pyfunction!(run_job, module)?)
}

/// `job.json` of a job's folder. Beside it lie `constants.safetensors`, `first.safetensors`, and a file for each tensor of
/// the data.
#[derive(Deserialize)]
struct Job {
    module: Module,
    samples: usize,
    shuffle: bool,
    optimizer: String,
    learning_rate: f64,
    momentum: Option<f64>,
    weight_decay: Option<f64>,
    /// What else differs from the usual, by the names of [`TrainConfig`].
    config: Value,
}

/// Runs the job of a folder, and returns its summary as JSON. Processes of it are started as `program` with `arguments`, which
/// call this with the same folder; in one of these it does a member's part and ends the process. `on_step` is told of each
/// step, as JSON.
#[pyfunction]
fn run_job(
    py: Python<'_>,
    folder: PathBuf,
    program: PathBuf,
    arguments: Vec<String>,
    on_step: Py<PyAny>,
) -> PyResult<String> {
    let training = py.detach(|| training(&folder))?.members(program, arguments);
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

fn tell(on_step: &Py<PyAny>, step: &FinishedStep) {
    let Ok(said) = serde_json::to_string(step) else { return };
    Python::attach(|py| {
        if let Err(error) = on_step.call1(py, (said,)) {
            // training does not depend on who is told
            error.print(py);
        }
    });
}

fn training(folder: &Path) -> PyResult<Training> {
    let job: Job = parsed(&std::fs::read_to_string(folder.join("job.json"))?)?;
    let optimizer = optimizer(&job)?;
    let constants = std::fs::read(folder.join("constants.safetensors"))?;
    let config = configured(job.config)?;
    let model = ImportedModel::new(job.module, &constants).map_err(failed)?;
    let data = Arrays::open(folder, model.data(), job.samples, job.shuffle).map_err(failed)?;
    let training = Training::new(model, data).configure(|made| {
        *made = TrainConfig {
            model: made.model.clone(),
            data: made.data.clone(),
            optimizer,
            load: Some(folder.join("first.safetensors")),
            save: Some(folder.join("trained.safetensors")),
            ..config
        };
    });
    Ok(training)
}

/// The usual configuration, with what differs.
fn configured(differs: Value) -> PyResult<TrainConfig> {
    let mut config = serde_json::to_value(TrainConfig::default()).map_err(failed)?;
    merge(&mut config, differs).map_err(PyValueError::new_err)?;
    serde_json::from_value(config).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn merge(config: &mut Value, differs: Value) -> Result<(), String> {
    let (Value::Object(config), Value::Object(differs)) = (config, differs) else {
        return Err("the options of a job are no object".to_string());
    };
    for (name, value) in differs {
        let Some(usual) = config.get_mut(&name) else {
            let known: Vec<&str> = config.keys().map(String::as_str).collect();
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

fn optimizer(job: &Job) -> PyResult<Optimizer> {
    use tensorwire::nn::Method::{Momentum, Nesterov};
    // as PyTorch spells it
    let has_momentum = job.momentum.is_some() && job.optimizer == "sgd";
    let kind = if has_momentum { "momentum" } else { job.optimizer.as_str() };
    let mut rule = Optimizer::named(kind, job.learning_rate).ok_or_else(|| {
        let said = "there are sgd, momentum, nesterov, adagrad, rmsprop, adam, adamw and lamb";
        PyValueError::new_err(format!("there is no optimizer '{kind}'; {said}"))
    })?;
    match (&mut rule.method, job.momentum) {
        (_, None) => {}
        (Momentum { momentum } | Nesterov { momentum }, Some(given)) => *momentum = given,
        _ => {
            let said =
                format!("optimizer '{kind}' has no momentum; leave it out, or take 'momentum'");
            return Err(PyValueError::new_err(said));
        }
    }
    Ok(rule.decaying(job.weight_decay.unwrap_or(rule.decay)))
}

fn failed(error: impl std::fmt::Display) -> PyErr {
    JobFailed::new_err(error.to_string())
}
