//! Vision transformers (Dosovitskiy et al. 2021), with the names and layouts of timm's weights: 224×224×3.

use tensorwire_nn::{
    Batch, Description, Init, Mask, Model, Op, Optimizer, Output, Outputs, Result, Scope, Window,
};

use super::transformer::{Heads, Layout, NORMAL, attend, bias, linear, norm, thirds};
use super::{Shipped, check_image};
use crate::data::SampleKind;

const EPSILON: f64 = 1e-6;
const FIRST: (Layout, Init) = (Layout::OutputsFirst, NORMAL);
const SIZE: usize = 224;
const CHANNELS: usize = 3;

/// A vision transformer: an image is cut into square patches, and a token for the class reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vit {
    pub name: &'static str,
    pub layers: usize,
    /// A divisor of `width`.
    pub heads: usize,
    pub width: usize,
    /// The side of a patch, a divisor of 224.
    pub patch: usize,
}

impl Vit {
    /// ViT-S/16 (Touvron et al. 2021, table 1).
    pub const SMALL: Vit = Vit { name: "vit-small", layers: 12, heads: 6, width: 384, patch: 16 };

    /// A vector for the class and one for each patch: `f[batch·(1 + patches), width]`.
    fn embed(&self, s: &mut Scope<'_>, images: Output) -> Result<Output> {
        let Vit { width, patch, .. } = *self;
        let (batch, patches) = (s.batch(), self.patches());
        let window = Window::valid([patch, patch], [patch, patch]);
        // as PyTorch's convolutions; fits: a patch is small
        let limit = 1.0 / ((CHANNELS * patch * patch) as f64).sqrt();
        let dims = [width, CHANNELS, patch, patch];
        let weight = s.parameter("patch_embed.proj.weight", &dims, Init::Uniform { limit })?;
        let conv = Op::Conv2d { window, groups: 1 };
        let x = s.op("patch_embed.proj/conv", conv, &[images, weight])?;
        let x = s.reshape("patch_embed.proj/rows", x, &[batch * patches, width])?;
        let x = bias(s, "patch_embed.proj", x, "patch_embed.proj.bias")?;
        let x = s.reshape("patch_embed", x, &[batch, patches, width])?;

        let class = s.parameter("cls_token", &[1, 1, width], Init::Normal { deviation: 1e-6 })?;
        let class = s.expand("class", class, &[batch, 1, width])?;
        let x = s.concat("tokens", 1, &[class, x])?;
        let places = s.parameter("pos_embed", &[1, 1 + patches, width], NORMAL)?;
        let x = s.add("placed", x, places)?;
        s.reshape("rows", x, &[batch * (1 + patches), width])
    }

    fn block(&self, s: &mut Scope<'_>, name: &str, x: Output, heads: Heads) -> Result<Output> {
        let of = |part: &str| format!("{name}.{part}");
        let y = norm(s, &of("norm1"), x, EPSILON)?;
        let y = linear(s, &of("attn.qkv"), y, 3 * self.width, FIRST)?;
        let rows = thirds(s, &of("attn"), y)?;
        let y = attend(s, &of("attn"), rows, heads, Mask::None)?;
        let y = linear(s, &of("attn.proj"), y, self.width, FIRST)?;
        let x = s.add(&of("attn/residual"), x, y)?;

        let y = norm(s, &of("norm2"), x, EPSILON)?;
        let y = linear(s, &of("mlp.fc1"), y, 4 * self.width, FIRST)?;
        let y = s.gelu(&of("mlp"), y)?;
        let y = linear(s, &of("mlp.fc2"), y, self.width, FIRST)?;
        s.add(&of("mlp/residual"), x, y)
    }

    fn patches(&self) -> usize {
        (SIZE / self.patch).pow(2)
    }
}

impl Shipped for Vit {
    fn samples(&self) -> SampleKind {
        SampleKind::Images { dims: [SIZE, SIZE, CHANNELS], classes: 1000 }
    }

    fn optimizer(&self) -> Optimizer {
        Optimizer::adamw(1e-3)
    }
}

impl Model for Vit {
    fn name(&self) -> String {
        self.name.to_string()
    }

    fn check(&self, data: &Description) -> Result<()> {
        check_image(self, data)
    }

    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        let Vit { heads, width, .. } = *self;
        let (batch_size, length) = (batch.size(), 1 + self.patches());
        let heads = Heads { batch: batch_size, length, heads, width };
        let mut x = self.embed(s, batch.input("input")?)?;
        for layer in 0..self.layers {
            x = self.block(s, &format!("blocks.{layer}"), x, heads)?;
        }
        // rows are normalised one by one, and nobody reads those of patches
        let x = s.reshape("norm/tokens", x, &[batch_size, length, width])?;
        let x = s.slice("norm/class", x, 1, 0..1)?;
        let x = s.reshape("norm/rows", x, &[batch_size, width])?;
        let x = norm(s, "norm", x, EPSILON)?;
        let logits = linear(s, "head", x, batch.classes()?, FIRST)?;
        Ok(Outputs::classification(logits, batch.labels()?))
    }
}
