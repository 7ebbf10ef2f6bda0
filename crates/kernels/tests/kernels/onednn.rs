//! The onednn back end as callers see it: the same operators as `reference`, the rest as `cpu`, and an error
//! that helps where the library is missing. Without the library what needs it says that it is skipped; where it
//! is expected (TENSORWIRE_ONEDNN is set) its absence is a failure.
//!
//! | operators, on random shapes | agree with the reference | because |
//! |---|---|---|
//! | Conv2d | 2·k·eps·Σ\|a\|·\|b\| per element, k = kernel area · input channels | sums of at most k products in any order |
//! | Conv2dGradInput | the same, k = kernel area · output channels | as above |
//! | Conv2dGradWeight | the same, k = batch · output rows · output columns | as above |

use std::path::Path;

use crate::common::images::{Shape, absolute, reals, shape};
use crate::common::{Real, Tensor, Values, assert_close, assert_same, reference, run_one, try_run};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tensorwire_graph::{Op, Window};
use tensorwire_kernels::{KernelChoice, Kernels, OpenError};
use tensorwire_tensor::DType;
use tensorwire_testkit::skip::skip;

/// On one thread and on two; none where the library is missing.
fn onednn() -> Vec<Kernels> {
    let open = |threads| Kernels::open(KernelChoice::OneDnn, threads);
    let opened: Result<_, OpenError> = [1, 2].into_iter().map(open).collect();
    opened.unwrap_or_else(|error| {
        skip(Some("TENSORWIRE_ONEDNN"), &error);
        Vec::new()
    })
}

fn widened<T: Real>(values: Vec<T>) -> Vec<f64> {
    values.into_iter().map(Into::into).collect()
}

fn convolutions<T: Real>(kernels: &Kernels, tolerance: f64) {
    let window = Window::padded([3, 3], [2, 1], [1, 1]);
    let size = [9, 8];
    let [oh, ow] = window.output(size).unwrap();
    let mut values = Values(3);
    for groups in [1, 2] {
        let (x_dims, y_dims) = ([2, 9, 8, 6], [2, oh, ow, 10]);
        let w_dims = [10, 6 / groups, 3, 3];
        let mut tensor =
            |dims: &[usize]| Tensor::new(dims, &values.reals::<T>(dims.iter().product()));
        let (x, w, dy) = (tensor(&x_dims), tensor(&w_dims), tensor(&y_dims));
        for (op, inputs, dims) in [
            (Op::Conv2d { window, groups }, [&x, &w], y_dims),
            (Op::Conv2dGradInput { window, groups, size }, [&dy, &w], x_dims),
            (Op::Conv2dGradWeight { window, groups }, [&dy, &x], w_dims),
        ] {
            let inputs = inputs.map(Tensor::clone);
            let found = run_one::<T>(kernels, &op, &inputs, &dims);
            let expected = run_one::<T>(&reference(), &op, &inputs, &dims);
            assert_close(&widened(found), &widened(expected), tolerance);
        }
    }
}

#[test]
fn convolutions_agree_with_the_reference() {
    for kernels in &onednn() {
        // sums of some hundred products of values in ±2
        convolutions::<f32>(kernels, 2e-4);
        convolutions::<f64>(kernels, 1e-11);
    }
}

/// Convolution and both gradients on operands of `shape`, each to within the tolerance of its row above.
fn any_convolutions<T: Real>(all: &[Kernels], shape: Shape, seed: u64) {
    let mut values = Values(seed);
    for (op, a_dims, b_dims, y_dims, terms) in shape.convolutions() {
        let (a, b) = (reals::<T>(&mut values, &a_dims), reals::<T>(&mut values, &b_dims));
        let sizes = [absolute::<T>(&a, &a_dims), absolute::<T>(&b, &b_dims)];
        let sizes = run_one::<T>(&reference(), &op, &sizes, &y_dims);
        let unit = T::of(2.0 * terms as f64) * T::epsilon();
        let inputs = [a, b];
        let expected = run_one::<T>(&reference(), &op, &inputs, &y_dims);
        for kernels in all {
            let found = run_one::<T>(kernels, &op, &inputs, &y_dims);
            assert_eq!(found.len(), expected.len());
            for (i, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
                let close = (found - expected).abs() <= unit * sizes[i];
                assert!(close, "{op:?}, element {i}: {found:?} for {expected:?}");
            }
        }
    }
}

#[test]
fn convolutions_of_any_shape_agree_with_the_reference() {
    let all = onednn();
    if all.is_empty() {
        return;
    }
    let config =
        ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() };
    // few channels, and as many as the library's blocks have
    let shapes = prop_oneof![3 => shape(6), 1 => shape(20)];
    let run = |(shape, seed)| {
        any_convolutions::<f32>(&all, shape, seed);
        any_convolutions::<f64>(&all, shape, seed);
        Ok(())
    };
    TestRunner::new(config).run(&(shapes, any::<u64>()), run).unwrap();
    // batches of none, one and several; whole blocks of channels; one channel in each group
    let uneven = Window { before: [2, 0], after: [0, 1], ..Window::valid([3, 3], [2, 1]) };
    let dilated = Window { dilation: [2, 2], ..Window::padded([3, 3], [1, 1], [2, 2]) };
    for batch in [0, 1, 3] {
        for (channels, outputs, groups) in [(16, 32, 1), (3, 16, 1), (32, 32, 2), (16, 16, 16)] {
            for window in [Window::padded([1, 1], [1, 1], [0, 0]), uneven, dilated] {
                let shape = Shape { batch, size: [8, 7], channels, outputs, groups, window };
                any_convolutions::<f32>(&all, shape, 5);
            }
        }
    }
}

#[test]
fn what_it_shares_with_cpu_has_the_bits_of_cpu() {
    let cpu = Kernels::open(KernelChoice::Cpu, 1).unwrap();
    let window = Window::padded([3, 3], [2, 2], [1, 1]);
    for kernels in &onednn() {
        let mut values = Values(4);
        let x = [Tensor::new(&[2, 7, 7, 5], &values.odd_reals::<f32>(2 * 7 * 7 * 5))];
        let pooled = |kernels: &Kernels| {
            let dims = [2, 4, 4, 5];
            let mut outputs =
                [Tensor::unwritten(DType::F32, &dims), Tensor::unwritten(DType::U8, &dims)];
            try_run(kernels, &Op::MaxPool { window }, &x, &mut outputs).unwrap();
            (outputs[0].to_vec::<f32>(), outputs[1].to_vec::<u8>())
        };
        let (found, expected) = (pooled(kernels), pooled(&cpu));
        assert_same(&found.0, &expected.0);
        assert_eq!(found.1, expected.1);
        let relu = |kernels: &Kernels| run_one::<f32>(kernels, &Op::Relu, &x, &[2, 7, 7, 5]);
        assert_same(&relu(kernels), &relu(&cpu));
    }
}

#[test]
fn auto_opens_with_and_without_the_library() {
    let found = Kernels::open(KernelChoice::OneDnn, 2).is_ok();
    let description = Kernels::open(KernelChoice::Auto, 2).unwrap().description();
    let expected = if found { "onednn 3." } else { "cpu: " };
    assert!(description.starts_with(expected), "{description}");
}

#[test]
fn a_missing_library_says_what_was_looked_for() {
    let path = Path::new("/nonexistent/libdnnl.so.3");
    let error = Kernels::open_onednn(Some(path), 1).unwrap_err();
    assert!(
        matches!(&error, OpenError::Missing { looked_for, .. } if Path::new(looked_for) == path)
    );
}
