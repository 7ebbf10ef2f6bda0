//! Sequence to sequence (Sutskever et al. 2014): an LSTM reads the source, its last state is the first of an
//! LSTM that writes the target, each word from the words before. Lengths vary, nothing is padded: what
//! the words become is of dynamic size.

use tensorwire_graph::{Cell, GraphError, Op};
use tensorwire_tensor::{DType, Dim};

use tensorwire_nn::Outcome;
use tensorwire_nn::{Scope, glorot};

const EMBEDDING: usize = 128;
const HIDDEN: usize = 256;

/// Feeds, packed (see [`Op::Recurrent`]): `source`, `source_active`; `order`, i32[batch], for each row of
/// the targets the row of its source; `target`, `target_active` and `labels`, the word that follows each of
/// the target's.
pub(super) fn build(
    scope: &mut Scope<'_>,
    source_words: usize,
    target_words: usize,
) -> Result<Outcome, GraphError> {
    let batch = Dim::Known(scope.batch);
    let mut symbol = || Dim::Dynamic(scope.graph.symbol());
    let [sources, source_steps, targets, target_steps] = std::array::from_fn(|_| symbol());
    let source = scope.input("source", DType::I32, &[sources])?;
    let source_active = scope.input("source_active", DType::I32, &[source_steps])?;
    let order = scope.input("order", DType::I32, &[batch])?;
    let target = scope.input("target", DType::I32, &[targets])?;
    let target_active = scope.input("target_active", DType::I32, &[target_steps])?;
    let labels = scope.input("labels", DType::I32, &[targets])?;

    let first = scope.zeros("first", &[scope.batch, HIDDEN])?;
    let read = scope.embedding("source", "source/embedded", source, [source_words, EMBEDDING])?;
    let encoder = ("encoder", "encoder");
    let (_, states) =
        scope.recurrent(encoder, Cell::Lstm, read, HIDDEN, &[first, first], source_active)?;
    let mut thought = Vec::new();
    for (name, state) in ["thought/hidden", "thought/cell"].into_iter().zip(states) {
        thought.push(scope.add(name, Op::Gather, &[state, order])?);
    }
    let said = scope.embedding("target", "target/embedded", target, [target_words, EMBEDDING])?;
    let decoder = ("decoder", "decoder");
    let (written, _) =
        scope.recurrent(decoder, Cell::Lstm, said, HIDDEN, &thought, target_active)?;
    let logits = scope.dense("output", written, target_words, glorot)?;
    Ok(Outcome { logits, labels, auxiliary: None })
}
