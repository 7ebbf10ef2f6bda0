//! The fabric alone, without a graph: two processes and the calls of the paper's Table 1. The parent
//! writes a buffer straight into the child's memory, the child answers each arrival with a signal,
//! and in the end verifies the bytes.
//!
//! ```text
//! cargo run --release -p tensorwire-fabric --example memcpy -- shm      # or tcp, or verbs
//! cargo run --release -p tensorwire-fabric --example memcpy -- verbs 16   # 16 MiB of each size
//! ```

// an example speaks to whoever runs it
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tensorwire_base::{Deadline, Incarnation, JobId, Rank, human_bytes, human_seconds};
use tensorwire_fabric::{
    ArrivalSlot, Backend, Channel, Direction, Fabric, FabricConfig, Identity, JobCredentials,
    LocalSlice, Memcpy, PeerAddress, Region, RegionDescriptor, RemoteRegion, RemoteSlice, Secret,
    Signal, VerbsOptions, Wake,
};

type Anyway<T> = Result<T, Box<dyn Error>>;

const SIZES: [u64; 4] = [4 << 10, 64 << 10, 1 << 20, 16 << 20];
const BYTES_MAX: u64 = 16 << 20;
/// Writes that may be on their way before the child has answered the first of them.
const WINDOW: u64 = 16;
/// Bytes that are written of each size, in MiB.
const VOLUME_MIB: u64 = 512;

fn main() -> Anyway<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [name @ ("shm" | "tcp" | "verbs")] => parent(name, VOLUME_MIB),
        [name, "child"] => child(name),
        [name @ ("shm" | "tcp" | "verbs"), mib] => parent(name, mib.parse()?),
        _ => Err("usage: memcpy shm|tcp|verbs [MIB]".into()),
    }
}

/// Rank 0 writes and measures.
fn parent(name: &str, volume_mib: u64) -> Anyway<()> {
    let mut child = Command::new(std::env::current_exe()?)
        .args([name, "child"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let fabric = open(name, 0)?; // CreateRdmaDevice
    // where the processes are they learn over pipes here; in a job, from the launcher
    writeln!(child.stdin.take().ok_or("no pipe")?, "{}", fabric.endpoint())?;
    let mut endpoint = String::new();
    BufReader::new(child.stdout.take().ok_or("no pipe")?).read_line(&mut endpoint)?;
    let side = Side::connect(fabric, 1, endpoint.trim())?;
    println!("{name}: writes into another process's memory, each answered by a signal");
    println!("{:>8} {:>12} {:>14} {:>14}  ratio", "size", "round trip", "throughput", "memcpy");
    let mut epoch = 0;
    for bytes in SIZES {
        side.fill(bytes, epoch as u8);
        let rounds = ((volume_mib << 20) / bytes.max(512 << 10)).max(2);
        let round_trip = side.writes(bytes, rounds, 1, &mut epoch)?;
        let throughput = bytes as f64 / side.writes(bytes, rounds, WINDOW, &mut epoch)?;
        let limit = memcpy_rate(bytes, rounds);
        println!(
            "{:>8} {:>12} {:>12}/s {:>12}/s  {:.2}",
            human_bytes(bytes),
            human_seconds(round_trip),
            human_bytes(throughput as u64),
            human_bytes(limit as u64),
            throughput / limit,
        );
    }
    side.fill(BYTES_MAX, 123);
    side.write(BYTES_MAX, u64::MAX)?;
    let verdict = side.fabric.receive_message(soon())?.body;
    println!("the child found: {}", String::from_utf8_lossy(&verdict));
    side.fabric.close(soon())?;
    child.wait()?;
    if verdict == b"every byte" { Ok(()) } else { Err("the bytes are wrong".into()) }
}

/// Rank 1 owns the memory that is written, and answers.
fn child(name: &str) -> Anyway<()> {
    let fabric = open(name, 1)?;
    println!("{}", fabric.endpoint());
    let mut endpoint = String::new();
    std::io::stdin().read_line(&mut endpoint)?;
    let side = Side::connect(fabric, 0, endpoint.trim())?;
    let mut epoch = 0;
    while epoch < u64::MAX {
        side.await_above(epoch)?;
        epoch = side.fabric.arrived(side.slot);
        side.write(0, epoch)?;
        side.fabric.poll(&mut Vec::new());
    }
    let right = side.bytes().all(|byte| byte == 123);
    let verdict: &[u8] = if right { b"every byte" } else { b"other bytes" };
    side.channel.send_message(verdict, soon())?;
    side.fabric.close(soon())?;
    Ok(())
}

/// One process: its own region and slot, and those of its peer.
struct Side {
    fabric: Fabric,
    channel: Channel,
    region: Region,
    slot: ArrivalSlot,
    remote: RemoteRegion,
    remote_slot: ArrivalSlot,
}

impl Side {
    fn connect(fabric: Fabric, peer: u32, endpoint: &str) -> Anyway<Side> {
        let Identity { rank, incarnation } = member(peer);
        let endpoint = endpoint.parse()?;
        fabric.connect(&[PeerAddress { rank, incarnation, endpoint }], soon())?;
        let region = fabric.alloc_region(BYTES_MAX)?; // AllocateMemRegion
        let slot = fabric.alloc_arrival()?;
        let channel = fabric.channel(rank, 0)?; // GetChannel
        // the vanilla RPC hands out addresses: the region and the slot that the peer may write
        let address = [&region.descriptor().to_bytes()[..], &slot.0.to_le_bytes()].concat();
        channel.send_message(&address, soon())?;
        let told = fabric.receive_message(soon())?.body;
        let (descriptor, told_slot) = told.split_at(RegionDescriptor::WIRE_BYTES);
        let remote = channel.open_region(&RegionDescriptor::from_bytes(descriptor)?, soon())?;
        let remote_slot = ArrivalSlot(u32::from_le_bytes(told_slot.try_into()?));
        Ok(Side { fabric, channel, region, slot, remote, remote_slot })
    }

    /// Writes the first bytes of our region over the peer's, and then raises its slot.
    fn write(&self, bytes: u64, epoch: u64) -> Anyway<()> {
        Ok(self.channel.memcpy(Memcpy {
            local: LocalSlice { region: &self.region, offset: 0 },
            remote: RemoteSlice { region: &self.remote, offset: 0 },
            bytes,
            direction: Direction::Write,
            signal: Some(Signal { slot: self.remote_slot, epoch }),
            token: 0,
        })?)
    }

    /// Seconds per write, with at most `window` writes unanswered.
    fn writes(&self, bytes: u64, rounds: u64, window: u64, epoch: &mut u64) -> Anyway<f64> {
        let started = Instant::now();
        let first = *epoch + 1;
        for next in first..first + rounds {
            if next >= first + window {
                self.await_above(next - window - 1)?;
            }
            self.write(bytes, next)?;
            self.fabric.poll(&mut Vec::new());
        }
        *epoch += rounds;
        self.await_above(*epoch - 1)?;
        Ok(started.elapsed().as_secs_f64() / rounds as f64)
    }

    /// Waits until our slot has risen above `epoch`.
    fn await_above(&self, epoch: u64) -> Anyway<()> {
        loop {
            let ticket = self.fabric.ticket();
            if self.fabric.arrived(self.slot) > epoch {
                return Ok(());
            }
            if let Some(fault) = self.fabric.fault() {
                return Err(fault.into());
            }
            if self.fabric.wait(ticket, soon()) == Wake::TimedOut {
                return Err("the peer is silent".into());
            }
        }
    }

    fn fill(&self, bytes: u64, value: u8) {
        // SAFETY: the first bytes of the slab, which no memcpy in flight reads: all are answered.
        unsafe { self.region.slab().start().as_ptr().write_bytes(value, bytes as usize) }
    }

    fn bytes(&self) -> impl Iterator<Item = u8> {
        let slab = self.region.slab();
        // SAFETY: inside the slab; the last write has arrived and no other follows.
        (0..slab.bytes()).map(move |at| unsafe { slab.start().as_ptr().add(at).read() })
    }
}

/// Bytes per second of a plain memcpy of that size in this process.
fn memcpy_rate(bytes: u64, rounds: u64) -> f64 {
    let (source, mut target) = (vec![1u8; bytes as usize], vec![2u8; bytes as usize]);
    let started = Instant::now();
    for _ in 0..rounds {
        target.copy_from_slice(std::hint::black_box(&source));
        std::hint::black_box(&mut target);
    }
    (bytes * rounds) as f64 / started.elapsed().as_secs_f64()
}

fn open(name: &str, rank: u32) -> Anyway<Fabric> {
    let backend = match name {
        "shm" => Backend::Shm,
        "tcp" => Backend::Tcp,
        _ => Backend::Verbs(VerbsOptions::default()),
    };
    // drawn at random by a launcher, and told to the processes of the job
    let job = JobCredentials { job_id: JobId(1), secret: Secret([7; 32]) };
    Ok(Fabric::open(backend, FabricConfig::new(member(rank), job))?)
}

fn member(rank: u32) -> Identity {
    Identity { rank: Rank(rank), incarnation: Incarnation(0) }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}
