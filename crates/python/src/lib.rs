//! What the Python package `tensorwire` calls. It turns Python's objects into those of the crates below and back, and lets
//! go of the interpreter's lock while they work; nothing is decided here.

mod dlpack;
mod group;
mod import;
mod job;
mod kv;
mod optimizers;

use pyo3::prelude::*;

/// The module `tensorwire._native`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    group::register(module)?;
    import::register(module)?;
    job::register(module)?;
    kv::register(module)
}
