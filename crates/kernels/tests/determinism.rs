//! The cpu back end gives the same bits again, for any number of threads, at any vector level of the
//! element-wise loops, and while other threads use it.
#![allow(clippy::unwrap_used)] // a test that cannot get its operands has failed

mod common;

use common::{Real, Tensor, Values, assert_same, run_one, try_run};
use tensorwire_graph::Op;
use tensorwire_kernels::{KernelChoice, Kernels};

/// [m, n, k]: the layers of the paper's MLP, and sizes around vectors, tiles and thresholds.
const SHAPES: [[usize; 3]; 11] = [
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
