//! Speed of convolutions and normalisations, of our own kernels and of oneDNN where it is there, on one
//! thread and on two: the fastest of some repetitions, which other work on the machine disturbs least.
//! `cargo run --release -p tensorwire-kernels --example conv_bench [filter]`
#![allow(clippy::print_stdout, clippy::unwrap_used)] // a program for people

use std::time::{Duration, Instant};

use tensorwire_graph::{Op, Window};
use tensorwire_kernels::{KernelChoice, Kernels};
use tensorwire_memory::{TensorMut, TensorRef};
use tensorwire_tensor::{DType, TensorSpec};

/// How long one measurement repeats, at least four times.
const SPAN: Duration = Duration::from_millis(200);

struct Case {
    name: String,
    op: Op,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    /// Multiplications and additions; 0 where time is what counts.
    flops: usize,
}

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let mut kernels = Vec::new();
    for choice in [KernelChoice::Cpu, KernelChoice::OneDnn] {
        for threads in [1, 2] {
            match Kernels::open(choice, threads) {
                Ok(opened) => kernels.push(opened),
                Err(error) => println!("{error}"),
            }
        }
    }
    for (number, opened) in kernels.iter().enumerate() {
        println!("[{number}] {}", opened.description());
    }
    for case in cases().iter().filter(|case| case.name.contains(&filter)) {
        print!("{:<52}", case.name);
        for opened in &kernels {
            print!("{:>16}", figure(case, measure(opened, case)));
        }
        println!();
    }
}

fn figure(case: &Case, seconds: f64) -> String {
    match case.flops {
        0 => format!("{:.3} ms", seconds * 1e3),
        flops => format!("{:.0} GFLOP/s", flops as f64 / seconds / 1e9),
    }
}

/// Seconds of the fastest run.
fn measure(kernels: &Kernels, case: &Case) -> f64 {
    let words = |specs: &[TensorSpec]| -> Vec<Vec<u64>> { specs.iter().map(values).collect() };
    let (mut inputs, mut outputs) = (words(&case.inputs), words(&case.outputs));
    let inputs: Vec<TensorRef<'_>> = case
        .inputs
        .iter()
        .zip(&mut inputs)
        .map(|(spec, words)| TensorRef::new(spec, aligned(spec, words)).unwrap())
        .collect();
    let mut outputs: Vec<TensorMut<'_>> = case
        .outputs
        .iter()
        .zip(&mut outputs)
        .map(|(spec, words)| TensorMut::new(spec, aligned(spec, words)).unwrap())
        .collect();
    let (mut fastest, mut runs, begin) = (f64::INFINITY, 0, Instant::now());
    while runs < 4 || begin.elapsed() < SPAN {
        let start = Instant::now();
        kernels.run(&case.op, &inputs, &mut outputs).unwrap();
        fastest = start.elapsed().as_secs_f64().min(fastest);
        runs += 1;
    }
    fastest
}

/// Reals in 0.5..1.
fn values(spec: &TensorSpec) -> Vec<u64> {
    let mut words = vec![0u64; spec.bytes().div_ceil(8) + 8];
    for (i, value) in bytemuck::cast_slice_mut::<u64, f32>(&mut words).iter_mut().enumerate() {
        *value = 0.5 + (i % 1021) as f32 / 2042.0;
    }
    words
}

/// The bytes of a tensor, from a cache line's start.
fn aligned<'w>(spec: &TensorSpec, words: &'w mut [u64]) -> &'w mut [u8] {
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(words);
    let start = bytes.as_ptr().align_offset(64);
    &mut bytes[start..][..spec.bytes()]
}

fn spec(dims: &[usize]) -> TensorSpec {
    TensorSpec::new(DType::F32, dims).unwrap()
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    // batch, channels, size, outputs, kernel, stride
    for shape in [
        [2, 3, 224, 64, 7, 2],
        [2, 64, 56, 64, 3, 1],
        [2, 256, 56, 64, 1, 1],
        [2, 128, 112, 128, 3, 1],
        [4, 64, 27, 192, 5, 1],
        [2, 512, 14, 512, 3, 1],
    ] {
        convolution(shape, &mut cases);
    }
    for [rows, channels] in [[2 * 56 * 56, 64], [2 * 56 * 56, 256], [8 * 14 * 14, 1024]] {
        normalisation(rows, channels, &mut cases);
    }
    for [m, n, k] in [[64, 2048, 2048], [32, 4096, 1024], [32, 4096, 9216], [1024, 1024, 1024]] {
        product([m, n, k], &mut cases);
    }
    cases
}

fn convolution([batch, c, side, o, kernel, stride]: [usize; 6], cases: &mut Vec<Case>) {
    let size = [side, side];
    let window = Window::padded([kernel; 2], [stride; 2], [kernel / 2; 2]);
    let [oh, ow] = window.output(size).unwrap();
    let (x, y) = (spec(&[batch, side, side, c]), spec(&[batch, oh, ow, o]));
    let w = spec(&[o, c, kernel, kernel]);
    let flops = 2 * batch * oh * ow * o * c * kernel * kernel;
    let mut case = |op: Op, inputs: [&TensorSpec; 2], output: &TensorSpec| {
        let name = format!("{} {batch}×{side}²×{c} → {o}, {kernel}²/{stride}", op.name());
        let inputs = inputs.map(TensorSpec::clone).to_vec();
        cases.push(Case { name, op, inputs, outputs: vec![output.clone()], flops });
    };
    case(Op::Conv2d { window, groups: 1 }, [&x, &w], &y);
    case(Op::Conv2dGradInput { window, groups: 1, size }, [&y, &w], &x);
    case(Op::Conv2dGradWeight { window, groups: 1 }, [&y, &x], &w);
}

fn normalisation(rows: usize, channels: usize, cases: &mut Vec<Case>) {
    let (x, one) = (spec(&[rows, channels]), spec(&[channels]));
    let (epsilon, scaled) = (1e-3, true);
    let (size, alpha, beta, bias) = (5, 1e-4, 0.75, 2.0);
    let mut case = |op: Op, inputs: &[&TensorSpec], outputs: &[&TensorSpec]| {
        let name = format!("{} {rows}×{channels}", op.name());
        let owned = |specs: &[&TensorSpec]| specs.iter().map(|&spec| spec.clone()).collect();
        cases.push(Case { name, op, inputs: owned(inputs), outputs: owned(outputs), flops: 0 });
    };
    case(Op::BatchNorm { epsilon, scaled }, &[&x, &one, &one], &[&x, &one, &one]);
    case(Op::BatchNormGrad { epsilon, scaled }, &[&x, &x, &one, &one, &one], &[&x, &one, &one]);
    case(Op::LocalResponseNorm { size, alpha, beta, bias }, &[&x], &[&x]);
    case(Op::LocalResponseNormGrad { size, alpha, beta, bias }, &[&x, &x, &x], &[&x]);
}

fn product([m, n, k]: [usize; 3], cases: &mut Vec<Case>) {
    let mut case = |[m, n, k]: [usize; 3], transpose_a: bool, transpose_b: bool, of: &str| {
        let a = if transpose_a { spec(&[k, m]) } else { spec(&[m, k]) };
        let b = if transpose_b { spec(&[n, k]) } else { spec(&[k, n]) };
        cases.push(Case {
            name: format!("MatMul {m}×{n}×{k} {of}"),
            op: Op::MatMul { transpose_a, transpose_b },
            inputs: vec![a, b],
            outputs: vec![spec(&[m, n])],
            flops: 2 * m * n * k,
        });
    };
    case([m, n, k], false, true, "x·Wᵀ");
    case([m, k, n], false, false, "dy·W");
    case([n, k, m], true, false, "dyᵀ·x");
}
