//! The cpu back end gives the same bits again, for any number of threads, at any vector level of the
//! element-wise loops, and while other threads use it.

use crate::common::{self, Real, Tensor, Values, assert_same, profile, run_all, run_one, try_run};
use tensorwire_graph::{Cell, Op};
use tensorwire_kernels::{KernelChoice, Kernels};

/// [m, n, k]: the layers of the paper's MLP, and sizes around vectors, tiles and thresholds.
const SHAPES: [[usize; 3]; 13] = [
    [64, 2048, 2048],
    [2048, 2048, 64],
    [64, 10, 2048],
    [10, 2048, 64],
    [1, 1, 1],
    [1, 777, 333],
    [777, 1, 333],
    [3, 5, 7],
    [127, 129, 131],
    [511, 257, 65],
    [33, 1025, 515],
    [8, 1100, 700],
    [3, 70, 300],
];

fn products<T: Real>([m, n, k]: [usize; 3]) {
    let mut values = Values(m as u64);
    let (a, b): (Vec<T>, Vec<T>) = (values.reals(m * k), values.reals(k * n));
    let opened = |threads| Kernels::open(KernelChoice::Cpu, threads).unwrap();
    for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false), (true, true)] {
        let op = Op::MatMul { transpose_a, transpose_b };
        let inputs = [
            Tensor::new(&if transpose_a { [k, m] } else { [m, k] }, &a),
            Tensor::new(&if transpose_b { [n, k] } else { [k, n] }, &b),
        ];
        let one = opened(1);
        let expected: Vec<T> = run_one(&one, &op, &inputs, &[m, n]);
        assert_same(&run_one::<T>(&one, &op, &inputs, &[m, n]), &expected);
        for threads in [2, 3, 5] {
            let several = opened(threads);
            for _ in 0..2 {
                assert_same(&run_one::<T>(&several, &op, &inputs, &[m, n]), &expected);
            }
        }
    }
}

#[test]
fn products_do_not_depend_on_threads() {
    for shape in SHAPES {
        products::<f32>(shape);
        products::<f64>(shape);
    }
}

#[test]
fn losses_and_maxima_do_not_depend_on_threads_or_level() {
    let (rows, classes) = (5003, 10);
    let mut values = Values(5);
    let labels = Tensor::new(&[rows], &values.labels(rows, classes));
    let logits = Tensor::new(&[rows, classes], &values.reals::<f32>(rows * classes));
    // zeros of both signs: the one place where an order could show in a maximum
    let zeros: Vec<f32> = (0..(1 << 20) + 3).map(|_| [0.0, -0.0][values.below(2)]).collect();
    let zeros = [Tensor::new(&[zeros.len()], &zeros)];
    let run = |kernels: &Kernels| {
        let dtype = tensorwire_tensor::DType::F32;
        let mut outputs =
            [Tensor::unwritten(dtype, &[]), Tensor::unwritten(dtype, &[rows, classes])];
        let inputs = [logits.clone(), labels.clone()];
        try_run(kernels, &Op::SoftmaxCrossEntropy, &inputs, &mut outputs).unwrap();
        let mut all = outputs[0].to_vec::<f32>();
        all.extend(outputs[1].to_vec::<f32>());
        all.extend(run_one::<f32>(kernels, &Op::ReduceMax, &zeros, &[]));
        all
    };
    let cpus = common::cpus();
    let expected = run(&cpus[0]);
    for cpu in &cpus {
        assert_same(&run(cpu), &expected);
    }
}

#[test]
fn threads_share_one_back_end() {
    let (m, n, k) = (48, 600, 130);
    let kernels = Kernels::open(KernelChoice::Cpu, 3).unwrap();
    let mut values = Values(6);
    let a = Tensor::new(&[m, k], &values.reals::<f32>(m * k));
    let b = Tensor::new(&[n, k], &values.reals::<f32>(n * k));
    let op = Op::MatMul { transpose_a: false, transpose_b: true };
    let inputs = [a, b];
    let expected: Vec<f32> = run_one(&kernels, &op, &inputs, &[m, n]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert_same(&run_one::<f32>(&kernels, &op, &inputs, &[m, n]), &expected);
                }
            });
        }
    });
}

/// Sequences of several lengths through a cell and back, of a size at which steps are cut into pieces.
fn sequences<T: Real>(cell: Cell, batch: usize) {
    let hidden = 300;
    let mut values = Values(batch as u64);
    let active = profile(&mut values, batch, 6);
    let total: usize = active.iter().map(|&rows| rows as usize).sum();
    let (row, square, state) = ([total, hidden], [hidden, hidden], [batch, hidden]);
    let saved = [total, cell.saved() * hidden];
    let (gates, states) = (cell.gates(), cell.states());
    let mut several = |count: usize, dims: [usize; 2]| {
        let mut one = |_| Tensor::new(&dims, &values.reals::<T>(dims[0] * dims[1]));
        (0..count).map(&mut one).collect::<Vec<_>>()
    };
    let (products, matrices) = (several(gates, row), several(gates, square));
    let (first, dy) = (several(states, state), several(1, row));
    let active = vec![Tensor::new(&[active.len()], &active)];
    let run = |threads: usize| {
        let kernels = Kernels::open(KernelChoice::Cpu, threads).unwrap();
        let given = [&products[..], &matrices, &first, &active].concat();
        let dims = [vec![&row[..]], vec![&state; states], vec![&saved]].concat();
        let made = run_all::<T>(&kernels, &Op::Recurrent { cell }, &given, &dims);
        let behind = vec![Tensor::new(&row, &made[0]), Tensor::new(&saved, &made[states + 1])];
        let given = [&dy[..], &matrices, &first, &active, &behind].concat();
        let dims = [vec![&row[..]; gates], vec![&square; gates], vec![&state; states]].concat();
        let op = Op::RecurrentGrad { cell, sequence: true, finals: [false, false] };
        [made.concat(), run_all::<T>(&kernels, &op, &given, &dims).concat()].concat()
    };
    let expected = run(1);
    for threads in [1, 2, 3] {
        assert_same(&run(threads), &expected);
    }
}

#[test]
fn recurrent_cells_do_not_depend_on_threads() {
    for cell in [Cell::Rnn, Cell::Gru, Cell::Lstm] {
        for batch in [1, 11] {
            sequences::<f32>(cell, batch);
            sequences::<f64>(cell, batch);
        }
    }
}
