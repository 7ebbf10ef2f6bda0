//! AlexNet as TF-slim's `alexnet_v2` (Krizhevsky 2014, "One weird trick"): 224×224×3. The layers that slim
//! writes as convolutions over a whole image are fully connected here: the same numbers in another order.

use tensorwire_graph::{GraphError, Output};

use tensorwire_nn::{Padding, Scope, glorot, he};

const KEPT_OUT: f64 = 0.5;

/// x: f[batch, 224, 224, 3] → logits: f[batch, classes].
pub(super) fn logits(
    scope: &mut Scope<'_>,
    x: Output,
    classes: usize,
) -> Result<Output, GraphError> {
    let y = scope.conv_relu("conv1", x, 64, 11, 4, Padding::Valid)?;
    let y = scope.max_pool("pool1", y, 3, 2, Padding::Valid)?;
    let y = scope.conv_relu("conv2", y, 192, 5, 1, Padding::Same)?;
    let y = scope.max_pool("pool2", y, 3, 2, Padding::Valid)?;
    let y = scope.conv_relu("conv3", y, 384, 3, 1, Padding::Same)?;
    let y = scope.conv_relu("conv4", y, 384, 3, 1, Padding::Same)?;
    let y = scope.conv_relu("conv5", y, 256, 3, 1, Padding::Same)?;
    let y = scope.max_pool("pool5", y, 3, 2, Padding::Valid)?;
    let mut y = scope.flatten("pool5", y)?;
    for name in ["fc6", "fc7"] {
        y = scope.dense(name, y, 4096, he)?;
        y = scope.relu(name, y)?;
        y = scope.dropout(name, y, KEPT_OUT)?;
    }
    scope.dense("fc8", y, classes, glorot)
}
