//! Operators that change variables in place.

use tensorwire_graph::{Method, Op, Rule};
use tensorwire_tensor::DType;

use super::element_wise::parts;
use super::rows;
use crate::builder::{Builder, THREADS, arguments, is_narrow};
use crate::command::{Address, KernelArgument};
use crate::error::LowerError;
use crate::kernels;

/// Blocks that add up the norms of LAMB.
const LAMB_BLOCKS: usize = 1024;

pub(super) fn lower(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    match *builder.op {
        Op::Apply { rule, clipped } if rule.method.needs_whole() => lamb(builder, rule, clipped),
        Op::Apply { rule, clipped } => {
            let kernel = builder.of_reals(kernels::APPLY, builder.outputs[0].dtype)?;
            let fields = apply_fields(builder, rule, clipped)?;
            builder.spread(kernel, builder.outputs[0].elements(), fields);
            Ok(())
        }
        Op::ApplyRows { rule } => rows::apply_rows(builder, rule),
        Op::ApplyAverage { rate } => apply_average(builder, rate),
        _ => Err(builder.no_kernel()),
    }
}

/// The variable and its slots, but for the count of steps.
pub(super) fn state(builder: &Builder<'_>) -> [KernelArgument; 3] {
    [0, 1, 2].map(|place| match builder.outputs.get(place).map(|spec| spec.dtype) {
        Some(dtype) if dtype != DType::I64 => builder.output(place).into(),
        _ => KernelArgument::Nothing,
    })
}

/// The fields of `Rule`. Where steps are counted this one is.
pub(super) fn rule_fields(
    builder: &mut Builder<'_>,
    rule: Rule,
) -> Result<Vec<KernelArgument>, LowerError> {
    let (code, first, second, epsilon) = numbers(rule.method);
    let bias = match rule.method.counts_steps() {
        true => {
            let bias = builder.workspace(2, DType::F64.bytes())?;
            let steps = builder.output(rule.slots());
            builder.spread_blocks(kernels::COUNT_STEP, 1, arguments![steps, bias, first, second]);
            Some(bias)
        }
        false => None,
    };
    let factor = KernelArgument::RateFactor;
    Ok(arguments![code, rule.rate, factor, rule.decay, first, second, epsilon, bias])
}

/// The method's code in `kernels/rule.cuh`, and its parameters.
fn numbers(method: Method) -> (i64, f64, f64, f64) {
    match method {
        Method::Sgd => (0, 0.0, 0.0, 0.0),
        Method::Momentum { momentum } => (1, momentum, 0.0, 0.0),
        Method::Nesterov { momentum } => (2, momentum, 0.0, 0.0),
        Method::AdaGrad { epsilon } => (3, 0.0, 0.0, epsilon),
        Method::RmsProp { alpha, epsilon } => (4, alpha, 0.0, epsilon),
        Method::Adam { beta1, beta2, epsilon } => (5, beta1, beta2, epsilon),
        Method::AdamW { beta1, beta2, epsilon } => (6, beta1, beta2, epsilon),
        Method::Lamb { beta1, beta2, epsilon } => (7, beta1, beta2, epsilon),
    }
}

/// The fields of `Apply`.
fn apply_fields(
    builder: &mut Builder<'_>,
    rule: Rule,
    clipped: bool,
) -> Result<Vec<KernelArgument>, LowerError> {
    let v = &builder.outputs[0];
    let first = usize::from(clipped);
    let clip = clipped.then(|| builder.input(0));
    let gradients = builder.input_range(first..builder.inputs.len());
    let ranks = gradients.len();
    let parts = parts(builder, gradients, v)?;
    let rule = rule_fields(builder, rule)?;
    let [value, slot, other] = state(builder);
    let narrow = is_narrow(v.dtype);
    let fields = arguments![v.elements(), value, narrow, slot, other, ranks, clip];
    Ok([fields, rule, parts].concat())
}

fn lamb(builder: &mut Builder<'_>, rule: Rule, clipped: bool) -> Result<(), LowerError> {
    let v = &builder.outputs[0];
    let count = v.elements();
    let moments = builder.of_reals(kernels::LAMB_MOMENTS, v.dtype)?;
    let step = builder.of_reals(kernels::LAMB_STEP, v.dtype)?;
    let fields = apply_fields(builder, rule, clipped)?;
    // behind the count, the state, the ranks and the clip
    let rule_at = 7;
    let rule: Vec<KernelArgument> = fields[rule_at..rule_at + 8].to_vec();
    let blocks = count.div_ceil(THREADS).min(LAMB_BLOCKS);
    let norms = builder.workspace(2 * blocks, DType::F64.bytes())?;
    let ratio = builder.workspace(1, DType::F64.bytes())?;
    builder.spread_blocks(moments, blocks, [arguments![norms], fields].concat());
    builder.spread_blocks(kernels::LAMB_RATIO, 1, arguments![blocks, norms, ratio]);
    let narrow = is_narrow(v.dtype);
    let [v, m, s] = state(builder);
    builder.spread(step, count, [arguments![count, v, narrow, m, s, ratio], rule].concat());
    Ok(())
}

fn apply_average(builder: &mut Builder<'_>, rate: f64) -> Result<(), LowerError> {
    let (v, ranks) = (&builder.outputs[0], builder.inputs.len());
    let kernel = builder.of_reals(kernels::APPLY_AVERAGE, v.dtype)?;
    let values: Vec<Address> = builder.input_range(0..ranks);
    let parts = parts(builder, values, v)?;
    let fields = arguments![v.elements(), builder.output(0), is_narrow(v.dtype), ranks, rate];
    builder.spread(kernel, v.elements(), [fields, parts].concat());
    Ok(())
}
