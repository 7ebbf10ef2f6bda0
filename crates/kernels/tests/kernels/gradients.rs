//! The operators that compute gradients, against central differences of the operators that they are
//! the gradient of: in f64, on the reference.

use crate::common::{
    Target, Tensor, Values, assert_close, central_differences, profile, reference, run_all,
    run_one, try_run,
};
use proptest::prelude::*;
use tensorwire_graph::{Cell, Op, Reduction};

/// What central differences leave over (see [`central_differences`]), for sums of up to 20 terms.
const TOLERANCE: f64 = 1e-8;

/// Σ weights·y: a loss whose gradient with respect to y is `weights`.
fn weighted(y: &[f64], weights: &[f64]) -> f64 {
    y.iter().zip(weights).map(|(y, w)| y * w).sum()
}

fn matmul(transpose_a: bool, transpose_b: bool) -> Op {
    Op::MatMul { transpose_a, transpose_b }
}

fn run(kernels: &Target, op: &Op, inputs: &[(&[usize], &[f64])], dims: &[usize]) -> Vec<f64> {
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

/// The gradient of an element-wise operator of one input, from dy and its output.
fn unary(op: &Op, grad: &Op, x: &[f64], seed: u64) {
    let kernels = reference();
    let dims = [x.len()];
    let dy: Vec<f64> = Values(seed).reals(x.len());
    let y = run(&kernels, op, &[(&dims, x)], &dims);
    let dx = run(&kernels, grad, &[(&dims, &dy), (&dims, &y)], &dims);
    let loss = |x: &[f64]| weighted(&run(&kernels, op, &[(&dims, x)], &dims), &dy);
    assert_close(&dx, &central_differences(x, loss), TOLERANCE);
}

/// d(a∘b)/da and /db, each given as a run of other operators.
fn binary(
    op: &Op,
    gradients: impl Fn(&[f64], &[f64], &[f64]) -> [Vec<f64>; 2],
    len: usize,
    seed: u64,
) {
    let kernels = reference();
    let mut values = Values(seed);
    let dims = [len];
    let (a, dy): (Vec<f64>, Vec<f64>) = (values.reals(len), values.reals(len));
    // away from zero: it may be a divisor
    let b: Vec<f64> = values.reals::<f64>(len).iter().map(|b| b + 1.5f64.copysign(*b)).collect();
    let loss =
        |a: &[f64], b: &[f64]| weighted(&run(&kernels, op, &[(&dims, a), (&dims, b)], &dims), &dy);
    let [da, db] = gradients(&a, &b, &dy);
    assert_close(&da, &central_differences(&a, |a| loss(a, &b)), TOLERANCE);
    assert_close(&db, &central_differences(&b, |b| loss(&a, b)), TOLERANCE);
}

fn reduce([outer, length, inner]: [usize; 3], by: Reduction, seed: u64) {
    let kernels = reference();
    let mut values = Values(seed);
    let (dims, reduced) = ([outer, length, inner], [outer, inner]);
    let x = values.apart(outer * length * inner);
    let dy: Vec<f64> = values.reals(outer * inner);
    let op = Op::Reduce { by, axis: 1 };
    let y = run(&kernels, &op, &[(&dims, &x)], &reduced);
    let inputs: [(&[usize], &[f64]); 3] = [(&reduced, &dy), (&dims, &x), (&reduced, &y)];
    let dx = run(&kernels, &Op::ReduceGrad { by, axis: 1 }, &inputs, &dims);
    let loss = |x: &[f64]| weighted(&run(&kernels, &op, &[(&dims, x)], &reduced), &dy);
    assert_close(&dx, &central_differences(&x, loss), TOLERANCE);
}

fn softmax_rows([rows, columns]: [usize; 2], seed: u64) {
    let kernels = reference();
    let mut values = Values(seed);
    let dims = [rows, columns];
    let (x, dy): (Vec<f64>, Vec<f64>) =
        (values.reals(rows * columns), values.reals(rows * columns));
    let y = run(&kernels, &Op::Softmax, &[(&dims, &x)], &dims);
    let dx = run(&kernels, &Op::SoftmaxGrad, &[(&dims, &dy), (&dims, &y)], &dims);
    let loss = |x: &[f64]| weighted(&run(&kernels, &Op::Softmax, &[(&dims, x)], &dims), &dy);
    assert_close(&dx, &central_differences(&x, loss), TOLERANCE);
}

/// Operators that are linear, each with the one that is its transpose: ⟨f(x), dy⟩ = ⟨x, fᵀ(dy)⟩.
fn linear(op: &Op, transpose: &Op, dims: [&[usize]; 2], seed: u64) {
    let kernels = reference();
    let mut values = Values(seed);
    let count = |dims: &[usize]| dims.iter().product();
    let (x, dy): (Vec<f64>, Vec<f64>) =
        (values.reals(count(dims[0])), values.reals(count(dims[1])));
    let y = run(&kernels, op, &[(dims[0], &x)], dims[1]);
    let dx = run(&kernels, transpose, &[(dims[1], &dy)], dims[0]);
    assert_close(&[weighted(&y, &dy)], &[weighted(&x, &dx)], TOLERANCE);
    let loss = |x: &[f64]| weighted(&run(&kernels, op, &[(dims[0], x)], dims[1]), &dy);
    assert_close(&dx, &central_differences(&x, loss), TOLERANCE);
}

fn gather([rows, columns, count]: [usize; 3], seed: u64) {
    let kernels = reference();
    let mut values = Values(seed);
    let indices: Vec<i32> = (0..count).map(|_| values.below(rows) as i32).collect();
    let indices = Tensor::new(&[count], &indices);
    let table: Vec<f64> = values.reals(rows * columns);
    let dy: Vec<f64> = values.reals(count * columns);
    let gathered = |table: &[f64]| {
        let inputs = [Tensor::new(&[rows, columns], table), indices.clone()];
        run_one::<f64>(&kernels, &Op::Gather, &inputs, &[count, columns])
    };
    let like = Tensor::new(&[rows, columns], &table);
    let inputs = [Tensor::new(&[count, columns], &dy), indices.clone(), like];
    let dtable: Vec<f64> = run_one(&kernels, &Op::ScatterRows, &inputs, &[rows, columns]);
    assert_close(&dtable, &central_differences(&table, |t| weighted(&gathered(t), &dy)), TOLERANCE);
    // and the other way about: the gradient of scattered rows are the rows gathered
    let scattered = |rows_: &[f64]| {
        let like = Tensor::new(&[rows, columns], &table);
        let inputs = [Tensor::new(&[count, columns], rows_), indices.clone(), like];
        weighted(&run_one::<f64>(&kernels, &Op::ScatterRows, &inputs, &[rows, columns]), &table)
    };
    assert_close(&gathered(&table), &central_differences(&dy, scattered), TOLERANCE);
}

/// The gradients of a loss that is made of the sequence, of final states, or of both, as `flows` says.
fn recurrent(cell: Cell, [batch, hidden, steps]: [usize; 3], flows: [bool; 3], seed: u64) {
    let kernels = reference();
    let mut values = Values(seed);
    let active = profile(&mut values, batch, steps);
    let total: usize = active.iter().map(|&rows| rows as usize).sum();
    let (gates, states) = (cell.gates(), cell.states());
    let (row, square, state) = ([total, hidden], [hidden, hidden], [batch, hidden]);
    let saved = [total, cell.saved() * hidden];
    // every real operand in its order, in one vector, so that all are differentiated alike
    let kinds: Vec<&[usize]> =
        [vec![&row[..]; gates], vec![&square; gates], vec![&state; states]].concat();
    let sizes: Vec<usize> = kinds.iter().map(|dims| dims.iter().product()).collect();
    let operands: Vec<f64> = values.reals::<f64>(sizes.iter().sum());
    let tensors = |operands: &[f64]| {
        let mut rest = operands;
        let mut inputs = Vec::new();
        for (dims, &size) in kinds.iter().zip(&sizes) {
            let (elements, behind) = rest.split_at(size);
            inputs.push(Tensor::new(dims, elements));
            rest = behind;
        }
        inputs.push(Tensor::new(&[active.len()], &active));
        inputs
    };
    let output_dims: Vec<&[usize]> = [vec![&row[..]], vec![&state; states], vec![&saved]].concat();
    let op = Op::Recurrent { cell };
    let forward =
        |operands: &[f64]| run_all::<f64>(&kernels, &op, &tensors(operands), &output_dims);

    let flows = [flows[0], flows[1], flows[2] && states > 1];
    let weights: Vec<Vec<f64>> =
        [&row, &state, &state].iter().map(|dims| values.reals(dims.iter().product())).collect();
    let loss = |operands: &[f64]| -> f64 {
        let made = forward(operands);
        let flowing = (0..3).filter(|&i| flows[i]);
        flowing.map(|i| weighted(&made[i], &weights[i])).sum()
    };
    let made = forward(&operands);
    let mut inputs: Vec<Tensor> = Vec::new();
    for (i, dims) in [&row, &state, &state].into_iter().enumerate() {
        if flows[i] {
            inputs.push(Tensor::new(dims, &weights[i]));
        }
    }
    inputs.extend(tensors(&operands).split_off(gates));
    inputs.push(Tensor::new(&row, &made[0]));
    inputs.push(Tensor::new(&saved, made.last().unwrap()));
    let grad = Op::RecurrentGrad { cell, sequence: flows[0], finals: [flows[1], flows[2]] };
    let found = run_all::<f64>(&kernels, &grad, &inputs, &kinds).concat();
    assert_close(&found, &central_differences(&operands, loss), 1e-7);
}

fn flows() -> impl Strategy<Value = [bool; 3]> {
    any::<[bool; 3]>().prop_filter("something flows", |flows| flows[0] || flows[1])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn element_wise(len in 0usize..30, seed: u64) {
        let x: Vec<f64> = Values(seed).reals(len);
        unary(&Op::Sigmoid, &Op::SigmoidGrad, &x, seed ^ 1);
        unary(&Op::Tanh, &Op::TanhGrad, &x, seed ^ 2);
        let kernels = reference();
        let dims = [len];
        let two = |op: Op, a: &[f64], b: &[f64]| run(&kernels, &op, &[(&dims, a), (&dims, b)], &dims);
        let negative = |x: &[f64]| run(&kernels, &Op::Scale { by: -1.0 }, &[(&dims, x)], &dims);
        binary(&Op::Add, |_, _, dy| [dy.to_vec(), dy.to_vec()], len, seed);
        binary(&Op::Sub, |_, _, dy| [dy.to_vec(), negative(dy)], len, seed);
        binary(&Op::Mul, |a, b, dy| [two(Op::Mul, dy, b), two(Op::Mul, dy, a)], len, seed);
        binary(&Op::Div, |a, b, dy| {
            let da = two(Op::Div, dy, b);
            let y = two(Op::Div, a, b);
            let db = negative(&two(Op::Mul, &da, &y));
            [da, db]
        }, len, seed);
    }

    #[test]
    fn reductions(sizes in [1usize..5, 1usize..6, 1usize..5], seed: u64) {
        for by in [Reduction::Sum, Reduction::Mean, Reduction::Max] {
            reduce(sizes, by, seed);
        }
    }

    #[test]
    fn softmax_alone(sizes in [1usize..5, 1usize..7], seed: u64) {
        softmax_rows(sizes, seed);
    }

    #[test]
    fn linear_operators(sizes in [1usize..5, 1usize..5, 1usize..5], before in 0usize..3, after in 0usize..3, seed: u64) {
        let [a, b, c] = sizes;
        let scale = Op::Scale { by: -1.5 };
        linear(&scale, &scale, [&sizes, &sizes], seed);
        let pad = Op::Pad { axis: 1, before, after };
        let slice = Op::Slice { axis: 1, start: before, length: b };
        let padded = [a, before + b + after, c];
        linear(&pad, &slice, [&sizes, &padded], seed);
        linear(&slice, &pad, [&padded, &sizes], seed);
        let turn = Op::Transpose { permutation: vec![2, 0, 1] };
        let back = Op::Transpose { permutation: vec![1, 2, 0] };
        linear(&turn, &back, [&sizes, &[c, a, b]], seed);
        // the inputs of a concatenation are slices of its output
        let kernels = reference();
        let x: Vec<f64> = Values(seed).reals(a * b * c);
        let joined = run(&kernels, &Op::Concat { axis: 1, size: None }, &[(&sizes, &x), (&sizes, &x)], &[a, 2 * b, c]);
        for start in [0, b] {
            let part = Op::Slice { axis: 1, start, length: b };
            assert_eq!(run(&kernels, &part, &[(&[a, 2 * b, c], &joined)], &sizes), x);
        }
    }

    #[test]
    fn dropout(len in 0usize..200, key: u64, step: i64, seed: u64) {
        let kernels = reference();
        let mut values = Values(seed);
        let op = Op::Dropout { rate: 0.3, key };
        let drop = |x: &[f64]| {
            let inputs = [Tensor::new(&[len], x), Tensor::scalar(step)];
            run_one::<f64>(&kernels, &op, &inputs, &[len])
        };
        let (x, dy): (Vec<f64>, Vec<f64>) = (values.reals(len), values.reals(len));
        assert_close(&drop(&dy), &central_differences(&x, |x| weighted(&drop(x), &dy)), TOLERANCE);
    }

    #[test]
    fn gather_and_scatter(sizes in [1usize..6, 1usize..5, 0usize..8], seed: u64) {
        gather(sizes, seed);
    }

    #[test]
    fn rnn(batch in 1usize..5, hidden in 1usize..4, steps in 0usize..5, flows in flows(), seed: u64) {
        recurrent(Cell::Rnn, [batch, hidden, steps], flows, seed);
    }

    #[test]
    fn gru(batch in 1usize..5, hidden in 1usize..4, steps in 0usize..5, flows in flows(), seed: u64) {
        recurrent(Cell::Gru, [batch, hidden, steps], flows, seed);
    }

    #[test]
    fn lstm(batch in 1usize..5, hidden in 1usize..4, steps in 0usize..5, flows in flows(), seed: u64) {
        recurrent(Cell::Lstm, [batch, hidden, steps], flows, seed);
    }
}
