//! Sentence embedding by a recurrent network (Palangi et al. 2016, which Xue et al. train): a sentence's
//! vector is the last state of a GRU. A batch has pairs of sentences, each pair of one class and no two of
//! the same; each sentence is to be most like its own partner among all of them.

use tensorwire_graph::{Cell, GraphError, Op, Output};
use tensorwire_tensor::{DType, Dim};

use tensorwire_nn::Outcome;
use tensorwire_nn::Scope;

const EMBEDDING: usize = 128;
const HIDDEN: usize = 128;

/// Feeds, packed (see [`Op::Recurrent`]): `anchor`, `anchor_active`, and `anchor_rows`, i32[batch], the row
/// of each sample among the sorted sentences; the same of `positive`; `labels`, i32[batch].
pub(super) fn build(scope: &mut Scope<'_>, words: usize) -> Result<Outcome, GraphError> {
    let first = scope.zeros("first", &[scope.batch, HIDDEN])?;
    let anchors = embed(scope, "anchor", words, first)?;
    let positives = embed(scope, "positive", words, first)?;
    let labels = scope.input("labels", DType::I32, &[Dim::Known(scope.batch)])?;
    let likeness = Op::MatMul { transpose_a: false, transpose_b: true };
    let likeness = scope.add("likeness", likeness, &[anchors, positives])?;
    // elements of a state are in ±1: keeps the logits' spread from growing with their number
    // fits: a layer's width, exact in f64
    let by = 1.0 / (HIDDEN as f64).sqrt();
    let logits = scope.add("logits", Op::Scale { by }, &[likeness])?;
    Ok(Outcome { logits, labels, auxiliary: None })
}

/// The vectors of one side's sentences: f[batch, hidden], in the order of the samples.
fn embed(
    scope: &mut Scope<'_>,
    side: &str,
    words: usize,
    first: Output,
) -> Result<Output, GraphError> {
    let (total, steps) = (Dim::Dynamic(scope.graph.symbol()), Dim::Dynamic(scope.graph.symbol()));
    let tokens = scope.input(side, DType::I32, &[total])?;
    let active = scope.input(&format!("{side}_active"), DType::I32, &[steps])?;
    let rows = scope.input(&format!("{side}_rows"), DType::I32, &[Dim::Known(scope.batch)])?;
    let node = format!("{side}/embedded");
    let x = scope.embedding("words", &node, tokens, [words, EMBEDDING])?;
    let layer = format!("{side}/gru");
    let (_, last) = scope.recurrent(("gru", &layer), Cell::Gru, x, HIDDEN, &[first], active)?;
    scope.add(&format!("{side}/vector"), Op::Gather, &[last[0], rows])
}
