//! Multilayer perceptrons with ReLU: that of Li et al.'s MNIST experiments, features–2048–2048–classes, and
//! FCN-5 (Shi et al. 2016; Xue et al. table 2), features–4096–4096–4096–4096–classes.

use tensorwire_nn::{Batch, Description, Extent, Model, Outputs, Result, Scope};

use super::{Shipped, kind_of};
use crate::data::SampleKind;

/// Images of any size, or any other numbers, as many for each sample.
#[derive(Clone, Copy, Debug)]
pub struct Mlp;

/// As [`Mlp`], deeper.
#[derive(Clone, Copy, Debug)]
pub struct Fcn5;

impl Shipped for Mlp {
    fn samples(&self) -> SampleKind {
        SampleKind::Images { dims: [28, 28, 1], classes: 10 }
    }
}

impl Shipped for Fcn5 {
    fn samples(&self) -> SampleKind {
        Mlp.samples()
    }
}

impl Model for Mlp {
    fn name(&self) -> String {
        "mlp".to_string()
    }

    fn check(&self, data: &Description) -> Result<()> {
        check(self, data)
    }

    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        perceptron(s, batch, &["hidden1", "hidden2"], 2048)
    }
}

impl Model for Fcn5 {
    fn name(&self) -> String {
        "fcn5".to_string()
    }

    fn check(&self, data: &Description) -> Result<()> {
        check(self, data)
    }

    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        perceptron(s, batch, &["hidden1", "hidden2", "hidden3", "hidden4"], 4096)
    }
}

fn check(model: &dyn Shipped, data: &Description) -> Result<()> {
    let is_classified = data.get("labels").is_some_and(|labels| labels.values.bound().is_some());
    let first = data.get("input").and_then(|input| input.dims.first());
    match (first, is_classified) {
        (Some(Extent::Batch(1)), true) => Ok(()),
        _ => kind_of(model, data).map(drop),
    }
}

fn perceptron(
    s: &mut Scope<'_>,
    batch: &Batch<'_>,
    layers: &[&str],
    width: usize,
) -> Result<Outputs> {
    let mut y = s.flatten("input", batch.input("input")?)?;
    for name in layers {
        y = s.linear_relu(name, y, width)?;
    }
    let logits = s.linear("output", y, batch.classes()?)?;
    Ok(Outputs::classification(logits, batch.labels()?))
}
