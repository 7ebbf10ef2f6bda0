//! Weights in safetensors files and in checkpoints: read, compared with the model, written whole or not at all.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use half::bf16;
use safetensors::tensor::{Metadata, TensorView};
use safetensors::{Dtype, SafeTensors};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tensorwire_graph::Init;
use tensorwire_memory::{TensorError, TensorMut};
use tensorwire_nn::{Variable, initialise};
use tensorwire_tensor::{DType, TensorSpec};

use crate::checkpoint::{CheckpointError, CheckpointFolder, FoundCheckpoint};
use crate::config::FloatType;
use crate::origin::WeightsOrigin;
use crate::whole_file;

/// Of the length of a header, before it; headers are multiples of it, so that tensors are aligned.
const LENGTH_BYTES: usize = 8;
/// Differences between a file and a model that are named.
const NAMED_MAX: usize = 5;
/// How files of PyTorch begin.
const TORCH_SAVE: [(&[u8], &str); 2] = [(b"PK\x03\x04", "a zip file"), (b"\x80\x02", "a pickle")];
/// How often a checkpoint is chosen whose job removes what is read.
const CHOICES_MAX: usize = 20;

/// Why weights cannot be loaded or saved.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    #[error(
        "cannot read weights from {path}: {source}; give a file that --save wrote, or a folder of checkpoints"
    )]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is no safetensors file ({reason}); give a file that --save wrote")]
    Foreign { path: PathBuf, reason: String },
    #[error(
        "{path} is {what} of torch.save, and no safetensors file; write one in Python: \
         safetensors.torch.save_file(torch.load(\"{path}\", weights_only=True), \"weights.safetensors\")"
    )]
    TorchSave { path: PathBuf, what: &'static str },
    #[error(
        "{path} holds the model's weights under names that begin with '{prefix}', as of a larger module; save those of the module \
         inside (in Python: model.{module}.state_dict()), or take '{prefix}' off their names"
    )]
    Prefixed { path: PathBuf, prefix: String, module: String },
    #[error(
        "{path} holds other weights than the model: {differences}; load a file that this model saved, with the data that it was trained on"
    )]
    OtherModel { path: PathBuf, differences: String },
    #[error("{path} was trained on other classes than those of {data}: {difference}; {mend}")]
    OtherClasses { path: PathBuf, data: String, difference: String, mend: &'static str },
    #[error("{path} holds the model's weights as {found}; give --dtype {found}")]
    OtherType { path: PathBuf, found: String },
    #[error("{path} holds the model's weights as {found}; save them as f32, f64 or bf16")]
    NoType { path: PathBuf, found: String },
    #[error(
        "{path}: '{tensor}' holds {value}, as after training that diverged; load an earlier checkpoint"
    )]
    NotFinite { path: PathBuf, tensor: String, value: f64 },
    #[error("cannot write weights to {path}: {source}; free space there or save elsewhere")]
    Write { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Checkpoint(Box<CheckpointError>),
}

/// What `--load` names, once it is known which checkpoint it is: of a folder the newest that is whole. It holds the weights of a
/// model with these variables. One that its job removes meanwhile is passed over for a newer one.
///
/// # Errors
/// When no checkpoint there is whole, or it is of another model.
pub(crate) fn chosen<'a>(
    path: &Path,
    variables: impl Iterator<Item = &'a Variable>,
) -> Result<PathBuf, WeightsError> {
    let variables: Vec<&Variable> = variables.collect();
    let mut choices = 1;
    loop {
        let chosen = match path.is_dir() {
            true => CheckpointFolder::new(path).newest_whole().map_err(of_checkpoint)?.0.path,
            false => path.to_path_buf(),
        };
        match Weights::open(&chosen, variables.iter().copied()) {
            Err(error) if error.is_gone() && chosen != path && choices < CHOICES_MAX => {
                choices += 1
            }
            opened => return opened?.check_finite(&variables).map(|()| chosen),
        }
    }
}

fn of_checkpoint(error: CheckpointError) -> WeightsError {
    WeightsError::Checkpoint(Box::new(error))
}

/// The bytes of a file of weights, or of the one that a checkpoint would be converted to.
fn read(path: &Path) -> Result<Vec<u8>, WeightsError> {
    if path.is_dir() {
        let found = CheckpointFolder::new(path).newest_whole().map_err(of_checkpoint)?.0;
        return found.weights().map(|(_, image)| image).map_err(of_checkpoint);
    }
    std::fs::read(path).map_err(|source| {
        let path = path.to_path_buf();
        match source.kind() == io::ErrorKind::NotFound && FoundCheckpoint::at(&path).is_ok() {
            true => of_checkpoint(CheckpointError::Gone { path }),
            false => WeightsError::Read { path, source },
        }
    })
}

impl WeightsError {
    /// True if a checkpoint's job has removed it.
    fn is_gone(&self) -> bool {
        match self {
            WeightsError::Checkpoint(error) => matches!(**error, CheckpointError::Gone { .. }),
            _ => false,
        }
    }
}

/// A weights file whose tensors are those of a model.
#[derive(Debug)]
pub(crate) struct Weights {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Weights {
    /// Reads a file, or a checkpoint, and compares it with `variables`; the error names every difference (at most 5).
    pub(crate) fn open<'a>(
        path: &Path,
        variables: impl Iterator<Item = &'a Variable>,
    ) -> Result<Weights, WeightsError> {
        let weights = Weights { path: path.to_path_buf(), bytes: read(path)? };
        let file = weights.parse()?;
        let mut differences = Vec::new();
        let variables: Vec<&Variable> = variables.collect();
        for Variable { name, spec, .. } in &variables {
            match file.tensor(name) {
                Err(_) => differences.push(format!("'{name}' is missing")),
                Ok(found) if !same(&found, spec) => {
                    let (dtype, shape) = (found.dtype(), found.shape());
                    differences.push(format!("'{name}' is {dtype:?}{shape:?}, not {spec}"));
                }
                Ok(_) => {}
            }
        }
        for name in file.names() {
            if !variables.iter().any(|variable| variable.name == name) {
                differences.push(format!("'{name}' is unknown"));
            }
        }
        if differences.is_empty() {
            return Ok(weights);
        }
        if let Some(found) = other_type(&file, &variables) {
            let path = weights.path;
            let floats = [FloatType::F32, FloatType::F64, FloatType::Bf16];
            return Err(match floats.iter().any(|float| float.name() == found) {
                true => WeightsError::OtherType { path, found },
                false => WeightsError::NoType { path, found },
            });
        }
        if let Some(prefix) = common_prefix(&file, &variables) {
            let module = prefix.trim_end_matches('.').to_string();
            return Err(WeightsError::Prefixed { path: weights.path, prefix, module });
        }
        let differences = listed(differences);
        Err(WeightsError::OtherModel { path: weights.path, differences })
    }

    /// Refuses weights of which one is no finite number.
    fn check_finite(&self, variables: &[&Variable]) -> Result<(), WeightsError> {
        let file = self.parse()?;
        for Variable { name, spec, .. } in variables {
            let bytes = file.tensor(name).map_err(|error| self.foreign(error))?;
            if let Some(value) = not_finite(spec.dtype, bytes.data()) {
                let (path, tensor) = (self.path.clone(), name.clone());
                return Err(WeightsError::NotFinite { path, tensor, value });
            }
        }
        Ok(())
    }

    /// The bytes of a tensor that `open` found to be there.
    pub(crate) fn tensor(&self, name: &str) -> Result<&[u8], WeightsError> {
        let file = self.parse()?;
        let tensor = file.tensor(name).map_err(|error| self.foreign(error))?;
        Ok(tensor.data())
    }

    fn parse(&self) -> Result<SafeTensors<'_>, WeightsError> {
        SafeTensors::deserialize(&self.bytes).map_err(|error| self.foreign(error))
    }

    fn foreign(&self, error: safetensors::SafeTensorError) -> WeightsError {
        let what = TORCH_SAVE.iter().find(|(begins, _)| self.bytes.starts_with(begins));
        if let Some((_, what)) = what {
            return WeightsError::TorchSave { path: self.path.clone(), what };
        }
        WeightsError::Foreign { path: self.path.clone(), reason: error.to_string() }
    }
}

/// The first of these numbers that is not finite. Integers all are.
fn not_finite(dtype: DType, bytes: &[u8]) -> Option<f64> {
    fn first<const BYTES: usize>(bytes: &[u8], number: fn([u8; BYTES]) -> f64) -> Option<f64> {
        bytes.as_chunks().0.iter().map(|bytes| number(*bytes)).find(|number| !number.is_finite())
    }
    match dtype {
        DType::F32 => first(bytes, |bytes| f32::from_le_bytes(bytes).into()),
        DType::F64 => first(bytes, f64::from_le_bytes),
        DType::BF16 => first(bytes, |bytes| bf16::from_le_bytes(bytes).into()),
        DType::I32 | DType::I64 | DType::U8 => None,
    }
}

/// Differences in one line: the first few, and how many more there are.
pub(crate) fn listed(mut differences: Vec<String>) -> String {
    let more = differences.len().saturating_sub(NAMED_MAX);
    differences.truncate(NAMED_MAX);
    let tail = if more > 0 { format!(", and {more} more") } else { String::new() };
    format!("{}{tail}", differences.join(", "))
}

/// What stands before the names of all the model's variables in a file, as in `transformer.wte.weight`.
fn common_prefix(file: &SafeTensors<'_>, variables: &[&Variable]) -> Option<String> {
    let first = &variables.first()?.name;
    let mut names = file.names().into_iter();
    let prefixes = names.by_ref().filter_map(|name| name.strip_suffix(first.as_str()));
    let is_of_all = |prefix: &&str| {
        let is_there = |variable: &&Variable| {
            let found = file.tensor(&format!("{prefix}{}", variable.name));
            found.is_ok_and(|found| found.shape() == variable.spec.dims())
        };
        prefix.ends_with('.') && variables.iter().all(is_there)
    };
    prefixes.filter(is_of_all).min_by_key(|prefix| prefix.len()).map(str::to_string)
}

/// The type of all the file's tensors, if they are the model's but for that.
fn other_type(file: &SafeTensors<'_>, variables: &[&Variable]) -> Option<String> {
    let dtype = file.tensor(&variables.first()?.name).ok()?.dtype();
    let is_alike = |variable: &&Variable| {
        let found = file.tensor(&variable.name);
        found.is_ok_and(|found| found.dtype() == dtype && found.shape() == variable.spec.dims())
    };
    let alike = variables.iter().all(is_alike) && file.len() == variables.len();
    alike.then(|| format!("{dtype:?}").to_lowercase())
}

fn same(found: &TensorView<'_>, spec: &TensorSpec) -> bool {
    found.dtype() == dtype(spec.dtype) && found.shape() == spec.dims()
}

pub(crate) fn dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
        DType::BF16 => Dtype::BF16,
    }
}

/// Fills a variable, or a piece of it from its element `first` on, as `init` says; what is no number of a model, such as a count of steps, with zeros.
pub(crate) fn first_values(
    name: &str,
    init: Init,
    seed: u64,
    first: usize,
    mut tensor: TensorMut<'_>,
) -> Result<(), TensorError> {
    let drawn = |count: usize| {
        let mut values = vec![0.0f32; count];
        initialise(name, init, seed, first, &mut values);
        values
    };
    match tensor.dtype() {
        DType::F32 => initialise(name, init, seed, first, tensor.elements()?),
        DType::F64 => {
            let values: &mut [f64] = tensor.elements()?;
            let drawn = drawn(values.len());
            values.iter_mut().zip(drawn).for_each(|(value, drawn)| *value = drawn.into());
        }
        DType::BF16 => {
            let values: &mut [bf16] = tensor.elements()?;
            let drawn = drawn(values.len());
            values.iter_mut().zip(drawn).for_each(|(value, drawn)| *value = bf16::from_f32(drawn));
        }
        DType::I64 => tensor.elements::<i64>()?.fill(0),
        DType::I32 => tensor.elements::<i32>()?.fill(0),
        DType::U8 => tensor.elements::<u8>()?.fill(0),
    }
    Ok(())
}

/// SHA-256 over all weights: for each variable in order of declaration its name, spec and bytes.
pub(crate) fn sha256<'a>(weights: impl Iterator<Item = (&'a Variable, &'a [u8])>) -> String {
    let mut hash = Sha256::new();
    for (variable, bytes) in weights {
        hash.update(variable.name.as_bytes());
        hash.update(variable.spec.to_string().as_bytes());
        hash.update(bytes);
    }
    hex::encode(hash.finalize())
}

/// The header of a file of weights.
#[derive(Serialize)]
struct Header<'a> {
    #[serde(rename = "__metadata__")]
    metadata: BTreeMap<&'static str, String>,
    #[serde(flatten)]
    tensors: &'a Metadata,
}

/// Writes weights to `path`, whole or not at all.
pub(crate) fn save<'a>(
    path: &Path,
    weights: impl Iterator<Item = (&'a Variable, &'a [u8])>,
    origin: &WeightsOrigin,
) -> Result<(), WeightsError> {
    let tensors = weights.map(|(variable, bytes)| {
        let spec = &variable.spec;
        (variable.name.as_str(), dtype(spec.dtype), spec.dims(), bytes)
    });
    save_image(path, &image(path, tensors)?, origin)
}

/// Returns the bytes of a file of tensors with their names, types and dimensions. `path` is how an error calls it.
pub(crate) fn image<'a>(
    path: &Path,
    tensors: impl Iterator<Item = (&'a str, Dtype, &'a [usize], &'a [u8])>,
) -> Result<Vec<u8>, WeightsError> {
    let write = |source| WeightsError::Write { path: path.to_path_buf(), source };
    let mut views = Vec::new();
    for (name, dtype, dims, bytes) in tensors {
        let view = TensorView::new(dtype, dims.to_vec(), bytes);
        views.push((name, view.map_err(io::Error::other).map_err(write)?));
    }
    safetensors::serialize(views, None).map_err(io::Error::other).map_err(write)
}

/// Writes such bytes to `path`, whole or not at all, with where they come from in the header. The format's own library would have
/// those entries in another order each time: equal weights have equal files.
pub(crate) fn save_image(
    path: &Path,
    image: &[u8],
    origin: &WeightsOrigin,
) -> Result<(), WeightsError> {
    let written = header(image, origin).and_then(|(header, numbers)| {
        whole_file::write(path, |file| {
            // fits: usize is 64 bits wide
            file.write_all(&(header.len() as u64).to_le_bytes())?;
            file.write_all(&header)?;
            file.write_all(numbers)
        })
    });
    written.map_err(|source| WeightsError::Write { path: path.to_path_buf(), source })
}

/// The header of a file of these tensors that says where they come from, and their numbers.
fn header<'a>(image: &'a [u8], origin: &WeightsOrigin) -> io::Result<(Vec<u8>, &'a [u8])> {
    let (length, tensors) = SafeTensors::read_metadata(image).map_err(io::Error::other)?;
    let header = Header { metadata: origin.entries(), tensors: &tensors };
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(LENGTH_BYTES), b' ');
    Ok((header, &image[LENGTH_BYTES + length..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TrainConfig;

    fn variable(name: &str, dims: &[usize]) -> Variable {
        let spec = TensorSpec::new(DType::F32, dims).unwrap();
        Variable { name: name.to_string(), spec, init: Init::Zeros }
    }

    fn origin(config: &TrainConfig) -> WeightsOrigin {
        WeightsOrigin::here(config, 7, None)
    }

    fn saved(folder: &Path) -> (PathBuf, Vec<Variable>) {
        let path = folder.join("weights.safetensors");
        let variables = vec![variable("a/weight", &[2, 1]), variable("b", &[3])];
        let bytes: [&[u8]; 2] = [&[1; 8], &[2; 12]];
        save(&path, variables.iter().zip(bytes), &origin(&TrainConfig::default())).unwrap();
        (path, variables)
    }

    #[test]
    fn what_is_saved_is_loaded_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let (path, variables) = saved(folder.path());
        let weights = Weights::open(&path, variables.iter()).unwrap();
        assert_eq!(weights.tensor("a/weight").unwrap(), [1; 8]);
        assert_eq!(weights.tensor("b").unwrap(), [2; 12]);
        saved(folder.path());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "replaced in place");
    }

    #[test]
    fn a_file_says_where_it_comes_from_and_one_that_does_not_is_read_alike() {
        let folder = tempfile::tempdir().unwrap();
        let (path, variables) = saved(folder.path());
        let image = std::fs::read(&path).unwrap();
        let (length, header) = SafeTensors::read_metadata(&image).unwrap();
        let entries = header.metadata().clone().unwrap();
        for (name, value) in [
            ("tensorwire", env!("CARGO_PKG_VERSION")),
            ("model", "mlp"),
            ("data", "digits"),
            ("strategy", "ps"),
            ("seed", "1"),
            ("steps", "7"),
        ] {
            assert_eq!(entries.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert_eq!((entries.len(), length % LENGTH_BYTES), (6, 0));
        saved(folder.path());
        assert_eq!(std::fs::read(&path).unwrap(), image, "the same bytes each time");

        // the hash is of the weights alone
        let hash = |path: &Path| {
            let weights = Weights::open(path, variables.iter()).unwrap();
            sha256(variables.iter().map(|it| (it, weights.tensor(&it.name).unwrap())))
        };
        let file = SafeTensors::deserialize(&image).unwrap();
        let without = folder.path().join("without.safetensors");
        std::fs::write(&without, safetensors::serialize(file.tensors(), None).unwrap()).unwrap();
        assert_eq!(hash(&without), hash(&path));
    }

    #[test]
    fn another_models_file_is_told_apart_by_name_and_shape() {
        let folder = tempfile::tempdir().unwrap();
        let (path, _) = saved(folder.path());
        let wanted = [variable("a/weight", &[1, 2]), variable("c", &[3])];
        let text = Weights::open(&path, wanted.iter()).unwrap_err().to_string();
        for part in ["'a/weight' is F32[2, 1], not f32[1×2]", "'c' is missing", "'b' is unknown"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn the_models_own_weights_of_another_type_say_which() {
        let folder = tempfile::tempdir().unwrap();
        let (path, mut variables) = saved(folder.path());
        for variable in &mut variables {
            variable.spec = TensorSpec::new(DType::BF16, variable.spec.dims()).unwrap();
        }
        let text = Weights::open(&path, variables.iter()).unwrap_err().to_string();
        assert!(text.ends_with("give --dtype f32"), "{text}");

        // of one that no job computes with
        let bytes = [0; 64];
        let half = |variable: &Variable| {
            let dims = variable.spec.dims().to_vec();
            let bytes = &bytes[..2 * variable.spec.elements()];
            (variable.name.clone(), TensorView::new(Dtype::F16, dims, bytes).unwrap())
        };
        let image = safetensors::serialize(variables.iter().map(half), None).unwrap();
        std::fs::write(&path, image).unwrap();
        let text = Weights::open(&path, variables.iter()).unwrap_err().to_string();
        assert!(text.ends_with("as f16; save them as f32, f64 or bf16"), "{text}");
    }

    #[test]
    fn a_checkpoint_that_went_is_called_so_and_not_a_file_that_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let (path, variables) = saved(folder.path());
        let open = |path: &Path| Weights::open(path, variables.iter()).unwrap_err();
        assert!(open(&folder.path().join("step-00000005")).is_gone());
        assert!(!open(&folder.path().join("none")).is_gone());
        assert_eq!(chosen(&path, variables.iter()).unwrap(), path);
    }

    #[test]
    fn the_first_tensor_that_holds_no_number_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (path, variables) = saved(folder.path());
        let of = |value: f32| [1.0, 2.0, value].map(f32::to_le_bytes).concat();
        for (value, says) in [(f32::NAN, "'b' holds NaN"), (f32::NEG_INFINITY, "'b' holds -inf")] {
            let bytes = [vec![1; 8], of(value)];
            let bytes = bytes.iter().map(Vec::as_slice);
            save(&path, variables.iter().zip(bytes), &origin(&TrainConfig::default())).unwrap();
            let text = chosen(&path, variables.iter()).unwrap_err().to_string();
            assert!(text.contains(says), "{text}");
        }
        assert!(not_finite(DType::F64, &f64::NAN.to_le_bytes()).is_some());
        assert!(not_finite(DType::BF16, &bf16::INFINITY.to_le_bytes()).is_some());
        assert!(not_finite(DType::I32, &[255; 4]).is_none());
    }

    #[test]
    fn what_pytorch_wrote_says_how_it_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let (path, variables) = saved(folder.path());
        let open = || Weights::open(&path, variables.iter()).unwrap_err().to_string();
        let named: Vec<Variable> = variables
            .iter()
            .map(|v| Variable { name: format!("transformer.{}", v.name), ..v.clone() })
            .chain([variable("lm_head.weight", &[1])])
            .collect();
        let bytes: [&[u8]; 3] = [&[1; 8], &[2; 12], &[3; 4]];
        save(&path, named.iter().zip(bytes), &origin(&TrainConfig::default())).unwrap();
        let text = open();
        assert!(text.contains("begin with 'transformer.'"), "{text}");
        assert!(text.contains("model.transformer.state_dict()"), "{text}");
        for (image, what) in [(&b"PK\x03\x04rest"[..], "a zip file"), (b"\x80\x02}q", "a pickle")] {
            std::fs::write(&path, image).unwrap();
            let text = open();
            assert!(text.contains(&format!("is {what} of torch.save")), "{text}");
            assert!(text.contains("save_file"), "{text}");
        }
    }

    #[test]
    fn torn_and_foreign_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (path, variables) = saved(folder.path());
        let whole = std::fs::read(&path).unwrap();
        for torn in [&whole[..whole.len() - 1], &whole[..4], b"", b"GIF89a something else"] {
            std::fs::write(&path, torn).unwrap();
            let error = Weights::open(&path, variables.iter()).unwrap_err();
            assert!(matches!(error, WeightsError::Foreign { .. }), "{error}");
        }
        let missing = Weights::open(&folder.path().join("none"), variables.iter()).unwrap_err();
        assert!(matches!(missing, WeightsError::Read { .. }));
    }

    #[test]
    fn the_hash_sees_names_shapes_and_bytes() {
        let a = variable("a", &[2]);
        let hash = |v: &Variable, bytes: &[u8]| sha256([(v, bytes)].into_iter());
        assert_ne!(hash(&a, &[0; 8]), hash(&a, &[1; 8]));
        assert_ne!(hash(&a, &[0; 8]), hash(&variable("b", &[2]), &[0; 8]));
        assert_ne!(hash(&a, &[0; 8]), hash(&variable("a", &[1, 2]), &[0; 8]));
        assert_eq!(hash(&a, &[0; 8]), hash(&a, &[0; 8]));
    }
}
