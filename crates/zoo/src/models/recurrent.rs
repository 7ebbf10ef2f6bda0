//! The LSTM and GRU of Xue et al.'s table 2: one layer of 1024 over sequences of equal length, and a
//! classifier on its last state.

use tensorwire_graph::{Cell, GraphError, Op, Output};
use tensorwire_tensor::{DType, TensorSpec};

use tensorwire_nn::{Scope, glorot};

const HIDDEN: usize = 1024;

/// x: f[steps·batch, features], step by step → logits: f[batch, classes].
pub(super) fn logits(
    scope: &mut Scope<'_>,
    x: Output,
    cell: Cell,
    steps: usize,
    classes: usize,
) -> Result<Output, GraphError> {
    let name = if cell == Cell::Gru { "gru" } else { "lstm" };
    // no sequence ends before another
    let spec = TensorSpec::new(DType::I32, &[steps])
        .map_err(|source| GraphError::Shape { node: "active".to_string(), source })?;
    // fits: a batch is far below 2^53
    let active = scope.add("active", Op::Fill { value: scope.batch as f64, spec }, &[])?;
    let first = scope.zeros("first", &[scope.batch, HIDDEN])?;
    let states = vec![first; cell.states()];
    let (_, last) = scope.recurrent((name, name), cell, x, HIDDEN, &states, active)?;
    scope.dense("output", last[0], classes, glorot)
}
