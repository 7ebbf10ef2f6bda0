//! Numbers that are rounded before they are multiplied. A format of p bits rounds by u = 2⁻ᵖ of a number at most, so that a
//! product of two rounded ones is within 2·u + u² of that of the numbers, and a sum of k such products, in f32, within
//! (2·u + u² + 2·k·2⁻²³)·Σ|a|·|b| of the reference's. It is also within 2·k·2⁻²³·Σ|a|·|b| of the reference's sum of numbers
//! that were rounded before, which holds it to the very format.

use tensorwire_cuda::Rounding;
use tensorwire_graph::{Cell, Op, Window};
use tensorwire_kernels::check::Tensor;
use tensorwire_tensor::DType;

use crate::common::{Values, reference, run_one, try_run};
use crate::engine::{in_a_process, is_own_process, rounding};
use crate::gpu::gpus;
use crate::targets::{Target, devices};

/// What rounds so: kernels of ours, or, in a process of its own, a GPU with a library.
fn rounding_targets(to: Rounding) -> Vec<Target> {
    match is_own_process() {
        true if rounding() == to => gpus().into_iter().map(Target::Gpu).collect(),
        true => Vec::new(),
        false => devices()
            .into_iter()
            .map(|device| Target::Device(crate::shim::Device { rounding: to, ..device }))
            .collect(),
    }
}

/// Half a unit of a number that begins with 1.
fn unit(rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nothing => 0.0,
        Rounding::Tf32 => 2f64.powi(-11),
        Rounding::Bf16 => 2f64.powi(-8),
    }
}

fn rounded(to: Rounding, x: f32) -> f32 {
    match to {
        Rounding::Nothing => x,
        // away from zero where two are as near; of finite ones
        Rounding::Tf32 => f32::from_bits(x.to_bits().wrapping_add(0x1000) & !0x1fff),
        Rounding::Bf16 => half::bf16::from_f32(x).to_f32(),
    }
}

fn each(x: &Tensor, by: impl Fn(f32) -> f32) -> Tensor {
    let numbers: Vec<f32> = x.to_vec::<f32>().into_iter().map(by).collect();
    Tensor::new(x.spec().dims(), &numbers)
}

/// Holds an operator of two factors against the reference, as the sums of `terms` products that it is.
fn sums(op: &Op, inputs: &[Tensor; 2], dims: &[usize], terms: usize) {
    for to in [Rounding::Nothing, Rounding::Tf32, Rounding::Bf16] {
        let run = |inputs: &[Tensor]| run_one::<f32>(&reference(), op, inputs, dims);
        let plain = run(inputs);
        let before = run(&inputs.each_ref().map(|x| each(x, |x| rounded(to, x))));
        let scale = run(&inputs.each_ref().map(|x| each(x, f32::abs)));
        let u = unit(to);
        let in_order = 2.0 * terms as f64 * f64::from(f32::EPSILON);
        for target in rounding_targets(to) {
            let found = run_one::<f32>(&target, op, inputs, dims);
            for (i, found) in found.iter().copied().enumerate() {
                let (scale, off) = (f64::from(scale[i]), |x: f32| f64::from((found - x).abs()));
                // of numbers that were rounded the scale is larger by their own rounding
                let most = in_order * scale * (1.0 + u).powi(2);
                assert!(off(before[i]) <= most, "{op:?} {to:?} {i}: {found} for {}", before[i]);
                let most = (2.0 * u + u * u + in_order) * scale * (1.0 + u).powi(2);
                assert!(off(plain[i]) <= most, "{op:?} {to:?} {i}: {found} for {}", plain[i]);
            }
            let differs = |(a, b): (&f32, &f32)| f64::from((a - b).abs()) > 0.1 * u;
            let is_rounded = to == Rounding::Nothing || found.iter().zip(&plain).any(differs);
            assert!(is_rounded, "{op:?} {to:?} on {}: nothing is", target.description());
        }
    }
}

fn tensor(values: &mut Values, dims: &[usize]) -> Tensor {
    Tensor::new(dims, &values.reals::<f32>(dims.iter().product()))
}

#[test]
fn matrix_products() {
    let mut values = Values(11);
    // of few terms, whose order changes less than the rounding does, and of many
    for [m, n, k] in [[5, 4, 6], [37, 29, 83]] {
        for [transpose_a, transpose_b] in
            [[false, false], [false, true], [true, false], [true, true]]
        {
            let a = if transpose_a { [k, m] } else { [m, k] };
            let b = if transpose_b { [n, k] } else { [k, n] };
            let inputs = [tensor(&mut values, &a), tensor(&mut values, &b)];
            sums(&Op::MatMul { transpose_a, transpose_b }, &inputs, &[m, n], k);
            let [a, b] = [[3, a[0], a[1]], [3, b[0], b[1]]];
            let inputs = [tensor(&mut values, &a), tensor(&mut values, &b)];
            sums(&Op::BatchMatMul { transpose_a, transpose_b }, &inputs, &[3, m, n], k);
        }
    }
}

#[test]
fn convolutions() {
    let mut values = Values(12);
    let (size, window) = ([9, 7], Window::padded([3, 3], [1, 1], [1, 1]));
    // tiles, a thread for each result, and a product
    for (channels, outputs, groups, window) in
        [(5, 6, 1, window), (4, 8, 2, window), (20, 12, 1, Window::valid([1, 1], [1, 1]))]
    {
        let (x, y) = ([2, 9, 7, channels], [2, 9, 7, outputs]);
        let [rows, columns] = window.kernel;
        let w = [outputs, channels / groups, rows, columns];
        let taps = rows * columns;
        let inputs = [tensor(&mut values, &x), tensor(&mut values, &w)];
        sums(&Op::Conv2d { window, groups }, &inputs, &y, taps * channels / groups);
        let inputs = [tensor(&mut values, &y), tensor(&mut values, &w)];
        let op = Op::Conv2dGradInput { window, groups, size };
        sums(&op, &inputs, &x, taps * outputs / groups);
        let inputs = [tensor(&mut values, &y), tensor(&mut values, &x)];
        sums(&Op::Conv2dGradWeight { window, groups }, &inputs, &w, 2 * 9 * 7);
    }
}

/// One step of cells that use h in their products alone: that of h and matrices that were rounded before. Each gate's
/// product is off by 2·k·2⁻²³·Σ|u|·|h|, and no function of a cell that follows makes more of it than the gates together.
#[test]
fn recurrent_cells() {
    let mut values = Values(13);
    let (batch, hidden) = (5, 40);
    for cell in [Cell::Rnn, Cell::Lstm] {
        let (gates, states) = (cell.gates(), cell.states());
        let mut inputs = Vec::new();
        for _ in 0..gates {
            inputs.push(tensor(&mut values, &[batch, hidden]));
        }
        for _ in 0..gates {
            inputs.push(each(&tensor(&mut values, &[hidden, hidden]), |x| x * 0.25));
        }
        for _ in 0..states {
            inputs.push(tensor(&mut values, &[batch, hidden]));
        }
        inputs.push(Tensor::new(&[1], &[batch as i32]));
        let saved = if cell == Cell::Rnn { 0 } else { 5 };
        let row = || Tensor::unwritten(DType::F32, &[batch, hidden]);
        let outputs = || {
            let mut all: Vec<Tensor> = (0..=states).map(|_| row()).collect();
            all.push(Tensor::unwritten(DType::F32, &[batch, saved * hidden]));
            all
        };
        let run = |target: &Target, inputs: &[Tensor]| {
            let mut outputs = outputs();
            try_run(target, &Op::Recurrent { cell }, inputs, &mut outputs).unwrap();
            outputs[0].to_vec::<f32>()
        };
        for to in [Rounding::Tf32, Rounding::Bf16] {
            let mut before = inputs.clone();
            for place in gates..=2 * gates {
                before[place] = each(&inputs[place], |x| rounded(to, x));
            }
            let expected = run(&reference(), &before);
            let plain = run(&reference(), &inputs);
            // |u| is up to 0.5 and |h| up to 2
            let most = 2.0 * (hidden * hidden * gates) as f32 * f32::EPSILON;
            for target in rounding_targets(to) {
                let found = run(&target, &inputs);
                let off = |of: &[f32]| {
                    found.iter().zip(of).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max)
                };
                assert!(off(&expected) <= most, "{cell:?} {to:?}: {}", off(&expected));
                assert!(off(&plain) > 0.1 * unit(to) as f32, "{cell:?} {to:?}: nothing is rounded");
            }
        }
    }
}

/// What has 11 bits, or 8, is not rounded; what is not finite stays so.
#[test]
fn numbers_of_few_bits_stay() {
    let numbers = [1.0f32, -1.5, 0.0, f32::INFINITY, f32::NAN, 3e38, 1e-40];
    let one = Tensor::new(&[1, 1], &[1f32]);
    let op = Op::MatMul { transpose_a: false, transpose_b: false };
    for to in [Rounding::Tf32, Rounding::Bf16] {
        for target in rounding_targets(to) {
            for x in numbers {
                let found = run_one::<f32>(
                    &target,
                    &op,
                    &[Tensor::new(&[1, 1], &[x]), one.clone()],
                    &[1, 1],
                )[0];
                let expected = if x.is_finite() { rounded(to, x) } else { x };
                assert!(found == expected || (found.is_nan() && x.is_nan()), "{to:?} {x}: {found}");
            }
        }
    }
}

#[test]
fn a_library_rounds_as_kernels_do() {
    if is_own_process() {
        return;
    }
    for name in ["tf32", "bf16"] {
        in_a_process(&["rounding::"], true, &[("CUDA_TEST_ROUNDING", name)]);
    }
}
