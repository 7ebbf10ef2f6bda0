//! What optimizers do to a variable as a whole: LAMB, the norm of gradients, and clipping by it.

use half::bf16;
use tensorwire_graph::{Method, Op, Rule};
use tensorwire_tensor::DType;

use crate::common::{Real, Target, Tensor, Values, cpus, reference, run_one, try_run};

/// LAMB's variable with its moments after three steps, on one back end.
fn lamb<T: Real>(
    kernels: &Target,
    dims: &[usize],
    gradients: &[Vec<Tensor>],
    first: &[T],
) -> Vec<T> {
    let rule = Method::Lamb { beta1: 0.9, beta2: 0.99, epsilon: 1e-6 }.at(0.1).decaying(0.05);
    let zeros = Tensor::new(dims, &vec![T::of(0.0); first.len()]);
    let mut state = vec![Tensor::new(dims, first), zeros.clone(), zeros, Tensor::scalar(0i64)];
    for inputs in gradients {
        try_run(kernels, &Op::Apply { rule, clipped: false }, inputs, &mut state).unwrap();
    }
    assert_eq!(state[3].to_vec::<i64>(), [gradients.len() as i64]);
    state[0].to_vec()
}

fn lamb_agrees<T: Real + Into<f64>>(dims: &[usize], epsilon: f64) {
    let mut values = Values(11);
    let count: usize = dims.iter().product();
    let mut drawn = || values.reals::<T>(count);
    let first = drawn();
    let gradients: Vec<Vec<Tensor>> =
        (0..3).map(|_| (0..2).map(|_| Tensor::new(dims, &drawn())).collect()).collect();
    let expected = lamb(&reference(), dims, &gradients, &first);
    let all: Vec<Vec<T>> = cpus().iter().map(|cpu| lamb(cpu, dims, &gradients, &first)).collect();
    for found in &all {
        // on any number of threads the same bits
        assert_eq!(found, &all[0]);
        for (found, expected) in found.iter().zip(&expected) {
            let (found, expected): (f64, f64) = ((*found).into(), (*expected).into());
            assert!((found - expected).abs() <= 16.0 * epsilon * expected.abs().max(1.0));
        }
    }
}

#[test]
fn lamb_is_that_of_the_reference_but_for_the_order_of_two_sums() {
    for dims in [&[3, 5][..], &[7], &[300, 401]] {
        lamb_agrees::<f32>(dims, f64::from(f32::EPSILON));
        lamb_agrees::<f64>(dims, f64::EPSILON);
    }
}

/// One step by hand: with β₁ = β₂ = 0 the direction is g/(|g| + ε), ±1 here.
#[test]
fn lamb_scales_what_it_moves_along_to_the_norm_of_the_variable() {
    let rule = Method::Lamb { beta1: 0.0, beta2: 0.0, epsilon: 1e-12 }.at(0.5).decaying(0.25);
    let dims = [2];
    let zeros = Tensor::new(&dims, &[0.0f64; 2]);
    let state = [Tensor::new(&dims, &[3.0, 4.0]), zeros.clone(), zeros, Tensor::scalar(0i64)];
    for kernels in cpus().into_iter().chain([reference()]) {
        let mut state = state.to_vec();
        let gradient = Tensor::new(&dims, &[-2.0, 8.0]);
        try_run(&kernels, &Op::Apply { rule, clipped: false }, &[gradient], &mut state).unwrap();
        // r = (−1 + 0.75, 1 + 1), of norm √(0.0625 + 4)
        let ratio = 5.0 / f64::sqrt(4.0625);
        let wanted = [3.0 + 0.5 * ratio * 0.25, 4.0 - 0.5 * ratio * 2.0];
        for (found, wanted) in state[0].to_vec::<f64>().into_iter().zip(wanted) {
            assert!((found - wanted).abs() < 1e-10, "{found} {wanted}");
        }
        // rows of a variable say nothing of its norm
        let parts = [Tensor::new(&[1], &[0i32]), Tensor::new(&[1, 2], &[1.0f64, 1.0])];
        try_run(&kernels, &Op::ApplyRows { rule }, &parts, &mut state).unwrap_err();
    }
}

fn square_sums<T: Real + Into<f64>>(dims: &[usize], world_size: usize, seed: u64) {
    let mut values = Values(seed);
    let count: usize = dims.iter().product();
    let rows = dims.first().copied().unwrap_or(1);
    let gradients: Vec<Vec<T>> = (0..world_size).map(|_| values.reals::<T>(count)).collect();
    let tensors = |first: usize, end: usize| -> Vec<Tensor> {
        let columns = count / rows.max(1);
        let part = |gradient: &Vec<T>| {
            let dims: Vec<usize> = [end - first].into_iter().chain(dims[1..].to_vec()).collect();
            Tensor::new(&dims, &gradient[first * columns..end * columns])
        };
        gradients.iter().map(part).collect()
    };
    let expected = run_one::<f64>(&reference(), &Op::SquareSums, &tensors(0, rows), &[rows]);
    for cpu in cpus() {
        let found = run_one::<f64>(&cpu, &Op::SquareSums, &tensors(0, rows), &[rows]);
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() <= 1e-12 * expected, "{found} {expected}");
        }
        // a part of the rows gives the bits of all
        let half = rows / 2;
        let part = run_one::<f64>(&cpu, &Op::SquareSums, &tensors(half, rows), &[rows - half]);
        assert_eq!(part, found[half..]);
    }
}

#[test]
fn the_squares_of_a_row_are_the_same_whoever_has_the_other_rows() {
    for (seed, dims) in [&[5, 3][..], &[700], &[64, 1030], &[2, 3, 4, 130]].into_iter().enumerate()
    {
        for world_size in 1..4 {
            square_sums::<f32>(dims, world_size, seed as u64);
            square_sums::<f64>(dims, world_size, seed as u64);
        }
    }
}

#[test]
fn a_gradient_is_scaled_down_to_the_norm_and_never_up() {
    for kernels in cpus().into_iter().chain([reference()]) {
        // of the mean of two: (3, 0), (0, 4)
        let ranks = [Tensor::new(&[2, 2], &[6.0f32, 0.0, 0.0, 0.0])];
        let ranks = [ranks[0].clone(), Tensor::new(&[2, 2], &[0.0f32, 0.0, 0.0, 8.0])];
        let sums = run_one::<f64>(&kernels, &Op::SquareSums, &ranks, &[2]);
        assert_eq!(sums, [9.0, 16.0]);
        let halves = [Tensor::new(&[1], &[9.0f64]), Tensor::new(&[1], &[16.0f64])];
        let scale = |norm| run_one::<f64>(&kernels, &Op::ClipScale { norm }, &halves, &[])[0];
        assert_eq!(scale(2.5), 2.5 / (5.0 + 1e-6));
        assert_eq!((scale(6.0), scale(1e9)), (1.0, 1.0));
        let factor = Tensor::scalar(0.5f64);
        let rule = Rule::sgd(1.0);
        let mut v = vec![Tensor::new(&[2, 2], &[1.0f32; 4])];
        let inputs = [factor, ranks[0].clone(), ranks[1].clone()];
        try_run(&kernels, &Op::Apply { rule, clipped: true }, &inputs, &mut v).unwrap();
        assert_eq!(v[0].to_vec::<f32>(), [-0.5, 1.0, 1.0, -1.0]);
    }
}

#[test]
fn what_is_bf16_is_clipped_in_f32_with_sums_in_f64() {
    let narrow =
        |values: &[f32]| -> Vec<bf16> { values.iter().map(|x| bf16::from_f32(*x)).collect() };
    for kernels in cpus().into_iter().chain([reference()]) {
        let gradient = Tensor::new(&[3], &narrow(&[1.0, -2.0, 3.0]));
        let inputs = std::slice::from_ref(&gradient);
        assert_eq!(run_one::<f64>(&kernels, &Op::SquareSums, inputs, &[3]), [1.0, 4.0, 9.0]);
        let mut v = vec![Tensor::new(&[3], &narrow(&[0.0; 3]))];
        let op = Op::Apply { rule: Rule::sgd(1.0), clipped: true };
        try_run(&kernels, &op, &[Tensor::scalar(0.5f64), gradient.clone()], &mut v).unwrap();
        assert_eq!(v[0].to_vec::<bf16>(), narrow(&[-0.5, 1.0, -1.5]));
        assert_eq!(v[0].view().dtype(), DType::BF16);
        let refused = try_run(&kernels, &op, &[Tensor::scalar(0.5f32), gradient], &mut v);
        assert!(refused.unwrap_err().to_string().contains("f64"));
    }
}
