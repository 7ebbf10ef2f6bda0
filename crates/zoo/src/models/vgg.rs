//! VGG-16 (Simonyan and Zisserman 2015, configuration D): 224×224×3.

use tensorwire_nn::{
    Batch, Description, Method, Model, Optimizer, Outputs, Padding, Result, Scope,
};

use super::{Shipped, check_image};
use crate::data::SampleKind;

const KEPT_OUT: f64 = 0.5;
/// Convolutions of each block, and their channels.
const BLOCKS: [(usize, usize); 5] = [(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)];

/// Images of 224×224×3.
#[derive(Clone, Copy, Debug)]
pub struct Vgg16;

impl Shipped for Vgg16 {
    fn samples(&self) -> SampleKind {
        SampleKind::Images { dims: [224, 224, 3], classes: 10 }
    }

    fn optimizer(&self) -> Optimizer {
        Method::Momentum { momentum: 0.9 }.at(0.01)
    }
}

impl Model for Vgg16 {
    fn name(&self) -> String {
        "vgg16".to_string()
    }

    fn check(&self, data: &Description) -> Result<()> {
        check_image(self, data)
    }

    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        let mut y = batch.input("input")?;
        for (block, (convolutions, channels)) in (1..).zip(BLOCKS) {
            for at in 1..=convolutions {
                y = s.conv_relu(&format!("conv{block}_{at}"), y, channels, 3, 1, Padding::Same)?;
            }
            y = s.max_pool(&format!("pool{block}"), y, 2, 2, Padding::Valid)?;
        }
        y = s.flatten("pool5", y)?;
        for name in ["fc6", "fc7"] {
            y = s.linear_relu(name, y, 4096)?;
            y = s.dropout(name, y, KEPT_OUT)?;
        }
        let logits = s.linear("fc8", y, batch.classes()?)?;
        Ok(Outputs::classification(logits, batch.labels()?))
    }
}
