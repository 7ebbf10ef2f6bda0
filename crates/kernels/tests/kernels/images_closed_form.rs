//! The operators over images on operands whose result is known without computing it, on every back end, in
//! f32 and f64. Where the numbers are small whole ones and halves, the result is exact.

use crate::common::{Real, Target, Tensor, all, assert_close, assert_same, of, run_one, try_run};
use tensorwire_graph::{Op, Window};

/// Runs one test body for both element types on all back ends.
macro_rules! everywhere {
    ($body:ident) => {
        for kernels in all() {
            $body::<f32>(&kernels);
            $body::<f64>(&kernels);
        }
    };
}

/// Dimensions and elements.
type Given<'a> = (&'a [usize], &'a [f64]);

/// Asserts that `op` makes `expected`, exactly.
#[track_caller]
fn expect<T: Real>(kernels: &Target, op: &Op, inputs: &[Given<'_>], expected: Given<'_>) {
    let inputs: Vec<Tensor> = inputs.iter().map(|(d, x)| Tensor::new(d, &of::<T>(x))).collect();
    let found: Vec<T> = run_one(kernels, op, &inputs, expected.0);
    assert_same(&found, &of::<T>(expected.1));
}

#[test]
fn a_convolution_correlates_and_its_gradients_go_back() {
    fn body<T: Real>(kernels: &Target) {
        let window = Window::valid([2, 2], [1, 1]);
        // 1 2 3 / 4 5 6 under 1 0 / 0 −1 is 1−5, 2−6
        let x: Given<'_> = (&[1, 2, 3, 1], &[1., 2., 3., 4., 5., 6.]);
        let w: Given<'_> = (&[1, 1, 2, 2], &[1., 0., 0., -1.]);
        let y: Given<'_> = (&[1, 1, 2, 1], &[-4., -4.]);
        expect::<T>(kernels, &Op::Conv2d { window, groups: 1 }, &[x, w], y);
        let dy: Given<'_> = (&[1, 1, 2, 1], &[1., 10.]);
        let op = Op::Conv2dGradInput { window, groups: 1, size: [2, 3] };
        expect::<T>(kernels, &op, &[dy, w], (x.0, &[1., 10., 0., 0., -1., -10.]));
        let op = Op::Conv2dGradWeight { window, groups: 1 };
        expect::<T>(kernels, &op, &[dy, x], (w.0, &[21., 32., 54., 65.]));
    }
    everywhere!(body);
}

#[test]
fn padding_stride_and_dilation_move_the_windows() {
    fn body<T: Real>(kernels: &Target) {
        let x: Given<'_> = (&[1, 1, 4, 1], &[1., 2., 3., 4.]);
        let w: Given<'_> = (&[1, 1, 1, 2], &[1., 10.]);
        let row = |window: Window, expected: &[f64]| {
            let dims = [1, 1, expected.len(), 1];
            let op = Op::Conv2d { window, groups: 1 };
            expect::<T>(kernels, &op, &[x, w], (&dims, expected));
        };
        let plain = Window::valid([1, 2], [1, 1]);
        row(plain, &[21., 32., 43.]);
        row(Window { stride: [1, 2], ..plain }, &[21., 43.]);
        row(Window { dilation: [1, 2], ..plain }, &[31., 42.]);
        row(Window { before: [0, 1], ..plain }, &[10., 21., 32., 43.]);
        row(Window { after: [0, 1], ..plain }, &[21., 32., 43., 4.]);
        row(Window { before: [0, 1], stride: [1, 3], ..plain }, &[10., 43.]);
        // elements that no window sees get no gradient
        let window = Window { stride: [1, 3], ..plain };
        let op = Op::Conv2dGradInput { window, groups: 1, size: [1, 4] };
        expect::<T>(kernels, &op, &[(&[1, 1, 1, 1], &[2.]), w], (x.0, &[2., 20., 0., 0.]));
    }
    everywhere!(body);
}

#[test]
fn channels_are_summed_within_their_group() {
    fn body<T: Real>(kernels: &Target) {
        let window = Window::valid([1, 1], [1, 1]);
        let x: Given<'_> = (&[1, 1, 1, 4], &[1., 2., 3., 4.]);
        let w: Given<'_> = (&[2, 2, 1, 1], &[1., 10., 100., 1000.]);
        let op = Op::Conv2d { window, groups: 2 };
        expect::<T>(kernels, &op, &[x, w], (&[1, 1, 1, 2], &[21., 4300.]));
        let w: Given<'_> = (&[2, 4, 1, 1], &[1., 1., 1., 1., 1., 2., 3., 4.]);
        let op = Op::Conv2d { window, groups: 1 };
        expect::<T>(kernels, &op, &[x, w], (&[1, 1, 1, 2], &[10., 30.]));
    }
    everywhere!(body);
}

#[test]
fn nothing_convolved_is_nothing_or_zero() {
    fn body<T: Real>(kernels: &Target) {
        let window = Window::padded([3, 3], [1, 1], [1, 1]);
        let groups = 1;
        let (x, w): (Given<'_>, Given<'_>) = ((&[0, 5, 5, 2], &[]), (&[1, 2, 3, 3], &[1.0; 18]));
        expect::<T>(kernels, &Op::Conv2d { window, groups }, &[x, w], (&[0, 5, 5, 1], &[]));
        let dy: Given<'_> = (&[0, 5, 5, 1], &[]);
        let op = Op::Conv2dGradWeight { window, groups };
        expect::<T>(kernels, &op, &[dy, x], (&[1, 2, 3, 3], &[0.0; 18]));
        let op = Op::Conv2dGradInput { window, groups, size: [5, 5] };
        expect::<T>(kernels, &op, &[dy, w], (x.0, &[]));
        // no channels: a sum of nothing
        let (x, w): (Given<'_>, Given<'_>) = ((&[1, 1, 2, 0], &[]), (&[3, 0, 3, 3], &[]));
        expect::<T>(kernels, &Op::Conv2d { window, groups }, &[x, w], (&[1, 1, 2, 3], &[0.0; 6]));
        let (dy, w): (Given<'_>, Given<'_>) = ((&[1, 1, 2, 0], &[]), (&[0, 3, 3, 3], &[]));
        let op = Op::Conv2dGradInput { window, groups, size: [1, 2] };
        expect::<T>(kernels, &op, &[dy, w], (&[1, 1, 2, 3], &[0.0; 6]));
    }
    everywhere!(body);
}

#[test]
fn max_pool_takes_the_first_of_equals_and_never_padding() {
    fn body<T: Real>(kernels: &Target) {
        let window = Window::padded([2, 2], [2, 2], [1, 1]);
        let x = [-1., -2., -2., -5., -3., -3., -7., -3., -9.];
        let x = [Tensor::new(&[1, 3, 3, 1], &of::<T>(&x))];
        let dims = [1, 2, 2, 1];
        let mut outputs = [
            Tensor::unwritten(T::DTYPE, &dims),
            Tensor::unwritten(tensorwire_tensor::DType::U8, &dims),
        ];
        try_run(kernels, &Op::MaxPool { window }, &x, &mut outputs).unwrap();
        assert_same(&outputs[0].to_vec::<T>(), &of::<T>(&[-1., -2., -5., -3.]));
        assert_eq!(outputs[1].to_vec::<u8>(), [3, 2, 1, 0]);
        let dy = Tensor::new(&dims, &of::<T>(&[1., 2., 4., 8.]));
        let op = Op::MaxPoolGrad { window, size: [3, 3] };
        let dx: Vec<T> = run_one(kernels, &op, &[dy, outputs[1].clone()], &[1, 3, 3, 1]);
        assert_same(&dx, &of::<T>(&[1., 2., 0., 4., 8., 0., 0., 0., 0.]));
    }
    everywhere!(body);
}

#[test]
fn max_pool_shows_a_nan_and_its_gradient_ignores_places_outside() {
    fn body<T: Real>(kernels: &Target) {
        let window = Window::valid([1, 3], [1, 1]);
        let x = [Tensor::new(&[1, 1, 3, 1], &[T::of(1.0), T::nan(), T::infinity()])];
        let dims = [1, 1, 1, 1];
        let mut outputs = [
            Tensor::unwritten(T::DTYPE, &dims),
            Tensor::unwritten(tensorwire_tensor::DType::U8, &dims),
        ];
        try_run(kernels, &Op::MaxPool { window }, &x, &mut outputs).unwrap();
        assert!(outputs[0].to_vec::<T>()[0].is_nan());
        assert_eq!(outputs[1].to_vec::<u8>(), [1]);
        for place in [3u8, 255] {
            let inputs = [Tensor::new(&dims, &of::<T>(&[5.])), Tensor::new(&dims, &[place])];
            let op = Op::MaxPoolGrad { window, size: [1, 3] };
            let dx: Vec<T> = run_one(kernels, &op, &inputs, &[1, 1, 3, 1]);
            assert_same(&dx, &of::<T>(&[0.; 3]));
        }
    }
    everywhere!(body);
}

#[test]
fn avg_pool_divides_by_what_is_no_padding() {
    fn body<T: Real>(kernels: &Target) {
        let window = Window::padded([3, 3], [2, 2], [1, 1]);
        let x: Given<'_> = (&[1, 2, 2, 2], &[1., 8., 2., 16., 3., 24., 6., 32.]);
        let op = Op::AvgPool { window };
        expect::<T>(kernels, &op, &[x], (&[1, 1, 1, 2], &[3., 20.]));
        let op = Op::AvgPoolGrad { window, size: [2, 2] };
        let dx = [1., 2., 1., 2., 1., 2., 1., 2.];
        expect::<T>(kernels, &op, &[(&[1, 1, 1, 2], &[4., 8.])], (x.0, &dx));
    }
    everywhere!(body);
}

#[test]
fn batch_norm_centres_and_scales() {
    fn body<T: Real>(kernels: &Target) {
        // channel 0: mean 3, variance 4; channel 1: constant, so only epsilon = 0.25 stands below
        let x = Tensor::new(&[2, 2, 2], &of::<T>(&[1., 7., 5., 7., 1., 7., 5., 7.]));
        let scale = Tensor::new(&[2], &of::<T>(&[4., 100.]));
        let shift = Tensor::new(&[2], &of::<T>(&[10., -1.]));
        let outputs = || [&[2, 2, 2][..], &[2], &[2]].map(|d| Tensor::unwritten(T::DTYPE, d));
        let mut scaled = outputs();
        let op = Op::BatchNorm { epsilon: 0.0, scaled: true };
        let inputs = [x.clone(), scale, shift.clone()];
        // epsilon 0 over a constant is 0/0, so that channel is not looked at here
        try_run(kernels, &op, &inputs, &mut scaled).unwrap();
        let y: Vec<T> = scaled[0].to_vec::<T>().into_iter().step_by(2).collect();
        assert_same(&y, &of::<T>(&[6., 14., 6., 14.]));
        assert_same(&scaled[1].to_vec::<T>(), &of::<T>(&[3., 7.]));
        assert_same(&scaled[2].to_vec::<T>(), &of::<T>(&[4., 0.]));
        let mut unscaled = outputs();
        let op = Op::BatchNorm { epsilon: 0.25, scaled: false };
        try_run(kernels, &op, &[x.clone(), shift.clone()], &mut unscaled).unwrap();
        let y: Vec<T> = unscaled[0].to_vec::<T>().into_iter().skip(1).step_by(2).collect();
        assert_same(&y, &of::<T>(&[-1.; 4]));
        // with numbers that are given: (x − 1)/2·1 + shift and (x − 3)/4 + shift
        let mean = Tensor::new(&[2], &of::<T>(&[1., 3.]));
        let variance = Tensor::new(&[2], &of::<T>(&[3.75, 15.75]));
        let op = Op::Normalize { epsilon: 0.25, scaled: false };
        let y: Vec<T> = run_one(kernels, &op, &[x, shift, mean, variance], &[2, 2, 2]);
        assert_same(&y, &of::<T>(&[10., 0., 12., 0., 10., 0., 12., 0.]));
    }
    everywhere!(body);
}

#[test]
fn a_constant_gradient_says_nothing_through_batch_norm() {
    fn body<T: Real>(kernels: &Target) {
        let x = Tensor::new(&[4, 1], &of::<T>(&[1., 5., 1., 5.]));
        let one = |x: f64| Tensor::new(&[1], &of::<T>(&[x]));
        let dy = Tensor::new(&[4, 1], &of::<T>(&[2.; 4]));
        let mut outputs = [&[4, 1][..], &[1], &[1]].map(|d| Tensor::unwritten(T::DTYPE, d));
        let op = Op::BatchNormGrad { epsilon: 0.0, scaled: true };
        try_run(kernels, &op, &[dy, x, one(3.), one(4.), one(7.)], &mut outputs).unwrap();
        assert_same(&outputs[0].to_vec::<T>(), &of::<T>(&[0.; 4]));
        assert_same(&outputs[1].to_vec::<T>(), &of::<T>(&[0.]));
        assert_same(&outputs[2].to_vec::<T>(), &of::<T>(&[8.]));
    }
    everywhere!(body);
}

#[test]
fn responses_are_divided_by_those_around() {
    fn body<T: Real>(kernels: &Target) {
        // three channels around each: sums of squares 5, 14, 13, and beta 1
        let op = Op::LocalResponseNorm { size: 3, alpha: 1.0, beta: 1.0, bias: 2.0 };
        let x = [Tensor::new(&[1, 3], &of::<T>(&[1., 2., 3.]))];
        let y: Vec<T> = run_one(kernels, &op, &x, &[1, 3]);
        let y: Vec<f64> = y.into_iter().map(Into::into).collect();
        assert_close(&y, &[1. / 7., 2. / 16., 3. / 15.], 1e-7);
        // 16^−¾ is an eighth, more channels around than there are, and two rows that do not mix
        let op = Op::LocalResponseNorm { size: 9, alpha: 3.0, beta: 0.75, bias: 1.0 };
        let x = [Tensor::new(&[2, 2], &of::<T>(&[1., 2., -2., 1.]))];
        let y: Vec<T> = run_one(kernels, &op, &x, &[2, 2]);
        let y: Vec<f64> = y.into_iter().map(Into::into).collect();
        assert_close(&y, &[0.125, 0.25, -0.25, 0.125], 1e-7);
    }
    everywhere!(body);
}
