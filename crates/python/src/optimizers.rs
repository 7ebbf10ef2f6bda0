//! Optimizers, as Python names them.

use std::collections::HashMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::Value;
use tensorwire::nn::{Method, Optimizer};

/// Returns the optimizer of this name, with its usual parameters but for those that are given. `sgd` with momentum is
/// `momentum`, as PyTorch spells it.
///
/// # Errors
/// When there is none, or it has no rate, or has not such a parameter, or not of this value.
pub(crate) fn optimizer(
    name: &str,
    rate: Option<f64>,
    mut parameters: HashMap<String, f64>,
) -> PyResult<Optimizer> {
    let all = [
        Optimizer::sgd,
        Optimizer::momentum,
        Optimizer::nesterov,
        Optimizer::adagrad,
        Optimizer::rmsprop,
        Optimizer::adam,
        Optimizer::adamw,
        Optimizer::lamb,
    ];
    // the rate is not looked at before there is an optimizer
    let all = all.map(|make| make(rate.unwrap_or(1.0)));
    let kind = match parameters.get("momentum") {
        Some(&momentum) if name == "sgd" && momentum != 0.0 => "momentum",
        Some(_) if name == "sgd" => {
            parameters.remove("momentum");
            name
        }
        _ => name,
    };
    let usual = all.into_iter().find(|optimizer| optimizer.kind() == kind).ok_or_else(|| {
        let names = all.map(Optimizer::kind).join(", ");
        PyValueError::new_err(format!(
            "there is no optimizer '{name}'; there are {names} (and in a store sum, mean, average and elastic)"
        ))
    })?;
    let wrong =
        |why: &dyn std::fmt::Display| PyValueError::new_err(format!("optimizer '{name}': {why}"));
    // by the names that they have where rules are written down
    let mut method = serde_json::to_value(usual.method).map_err(|error| wrong(&error))?;
    let fields = method.get_mut(kind).and_then(Value::as_object_mut);
    for (field, value) in fields.into_iter().flatten() {
        if let Some(given) = parameters.remove(field) {
            *value = given.into();
        }
    }
    let method: Method = serde_json::from_value(method).map_err(|error| wrong(&error))?;
    let decay = parameters.remove("weight_decay").unwrap_or(usual.decay);
    unknown(name, parameters)?;
    let rate = rate
        .ok_or_else(|| PyValueError::new_err(format!("optimizer '{name}' needs learning_rate")))?;
    let optimizer = method.at(rate).decaying(decay);
    let checked = optimizer.check();
    checked.map_err(|(field, range, found)| wrong(&format!("{field} is {found}, not {range}")))?;
    Ok(optimizer)
}

/// Refuses parameters that are left over.
pub(crate) fn unknown(name: &str, parameters: HashMap<String, f64>) -> PyResult<()> {
    match parameters.into_keys().min() {
        Some(other) => {
            Err(PyValueError::new_err(format!("optimizer '{name}' has no parameter '{other}'")))
        }
        None => Ok(()),
    }
}
