//! Elements of operands whose dimensions differ, and choices between elements.

use tensorwire_graph::{Binary, Comparison, Op};
use tensorwire_tensor::{DType, RANK_MAX};

use crate::builder::{Builder, arguments, is_narrow};
use crate::command::KernelArgument;
use crate::error::LowerError;
use crate::kernels;

/// A dimension of a large tensor, and how far apart its elements lie in two operands, where a step of 0 repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Side {
    size: usize,
    steps: [usize; 2],
}

pub(super) fn lower(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    match *builder.op {
        Op::Binary { by } => {
            let kernel = builder.of_reals(kernels::BINARY, builder.inputs[0].dtype)?;
            let code: i64 = match by {
                Binary::Add => 0,
                Binary::Sub => 1,
                Binary::Mul => 2,
                Binary::Div => 3,
                Binary::Max => 4,
                Binary::Min => 5,
            };
            broadcast(builder, kernel, code);
            Ok(())
        }
        Op::Compare { by } => {
            let kernel = comparing(builder.inputs[0].dtype);
            let code: i64 = match by {
                Comparison::Equal => 0,
                Comparison::NotEqual => 1,
                Comparison::Less => 2,
                Comparison::LessEqual => 3,
                Comparison::Greater => 4,
                Comparison::GreaterEqual => 5,
            };
            broadcast(builder, kernel, code);
            Ok(())
        }
        Op::Select => {
            select(builder, Some(1), 2, true);
            Ok(())
        }
        Op::SelectGrad { holds } => {
            select(builder, None, 1, holds);
            Ok(())
        }
        _ => Err(builder.no_kernel()),
    }
}

fn comparing(dtype: DType) -> &'static str {
    let [i32, i64, u8] = kernels::COMPARE_INTEGERS;
    match dtype {
        DType::I64 => i64,
        DType::U8 => u8,
        floating_or_i32 => kernels::COMPARE.of(floating_or_i32).unwrap_or(i32),
    }
}

fn broadcast(builder: &mut Builder<'_>, kernel: &'static str, code: i64) {
    let (a, b, y) = (&builder.inputs[0], &builder.inputs[1], &builder.outputs[0]);
    let sides = sides(y.dims(), [a.dims(), b.dims()]);
    let (first, second, made) = (builder.input(0), builder.input(1), builder.output(0));
    let narrow = is_narrow(a.dtype);
    let fields = arguments![code, y.elements(), narrow, first, second, made];
    builder.spread(kernel, y.elements(), [fields, sides].concat());
}

/// The first input where the condition is `holds`, else input `other`, or 0.
fn select(builder: &mut Builder<'_>, other: Option<usize>, condition: usize, holds: bool) {
    let x = &builder.inputs[0];
    let other = other.map(|place| builder.input(place));
    let (first, condition, y) = (builder.input(0), builder.input(condition), builder.output(0));
    let arguments = arguments![x.elements(), first, other, condition, y, holds];
    builder.spread(kernels::SELECT.of(x.dtype), x.elements(), arguments);
}

/// x repeated to the output's dimensions.
pub(super) fn expand(builder: &mut Builder<'_>) {
    let (x, y) = (&builder.inputs[0], &builder.outputs[0]);
    let sides = sides(y.dims(), [x.dims(), x.dims()]);
    let fields = arguments![y.elements(), builder.input(0), builder.output(0)];
    builder.spread(kernels::EXPAND.of(x.dtype), y.elements(), [fields, sides].concat());
}

/// The fields of `Sides`: the dimensions of `full`, without those of 1, where those that lie alike in both operands are
/// one. The operands' dimensions, from the last, are those of `full` or 1.
fn sides(full: &[usize], operands: [&[usize]; 2]) -> Vec<KernelArgument> {
    let sides = merged(full, operands);
    let column = |value: &dyn Fn(&Side) -> usize| {
        let mut column: Vec<usize> = sides.iter().map(value).collect();
        column.resize(RANK_MAX, 0);
        column.into_iter().map(KernelArgument::from).collect::<Vec<_>>()
    };
    [
        arguments![sides.len()],
        column(&|side| side.size),
        column(&|side| side.steps[0]),
        column(&|side| side.steps[1]),
    ]
    .concat()
}

fn merged(full: &[usize], operands: [&[usize]; 2]) -> Vec<Side> {
    let mut sides: Vec<Side> = Vec::with_capacity(full.len());
    for (axis, &size) in full.iter().enumerate().filter(|(_, size)| **size != 1) {
        let behind = full.len() - axis;
        let steps = operands.map(|dims| match dims.len().checked_sub(behind) {
            Some(at) if dims[at] != 1 => dims[at + 1..].iter().product(),
            _ => 0,
        });
        match sides.last_mut() {
            Some(last) if last.steps == steps.map(|step| step * size) => {
                *last = Side { size: last.size * size, steps };
            }
            _ => sides.push(Side { size, steps }),
        }
    }
    sides
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_alike_is_one_side() {
        let side = |size, steps| Side { size, steps };
        assert_eq!(merged(&[2, 3, 4], [&[2, 3, 4], &[4]]), [side(6, [4, 0]), side(4, [1, 1])]);
        assert_eq!(merged(&[2, 3, 4], [&[2, 3, 4], &[2, 3, 4]]), [side(24, [1, 1])]);
        assert_eq!(merged(&[2, 3, 4], [&[2, 3, 4], &[]]), [side(24, [1, 0])]);
    }
}
