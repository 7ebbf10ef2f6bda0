//! Layers that are made of others: what they compute, and whose parameters they have.

use tensorwire_nn::{
    Batch, DType, Data, Description, Init, LocalNorm, Mode, Model, Norm, Optimizer, Outputs,
    Padding, Program, ProgramSpec, Result, Scope,
};

use crate::local::{Local, Table, spec};

/// A recurrent layer over sequences of two numbers, whose last state is the loss.
struct Recurrent;

impl Model for Recurrent {
    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        let x = batch.input("input")?;
        let made = s.rnn("rnn", x, 1)?;
        let last = s.reshape("last", made.last, &[batch.size()])?;
        // the first state of each sequence
        let first = s.slice("first", made.all, 1, 0..1)?;
        let first = s.reshape("first/flat", first, &[batch.size()])?;
        Ok(Outputs::loss(last).metric("first", first))
    }
}

#[test]
fn a_recurrent_layer_goes_through_each_sample_by_itself() {
    let x = [0.5, -1.0, 2.0, 0.25, 1.5, 1.0];
    let table = Table::labelled(&[3, 1], &x, &[0, 0], 1);
    let data = Data::from((table.clone(), table));
    let mut job = Local::new(&Recurrent, &data.train.describe(), &spec(2)).unwrap();
    let weight = |name: &str| f64::from(job.variable(&format!("rnn/hidden/{name}"))[0]);
    let (input, recurrent, bias) = (weight("input"), weight("recurrent"), weight("bias"));
    let states = |x: &[f32]| -> Vec<f64> {
        let step = |h: &mut f64, x: &f32| {
            *h = (input * f64::from(*x) + recurrent * *h + bias).tanh();
            Some(*h)
        };
        x.iter().scan(0.0, step).collect()
    };
    let both = [states(&x[..3]), states(&x[3..])];
    let mean = |at: usize| (both[0][at] + both[1][at]) / 2.0;
    for (metric, at) in [("loss", 2), ("first", 0)] {
        let found = job.measure(&data, metric).unwrap();
        assert!((found - mean(at)).abs() < 1e-6, "{metric}: {found} for {}", mean(at));
    }
}

/// One layer, used for both halves of its input.
struct Twins {
    shared: bool,
}

impl Model for Twins {
    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        let x = batch.input("x")?;
        let [a, b] = [(0..1, "a"), (1..2, "b")].map(|(range, name)| {
            let half = s.slice(name, x, 1, range)?;
            let layer = if self.shared { "w" } else { name };
            s.shared(name, |s| s.linear(layer, half, 1))
        });
        let sum = s.add("sum", a?, b?)?;
        Ok(Outputs::loss(s.squared_error("error", sum, batch.input("y")?)?))
    }
}

#[test]
fn layers_that_are_used_twice_have_their_parameters_once() {
    let table = Table::xy(2, &[1.0, 2.0], &[0.0]);
    let data = Data::from(table);
    let of = |shared| Local::new(&Twins { shared }, &data.train.describe(), &spec(1)).unwrap();
    let names = |job: &Local| -> Vec<String> {
        job.program.variables.iter().map(|variable| variable.name.clone()).collect()
    };
    assert_eq!(names(&of(false)), ["a/weight", "a/bias", "b/weight", "b/bias"]);
    let mut job = of(true);
    assert_eq!(names(&job), ["w/weight", "w/bias"]);
    // y = w·(1 + 2) + 2b, so that dL/dw = 2y·3 and dL/db = 2y·2
    let before = f64::from(job.variable("w/weight")[0]);
    let y = 3.0 * before;
    assert!((job.train(&data, 1).unwrap()[0] - y * y).abs() < 1e-5);
    let after = [job.variable("w/weight")[0], job.variable("w/bias")[0]].map(f64::from);
    assert!((after[0] - (before - 0.1 * 6.0 * y)).abs() < 1e-5, "{after:?} from {before}");
    assert!((after[1] + 0.1 * 4.0 * y).abs() < 1e-5, "{after:?} from {before}");
}

/// Every layer for images, and more.
struct Everything;

impl Model for Everything {
    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        let x = batch.input("input")?;
        let y = s.conv_relu("conv1", x, 4, 3, 1, Padding::Same)?;
        let y = s.local_response_norm("norm1", y, LocalNorm::default())?;
        let y = s.max_pool("pool1", y, 2, 2, Padding::Valid)?;
        let y = s.conv2d("conv2", y, 6, [1, 3], 1, Padding::Of([0, 1]))?;
        let y = s.batch_norm("conv2", y, Norm::default())?;
        let y = s.avg_pool("pool2", y, 2, 1, Padding::Valid)?;
        let pooled = s.global_avg_pool("pool3", y)?;
        let a = s.linear("a", pooled, 5)?;
        let a = s.sigmoid("a", a)?;
        let b = s.linear("b", pooled, 5)?;
        let b = s.tanh("b", b)?;
        let y = s.mul("ab", a, b)?;
        let y = s.concat("both", 1, &[y, a])?;
        let y = s.dropout("both", y, 0.5)?;
        let gate = s.constant("gate", 2.0, &[batch.size(), 10])?;
        let y = s.div("gated", y, gate)?;
        let y = s.softmax("gated", y)?;
        let y = s.scale("scaled", y, 3.0)?;
        let logits = s.linear_relu("output", y, batch.classes()?)?;
        let spread = s.reduce_max("spread", logits, 1)?;
        let sum = s.reduce_sum("sum", logits, 1)?;
        Ok(Outputs::classification(logits, batch.labels()?)
            .metric("largest", spread)
            .metric("sum", sum)
            .training_loss(sum, 1e-3))
    }
}

fn images() -> Data {
    let x: Vec<f32> = (0..4 * 36).map(|i| (i * 7 % 11) as f32 / 11.0).collect();
    let table = Table::labelled(&[6, 6, 1], &x, &[0, 1, 2, 0], 3);
    Data::from((table.clone(), table))
}

#[test]
fn all_layers_together_learn() {
    let data = images();
    for optimizer in [
        Optimizer::sgd(0.1),
        Optimizer::momentum(0.02),
        Optimizer::adagrad(0.05),
        Optimizer::adam(0.01),
    ] {
        let spec = ProgramSpec { optimizer, ..spec(4) };
        let mut job = Local::new(&Everything, &data.train.describe(), &spec).unwrap();
        assert!(job.program.convolves() && job.program.replicas[0].step.is_some());
        let names: Vec<&str> = job.program.metrics.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(names, ["accuracy", "largest", "sum", "loss"]);
        let losses = job.train(&data, 60).unwrap();
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        assert!(mean(&losses[40..]) < mean(&losses[..20]), "{}: {losses:?}", optimizer.kind());
        let measured = job.evaluate(&data).unwrap();
        assert!(measured.iter().all(|(_, value)| value.unwrap().is_finite()), "{measured:?}");
        let of = |name: &str| measured.iter().find(|(found, _)| found == name).unwrap().1;
        assert!(of("sum") >= of("largest"), "ReLUs have no negative parts: {measured:?}");
    }
}

/// Normalisation has moving averages, dropout draws: a device does both as a worker of its own would.
#[test]
fn devices_of_a_replica_learn_what_replicas_learn() {
    let data = images();
    let learned = |replicas: u32, devices: u32, accumulate: usize| {
        let spec = ProgramSpec { replicas, devices, accumulate, ..spec(1) };
        let mut job = Local::new(&Everything, &data.train.describe(), &spec).unwrap();
        assert_eq!(job.program.copies(0).len(), accumulate * devices as usize);
        let losses = job.train(&data, 5).unwrap();
        let names = job.program.weights().map(|variable| variable.name.clone());
        let weights: Vec<Vec<f32>> = names.map(|name| job.variable(&name)).collect();
        (losses, weights)
    };
    let near = |a: &[f32], b: &[f32]| {
        // a mean is rounded before it is used, where the replicas' means are not
        a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5 * a.abs().max(1e-3))
    };
    let (losses, weights) = learned(4, 1, 1);
    for (replicas, devices) in [(1, 4), (2, 2)] {
        let (other, others) = learned(replicas, devices, 1);
        for (a, b) in losses.iter().zip(&other) {
            assert!((a - b).abs() < 1e-5 * a, "{replicas}×{devices}: {losses:?} and {other:?}");
        }
        let differ = weights.iter().zip(&others).position(|(a, b)| !near(a, b));
        assert_eq!(differ, None, "{replicas}×{devices}");
    }
    // a device may have several batches, too; other devices drop other elements
    let (of_both, _) = learned(1, 2, 2);
    assert!(of_both[0] != losses[0] && of_both.iter().all(|loss| loss.is_finite()), "{of_both:?}");
}

#[test]
fn every_type_of_number_is_planned() {
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        let spec = ProgramSpec { dtype, ..spec(4) };
        let described = images().train.describe();
        let program = Program::new(&Everything, &described, &spec).unwrap();
        assert!(program.variables.iter().all(|variable| variable.spec.dtype == dtype));
    }
}

#[test]
fn a_model_that_asks_what_it_is_for_has_two_copies() {
    /// Doubles its logits when it is evaluated.
    struct TwoFaced;
    impl Model for TwoFaced {
        fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
            let weight = s.parameter("w", &[2, 2], Init::Constant { value: 1.0 })?;
            let mut y = s.matmul("y", batch.input("input")?, weight)?;
            if s.mode() == Mode::Evaluate {
                y = s.scale("doubled", y, 2.0)?;
            }
            let first = s.slice("first", y, 1, 0..1)?;
            let first = s.reshape("first/flat", first, &[batch.size()])?;
            Ok(Outputs::classification(y, batch.labels()?).metric("first", first))
        }
    }
    let table = Table::labelled(&[2], &[1.0, 2.0], &[0], 2);
    let data = Data::from((table.clone(), table));
    let mut job = Local::new(&TwoFaced, &data.train.describe(), &spec(1)).unwrap();
    assert_eq!(job.measure(&data, "first"), Some(6.0));
}

#[test]
fn embeddings_are_rows() {
    /// The mean of two words' vectors.
    struct Bag;
    impl Model for Bag {
        fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
            let words = batch.bound("word")?;
            let y = s.embedding("words", batch.input("word")?, [words, 3])?;
            let y = s.linear("output", y, batch.classes()?)?;
            Ok(Outputs::classification(y, batch.labels()?))
        }
    }
    let description = Description::new().tokens("word", &[], 7).labels("labels", 2);
    let columns = vec![vec![3.0, 5.0], vec![1.0, 0.0]];
    let data = Data::from(Table { description, columns });
    let mut job = Local::new(&Bag, &data.train.describe(), &spec(2)).unwrap();
    let before = job.variable("words/weight");
    job.train(&data, 1).unwrap();
    let after = job.variable("words/weight");
    let moved: Vec<usize> =
        (0..7).filter(|row| before[3 * row..3 * row + 3] != after[3 * row..3 * row + 3]).collect();
    assert_eq!(moved, [3, 5]);
}
