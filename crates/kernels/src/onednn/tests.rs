//! What the library computes against plain loops in f64, on operands with a seed. Without the library there is
//! nothing to test; `tests/onednn.rs` says so, and fails where it is expected.
#![allow(clippy::unwrap_used)] // a test that cannot get its operands has failed

use tensorwire_graph::Window;

use super::*;
use crate::cpu::SimdLevel;

fn open(threads: usize) -> Option<OneDnn> {
    OneDnn::open(None, Cpu::open(SimdLevel::Baseline, 1), threads).ok()
}

/// Back ends of one thread and of two; none without the library.
fn opened() -> Vec<OneDnn> {
    [1, 2].into_iter().filter_map(open).collect()
}

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Values(u64);

impl Values {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in ±1.
    fn reals(&mut self, count: usize) -> Vec<f32> {
        (0..count)
            .map(|_| ((self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0) as f32)
            .collect()
    }
}

#[track_caller]
fn assert_close(found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let difference = (f64::from(found) - expected).abs();
        let allowed = tolerance * expected.abs().max(1.0);
        assert!(difference <= allowed, "element {i}: found {found}, expected {expected}");
    }
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

fn nans(count: usize) -> Vec<f32> {
    vec![f32::NAN; count]
}

/// Calls `f` with the input row and column that a window's element looks at, if it is no padding.
fn inside(window: &Window, size: [usize; 2], at: [usize; 4], f: &mut dyn FnMut(usize, usize)) {
    let [r, c, i, j] = at;
    let row = (r * window.stride[0] + i * window.dilation[0]).checked_sub(window.before[0]);
    let column = (c * window.stride[1] + j * window.dilation[1]).checked_sub(window.before[1]);
    if let (Some(row), Some(column)) = (row, column)
        && row < size[0]
        && column < size[1]
    {
        f(row, column);
    }
}

fn convolution(
    batch: usize,
    size: [usize; 2],
    [channels, outputs, groups]: [usize; 3],
    window: Window,
) -> Convolution {
    let windows = window.output(size).unwrap();
    Convolution { batch, size, channels, windows, outputs, groups, window }
}

fn convolutions() -> Vec<Convolution> {
    let wide = Window { dilation: [2, 3], ..Window::padded([3, 3], [1, 1], [2, 1]) };
    let uneven = Window { before: [0, 1], after: [2, 0], ..Window::valid([3, 2], [2, 1]) };
    vec![
        convolution(2, [9, 7], [3, 8, 1], Window::padded([3, 3], [1, 1], [1, 1])),
        convolution(2, [17, 17], [3, 64, 1], Window::same([7, 7], [2, 2], [17, 17])),
        convolution(3, [8, 8], [32, 48, 1], Window::valid([1, 1], [1, 1])),
        convolution(1, [9, 9], [16, 32, 1], Window::valid([1, 1], [2, 2])),
        convolution(2, [13, 13], [64, 64, 1], Window::padded([3, 3], [1, 1], [1, 1])),
        convolution(2, [12, 10], [16, 16, 1], uneven),
        convolution(2, [12, 14], [17, 5, 1], wide),
        convolution(2, [10, 10], [12, 8, 4], Window::padded([3, 3], [2, 2], [1, 1])),
        convolution(2, [11, 6], [16, 16, 16], Window::padded([3, 3], [1, 1], [1, 1])),
        convolution(2, [6, 6], [8, 16, 8], Window::padded([3, 3], [1, 1], [1, 1])),
        convolution(1, [1, 1], [5, 7, 1], Window::valid([1, 1], [1, 1])),
        convolution(2, [3, 17], [32, 32, 1], Window::padded([1, 7], [1, 1], [0, 3])),
    ]
}

/// Calls `f` with the places in x, w and y of every product of a convolution.
fn products(shape: &Convolution, f: &mut dyn FnMut(usize, usize, usize)) {
    let Convolution { batch, size, channels, windows, outputs, groups, window } = *shape;
    let [kh, kw] = window.kernel;
    let (ins, outs) = (channels / groups, outputs / groups);
    for n in 0..batch {
        for r in 0..windows[0] {
            for c in 0..windows[1] {
                for (i, j) in (0..kh).flat_map(|i| (0..kw).map(move |j| (i, j))) {
                    inside(&window, size, [r, c, i, j], &mut |row, column| {
                        for o in 0..outputs {
                            for k in 0..ins {
                                let x = ((n * size[0] + row) * size[1] + column) * channels;
                                let w = ((o * ins + k) * kh + i) * kw + j;
                                let y = ((n * windows[0] + r) * windows[1] + c) * outputs + o;
                                f(x + o / outs * ins + k, w, y);
                            }
                        }
                    });
                }
            }
        }
    }
}

#[test]
fn convolutions_agree_with_plain_loops() {
    for kernels in &opened() {
        let mut values = Values(1);
        for shape in &convolutions() {
            let Convolution { batch, size, channels, windows, outputs, groups, window } = *shape;
            let xs = batch * size[0] * size[1] * channels;
            let ys = batch * windows[0] * windows[1] * outputs;
            let ws = outputs * channels / groups * window.kernel[0] * window.kernel[1];
            let (x, w, dy) = (values.reals(xs), values.reals(ws), values.reals(ys));
            let (mut y, mut dx, mut dw) = (nans(ys), nans(xs), nans(ws));
            kernels.conv2d(*shape, &x, &w, &mut y).unwrap();
            kernels.conv2d_grad_input(*shape, &dy, &w, &mut dx).unwrap();
            kernels.conv2d_grad_weight(*shape, &dy, &x, &mut dw).unwrap();
            let mut expected = [vec![0.0; ys], vec![0.0; xs], vec![0.0; ws]];
            let widen = |value: f32| f64::from(value);
            products(shape, &mut |at_x, at_w, at_y| {
                expected[0][at_y] += widen(x[at_x]) * widen(w[at_w]);
                expected[1][at_x] += widen(dy[at_y]) * widen(w[at_w]);
                expected[2][at_w] += widen(dy[at_y]) * widen(x[at_x]);
            });
            // sums of some hundred products around ±1, each rounded by 6e-8
            assert_close(&y, &expected[0], 2e-5);
            assert_close(&dx, &expected[1], 2e-5);
            assert_close(&dw, &expected[2], 5e-5);
            // the same bits again, from another opened back end
            let again = open(kernels.threads).unwrap();
            let (mut y2, mut dx2, mut dw2) = (nans(ys), nans(xs), nans(ws));
            for _ in 0..3 {
                again.conv2d(*shape, &x, &w, &mut y2).unwrap();
                again.conv2d_grad_input(*shape, &dy, &w, &mut dx2).unwrap();
                again.conv2d_grad_weight(*shape, &dy, &x, &mut dw2).unwrap();
                assert!(same_bits(&y, &y2) && same_bits(&dx, &dx2) && same_bits(&dw, &dw2));
            }
        }
    }
}

#[test]
fn nothing_to_compute_is_refused() {
    let Some(kernels) = open(1) else { return };
    let none = convolution(0, [8, 8], [3, 4, 1], Window::valid([1, 1], [1, 1]));
    assert_eq!(kernels.conv2d(none, &[], &nans(12), &mut []), Err(Refused::Shape));
}

#[test]
fn threads_share_one_back_end() {
    let Some(kernels) = open(2) else { return };
    let shape = convolutions()[4];
    let mut values = Values(7);
    let (x, w) = (values.reals(2 * 13 * 13 * 64), values.reals(64 * 64 * 9));
    let mut expected = nans(x.len());
    kernels.conv2d(shape, &x, &w, &mut expected).unwrap();
    rayon::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|_| {
                let mut y = nans(x.len());
                for _ in 0..20 {
                    kernels.conv2d(shape, &x, &w, &mut y).unwrap();
                    assert!(same_bits(&y, &expected));
                }
            });
        }
    });
}

#[test]
fn a_missing_library_is_an_error_that_helps() {
    let path = Path::new("/nonexistent/libdnnl.so.3");
    let error = OneDnn::open(Some(path), Cpu::open(SimdLevel::Baseline, 1), 1).unwrap_err();
    assert!(matches!(error, OpenError::Missing { .. }));
    let text = error.to_string();
    assert!(text.contains("/nonexistent/libdnnl.so.3") && text.contains("libdnnl3"), "{text}");
}

#[test]
fn another_library_is_refused() {
    let another = OneDnn::open(Some(Path::new("libc.so.6")), Cpu::open(SimdLevel::Baseline, 1), 1);
    let function = another.unwrap_err();
    assert!(matches!(function, OpenError::Function { function: "dnnl_version", .. }), "{function}");
}
