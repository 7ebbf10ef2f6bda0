//! Keys as a user has them: numbers and names.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tensorwire::kvstore::Key;

/// A key as the user has it.
#[derive(Clone, Debug, PartialEq, Eq, FromPyObject)]
pub(super) enum Name {
    Number(u64),
    Text(String),
}

pub(super) fn key(name: &Name) -> PyResult<Key> {
    match name {
        Name::Text(name) => Ok(Key::named(name)),
        Name::Number(number) if *number < Key::NAMED_FROM => Ok(Key(*number)),
        Name::Number(number) => Err(PyValueError::new_err(format!(
            "key {number} is too large: numbers are below {}",
            Key::NAMED_FROM
        ))),
    }
}

pub(super) fn said(name: &Name) -> String {
    match name {
        Name::Number(number) => format!("key {number}"),
        Name::Text(name) => format!("key '{name}'"),
    }
}

pub(super) fn same_key(one: &Name, other: &Name) -> PyErr {
    let (one, other) = (said(one), said(other));
    PyValueError::new_err(format!("{one} and {other} happen to be one to servers; rename either"))
}
