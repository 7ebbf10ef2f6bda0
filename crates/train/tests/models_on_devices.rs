//! Every shipped model's steps on the driver that stands in the place of a GPU's, beside the reference: losses, and all that was
//! learned. The models have all of their layers, and small shapes.
#![allow(clippy::unwrap_used)] // test code: what does not hold ends the test

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use tensorwire_nn::{self as nn, Batch, Data, Description, Method, Model, Outputs, Scope};
use tensorwire_testkit::program::itself;
use tensorwire_testkit::shim::cuda_shim;
use tensorwire_testkit::skip::skip;
use tensorwire_train::{
    Budget, CudaLibraries, DeviceChoice, FloatType, Kernels, Prepared, Strategy, TrainConfig,
    Workload, train_local,
};
use tensorwire_zoo::data::{SampleKind, Source};
use tensorwire_zoo::{Bert, Gpt, MODELS, Shipped, Vit, model};

/// Tells a process that its driver is the one for tests.
const CHILD: &str = "TENSORWIRE_MODELS_ON_DEVICES";
const RATE: f64 = 1e-3;
/// Of the change of a parameter, the share that another order of its sums may make of its largest element.
const NEAR: f64 = 2e-3;
/// Of a loss.
const NEAR_LOSS: f64 = 1e-4;

const RECURRENT: [&str; 6] = ["mlp", "fcn5", "lstm", "gru", "seq2seq", "sentence-embedding"];
const CONVOLUTIONS: [&str; 3] = ["cifar", "alexnet", "vgg16"];
const NORMALISED: [&str; 2] = ["resnet50", "inception-v3"];
const TRANSFORMERS: [&str; 4] = ["gpt-mini", "gpt2-small", "bert-mini", "vit-small"];

/// Fifty layers that are normalised over a batch make a rounding of f32 a thousand times larger, whoever computes.
fn dtype(name: &str) -> FloatType {
    if NORMALISED.contains(&name) { FloatType::F64 } else { FloatType::F32 }
}

/// A network whose convolutions, and fully connected layers with a ReLU, have a sixteenth of their outputs.
struct Narrow(&'static dyn Shipped);

impl Model for Narrow {
    fn name(&self) -> String {
        self.0.name()
    }

    fn check(&self, data: &Description) -> nn::Result<()> {
        self.0.check(data)
    }

    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> nn::Result<Outputs> {
        s.divide_widths(16);
        self.0.forward(s, batch)
    }
}

/// The model of this name at a size that is soon computed, and the kind of its samples.
fn small(name: &str) -> (Arc<dyn Model>, SampleKind) {
    let shipped = model(name).unwrap();
    let of = |kind| -> (Arc<dyn Model>, SampleKind) { (Arc::new(Narrow(shipped)), kind) };
    match (name, shipped.samples()) {
        ("mlp" | "fcn5", _) => of(SampleKind::Images { dims: [4, 4, 1], classes: 5 }),
        ("cifar", _) => of(SampleKind::Images { dims: [8, 8, 3], classes: 5 }),
        ("gpt-mini", _) => {
            let small = Gpt { heads: 2, width: 16, ..Gpt::MINI };
            (Arc::new(small), SampleKind::Tokens { vocabulary: 11, length: 8 })
        }
        ("gpt2-small", _) => {
            let vocabulary = Some(23);
            let small = Gpt { heads: 2, width: 16, vocabulary, ..Gpt::SMALL };
            (Arc::new(small), SampleKind::Tokens { vocabulary: 11, length: 8 })
        }
        ("bert-mini", _) => {
            let small = Bert { heads: 2, width: 16, ..Bert::MINI };
            (Arc::new(small), SampleKind::Masked { vocabulary: 40, length: 16 })
        }
        ("vit-small", kind) => {
            let small = Vit { heads: 2, width: 16, patch: 56, ..Vit::SMALL };
            (Arc::new(small), kind)
        }
        (_, SampleKind::Sequences { .. }) => {
            of(SampleKind::Sequences { steps: 2, features: 8, classes: 5 })
        }
        (_, SampleKind::Sentences { .. }) => of(SampleKind::Sentences { words: 60, classes: 4 }),
        (_, kind) => of(kind),
    }
}

/// What a job of one process came to.
struct Learned {
    losses: [f64; 2],
    weights: BTreeMap<String, Vec<f64>>,
}

fn learned(name: &str, change: impl FnOnce(&mut TrainConfig)) -> Learned {
    let (model, kind) = small(name);
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("weights.safetensors");
    let mut config = TrainConfig {
        strategy: Strategy::Local,
        workers: 1,
        batch: 2,
        budget: Budget::Steps(2),
        optimizer: Method::Sgd.at(RATE),
        dtype: dtype(name),
        threads: Some(1),
        kernels: Kernels::Reference,
        save: Some(saved.clone()),
        ..TrainConfig::default()
    };
    change(&mut config);
    let source: Source = "synthetic:16".parse().unwrap();
    let data: Data = source.open(kind, 1).unwrap();
    let prepared = Prepared::new(config, &Workload::new(model, data)).unwrap();
    let never = AtomicBool::new(false);
    let report = train_local(&prepared, &never, &mut |_| {}, &|_| {}).unwrap();
    let losses = [report.final_loss, report.test_loss].map(Option::unwrap);
    Learned { losses, weights: read(&saved) }
}

fn read(path: &Path) -> BTreeMap<String, Vec<f64>> {
    let file = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let tensors = tensors.tensors().into_iter();
    let numbers = |tensor: &TensorView<'_>| -> Vec<f64> {
        let narrow = |four: &[u8]| f64::from(f32::from_le_bytes(four.try_into().unwrap()));
        let wide = |eight: &[u8]| f64::from_le_bytes(eight.try_into().unwrap());
        match tensor.dtype() {
            Dtype::F64 => tensor.data().chunks_exact(8).map(wide).collect(),
            _ => tensor.data().chunks_exact(4).map(narrow).collect(),
        }
    };
    tensors.map(|(name, tensor)| (name, numbers(&tensor))).collect()
}

fn largest(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.fold(0.0, |most, number| most.max(number.abs()))
}

/// Holds a model's steps on the device against the reference's; what differs, in words.
fn same_steps(name: &str) -> Result<(), String> {
    let expected = learned(name, |_| {});
    // at a rate that changes no bit
    let first = learned(name, |config| {
        config.kernels = Kernels::Cpu;
        config.optimizer = Method::Sgd.at(1e-30);
        config.budget = Budget::Steps(1);
    });
    let found = learned(name, |config| {
        config.device = DeviceChoice::Cuda { ordinal: None };
        config.cuda_driver = tensorwire_fakecuda::library();
        config.cuda_libraries = CudaLibraries::Unused;
    });
    let losses = found.losses.into_iter().zip(expected.losses);
    for (of, (found, expected)) in ["the last step", "the test"].iter().zip(losses) {
        if (found - expected).abs() > NEAR_LOSS * expected.abs() {
            return Err(format!("{name}: {of} has a loss of {found}, not {expected}"));
        }
    }
    assert_eq!(found.weights.len(), expected.weights.len(), "{name}");
    let change = |weight: &str| {
        let both = expected.weights[weight].iter().zip(&first.weights[weight]);
        largest(both.map(|(a, b)| a - b))
    };
    let most = expected.weights.keys().map(|weight| change(weight)).fold(0.0, f64::max);
    assert!(most > 0.0, "{name} learns nothing");
    let epsilon = match dtype(name) {
        FloatType::F64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    };
    let (mut worst, mut of_worst) = (0.0, "");
    for (weight, expected) in &expected.weights {
        let found = &found.weights[weight];
        assert_eq!(found.len(), expected.len(), "{name}: {weight}");
        let apart = largest(found.iter().zip(expected).map(|(a, b)| a - b));
        // what the numbers themselves are rounded to counts as well
        let rounding = epsilon * largest(expected.iter().copied());
        // a key's bias moves by what is rounded alone
        let share = (apart - 4.0 * rounding).max(0.0) / change(weight).max(1e-3 * most);
        if share > worst {
            (worst, of_worst) = (share, weight);
        }
    }
    let said = format!("{name}: {worst:.1e} of a change apart in '{of_worst}'");
    if worst <= NEAR { Ok(()) } else { Err(said) }
}

/// Has the calling test check these in a process whose driver is that for tests.
fn all_of(test: &str, names: &[&str]) {
    if std::env::var_os(CHILD).is_some() {
        let wrong: Vec<String> = names.iter().filter_map(|name| same_steps(name).err()).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        return;
    }
    let kernels = match cuda_shim() {
        Ok(kernels) => kernels,
        Err(reason) => return skip(None, &reason),
    };
    let mut command = Command::new(itself());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(CHILD, "1").env("FAKE_CUDA_KERNELS", kernels);
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn perceptrons_and_recurrent_models_step_as_the_reference_does() {
    all_of("perceptrons_and_recurrent_models_step_as_the_reference_does", &RECURRENT);
}

#[test]
fn convolutions_step_as_the_reference_does() {
    all_of("convolutions_step_as_the_reference_does", &CONVOLUTIONS);
}

#[test]
fn normalised_convolutions_step_as_the_reference_does() {
    all_of("normalised_convolutions_step_as_the_reference_does", &NORMALISED);
}

#[test]
fn transformers_step_as_the_reference_does() {
    all_of("transformers_step_as_the_reference_does", &TRANSFORMERS);
}

#[test]
fn no_shipped_model_is_left_out() {
    let mut tried = [&RECURRENT[..], &CONVOLUTIONS, &NORMALISED, &TRANSFORMERS].concat();
    let mut shipped = MODELS.map(|model| model.name());
    tried.sort_unstable();
    shipped.sort_unstable();
    assert_eq!(tried, shipped);
}
