//! The rules by which servers update, as Python names them.

use std::collections::HashMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tensorwire::train::StoreRule;

use crate::optimizers::{optimizer, unknown};

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
            let rate = parameters.remove("learning_rate");
            return Ok(optimizer(&name, rate, parameters)?.into());
        }
    };
    unknown(&name, parameters)?;
    Ok(rule)
}
