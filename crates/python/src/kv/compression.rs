//! What of a tensor that is pushed crosses, if it is less than all.

use pyo3::PyResult;
use pyo3::exceptions::PyValueError;
use tensorwire::kvstore::{Key, KvHandle, KvWorker};
use tensorwire::memory::Buffer;
use tensorwire::nn::Compression;
use tensorwire::store::StoreFailure;
use tensorwire::train::GradientCompression;

/// Returns the compression of a name with its parameter; none: all of a tensor crosses.
pub(super) fn compression_named(
    kind: Option<&str>,
    share: Option<f64>,
) -> PyResult<Option<Compression>> {
    Ok(match (kind, share) {
        (None, None) => None,
        (Some("int8"), None) => Some(Compression::Int8),
        (Some("top-k"), share) => {
            let share = share.unwrap_or(0.01);
            if !(share > 0.0 && share <= 1.0) {
                let wrong = format!("share is above 0 and at most 1, not {share}");
                return Err(PyValueError::new_err(wrong));
            }
            Some(Compression::TopK { share })
        }
        (kind, _) => {
            let kind = kind.unwrap_or("none");
            return Err(PyValueError::new_err(format!(
                "no compression '{kind}' of these parameters; there are int8, and top-k with share"
            )));
        }
    })
}

/// Pushes each value by itself, less of it where it is worth it.
pub(super) fn push_less(
    less: &mut GradientCompression,
    store: &mut KvWorker,
    keys: &[Key],
    tensors: &[Vec<Buffer>],
    priority: i32,
) -> Result<Vec<KvHandle>, StoreFailure> {
    let each = keys.iter().zip(tensors);
    let pushed = each.map(|(key, tensors)| less.push(store, *key, tensors, priority));
    Ok(pushed.collect::<Result<_, _>>()?)
}
