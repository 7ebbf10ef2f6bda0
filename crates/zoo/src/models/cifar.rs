//! The CIFAR-10 network of TensorFlow's tutorial: two convolutions with pooling and local response
//! normalisation, two fully connected layers. Takes images of any size from [`SIZE_MIN`] on.

use tensorwire_graph::{GraphError, Op, Output};

use tensorwire_nn::{Padding, Scope, glorot, he};

/// Pooled twice by two, an image must leave something to look at.
pub(super) const SIZE_MIN: usize = 4;

const NORM: Op = Op::LocalResponseNorm { size: 9, alpha: 0.001 / 9.0, beta: 0.75, bias: 1.0 };

/// x: f[batch, h, w, c] → logits: f[batch, classes].
pub(super) fn logits(
    scope: &mut Scope<'_>,
    x: Output,
    classes: usize,
) -> Result<Output, GraphError> {
    let y = scope.conv_relu("conv1", x, 64, 5, 1, Padding::Same)?;
    let y = scope.max_pool("pool1", y, 3, 2, Padding::Same)?;
    let y = scope.add("norm1", NORM, &[y])?;
    let y = scope.conv_relu("conv2", y, 64, 5, 1, Padding::Same)?;
    let y = scope.add("norm2", NORM, &[y])?;
    let y = scope.max_pool("pool2", y, 3, 2, Padding::Same)?;
    let mut y = scope.flatten("pool2", y)?;
    for (name, width) in [("local3", 384), ("local4", 192)] {
        y = scope.dense(name, y, width, he)?;
        y = scope.relu(name, y)?;
    }
    scope.dense("softmax", y, classes, glorot)
}
