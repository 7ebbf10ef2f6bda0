//! As `closed_form.rs`, for the operators that move elements, reduce a dimension, update variables or run
//! over sequences: results that are known without computing them, on every back end.

use crate::common::{Real, Target, Tensor, all, assert_same, of, run_all, run_one, try_run};
use half::bf16;
use tensorwire_graph::{Cell, Method, Op, Reduction, dropout_keeps};
use tensorwire_tensor::DType;

/// Runs one test body for both element types on all back ends.
fn everywhere(f32_body: impl Fn(&Target), f64_body: impl Fn(&Target)) {
    for kernels in all() {
        f32_body(&kernels);
        f64_body(&kernels);
    }
}

macro_rules! everywhere {
    ($body:ident) => {
        everywhere($body::<f32>, $body::<f64>)
    };
}

/// Asserts that `op` makes `expected` of operands given as (dimensions, elements).
#[track_caller]
fn expect<T: Real>(
    kernels: &Target,
    op: &Op,
    inputs: &[(&[usize], &[f64])],
    expected: (&[usize], &[f64]),
) {
    let inputs: Vec<Tensor> = inputs.iter().map(|(d, x)| Tensor::new(d, &of::<T>(x))).collect();
    let found: Vec<T> = run_one(kernels, op, &inputs, expected.0);
    assert_same(&found, &of::<T>(expected.1));
}

const SIX: (&[usize], &[f64]) = (&[2, 3], &[1., 2., 3., 4., 5., 6.]);

#[test]
fn element_by_element() {
    fn body<T: Real>(kernels: &Target) {
        let (a, b): (&[f64], &[f64]) = (&[1., 2., -3., 4.], &[0.5, -2., 1., 8.]);
        let two = |op: Op, y: &[f64]| expect::<T>(kernels, &op, &[(&[4], a), (&[4], b)], (&[4], y));
        two(Op::Sub, &[0.5, 4., -4., -4.]);
        two(Op::Mul, &[0.5, -4., -3., 32.]);
        two(Op::Div, &[2., -1., -3., 0.5]);
        // dy·y·(1−y) and dy·(1−y²)
        two(Op::SigmoidGrad, &[0.25, -12., -0., -224.]);
        two(Op::TanhGrad, &[0.75, -6., -0., -252.]);
        expect::<T>(kernels, &Op::Scale { by: -0.5 }, &[(&[4], a)], (&[4], &[-0.5, -1., 1.5, -2.]));
        let (infinity, nan) = (f64::INFINITY, f64::NAN);
        let x: (&[usize], &[f64]) = (&[4], &[0., infinity, -infinity, nan]);
        expect::<T>(kernels, &Op::Sigmoid, &[x], (&[4], &[0.5, 1., 0., nan]));
        expect::<T>(kernels, &Op::Tanh, &[x], (&[4], &[0., 1., -1., nan]));
        // rows are what lies along the last dimension, whatever lies before
        let x: (&[usize], &[f64]) = (&[2, 1, 2], &[1., 2., 3., 4.]);
        expect::<T>(
            kernels,
            &Op::BiasAdd,
            &[x, (&[2], &[10., 20.])],
            (&[2, 1, 2], &[11., 22., 13., 24.]),
        );
        expect::<T>(kernels, &Op::SumRows, &[x], (&[2], &[4., 6.]));
    }
    everywhere!(body);
}

#[test]
fn casts_round_to_nearest_even_once() {
    for kernels in all() {
        // halfway between two numbers of bf16, and a hair above, which f32 cannot tell from it
        let half_way = 1.0 + 2f64.powi(-8);
        let x = Tensor::new(
            &[4],
            &[half_way, half_way + 2f64.powi(-40), -1e40, 1.0 + 3.0 * 2f64.powi(-8)],
        );
        let found: Vec<bf16> = run_one(&kernels, &Op::Cast { to: DType::BF16 }, &[x], &[4]);
        let above = 1.0 + 2f32.powi(-7);
        let expected = [1.0, above, f32::NEG_INFINITY, 1.0 + 2f32.powi(-6)];
        assert_eq!(found, expected.map(bf16::from_f32));
        let x = Tensor::new(
            &[2],
            &expected[..2].iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>(),
        );
        assert_eq!(
            run_one::<f32>(&kernels, &Op::Cast { to: DType::F32 }, &[x], &[2]),
            [1.0, above]
        );
    }
}

#[test]
fn dropout_keeps_what_the_graph_says_and_scales_it() {
    fn body<T: Real>(kernels: &Target) {
        let (len, key, step, rate) = (70_000, 11, 5, 0.75);
        let inputs = [Tensor::new(&[len], &vec![T::one(); len]), Tensor::scalar(step as i64)];
        let found: Vec<T> = run_one(kernels, &Op::Dropout { rate, key }, &inputs, &[len]);
        let kept = |i: usize| if dropout_keeps(key, step, i as u64, rate) { 4.0 } else { 0.0 };
        let expected: Vec<f64> = (0..len).map(kept).collect();
        assert_same(&found, &of::<T>(&expected));
        let share = expected.iter().sum::<f64>() / len as f64;
        // √(rate/(1−rate)/len) is the deviation of the mean; five of them
        assert!((share - 1.0).abs() < 5.0 * (3.0 / len as f64).sqrt(), "{share}");
    }
    everywhere!(body);
}

#[test]
fn reductions_along_either_dimension() {
    fn body<T: Real>(kernels: &Target) {
        let reduce = |by, axis, y: (&[usize], &[f64])| {
            expect::<T>(kernels, &Op::Reduce { by, axis }, &[SIX], y);
        };
        reduce(Reduction::Sum, 0, (&[3], &[5., 7., 9.]));
        reduce(Reduction::Sum, 1, (&[2], &[6., 15.]));
        reduce(Reduction::Mean, 0, (&[3], &[2.5, 3.5, 4.5]));
        reduce(Reduction::Max, 1, (&[2], &[3., 6.]));
        let none = Op::Reduce { by: Reduction::Sum, axis: 1 };
        expect::<T>(kernels, &none, &[(&[2, 0], &[])], (&[2], &[0., 0.]));
        // the first of equals gets the gradient
        let x: (&[usize], &[f64]) = (&[2, 3], &[1., 3., 3., 2., 2., 2.]);
        let dy: (&[usize], &[f64]) = (&[2], &[5., 7.]);
        let y: (&[usize], &[f64]) = (&[2], &[3., 2.]);
        let grad = Op::ReduceGrad { by: Reduction::Max, axis: 1 };
        expect::<T>(kernels, &grad, &[dy, x, y], (&[2, 3], &[0., 5., 0., 7., 0., 0.]));
        let equal: (&[usize], &[f64]) = (&[2, 1, 4], &[7.; 8]);
        expect::<T>(kernels, &Op::Softmax, &[equal], (&[2, 1, 4], &[0.25; 8]));
        let dy: (&[usize], &[f64]) = (&[4], &[4., 0., 0., 0.]);
        expect::<T>(
            kernels,
            &Op::SoftmaxGrad,
            &[dy, (&[4], &[0.25; 4])],
            (&[4], &[0.75, -0.25, -0.25, -0.25]),
        );
    }
    everywhere!(body);
}

#[test]
fn elements_move_where_they_should() {
    fn body<T: Real>(kernels: &Target) {
        let e = |op: Op, inputs: &[(&[usize], &[f64])], y: (&[usize], &[f64])| {
            expect::<T>(kernels, &op, inputs, y);
        };
        e(Op::Transpose { permutation: vec![1, 0] }, &[SIX], (&[3, 2], &[1., 4., 2., 5., 3., 6.]));
        e(Op::Transpose { permutation: vec![] }, &[(&[], &[7.])], (&[], &[7.]));
        let column: (&[usize], &[f64]) = (&[2, 1], &[7., 8.]);
        e(
            Op::Concat { axis: 1, size: None },
            &[SIX, column],
            (&[2, 4], &[1., 2., 3., 7., 4., 5., 6., 8.]),
        );
        e(Op::Concat { axis: 0, size: None }, &[SIX, (&[0, 3], &[])], SIX);
        e(Op::Slice { axis: 1, start: 1, length: 2 }, &[SIX], (&[2, 2], &[2., 3., 5., 6.]));
        e(Op::Slice { axis: 0, start: 2, length: 0 }, &[SIX], (&[0, 3], &[]));
        e(
            Op::Pad { axis: 1, before: 1, after: 0 },
            &[SIX],
            (&[2, 4], &[0., 1., 2., 3., 0., 4., 5., 6.]),
        );
        let indices = Tensor::new(&[3], &[1i32, 0, 1]);
        let table = Tensor::new(SIX.0, &of::<T>(SIX.1));
        let found: Vec<T> =
            run_one(kernels, &Op::Gather, &[table.clone(), indices.clone()], &[3, 3]);
        assert_same(&found, &of::<T>(&[4., 5., 6., 1., 2., 3., 4., 5., 6.]));
        let rows = Tensor::new(&[3, 3], &of::<T>(&[1., 1., 1., 2., 2., 2., 4., 4., 4.]));
        let found: Vec<T> = run_one(kernels, &Op::ScatterRows, &[rows, indices, table], &[2, 3]);
        assert_same(&found, &of::<T>(&[2., 2., 2., 5., 5., 5.]));
    }
    everywhere!(body);
}

#[test]
fn rules_change_variables_and_slots() {
    fn body<T: Real>(kernels: &Target) {
        let tensor = |x: &[f64]| Tensor::new(&[x.len()], &of::<T>(x));
        // g = 3: a = 16 + 9, √a = 5, so the step is 2·3/(5 + 1)
        let mut state = [tensor(&[10.]), tensor(&[16.])];
        let rule = Method::AdaGrad { epsilon: 1.0 }.at(2.0);
        try_run(
            kernels,
            &Op::Apply { rule, clipped: false },
            &[tensor(&[2.]), tensor(&[4.])],
            &mut state,
        )
        .unwrap();
        assert_same(&state[0].to_vec::<T>(), &of::<T>(&[9.]));
        assert_same(&state[1].to_vec::<T>(), &of::<T>(&[25.]));
        // t = 1: m̂ = g and ŝ = g², whatever the betas: m = 4/2, s = 16/4
        let mut state = [tensor(&[10.]), tensor(&[0.]), tensor(&[0.]), Tensor::scalar(0i64)];
        let rule = Method::Adam { beta1: 0.5, beta2: 0.75, epsilon: 1.0 }.at(2.5);
        try_run(kernels, &Op::Apply { rule, clipped: false }, &[tensor(&[4.])], &mut state)
            .unwrap();
        assert_same(&state[0].to_vec::<T>(), &of::<T>(&[8.]));
        assert_same(&state[1].to_vec::<T>(), &of::<T>(&[2.]));
        assert_same(&state[2].to_vec::<T>(), &of::<T>(&[4.]));
        assert_eq!(state[3].to_vec::<i64>(), [1]);
        // ranks name rows 2, 0 and 2 again; row 1 stays as it is, its slot too
        let dims = [3, 1];
        let mut state = [
            Tensor::new(&dims, &of::<T>(&[1., 1., 1.])),
            Tensor::new(&dims, &of::<T>(&[8., 8., 8.])),
        ];
        let rule = Method::Momentum { momentum: 0.5 }.at(1.0);
        let parts = [
            Tensor::new(&[2], &[2i32, 0]),
            Tensor::new(&[2, 1], &of::<T>(&[2., 4.])),
            Tensor::new(&[1], &[2i32]),
            Tensor::new(&[1, 1], &of::<T>(&[6.])),
        ];
        try_run(kernels, &Op::ApplyRows { rule }, &parts, &mut state).unwrap();
        assert_same(&state[1].to_vec::<T>(), &of::<T>(&[6., 8., 8.]));
        assert_same(&state[0].to_vec::<T>(), &of::<T>(&[-5., 1., -7.]));
        let mut average = [tensor(&[1., 2.])];
        let values = [tensor(&[2., 4.]), tensor(&[4., 4.])];
        try_run(kernels, &Op::ApplyAverage { rate: 0.5 }, &values, &mut average).unwrap();
        assert_same(&average[0].to_vec::<T>(), &of::<T>(&[2., 3.]));
    }
    everywhere!(body);
}

/// With matrices and products of zeros, gates are ½ and candidates 0: a GRU halves its state, an LSTM its c.
/// Two sequences, of two steps and of one; a third has none and keeps its first states.
#[test]
fn cells_without_input_forget_half() {
    fn body<T: Real>(kernels: &Target) {
        let zeros = |dims: &[usize]| Tensor::new(dims, &vec![T::zero(); dims.iter().product()]);
        let active = Tensor::new(&[2], &[2i32, 1]);
        let first = Tensor::new(&[3, 1], &of::<T>(&[4., 8., 16.]));
        let products = |gates: usize| vec![zeros(&[3, 1]); gates];
        let matrices = |gates: usize| vec![zeros(&[1, 1]); gates];
        let gru = [products(3), matrices(3), vec![first.clone(), active.clone()]].concat();
        let op = Op::Recurrent { cell: Cell::Gru };
        let made = run_all::<T>(kernels, &op, &gru, &[&[3, 1], &[3, 1], &[3, 4]]);
        assert_same(&made[0], &of::<T>(&[2., 4., 1.]));
        assert_same(&made[1], &of::<T>(&[1., 4., 16.]));
        let lstm = [products(4), matrices(4), vec![zeros(&[3, 1]), first, active]].concat();
        let op = Op::Recurrent { cell: Cell::Lstm };
        let made = run_all::<T>(kernels, &op, &lstm, &[&[3, 1], &[3, 1], &[3, 1], &[3, 5]]);
        assert_same(&made[2], &of::<T>(&[1., 4., 16.]));
        let cells: Vec<T> = made[3].iter().copied().skip(4).step_by(5).collect();
        assert_same(&cells, &of::<T>(&[2., 4., 1.]));
    }
    everywhere!(body);
}
