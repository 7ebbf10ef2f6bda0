//! BERT (Devlin et al. 2019) as a masked language model, with the names and layouts of Hugging Face's `BertForMaskedLM`. Without
//! dropout, and without the second sentence: all tokens are of type 0.

use tensorwire_nn::{
    Batch, Description, Error, Init, Mask, Model, Optimizer, Output, Outputs, Result, Scope,
};

use super::transformer::{Heads, Layout, NORMAL, attend, bias, linear, norm, places};
use super::{Shipped, kind_of};
use crate::data::SampleKind;

const EPSILON: f64 = 1e-12;
const FIRST: (Layout, Init) = (Layout::OutputsFirst, NORMAL);
/// Types of tokens: of the first sentence and of the second.
const TYPES: usize = 2;

/// A BERT: it guesses the tokens of a window that are hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bert {
    pub name: &'static str,
    pub layers: usize,
    /// A divisor of `width`.
    pub heads: usize,
    pub width: usize,
    /// Tokens of the longest window.
    pub context: usize,
}

impl Bert {
    /// The smaller of Turc et al. 2019: 4 layers of 256.
    pub const MINI: Bert =
        Bert { name: "bert-mini", layers: 4, heads: 4, width: 256, context: 512 };

    /// The vectors of tokens, with those of their places and their type: `f[batch·length, width]`.
    fn embed(&self, s: &mut Scope<'_>, tokens: Output, vocabulary: usize) -> Result<Output> {
        let [batch, length] = [s.size(tokens, 0)?, s.size(tokens, 1)?];
        let of = |part: &str| format!("bert.embeddings.{part}");
        let table = words(s, vocabulary, self.width)?;
        let x = s.gather(&of("word_embeddings"), table, tokens)?;
        let places = places(s, &of("position_embeddings"), [self.context, self.width], length)?;
        let types =
            s.parameter(&of("token_type_embeddings.weight"), &[TYPES, self.width], NORMAL)?;
        let first = s.slice(&of("token_type_embeddings"), types, 0, 0..1)?;
        let places = s.add(&of("places"), places, first)?;
        let x = s.add(&of("placed"), x, places)?;
        let x = s.reshape(&of("rows"), x, &[batch * length, self.width])?;
        norm(s, &of("LayerNorm"), x, EPSILON)
    }

    fn layer(&self, s: &mut Scope<'_>, name: &str, x: Output, heads: Heads) -> Result<Output> {
        let of = |part: &str| format!("{name}.{part}");
        let width = self.width;
        let mut part =
            |what: &str| linear(s, &of(&format!("attention.self.{what}")), x, width, FIRST);
        let rows = [part("query")?, part("key")?, part("value")?];
        let y = attend(s, &of("attention.self"), rows, heads, Mask::None)?;
        let y = linear(s, &of("attention.output.dense"), y, width, FIRST)?;
        let x = s.add(&of("attention.output/residual"), x, y)?;
        let x = norm(s, &of("attention.output.LayerNorm"), x, EPSILON)?;

        let y = linear(s, &of("intermediate.dense"), x, 4 * width, FIRST)?;
        let y = s.gelu(&of("intermediate"), y)?;
        let y = linear(s, &of("output.dense"), y, width, FIRST)?;
        let x = s.add(&of("output/residual"), x, y)?;
        norm(s, &of("output.LayerNorm"), x, EPSILON)
    }

    /// The logits of all tokens, by the vectors that they are given as.
    fn predict(&self, s: &mut Scope<'_>, x: Output, vocabulary: usize) -> Result<Output> {
        let of = |part: &str| format!("cls.predictions.{part}");
        let x = linear(s, &of("transform.dense"), x, self.width, FIRST)?;
        let x = s.gelu(&of("transform"), x)?;
        let x = norm(s, &of("transform.LayerNorm"), x, EPSILON)?;
        let table = words(s, vocabulary, self.width)?;
        let logits = s.matmul_transposed(&of("product"), x, table)?;
        bias(s, "logits", logits, &of("bias"))
    }
}

/// The vectors of tokens: the same parameter where they are read and where they are guessed.
fn words(s: &mut Scope<'_>, vocabulary: usize, width: usize) -> Result<Output> {
    s.parameter("bert.embeddings.word_embeddings.weight", &[vocabulary, width], NORMAL)
}

impl Shipped for Bert {
    fn samples(&self) -> SampleKind {
        SampleKind::Masked { vocabulary: 30_522, length: 128 }
    }

    fn optimizer(&self) -> Optimizer {
        Optimizer::adamw(1e-3)
    }
}

impl Model for Bert {
    fn name(&self) -> String {
        self.name.to_string()
    }

    fn check(&self, data: &Description) -> Result<()> {
        match kind_of(self, data)? {
            SampleKind::Masked { length, .. } if length > self.context => {
                let Bert { name, context, .. } = self;
                Err(Error::Mismatch(format!(
                    "{name} reads windows of at most {context} tokens, and the data's have {length}; make them \
                     shorter"
                )))
            }
            _ => Ok(()),
        }
    }

    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        let tokens = batch.input("input")?;
        let [batch_size, length] = [s.size(tokens, 0)?, s.size(tokens, 1)?];
        let vocabulary = batch.bound("input")?;
        let Bert { heads, width, .. } = *self;
        let heads = Heads { batch: batch_size, length, heads, width };
        let mut x = self.embed(s, tokens, vocabulary)?;
        for layer in 0..self.layers {
            x = self.layer(s, &format!("bert.encoder.layer.{layer}"), x, heads)?;
        }
        let logits = self.predict(s, x, vocabulary)?;
        let labels = s.reshape("labels/rows", batch.labels()?, &[batch_size * length])?;
        Ok(Outputs::classification(logits, labels))
    }
}
