//! Sentence embedding by a recurrent network (Palangi et al. 2016, which Xue et al. train): a sentence's
//! vector is the last state of a GRU. A batch has pairs of sentences, each pair of one class and no two of
//! the same; each sentence is to be most like its own partner among all of them.

use tensorwire_nn::{Batch, Cell, Description, Model, Output, Outputs, Result, Scope};

use super::{Shipped, kind_of};
use crate::data::SampleKind;

const EMBEDDING: usize = 128;
const HIDDEN: usize = 128;

/// Pairs of sentences of one class.
#[derive(Clone, Copy, Debug)]
pub struct SentenceEmbedding;

impl Shipped for SentenceEmbedding {
    fn samples(&self) -> SampleKind {
        SampleKind::Sentences { words: 1000, classes: 64 }
    }
}

impl Model for SentenceEmbedding {
    fn name(&self) -> String {
        "sentence-embedding".to_string()
    }

    fn check(&self, data: &Description) -> Result<()> {
        kind_of(self, data).map(drop)
    }

    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        let first = s.zeros("first", &[batch.size(), HIDDEN])?;
        let anchors = embed(s, batch, "anchor", first)?;
        let positives = embed(s, batch, "positive", first)?;
        let likeness = s.matmul_transposed("likeness", anchors, positives)?;
        // elements of a state are in ±1: keeps the logits' spread from growing with their number
        // fits: a layer's width, exact in f64
        let logits = s.scale("logits", likeness, 1.0 / (HIDDEN as f64).sqrt())?;
        Ok(Outputs::classification(logits, batch.labels()?))
    }
}

/// The vectors of one side's sentences: `f[batch, hidden]`, in the order of the samples. Both sides have the same layers.
fn embed(s: &mut Scope<'_>, batch: &Batch<'_>, side: &str, first: Output) -> Result<Output> {
    let (tokens, active) = (batch.input(side)?, batch.input(&format!("{side}_active"))?);
    let rows = batch.input(&format!("{side}_rows"))?;
    let words = batch.bound("anchor")?;
    s.shared(side, |s| {
        let x = s.embedding("words", tokens, [words, EMBEDDING])?;
        let made = s.recurrent("gru", Cell::Gru, x, HIDDEN, &[first], active)?;
        s.gather("vector", made.last[0], rows)
    })
}
