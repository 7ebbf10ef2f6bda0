//! This machine as a network that [`tensorwire_simulate`] takes: what its processes move, how fast it copies and updates
//! weights, and what sockets cost its cores.

use std::thread;

use tensorwire_base::Clock;
use tensorwire_graph::Op;
use tensorwire_kernels::{KernelChoice, Kernels};
use tensorwire_launch::{JobSpec, Transport};
use tensorwire_memory::{TensorMut, TensorRef};
use tensorwire_simulate::{Link, LocalLink, Network, Rpc, SimulatedMachine};
use tensorwire_tensor::{DType, TensorSpec};
use tensorwire_train::{Exchange, Quantiles, TrainConfig};

use super::sockets;
use crate::error::BenchError;
use crate::machine::cores;
use crate::transfer::{Sizes, TransferSpec, transfer};
use crate::write::{WriteSpec, write};

/// A tensor of a page, and one that no cache holds.
const SMALL: usize = 4 << 10;
const LARGE: usize = 64 << 20;
/// Writes on their way when messages are counted.
const WINDOW: usize = 16;
const COPIES: usize = 3;
/// Weights that are updated, of which no cache holds as many as are touched.
const WEIGHTS: usize = 32 << 20;
const UPDATES: usize = 11;
/// Gradients that are reduced with the first.
const FURTHER: usize = 3;
/// Times that an update by momentum reads or writes as many bytes as there are weights: both, twice, and a gradient.
const UPDATED: usize = 5;
/// Less is noise.
const SHORTEST_S: f64 = 1e-4;

/// Measures transfers over shared memory and over TCP between processes of this machine, and copies. `job` as for
/// `transfer`. The link is the loopback, as another machine of the kind would be reached by one: replace its figures
/// by those of a real network.
///
/// # Errors
/// As `transfer`'s.
pub fn calibrate(name: &str, job: &JobSpec) -> Result<Network, BenchError> {
    let measure = |transport, exchange, bytes| {
        let spec = TransferSpec::new(transport, exchange, Sizes::Static, bytes, true);
        // fits: nanoseconds of a second
        transfer(&spec, job).map(|result| result.transfer_ns.median)
    };
    let messages_us = |transport| -> Result<f64, BenchError> {
        let spec = WriteSpec::new(transport, SMALL, WINDOW, true);
        let rate = write(&spec, job)?.bytes_per_second;
        // fits: a page
        Ok(SMALL as f64 / rate * 1e6)
    };
    // bytes in a nanosecond are 10^9 in a second
    let gbs = |ns: f64| LARGE as f64 / ns;
    let local_ns = measure(Transport::Shm, Exchange::ZeroCopy, SMALL)?;
    let moved = gbs(measure(Transport::Shm, Exchange::Write, LARGE)?);
    let tcp_ns = measure(Transport::Tcp, Exchange::ZeroCopy, SMALL)?;
    let tcp = gbs(measure(Transport::Tcp, Exchange::ZeroCopy, LARGE)?);
    let sockets = sockets::core_gbs().map_err(BenchError::Sockets)?;
    let cores_here = cores();
    let (copy, all) = (copies_gbs(1), copies_gbs(cores_here));
    let (one_s, more_s) = (update_s(cores_here, 1)?, update_s(cores_here, 1 + FURTHER)?);
    // fits: cores of a machine
    let cores = u32::try_from(cores_here).unwrap_or(u32::MAX);
    Ok(Network {
        name: name.to_string(),
        link: Link {
            latency_us: tcp_ns / 1e3,
            bandwidth_gbs: tcp,
            ports: 1,
            oversubscription: 1.0,
            message_us: messages_us(Transport::Tcp)?,
            core_gbs: Some(sockets),
        },
        local: LocalLink {
            latency_us: local_ns / 1e3,
            message_us: messages_us(Transport::Shm)?,
            by_reference: true,
            core_gbs: moved,
        },
        machine: SimulatedMachine {
            cores,
            workers: 0,
            servers_apart: false,
            accelerators: 0,
            device_gbs: None,
            copy_gbs: copy,
            memory_gbs: 2.0 * all,
            update_gbs: weights_gb(UPDATED) / one_s,
            own_update_gbs: own_updates_gbs(cores_here)?,
            fold_gbs: weights_gb(FURTHER) / (more_s - one_s).max(SHORTEST_S),
        },
        // a codec's work is a copy
        rpc: Rpc { serialize_gbs: copy, tcp_gbs: sockets },
    })
}

/// Seconds of an update by the mean of so many gradients, as a server does it: others have just written those, and read
/// the weights. The median.
fn update_s(threads: usize, gradients: usize) -> Result<f64, BenchError> {
    let kernels = Kernels::open(KernelChoice::Cpu, threads)?;
    let op = Op::Apply { rule: TrainConfig::default().optimizer, clipped: false };
    let spec = TensorSpec::new(DType::F32, &[WEIGHTS / DType::F32.bytes()])?;
    // written: memory that is zero may be one page, many times
    let tensor = || vec![1e-3f32; WEIGHTS / DType::F32.bytes()];
    let mut gradients: Vec<Vec<f32>> = (0..gradients).map(|_| tensor()).collect();
    let (mut weights, mut momenta) = (tensor(), tensor());
    let mut all_s = Vec::new();
    for _ in 0..UPDATES {
        let each = gradients.len().div_ceil(threads);
        thread::scope(|scope| {
            for written in gradients.chunks_mut(each) {
                let weights = &weights;
                scope.spawn(move || written.iter_mut().for_each(|g| g.copy_from_slice(weights)));
            }
        });
        let read = gradients.iter().map(|g| TensorRef::new(&spec, bytemuck::cast_slice(g)));
        let read = read.collect::<Result<Vec<_>, _>>()?;
        let mut state = [
            TensorMut::new(&spec, bytemuck::cast_slice_mut(&mut weights))?,
            TensorMut::new(&spec, bytemuck::cast_slice_mut(&mut momenta))?,
        ];
        let start_ns = Clock::now_ns();
        kernels.run(&op, &read, &mut state)?;
        // fits: nanoseconds of some seconds
        all_s.push((Clock::now_ns() - start_ns) as f64 * 1e-9);
    }
    Ok(Quantiles::of(all_s).map_or(SHORTEST_S, |s| s.median))
}

/// 10⁹ bytes a second of updates by as many processes as there are cores, each behind its gradient.
fn own_updates_gbs(cores: usize) -> Result<f64, BenchError> {
    thread::scope(|scope| {
        let all: Vec<_> = (0..cores).map(|_| scope.spawn(|| update_s(1, 1))).collect();
        let each = all.into_iter().filter_map(|thread| thread.join().ok());
        each.map(|seconds| Ok(weights_gb(UPDATED) / seconds?)).sum()
    })
}

/// 10⁹ bytes of so many times the weights.
fn weights_gb(times: usize) -> f64 {
    // fits: sizes in memory
    (times * WEIGHTS) as f64 * 1e-9
}

/// 10⁹ bytes a second that so many threads copy, the best of a few times.
fn copies_gbs(threads: usize) -> f64 {
    let one = || {
        let (source, mut target) = (vec![1u8; LARGE], vec![0u8; LARGE]);
        let mut best_ns = u64::MAX;
        for _ in 0..COPIES {
            let start_ns = Clock::now_ns();
            target.copy_from_slice(std::hint::black_box(&source));
            std::hint::black_box(&mut target);
            best_ns = best_ns.min(Clock::now_ns() - start_ns);
        }
        // fits: bytes in a nanosecond are 10^9 in a second
        LARGE as f64 / best_ns.max(1) as f64
    };
    thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        all.into_iter().filter_map(|thread| thread.join().ok()).sum()
    })
}
