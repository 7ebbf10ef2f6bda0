//! What one GPU answers to first questions, and how fast it copies: `gpu questions|rates [real|DRIVER] [BYTES]`. Each answer
//! is a line of JSON. `cargo xtask gpu` runs it; nothing of it is part of the library.
//!
//! `rates` starts a second process of itself, which writes into this one's memory as a job does: the descriptor is its
//! standard input.
#![allow(clippy::print_stdout)] // a program that people run

use std::error::Error;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tensorwire_base::Deadline;
use tensorwire_cuda::{CudaKernels, CudaOptions, modules};
use tensorwire_device::{
    CudaLibrary, Device, Driver, Function, LibrarySearch, Module, Stream, Until, Word,
};
use tensorwire_kernels::DeviceKernels;
use tensorwire_memory::{Arena, Buffer, Place, Slab};

type Outcome<T> = Result<T, Box<dyn Error>>;

const PATIENCE: Duration = Duration::from_secs(60);
/// Copies that count of a rate, after some that warm up.
const COPIES: u32 = 20;
const WARM_UP: u32 = 3;
/// As a job's tensors are staged.
const PIECE_BYTES: usize = 1 << 20;
const MARK: u8 = 0x5a;
/// More than any driver takes of a stream that waits, it is said: about 1,024.
const LAUNCHES: usize = 2_000;
/// Of a graph, and its kernel: `recurrent.cu`, Begin.
const GRAPHS: [usize; 6] = [250, 500, 1_000, 2_000, 4_000, 8_000];
const KERNEL: &str = "recurrent_begin_f32";
const KERNEL_BYTES: usize = 9 * 8;
/// A thread that tells nothing for so long is held.
const HELD: Duration = Duration::from_secs(3);

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let word = |at: usize| arguments.get(at).map(String::as_str);
    let driver = word(1).filter(|path| *path != "real").map(PathBuf::from);
    let bytes = word(2).map_or(Ok(256 << 20), str::parse)?;
    match word(0) {
        Some("questions") => questions(driver.as_deref()),
        Some("rates") => rates(driver, bytes),
        Some("write") => write(driver, bytes),
        Some("fill") => fill(driver.as_deref(), bytes),
        _ => Err("gpu questions|rates [real|DRIVER] [BYTES]".into()),
    }
}

fn say(line: &Value) {
    println!("{line}");
}

fn questions(driver: Option<&Path>) -> Outcome<()> {
    let opened = Driver::open(driver)?;
    for facts in opened.devices()? {
        let (major, minor) = facts.compute;
        say(&json!({
            "question": "attributes",
            "gpu": facts.ordinal,
            "name": facts.name,
            "uuid": facts.uuid,
            "pci_bus_id": facts.pci_bus_id,
            "compute": format!("{major}.{minor}"),
            "driver_of_cuda": opened.version().to_string(),
            "memory_bytes": facts.memory_bytes,
            "multiprocessors": facts.multiprocessors,
            "shared_bytes_allowed_max": facts.shared_bytes_allowed_max,
            "copy_engines": facts.copy_engines,
            "virtual_memory": facts.virtual_memory,
            "export": facts.export,
            "rdma": facts.rdma,
            "dmabuf": facts.dmabuf,
            "memory_operations": facts.memory_operations,
            "writes_ordering": format!("{:?}", facts.ordering),
            "flush": facts.flush,
            "numa_node": facts.numa_node,
        }));
    }
    let device = Device::open(&opened, 0)?;
    let question = "a second process maps a descriptor";
    answer(question, Some("tensors go by the host's memory"), exported(&device, driver));
    let question = "a dma-buf is made of memory";
    let otherwise = "NICs reach it by nvidia-peermem, or by the host's memory";
    answer(question, Some(otherwise), dmabuf(&device));
    let question = "words are captured, and waited for in each launch";
    answer(question, Some("steps are told in parts"), captured_words(&device));
    let question = "memory that the system gave is pinned";
    answer(question, Some("copies take longer, and steps are told in parts"), pinned(&device));
    graphs(&device)?;
    single_launches(&device)?;
    let mut search = LibrarySearch {
        cuda_home: std::env::var_os("CUDA_HOME").map(PathBuf::from),
        ..LibrarySearch::default()
    };
    search.ask_python();
    for library in CudaLibrary::ALL {
        let found = search.find(library);
        say(&json!({
            "question": "where a library lies",
            "library": library.name(),
            "path": found.as_ref().map(|found| found.path.display().to_string()),
            "place": found.map(|found| found.place),
        }));
    }
    Ok(())
}

/// Says yes, or why not, and what a job does then. Where it does nothing else the answer must be yes.
fn answer(question: &str, otherwise: Option<&str>, answer: Outcome<()>) {
    let (answer, why) = match answer {
        Ok(()) => ("yes", None),
        Err(error) => ("no", Some(error.to_string())),
    };
    let otherwise = otherwise.filter(|_| answer == "no");
    say(&json!({ "question": question, "answer": answer, "why": why, "otherwise": otherwise }));
}

fn exported(device: &Arc<Device>, driver: Option<&Path>) -> Outcome<()> {
    const BYTES: usize = 4 << 20;
    let memory = device.alloc(BYTES as u64)?;
    let mut other = this_program("fill", driver, BYTES)?;
    let status = other.stdin(Stdio::from(memory.export()?)).status()?;
    if !status.success() {
        return Err(format!("the second process ended with {status}").into());
    }
    let (stream, host) = (device.stream()?, whole(&device.pinned(BYTES)?)?);
    let from = whole(&memory.slab())?;
    let to = host.lend_to_device_for_writing()?;
    stream.copy_to_host(&from.lend_to_device()?, 0..BYTES, &to, 0)?;
    stream.synchronize(Deadline::after(PATIENCE))?;
    drop(to);
    match host.read()?.iter().all(|&byte| byte == MARK) {
        true => Ok(()),
        false => Err("what the second process wrote is not there".into()),
    }
}

/// The second process: fills the memory whose descriptor is its standard input.
fn fill(driver: Option<&Path>, bytes: usize) -> Outcome<()> {
    let device = Device::open(&Driver::open(driver)?, 0)?;
    let memory = device.import(std::io::stdin().as_fd().try_clone_to_owned()?, bytes as u64)?;
    let (stream, buffer) = (device.stream()?, whole(&memory.slab())?);
    stream.set(&buffer.lend_to_device_for_writing()?, 0..bytes, MARK)?;
    Ok(stream.synchronize(Deadline::after(PATIENCE))?)
}

fn dmabuf(device: &Arc<Device>) -> Outcome<()> {
    let memory = device.alloc(4 << 20)?;
    Ok(device.dma_buf(&memory.slab()).map(drop)?)
}

fn captured_words(device: &Arc<Device>) -> Outcome<()> {
    let host = whole(&device.pinned(64)?)?;
    let loan = Arc::new(host.lend_to_device_for_writing()?);
    let [gate, done] = [0, 4].map(|at| Word::new(&loan, at));
    let stream = device.stream()?;
    stream.begin_capture()?;
    let told = stream
        .wait_value32(&gate, Until::Equal(1))
        .and_then(|()| stream.write_value32(&gate, 0))
        .and_then(|()| stream.write_value32(&done, 1));
    let graph = stream.end_capture();
    told?;
    let graph = graph?;
    for _ in 0..3 {
        done.store(0);
        graph.launch(&stream)?;
        std::thread::sleep(Duration::from_millis(2));
        let early = done.load() != Some(0);
        gate.store(1);
        stream.synchronize(Deadline::after(PATIENCE))?;
        if early || gate.load() != Some(0) || done.load() != Some(1) {
            return Err("a launch did not wait, or left its words".into());
        }
    }
    Ok(())
}

/// How many launches a stream is told behind a shut gate, and whether the thread that tells it comes back before somebody
/// else opens the gate.
fn behind_a_gate(
    device: &Arc<Device>,
    tell: impl Fn(&Stream, &Word, &Buffer, &AtomicUsize) -> Result<(), String> + Sync,
) -> Outcome<(usize, bool)> {
    let host = whole(&device.pinned(64)?)?;
    let gate = Word::new(&Arc::new(host.lend_to_device_for_writing()?), 0);
    gate.store(0);
    let memory = whole(&device.alloc(4096)?.slab())?;
    let stream = device.stream()?;
    let told = AtomicUsize::new(0);
    let (is_back, count, said) = std::thread::scope(|scope| {
        let telling = scope.spawn(|| tell(&stream, &gate, &memory, &told));
        let (mut last, mut moved) = (0, Instant::now());
        while !telling.is_finished() && moved.elapsed() < HELD {
            let now = told.load(Ordering::Relaxed);
            if now > last {
                (last, moved) = (now, Instant::now());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let (is_back, count) = (telling.is_finished(), told.load(Ordering::Relaxed));
        gate.store(1);
        (is_back, count, telling.join())
    });
    said.map_err(|_| "the thread that tells panicked")??;
    stream.synchronize(Deadline::after(PATIENCE))?;
    Ok((count, is_back))
}

/// Says how large a graph may be that waits at a gate and is taken while it is shut, of these sizes: a step of a job waits so.
fn graphs(device: &Arc<Device>) -> Outcome<()> {
    let nothing = nothing(device)?;
    let stream = device.stream()?;
    // what a driver does with a kernel once may wait for streams
    one(&stream, &nothing)?;
    stream.synchronize(Deadline::after(PATIENCE))?;
    let mut taken = 0;
    for launches in GRAPHS {
        let (_, is_back) = behind_a_gate(device, |stream, gate, _, _| {
            stream.begin_capture().map_err(|error| error.to_string())?;
            let told = stream
                .wait_value32(gate, Until::Equal(1))
                .map_err(|error| error.to_string())
                .and_then(|()| (0..launches).try_for_each(|_| one(stream, &nothing)));
            let graph = stream.end_capture().map_err(|error| error.to_string());
            let graph = told.and(graph)?;
            graph.launch(stream).map_err(|error| error.to_string())
        })?;
        if !is_back {
            break;
        }
        taken = launches;
    }
    say(&json!({
        "question": "how many launches a graph may have that is taken behind a shut gate",
        "of": GRAPHS, "launches_of_graph": taken,
    }));
    // behind what of a step was told before, and is under way
    let wanted = 2 * CudaOptions::default().launches_behind_gate_max;
    let enough = if taken >= wanted { Ok(()) } else { Err(format!("{taken} of {wanted}").into()) };
    answer("a graph of a step is taken behind a shut gate", None, enough);
    Ok(())
}

/// A kernel that does nothing where its arguments are zeros.
fn nothing(device: &Arc<Device>) -> Outcome<Function> {
    let mut modules = modules().iter();
    let module = modules.find(|module| module.kernels().any(|kernel| kernel == KERNEL));
    let module = module.ok_or("there is no such kernel")?;
    Ok(Module::load(device, module.ptx().as_bytes())?.function(KERNEL)?)
}

fn one(stream: &Stream, nothing: &Function) -> Result<(), String> {
    // SAFETY: as the kernel takes them: of no elements, and no memory
    let told = unsafe { stream.launch(nothing, [1, 1, 1], [32, 1, 1], 0, &[0; KERNEL_BYTES]) };
    told.map_err(|error| error.to_string())
}

/// Says how many single launches a stream takes behind a shut gate, of so many: a job tells it none there.
fn single_launches(device: &Arc<Device>) -> Outcome<()> {
    let (count, is_back) = behind_a_gate(device, |stream, gate, memory, told| {
        let loan = memory.lend_to_device_for_writing().map_err(|error| error.to_string())?;
        stream.wait_value32(gate, Until::Equal(1)).map_err(|error| error.to_string())?;
        for _ in 0..LAUNCHES {
            stream.set(&loan, 0..256, 0).map_err(|error| error.to_string())?;
            told.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    })?;
    let taken = if is_back { "all" } else { "then the thread is held" };
    say(&json!({
        "question": "how many single launches a stream takes behind a shut gate",
        "of": LAUNCHES, "launches": count, "taken": taken,
    }));
    Ok(())
}

fn pinned(device: &Arc<Device>) -> Outcome<()> {
    Ok(device.register(&Slab::anonymous(1 << 20)?).map(drop)?)
}

/// Rates of copies, and what a job's ways reach of them.
fn rates(driver: Option<PathBuf>, bytes: usize) -> Outcome<()> {
    let opened = Driver::open(driver.as_deref())?;
    let device = Device::open(&opened, 0)?;
    let stream = device.stream()?;
    let [a, b] = [device.alloc(bytes as u64)?, device.alloc(bytes as u64)?];
    let [a, b] = [whole(&a.slab())?, whole(&b.slab())?];
    let host = whole(&device.pinned(bytes)?)?;
    let within = rate(&stream, bytes, || {
        let (from, to) = (a.lend_to_device()?, b.lend_to_device_for_writing()?);
        Ok(stream.copy_within_device(&from, 0..bytes, &to, 0)?)
    })?;
    let to_device = rate(&stream, bytes, || {
        let (from, to) = (host.lend_to_device()?, a.lend_to_device_for_writing()?);
        Ok(stream.copy_to_device(&from, 0..bytes, &to, 0)?)
    })?;
    let to_host = rate(&stream, bytes, || {
        let (from, to) = (a.lend_to_device()?, host.lend_to_device_for_writing()?);
        Ok(stream.copy_to_host(&from, 0..bytes, &to, 0)?)
    })?;
    for (what, rate) in [
        ("copy within the GPU", within),
        ("pinned memory to the GPU", to_device),
        ("the GPU to pinned memory", to_host),
    ] {
        say(&json!({ "rate": what, "bytes": bytes, "bytes_per_second": rate }));
    }
    staged(driver.clone(), bytes, (to_host, to_device))?;
    launches(&device, &a)?;
    let mut other = this_program("write", driver.as_deref(), bytes)?;
    let (_, target) = (drop(b), device.alloc(bytes as u64)?);
    other.stdin(Stdio::from(target.export()?)).env("GPU_COPY_RATE", within.to_string());
    match other.status()?.success() {
        true => Ok(()),
        false => Err("the second process wrote nothing".into()),
    }
}

/// What a tensor goes by that is staged: memory of the system's that was pinned later, in pieces that the engine is told one after
/// the other, to where the host knows of each: as it leaves a GPU, and as it comes to one.
fn staged(driver: Option<PathBuf>, bytes: usize, (to_host, to_device): (f64, f64)) -> Outcome<()> {
    let mut kernels = CudaKernels::open(&CudaOptions { driver, ..CudaOptions::default() }, 0)?;
    let slab = Slab::anonymous(bytes)?;
    let _pinned = kernels.pin(&slab)?;
    let there = kernels.alloc(0, bytes)?;
    let (host, there) = (in_pieces(&slab)?, in_pieces(&there)?);
    for (rate, from, to, limit) in [
        ("one tensor staged to the host", &there, &host, to_host),
        ("one tensor staged to the GPU", &host, &there, to_device),
    ] {
        let found = engine_rate(&mut kernels, from, to)?;
        say(&json!({
            "rate": format!("{rate}, in pieces, to where the host knows"),
            "bytes": bytes,
            "bytes_per_second": found,
            "of_pinned": found / limit,
        }));
    }
    Ok(())
}

/// The second process of [`rates`]: writes into the memory whose descriptor is its standard input.
fn write(driver: Option<PathBuf>, bytes: usize) -> Outcome<()> {
    let limit: f64 = std::env::var("GPU_COPY_RATE")?.parse()?;
    let mut kernels = CudaKernels::open(&CudaOptions { driver, ..CudaOptions::default() }, 0)?;
    let theirs = kernels.import(0, std::io::stdin().as_fd().try_clone_to_owned()?, bytes)?;
    let (own, theirs) = (whole(&kernels.alloc(0, bytes)?)?, whole(&theirs)?);
    let rate = engine_rate(&mut kernels, &[own], &[theirs])?;
    say(&json!({
        "rate": "one write into another process's memory, to where the host knows",
        "bytes": bytes,
        "bytes_per_second": rate,
        "of_copy": rate / limit,
    }));
    Ok(())
}

/// Bytes a second of a tensor's pieces that the engine copies, each waited for in its turn when all are told: the median.
fn engine_rate(kernels: &mut CudaKernels, from: &[Buffer], to: &[Buffer]) -> Outcome<f64> {
    let mut took = Vec::new();
    for at in 0..WARM_UP + COPIES {
        let start = Instant::now();
        let mut copies = Vec::with_capacity(from.len());
        for (from, to) in from.iter().zip(to) {
            copies.push(kernels.copy(from.lend_to_device()?, to.lend_to_device_for_writing()?)?);
        }
        for copy in copies {
            kernels.wait(copy, Deadline::after(PATIENCE))?;
        }
        if at >= WARM_UP {
            took.push(start.elapsed());
        }
    }
    took.sort();
    let bytes: usize = to.iter().map(Buffer::bytes).sum();
    Ok(bytes as f64 / took[took.len() / 2].as_secs_f64())
}

/// Bytes a second of copies that are told at once.
fn rate(stream: &Stream, bytes: usize, copy: impl Fn() -> Outcome<()>) -> Outcome<f64> {
    let mut start = Instant::now();
    for at in 0..WARM_UP + COPIES {
        if at == WARM_UP {
            stream.synchronize(Deadline::after(PATIENCE))?;
            start = Instant::now();
        }
        copy()?;
    }
    stream.synchronize(Deadline::after(PATIENCE))?;
    Ok(f64::from(COPIES) * bytes as f64 / start.elapsed().as_secs_f64())
}

/// What the host takes to launch a graph of a hundred fills, and the GPU to do it.
fn launches(device: &Arc<Device>, memory: &Buffer) -> Outcome<()> {
    const NODES: usize = 100;
    let stream = device.stream()?;
    stream.begin_capture()?;
    let loan = memory.lend_to_device_for_writing()?;
    let told: Result<(), _> = (0..NODES).try_for_each(|_| stream.set(&loan, 0..256, 0));
    let graph = stream.end_capture();
    told?;
    let graph = graph?;
    graph.launch(&stream)?;
    stream.synchronize(Deadline::after(PATIENCE))?;
    let start = Instant::now();
    graph.launch(&stream)?;
    let host = start.elapsed();
    stream.synchronize(Deadline::after(PATIENCE))?;
    let (host_us, whole_us) = (host.as_secs_f64() * 1e6, start.elapsed().as_secs_f64() * 1e6);
    say(&json!({ "rate": "a graph", "nodes": NODES, "host_us": host_us, "whole_us": whole_us }));
    Ok(())
}

fn this_program(role: &str, driver: Option<&Path>, bytes: usize) -> Outcome<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(role).arg(driver.unwrap_or(Path::new("real"))).arg(bytes.to_string());
    Ok(command)
}

/// All of a slab as one buffer.
fn whole(slab: &Slab) -> Outcome<Buffer> {
    let arena = Arena::new(slab, &[Place { offset: 0, bytes: slab.bytes() }])?;
    Ok(arena.into_buffers().remove(0))
}

/// All of a slab as buffers of a piece each.
fn in_pieces(slab: &Slab) -> Outcome<Vec<Buffer>> {
    let starts = (0..slab.bytes()).step_by(PIECE_BYTES);
    let places =
        starts.map(|offset| Place { offset, bytes: PIECE_BYTES.min(slab.bytes() - offset) });
    Ok(Arena::new(slab, &places.collect::<Vec<_>>())?.into_buffers())
}
