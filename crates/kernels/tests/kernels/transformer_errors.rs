//! As `errors.rs`, for operators of transformers: operands that do not fit are named.

use crate::common::{Tensor, all, try_run};
use tensorwire_graph::{
    Attention, AttentionMask, Binary, Comparison, HeadOrder, Op, Rotary, SampleNorm, Unary,
};
use tensorwire_kernels::{KernelError, Operand};
use tensorwire_tensor::{DType, Dim};

/// The error of every back end, which is the same.
#[track_caller]
fn error(op: &Op, inputs: &[&[usize]], outputs: &[&[usize]]) -> KernelError {
    let tensor = |dims: &&[usize]| Tensor::unwritten(DType::F32, dims);
    let inputs: Vec<Tensor> = inputs.iter().map(tensor).collect();
    let mut errors = Vec::new();
    for kernels in all() {
        let mut outputs: Vec<Tensor> = outputs.iter().map(tensor).collect();
        errors.push(try_run(&kernels, op, &inputs, &mut outputs).unwrap_err());
    }
    assert!(errors.iter().all(|error| *error == errors[0]));
    errors.swap_remove(0)
}

#[track_caller]
fn misshapen(op: &Op, inputs: &[&[usize]], outputs: &[&[usize]], wanted: Operand) {
    match error(op, inputs, outputs) {
        KernelError::Shape { operand, .. } | KernelError::NoElements { operand, .. } => {
            assert_eq!(operand, wanted, "{op:?}");
        }
        other => panic!("{op:?}: {other}"),
    }
}

#[test]
fn operands_that_do_not_fit_are_named() {
    use Operand::{Input, Output};
    let known = |dims: &[usize]| dims.iter().copied().map(Dim::Known).collect::<Vec<Dim>>();
    let (x, c): (&[usize], &[usize]) = (&[2, 6], &[6]);
    misshapen(&Op::Unary { by: Unary::Gelu }, &[x], &[c], Output(0));
    misshapen(&Op::UnaryGrad { by: Unary::Gelu }, &[x, c], &[x], Input(1));
    misshapen(&Op::Binary { by: Binary::Add }, &[x, &[2]], &[x], Input(1));
    misshapen(&Op::Binary { by: Binary::Add }, &[x, c], &[c], Output(0));
    misshapen(&Op::Compare { by: Comparison::Less }, &[x, &[2]], &[x], Input(1));
    misshapen(&Op::Select, &[x, c, x], &[x], Input(1));
    misshapen(&Op::ExpandTo { to: known(&[3, 6]) }, &[x], &[&[3, 6]], Input(0));
    misshapen(&Op::SumTo { to: known(&[3]) }, &[x], &[&[3]], Input(0));
    let product = Op::BatchMatMul { transpose_a: false, transpose_b: false };
    misshapen(&product, &[&[2, 3, 4], &[3, 4, 5]], &[&[2, 3, 5]], Input(1));
    misshapen(&product, &[&[4], &[4]], &[&[]], Input(0));
    misshapen(&product, &[&[2, 3, 4], &[2, 4, 5]], &[&[2, 3, 4]], Output(0));
    let norm = |by| Op::SampleNorm { by, epsilon: 1e-5 };
    misshapen(&norm(SampleNorm::Layer), &[x, &[2], c], &[x, &[2], &[2]], Input(1));
    misshapen(&norm(SampleNorm::Rms), &[x, c], &[x, c], Output(1));
    misshapen(&norm(SampleNorm::Group { groups: 4 }), &[x, c, c], &[x, c, c], Input(0));
    let by = Attention { mask: AttentionMask::Causal, heads: HeadOrder::Outer, scale: 1.0 };
    let (q, k): (&[usize], &[usize]) = (&[1, 2, 3, 4], &[1, 2, 5, 4]);
    misshapen(&Op::Attention(by), &[q, k, k], &[q, &[1, 2, 3]], Input(1));
    misshapen(&Op::Attention(by), &[q, q, k], &[q, &[1, 2, 3]], Input(2));
    misshapen(&Op::Attention(by), &[q, q, q], &[q, &[1, 3, 2]], Output(1));
    let by = Attention { mask: AttentionMask::Given, ..by };
    misshapen(&Op::Attention(by), &[q, k, k, &[1, 2, 3, 4]], &[q, &[1, 2, 3]], Input(3));
    let by = Rotary { base: 1e4, offset: 0, heads: HeadOrder::Outer, inverse: false };
    misshapen(&Op::Rotary(by), &[&[1, 2, 3, 5]], &[&[1, 2, 3, 5]], Input(0));
}

#[test]
fn labels_are_classes_or_the_one_that_is_ignored() {
    let op = Op::CrossEntropy { smoothing: 0.1, ignored: -100 };
    for kernels in all() {
        let inputs = [Tensor::new(&[2, 3], &[0.0f32; 6]), Tensor::new(&[2], &[-100i32, -1])];
        let mut outputs =
            [Tensor::unwritten(DType::F32, &[]), Tensor::unwritten(DType::F32, &[2, 3])];
        let found = try_run(&kernels, &op, &inputs, &mut outputs).unwrap_err();
        let op = "CrossEntropy";
        assert_eq!(found, KernelError::Label { op, row: 1, label: -1, classes: 3, ignored: -100 });
    }
}
