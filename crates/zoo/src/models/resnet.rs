//! ResNet-50 (He et al. 2016, table 1), with the stride in a block's 3×3 convolution as everybody trains it
//! today: 224×224×3.

use tensorwire_graph::{GraphError, Op, Output};

use tensorwire_nn::{Norm, Padding, Scope, glorot};

/// Blocks of each stage, and the channels inside; four times as many come out.
const STAGES: [(usize, usize); 4] = [(3, 64), (4, 128), (6, 256), (3, 512)];
const NORM: Norm = Norm { epsilon: 1e-5, scaled: true };

/// x: f[batch, 224, 224, 3] → logits: f[batch, classes].
pub(super) fn logits(
    scope: &mut Scope<'_>,
    x: Output,
    classes: usize,
) -> Result<Output, GraphError> {
    let y = conv_norm(scope, "conv1", x, 64, 7, 2)?;
    let y = scope.relu("conv1", y)?;
    let mut y = scope.max_pool("pool1", y, 3, 2, Padding::Of([1, 1]))?;
    for (stage, (blocks, channels)) in (1..).zip(STAGES) {
        for block in 1..=blocks {
            let stride = if block == 1 && stage > 1 { 2 } else { 1 };
            y = bottleneck(scope, &format!("stage{stage}/block{block}"), y, channels, stride)?;
        }
    }
    let y = scope.global_avg_pool("pool5", y)?;
    scope.dense("output", y, classes, glorot)
}

fn bottleneck(
    scope: &mut Scope<'_>,
    name: &str,
    x: Output,
    channels: usize,
    stride: usize,
) -> Result<Output, GraphError> {
    let shortcut = match name.ends_with("block1") {
        true => conv_norm(scope, &format!("{name}/shortcut"), x, 4 * channels, 1, stride)?,
        false => x,
    };
    let mut y = x;
    for (layer, kernel, stride) in [("conv1", 1, 1), ("conv2", 3, stride)] {
        let layer = format!("{name}/{layer}");
        y = conv_norm(scope, &layer, y, channels, kernel, stride)?;
        y = scope.relu(&layer, y)?;
    }
    y = conv_norm(scope, &format!("{name}/conv3"), y, 4 * channels, 1, 1)?;
    y = scope.add(&format!("{name}/sum"), Op::Add, &[y, shortcut])?;
    scope.relu(name, y)
}

fn conv_norm(
    scope: &mut Scope<'_>,
    name: &str,
    x: Output,
    channels: usize,
    kernel: usize,
    stride: usize,
) -> Result<Output, GraphError> {
    let padding = Padding::Of([kernel / 2, kernel / 2]);
    let y = scope.conv(name, x, channels, [kernel, kernel], stride, padding)?;
    scope.batch_norm(name, y, NORM)
}
