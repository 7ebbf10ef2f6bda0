//! What Python raises for what a store could not do.

use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use tensorwire::kvstore::{Key, StoreError as Error};
use tensorwire::store::StoreFailure;

create_exception!(
    tensorwire.kv,
    StoreError,
    PyRuntimeError,
    "What a store could not do, and why. Where a process was lost, it is named."
);

/// The key that somebody used wrongly.
pub(super) fn key_of(failure: &StoreFailure) -> Option<Key> {
    match failure {
        StoreFailure::Store(
            Error::NotInitialised { key }
            | Error::OtherSpec { key, .. }
            | Error::Size { key, .. }
            | Error::Rows { key, .. },
        ) => Some(*key),
        _ => None,
    }
}

/// What Python raises for a failure.
pub(super) fn exception(failure: StoreFailure) -> PyErr {
    let said = failure.to_string();
    match failure {
        StoreFailure::Alone => StoreError::new_err(format!(
            "{said}; on one host, `python -m tensorwire.kv --workers 2 SCRIPT` starts them"
        )),
        StoreFailure::NoServer
        | StoreFailure::Store(
            Error::NotInitialised { .. }
            | Error::OtherSpec { .. }
            | Error::Size { .. }
            | Error::Count { .. }
            | Error::Rows { .. }
            | Error::Key(_)
            | Error::Absurd { .. },
        ) => PyValueError::new_err(said),
        _ => StoreError::new_err(said),
    }
}
