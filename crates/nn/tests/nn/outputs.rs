//! What is minimised and what is measured, against numbers worked out by hand.

use tensorwire_nn::{Batch, DType, Data, Init, Model, Outputs, ProgramSpec, Result, Scope};

use crate::local::{Local, Table, spec};

/// y = w·x + b, by squares.
struct Line {
    /// The loss is one number a batch.
    whole: bool,
}

impl Model for Line {
    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        let (x, y) = (batch.input("x")?, batch.input("y")?);
        let weight = s.parameter("w", &[1, 1], Init::Constant { value: 2.0 })?;
        let found = s.matmul("product", x, weight)?;
        let found = s.bias("found", found)?;
        let loss = match self.whole {
            true => s.mean_squared_error("error", found, y)?,
            false => s.squared_error("error", found, y)?,
        };
        let off = s.sub("off", found, y)?;
        let off = s.reshape("off/flat", off, &[batch.size()])?;
        Ok(Outputs::loss(loss).metric("bias", off))
    }
}

/// y = 3x + 1 at 0, 1, 2, ….
fn points(samples: usize) -> Table {
    let x: Vec<f32> = (0..samples).map(|i| i as f32).collect();
    let y: Vec<f32> = x.iter().map(|x| 3.0 * x + 1.0).collect();
    Table::xy(1, &x, &y)
}

#[test]
fn a_step_is_that_of_the_formula() {
    for whole in [false, true] {
        let data = Data::from(points(2));
        let mut job = Local::new(&Line { whole }, &data.train.describe(), &spec(2)).unwrap();
        // at w = 2, b = 0 the errors are -1 at 0 and -2 at 1
        assert_eq!(job.train(&data, 1).unwrap(), [2.5]);
        // gradients: mean of 2·e·x = -2, mean of 2·e = -3
        let near = |found: f32, wanted: f32| (found - wanted).abs() < 1e-6;
        assert!(near(job.variable("w")[0], 2.2), "{:?}", job.variable("w"));
        assert!(near(job.variable("found/bias")[0], 0.3), "{:?}", job.variable("found/bias"));
    }
}

#[test]
fn a_line_is_found() {
    let data = Data::from((points(4), points(3)));
    let mut job = Local::new(&Line { whole: false }, &data.train.describe(), &spec(4)).unwrap();
    let losses = job.train(&data, 200).unwrap();
    assert!(losses[199] < 1e-4 && losses[199] < losses[0], "{losses:?}");
    assert!(job.measure(&data, "loss").unwrap() < 1e-4);
    assert!(job.measure(&data, "bias").unwrap().abs() < 1e-2);
}

#[test]
fn what_fills_a_test_batch_up_is_not_measured() {
    // three samples in batches of two: the last is half empty
    let data = Data::from((points(2), points(3)));
    let mut job = Local::new(&Line { whole: false }, &data.train.describe(), &spec(2)).unwrap();
    // errors -1, -2, -3 before any step
    assert_eq!(job.measure(&data, "loss"), Some((1.0 + 4.0 + 9.0) / 3.0));
    assert_eq!(job.measure(&data, "bias"), Some(-2.0));
    // one number a batch cannot tell them apart: the half batch is left out
    let mut job = Local::new(&Line { whole: true }, &data.train.describe(), &spec(2)).unwrap();
    assert_eq!(job.measure(&data, "loss"), Some((1.0 + 4.0) / 2.0));
    let mut job = Local::new(&Line { whole: true }, &data.train.describe(), &spec(2)).unwrap();
    assert_eq!(job.measure(&Data::from((points(2), points(1))), "loss"), None);
}

/// A classifier whose logits are its inputs, times one.
struct Given {
    auxiliary: bool,
}

impl Model for Given {
    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        let one = s.parameter("one", &[2, 2], Init::Zeros)?;
        let x = batch.input("input")?;
        let zeros = s.matmul("zeros", x, one)?;
        let logits = s.add("logits", x, zeros)?;
        let outputs = Outputs::classification(logits, batch.labels()?);
        Ok(match self.auxiliary {
            true => outputs.auxiliary(zeros, batch.labels()?, 0.5),
            false => outputs,
        })
    }
}

#[test]
fn accuracy_and_loss_are_over_labels() {
    let x = [2.0, 0.0, 0.0, 1.0, 3.0, 0.0];
    let table = Table::labelled(&[2], &x, &[0, 1, 1], 2);
    let data = Data::from((table.clone(), table));
    let softplus = |z: f64| (1.0 + z.exp()).ln();
    let wanted = (softplus(-2.0) + softplus(-1.0) + softplus(3.0)) / 3.0;
    for (auxiliary, dtype) in [(false, DType::F32), (true, DType::F32)] {
        let spec = ProgramSpec { dtype, ..spec(2) };
        let mut job = Local::new(&Given { auxiliary }, &data.train.describe(), &spec).unwrap();
        assert_eq!(job.measure(&data, "accuracy"), Some(2.0 / 3.0));
        let found = job.measure(&data, "loss").unwrap();
        assert!((found - wanted).abs() < 1e-6, "{found} for {wanted}");
    }
}

#[test]
fn an_auxiliary_head_counts_in_training_alone() {
    let table = Table::labelled(&[2], &[2.0, 0.0], &[0], 2);
    let data = Data::from((table.clone(), table));
    let loss = |auxiliary| {
        let mut job = Local::new(&Given { auxiliary }, &data.train.describe(), &spec(1)).unwrap();
        (job.measure(&data, "loss").unwrap(), job.train(&data, 1).unwrap()[0])
    };
    let (plain, with) = (loss(false), loss(true));
    assert_eq!(plain.0, plain.1);
    assert_eq!(with.0, plain.0);
    // its logits are zeros: ln 2, half of it
    assert!((with.1 - plain.1 - 0.5 * 2f64.ln()).abs() < 1e-6, "{with:?} {plain:?}");
}

/// Logistic regression of one weight.
struct Logistic {
    by_logits: bool,
}

impl Model for Logistic {
    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        let weight = s.parameter("w", &[1, 1], Init::Constant { value: 1.0 })?;
        let z = s.matmul("z", batch.input("input")?, weight)?;
        Ok(match self.by_logits {
            true => {
                let logits = s.binary_logits("logits", z)?;
                Outputs::classification(logits, batch.labels()?)
            }
            false => Outputs::loss(s.binary_cross_entropy("loss", z, batch.labels()?)?),
        })
    }
}

#[test]
fn a_binary_cross_entropy_is_that_of_the_sigmoid() {
    let table = Table::labelled(&[1], &[0.5, -2.0, 60.0], &[1, 1, 0], 2);
    let data = Data::from((table.clone(), table));
    let sigmoid = |z: f64| 1.0 / (1.0 + (-z).exp());
    // 1 - σ(60) is nothing in f64, but its logarithm is -60
    let wanted = (-sigmoid(0.5).ln() - sigmoid(-2.0).ln() + 60.0) / 3.0;
    for by_logits in [true, false] {
        let mut job =
            Local::new(&Logistic { by_logits }, &data.train.describe(), &spec(3)).unwrap();
        let found = job.measure(&data, "loss").unwrap();
        assert!((found - wanted).abs() < 1e-5, "{found} for {wanted}");
        job.train(&data, 1).unwrap();
        // the mean of (σ(z) - label)·x
        let slope =
            ((sigmoid(0.5) - 1.0) * 0.5 + (sigmoid(-2.0) - 1.0) * -2.0 + sigmoid(60.0) * 60.0)
                / 3.0;
        let found = f64::from(job.variable("w")[0]);
        assert!((found - (1.0 - 0.1 * slope)).abs() < 1e-5, "{found}");
    }
    let mut job =
        Local::new(&Logistic { by_logits: true }, &data.train.describe(), &spec(3)).unwrap();
    assert_eq!(job.measure(&data, "accuracy"), Some(1.0 / 3.0));
}

#[test]
fn what_a_model_does_not_read_is_not_fed() {
    /// Reads `x` alone.
    struct Decay;
    impl Model for Decay {
        fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
            let weight = s.parameter("w", &[1, 1], Init::Constant { value: 1.0 })?;
            let y = s.matmul("product", batch.input("x")?, weight)?;
            s.mean("loss", y).map(Outputs::loss)
        }
    }
    let data = Data::from((points(4), points(4)));
    let mut job = Local::new(&Decay, &data.train.describe(), &spec(2)).unwrap();
    assert_eq!(job.program.replicas[0].input("x").as_deref(), Some("replica0/x"));
    assert_eq!(job.program.replicas[0].input("y"), None);
    job.train(&data, 3).unwrap();
    assert!(job.measure(&data, "loss").is_some());
}
