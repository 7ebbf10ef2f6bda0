//! Inception-v3 (Szegedy et al. 2016) as TF-slim's `inception_v3`, with its auxiliary head: 299×299×3.
//! Convolutions are followed by a batch normalisation without scale and a ReLU.

use tensorwire_graph::{GraphError, Op, Output};

use super::Logits;
use tensorwire_nn::{Norm, Padding, Scope, glorot};

const NORM: Norm = Norm { epsilon: 1e-3, scaled: false };
/// How much the auxiliary head counts in the loss.
const AUXILIARY: f64 = 0.4;
const KEPT_OUT: f64 = 0.2;

/// One convolution of a branch: its name, output channels and kernel; stride 1, padded to the same size.
type Layer = (&'static str, usize, [usize; 2]);

/// x: f[batch, 299, 299, 3] → logits: f[batch, classes], twice.
pub(super) fn logits(
    scope: &mut Scope<'_>,
    x: Output,
    classes: usize,
) -> Result<Logits, GraphError> {
    use Padding::{Same, Valid};
    let y = conv(scope, "conv1a", x, 32, [3, 3], 2, Valid)?;
    let y = conv(scope, "conv2a", y, 32, [3, 3], 1, Valid)?;
    let y = conv(scope, "conv2b", y, 64, [3, 3], 1, Same)?;
    let y = scope.max_pool("pool3a", y, 3, 2, Valid)?;
    let y = conv(scope, "conv3b", y, 80, [1, 1], 1, Valid)?;
    let y = conv(scope, "conv4a", y, 192, [3, 3], 1, Valid)?;
    let mut y = scope.max_pool("pool5a", y, 3, 2, Valid)?;
    for (name, pooled) in [("mixed5b", 32), ("mixed5c", 64), ("mixed5d", 64)] {
        y = block_35(scope, name, y, pooled)?;
    }
    y = to_17(scope, "mixed6a", y)?;
    for (name, inside) in [("mixed6b", 128), ("mixed6c", 160), ("mixed6d", 160), ("mixed6e", 192)] {
        y = block_17(scope, name, y, inside)?;
    }
    // in evaluation nothing uses it, and it is dropped
    let auxiliary = auxiliary(scope, y, classes)?;
    y = to_8(scope, "mixed7a", y)?;
    for name in ["mixed7b", "mixed7c"] {
        y = block_8(scope, name, y)?;
    }
    let y = scope.global_avg_pool("pool8", y)?;
    let y = scope.dropout("pool8", y, KEPT_OUT)?;
    let logits = scope.dense("logits", y, classes, glorot)?;
    Ok(Logits { logits, auxiliary: Some((auxiliary, AUXILIARY)) })
}

fn auxiliary(scope: &mut Scope<'_>, x: Output, classes: usize) -> Result<Output, GraphError> {
    let y = scope.avg_pool("auxiliary/pool", x, 5, 3, Padding::Valid)?;
    let y = conv(scope, "auxiliary/conv1", y, 128, [1, 1], 1, Padding::Same)?;
    let y = conv(scope, "auxiliary/conv2", y, 768, [5, 5], 1, Padding::Valid)?;
    let y = scope.flatten("auxiliary", y)?;
    scope.dense("auxiliary/logits", y, classes, glorot)
}

/// 35×35.
fn block_35(
    scope: &mut Scope<'_>,
    name: &str,
    x: Output,
    pooled: usize,
) -> Result<Output, GraphError> {
    let a = branch(scope, name, x, &[("a1", 64, [1, 1])])?;
    let b = branch(scope, name, x, &[("b1", 48, [1, 1]), ("b2", 64, [5, 5])])?;
    let c = [("c1", 64, [1, 1]), ("c2", 96, [3, 3]), ("c3", 96, [3, 3])];
    let c = branch(scope, name, x, &c)?;
    let d = pool_branch(scope, name, x, pooled)?;
    concat(scope, name, &[a, b, c, d])
}

/// 35×35 → 17×17.
fn to_17(scope: &mut Scope<'_>, name: &str, x: Output) -> Result<Output, GraphError> {
    let a = conv(scope, &format!("{name}/a1"), x, 384, [3, 3], 2, Padding::Valid)?;
    let b = branch(scope, name, x, &[("b1", 64, [1, 1]), ("b2", 96, [3, 3])])?;
    let b = conv(scope, &format!("{name}/b3"), b, 96, [3, 3], 2, Padding::Valid)?;
    let c = scope.max_pool(&format!("{name}/pool"), x, 3, 2, Padding::Valid)?;
    concat(scope, name, &[a, b, c])
}

/// 17×17.
fn block_17(
    scope: &mut Scope<'_>,
    name: &str,
    x: Output,
    inside: usize,
) -> Result<Output, GraphError> {
    let a = branch(scope, name, x, &[("a1", 192, [1, 1])])?;
    let b = [("b1", inside, [1, 1]), ("b2", inside, [1, 7]), ("b3", 192, [7, 1])];
    let b = branch(scope, name, x, &b)?;
    let c = [
        ("c1", inside, [1, 1]),
        ("c2", inside, [7, 1]),
        ("c3", inside, [1, 7]),
        ("c4", inside, [7, 1]),
        ("c5", 192, [1, 7]),
    ];
    let c = branch(scope, name, x, &c)?;
    let d = pool_branch(scope, name, x, 192)?;
    concat(scope, name, &[a, b, c, d])
}

/// 17×17 → 8×8.
fn to_8(scope: &mut Scope<'_>, name: &str, x: Output) -> Result<Output, GraphError> {
    let a = branch(scope, name, x, &[("a1", 192, [1, 1])])?;
    let a = conv(scope, &format!("{name}/a2"), a, 320, [3, 3], 2, Padding::Valid)?;
    let b = [("b1", 192, [1, 1]), ("b2", 192, [1, 7]), ("b3", 192, [7, 1])];
    let b = branch(scope, name, x, &b)?;
    let b = conv(scope, &format!("{name}/b4"), b, 192, [3, 3], 2, Padding::Valid)?;
    let c = scope.max_pool(&format!("{name}/pool"), x, 3, 2, Padding::Valid)?;
    concat(scope, name, &[a, b, c])
}

/// 8×8.
fn block_8(scope: &mut Scope<'_>, name: &str, x: Output) -> Result<Output, GraphError> {
    let a = branch(scope, name, x, &[("a1", 320, [1, 1])])?;
    let b = branch(scope, name, x, &[("b1", 384, [1, 1])])?;
    let b1 = branch(scope, name, b, &[("b2", 384, [1, 3])])?;
    let b2 = branch(scope, name, b, &[("b3", 384, [3, 1])])?;
    let c = branch(scope, name, x, &[("c1", 448, [1, 1]), ("c2", 384, [3, 3])])?;
    let c1 = branch(scope, name, c, &[("c3", 384, [1, 3])])?;
    let c2 = branch(scope, name, c, &[("c4", 384, [3, 1])])?;
    let d = pool_branch(scope, name, x, 192)?;
    concat(scope, name, &[a, b1, b2, c1, c2, d])
}

fn branch(
    scope: &mut Scope<'_>,
    name: &str,
    x: Output,
    layers: &[Layer],
) -> Result<Output, GraphError> {
    let mut y = x;
    for (layer, channels, kernel) in layers {
        y = conv(scope, &format!("{name}/{layer}"), y, *channels, *kernel, 1, Padding::Same)?;
    }
    Ok(y)
}

fn pool_branch(
    scope: &mut Scope<'_>,
    name: &str,
    x: Output,
    channels: usize,
) -> Result<Output, GraphError> {
    let pooled = scope.avg_pool(&format!("{name}/pool"), x, 3, 1, Padding::Same)?;
    branch(scope, name, pooled, &[("d1", channels, [1, 1])])
}

fn concat(scope: &mut Scope<'_>, name: &str, branches: &[Output]) -> Result<Output, GraphError> {
    scope.add(name, Op::Concat { axis: 3 }, branches)
}

fn conv(
    scope: &mut Scope<'_>,
    name: &str,
    x: Output,
    channels: usize,
    kernel: [usize; 2],
    stride: usize,
    padding: Padding,
) -> Result<Output, GraphError> {
    let y = scope.conv(name, x, channels, kernel, stride, padding)?;
    let y = scope.batch_norm(name, y, NORM)?;
    scope.relu(name, y)
}
