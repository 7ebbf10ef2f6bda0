//! What only a device can show, and only from inside: queue pairs that die under way, keys that name
//! nothing. Without an RDMA device each case says that it is skipped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorwire_base::{Deadline, Incarnation, JobId, Rank};
use tensorwire_memory::{CutMark, DmaBuf, Slab};

use super::VerbsOptions;
use super::device::VerbsDevice;
use super::ibv::Remote;
use super::region::check_on_devices;
use crate::api::{Completion, Direction, Signal};
use crate::common::Core;
use crate::device::{Device, Work};
use crate::error::{CompletionError, FaultCause, RegionError};
use crate::mapping::Mapping;
use crate::region::{Access, Region, RemoteRegion};
use crate::{
    ArrivalMode, Backend, ConnectError, FabricConfig, HostId, Identity, JobCredentials,
    PeerAddress, Secret, neighbours,
};

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

/// True if there is a device to test with. Where one is expected its absence is a failure.
fn there_is_a_device() -> bool {
    match super::verbs_usable(&VerbsOptions::default(), None) {
        Ok(_) => true,
        Err(reason) => tensorwire_testkit::mesh::skip(&reason),
    }
}

fn config(rank: u32) -> FabricConfig {
    let member = Identity { rank: Rank(rank), incarnation: Incarnation(1) };
    let job = JobCredentials { job_id: JobId(1), secret: Secret([1; 32]) };
    // few: building queue pairs takes most of the time in an emulated machine
    FabricConfig { queue_pairs_per_peer: 1, completion_queues: 1, ..FabricConfig::new(member, job) }
}

fn open(change: impl Fn(&mut FabricConfig)) -> [Arc<VerbsDevice>; 2] {
    [0, 1].map(|rank| {
        let mut config = config(rank);
        change(&mut config);
        Arc::new(
            VerbsDevice::open(&VerbsOptions::default(), Core::private(config).unwrap()).unwrap(),
        )
    })
}

fn connect<D: Device + ?Sized>(devices: &[Arc<D>; 2]) -> [Result<(), ConnectError>; 2] {
    let [zero, one] = [0, 1].map(|rank: u32| PeerAddress {
        rank: Rank(rank),
        incarnation: Incarnation(1),
        endpoint: devices[rank as usize].endpoint(),
    });
    std::thread::scope(|scope| {
        let first = scope.spawn(|| devices[0].connect(&[one], soon(), &|| true));
        let second = devices[1].connect(&[zero], soon(), &|| true);
        [first.join().unwrap(), second]
    })
}

fn pair(change: impl Fn(&mut FabricConfig)) -> [Arc<VerbsDevice>; 2] {
    let devices = open(change);
    for connected in connect(&devices) {
        connected.unwrap();
    }
    devices
}

/// A source here, a target there, and a slot there.
struct Way {
    source: Region,
    target: Region,
    remote: RemoteRegion,
    slot: crate::ArrivalSlot,
}

fn way(devices: &[Arc<VerbsDevice>; 2], bytes: u64) -> Way {
    let source = devices[0].alloc_region(bytes).unwrap();
    let target = devices[1].alloc_region(bytes).unwrap();
    let slot = devices[1].core().board().alloc_slot().unwrap();
    let remote = devices[0].open_region(Rank(1), target.descriptor(), soon()).unwrap();
    Way { source, target, remote, slot }
}

impl Way {
    fn work(&self, direction: Direction, offset: u64, bytes: u64, epoch: u64) -> Work {
        Work {
            local: self.source.memory().clone(),
            local_offset: offset,
            remote: self.remote.clone(),
            remote_offset: offset,
            bytes,
            direction,
            signal: (epoch > 0).then_some(Signal { slot: self.slot, epoch }),
            token: epoch,
        }
    }
}

fn byte(region: &Region, at: usize) -> *mut u8 {
    // inside the region, by the callers' choice
    region.slab().start().as_ptr().wrapping_add(at)
}

fn completions(device: &VerbsDevice, count: usize) -> Vec<Completion> {
    let (mut found, deadline) = (Vec::new(), soon());
    while found.len() < count {
        let ticket = device.core().board().ticket();
        device.progress();
        if device.core().completions().drain(&mut found) == 0 {
            device.wait(ticket, Deadline::after(Duration::from_millis(50)));
        }
        assert!(!deadline.passed(), "{} of {count} completions", found.len());
    }
    found
}

fn await_epoch(device: &VerbsDevice, slot: crate::ArrivalSlot, epoch: u64) {
    let deadline = soon();
    while device.core().board().epoch(slot.index()) < epoch {
        device.wait(device.core().board().ticket(), Deadline::after(Duration::from_millis(20)));
        assert!(!deadline.passed(), "epoch {epoch} never came");
    }
}

/// Memory that is no device's, and is told to be one's: a NIC knows no difference.
fn on_device(start: usize, bytes: usize) -> Slab {
    let start = std::num::NonZero::new(start).unwrap();
    // SAFETY: nobody here hands the address to a device, nor follows it.
    unsafe { Slab::on_device(0, start, bytes, Arc::new(()), CutMark::default()) }
}

/// Peers of other hosts have it by the NIC, those that share its host by its file.
#[test]
#[cfg_attr(miri, ignore = "Miri loads no library")]
fn memory_of_a_device_is_shown_to_the_nic_also_where_peers_share_its_host() {
    if !there_is_a_device() {
        return;
    }
    const BYTES: usize = 8192;
    let mapping = Mapping::private(BYTES as u64).unwrap();
    let memory = on_device(mapping.start().addr().get(), BYTES);
    let opened = [0, 1].map(|rank| {
        let far = Backend::Verbs(VerbsOptions::default());
        neighbours::open(HostId::here("one"), &far, config(rank)).unwrap()
    });
    let devices = opened.each_ref().map(|(_, device)| device.clone());
    devices[0].adopt_device(&memory, Err("none".to_string())).expect("nobody is near yet");
    for connected in connect(&devices) {
        connected.unwrap();
    }
    devices[0].adopt_device(&memory, Err("none".to_string())).expect("for others");
    let file = rustix::fs::memfd_create("a file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let offered = devices[0].offer_file(file).unwrap();
    devices[1].take_file(Rank(0), offered.descriptor(), soon()).unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "Miri loads no library")]
fn memory_of_a_device_is_reached_one_way_or_another_and_why_is_said() {
    if !there_is_a_device() {
        return;
    }
    const BYTES: usize = 8192;
    let mapping = Mapping::private(BYTES as u64).unwrap();
    let memory = on_device(mapping.start().addr().get(), BYTES);
    let devices = open(|_| {});
    // the NIC's driver takes no dma-buf of this kind, or none at all
    let fd = rustix::fs::memfd_create("no dma-buf", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let shown = DmaBuf { fd, offset: 0, bytes: BYTES as u64 };
    let (region, way) = devices[0].adopt_device(&memory, Ok(shown)).unwrap();
    assert!(region.is_of_device());
    assert!(way.starts_with("by nvidia-peermem (no dma-buf: ibv_reg_dmabuf_mr: "), "{way}");
    let nowhere = on_device(0x7000_0000_0000, BYTES);
    let refused = devices[0].adopt_device(&nowhere, Err("the GPU has none".to_string()));
    let Err(RegionError::Unreached { dma_buf, peermem }) = refused else { panic!("{refused:?}") };
    assert_eq!(
        (dma_buf.as_str(), peermem.raw_os_error()),
        ("the GPU has none", Some(libc::EFAULT))
    );
    for mode in FLAGS {
        let flags = open(|config| config.arrival = Some(mode));
        let refused = flags[0].adopt_device(&memory, Err(String::new()));
        assert!(matches!(refused, Err(RegionError::FlagsOnDevice { .. })), "{refused:?}");
    }
}

/// Of these a host polls memory for what has come.
const FLAGS: [ArrivalMode; 2] = [ArrivalMode::FlagSeparate, ArrivalMode::FlagTail];

/// Needs no RDMA device.
#[test]
fn memory_of_a_device_takes_no_flags() {
    check_on_devices(ArrivalMode::WriteImm).unwrap();
    for mode in FLAGS {
        let refused = check_on_devices(mode).unwrap_err().to_string();
        assert!(refused.contains(mode.name()) && refused.contains("use write-imm"), "{refused}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri loads no library")]
fn a_queue_pair_that_dies_under_way_is_built_anew_and_loses_nothing() {
    if !there_is_a_device() {
        return;
    }
    const ROUNDS: u64 = 40;
    const BYTES: u64 = 20_000;
    let devices = pair(|_| {});
    let way = way(&devices, BYTES * ROUNDS);
    for round in 1..=ROUNDS {
        let offset = (round - 1) * BYTES;
        for at in 0..BYTES {
            // SAFETY: inside the region, which no memcpy touches yet.
            unsafe { byte(&way.source, (offset + at) as usize).write((round * 7 + at) as u8) };
        }
        // an epoch that no immediate has room for, and one that it has, in turn
        let epoch = if round % 2 == 0 { round } else { round << 40 };
        let mut work = way.work(Direction::Write, offset, BYTES, epoch);
        work.token = round;
        devices[0].post(Rank(1), 0, work).unwrap();
        if round % 10 == 5 {
            // one end, then the other
            let end = &devices[usize::from(round % 20 == 5)];
            let pair = end.peers.read().values().next().unwrap()[0].clone();
            pair.kill();
        }
    }
    let done = completions(&devices[0], ROUNDS as usize);
    assert!(done.iter().all(|done| done.result == Ok(())), "{done:?}");
    assert!(done.iter().map(|done| done.token).eq(1..=ROUNDS), "in order");
    await_epoch(&devices[1], way.slot, (ROUNDS - 1) << 40);
    for at in 0..BYTES * ROUNDS {
        let (round, at_in) = (at / BYTES + 1, at % BYTES);
        // SAFETY: inside the region, which nobody writes any more.
        let found = unsafe { byte(&way.target, at as usize).read() };
        assert_eq!(found, (round * 7 + at_in) as u8, "byte {at}");
    }
    assert!(devices.iter().all(|device| device.core().fault().is_none()));
    let pair = devices[0].peers.read()[&Rank(1)][0].clone();
    assert!(pair.generation() >= 1, "it was never built anew");
}

#[test]
#[cfg_attr(miri, ignore = "Miri loads no library")]
fn a_bad_key_fails_one_memcpy_with_its_cause_and_the_queue_pair_goes_on() {
    if !there_is_a_device() {
        return;
    }
    let devices = pair(|_| {});
    let way = way(&devices, 4096);
    let address = way.remote.remote().unwrap().address;
    let wrong = Remote { address, key: way.remote.remote().unwrap().key ^ 0xff00 };
    let forged = RemoteRegion::new(Rank(1), way.target.descriptor(), Access::Registered(wrong));
    devices[0].post(Rank(1), 0, way.work(Direction::Write, 0, 100, 1)).unwrap();
    assert_eq!(completions(&devices[0], 1)[0].result, Ok(()));
    let bad = Work { remote: forged, ..way.work(Direction::Write, 0, 4096, 2) };
    devices[0].post(Rank(1), 0, bad).unwrap();
    devices[0].post(Rank(1), 0, way.work(Direction::Write, 0, 50, 3)).unwrap();
    let done = completions(&devices[0], 2);
    let Err(CompletionError::QueuePairFailed { peer: Rank(1), cause, .. }) = &done[0].result else {
        panic!("{done:?}");
    };
    for word in
        ["remote access error", "status 10", "vendor code", "4096 bytes", "key", "queue pair"]
    {
        assert!(cause.contains(word), "{word} is not in: {cause}");
    }
    assert_eq!(cause.matches("10.9.0.1").count(), 2, "both ends: {cause}");
    match &done[1].result {
        // behind the failure, or already posted to the next life
        Err(CompletionError::Flushed { cause: first, .. }) => assert_eq!(first, cause),
        other => assert_eq!(other, &Ok(())),
    }
    devices[0].post(Rank(1), 0, way.work(Direction::Write, 0, 50, 4)).unwrap();
    assert_eq!(completions(&devices[0], 1)[0].result, Ok(()));
    await_epoch(&devices[1], way.slot, 4);
    assert!(devices.iter().all(|device| device.core().fault().is_none()));
}

#[test]
#[cfg_attr(miri, ignore = "Miri loads no library")]
fn two_failures_with_a_quiet_time_between_are_two_outages() {
    if !there_is_a_device() {
        return;
    }
    let devices = pair(|_| {});
    let way = way(&devices, 4096);
    let Remote { address, key } = way.remote.remote().unwrap();
    let wrong = Remote { address, key: key ^ 0xff00 };
    let forged = RemoteRegion::new(Rank(1), way.target.descriptor(), Access::Registered(wrong));
    for epoch in [1, 2] {
        let bad = Work { remote: forged.clone(), ..way.work(Direction::Write, 0, 4096, epoch) };
        devices[0].post(Rank(1), 0, bad).unwrap();
        let done = completions(&devices[0], 1);
        let failed = matches!(done[0].result, Err(CompletionError::QueuePairFailed { .. }));
        assert!(failed, "{done:?}");
        // longer than one outage may last
        std::thread::sleep(Duration::from_secs(5));
    }
    devices[0].post(Rank(1), 0, way.work(Direction::Write, 0, 50, 3)).unwrap();
    assert_eq!(completions(&devices[0], 1)[0].result, Ok(()));
    assert!(devices.iter().all(|device| device.core().fault().is_none()));
}

#[test]
#[cfg_attr(miri, ignore = "Miri loads no library")]
fn a_freed_region_can_be_accessed_no_more() {
    if !there_is_a_device() {
        return;
    }
    let devices = pair(|_| {});
    let Way { source, target, remote, slot } = way(&devices, 4096);
    drop(target);
    let work = Work {
        local: source.memory().clone(),
        local_offset: 0,
        remote,
        remote_offset: 0,
        bytes: 4096,
        direction: Direction::Read,
        signal: Some(Signal { slot, epoch: 1 }),
        token: 1,
    };
    devices[0].post(Rank(1), 0, work).unwrap();
    let done = completions(&devices[0], 1);
    assert!(matches!(done[0].result, Err(CompletionError::QueuePairFailed { .. })), "{done:?}");
    assert_eq!(devices[1].core().board().epoch(slot.index()), 0, "what failed signals nothing");
}

#[test]
#[cfg_attr(miri, ignore = "Miri loads no library")]
fn a_peer_that_takes_no_messages_for_a_while_holds_up_nobody() {
    if !there_is_a_device() {
        return;
    }
    // far more signals than the receiver has room for, without a look at the completions
    const ROUNDS: u64 = 400;
    let devices = pair(|config| config.queue_depth = 16);
    let way = way(&devices, 64);
    for epoch in 1..=ROUNDS {
        while devices[0].post(Rank(1), 0, way.work(Direction::Write, 0, 64, epoch)).is_err() {
            completions(&devices[0], 1);
        }
    }
    await_epoch(&devices[1], way.slot, ROUNDS);
    assert!(devices.iter().all(|device| device.core().fault().is_none()));
    let pair = devices[0].peers.read()[&Rank(1)][0].clone();
    assert_eq!(pair.generation(), 0, "credits keep the receiver ready");
}

#[test]
#[cfg_attr(miri, ignore = "Miri loads no library")]
fn a_peer_that_cannot_be_reached_is_lost_in_time() {
    if !there_is_a_device() {
        return;
    }
    let devices = pair(|_| {});
    let way = way(&devices, 64);
    // the peer's half is destroyed and answers no more; its control connection says nothing
    let begun = Instant::now();
    devices[1].peers.read()[&Rank(0)][0].abandon();
    devices[0].post(Rank(1), 0, way.work(Direction::Write, 0, 64, 1)).unwrap();
    let done = completions(&devices[0], 1);
    assert!(matches!(done[0].result, Err(CompletionError::PeerLost { .. })), "{done:?}");
    let fault = devices[0].core().fault().unwrap().clone();
    let FaultCause::Unreachable { detail } = &fault.cause else { panic!("{fault}") };
    assert!(detail.contains("retry"), "the first cause, not what followed: {detail}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
#[cfg_attr(miri, ignore = "Miri loads no library")]
fn a_flag_behind_the_payload_is_refused_where_the_device_does_not_promise_order() {
    if !there_is_a_device() {
        return;
    }
    let tail = |config: &mut FabricConfig| config.arrival = Some(ArrivalMode::FlagTail);
    let devices = open(tail);
    let refused = connect(&devices);
    for result in &refused {
        let text = result.as_ref().unwrap_err().to_string();
        assert!(text.contains("flag-tail") && text.contains("write-imm"), "{text}");
    }
    let trusting = |config: &mut FabricConfig| {
        config.arrival = Some(ArrivalMode::FlagTail);
        config.trust_tail = true;
    };
    let devices = pair(trusting);
    let target = devices[1].alloc_region(1008).unwrap();
    let slot = devices[1].core().board().alloc_slot().unwrap();
    let slot = devices[1].watch_tail(slot, target.memory(), 1000);
    let source = devices[0].alloc_region(1000).unwrap();
    let remote = devices[0].open_region(Rank(1), target.descriptor(), soon()).unwrap();
    for epoch in 1..=20u64 {
        // SAFETY: inside the region; the last write of it has completed.
        (0..1000).for_each(|at| unsafe { byte(&source, at).write(epoch as u8) });
        let work = Work {
            local: source.memory().clone(),
            local_offset: 0,
            remote: remote.clone(),
            remote_offset: 0,
            bytes: 1000,
            direction: Direction::Write,
            signal: Some(Signal { slot, epoch }),
            token: epoch,
        };
        devices[0].post(Rank(1), 0, work).unwrap();
        await_epoch(&devices[1], slot, epoch);
        // SAFETY: inside the region, which is written again only after this.
        assert!((0..1000).all(|at| unsafe { byte(&target, at).read() } == epoch as u8));
        completions(&devices[0], 1);
    }
}
