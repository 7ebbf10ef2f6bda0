//! Imported modules: what Python describes, checked.

use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tensorwire::import::{ImportError, ImportedModel, Module, known};
use tensorwire::train::FloatType;

create_exception!(
    _native,
    ImportFailed,
    PyValueError,
    "A module is no model here: what is wrong, the operator, the part of the module, and its line."
);

/// Adds what imports modules.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("ImportFailed", module.py().get_type::<ImportFailed>())?;
    module.add_function(wrap_pyfunction!(operators, module)?)?;
    module.add_function(wrap_pyfunction!(check_module, module)?)
}

/// Returns the names of the operators that can be imported.
#[pyfunction]
fn operators() -> Vec<&'static str> {
    known().collect()
}

/// Builds a trial of what is described as JSON, with its constants as safetensors; raises `ImportFailed` if it cannot be trained.
#[pyfunction]
fn check_module(py: Python<'_>, described: &str, constants: &[u8], dtype: &str) -> PyResult<()> {
    let module: Module = parsed(described)?;
    let dtype: FloatType = parsed(&format!("\"{dtype}\""))?;
    py.detach(|| ImportedModel::new(module, constants)?.check(dtype.into())).map_err(failed)
}

/// What a text of JSON says.
pub(crate) fn parsed<'t, T: serde::Deserialize<'t>>(text: &'t str) -> PyResult<T> {
    serde_json::from_str(text).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn failed(error: ImportError) -> PyErr {
    let said = error.to_string();
    let (operator, module, line) = match error {
        ImportError::Unknown(site)
        | ImportError::Refused { site, .. }
        | ImportError::Graph { site, .. } => (site.operator, site.place.module, site.place.line),
        _ => Default::default(),
    };
    ImportFailed::new_err((said, operator, module, line))
}
