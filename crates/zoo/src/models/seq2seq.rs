//! Sequence to sequence (Sutskever et al. 2014): an LSTM reads the source, its last state is the first of an
//! LSTM that writes the target, each word from the words before. Lengths vary, nothing is padded: what
//! the words become is of dynamic size.

use tensorwire_nn::{Batch, Cell, Description, Model, Outputs, Result, Scope};

use super::{Shipped, kind_of};
use crate::data::SampleKind;

const EMBEDDING: usize = 128;
const HIDDEN: usize = 256;

/// Sentences and their translations.
#[derive(Clone, Copy, Debug)]
pub struct Seq2Seq;

impl Shipped for Seq2Seq {
    fn samples(&self) -> SampleKind {
        SampleKind::Pairs { source_words: 8000, target_words: 8000 }
    }
}

impl Model for Seq2Seq {
    fn name(&self) -> String {
        "seq2seq".to_string()
    }

    fn check(&self, data: &Description) -> Result<()> {
        kind_of(self, data).map(drop)
    }

    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        let (source_words, target_words) = (batch.bound("source")?, batch.bound("target")?);
        let first = s.zeros("first", &[batch.size(), HIDDEN])?;
        let read = s.embedding("source", batch.input("source")?, [source_words, EMBEDDING])?;
        let active = batch.input("source_active")?;
        let encoded = s.recurrent("encoder", Cell::Lstm, read, HIDDEN, &[first, first], active)?;
        let order = batch.input("order")?;
        let mut thought = Vec::new();
        for (name, state) in ["thought/hidden", "thought/cell"].into_iter().zip(encoded.last) {
            thought.push(s.gather(name, state, order)?);
        }
        let said = s.embedding("target", batch.input("target")?, [target_words, EMBEDDING])?;
        let active = batch.input("target_active")?;
        let written = s.recurrent("decoder", Cell::Lstm, said, HIDDEN, &thought, active)?;
        let logits = s.linear("output", written.sequence, target_words)?;
        Ok(Outputs::classification(logits, batch.labels()?))
    }
}
