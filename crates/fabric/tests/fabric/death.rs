//! Real processes that are killed in the middle of a transfer: the survivor learns it in time, gets a
//! completion for every post, and goes on. The child is this very test program, started again.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::{
    ArrivalSlot, Backend, Completion, Direction, Fabric, FabricConfig, FaultCause, LocalSlice,
    Memcpy, PeerAddress, PostError, Region, RegionDescriptor, RemoteRegion, RemoteSlice, Signal,
};
use tensorwire_testkit::mesh::{await_arrival, job, member, soon, wait_until};

const BYTES: u64 = 16 << 20;
const CHILD: &str = "TENSORWIRE_FABRIC_TEST_CHILD";

/// How fast a death must be known once the system has buried the process.
const KNOWN_WITHIN: Duration = Duration::from_secs(1);

fn backend(name: &str) -> Backend {
    match name {
        "shm" => Backend::Shm,
        "tcp" => Backend::Tcp,
        other => panic!("no backend {other}"),
    }
}

/// One process's end: its own region and slot, its peer's, and all queue pairs.
struct Side {
    fabric: Fabric,
    peer: Rank,
    region: Region,
    slot: ArrivalSlot,
    remote: RemoteRegion,
    remote_slot: ArrivalSlot,
}

impl Side {
    fn connect(fabric: Fabric, peer: u32, endpoint: &str) -> Side {
        let endpoint = endpoint.parse().unwrap();
        let incarnation = member(peer).incarnation;
        let address = PeerAddress { rank: Rank(peer), incarnation, endpoint };
        fabric.connect(&[address], soon()).unwrap();
        let region = fabric.alloc_region(BYTES).unwrap();
        let slot = fabric.alloc_arrival().unwrap();
        let channel = fabric.channel(Rank(peer), 0).unwrap();
        let told = [&region.descriptor().to_bytes()[..], &slot.0.to_le_bytes()].concat();
        channel.send_message(&told, soon()).unwrap();
        let told = fabric.receive_message(soon()).unwrap().body;
        let (descriptor, told_slot) = told.split_at(RegionDescriptor::WIRE_BYTES);
        let descriptor = RegionDescriptor::from_bytes(descriptor).unwrap();
        let remote = channel.open_region(&descriptor, soon()).unwrap();
        let remote_slot = ArrivalSlot(u32::from_le_bytes(told_slot.try_into().unwrap()));
        Side { fabric, peer: Rank(peer), region, slot, remote, remote_slot }
    }

    fn post(&self, direction: Direction, epoch: u64) -> Result<(), PostError> {
        let channel = self.fabric.channel(self.peer, epoch as usize % 4).unwrap();
        channel.memcpy(Memcpy {
            local: LocalSlice { region: &self.region, offset: 0 },
            remote: RemoteSlice { region: &self.remote, offset: 0 },
            bytes: BYTES,
            direction,
            signal: Some(Signal { slot: self.remote_slot, epoch }),
            token: epoch,
        })
    }
}

/// The child process: does its part until it is killed. Not a test of its own.
#[test]
#[ignore = "started by the other tests"]
fn child() {
    let Ok(role) = std::env::var(CHILD) else {
        return;
    };
    let (name, role) = role.split_once(' ').unwrap();
    let fabric = Fabric::open(backend(name), FabricConfig::new(member(1), job())).unwrap();
    println!("\nENDPOINT {}", fabric.endpoint());
    let mut endpoint = String::new();
    std::io::stdin().read_line(&mut endpoint).unwrap();
    let side = Side::connect(fabric, 0, endpoint.trim());
    // a child that nobody kills ends by itself
    let deadline = Deadline::after(Duration::from_secs(60));
    let mut epoch = 0;
    while !deadline.passed() {
        match role {
            "writes" => {
                epoch += 1;
                while let Err(PostError::Full { .. }) = side.post(Direction::Write, epoch) {
                    side.fabric.wait(side.fabric.ticket(), soon());
                    side.fabric.poll(&mut Vec::new());
                }
                side.fabric.poll(&mut Vec::new());
            }
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// A child that is killed at the latest when the test ends.
struct Peer(Child);

impl Peer {
    fn start(name: &str, role: &str, endpoint: &str) -> (Peer, String) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "death::child", "--ignored", "--nocapture"])
            .env(CHILD, format!("{name} {role}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        writeln!(child.stdin.as_mut().unwrap(), "{endpoint}").unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let told = lines
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("ENDPOINT ").map(str::to_string));
        (Peer(child), told.expect("the child tells where it is"))
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(name: &str, role: &str) -> (Side, Peer) {
    let fabric = Fabric::open(backend(name), FabricConfig::new(member(0), job())).unwrap();
    let (peer, endpoint) = Peer::start(name, role, &fabric.endpoint().to_string());
    (Side::connect(fabric, 1, &endpoint), peer)
}

/// Fails if none of a few deaths is known in time: where others keep the cores busy one may take longer, but not each.
fn known_in_time(mut die: impl FnMut() -> Duration) {
    let mut all = Vec::new();
    let is_soon = (0..3).any(|_| {
        let took = die();
        all.push(took);
        took < KNOWN_WITHIN
    });
    assert!(is_soon, "{all:?} until a death was known");
}

/// Buries the peer and waits for the fault; returns how long that took.
fn bury(side: &Side, peer: &mut Peer) -> Duration {
    peer.kill();
    let buried = Instant::now();
    wait_until(&side.fabric, "the fault", || side.fabric.fault().is_some());
    let took = buried.elapsed();
    let fault = side.fabric.fault().unwrap();
    assert_eq!(fault.rank, Rank(1));
    assert!(matches!(fault.cause, FaultCause::Died { .. }), "{fault}");
    let refused = side.post(Direction::Write, 0).unwrap_err();
    assert!(matches!(refused, PostError::PeerLost { peer: Rank(1), .. }), "{refused}");
    side.fabric.close(soon()).expect("nobody is left to confirm");
    took
}

/// The survivor keeps posting while the peer dies.
fn dies_while_serving(name: &str, direction: Direction) -> Duration {
    let (side, mut peer) = start(name, "sleeps");
    let mut done: Vec<Completion> = Vec::new();
    let mut posted = 0;
    let mut killed = false;
    let deadline = soon();
    loop {
        assert!(!deadline.passed(), "posts to the dead go on and on");
        match side.post(direction, posted + 1) {
            Ok(()) => posted += 1,
            Err(PostError::Full { .. }) => {
                side.fabric.wait(side.fabric.ticket(), Deadline::after(Duration::from_millis(50)));
            }
            Err(PostError::PeerLost { .. }) => break,
            Err(other) => panic!("{other}"),
        }
        side.fabric.poll(&mut done);
        if posted >= 20 && !killed {
            // while much is under way
            peer.kill();
            killed = true;
        }
    }
    wait_until(&side.fabric, "every completion", || {
        side.fabric.poll(&mut done);
        done.len() as u64 == posted
    });
    let mut tokens: Vec<u64> = done.iter().map(|done| done.token).collect();
    tokens.sort_unstable();
    assert!(tokens.into_iter().eq(1..=posted), "each post completes exactly once");
    bury(&side, &mut peer)
}

fn dies_while_writing(name: &str) -> Duration {
    let (side, mut peer) = start(name, "writes");
    await_arrival(&side.fabric, side.slot, 5);
    bury(&side, &mut peer)
}

fn dies_while_silent(name: &str) -> Duration {
    let (side, mut peer) = start(name, "sleeps");
    bury(&side, &mut peer)
}

#[test]
fn a_written_process_dies_over_shm() {
    known_in_time(|| dies_while_serving("shm", Direction::Write));
}

#[test]
fn a_written_process_dies_over_tcp() {
    known_in_time(|| dies_while_serving("tcp", Direction::Write));
}

#[test]
fn a_read_process_dies_over_shm() {
    known_in_time(|| dies_while_serving("shm", Direction::Read));
}

#[test]
fn a_read_process_dies_over_tcp() {
    known_in_time(|| dies_while_serving("tcp", Direction::Read));
}

#[test]
fn a_writing_process_dies_over_shm() {
    known_in_time(|| dies_while_writing("shm"));
}

#[test]
fn a_writing_process_dies_over_tcp() {
    known_in_time(|| dies_while_writing("tcp"));
}

#[test]
fn a_silent_process_dies_over_shm() {
    known_in_time(|| dies_while_silent("shm"));
}

#[test]
fn a_silent_process_dies_over_tcp() {
    known_in_time(|| dies_while_silent("tcp"));
}
