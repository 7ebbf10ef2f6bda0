//! The multilayer perceptron of Li et al.'s MNIST experiments: features–2048–2048–classes with ReLU.

use tensorwire_graph::{GraphError, Init, Op, Output};

use crate::scope::Scope;

const HIDDEN: usize = 2048;

/// x: f32[batch, features] → logits: f32[batch, classes].
pub(crate) fn logits(
    scope: &mut Scope<'_>,
    x: Output,
    classes: usize,
) -> Result<Output, GraphError> {
    let before_relu = |fan_in, _| Init::HeUniform { fan_in };
    let last = |fan_in, fan_out| Init::GlorotUniform { fan_in, fan_out };
    let mut y = x;
    for name in ["hidden1", "hidden2"] {
        y = scope.dense(name, y, HIDDEN, before_relu)?;
        y = scope.add(&format!("{name}/relu"), Op::Relu, &[y])?;
    }
    scope.dense("output", y, classes, last)
}
