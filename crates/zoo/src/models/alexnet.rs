//! AlexNet as TF-slim's `alexnet_v2` (Krizhevsky 2014, "One weird trick"): 224×224×3. The layers that slim
//! writes as convolutions over a whole image are fully connected here: the same numbers in another order.

use tensorwire_nn::{
    Batch, Description, Method, Model, Optimizer, Outputs, Padding, Result, Scope,
};

use super::{Shipped, check_image};
use crate::data::SampleKind;

const KEPT_OUT: f64 = 0.5;

/// Images of 224×224×3.
#[derive(Clone, Copy, Debug)]
pub struct AlexNet;

impl Shipped for AlexNet {
    fn samples(&self) -> SampleKind {
        SampleKind::Images { dims: [224, 224, 3], classes: 10 }
    }

    fn optimizer(&self) -> Optimizer {
        Method::Momentum { momentum: 0.9 }.at(0.01)
    }
}

impl Model for AlexNet {
    fn name(&self) -> String {
        "alexnet".to_string()
    }

    fn check(&self, data: &Description) -> Result<()> {
        check_image(self, data)
    }

    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        let x = batch.input("input")?;
        let y = s.conv_relu("conv1", x, 64, 11, 4, Padding::Valid)?;
        let y = s.max_pool("pool1", y, 3, 2, Padding::Valid)?;
        let y = s.conv_relu("conv2", y, 192, 5, 1, Padding::Same)?;
        let y = s.max_pool("pool2", y, 3, 2, Padding::Valid)?;
        let y = s.conv_relu("conv3", y, 384, 3, 1, Padding::Same)?;
        let y = s.conv_relu("conv4", y, 384, 3, 1, Padding::Same)?;
        let y = s.conv_relu("conv5", y, 256, 3, 1, Padding::Same)?;
        let y = s.max_pool("pool5", y, 3, 2, Padding::Valid)?;
        let mut y = s.flatten("pool5", y)?;
        for name in ["fc6", "fc7"] {
            y = s.linear_relu(name, y, 4096)?;
            y = s.dropout(name, y, KEPT_OUT)?;
        }
        let logits = s.linear("fc8", y, batch.classes()?)?;
        Ok(Outputs::classification(logits, batch.labels()?))
    }
}
