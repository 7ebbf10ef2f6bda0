//! What the suites share: values to run with, and how. What they run on is [`crate::targets`]'.

pub(crate) mod images;

use num_traits::Float;
use tensorwire_graph::Op;
use tensorwire_kernels::KernelError;
use tensorwire_kernels::check::{self, Computes, Tolerance};
use tensorwire_memory::{TensorMut, TensorRef};
use tensorwire_tensor::Element;

pub(crate) use crate::targets::{ADDS_IN_ORDER, Target, all, cpus, gradient, net, reference};
pub(crate) use tensorwire_kernels::check::{Tensor, central_differences};

/// Runs `op`, and returns what it says.
pub(crate) fn try_run(
    kernels: &Target,
    op: &Op,
    inputs: &[Tensor],
    outputs: &mut [Tensor],
) -> Result<(), KernelError> {
    let inputs: Vec<TensorRef<'_>> = inputs.iter().map(Tensor::view).collect();
    let mut outputs: Vec<TensorMut<'_>> = outputs.iter_mut().map(Tensor::view_mut).collect();
    kernels.compute(op, &inputs, &mut outputs)
}

/// Runs `op` over the tensor in `outputs`, and returns what it says.
pub(crate) fn try_run_in_place(
    kernels: &Target,
    op: &Op,
    rest: &[Tensor],
    outputs: &mut [Tensor],
) -> Result<(), KernelError> {
    let rest: Vec<TensorRef<'_>> = rest.iter().map(Tensor::view).collect();
    let mut outputs: Vec<TensorMut<'_>> = outputs.iter_mut().map(Tensor::view_mut).collect();
    kernels.compute_in_place(op, &rest, &mut outputs)
}

/// Runs an operator of one output of `dims`.
pub(crate) fn run_one<T: Element>(
    kernels: &Target,
    op: &Op,
    inputs: &[Tensor],
    dims: &[usize],
) -> Vec<T> {
    let mut outputs = [Tensor::unwritten(T::DTYPE, dims)];
    try_run(kernels, op, inputs, &mut outputs).unwrap();
    outputs[0].to_vec()
}

/// Runs an operator of outputs of `dims`, all of one type.
pub(crate) fn run_all<T: Element>(
    kernels: &Target,
    op: &Op,
    inputs: &[Tensor],
    dims: &[&[usize]],
) -> Vec<Vec<T>> {
    let mut outputs: Vec<Tensor> = dims.iter().map(|d| Tensor::unwritten(T::DTYPE, d)).collect();
    try_run(kernels, op, inputs, &mut outputs).unwrap();
    outputs.iter().map(Tensor::to_vec).collect()
}

/// All back ends' results of an operator of one output, which is sums of `terms` numbers at most, are the same bits; or,
/// where they are added in another order, within 2·terms·eps·Σ|x| of the reference's (Higham 2002, §4.2).
pub(crate) fn same_sums<T: Real>(op: &Op, inputs: &[Tensor], dims: &[usize], terms: usize) {
    let expected = Tensor::new(dims, &run_one::<T>(&reference(), op, inputs, dims));
    let absolute = |x: &Tensor| {
        let numbers: Vec<T> = x.to_vec::<T>().into_iter().map(|x| x.abs()).collect();
        Tensor::new(x.spec().dims(), &numbers)
    };
    let unit: f64 = T::epsilon().into() * 2.0 * terms as f64;
    let given: Vec<Tensor> = inputs.iter().map(absolute).collect();
    let scale = run_one::<T>(&reference(), op, &given, dims);
    let most = |_: usize, element: usize, _: f64| unit * scale[element].into();
    let tolerance = if ADDS_IN_ORDER { Tolerance::Bits } else { Tolerance::Within(&most) };
    check::agreement(&all(), op, inputs, &[expected], tolerance).unwrap();
}

/// Sequences of a batch of `batch`: how many are not over at each of up to `steps` steps.
pub(crate) fn profile(values: &mut Values, batch: usize, steps: usize) -> Vec<i32> {
    let mut active = Vec::new();
    let mut most = batch;
    for _ in 0..steps {
        if most == 0 {
            break;
        }
        most -= values.below(most.min(2) + 1);
        if most > 0 {
            active.push(most as i32);
        }
    }
    active
}

/// What the suites are generic over.
pub(crate) trait Real: Element + Float + Into<f64> {
    fn of(value: f64) -> Self;
    fn bits(self) -> u64;
}

impl Real for f32 {
    fn of(value: f64) -> f32 {
        value as f32
    }
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
}

impl Real for f64 {
    fn of(value: f64) -> f64 {
        value
    }
    fn bits(self) -> u64 {
        self.to_bits()
    }
}

pub(crate) fn of<T: Real>(values: &[f64]) -> Vec<T> {
    values.iter().map(|&v| T::of(v)).collect()
}

/// Asserts the same bits, but takes any NaN for any other.
#[track_caller]
pub(crate) fn assert_same<T: Real>(found: &[T], expected: &[T]) {
    assert_eq!(found.len(), expected.len());
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let same = found.bits() == expected.bits() || (found.is_nan() && expected.is_nan());
        assert!(same, "element {i}: found {found:?}, expected {expected:?}");
    }
}

/// A small generator of test values (Steele, Lea and Flood 2014, SplitMix64).
pub(crate) struct Values(pub(crate) u64);

impl Values {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in ±2.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 51) as f64 - 2.0
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub(crate) fn reals<T: Real>(&mut self, count: usize) -> Vec<T> {
        (0..count).map(|_| T::of(self.uniform())).collect()
    }

    /// In random order, no two nearer than a step of central differences moves them: a maximum stays one.
    pub(crate) fn apart(&mut self, count: usize) -> Vec<f64> {
        let mut values: Vec<f64> = (0..count).map(|i| i as f64 * 0.01 - 0.5).collect();
        for i in (1..count).rev() {
            values.swap(i, self.below(i + 1));
        }
        values
    }

    /// As `reals`, with zeros of both signs, infinities, NaN and subnormals among them.
    pub(crate) fn odd_reals<T: Real>(&mut self, count: usize) -> Vec<T> {
        let odd = [
            T::zero(),
            T::neg_zero(),
            T::infinity(),
            T::neg_infinity(),
            T::nan(),
            T::min_positive_value() / (T::one() + T::one()),
            T::max_value(),
        ];
        let mut one = |_| match self.below(4) {
            0 => odd[self.below(odd.len())],
            _ => T::of(self.uniform()),
        };
        (0..count).map(&mut one).collect()
    }

    /// Labels of `classes`, some of them padding; all padding where there is no class.
    pub(crate) fn labels(&mut self, count: usize, classes: usize) -> Vec<i32> {
        (0..count)
            .map(|_| match classes {
                0 => -1,
                _ => self.below(classes + 1) as i32 - 1,
            })
            .collect()
    }
}

#[track_caller]
pub(crate) fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let difference = (found - expected).abs();
        assert!(difference <= tolerance, "element {i}: found {found}, expected {expected}");
    }
}
