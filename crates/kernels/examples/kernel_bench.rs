//! Speed of the kernels at the sizes of the paper's MLP (64 examples, layers of 2048) and at tensors
//! of the optimizers' and the consumer's size: median of repetitions after a warm-up, on one thread
//! and on two. `cargo run --release -p tensorwire-kernels --example kernel_bench [onednn] [filter]`
#![allow(clippy::print_stdout, clippy::unwrap_used)] // a program for people

#[path = "kernel_bench/images.rs"]
mod images;
#[path = "kernel_bench/transformers.rs"]
mod transformers;

use std::time::{Duration, Instant};

use tensorwire_graph::{Cell, Op, Rule};
use tensorwire_kernels::{KernelChoice, Kernels};
use tensorwire_memory::{TensorMut, TensorRef};
use tensorwire_tensor::{DType, TensorSpec};

/// How long one measurement repeats, at least five times.
const SPAN: Duration = Duration::from_millis(400);

/// What one run does: arithmetic, or bytes read and written.
enum Work {
    Flops(usize),
    Bytes(usize),
    /// What it does is known by how long it takes.
    Time,
}

struct Case {
    name: String,
    op: Op,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    work: Work,
    /// What integers hold: a label, or the sequences of a step.
    integer: i32,
}

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let onednn = arguments.first().is_some_and(|first| first == "onednn");
    let choice = if onednn { KernelChoice::OneDnn } else { KernelChoice::Cpu };
    arguments.drain(..usize::from(onednn));
    let filter = arguments.pop().unwrap_or_default();
    let kernels = [1, 2].map(|threads| match Kernels::open(choice, threads) {
        Ok(kernels) => kernels,
        Err(error) => panic!("{error}"),
    });
    for kernels in &kernels {
        println!("{}", kernels.description());
    }
    println!("{:<44}{:>12}{:>12}", "", "1 thread", "2 threads");
    for case in cases().iter().filter(|case| case.name.contains(&filter)) {
        let columns = kernels.each_ref().map(|kernels| figure(case, measure(kernels, case)));
        println!("{:<44}{:>12}{:>12}", case.name, columns[0], columns[1]);
    }
}

fn figure(case: &Case, seconds: f64) -> String {
    match case.work {
        Work::Flops(flops) => format!("{:.0} GFLOP/s", flops as f64 / seconds / 1e9),
        Work::Time => format!("{:.2} ms", seconds * 1e3),
        Work::Bytes(bytes) => format!("{:.1} GB/s", bytes as f64 / seconds / 1e9),
    }
}

/// Median seconds of one run.
fn measure(kernels: &Kernels, case: &Case) -> f64 {
    let mut inputs: Vec<Vec<u64>> =
        case.inputs.iter().map(|spec| values(spec, case.integer)).collect();
    let mut outputs: Vec<Vec<u64>> =
        case.outputs.iter().map(|spec| values(spec, case.integer)).collect();
    let mut seconds = Vec::new();
    let begin = Instant::now();
    while seconds.len() < 7 || begin.elapsed() < SPAN {
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
        let start = Instant::now();
        kernels.run(&case.op, &inputs, &mut outputs).unwrap();
        seconds.push(start.elapsed().as_secs_f64());
    }
    let warm = &mut seconds[2..];
    warm.sort_by(f64::total_cmp);
    warm[warm.len() / 2]
}

/// Small reals; one integer.
fn values(spec: &TensorSpec, integer: i32) -> Vec<u64> {
    let mut words = vec![0u64; spec.bytes().div_ceil(8) + 8];
    match spec.dtype {
        DType::F32 => {
            for (i, x) in bytemuck::cast_slice_mut::<u64, f32>(&mut words).iter_mut().enumerate() {
                *x = (i % 17) as f32 * 0.01 - 0.07;
            }
        }
        DType::F64 => {
            for (i, x) in bytemuck::cast_slice_mut::<u64, f64>(&mut words).iter_mut().enumerate() {
                *x = (i % 17) as f64 * 0.01 - 0.07;
            }
        }
        DType::I32 => bytemuck::cast_slice_mut::<u64, i32>(&mut words).fill(integer),
        DType::I64 | DType::U8 | DType::BF16 => {}
    }
    words
}

/// The tensor's bytes within `words`, at a cache line as a plan would place them.
fn aligned<'a>(spec: &TensorSpec, words: &'a mut [u64]) -> &'a mut [u8] {
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(words);
    let start = bytes.as_ptr().align_offset(64);
    &mut bytes[start..][..spec.bytes()]
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    few_rows(&mut cases);
    for cell in [Cell::Rnn, Cell::Gru, Cell::Lstm] {
        for batch in [1, 8, 32] {
            recurrent(cell, batch, &mut cases);
        }
    }
    for dtype in [DType::F32, DType::F64] {
        for ([m, n, k], transpose_a, transpose_b, of) in [
            ([64, 2048, 64], false, true, "y = x·Wᵀ"),
            ([64, 2048, 2048], false, true, "y = x·Wᵀ"),
            ([64, 2048, 2048], false, false, "dX = dY·W"),
            ([2048, 2048, 64], true, false, "dW = dYᵀ·X"),
            ([64, 10, 2048], false, true, "y = x·Wᵀ"),
            ([64, 2048, 10], false, false, "dX = dY·W"),
            ([10, 2048, 64], true, false, "dW = dYᵀ·X"),
            ([1024, 1024, 1024], false, false, "a·b"),
            ([512, 1024, 1024], false, true, "a·bᵀ"),
            ([1024, 1024, 1024], false, true, "a·bᵀ"),
        ] {
            cases.push(product(dtype, [m, n, k], transpose_a, transpose_b, of));
        }
        memory_bound(dtype, &mut cases);
    }
    images::add_to(&mut cases);
    transformers::add_to(&mut cases);
    cases
}

fn product(dtype: DType, [m, n, k]: [usize; 3], ta: bool, tb: bool, of: &str) -> Case {
    let spec = |rows, columns| TensorSpec::new(dtype, &[rows, columns]).unwrap();
    Case {
        name: format!("MatMul {dtype} {m}×{n}×{k} {of}"),
        op: Op::MatMul { transpose_a: ta, transpose_b: tb },
        inputs: vec![
            if ta { spec(k, m) } else { spec(m, k) },
            if tb { spec(n, k) } else { spec(k, n) },
        ],
        outputs: vec![spec(m, n)],
        work: Work::Flops(2 * m * n * k),
        integer: 0,
    }
}

/// A step of the fully connected net of the EuroSys paper, 784→4096→4096→4096→4096→10, by its products.
fn few_rows(cases: &mut Vec<Case>) {
    for batch in [1, 8, 32] {
        for (inputs, outputs) in [(784, 4096), (4096, 4096), (4096, 10), (1024, 1024)] {
            for (sizes, ta, tb, of) in [
                ([batch, outputs, inputs], false, true, "few rows, y = x·Wᵀ"),
                ([batch, inputs, outputs], false, false, "few rows, dX = dY·W"),
                ([outputs, inputs, batch], true, false, "few rows, dW = dYᵀ·X"),
            ] {
                let mut case = product(DType::F32, sizes, ta, tb, of);
                case.work = match batch {
                    1 | 8 => Work::Bytes(4 * inputs * outputs),
                    _ => case.work,
                };
                cases.push(case);
            }
        }
    }
}

/// 80 steps of 1024 hidden units.
fn recurrent(cell: Cell, batch: usize, cases: &mut Vec<Case>) {
    let (hidden, steps) = (1024, 80);
    let spec = |rows, columns| TensorSpec::new(DType::F32, &[rows, columns]).unwrap();
    let sequence = spec(batch * steps, hidden);
    let (square, state) = (spec(hidden, hidden), spec(batch, hidden));
    let saved = spec(batch * steps, cell.saved() * hidden);
    let active = TensorSpec::new(DType::I32, &[steps]).unwrap();
    let (gates, states) = (cell.gates(), cell.states());
    let several = |spec: &TensorSpec, count| vec![spec.clone(); count];
    let cells = [several(&square, gates), several(&state, states), vec![active]].concat();
    let forward = Op::Recurrent { cell };
    let inputs = [several(&sequence, gates), cells.clone()].concat();
    let outputs = [vec![sequence.clone()], several(&state, states), vec![saved.clone()]].concat();
    let name = format!("{}, batch {batch}", forward.name());
    let integer = batch as i32;
    cases.push(Case { name, op: forward, inputs, outputs, work: Work::Time, integer });
    let grad = Op::RecurrentGrad { cell, sequence: true, finals: [false, false] };
    let inputs = [vec![sequence.clone()], cells, vec![sequence.clone(), saved]].concat();
    let outputs =
        [several(&sequence, gates), several(&square, gates), several(&state, states)].concat();
    let name = format!("{}, batch {batch}", grad.name());
    cases.push(Case { name, op: grad, inputs, outputs, work: Work::Time, integer });
    // x·Wᵀ and dW = dYᵀ·X of one gate, which the whole layer has besides
    for (sizes, ta, tb, of) in [
        ([batch * steps, hidden, hidden], false, true, "of a gate"),
        ([hidden, hidden, batch * steps], true, false, "of a gate, dW"),
    ] {
        let mut case = product(DType::F32, sizes, ta, tb, of);
        if cell == Cell::Rnn {
            case.work = Work::Time;
            cases.push(case);
        }
    }
}

fn memory_bound(dtype: DType, cases: &mut Vec<Case>) {
    let spec = |dims: &[usize]| TensorSpec::new(dtype, dims).unwrap();
    let weights = spec(&[2048, 2048]);
    let activations = spec(&[64, 2048]);
    let bias = spec(&[2048]);
    let scalar = spec(&[]);
    let labels = TensorSpec::new(DType::I32, &[64]).unwrap();
    let logits = spec(&[64, 10]);
    let cached = spec(&[(1 << 20) / dtype.bytes()]);
    let large = spec(&[(1 << 28) / dtype.bytes()]);
    let sgd = Op::Apply { rule: Rule::sgd(0.01), clipped: false };
    let momentum = Op::Apply { rule: Rule::momentum(0.01), clipped: false };
    let fill = |spec: &TensorSpec| Op::Fill { value: 1.0, spec: spec.clone() };
    let copies = |spec: &TensorSpec, n| vec![spec.clone(); n];
    let mut case = |op: Op, of: &str, inputs: Vec<TensorSpec>, outputs: Vec<TensorSpec>| {
        // what a kernel updates in place is read as well
        let read: usize =
            inputs.iter().chain(&outputs[..op.mutated_inputs()]).map(TensorSpec::bytes).sum();
        let written: usize = outputs.iter().map(TensorSpec::bytes).sum();
        let name = format!("{} {dtype} {of}", op.name());
        cases.push(Case {
            name,
            op,
            inputs,
            outputs,
            work: Work::Bytes(read + written),
            integer: 0,
        });
    };
    case(sgd.clone(), "2048×2048, W = 1", copies(&weights, 1), copies(&weights, 1));
    case(sgd.clone(), "2048×2048, W = 2", copies(&weights, 2), copies(&weights, 1));
    case(sgd, "2048×2048, W = 4", copies(&weights, 4), copies(&weights, 1));
    case(momentum, "2048×2048, W = 2", copies(&weights, 2), copies(&weights, 2));
    case(Op::Add, "2048×2048", copies(&weights, 2), copies(&weights, 1));
    case(Op::ScaleBy, "2048×2048", vec![weights.clone(), scalar.clone()], copies(&weights, 1));
    case(fill(&weights), "2048×2048", vec![], copies(&weights, 1));
    case(Op::SumRows, "64×2048", copies(&activations, 1), copies(&bias, 1));
    case(Op::SumRows, "2048×2048", copies(&weights, 1), copies(&bias, 1));
    case(Op::BiasAdd, "64×2048", vec![activations.clone(), bias], copies(&activations, 1));
    case(Op::Relu, "64×2048", copies(&activations, 1), copies(&activations, 1));
    case(Op::ReluGrad, "64×2048", copies(&activations, 2), copies(&activations, 1));
    case(Op::ReduceMax, "1 MiB", vec![cached], copies(&scalar, 1));
    case(Op::ReduceMax, "256 MiB", vec![large], copies(&scalar, 1));
    let loss = vec![scalar, logits.clone()];
    case(Op::SoftmaxCrossEntropy, "64×10", vec![logits, labels], loss);
}
