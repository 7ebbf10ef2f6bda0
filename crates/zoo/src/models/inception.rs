//! Inception-v3 (Szegedy et al. 2016) as TF-slim's `inception_v3`, with its auxiliary head: 299×299×3.
//! Convolutions are followed by a batch normalisation without scale and a ReLU.

use tensorwire_nn::{Batch, Description, Model, Norm, Output, Outputs, Padding, Result, Scope};

use super::{Shipped, check_image};
use crate::data::SampleKind;

const NORM: Norm = Norm { epsilon: 1e-3, scaled: false };
/// How much the auxiliary head counts in the loss.
const AUXILIARY: f64 = 0.4;
const KEPT_OUT: f64 = 0.2;

/// One convolution of a branch: its name, output channels and kernel; stride 1, padded to the same size.
type Layer = (&'static str, usize, [usize; 2]);

/// Images of 299×299×3.
#[derive(Clone, Copy, Debug)]
pub struct InceptionV3;

impl Shipped for InceptionV3 {
    fn samples(&self) -> SampleKind {
        SampleKind::Images { dims: [299, 299, 3], classes: 10 }
    }
}

impl Model for InceptionV3 {
    fn name(&self) -> String {
        "inception-v3".to_string()
    }

    fn check(&self, data: &Description) -> Result<()> {
        check_image(self, data)
    }

    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        use Padding::{Same, Valid};
        let (x, labels, classes) = (batch.input("input")?, batch.labels()?, batch.classes()?);
        let y = conv(s, "conv1a", x, 32, [3, 3], 2, Valid)?;
        let y = conv(s, "conv2a", y, 32, [3, 3], 1, Valid)?;
        let y = conv(s, "conv2b", y, 64, [3, 3], 1, Same)?;
        let y = s.max_pool("pool3a", y, 3, 2, Valid)?;
        let y = conv(s, "conv3b", y, 80, [1, 1], 1, Valid)?;
        let y = conv(s, "conv4a", y, 192, [3, 3], 1, Valid)?;
        let mut y = s.max_pool("pool5a", y, 3, 2, Valid)?;
        for (name, pooled) in [("mixed5b", 32), ("mixed5c", 64), ("mixed5d", 64)] {
            y = block_35(s, name, y, pooled)?;
        }
        y = to_17(s, "mixed6a", y)?;
        for (name, inside) in
            [("mixed6b", 128), ("mixed6c", 160), ("mixed6d", 160), ("mixed6e", 192)]
        {
            y = block_17(s, name, y, inside)?;
        }
        // in evaluation nothing uses it, and it is dropped
        let auxiliary = auxiliary(s, y, classes)?;
        y = to_8(s, "mixed7a", y)?;
        for name in ["mixed7b", "mixed7c"] {
            y = block_8(s, name, y)?;
        }
        let y = s.global_avg_pool("pool8", y)?;
        let y = s.dropout("pool8", y, KEPT_OUT)?;
        let logits = s.linear("logits", y, classes)?;
        Ok(Outputs::classification(logits, labels).auxiliary(auxiliary, labels, AUXILIARY))
    }
}

fn auxiliary(s: &mut Scope<'_>, x: Output, classes: usize) -> Result<Output> {
    let y = s.avg_pool("auxiliary/pool", x, 5, 3, Padding::Valid)?;
    let y = conv(s, "auxiliary/conv1", y, 128, [1, 1], 1, Padding::Same)?;
    let y = conv(s, "auxiliary/conv2", y, 768, [5, 5], 1, Padding::Valid)?;
    let y = s.flatten("auxiliary", y)?;
    s.linear("auxiliary/logits", y, classes)
}

/// 35×35.
fn block_35(s: &mut Scope<'_>, name: &str, x: Output, pooled: usize) -> Result<Output> {
    let a = branch(s, name, x, &[("a1", 64, [1, 1])])?;
    let b = branch(s, name, x, &[("b1", 48, [1, 1]), ("b2", 64, [5, 5])])?;
    let c = [("c1", 64, [1, 1]), ("c2", 96, [3, 3]), ("c3", 96, [3, 3])];
    let c = branch(s, name, x, &c)?;
    let d = pool_branch(s, name, x, pooled)?;
    concat(s, name, &[a, b, c, d])
}

/// 35×35 → 17×17.
fn to_17(s: &mut Scope<'_>, name: &str, x: Output) -> Result<Output> {
    let a = conv(s, &format!("{name}/a1"), x, 384, [3, 3], 2, Padding::Valid)?;
    let b = branch(s, name, x, &[("b1", 64, [1, 1]), ("b2", 96, [3, 3])])?;
    let b = conv(s, &format!("{name}/b3"), b, 96, [3, 3], 2, Padding::Valid)?;
    let c = s.max_pool(&format!("{name}/pool"), x, 3, 2, Padding::Valid)?;
    concat(s, name, &[a, b, c])
}

/// 17×17.
fn block_17(s: &mut Scope<'_>, name: &str, x: Output, inside: usize) -> Result<Output> {
    let a = branch(s, name, x, &[("a1", 192, [1, 1])])?;
    let b = [("b1", inside, [1, 1]), ("b2", inside, [1, 7]), ("b3", 192, [7, 1])];
    let b = branch(s, name, x, &b)?;
    let c = [
        ("c1", inside, [1, 1]),
        ("c2", inside, [7, 1]),
        ("c3", inside, [1, 7]),
        ("c4", inside, [7, 1]),
        ("c5", 192, [1, 7]),
    ];
    let c = branch(s, name, x, &c)?;
    let d = pool_branch(s, name, x, 192)?;
    concat(s, name, &[a, b, c, d])
}

/// 17×17 → 8×8.
fn to_8(s: &mut Scope<'_>, name: &str, x: Output) -> Result<Output> {
    let a = branch(s, name, x, &[("a1", 192, [1, 1])])?;
    let a = conv(s, &format!("{name}/a2"), a, 320, [3, 3], 2, Padding::Valid)?;
    let b = [("b1", 192, [1, 1]), ("b2", 192, [1, 7]), ("b3", 192, [7, 1])];
    let b = branch(s, name, x, &b)?;
    let b = conv(s, &format!("{name}/b4"), b, 192, [3, 3], 2, Padding::Valid)?;
    let c = s.max_pool(&format!("{name}/pool"), x, 3, 2, Padding::Valid)?;
    concat(s, name, &[a, b, c])
}

/// 8×8.
fn block_8(s: &mut Scope<'_>, name: &str, x: Output) -> Result<Output> {
    let a = branch(s, name, x, &[("a1", 320, [1, 1])])?;
    let b = branch(s, name, x, &[("b1", 384, [1, 1])])?;
    let b1 = branch(s, name, b, &[("b2", 384, [1, 3])])?;
    let b2 = branch(s, name, b, &[("b3", 384, [3, 1])])?;
    let c = branch(s, name, x, &[("c1", 448, [1, 1]), ("c2", 384, [3, 3])])?;
    let c1 = branch(s, name, c, &[("c3", 384, [1, 3])])?;
    let c2 = branch(s, name, c, &[("c4", 384, [3, 1])])?;
    let d = pool_branch(s, name, x, 192)?;
    concat(s, name, &[a, b1, b2, c1, c2, d])
}

fn branch(s: &mut Scope<'_>, name: &str, x: Output, layers: &[Layer]) -> Result<Output> {
    let mut y = x;
    for (layer, channels, kernel) in layers {
        y = conv(s, &format!("{name}/{layer}"), y, *channels, *kernel, 1, Padding::Same)?;
    }
    Ok(y)
}

fn pool_branch(s: &mut Scope<'_>, name: &str, x: Output, channels: usize) -> Result<Output> {
    let pooled = s.avg_pool(&format!("{name}/pool"), x, 3, 1, Padding::Same)?;
    branch(s, name, pooled, &[("d1", channels, [1, 1])])
}

fn concat(s: &mut Scope<'_>, name: &str, branches: &[Output]) -> Result<Output> {
    s.concat(name, 3, branches)
}

fn conv(
    s: &mut Scope<'_>,
    name: &str,
    x: Output,
    channels: usize,
    kernel: [usize; 2],
    stride: usize,
    padding: Padding,
) -> Result<Output> {
    let y = s.conv2d(name, x, channels, kernel, stride, padding)?;
    let y = s.batch_norm(name, y, NORM)?;
    s.relu(name, y)
}
