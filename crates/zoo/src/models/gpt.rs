//! GPT-2 (Radford et al. 2019) of any size, with the names and layouts of Hugging Face's weights. Without dropout, as models of
//! this size are trained today: more text is read than is remembered.

use tensorwire_nn::{
    Batch, Description, Error, Init, Mask, Model, Optimizer, Output, Outputs, Result, Scope,
};

use super::transformer::{Heads, Layout, NORMAL, attend, linear, norm, places, thirds};
use super::{Shipped, kind_of};
use crate::data::SampleKind;

const EPSILON: f64 = 1e-5;

/// A GPT: it says for each token of a window which comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpt {
    pub name: &'static str,
    pub layers: usize,
    /// A divisor of `width`.
    pub heads: usize,
    pub width: usize,
    /// Tokens of the longest window.
    pub context: usize,
    /// None: that of the data.
    pub vocabulary: Option<usize>,
}

impl Gpt {
    /// GPT-2 of 124 million parameters.
    pub const SMALL: Gpt = Gpt {
        name: "gpt2-small",
        layers: 12,
        heads: 12,
        width: 768,
        context: 1024,
        vocabulary: Some(50_257),
    };

    /// A GPT for the characters of a text, which learns in a minute.
    pub const MINI: Gpt =
        Gpt { name: "gpt-mini", layers: 6, heads: 6, width: 192, context: 128, vocabulary: None };

    fn block(&self, s: &mut Scope<'_>, name: &str, x: Output, heads: Heads) -> Result<Output> {
        let of = |part: &str| format!("{name}.{part}");
        let first = (Layout::InputsFirst, NORMAL);
        // §2.3: what all layers add to the residual shall not grow with their number; fits: layers are few
        let deviation = 0.02 / (2.0 * self.layers as f64).sqrt();
        let residual = (Layout::InputsFirst, Init::Normal { deviation });

        let y = norm(s, &of("ln_1"), x, EPSILON)?;
        let y = linear(s, &of("attn.c_attn"), y, 3 * self.width, first)?;
        let rows = thirds(s, &of("attn"), y)?;
        let y = attend(s, &of("attn"), rows, heads, Mask::Causal)?;
        let y = linear(s, &of("attn.c_proj"), y, self.width, residual)?;
        let x = s.add(&of("attn/residual"), x, y)?;

        let y = norm(s, &of("ln_2"), x, EPSILON)?;
        let y = linear(s, &of("mlp.c_fc"), y, 4 * self.width, first)?;
        let y = s.gelu_tanh(&of("mlp"), y)?;
        let y = linear(s, &of("mlp.c_proj"), y, self.width, residual)?;
        s.add(&of("mlp/residual"), x, y)
    }
}

impl Shipped for Gpt {
    fn samples(&self) -> SampleKind {
        // without a vocabulary of its own: the characters of English
        let vocabulary = self.vocabulary.unwrap_or(65);
        SampleKind::Tokens { vocabulary, length: self.context }
    }

    fn optimizer(&self) -> Optimizer {
        Optimizer::adamw(1e-3)
    }
}

impl Model for Gpt {
    fn name(&self) -> String {
        self.name.to_string()
    }

    fn check(&self, data: &Description) -> Result<()> {
        let SampleKind::Tokens { vocabulary, length } = kind_of(self, data)? else { return Ok(()) };
        let Gpt { name, context, .. } = self;
        if length > *context {
            return Err(Error::Mismatch(format!(
                "{name} reads windows of at most {context} tokens, and the data's have {length}; make them shorter"
            )));
        }
        match self.vocabulary {
            Some(most) if vocabulary > most => Err(Error::Mismatch(format!(
                "{name} knows {most} tokens, and the data have {vocabulary}; choose data in its tokens, or gpt-mini"
            ))),
            _ => Ok(()),
        }
    }

    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        let tokens = batch.input("input")?;
        let [batch_size, length] = [s.size(tokens, 0)?, s.size(tokens, 1)?];
        let vocabulary = self.vocabulary.map_or_else(|| batch.bound("input"), Ok)?;
        let Gpt { heads, width, .. } = *self;
        let heads = Heads { batch: batch_size, length, heads, width };
        let rows = batch_size * length;

        let table = s.parameter("wte.weight", &[vocabulary, width], NORMAL)?;
        let x = s.gather("wte", table, tokens)?;
        let places = places(s, "wpe", [self.context, width], length)?;
        let x = s.add("placed", x, places)?;
        let mut x = s.reshape("rows", x, &[rows, width])?;
        for layer in 0..self.layers {
            x = self.block(s, &format!("h.{layer}"), x, heads)?;
        }
        let x = norm(s, "ln_f", x, EPSILON)?;
        let logits = s.matmul_transposed("logits", x, table)?;
        let labels = s.reshape("labels/rows", batch.labels()?, &[rows])?;
        Ok(Outputs::classification(logits, labels))
    }
}
