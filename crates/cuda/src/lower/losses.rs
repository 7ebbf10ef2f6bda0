//! Losses of rows of logits, and how many rows are right. Labels are checked by the device.

use tensorwire_graph::Op;
use tensorwire_tensor::DType;

use super::reductions::teams;
use crate::builder::{Builder, arguments, computed_bytes, is_narrow};
use crate::command::{Address, KernelArgument};
use crate::error::LowerError;
use crate::fault::Check;
use crate::kernels;

/// The label of padding where nothing else is said.
const PADDING: i32 = -1;

pub(super) fn lower(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    match *builder.op {
        Op::SoftmaxCrossEntropy => cross_entropy(builder, 0.0, PADDING),
        Op::CrossEntropy { smoothing, ignored } => cross_entropy(builder, smoothing, ignored),
        Op::CountCorrect => count_within(builder, 1),
        Op::CountWithin { k } => count_within(builder, k),
        _ => Err(builder.no_kernel()),
    }
}

/// Rows and classes.
fn sizes(builder: &Builder<'_>) -> [usize; 2] {
    match *builder.inputs[0].dims() {
        [rows, classes] => [rows, classes],
        _ => [0; 2],
    }
}

fn check_labels(builder: &mut Builder<'_>, ignored: i32, counted: Option<Address>) {
    let [rows, classes] = sizes(builder);
    let op = builder.name();
    let code = builder.check(Check::Label { op, classes, ignored });
    let (labels, fault) = (builder.input(1), KernelArgument::Fault);
    let ignored = i64::from(ignored);
    let fields = arguments![rows, classes, ignored, labels, counted, fault, code];
    builder.spread_blocks(kernels::CHECK_LABELS, 1, fields);
}

fn cross_entropy(
    builder: &mut Builder<'_>,
    smoothing: f64,
    ignored: i32,
) -> Result<(), LowerError> {
    let ([rows, classes], dtype) = (sizes(builder), builder.inputs[0].dtype);
    let counted = builder.workspace(1, DType::I64.bytes())?;
    let losses = builder.workspace(rows, computed_bytes(dtype))?;
    check_labels(builder, ignored, Some(counted));
    let kernel = builder.of_reals(kernels::CROSS_ENTROPY, dtype)?;
    let (blocks, by_block) = teams(rows, classes);
    let (logits, labels) = (builder.input(0), builder.input(1));
    let (loss, dlogits) = (builder.output(0), builder.output(1));
    let ignored = i64::from(ignored);
    let narrow = is_narrow(dtype);
    let fields = arguments![
        rows, classes, smoothing, ignored, narrow, logits, labels, counted, losses, dlogits,
        by_block
    ];
    builder.spread_blocks(kernel, blocks, fields);
    let kernel = builder.of_reals(kernels::SUM_LOSSES, dtype)?;
    builder.spread_blocks(kernel, 1, arguments![rows, losses, counted, loss, narrow]);
    Ok(())
}

fn count_within(builder: &mut Builder<'_>, within: usize) -> Result<(), LowerError> {
    let [rows, classes] = sizes(builder);
    check_labels(builder, PADDING, None);
    let correct = builder.output(0);
    builder.zero(correct, DType::I64.bytes());
    let dtype = builder.inputs[0].dtype;
    let kernel = builder.of_reals(kernels::COUNT_WITHIN, dtype)?;
    let (blocks, _) = teams(rows, 1);
    // more than there are classes is all of them
    let within = within.min(classes.saturating_add(1));
    let (logits, labels) = (builder.input(0), builder.input(1));
    let fields = arguments![rows, classes, within, is_narrow(dtype), logits, labels, correct];
    builder.spread_blocks(kernel, blocks, fields);
    Ok(())
}
