//! What a worker is fed, as a file: to give another framework the same batches, or to look at them.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, serialize};
use tensorwire_base::human_bytes;
use tensorwire_zoo::Model;
use tensorwire_zoo::data::{Batches, Fed, FedValues, Source};

use crate::config::ConfigError;
use crate::whole_file;

/// Which batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchesSpec {
    pub model: Model,
    pub data: String,
    pub seed: u64,
    /// Samples per worker and step.
    pub batch: usize,
    pub workers: usize,
    /// Whose batches, below `workers`.
    pub worker: usize,
    /// The first steps, so many.
    pub steps: u64,
}

/// Writes to a safetensors file, whole or not at all, what `spec.worker` sees in its first steps: tensor `0/input`
/// is what the first step feeds as `input`, and so on. They are what [`crate::TrainConfig`] of the same
/// model, data, seed, batch and workers trains on.
///
/// # Errors
/// What makes no sense, and files that cannot be read or written.
pub fn write_batches(spec: &BatchesSpec, path: &Path) -> Result<(), ConfigError> {
    for (option, count) in [("--workers", spec.workers as u64), ("--steps", spec.steps)] {
        if count == 0 {
            return Err(ConfigError::Zero { option });
        }
    }
    if spec.worker >= spec.workers {
        let (range, found) = ("below --workers", spec.worker as f64);
        return Err(ConfigError::OutOfRange { option: "--worker", range, found });
    }
    let source: Source = spec.data.parse()?;
    let data = source.open(&spec.model.sample_shape(), spec.seed)?;
    spec.model.check(&data.shape())?;
    let mut batches = Batches::new(data, spec.workers, spec.batch, spec.seed)?;
    let mut fed: Vec<(String, Fed)> = Vec::new();
    for step in 0..spec.steps {
        let of_step = batches.feed(step, spec.worker);
        if step == 0 {
            // once as tensors, and once more as a file
            let bytes: u64 =
                of_step.iter().map(|fed| 4 * fed.dims.iter().product::<usize>() as u64).sum();
            let needed = bytes.saturating_mul(spec.steps).saturating_mul(2);
            let available = tensorwire_fabric::available_bytes();
            if needed > available {
                let (needed, available) = (human_bytes(needed), human_bytes(available));
                return Err(ConfigError::TooManyBatches { needed, available });
            }
        }
        fed.extend(of_step.into_iter().map(|fed| (format!("{step}/{}", fed.name), fed)));
    }
    let failed = |source| ConfigError::Save { path: PathBuf::from(path), source };
    let views: Result<Vec<_>, _> = fed
        .iter()
        .map(|(name, fed)| {
            let (dtype, bytes): (Dtype, &[u8]) = match &fed.values {
                FedValues::F32(values) => (Dtype::F32, bytemuck::cast_slice(values)),
                FedValues::I32(values) => (Dtype::I32, bytemuck::cast_slice(values)),
            };
            Ok((name, TensorView::new(dtype, fed.dims.clone(), bytes)?))
        })
        .collect();
    let image = views.and_then(|views| serialize(views, None));
    let image =
        image.map_err(|error: safetensors::SafeTensorError| failed(io::Error::other(error)))?;
    whole_file::write(path, |file| file.write_all(&image)).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> BatchesSpec {
        let (data, seed) = ("digits".to_string(), 1);
        BatchesSpec { model: Model::Cifar, data, seed, batch: 3, workers: 2, worker: 1, steps: 2 }
    }

    #[test]
    fn the_file_holds_what_the_worker_is_fed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("batches.safetensors");
        write_batches(&spec(), &path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut names = file.names();
        names.sort();
        assert_eq!(names, ["0/input", "0/labels", "1/input", "1/labels"]);
        let source: Source = "digits".parse().unwrap();
        let data = source.open(&Model::Cifar.sample_shape(), 1).unwrap();
        let fed = Batches::new(data, 2, 3, 1).unwrap().feed(1, 1);
        let input = file.tensor("1/input").unwrap();
        assert_eq!(input.shape(), [3, 8, 8, 1]);
        assert_eq!(input.data(), bytemuck::cast_slice::<f32, u8>(fed[0].f32s()));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let path = Path::new("/nonexistent/batches");
        let said = |spec: BatchesSpec| write_batches(&spec, path).unwrap_err().to_string();
        assert!(said(BatchesSpec { worker: 2, ..spec() }).contains("--worker"));
        assert!(said(BatchesSpec { steps: 0, ..spec() }).contains("--steps"));
        assert!(said(BatchesSpec { model: Model::Vgg16, ..spec() }).contains("224×224×3"));
        assert!(said(spec()).contains("/nonexistent/batches"));
    }
}
