//! The rules by which servers update, as Python names them.

use std::collections::HashMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::Value;
use tensorwire::nn::Optimizer;
use tensorwire::train::StoreRule;

/// What Python gives for a rule: its name and its parameters.
pub(super) type Named = (String, HashMap<String, f64>);

/// Returns the rule of this name.
///
/// # Errors
/// When there is none, or it lacks a parameter, or has one less.
pub(super) fn rule((name, mut parameters): Named) -> PyResult<StoreRule> {
    let mut take = |parameter: &str| {
        let lacking = || PyValueError::new_err(format!("optimizer '{name}' needs {parameter}"));
        parameters.remove(parameter).ok_or_else(lacking)
    };
    let rule = match name.as_str() {
        "sum" => StoreRule::Sum,
        "mean" => StoreRule::Mean,
        "average" => StoreRule::Average { rate: take("learning_rate")? },
        "elastic" => StoreRule::Elastic { alpha: take("alpha")? },
        _ => {
            let rate = take("learning_rate")?;
            optimizer(&name, rate, &mut parameters)?.into()
        }
    };
    match parameters.into_keys().next() {
        Some(other) => {
            Err(PyValueError::new_err(format!("optimizer '{name}' has no parameter '{other}'")))
        }
        None => Ok(rule),
    }
}

/// An optimizer with its usual parameters but for those that are given, which are taken out.
fn optimizer(name: &str, rate: f64, parameters: &mut HashMap<String, f64>) -> PyResult<Optimizer> {
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
    let all = all.map(|make| make(rate));
    let usual = all.into_iter().find(|optimizer| optimizer.kind() == name).ok_or_else(|| {
        let names = all.map(Optimizer::kind).join(", ");
        PyValueError::new_err(format!(
            "there is no optimizer '{name}'; there are {names}, sum, mean, average and elastic"
        ))
    })?;
    let wrong =
        |why: &dyn std::fmt::Display| PyValueError::new_err(format!("optimizer '{name}': {why}"));
    // by the names that they have where rules are written down
    let mut method = serde_json::to_value(usual.method).map_err(|error| wrong(&error))?;
    let fields = method.get_mut(name).and_then(Value::as_object_mut);
    for (field, value) in fields.into_iter().flatten() {
        if let Some(given) = parameters.remove(field) {
            *value = given.into();
        }
    }
    let method: tensorwire::nn::Method =
        serde_json::from_value(method).map_err(|error| wrong(&error))?;
    let decay = parameters.remove("weight_decay").unwrap_or(usual.decay);
    let optimizer = method.at(rate).decaying(decay);
    let checked = optimizer.check();
    checked.map_err(|(field, range, found)| wrong(&format!("{field} is {found}, not {range}")))?;
    Ok(optimizer)
}
