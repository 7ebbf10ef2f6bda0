//! VGG-16 (Simonyan and Zisserman 2015, configuration D): 224×224×3.

use tensorwire_graph::{GraphError, Output};

use tensorwire_nn::{Padding, Scope, glorot, he};

const KEPT_OUT: f64 = 0.5;
/// Convolutions of each block, and their channels.
const BLOCKS: [(usize, usize); 5] = [(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)];

/// x: f[batch, 224, 224, 3] → logits: f[batch, classes].
pub(super) fn logits(
    scope: &mut Scope<'_>,
    x: Output,
    classes: usize,
) -> Result<Output, GraphError> {
    let mut y = x;
    for (block, (convolutions, channels)) in (1..).zip(BLOCKS) {
        for at in 1..=convolutions {
            y = scope.conv_relu(&format!("conv{block}_{at}"), y, channels, 3, 1, Padding::Same)?;
        }
        y = scope.max_pool(&format!("pool{block}"), y, 2, 2, Padding::Valid)?;
    }
    y = scope.flatten("pool5", y)?;
    for name in ["fc6", "fc7"] {
        y = scope.dense(name, y, 4096, he)?;
        y = scope.relu(name, y)?;
        y = scope.dropout(name, y, KEPT_OUT)?;
    }
    scope.dense("fc8", y, classes, glorot)
}
