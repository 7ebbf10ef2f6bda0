//! Time and memory of causal attention, 12 heads of 64, as one line of JSON: what bench/peers/pytorch_attention.py puts
//! beside PyTorch's. `cargo run --release -p tensorwire-kernels --example attention LENGTH [THREADS]`
#![allow(clippy::print_stdout)] // a program for people

use std::error::Error;
use std::time::{Duration, Instant};

use tensorwire_graph::{Attention, AttentionMask, HeadOrder, Op};
use tensorwire_kernels::{KernelChoice, Kernels};
use tensorwire_memory::{TensorMut, TensorRef};
use tensorwire_tensor::{DType, TensorSpec};

const HEADS: usize = 12;
const DEPTH: usize = 64;
/// How long a measurement repeats, at least five times.
const SPAN: Duration = Duration::from_secs(1);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let length: usize = arguments.next().ok_or("give a length")?.parse()?;
    let threads: usize = arguments.next().map_or(Ok(2), |given| given.parse())?;
    let kernels = Kernels::open(KernelChoice::Cpu, threads)?;
    let rows = TensorSpec::new(DType::F32, &[1, HEADS, length, DEPTH])?;
    let sums = TensorSpec::new(DType::F32, &[1, HEADS, length])?;
    let scale = 1.0 / (DEPTH as f64).sqrt();
    let by = Attention { mask: AttentionMask::Causal, heads: HeadOrder::Outer, scale };

    let [q, k, v, dy] = [1, 2, 3, 4].map(|seed| random(&rows, seed));
    let (mut y, mut lse) = (zeros(&rows), zeros(&sums));
    let forward = median(|| {
        let mut out = [write(&rows, &mut y)?, write(&sums, &mut lse)?];
        let given = [read(&rows, &q)?, read(&rows, &k)?, read(&rows, &v)?];
        Ok(kernels.run(&Op::Attention(by), &given, &mut out)?)
    })?;
    let [mut dq, mut dk, mut dv] = [(); 3].map(|()| zeros(&rows));
    let backward = median(|| {
        let mut out = [write(&rows, &mut dq)?, write(&rows, &mut dk)?, write(&rows, &mut dv)?];
        let given = [
            read(&rows, &dy)?,
            read(&rows, &q)?,
            read(&rows, &k)?,
            read(&rows, &v)?,
            read(&rows, &y)?,
            read(&sums, &lse)?,
        ];
        Ok(kernels.run(&Op::AttentionGrad(by), &given, &mut out)?)
    })?;
    println!(
        "{{\"length\": {length}, \"forward_ms\": {forward}, \"backward_ms\": {backward}, \"peak_bytes\": {}}}",
        peak_bytes()?
    );
    Ok(())
}

/// Milliseconds of one run.
fn median(mut run: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    run()?;
    let (mut took, begin) = (Vec::new(), Instant::now());
    while took.len() < 5 || begin.elapsed() < SPAN {
        let start = Instant::now();
        run()?;
        took.push(start.elapsed().as_secs_f64() * 1e3);
    }
    took.sort_by(f64::total_cmp);
    Ok(took[took.len() / 2])
}

/// The most memory that this process had at once.
fn peak_bytes() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).ok_or("no VmHWM")?;
    Ok(kib.parse::<u64>()? * 1024)
}

/// Evenly distributed numbers from -1 to 1.
fn random(spec: &TensorSpec, seed: u64) -> Vec<u64> {
    let mut words = zeros(spec);
    let mut state = seed;
    for x in bytemuck::cast_slice_mut::<u64, f32>(&mut words) {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *x = (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
    }
    words
}

/// With room to begin at a cache line, as a plan places tensors.
fn zeros(spec: &TensorSpec) -> Vec<u64> {
    vec![0; spec.bytes().div_ceil(8) + 8]
}

fn read<'a>(spec: &'a TensorSpec, words: &'a [u64]) -> Result<TensorRef<'a>, Box<dyn Error>> {
    let bytes: &[u8] = bytemuck::cast_slice(words);
    let start = bytes.as_ptr().align_offset(64);
    Ok(TensorRef::new(spec, &bytes[start..][..spec.bytes()])?)
}

fn write<'a>(spec: &'a TensorSpec, words: &'a mut [u64]) -> Result<TensorMut<'a>, Box<dyn Error>> {
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(words);
    let start = bytes.as_ptr().align_offset(64);
    Ok(TensorMut::new(spec, &mut bytes[start..][..spec.bytes()])?)
}
