//! The operators that compute gradients, against central differences of the operators that they are
//! the gradient of: in f64, on the reference.
#![allow(clippy::unwrap_used)] // a test that cannot get its operands has failed

mod common;

use common::{Tensor, Values, assert_close, central_differences, reference, run_one, try_run};
use tensorwire_graph::Op;
use tensorwire_kernels::Kernels;

/// What central differences leave over (see [`central_differences`]), for sums of up to 20 terms.
const TOLERANCE: f64 = 1e-8;

/// Σ weights·y: a loss whose gradient with respect to y is `weights`.
fn weighted(y: &[f64], weights: &[f64]) -> f64 {
    y.iter().zip(weights).map(|(y, w)| y * w).sum()
}

fn matmul(transpose_a: bool, transpose_b: bool) -> Op {
    Op::MatMul { transpose_a, transpose_b }
}

fn run(kernels: &Kernels, op: &Op, inputs: &[(&[usize], &[f64])], dims: &[usize]) -> Vec<f64> {
    let inputs: Vec<Tensor> = inputs.iter().map(|(d, x)| Tensor::new(d, x)).collect();
    run_one(kernels, op, &inputs, dims)
}

/// y = x·Wᵀ + b: dX = dY·W, dW = dYᵀ·X, db = the sum of dY's rows.
#[test]
fn a_dense_layer() {
    let kernels = reference();
    let (batch, wide, out) = (3, 5, 4);
    let mut values = Values(1);
    let x: Vec<f64> = values.reals(batch * wide);
    let w: Vec<f64> = values.reals(out * wide);
    let b: Vec<f64> = values.reals(out);
    let dy: Vec<f64> = values.reals(batch * out);
    let (xs, ws, bs, ys) = ([batch, wide], [out, wide], [out], [batch, out]);
    let loss = |x: &[f64], w: &[f64], b: &[f64]| {
        let product = run(&kernels, &matmul(false, true), &[(&xs, x), (&ws, w)], &ys);
        let y = run(&kernels, &Op::BiasAdd, &[(&ys, &product), (&bs, b)], &ys);
        weighted(&y, &dy)
    };
    let dx = run(&kernels, &matmul(false, false), &[(&ys, &dy), (&ws, &w)], &xs);
    assert_close(&dx, &central_differences(&x, |x| loss(x, &w, &b)), TOLERANCE);
    let dw = run(&kernels, &matmul(true, false), &[(&ys, &dy), (&xs, &x)], &ws);
    assert_close(&dw, &central_differences(&w, |w| loss(&x, w, &b)), TOLERANCE);
    let db = run(&kernels, &Op::SumRows, &[(&ys, &dy)], &bs);
    assert_close(&db, &central_differences(&b, |b| loss(&x, &w, b)), TOLERANCE);
}

#[test]
fn relu_away_from_zero() {
    let kernels = reference();
    let mut values = Values(2);
    let x: Vec<f64> = values.reals::<f64>(40).into_iter().filter(|x| x.abs() > 1e-3).collect();
    let dims = [x.len()];
    let dy: Vec<f64> = values.reals(x.len());
    let y = run(&kernels, &Op::Relu, &[(&dims, &x)], &dims);
    let dx = run(&kernels, &Op::ReluGrad, &[(&dims, &dy), (&dims, &y)], &dims);
    let expected =
        central_differences(&x, |x| weighted(&run(&kernels, &Op::Relu, &[(&dims, x)], &dims), &dy));
    assert_close(&dx, &expected, TOLERANCE);
}

#[test]
fn softmax_cross_entropy() {
    let kernels = reference();
    let (rows, classes) = (4, 5);
    let logits: Vec<f64> = Values(3).reals(rows * classes);
    let labels = Tensor::new(&[rows], &[0i32, 4, -1, 2]);
    let run = |logits: &[f64]| {
        let logits = Tensor::new(&[rows, classes], logits);
        let dtype = tensorwire_tensor::DType::F64;
        let mut outputs = [Tensor::unwritten(dtype, &[]), Tensor::unwritten(dtype, &[4, 5])];
        let inputs = [logits, labels.clone()];
        try_run(&kernels, &Op::SoftmaxCrossEntropy, &inputs, &mut outputs).unwrap();
        (outputs[0].to_vec::<f64>()[0], outputs[1].to_vec::<f64>())
    };
    let (_, dlogits) = run(&logits);
    assert_close(&dlogits, &central_differences(&logits, |x| run(x).0), TOLERANCE);
}
