//! Every operator on operands whose result is known without computing it, on every back end, in f32
//! and f64. The numbers are small whole ones and halves, so that every result is exact.

use crate::common::{Real, Target, Tensor, all, assert_same, of, run_one, try_run};
use tensorwire_graph::{Method, Op, Rule};
use tensorwire_tensor::{DType, TensorSpec};

/// Runs one test body for both element types on all back ends.
fn everywhere(f32_body: impl Fn(&Target), f64_body: impl Fn(&Target)) {
    for kernels in all() {
        f32_body(&kernels);
        f64_body(&kernels);
    }
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

macro_rules! everywhere {
    ($body:ident) => {
        everywhere($body::<f32>, $body::<f64>)
    };
}

#[test]
fn fill_writes_every_element_of_every_type() {
    fn body<T: Real>(kernels: &Target) {
        let spec = TensorSpec::new(T::DTYPE, &[2, 3]).unwrap();
        expect::<T>(kernels, &Op::Fill { value: -0.5, spec }, &[], (&[2, 3], &[-0.5; 6]));
        let spec = TensorSpec::new(T::DTYPE, &[0]).unwrap();
        expect::<T>(kernels, &Op::Fill { value: 1.0, spec }, &[], (&[0], &[]));
    }
    everywhere!(body);
    for kernels in all() {
        let fill = |dtype| Op::Fill { value: 7.0, spec: TensorSpec::new(dtype, &[3]).unwrap() };
        assert_eq!(run_one::<i32>(&kernels, &fill(DType::I32), &[], &[3]), [7; 3]);
        assert_eq!(run_one::<i64>(&kernels, &fill(DType::I64), &[], &[3]), [7; 3]);
        assert_eq!(run_one::<u8>(&kernels, &fill(DType::U8), &[], &[3]), [7; 3]);
    }
}

#[test]
fn matmul_multiplies_in_all_four_transpositions() {
    fn body<T: Real>(kernels: &Target) {
        // [1 2 3; 4 5 6] · [1 0; 2 1; 0 −1]
        let a: (&[usize], &[f64]) = (&[2, 3], &[1., 2., 3., 4., 5., 6.]);
        let at: (&[usize], &[f64]) = (&[3, 2], &[1., 4., 2., 5., 3., 6.]);
        let b: (&[usize], &[f64]) = (&[3, 2], &[1., 0., 2., 1., 0., -1.]);
        let bt: (&[usize], &[f64]) = (&[2, 3], &[1., 2., 0., 0., 1., -1.]);
        let y: (&[usize], &[f64]) = (&[2, 2], &[5., -1., 14., -1.]);
        for (transpose_a, transpose_b) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let op = Op::MatMul { transpose_a, transpose_b };
            let inputs = [if transpose_a { at } else { a }, if transpose_b { bt } else { b }];
            expect::<T>(kernels, &op, &inputs, y);
        }
    }
    everywhere!(body);
}

#[test]
fn matmul_over_nothing_is_zero_or_nothing() {
    fn body<T: Real>(kernels: &Target) {
        let op = Op::MatMul { transpose_a: false, transpose_b: false };
        expect::<T>(kernels, &op, &[(&[2, 0], &[]), (&[0, 3], &[])], (&[2, 3], &[0.0; 6]));
        expect::<T>(kernels, &op, &[(&[0, 1], &[]), (&[1, 2], &[1., 2.])], (&[0, 2], &[]));
        expect::<T>(kernels, &op, &[(&[2, 1], &[1., 2.]), (&[1, 0], &[])], (&[2, 0], &[]));
    }
    everywhere!(body);
}

#[test]
fn bias_add_adds_the_bias_to_every_row() {
    fn body<T: Real>(kernels: &Target) {
        let x: (&[usize], &[f64]) = (&[2, 3], &[1., 2., 3., 4., 5., 6.]);
        let y: (&[usize], &[f64]) = (&[2, 3], &[1.5, 1., 3., 4.5, 4., 6.]);
        expect::<T>(kernels, &Op::BiasAdd, &[x, (&[3], &[0.5, -1., 0.])], y);
        expect::<T>(kernels, &Op::BiasAdd, &[(&[4, 0], &[]), (&[0], &[])], (&[4, 0], &[]));
        expect::<T>(kernels, &Op::BiasAdd, &[(&[0, 2], &[]), (&[2], &[1., 2.])], (&[0, 2], &[]));
    }
    everywhere!(body);
}

#[test]
fn sum_rows_adds_each_column() {
    fn body<T: Real>(kernels: &Target) {
        let op = Op::SumRows;
        expect::<T>(kernels, &op, &[(&[3, 2], &[1., 2., 3., 4., 5., 6.])], (&[2], &[9., 12.]));
        // 1 + 2 + … + 9, in two blocks of four rows and one row
        let x: Vec<f64> = (1..=9).map(f64::from).collect();
        expect::<T>(kernels, &op, &[(&[9, 1], &x)], (&[1], &[45.0]));
        expect::<T>(kernels, &op, &[(&[0, 2], &[])], (&[2], &[0., 0.]));
        expect::<T>(kernels, &op, &[(&[2, 0], &[])], (&[0], &[]));
    }
    everywhere!(body);
}

#[test]
fn relu_and_its_gradient_cut_at_zero() {
    fn body<T: Real>(kernels: &Target) {
        let x: (&[usize], &[f64]) = (&[5], &[-1., -0., 0., 0.5, f64::NAN]);
        expect::<T>(kernels, &Op::Relu, &[x], (&[5], &[0., 0., 0., 0.5, f64::NAN]));
        let dy: (&[usize], &[f64]) = (&[4], &[1., 2., 3., 4.]);
        let y: (&[usize], &[f64]) = (&[4], &[0., 0.5, 0., 2.]);
        expect::<T>(kernels, &Op::ReluGrad, &[dy, y], (&[4], &[0., 2., 0., 4.]));
    }
    everywhere!(body);
}

#[test]
fn add_and_scale_by() {
    fn body<T: Real>(kernels: &Target) {
        let (a, b): (&[f64], &[f64]) = (&[1., 2., 3., 4.], &[0.5, -2., 0., 1.]);
        expect::<T>(kernels, &Op::Add, &[(&[4], a), (&[4], b)], (&[4], &[1.5, 0., 3., 5.]));
        expect::<T>(kernels, &Op::Add, &[(&[], &[1.]), (&[], &[2.])], (&[], &[3.]));
        let x: (&[usize], &[f64]) = (&[2, 2], a);
        expect::<T>(
            kernels,
            &Op::ScaleBy,
            &[x, (&[], &[-0.5])],
            (&[2, 2], &[-0.5, -1., -1.5, -2.]),
        );
    }
    everywhere!(body);
}

#[test]
fn equal_logits_cost_the_logarithm_of_the_classes() {
    fn body<T: Real>(kernels: &Target) {
        let logits = Tensor::new(&[3, 4], &of::<T>(&[1e4; 12]));
        let labels = Tensor::new(&[3], &[2, -1, 0]);
        let mut outputs = [Tensor::unwritten(T::DTYPE, &[]), Tensor::unwritten(T::DTYPE, &[3, 4])];
        try_run(kernels, &Op::SoftmaxCrossEntropy, &[logits, labels], &mut outputs).unwrap();
        let loss: f64 = outputs[0].to_vec::<T>()[0].into();
        assert!((loss - 4f64.ln()).abs() <= 4.0 * T::epsilon().into(), "{loss}");
        // (1/4 − target) / 2 counted rows; the padding row counts for nothing
        let expected = [0.125, 0.125, -0.375, 0.125, 0., 0., 0., 0., -0.375, 0.125, 0.125, 0.125];
        assert_same(&outputs[1].to_vec::<T>(), &of::<T>(&expected));
    }
    everywhere!(body);
}

#[test]
fn a_batch_of_padding_has_no_loss_and_no_gradient() {
    fn body<T: Real>(kernels: &Target) {
        for (rows, classes) in [(2, 3), (0, 3), (2, 0), (0, 0)] {
            let logits = Tensor::new(&[rows, classes], &vec![T::of(1.5); rows * classes]);
            let labels = Tensor::new(&[rows], &vec![-1i32; rows]);
            let mut outputs =
                [Tensor::unwritten(T::DTYPE, &[]), Tensor::unwritten(T::DTYPE, &[rows, classes])];
            try_run(kernels, &Op::SoftmaxCrossEntropy, &[logits, labels], &mut outputs).unwrap();
            assert_same(&outputs[0].to_vec::<T>(), &[T::zero()]);
            assert_same(&outputs[1].to_vec::<T>(), &vec![T::zero(); rows * classes]);
        }
    }
    everywhere!(body);
}

#[test]
fn count_correct_takes_the_first_of_equals() {
    fn body<T: Real>(kernels: &Target) {
        let nan = f64::NAN;
        let logits = [1., 3., 2., 5., 5., 0., 5., 5., 0., 0., 0., 9., nan, 1., 0., 1., 2., 3.];
        let logits = Tensor::new(&[6, 3], &of::<T>(&logits));
        // right; right (first of equals); wrong (second of equals); padding; NaN; wrong
        let labels = Tensor::new(&[6], &[1, 0, 1, -1, 0, 0]);
        let count: Vec<i64> = run_one(kernels, &Op::CountCorrect, &[logits, labels], &[]);
        assert_eq!(count, [2]);
        let none = [Tensor::new::<T>(&[0, 3], &[]), Tensor::new::<i32>(&[0], &[])];
        assert_eq!(run_one::<i64>(kernels, &Op::CountCorrect, &none, &[]), [0]);
    }
    everywhere!(body);
}

#[test]
fn reduce_max_finds_the_largest_wherever_it_is() {
    fn body<T: Real>(kernels: &Target) {
        for len in [1, 2, 63, 64, 65, 1000, (1 << 18) + 3] {
            for place in [0, len / 2, len - 1] {
                let mut x = vec![T::of(-2.5); len];
                x[place] = T::of(-1.5);
                let tensor = Tensor::new(&[len], &x);
                assert_same(&run_one::<T>(kernels, &Op::ReduceMax, &[tensor], &[]), &of(&[-1.5]));
                x[place] = T::nan();
                let tensor = Tensor::new(&[len], &x);
                assert!(run_one::<T>(kernels, &Op::ReduceMax, &[tensor], &[])[0].is_nan());
            }
        }
        let lowest: (&[usize], &[f64]) = (&[2, 1], &[f64::NEG_INFINITY; 2]);
        expect::<T>(kernels, &Op::ReduceMax, &[lowest], (&[], &[f64::NEG_INFINITY]));
    }
    everywhere!(body);
}

/// Gradients 1, 2, …, W have the mean (W + 1)/2.
#[test]
fn optimizers_step_along_the_mean_gradient() {
    fn body<T: Real>(kernels: &Target) {
        for world_size in [1, 2, 4, 8] {
            let mean = (world_size as f64 + 1.0) / 2.0;
            let ranks: Vec<Tensor> = (1..=world_size)
                .map(|rank| Tensor::new(&[3], &of::<T>(&[rank as f64; 3])))
                .collect();
            let v = Tensor::new(&[3], &of::<T>(&[10., 0., -1.]));
            let mut outputs = [v.clone()];
            try_run(
                kernels,
                &Op::Apply { rule: Rule::sgd(0.5), clipped: false },
                &ranks,
                &mut outputs,
            )
            .unwrap();
            let expected = [10., 0., -1.].map(|v| v - 0.5 * mean);
            assert_same(&outputs[0].to_vec::<T>(), &of::<T>(&expected));

            let mut outputs = [v, Tensor::new(&[3], &of::<T>(&[2., 4., 0.]))];
            let op =
                Op::Apply { rule: Method::Momentum { momentum: 0.25 }.at(0.5), clipped: false };
            try_run(kernels, &op, &ranks, &mut outputs).unwrap();
            let velocity = [2., 4., 0.].map(|u| 0.25 * u + mean);
            let moved = [10. - velocity[0] / 2., -velocity[1] / 2., -1. - velocity[2] / 2.];
            assert_same(&outputs[0].to_vec::<T>(), &of::<T>(&moved));
            assert_same(&outputs[1].to_vec::<T>(), &of::<T>(&velocity));
        }
    }
    everywhere!(body);
}

/// 1 + 1e30 − 1e30 is 0 in this order and 1 in the other.
#[test]
fn gradients_are_added_in_rank_order() {
    fn body<T: Real>(kernels: &Target) {
        for (gradients, sum) in [([1., 1e30, -1e30], 0.), ([1e30, -1e30, 1.], 1.)] {
            let len = 70_000; // more than one piece of work for a thread
            let ranks = gradients.map(|g| Tensor::new(&[len], &vec![T::of(g); len]));
            let share = T::one() / T::of(3.0);
            let mut outputs = [Tensor::new(&[len], &vec![T::zero(); len])];
            try_run(
                kernels,
                &Op::Apply { rule: Rule::sgd(1.0), clipped: false },
                &ranks,
                &mut outputs,
            )
            .unwrap();
            let expected = T::zero() - T::of(sum) * share;
            assert_same(&outputs[0].to_vec::<T>(), &vec![expected; len]);
            let mut outputs = [outputs[0].clone(), Tensor::new(&[len], &vec![T::zero(); len])];
            let op = Op::Apply { rule: Method::Momentum { momentum: 0.5 }.at(1.0), clipped: false };
            try_run(kernels, &op, &ranks, &mut outputs).unwrap();
            assert_same(&outputs[1].to_vec::<T>(), &vec![T::of(sum) * share; len]);
        }
    }
    everywhere!(body);
}

#[test]
fn the_description_says_what_was_picked() {
    for kernels in all() {
        let description = kernels.description();
        assert!(description.contains("thread"), "{description}");
    }
}
