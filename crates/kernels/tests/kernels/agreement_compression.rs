//! What less is made of a gradient, and what that becomes again: the same bits on every back end, by definition and by hand; nothing is
//! lost over the steps, and no number that is none is hidden.

use tensorwire_graph::Op;
use tensorwire_tensor::DType;

use crate::common::{Target, Tensor, Values, all, assert_same, reference, try_run};

/// What is left, and what crosses.
struct Less {
    residual: Vec<f32>,
    /// Bytes, or indices.
    places: Vec<i32>,
    /// Scales, or values.
    numbers: Vec<f32>,
}

fn quantize(kernels: &Target, block: usize, residual: &[f32], x: &[f32]) -> Less {
    let dims = [x.len()];
    let mut made = [
        Tensor::new(&dims, residual),
        Tensor::unwritten(DType::U8, &dims),
        Tensor::unwritten(DType::F32, &[x.len().div_ceil(block)]),
    ];
    try_run(kernels, &Op::Quantize { block }, &[Tensor::new(&dims, x)], &mut made).unwrap();
    let places = made[1].to_vec::<u8>().into_iter().map(|q| q.cast_signed().into()).collect();
    Less { residual: made[0].to_vec(), places, numbers: made[2].to_vec() }
}

fn dequantize(kernels: &Target, (block, first): (usize, usize), less: &Less) -> Vec<f32> {
    let q: Vec<u8> = less.places[first..].iter().map(|q| (*q as i8).cast_unsigned()).collect();
    let inputs = [Tensor::new(&[q.len()], &q), Tensor::new(&[less.numbers.len()], &less.numbers)];
    let mut made = [Tensor::unwritten(DType::F32, &[q.len()])];
    try_run(kernels, &Op::Dequantize { block, first }, &inputs, &mut made).unwrap();
    made[0].to_vec()
}

fn top_k(kernels: &Target, count: usize, residual: &[f32], x: &[f32]) -> Less {
    let dims = [x.len()];
    let mut made = [
        Tensor::new(&dims, residual),
        Tensor::unwritten(DType::I32, &[count]),
        Tensor::unwritten(DType::F32, &[count]),
    ];
    try_run(kernels, &Op::TopK { count }, &[Tensor::new(&dims, x)], &mut made).unwrap();
    Less { residual: made[0].to_vec(), places: made[1].to_vec(), numbers: made[2].to_vec() }
}

fn scatter(kernels: &Target, (first, elements): (usize, usize), less: &Less) -> Vec<f32> {
    let count = [less.places.len()];
    let inputs = [Tensor::new(&count, &less.places), Tensor::new(&count, &less.numbers)];
    let mut made = [Tensor::unwritten(DType::F32, &[elements])];
    let op = Op::ScatterElements { to: vec![elements], first };
    try_run(kernels, &op, &inputs, &mut made).unwrap();
    made[0].to_vec()
}

#[track_caller]
fn same(found: &Less, expected: &Less) {
    assert_same(&found.residual, &expected.residual);
    assert_eq!(found.places, expected.places);
    assert_same(&found.numbers, &expected.numbers);
}

/// Several sizes, one of more than a thread's piece, and numbers of all kinds.
fn gradients() -> Vec<[Vec<f32>; 2]> {
    let mut values = Values(5);
    let mut all = Vec::new();
    for count in [1, 255, 257, 4097, 33_001] {
        all.push([values.reals(count), values.reals(count)]);
        all.push([vec![0.0; count], values.odd_reals(count)]);
        // many equals
        all.push([vec![0.0; count], (0..count).map(|i| (i % 3) as f32 - 1.0).collect()]);
        all.push([vec![f32::MIN_POSITIVE / 64.0; count], vec![0.0; count]]);
    }
    all
}

#[test]
fn what_crosses_is_the_same_on_all_back_ends() {
    for [residual, x] in gradients() {
        for block in if x.len() > 4096 { vec![256] } else { vec![1, 7, 256] } {
            let expected = quantize(&reference(), block, &residual, &x);
            for kernels in all() {
                same(&quantize(&kernels, block, &residual, &x), &expected);
                for first in [0, x.len() / 3] {
                    let expected = dequantize(&reference(), (block, first), &expected);
                    let less = quantize(&kernels, block, &residual, &x);
                    assert_same(&dequantize(&kernels, (block, first), &less), &expected);
                }
            }
        }
        let counts = [x.len().div_ceil(100), 1, x.len().div_ceil(3), x.len()];
        for count in counts.into_iter().take(if x.len() > 4097 { 1 } else { 4 }) {
            let expected = top_k(&reference(), count, &residual, &x);
            let (first, rows) = (x.len() / 3, x.len() / 2);
            let part = scatter(&reference(), (first, rows), &expected);
            for kernels in all() {
                same(&top_k(&kernels, count, &residual, &x), &expected);
                assert_same(&scatter(&kernels, (first, rows), &expected), &part);
            }
        }
    }
}

/// A quantum is a 127th of the largest of a block, and halves go to the even one.
#[test]
fn a_scale_is_that_of_its_block_by_hand() {
    let x = [254.0, -254.0, 3.0, -5.0, 1.0, 0.5, 127.0, -0.75];
    for kernels in all() {
        let less = quantize(&kernels, 4, &[0.0; 8], &x);
        assert_eq!(less.numbers, [2.0, 1.0]);
        assert_eq!(less.places, [127, -127, 2, -2, 1, 0, 127, -1]);
        assert_eq!(less.residual, [0.0, 0.0, -1.0, -1.0, 0.0, 0.5, 0.0, 0.25]);
        let made = dequantize(&kernels, (4, 0), &less);
        assert_eq!(made, [254.0, -254.0, 4.0, -4.0, 1.0, 0.0, 127.0, -1.0]);
    }
}

#[test]
fn the_largest_cross_of_equals_the_first_by_hand() {
    let x = [1.0, -3.0, 2.0, 3.0, -2.0, 0.0];
    for kernels in all() {
        let less = top_k(&kernels, 3, &[0.0, 0.0, 0.0, 0.0, 0.0, 1.5], &x);
        assert_eq!((less.places, less.numbers), (vec![1, 2, 3], vec![-3.0, 2.0, 3.0]));
        assert_eq!(less.residual, [1.0, 0.0, 0.0, 0.0, -2.0, 1.5]);
    }
}

/// What is below the quantum, or not among the largest, crosses later: of many steps the sum is there, but for what the last one left.
#[test]
fn what_is_left_crosses_in_later_steps() {
    let small = 0.001;
    let x: Vec<f32> = (0..60).map(|i| if i == 7 { 1.0 } else { small }).collect();
    let steps = 100;
    type Way = fn(&Target, &[f32], &[f32]) -> (Less, Vec<f32>);
    let int8: Way = |kernels, residual, x| {
        let less = quantize(kernels, 256, residual, x);
        let made = dequantize(kernels, (256, 0), &less);
        (less, made)
    };
    let largest: Way = |kernels, residual, x| {
        let less = top_k(kernels, 3, residual, x);
        let made = scatter(kernels, (0, x.len()), &less);
        (less, made)
    };
    for (way, quantum) in [(int8, 1.0f32 / 127.0), (largest, small * 60.0)] {
        for kernels in all() {
            let (mut residual, mut sums) = (vec![0.0; x.len()], vec![0.0; x.len()]);
            for _ in 0..steps {
                let (less, made) = way(&kernels, &residual, &x);
                sums.iter_mut().zip(made).for_each(|(sum, made)| *sum += made);
                residual = less.residual;
            }
            for (i, (sum, x)) in sums.iter().zip(&x).enumerate() {
                let whole = x * steps as f32;
                assert!((sum - whole).abs() <= quantum, "element {i}: {sum}, not {whole}");
                assert!(*sum != 0.0);
            }
        }
    }
}

#[test]
fn what_is_no_number_reaches_the_receiver() {
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let x: Vec<f32> = (0..600).map(|i| if i == 300 { odd } else { 1.0 }).collect();
        for kernels in all() {
            let less = quantize(&kernels, 256, &[0.0; 600], &x);
            let made = dequantize(&kernels, (256, 0), &less);
            let is_nan: Vec<bool> = made.iter().map(|x| x.is_nan()).collect();
            let expected: Vec<bool> = (0..600).map(|i| (256..512).contains(&i)).collect();
            assert_eq!(is_nan, expected, "the block that it is in, and no other");
            let less = top_k(&kernels, 1, &[0.0; 600], &x);
            assert_eq!(less.places, [300]);
            assert_same(&less.numbers, &[odd]);
        }
    }
}
