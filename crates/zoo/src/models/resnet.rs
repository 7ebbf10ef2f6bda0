//! ResNet-50 (He et al. 2016, table 1), with the stride in a block's 3×3 convolution as everybody trains it
//! today: 224×224×3.

use tensorwire_nn::{Batch, Description, Model, Norm, Output, Outputs, Padding, Result, Scope};

use super::{Shipped, check_image};
use crate::data::SampleKind;

/// Blocks of each stage, and the channels inside; four times as many come out.
const STAGES: [(usize, usize); 4] = [(3, 64), (4, 128), (6, 256), (3, 512)];
const NORM: Norm = Norm { epsilon: 1e-5, scaled: true };

/// Images of 224×224×3.
#[derive(Clone, Copy, Debug)]
pub struct ResNet50;

impl Shipped for ResNet50 {
    fn samples(&self) -> SampleKind {
        SampleKind::Images { dims: [224, 224, 3], classes: 1000 }
    }
}

impl Model for ResNet50 {
    fn name(&self) -> String {
        "resnet50".to_string()
    }

    fn check(&self, data: &Description) -> Result<()> {
        check_image(self, data)
    }

    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        let x = batch.input("input")?;
        let y = conv_norm(s, "conv1", x, 64, 7, 2)?;
        let y = s.relu("conv1", y)?;
        let mut y = s.max_pool("pool1", y, 3, 2, Padding::Of([1, 1]))?;
        for (stage, (blocks, channels)) in (1..).zip(STAGES) {
            for block in 1..=blocks {
                let stride = if block == 1 && stage > 1 { 2 } else { 1 };
                y = bottleneck(s, &format!("stage{stage}/block{block}"), y, channels, stride)?;
            }
        }
        let y = s.global_avg_pool("pool5", y)?;
        let logits = s.linear("output", y, batch.classes()?)?;
        Ok(Outputs::classification(logits, batch.labels()?))
    }
}

fn bottleneck(
    s: &mut Scope<'_>,
    name: &str,
    x: Output,
    channels: usize,
    stride: usize,
) -> Result<Output> {
    let shortcut = match name.ends_with("block1") {
        true => conv_norm(s, &format!("{name}/shortcut"), x, 4 * channels, 1, stride)?,
        false => x,
    };
    let mut y = x;
    for (layer, kernel, stride) in [("conv1", 1, 1), ("conv2", 3, stride)] {
        let layer = format!("{name}/{layer}");
        y = conv_norm(s, &layer, y, channels, kernel, stride)?;
        y = s.relu(&layer, y)?;
    }
    y = conv_norm(s, &format!("{name}/conv3"), y, 4 * channels, 1, 1)?;
    y = s.add(&format!("{name}/sum"), y, shortcut)?;
    s.relu(name, y)
}

fn conv_norm(
    s: &mut Scope<'_>,
    name: &str,
    x: Output,
    channels: usize,
    kernel: usize,
    stride: usize,
) -> Result<Output> {
    let padding = Padding::Of([kernel / 2, kernel / 2]);
    let y = s.conv2d(name, x, channels, [kernel, kernel], stride, padding)?;
    s.batch_norm(name, y, NORM)
}
