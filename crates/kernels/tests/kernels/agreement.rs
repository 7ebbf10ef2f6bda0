//! The cpu back end against the reference, operator by operator, on random operands of small random
//! shapes (0, 1 and odd sizes among them), in f32 and f64, at every vector level of this machine.
//!
//! | operators | agree | because |
//! |---|---|---|
//! | BiasAdd, Relu, ReluGrad, Add, ScaleBy in place | bit for bit with a result apart | the same loop reads the same values |
//! | Fill, BiasAdd, Relu, ReluGrad, Add, ScaleBy | bit for bit | each element is the same few roundings |
//! | ApplySgd, ApplyMomentum | bit for bit | both add in the same order |
//! | SumRows | bit for bit where rows are added in their order | both do |
//! | CountCorrect, ReduceMax | equal (±0 are) | nothing is rounded |
//! | MatMul | 2·k·eps·Σ\|a\|·\|b\| per element | each back end's sum of k products is within k·eps·Σ\|a\|·\|b\| of the true one, in any order (Higham 2002, §3.1) |
//! | SoftmaxCrossEntropy, dlogits | 8·eps / counted rows | exp, sum and division of a probability ≤ 1, scaled in another order: 4 roundings each |
//! | SoftmaxCrossEntropy, loss | (rows + 4)·eps·(1 + loss) | a sum of as many terms, grouped differently |

use crate::common::{
    ADDS_IN_ORDER, Real, Tensor, Values, all, assert_same, cpus, reference, run_one, same_sums,
    try_run,
};
use proptest::prelude::*;
use tensorwire_graph::{Op, Rule};
use tensorwire_kernels::check::{self, Tolerance};
use tensorwire_tensor::TensorSpec;

/// All back ends' results of an operator of one real output are the same bits, apart and over the first input.
fn same_bits<T: Real>(op: &Op, inputs: &[Tensor], dims: &[usize]) {
    let expected = Tensor::new(dims, &run_one::<T>(&reference(), op, inputs, dims));
    check::agreement(&all(), op, inputs, &[expected], Tolerance::Bits).unwrap();
}

fn element_wise<T: Real>(rows: usize, columns: usize, seed: u64) {
    let mut values = Values(seed);
    let dims = [rows, columns];
    let a = Tensor::new(&dims, &values.odd_reals::<T>(rows * columns));
    let b = Tensor::new(&dims, &values.odd_reals::<T>(rows * columns));
    let row = Tensor::new(&[columns], &values.odd_reals::<T>(columns));
    let scalar = Tensor::new(&[], &values.odd_reals::<T>(1));
    same_bits::<T>(&Op::Relu, std::slice::from_ref(&a), &dims);
    same_bits::<T>(&Op::ReluGrad, &[a.clone(), b.clone()], &dims);
    same_bits::<T>(&Op::Add, &[a.clone(), b], &dims);
    same_bits::<T>(&Op::ScaleBy, &[a.clone(), scalar], &dims);
    same_bits::<T>(&Op::BiasAdd, &[a.clone(), row], &dims);
    if ADDS_IN_ORDER {
        same_bits::<T>(&Op::SumRows, &[a], &[columns]);
    }
    let x = Tensor::new(&dims, &values.reals::<T>(rows * columns));
    same_sums::<T>(&Op::SumRows, &[x], &[columns], rows);
    let spec = TensorSpec::new(T::DTYPE, &dims).unwrap();
    same_bits::<T>(&Op::Fill { value: values.uniform(), spec }, &[], &dims);
}

fn maximum<T: Real>(len: usize, odd: bool, seed: u64) {
    let mut values = Values(seed);
    let x: Vec<T> = if odd { values.odd_reals(len) } else { values.reals(len) };
    let x = [Tensor::new(&[len], &x)];
    let expected = run_one::<T>(&reference(), &Op::ReduceMax, &x, &[])[0];
    for cpu in cpus() {
        let found = run_one::<T>(&cpu, &Op::ReduceMax, &x, &[])[0];
        assert!(found == expected || (found.is_nan() && expected.is_nan()));
    }
}

fn product<T: Real>([m, n, k]: [usize; 3], transposed: [bool; 2], seed: u64) {
    let mut values = Values(seed);
    let (a, b): (Vec<T>, Vec<T>) = (values.reals(m * k), values.reals(k * n));
    let [transpose_a, transpose_b] = transposed;
    let op = Op::MatMul { transpose_a, transpose_b };
    let operands = |a: &[T], b: &[T]| {
        let a = Tensor::new(&if transpose_a { [k, m] } else { [m, k] }, a);
        [a, Tensor::new(&if transpose_b { [n, k] } else { [k, n] }, b)]
    };
    let absolute = |x: &[T]| x.iter().map(|x| x.abs()).collect::<Vec<T>>();
    let expected: Vec<T> = run_one(&reference(), &op, &operands(&a, &b), &[m, n]);
    let scale: Vec<T> =
        run_one(&reference(), &op, &operands(&absolute(&a), &absolute(&b)), &[m, n]);
    for cpu in cpus() {
        let found: Vec<T> = run_one(&cpu, &op, &operands(&a, &b), &[m, n]);
        for ((&found, &expected), &scale) in found.iter().zip(&expected).zip(&scale) {
            let tolerance = T::of(2.0 * k as f64) * T::epsilon() * scale;
            assert!((found - expected).abs() <= tolerance, "{found:?} for {expected:?}");
        }
    }
}

fn softmax<T: Real>(rows: usize, classes: usize, seed: u64) {
    let mut values = Values(seed);
    let labels = values.labels(rows, classes);
    let counted = labels.iter().filter(|&&label| label >= 0).count().max(1);
    let logits = Tensor::new(&[rows, classes], &values.reals::<T>(rows * classes));
    let inputs = [logits, Tensor::new(&[rows], &labels)];
    let run = |kernels: &_| {
        let mut outputs =
            [Tensor::unwritten(T::DTYPE, &[]), Tensor::unwritten(T::DTYPE, &[rows, classes])];
        try_run(kernels, &Op::SoftmaxCrossEntropy, &inputs, &mut outputs).unwrap();
        (outputs[0].to_vec::<T>()[0], outputs[1].to_vec::<T>())
    };
    let (loss, dlogits) = run(&reference());
    let correct: Vec<i64> = run_one(&reference(), &Op::CountCorrect, &inputs, &[]);
    for cpu in cpus() {
        let (found_loss, found_dlogits) = run(&cpu);
        let tolerance = T::of(rows as f64 + 4.0) * T::epsilon() * (T::one() + loss);
        assert!((found_loss - loss).abs() <= tolerance, "{found_loss:?} for {loss:?}");
        let tolerance = T::of(8.0 / counted as f64) * T::epsilon();
        for (&found, &expected) in found_dlogits.iter().zip(&dlogits) {
            assert!((found - expected).abs() <= tolerance, "{found:?} for {expected:?}");
        }
        assert_eq!(run_one::<i64>(&cpu, &Op::CountCorrect, &inputs, &[]), correct);
    }
}

fn optimizers<T: Real>(len: usize, world_size: usize, seed: u64) {
    let mut values = Values(seed);
    let gradients: Vec<Tensor> =
        (0..world_size).map(|_| Tensor::new(&[len], &values.reals::<T>(len))).collect();
    let v = Tensor::new(&[len], &values.reals::<T>(len));
    let u = Tensor::new(&[len], &values.reals::<T>(len));
    let rate = values.uniform();
    let sgd = (Op::Apply { rule: Rule::sgd(rate), clipped: false }, vec![v.clone()]);
    let momentum = (Op::Apply { rule: Rule::momentum(rate), clipped: false }, vec![v, u]);
    for (op, state) in [sgd, momentum] {
        let run = |kernels: &_| {
            let mut state = state.clone();
            try_run(kernels, &op, &gradients, &mut state).unwrap();
            state.iter().flat_map(Tensor::to_vec::<T>).collect::<Vec<T>>()
        };
        let expected = run(&reference());
        for cpu in cpus() {
            assert_same(&run(&cpu), &expected);
        }
    }
}

/// Sizes from 0 up, with the sizes around a vector's and a tile's among them.
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..6, 6usize..40, Just(63), Just(64), Just(65)]
}

/// Sizes at which work is cut into pieces.
fn large() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0usize), 1usize..2000, 65_000usize..70_000]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn element_wise_operators(rows in size(), columns in size(), seed: u64) {
        element_wise::<f32>(rows, columns, seed);
        element_wise::<f64>(rows, columns, seed);
    }

    #[test]
    fn matmul(sizes in [size(), size(), size()], transposed: [bool; 2], seed: u64) {
        product::<f32>(sizes, transposed, seed);
        product::<f64>(sizes, transposed, seed);
    }

    #[test]
    fn softmax_cross_entropy_and_count_correct(rows in size(), classes in size(), seed: u64) {
        softmax::<f32>(rows, classes, seed);
        softmax::<f64>(rows, classes, seed);
    }

    #[test]
    fn reduce_max(len in 1usize..3000, odd: bool, seed: u64) {
        maximum::<f32>(len, odd, seed);
        maximum::<f64>(len, odd, seed);
    }

    #[test]
    fn apply_sgd_and_momentum(len in large(), world_size in 1usize..6, seed: u64) {
        optimizers::<f32>(len, world_size, seed);
        optimizers::<f64>(len, world_size, seed);
    }
}

/// Shapes at which the cpu cuts its work into pieces or takes another road: past the sizes above.
#[test]
fn large_operands() {
    for (rows, columns) in [(3, 50_001), (40_001, 3), (130, 1030), (1, 140_000), (140_000, 1)] {
        element_wise::<f32>(rows, columns, 7);
        element_wise::<f64>(rows, columns, 7);
    }
    for transposed in [[false, false], [false, true], [true, false], [true, true]] {
        for sizes in [
            [5, 700, 33],
            [700, 5, 33],
            [300, 301, 65],
            [17, 40, 900],
            [1, 513, 600],
            [9, 1100, 600],
        ] {
            product::<f32>(sizes, transposed, 8);
            product::<f64>(sizes, transposed, 8);
        }
    }
    softmax::<f32>(9000, 10, 9);
    softmax::<f64>(30, 3001, 9);
    maximum::<f32>((1 << 19) + 5, false, 10);
    maximum::<f64>((1 << 18) + 1, false, 10);
}
