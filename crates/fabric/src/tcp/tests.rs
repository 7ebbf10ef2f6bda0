//! What only a peer that breaks the rules can do: requests that the API would never post.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tensorwire_base::{Deadline, Incarnation, JobId, Rank};

use super::device::TcpDevice;
use super::frame::{CLEAR_BYTES, HEADER_BYTES, Header, Kind};
use super::queue_pair::{Broken, QueuePair};
use crate::api::{ArrivalSlot, Signal};
use crate::common::Core;
use crate::device::Device;
use crate::pulse;
use crate::raw_io;
use crate::region::Access;
use crate::{
    Backend, Completion, Direction, Fabric, FabricConfig, FaultCause, Identity, JobCredentials,
    LocalSlice, Memcpy, PeerAddress, PeerFault, Region, RegionDescriptor, RemoteRegion,
    RemoteSlice, Secret, SimKnobs, SimNetwork, Wake,
};

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

fn pair(backend: &Backend) -> [Fabric; 2] {
    let member = |rank| Identity { rank: Rank(rank), incarnation: Incarnation(1) };
    let fabrics = [0, 1].map(|rank| {
        let job = JobCredentials { job_id: JobId(1), secret: Secret([1; 32]) };
        Fabric::open(backend.clone(), FabricConfig::new(member(rank), job)).unwrap()
    });
    let [zero, one] = [0, 1].map(|rank: u32| PeerAddress {
        rank: Rank(rank),
        incarnation: Incarnation(1),
        endpoint: fabrics[rank as usize].endpoint(),
    });
    std::thread::scope(|scope| {
        scope.spawn(|| fabrics[0].connect(&[one], soon()).unwrap());
        fabrics[1].connect(&[zero], soon()).unwrap();
    });
    fabrics
}

fn fault(fabric: &Fabric) -> PeerFault {
    let deadline = soon();
    loop {
        let ticket = fabric.ticket();
        if let Some(fault) = fabric.fault() {
            return fault;
        }
        fabric.wait(ticket, deadline);
        assert!(!deadline.passed() || fabric.fault().is_some(), "no fault came");
    }
}

/// Posts to a remote region that was never opened, and expects both sides to say what they think.
fn refused(
    backend: &Backend,
    forge: impl Fn(&Region) -> RegionDescriptor,
    offset: u64,
    bytes: u64,
    direction: Direction,
) {
    let [right, wrong] = pair(backend);
    let target = right.alloc_region(4096).unwrap();
    let local = wrong.alloc_region(1 << 20).unwrap();
    let slot = right.alloc_arrival().unwrap();
    let remote = RemoteRegion::new(Rank(0), forge(&target), Access::Asked);
    let memcpy = Memcpy {
        local: LocalSlice { region: &local, offset: 0 },
        remote: RemoteSlice { region: &remote, offset },
        bytes,
        direction,
        signal: Some(Signal { slot, epoch: 1 }),
        token: 7,
    };
    wrong.channel(Rank(0), 1).unwrap().memcpy(memcpy).unwrap();
    let theirs = fault(&wrong);
    assert!(matches!(theirs.cause, FaultCause::Refused { .. }), "{theirs}");
    let ours = fault(&right);
    assert!(matches!(ours.cause, FaultCause::Protocol { .. }), "{ours}");
    assert_eq!((theirs.rank, ours.rank), (Rank(0), Rank(1)));
    assert_eq!(right.arrived(slot), 0, "what was refused signals nothing");
    let mut done = Vec::new();
    while done.is_empty() {
        wrong.wait(wrong.ticket(), Deadline::after(Duration::from_millis(10)));
        wrong.poll(&mut done);
    }
    assert_eq!(done[0].token, 7);
    let slab = target.slab();
    // SAFETY: inside the slab, which nobody writes any more.
    let byte = |at| unsafe { slab.start().as_ptr().add(at).read() };
    assert!((0..4096).all(|at| byte(at) == 0), "nothing of it was written");
}

fn each_forgery(backend: impl Fn() -> Backend) {
    for direction in [Direction::Write, Direction::Read] {
        let unknown = |region: &Region| RegionDescriptor { key: 1, ..region.descriptor() };
        refused(&backend(), unknown, 0, 100, direction);
        let longer = |region: &Region| RegionDescriptor { bytes: 1 << 40, ..region.descriptor() };
        refused(&backend(), longer, 0, 4097, direction);
        refused(&backend(), longer, (5 << 32) + 1, 10, direction);
        refused(&backend(), longer, 4000, 97, direction);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no poll")]
fn forged_requests_are_refused_by_the_receiver() {
    each_forgery(|| Backend::Tcp);
}

#[test]
fn the_simulation_refuses_them_too() {
    each_forgery(|| Backend::Sim(SimNetwork::new(1, SimKnobs::default())));
}

/// Two connected devices, without the API's checks before them.
fn devices() -> [TcpDevice; 2] {
    let member = |rank| Identity { rank: Rank(rank), incarnation: Incarnation(1) };
    let devices = [0, 1].map(|rank| {
        let job = JobCredentials { job_id: JobId(1), secret: Secret([1; 32]) };
        TcpDevice::open(Core::private(FabricConfig::new(member(rank), job)).unwrap()).unwrap()
    });
    let [zero, one] = [0, 1].map(|rank: u32| PeerAddress {
        rank: Rank(rank),
        incarnation: Incarnation(1),
        endpoint: devices[rank as usize].endpoint(),
    });
    std::thread::scope(|scope| {
        scope.spawn(|| devices[0].connect(&[one], soon(), &|| true).unwrap());
        devices[1].connect(&[zero], soon(), &|| true).unwrap();
    });
    devices
}

/// What a device says of a peer that does so on a queue pair.
fn wrong_doing(does: impl FnOnce(&QueuePair)) -> PeerFault {
    let [right, wrong] = devices();
    does(&wrong.peers.read()[&Rank(0)][2]);
    let deadline = soon();
    loop {
        let ticket = right.core.board().ticket();
        if let Some(fault) = right.core.fault() {
            return fault.clone();
        }
        assert_eq!(right.wait(ticket, deadline), Wake::Event, "no fault came");
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no poll")]
fn garbage_on_a_queue_pair_is_refused() {
    let beyond = Some(Signal { slot: ArrivalSlot(u32::MAX), epoch: 1 });
    let cases: [(&str, [u8; CLEAR_BYTES]); 4] = [
        ("unknown kind", [0xee; CLEAR_BYTES]),
        ("signals slot", Header { signal: beyond, ..Header::bare(Kind::Write) }.encode()),
        ("nobody asked for", Header::bare(Kind::ReadResponse).encode()),
        (
            "no living region",
            Header { offset: u64::MAX, bytes: u64::MAX, ..Header::bare(Kind::Write) }.encode(),
        ),
    ];
    for (words, header) in cases {
        let found = wrong_doing(|queue_pair| {
            queue_pair.lie(&header);
        });
        assert!(matches!(found.cause, FaultCause::Protocol { .. }), "{found}");
        assert!(found.to_string().contains(words), "{found}");
    }
}

/// Whoever sits on the way knows no key, and what it records is of another place in the stream.
#[test]
#[cfg_attr(miri, ignore = "Miri has no poll")]
fn what_the_peer_did_not_seal_now_is_refused() {
    let noise = wrong_doing(|queue_pair| queue_pair.send_raw(&[0xee; HEADER_BYTES]));
    let harmless = Header::bare(Kind::GoodbyeAck).encode();
    let replayed = wrong_doing(|queue_pair| {
        let recorded = queue_pair.lie(&harmless);
        queue_pair.send_raw(&recorded);
    });
    for found in [noise, replayed] {
        assert!(matches!(found.cause, FaultCause::Protocol { .. }), "{found}");
        assert!(found.to_string().contains("changed on its way"), "{found}");
    }
}

/// Epoll says once that something came and that nothing comes behind it, where both were there before anybody looked.
#[test]
#[cfg_attr(miri, ignore = "Miri has no poll")]
fn the_end_behind_the_last_frame_is_seen() {
    let [zero, one] = devices();
    let keep_away = zero.pollers.lead();
    // each thread has looked once more, and found nothing
    std::thread::sleep(3 * pulse::BEAT);
    let (ours, theirs) =
        (zero.peers.read()[&Rank(1)][1].clone(), one.peers.read()[&Rank(0)][1].clone());
    theirs.lie(&Header::bare(Kind::GoodbyeAck).encode());
    // the peer itself notices nothing, and so says nothing
    rustix::net::shutdown(&theirs.socket, rustix::net::Shutdown::Write).unwrap();
    drop(keep_away);
    let deadline = soon();
    while !ours.is_closed() {
        assert!(!deadline.passed(), "the end of the connection was not seen");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(ours.goodbye_acked.load(Ordering::Acquire), "the frame before it was not");
}

/// One thread may still read what came before the end when another finds that, and ends the reads that wait for answers: an
/// answer is then none that nobody asked for, which would be the peer's fault.
#[test]
#[cfg_attr(miri, ignore = "Miri has no poll")]
fn an_answer_behind_the_end_accuses_nobody() {
    let [zero, _one] = devices();
    let queue_pair = zero.peers.read()[&Rank(1)][2].clone();
    queue_pair.fail();
    let found = queue_pair.comes(Header::bare(Kind::ReadResponse));
    assert!(matches!(found, Err(Broken::HungUp)), "{found:?}");
}

/// Fills the words of a region with what follows from a seed.
fn fill(region: &Region, seed: u64) {
    let slab = region.slab();
    let start = slab.start().as_ptr().cast::<u64>();
    // SAFETY: inside the slab, which nobody else writes or sends now.
    (0..slab.bytes() / 8).for_each(|at| unsafe { start.add(at).write(seed + at as u64) });
}

/// True if the words of a region are what follows from a seed.
fn is_filled(region: &Region, seed: u64) -> bool {
    let slab = region.slab();
    let start = slab.start().as_ptr().cast::<u64>();
    // SAFETY: inside the slab, which nobody writes now.
    (0..slab.bytes() / 8).all(|at| unsafe { start.add(at).read() } == seed + at as u64)
}

/// Waits until `looks` finds something.
fn until<T>(fabric: &Fabric, mut looks: impl FnMut() -> Option<T>) -> T {
    loop {
        let ticket = fabric.ticket();
        if let Some(found) = looks() {
            return found;
        }
        assert_eq!(fabric.wait(ticket, soon()), Wake::Event, "nothing came");
    }
}

/// Waits for so many completions.
fn completions(fabric: &Fabric, count: usize) -> Vec<Completion> {
    let mut done = Vec::new();
    until(fabric, || {
        fabric.poll(&mut done);
        (done.len() >= count).then_some(())
    });
    done
}

/// Large payloads go in pieces: whoever writes over the source as soon as it is told that it may changes nothing
/// of what comes.
#[test]
#[cfg_attr(miri, ignore = "Miri has no poll")]
fn the_source_of_a_large_payload_is_given_back_when_all_of_it_has_gone() {
    const BYTES: u64 = 4 << 20;
    const ROUNDS: u64 = 40;
    let [zero, one] = pair(&Backend::Tcp);
    let source = zero.alloc_region(BYTES).unwrap();
    let targets: Vec<Region> = (0..ROUNDS).map(|_| one.alloc_region(BYTES).unwrap()).collect();
    let slot = one.alloc_arrival().unwrap();
    let channel = zero.channel(Rank(1), 0).unwrap();
    for (round, target) in (1..=ROUNDS).zip(&targets) {
        fill(&source, round);
        let remote = channel.open_region(&target.descriptor(), soon()).unwrap();
        channel
            .memcpy(Memcpy {
                local: LocalSlice { region: &source, offset: 0 },
                remote: RemoteSlice { region: &remote, offset: 0 },
                bytes: BYTES,
                direction: Direction::Write,
                signal: Some(Signal { slot, epoch: round }),
                token: round,
            })
            .unwrap();
        let done = completions(&zero, 1);
        assert!(done[0].token == round && done[0].result.is_ok(), "{done:?}");
    }
    until(&one, || (one.arrived(slot) == ROUNDS).then_some(()));
    let torn = (1..=ROUNDS).zip(&targets).filter(|(round, target)| !is_filled(target, *round));
    assert_eq!(torn.count(), 0, "payloads that were written over before they had gone");
}

/// Of a read, whoever is read from knows when its memory was read.
#[test]
#[cfg_attr(miri, ignore = "Miri has no poll")]
fn a_large_read_signals_its_source_when_all_of_it_has_gone() {
    const BYTES: u64 = 4 << 20;
    let [zero, one] = pair(&Backend::Tcp);
    let source = zero.alloc_region(BYTES).unwrap();
    let target = one.alloc_region(BYTES).unwrap();
    let slot = zero.alloc_arrival().unwrap();
    let channel = one.channel(Rank(0), 0).unwrap();
    let remote = channel.open_region(&source.descriptor(), soon()).unwrap();
    for round in 1..=10 {
        fill(&source, round);
        channel
            .memcpy(Memcpy {
                local: LocalSlice { region: &target, offset: 0 },
                remote: RemoteSlice { region: &remote, offset: 0 },
                bytes: BYTES,
                direction: Direction::Read,
                signal: Some(Signal { slot, epoch: round }),
                token: round,
            })
            .unwrap();
        until(&zero, || (zero.arrived(slot) == round).then_some(()));
        fill(&source, 1000);
        let done = completions(&one, 1);
        assert!(done[0].token == round && done[0].result.is_ok(), "{done:?}");
        assert!(is_filled(&target, round), "round {round}: written over before it had gone");
    }
}

/// What has not gone to a peer when it is lost completes with that.
#[test]
#[cfg_attr(miri, ignore = "Miri has no poll")]
fn what_was_to_go_to_a_peer_that_is_lost_is_given_back() {
    let [zero, one] = pair(&Backend::Tcp);
    let source = zero.alloc_region(64 << 20).unwrap();
    let target = one.alloc_region(64 << 20).unwrap();
    let channel = zero.channel(Rank(1), 0).unwrap();
    let remote = channel.open_region(&target.descriptor(), soon()).unwrap();
    for token in 0..8 {
        channel
            .memcpy(Memcpy {
                local: LocalSlice { region: &source, offset: 0 },
                remote: RemoteSlice { region: &remote, offset: 0 },
                bytes: 64 << 20,
                direction: Direction::Write,
                signal: None,
                token,
            })
            .unwrap();
    }
    drop(one);
    let done = completions(&zero, 8);
    let in_order = done.iter().map(|completion| completion.token).eq(0..8);
    assert!(in_order && done.last().unwrap().result.is_err(), "{done:?}");
}

/// Until a socket has seen much come it makes room for little, and whoever sends much stops in between.
#[test]
#[cfg_attr(miri, ignore = "Miri has no sockets")]
fn a_socket_is_given_room_from_the_start() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let socket = OwnedFd::from(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
    let room = || rustix::net::sockopt::socket_recv_buffer_size(&socket).unwrap();
    let limits = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").unwrap();
    let most: usize = limits.split_whitespace().next_back().unwrap().parse().unwrap();
    let before = room();
    raw_io::make_room(&socket, 2 << 20);
    assert!(room() >= (2 << 20).min(most / 2).max(before), "{} of {most}", room());
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no poll")]
fn a_ring_ends_the_sleep_of_whoever_waits_in_epoll_while_peers_send() {
    const ROUNDS: u64 = 2000;
    let [zero, one] = devices();
    let (asked, answered) = (AtomicU64::new(0), AtomicU64::new(0));
    // each waits for the other's number and says the next; only one of them can wait in epoll
    let await_number = |number: &AtomicU64, expected: u64| loop {
        let ticket = zero.core.board().ticket();
        if number.load(Ordering::Acquire) >= expected {
            return;
        }
        assert_eq!(zero.wait(ticket, soon()), Wake::Event, "lost at {expected}");
    };
    let say = |number: &AtomicU64, value: u64| {
        number.store(value, Ordering::Release);
        zero.core.board().ring();
    };
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // wakes the threads of the completion queues, which sleep in the same epoll
            while !ended.load(Ordering::Relaxed) {
                one.peers.read()[&Rank(0)][1].lie(&Header::bare(Kind::GoodbyeAck).encode());
                std::thread::sleep(Duration::from_micros(30));
            }
        });
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                await_number(&asked, round);
                say(&answered, round);
            }
        });
        for round in 1..=ROUNDS {
            say(&asked, round);
            await_number(&answered, round);
        }
        ended.store(true, Ordering::Relaxed);
    });
}

proptest! {
    #[test]
    fn any_header_decodes_or_fails(mut bytes: [u8; 32], kind in 0u32..8) {
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        let wire: [u8; CLEAR_BYTES] = std::array::from_fn(|i| bytes[i % 32]);
        if let Ok(header) = Header::decode(&wire) {
            // what decodes means the same after another trip
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        } else {
            prop_assert!(kind == 0 || kind > 5);
        }
    }

    #[test]
    fn headers_survive_the_wire(
        key: u64, offset: u64, bytes: u64, request: u64, signal: Option<(u32, u64)>,
    ) {
        let signal = signal.map(|(slot, epoch)| Signal { slot: ArrivalSlot(slot), epoch });
        for kind in [Kind::Write, Kind::ReadRequest, Kind::ReadResponse] {
            let header = Header { kind, key, offset, bytes, request, signal };
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
    }
}
