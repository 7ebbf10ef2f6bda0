//! What a worker is fed, as a file: to give another framework the same batches, or to look at them.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, serialize};
use tensorwire_base::human_bytes;
use tensorwire_nn::{Batches, DType, HostBatch};

use crate::config::ConfigError;
use crate::job::Workload;
use crate::whole_file;

/// Which batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchesSpec {
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
/// is what the first step feeds as `input`, and so on. They are what a job of the same workload, seed, batch and workers
/// trains on.
///
/// # Errors
/// What makes no sense, and files that cannot be read or written.
pub fn write_batches(
    spec: &BatchesSpec,
    workload: &Workload,
    path: &Path,
) -> Result<(), ConfigError> {
    for (option, count) in [("--workers", spec.workers as u64), ("--steps", spec.steps)] {
        if count == 0 {
            return Err(ConfigError::Zero { option });
        }
    }
    if spec.worker >= spec.workers {
        let (range, found) = ("below --workers", spec.worker as f64);
        return Err(ConfigError::OutOfRange { option: "--worker", range, found });
    }
    let data = workload.data.train.clone();
    workload.model.check(&data.describe())?;
    let mut batches = Batches::new(data, spec.workers, spec.batch, spec.seed)?;
    let mut fed: Vec<(u64, HostBatch)> = Vec::new();
    for step in 0..spec.steps {
        let of_step = batches.batch(step, spec.worker)?;
        if step == 0 {
            // once as tensors, and once more as a file; fits: sizes in memory
            let needed = (of_step.bytes() as u64).saturating_mul(spec.steps).saturating_mul(2);
            let room = tensorwire_fabric::memory_room();
            if needed > room.bytes {
                let needed = human_bytes(needed);
                return Err(ConfigError::TooManyBatches { needed, room });
            }
        }
        fed.push((step, of_step));
    }
    let failed = |source| ConfigError::Save { path: PathBuf::from(path), source };
    let tensors = fed.iter().flat_map(|(step, batch)| {
        batch.tensors().iter().map(move |tensor| (format!("{step}/{}", tensor.name()), tensor))
    });
    let views: Result<Vec<_>, _> = tensors
        .map(|(name, tensor)| {
            let dtype = match tensor.spec().dtype {
                DType::F32 => Dtype::F32,
                DType::F64 => Dtype::F64,
                DType::BF16 => Dtype::BF16,
                DType::I32 => Dtype::I32,
                DType::I64 => Dtype::I64,
                DType::U8 => Dtype::U8,
            };
            let dims = tensor.spec().dims().to_vec();
            Ok((name, TensorView::new(dtype, dims, tensor.bytes())?))
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
    use tensorwire_zoo::data::Source;
    use tensorwire_zoo::{Cifar, Shipped, Vgg16};

    fn spec() -> BatchesSpec {
        BatchesSpec { seed: 1, batch: 3, workers: 2, worker: 1, steps: 2 }
    }

    fn digits(model: &'static dyn Shipped) -> Workload {
        let source: Source = "digits".parse().unwrap();
        Workload::new(model, source.open(model.samples(), 1).unwrap())
    }

    #[test]
    fn the_file_holds_what_the_worker_is_fed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("batches.safetensors");
        write_batches(&spec(), &digits(&Cifar), &path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut names = file.names();
        names.sort();
        assert_eq!(names, ["0/input", "0/labels", "1/input", "1/labels"]);
        let data = digits(&Cifar).data.train;
        let fed = Batches::new(data, 2, 3, 1).unwrap().batch(1, 1).unwrap();
        let input = file.tensor("1/input").unwrap();
        assert_eq!(input.shape(), [3, 8, 8, 1]);
        assert_eq!(input.data(), fed.get("input").unwrap().bytes());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = &folder.path().join("none/batches");
        let said = |spec: BatchesSpec, model: &'static dyn Shipped| {
            write_batches(&spec, &digits(model), path).unwrap_err().to_string()
        };
        assert!(said(BatchesSpec { worker: 2, ..spec() }, &Cifar).contains("--worker"));
        assert!(said(BatchesSpec { steps: 0, ..spec() }, &Cifar).contains("--steps"));
        assert!(said(spec(), &Vgg16).contains("224×224×3"));
        assert!(said(spec(), &Cifar).contains("none/batches"));
    }
}
