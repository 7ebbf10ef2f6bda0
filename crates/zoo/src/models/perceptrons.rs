//! Multilayer perceptrons with ReLU: that of Li et al.'s MNIST experiments, features–2048–2048–classes, and
//! FCN-5 (Shi et al. 2016; Xue et al. table 2), features–4096–4096–4096–4096–classes.

use tensorwire_graph::{GraphError, Output};

use tensorwire_nn::{Scope, glorot, he};

/// x: f[batch, …] → logits: f[batch, classes].
pub(super) fn mlp(scope: &mut Scope<'_>, x: Output, classes: usize) -> Result<Output, GraphError> {
    perceptron(scope, x, &["hidden1", "hidden2"], 2048, classes)
}

/// x: f[batch, …] → logits: f[batch, classes].
pub(super) fn fcn5(scope: &mut Scope<'_>, x: Output, classes: usize) -> Result<Output, GraphError> {
    perceptron(scope, x, &["hidden1", "hidden2", "hidden3", "hidden4"], 4096, classes)
}

fn perceptron(
    scope: &mut Scope<'_>,
    x: Output,
    layers: &[&str],
    width: usize,
    classes: usize,
) -> Result<Output, GraphError> {
    let mut y = scope.flatten("input", x)?;
    for name in layers {
        y = scope.dense(name, y, width, he)?;
        y = scope.relu(name, y)?;
    }
    scope.dense("output", y, classes, glorot)
}
