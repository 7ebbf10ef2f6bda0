//! The CIFAR-10 network of TensorFlow's tutorial: two convolutions with pooling and local response
//! normalisation, two fully connected layers. Takes images of any size from [`SIZE_MIN`] on.

use tensorwire_nn::{Batch, Description, Error, LocalNorm, Model, Outputs, Padding, Result, Scope};

use super::{Shipped, kind_of};
use crate::data::SampleKind;

/// Pooled twice by two, an image must leave something to look at.
const SIZE_MIN: usize = 4;

const NORM: LocalNorm = LocalNorm { size: 9, alpha: 0.001 / 9.0, beta: 0.75, bias: 1.0 };

/// Images of any size from 4×4 on.
#[derive(Clone, Copy, Debug)]
pub struct Cifar;

impl Shipped for Cifar {
    fn samples(&self) -> SampleKind {
        SampleKind::Images { dims: [32, 32, 3], classes: 10 }
    }
}

impl Model for Cifar {
    fn name(&self) -> String {
        "cifar".to_string()
    }

    fn check(&self, data: &Description) -> Result<()> {
        match kind_of(self, data)? {
            SampleKind::Images { dims: [height, width, _], .. } if height.min(width) < SIZE_MIN => {
                Err(Error::Mismatch(format!(
                    "cifar needs images of at least {SIZE_MIN}×{SIZE_MIN}, and the data's are {height}×{width}"
                )))
            }
            _ => Ok(()),
        }
    }

    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        let x = batch.input("input")?;
        let y = s.conv_relu("conv1", x, 64, 5, 1, Padding::Same)?;
        let y = s.max_pool("pool1", y, 3, 2, Padding::Same)?;
        let y = s.local_response_norm("norm1", y, NORM)?;
        let y = s.conv_relu("conv2", y, 64, 5, 1, Padding::Same)?;
        let y = s.local_response_norm("norm2", y, NORM)?;
        let y = s.max_pool("pool2", y, 3, 2, Padding::Same)?;
        let mut y = s.flatten("pool2", y)?;
        for (name, width) in [("local3", 384), ("local4", 192)] {
            y = s.linear_relu(name, y, width)?;
        }
        let logits = s.linear("softmax", y, batch.classes()?)?;
        Ok(Outputs::classification(logits, batch.labels()?))
    }
}
