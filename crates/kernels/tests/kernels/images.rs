//! The operators over images on random operands of random shapes: the cpu back end against the reference, in
//! f32 and f64, at every vector level of this machine and on one to three threads, all of which must give
//! the same bits; and each gradient on the reference, in f64, against central differences.
//!
//! | operators | agree | because |
//! |---|---|---|
//! | Conv2d and its gradients | 2·k·eps·Σ\|a\|·\|b\| per element | sums of at most k products in any order, as a matrix product's |
//! | MaxPool, AvgPool and their gradients | bit for bit | both add in the same order |
//! | BatchNorm, its mean, variance and y | 512·(rows + 8)·eps | sums of as many terms in any order; \|x\| ≤ 2, epsilon = ¼, so that nothing grows by more than 4 after the sums |
//! | BatchNormGrad, dx | 1024·(rows + 8)·eps | as above, with one more such sum |
//! | BatchNormGrad, dscale and dshift | 64·rows·(rows + 8)·eps | as above, not divided by the rows |
//! | Normalize | 288·eps | 16 roundings of numbers up to 18 |
//! | LocalResponseNorm | 8·eps·\|y\| | powf against two roots, a product and a division |
//! | LocalResponseNormGrad | 16·eps·(2 + 6·size) | as many terms of at most 6 after powers as above |

use std::slice;

use crate::common::images::{Shape, absolute, count, reals, shape};
use crate::common::{
    Real, Target, Tensor, Values, assert_close, assert_same, central_differences, cpus, reference,
    run_one, try_run,
};
use proptest::prelude::*;
use tensorwire_graph::{Op, Window};
use tensorwire_kernels::check::{self, Tolerance};
use tensorwire_tensor::DType;

/// The real outputs of `op`, of `dims`.
fn run<T: Real>(kernels: &Target, op: &Op, inputs: &[Tensor], dims: &[&[usize]]) -> Vec<Vec<T>> {
    let mut outputs: Vec<Tensor> = dims.iter().map(|d| Tensor::unwritten(T::DTYPE, d)).collect();
    try_run(kernels, op, inputs, &mut outputs).unwrap();
    outputs.iter().map(Tensor::to_vec).collect()
}

/// Asserts that all of the cpu give the same bits, and the reference's numbers to within `tolerances`, one for
/// each element of each output.
fn agree<T: Real>(op: &Op, inputs: &[Tensor], dims: &[&[usize]], tolerances: &[Vec<T>]) {
    let expected = run::<T>(&reference(), op, inputs, dims);
    for (found, tolerances) in expected.iter().zip(tolerances) {
        assert_eq!(found.len(), tolerances.len());
    }
    let expected: Vec<Tensor> =
        dims.iter().zip(&expected).map(|(dims, made)| Tensor::new(dims, made)).collect();
    let most = |output: usize, element: usize, _: f64| tolerances[output][element].into();
    check::agreement(&cpus(), op, inputs, &expected, Tolerance::Within(&most)).unwrap();
}

fn convolutions<T: Real>(shape: Shape, seed: u64) {
    let mut values = Values(seed);
    for (op, a_dims, b_dims, y_dims, terms) in shape.convolutions() {
        let (a, b) = (reals::<T>(&mut values, &a_dims), reals::<T>(&mut values, &b_dims));
        let scale = [absolute::<T>(&a, &a_dims), absolute::<T>(&b, &b_dims)];
        let unit = T::of(2.0 * terms as f64) * T::epsilon();
        let scale = run_one::<T>(&reference(), &op, &scale, &y_dims);
        let tolerances = scale.into_iter().map(|scale| unit * scale).collect();
        agree::<T>(&op, &[a, b], &[&y_dims], &[tolerances]);
    }
}

fn poolings<T: Real>(shape: Shape, seed: u64) {
    let mut values = Values(seed);
    let (x_dims, y_dims) = (shape.x(), shape.pooled());
    let (window, size) = (shape.window, shape.size);
    // halves, so that there are equals
    let x: Vec<T> = (0..count(&x_dims)).map(|_| T::of(values.below(7) as f64 / 2.0)).collect();
    let x = Tensor::new(&x_dims, &x);
    let max = |kernels: &Target| {
        let mut outputs =
            [Tensor::unwritten(T::DTYPE, &y_dims), Tensor::unwritten(DType::U8, &y_dims)];
        let op = Op::MaxPool { window };
        try_run(kernels, &op, slice::from_ref(&x), &mut outputs).unwrap();
        outputs
    };
    let [y, places] = max(&reference());
    for cpu in cpus() {
        let found = max(&cpu);
        assert_same(&found[0].to_vec::<T>(), &y.to_vec::<T>());
        assert_eq!(found[1].to_vec::<u8>(), places.to_vec::<u8>());
    }
    let dy = reals::<T>(&mut values, &y_dims);
    let exact = |dims: &[usize]| [vec![T::zero(); count(dims)]];
    let op = Op::MaxPoolGrad { window, size };
    agree::<T>(&op, &[dy.clone(), places], &[&x_dims], &exact(&x_dims));
    agree::<T>(&Op::AvgPool { window }, &[x], &[&y_dims], &exact(&y_dims));
    agree::<T>(&Op::AvgPoolGrad { window, size }, &[dy], &[&x_dims], &exact(&x_dims));
}

fn norms<T: Real>(rows: usize, channels: usize, scaled: bool, seed: u64) {
    let mut values = Values(seed);
    let epsilon = 0.25;
    let (all, c) = ([rows, 1, channels], [channels]);
    let x = reals::<T>(&mut values, &all);
    let dy = reals::<T>(&mut values, &all);
    let shift = reals::<T>(&mut values, &c);
    let mean = reals::<T>(&mut values, &c);
    let variance = absolute::<T>(&mean, &c);
    let scale = if scaled { vec![reals::<T>(&mut values, &c)] } else { vec![] };
    let flat = |unit: f64, len: usize| vec![T::of(unit) * T::epsilon(); len];
    let (n, many) = (rows as f64 + 8.0, count(&all));

    let inputs = [slice::from_ref(&x), &scale, slice::from_ref(&shift)].concat();
    let op = Op::Normalize { epsilon, scaled };
    let given = [&inputs[..], &[mean.clone(), variance.clone()]].concat();
    agree::<T>(&op, &given, &[&all], &[flat(288.0, many)]);

    if rows > 0 {
        let op = Op::BatchNorm { epsilon, scaled };
        let tolerances = [many, channels, channels].map(|len| flat(512.0 * n, len));
        agree::<T>(&op, &inputs, &[&all, &c, &c], &tolerances);
    }

    let op = Op::BatchNormGrad { epsilon, scaled };
    let inputs = [&[dy, x, mean, variance], &scale[..]].concat();
    let sum = flat(64.0 * n * rows as f64, channels);
    let mut tolerances = vec![flat(1024.0 * n, many), sum.clone()];
    let mut dims: Vec<&[usize]> = vec![&all, &c];
    if scaled {
        tolerances.push(sum);
        dims.push(&c);
    }
    agree::<T>(&op, &inputs, &dims, &tolerances);
}

fn response_norms<T: Real>(rows: usize, channels: usize, size: usize, beta: f64, seed: u64) {
    let mut values = Values(seed);
    let (alpha, bias) = (0.5, 1.0);
    let dims = [rows, channels];
    let (x, dy) = (reals::<T>(&mut values, &dims), reals::<T>(&mut values, &dims));
    let op = Op::LocalResponseNorm { size, alpha, beta, bias };
    let y: Vec<T> = run_one(&reference(), &op, slice::from_ref(&x), &dims);
    let tolerances = y.iter().map(|y| T::of(8.0) * T::epsilon() * y.abs()).collect();
    agree::<T>(&op, slice::from_ref(&x), &[&dims], &[tolerances]);
    let op = Op::LocalResponseNormGrad { size, alpha, beta, bias };
    let unit = T::of(16.0 * (2.0 + 6.0 * size as f64)) * T::epsilon();
    let inputs = [dy, x, Tensor::new(&dims, &y)];
    agree::<T>(&op, &inputs, &[&dims], &[vec![unit; count(&dims)]]);
}

/// Σ weights·y: a loss whose gradient with respect to y is `weights`.
fn weighted(y: &[f64], weights: &[f64]) -> f64 {
    y.iter().zip(weights).map(|(y, w)| y * w).sum()
}

/// Asserts that `dx` is the gradient of Σ weights·op(…, x, …), x being input `input`.
fn is_gradient(
    op: &Op,
    inputs: &[(Vec<usize>, Vec<f64>)],
    input: usize,
    weights: &[Vec<f64>],
    dims: &[&[usize]],
    dx: &[f64],
) {
    let kernels = reference();
    let loss = |x: &[f64]| {
        let tensors: Vec<Tensor> = inputs
            .iter()
            .enumerate()
            .map(|(i, (dims, values))| Tensor::new(dims, if i == input { x } else { values }))
            .collect();
        let outputs = run::<f64>(&kernels, op, &tensors, dims);
        outputs.iter().zip(weights).map(|(y, weights)| weighted(y, weights)).sum()
    };
    // sums of up to a few hundred products of numbers up to 2
    assert_close(dx, &central_differences(&inputs[input].1, loss), 1e-6);
}

fn gradients_of_convolutions(shape: Shape, seed: u64) {
    let kernels = reference();
    let mut values = Values(seed);
    let [(forward, x_dims, w_dims, y_dims, _), (of_x, ..), (of_w, ..)] = shape.convolutions();
    let given: Vec<(Vec<usize>, Vec<f64>)> =
        [x_dims, w_dims].map(|d| (d.to_vec(), values.reals(count(&d)))).to_vec();
    let dy: Vec<f64> = values.reals(count(&y_dims));
    let (x, w) = (Tensor::new(&x_dims, &given[0].1), Tensor::new(&w_dims, &given[1].1));
    let gradient = Tensor::new(&y_dims, &dy);
    let dx: Vec<f64> = run_one(&kernels, &of_x, &[gradient.clone(), w], &x_dims);
    let dw: Vec<f64> = run_one(&kernels, &of_w, &[gradient, x], &w_dims);
    is_gradient(&forward, &given, 0, slice::from_ref(&dy), &[&y_dims], &dx);
    is_gradient(&forward, &given, 1, &[dy], &[&y_dims], &dw);
}

fn gradients_of_poolings(shape: Shape, seed: u64) {
    let kernels = reference();
    let mut values = Values(seed);
    let (x_dims, y_dims) = (shape.x(), shape.pooled());
    let (window, size) = (shape.window, shape.size);
    let x = values.apart(count(&x_dims));
    let dy: Vec<f64> = values.reals(count(&y_dims));
    let gradient = Tensor::new(&y_dims, &dy);
    let op = Op::AvgPoolGrad { window, size };
    let dx: Vec<f64> = run_one(&kernels, &op, slice::from_ref(&gradient), &x_dims);
    let given = [(x_dims.to_vec(), x.clone())];
    is_gradient(&Op::AvgPool { window }, &given, 0, slice::from_ref(&dy), &[&y_dims], &dx);
    let op = Op::MaxPool { window };
    let max = |x: &[f64]| {
        let mut outputs =
            [Tensor::unwritten(DType::F64, &y_dims), Tensor::unwritten(DType::U8, &y_dims)];
        try_run(&kernels, &op, &[Tensor::new(&x_dims, x)], &mut outputs).unwrap();
        outputs
    };
    let [_, places] = max(&x);
    let op = Op::MaxPoolGrad { window, size };
    let dx: Vec<f64> = run_one(&kernels, &op, &[gradient, places], &x_dims);
    // the largest of a window of nothing but padding is no number, and does not change
    let number = |y: f64| if y.is_finite() { y } else { 0.0 };
    let loss = |x: &[f64]| {
        let y: Vec<f64> = max(x)[0].to_vec::<f64>().into_iter().map(number).collect();
        weighted(&y, &dy)
    };
    assert_close(&dx, &central_differences(&x, loss), 1e-6);
}

fn gradients_of_norms(rows: usize, channels: usize, scaled: bool, seed: u64) {
    let kernels = reference();
    let mut values = Values(seed);
    let (all, c) = (vec![rows, channels], vec![channels]);
    let mut given = vec![(all.clone(), values.reals(rows * channels))];
    given.resize_with(2 + usize::from(scaled), || (c.clone(), values.reals(channels)));
    let tensors: Vec<Tensor> = given.iter().map(|(d, x)| Tensor::new(d, x)).collect();
    let dy: Vec<f64> = values.reals(rows * channels);
    let epsilon = 0.25;
    let op = Op::BatchNorm { epsilon, scaled };
    let dims: [&[usize]; 3] = [&all, &c, &c];
    let outputs = run::<f64>(&kernels, &op, &tensors, &dims);
    let mut inputs = vec![Tensor::new(&all, &dy), tensors[0].clone()];
    inputs.extend(outputs[1..].iter().map(|statistic| Tensor::new(&c, statistic)));
    if scaled {
        inputs.push(tensors[1].clone());
    }
    let grads = Op::BatchNormGrad { epsilon, scaled };
    let found = run::<f64>(&kernels, &grads, &inputs, &dims[..2 + usize::from(scaled)]);
    // the statistics go nowhere in training
    let weights = [dy, vec![0.0; channels], vec![0.0; channels]];
    for (input, found) in found.iter().enumerate() {
        is_gradient(&op, &given, input, &weights, &dims, found);
    }
}

fn gradients_of_response_norms(rows: usize, channels: usize, size: usize, beta: f64, seed: u64) {
    let kernels = reference();
    let mut values = Values(seed);
    let (alpha, bias) = (0.7, 1.5);
    let dims = [rows, channels];
    let x: Vec<f64> = values.reals(rows * channels);
    let dy: Vec<f64> = values.reals(rows * channels);
    let op = Op::LocalResponseNorm { size, alpha, beta, bias };
    let y: Vec<f64> = run_one(&kernels, &op, &[Tensor::new(&dims, &x)], &dims);
    let inputs = [&dy, &x, &y].map(|v| Tensor::new(&dims, v));
    let grad = Op::LocalResponseNormGrad { size, alpha, beta, bias };
    let dx: Vec<f64> = run_one(&kernels, &grad, &inputs, &dims);
    is_gradient(&op, &[(dims.to_vec(), x)], 0, &[dy], &[&dims], &dx);
}

fn beta() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.75), Just(0.5), Just(1.0), 0.1f64..2.0]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn convolutions_agree(shape in shape(7), seed: u64) {
        convolutions::<f32>(shape, seed);
        convolutions::<f64>(shape, seed);
    }

    #[test]
    fn poolings_agree(shape in shape(30), seed: u64) {
        poolings::<f32>(shape, seed);
        poolings::<f64>(shape, seed);
    }

    #[test]
    fn normalisations_agree(rows in 0usize..40, channels in 0usize..40, scaled: bool, seed: u64) {
        norms::<f32>(rows, channels, scaled, seed);
        norms::<f64>(rows, channels, scaled, seed);
    }

    #[test]
    fn response_normalisations_agree(
        rows in 0usize..9, channels in 1usize..40, reach in 0usize..5, beta in beta(), seed: u64,
    ) {
        response_norms::<f32>(rows, channels, 2 * reach + 1, beta, seed);
        response_norms::<f64>(rows, channels, 2 * reach + 1, beta, seed);
    }

    #[test]
    fn gradients_are_central_differences(shape in shape(2), seed: u64) {
        let shape = Shape { batch: shape.batch.min(2), size: shape.size.map(|s| s.min(6)), ..shape };
        if shape.window.output(shape.size).is_some() {
            gradients_of_convolutions(shape, seed);
            gradients_of_poolings(shape, seed);
        }
    }

    #[test]
    fn gradients_of_norms_are_central_differences(
        rows in 1usize..9, channels in 1usize..6, scaled: bool, reach in 0usize..4, beta in beta(), seed: u64,
    ) {
        gradients_of_norms(rows, channels, scaled, seed);
        gradients_of_response_norms(rows, channels, 2 * reach + 1, beta, seed);
    }
}

/// Shapes at which the cpu cuts its work into pieces or takes another road: past the sizes above.
#[test]
fn large_operands() {
    let square = |batch, size, [channels, outputs]: [usize; 2], groups, window| Shape {
        batch,
        size: [size; 2],
        channels,
        outputs,
        groups,
        window,
    };
    let padded = |kernel, stride, padding| Window::padded([kernel; 2], [stride; 2], [padding; 2]);
    let dilated = Window { dilation: [2, 2], ..padded(3, 1, 2) };
    let shapes = [
        // a first layer; one with rows and one with columns enough for tiles; by channels, direct and not
        square(1, 63, [3, 24], 1, padded(7, 2, 3)),
        square(3, 24, [16, 16], 1, padded(3, 1, 1)),
        square(2, 5, [40, 160], 1, padded(3, 1, 1)),
        square(1, 4, [130, 150], 1, padded(3, 1, 1)),
        square(2, 3, [530, 260], 1, padded(1, 1, 0)),
        square(2, 6, [520, 130], 1, padded(1, 2, 0)),
        square(2, 29, [18, 36], 2, padded(3, 2, 1)),
        square(1, 30, [32, 32], 1, dilated),
    ];
    for (seed, shape) in shapes.into_iter().enumerate() {
        convolutions::<f32>(shape, seed as u64);
    }
    convolutions::<f64>(shapes[1], 9);
    convolutions::<f64>(shapes[3], 9);
    poolings::<f32>(square(3, 40, [70, 70], 1, padded(3, 2, 1)), 10);
    poolings::<f64>(square(2, 33, [65, 65], 1, padded(3, 1, 1)), 11);
    norms::<f32>(1500, 100, true, 12);
    norms::<f64>(130_001, 1, false, 13);
    norms::<f32>(3, 50_001, true, 14);
    response_norms::<f32>(1100, 65, 5, 0.75, 15);
}
