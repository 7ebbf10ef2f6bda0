//! Xue et al., table 2 and figure 7: how large models and the tensors of their variables are.

use super::{At, BYTES};
use crate::figure::{Axis, Better, Claim, Figure, Point, Role, Scale, Shape, Unit, Wants};
use crate::line::{Lacks, Line};

pub(crate) const MODEL_SIZE: &str = "model-size";
pub(crate) const TENSOR_SIZES: &str = "tensor-sizes";

const THEIRS: &str = "the paper's";
const TENSORS: &str = "share of all tensors";
const CAPACITY: &str = "their share of all bytes";
/// What the text calls 10 KB and 1 MB.
const KB_10: f64 = 10.0 * 1024.0;
const MB: f64 = 1024.0 * 1024.0;

pub(super) const MODELS: Figure = Figure {
    id: "xue-table-2",
    source: "Xue et al., Table 2",
    title: "Variables of six models",
    says: "MB and variable tensors: AlexNet 176.42 and 16, Inception-v3 92.90 and 196, VGGNet-16 512.32 and 32, LSTM 35.93 and \
           14, GRU 27.92 and 11, FCN-5 204.47 and 10. Their times of a sample, on a P100, are what clusters are simulated with.",
    kinds: &[MODEL_SIZE],
    run: "tensorwire bench evaluation --only sizes --json FILE",
    take: models,
    shape: Shape::Bars,
    y: Axis { title: "all variables", unit: Unit::Bytes, scale: Scale::Linear },
    better: Better::Lower,
    claims: &[Claim::of("as large as theirs", &["here"], &[THEIRS], Wants::Within(0.001))],
};

pub(super) const SIZES: Figure = Figure {
    id: "xue-7",
    source: "Xue et al., Fig. 7",
    title: "Tensors of variables that are larger than so many bytes",
    says: "Of the six models' variable tensors more than 50 % are larger than 10 KB, and more than 20 % larger than 1 MB; those have \
           96 % of the bytes of all.",
    kinds: &[TENSOR_SIZES],
    run: "tensorwire bench evaluation --only sizes --json FILE",
    take: sizes,
    shape: Shape::Lines(BYTES),
    y: Axis { title: "share that is larger", unit: Unit::Plain, scale: Scale::Linear },
    better: Better::Higher,
    claims: &[
        Claim::of("tensors larger than 10 KB", &[TENSORS], &[], Wants::ReachesAt(KB_10, 0.5)),
        Claim::of("tensors larger than 1 MB", &[TENSORS], &[], Wants::ReachesAt(MB, 0.2)),
        Claim::of(
            "bytes in tensors larger than 1 MB",
            &[CAPACITY],
            &[],
            Wants::ReachesAt(MB, 0.96),
        ),
    ],
};

fn models(line: &Line) -> Result<Vec<Point>, Lacks> {
    let (here, theirs) = (line.number("variables")?, line.number("paper_variables")?);
    let subject = format!("{}, {here} variables, {theirs} in the paper", line.text("model")?);
    let at = At { key: 0.0, ..At::x(subject, None, 0.0) };
    let of = |field| line.number(field);
    Ok(vec![
        at.point(Role::Ours, "here", of("bytes")?),
        at.point(Role::Peer, THEIRS, of("paper_bytes")?),
    ])
}

fn sizes(line: &Line) -> Result<Vec<Point>, Lacks> {
    let at = At::x("six models", None, line.number("bytes")?);
    Ok(vec![
        at.point(Role::Ours, TENSORS, line.number("tensors")?),
        at.point(Role::Ours, CAPACITY, line.number("capacity")?),
    ])
}
