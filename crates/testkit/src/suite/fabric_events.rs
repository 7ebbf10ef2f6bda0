//! What every fabric promises of messages, waits and everything around memcpys.

use std::time::{Duration, Instant};

use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::{
    ArrivalError, ArrivalSlot, ChannelError, Direction, MESSAGE_BYTES_MAX, PostError, ReceiveError,
    SendMessageError, Signal, Wake,
};

use crate::cpu;
use crate::mesh::{
    Setup, await_arrival, close, completions, fill, mismatch, route, soon, wait_until,
};

pub fn messages_go_both_ways_in_order(setup: Setup) {
    let fabrics = setup.mesh(2);
    let forth = fabrics[0].channel(Rank(1), 0).unwrap();
    let back = fabrics[1].channel(Rank(0), 3).unwrap();
    for number in 0..100u8 {
        forth.send_message(&vec![number; usize::from(number)], soon()).unwrap();
    }
    for number in 0..100u8 {
        let message = fabrics[1].receive_message(soon()).unwrap();
        assert_eq!(message.from, Rank(0));
        assert_eq!(message.body, vec![number; usize::from(number)]);
    }
    back.send_message(b"", soon()).unwrap();
    assert_eq!(fabrics[0].receive_message(soon()).unwrap().body, b"");
    assert_eq!(fabrics[0].try_receive_message(), None);
    let at_once = fabrics[0].receive_message(Deadline::after(Duration::ZERO));
    assert_eq!(at_once, Err(ReceiveError::TimedOut));
}

pub fn oversized_messages_are_refused(setup: Setup) {
    let fabrics = setup.mesh(2);
    let channel = fabrics[0].channel(Rank(1), 0).unwrap();
    let largest = vec![7; MESSAGE_BYTES_MAX];
    channel.send_message(&largest, soon()).unwrap();
    assert_eq!(fabrics[1].receive_message(soon()).unwrap().body, largest);
    let refused = channel.send_message(&vec![7; MESSAGE_BYTES_MAX + 1], soon()).unwrap_err();
    assert!(matches!(refused, SendMessageError::TooLarge { .. }), "{refused}");
}

pub fn a_flood_of_messages_arrives(setup: Setup) {
    // more than any queue on the way holds, while nobody receives at first
    const COUNT: u32 = 600;
    let fabrics = setup.mesh(2);
    let channel = fabrics[0].channel(Rank(1), 0).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..COUNT {
                let mut body = vec![0; 256 << 10];
                body[..4].copy_from_slice(&number.to_le_bytes());
                channel.send_message(&body, soon()).unwrap();
            }
        });
        for number in 0..COUNT {
            let body = fabrics[1].receive_message(soon()).unwrap().body;
            assert_eq!((body.len(), &body[..4]), (256 << 10, &number.to_le_bytes()[..]));
        }
    });
}

pub fn a_wait_wakes_on_arrival(setup: Setup) {
    let fabrics = setup.mesh(2);
    let way = route(&fabrics[0], &fabrics[1], 1, 0, 64);
    let (go, gone) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let ticket = fabrics[1].ticket();
            assert_eq!(fabrics[1].arrived(way.slot), 0);
            go.send(()).unwrap();
            let started = Instant::now();
            assert_eq!(fabrics[1].wait(ticket, soon()), Wake::Event);
            assert!(started.elapsed() < Duration::from_secs(20), "woken, not timed out");
            await_arrival(&fabrics[1], way.slot, 1);
        });
        gone.recv().unwrap();
        way.write(64, 1, 0).unwrap();
        completions(&fabrics[0], 1);
    });
    assert!(fabrics[1].stats().wakes > 0);
}

pub fn a_wait_times_out(setup: Setup) {
    let fabrics = setup.mesh(2);
    let patience = Duration::from_millis(30);
    // the last words of connecting may still ring once
    let timed_out = (0..10).find_map(|_| {
        let started = Instant::now();
        let wake = fabrics[0].wait(fabrics[0].ticket(), Deadline::after(patience));
        (wake == Wake::TimedOut).then(|| started.elapsed())
    });
    let took = timed_out.expect("events without end and without cause");
    assert!(took >= patience, "{took:?} is too early");
}

pub fn an_idle_wait_burns_no_processor(setup: Setup) {
    let fabrics = setup.mesh(2);
    let quiet = Duration::from_millis(300);
    let started = Instant::now();
    let before = cpu::thread_time();
    while started.elapsed() < quiet {
        fabrics[0].wait(fabrics[0].ticket(), Deadline::after(quiet));
    }
    let used = cpu::thread_time() - before;
    assert!(used < quiet / 5, "{used:?} of processor time in {quiet:?} of waiting");
}

pub fn nothing_is_lost_between_ticket_and_wait(setup: Setup) {
    let fabrics = setup.mesh_with(2, |config| config.spin = Duration::ZERO);
    let ways = [route(&fabrics[0], &fabrics[1], 1, 0, 8), route(&fabrics[1], &fabrics[0], 0, 0, 8)];
    // ping-pong: one lost wake-up, and both sides sleep until the deadline
    let play = |me: usize| {
        for round in 1..=2000 {
            if me == 0 {
                ways[0].write(8, round, round).unwrap();
            }
            let heard = &ways[1 - me];
            await_arrival(&fabrics[me], heard.slot, round);
            if me == 1 {
                ways[1].write(8, round, round).unwrap();
            }
            completions(&fabrics[me], 1);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| play(1));
        play(0);
    });
}

pub fn three_make_a_mesh(setup: Setup) {
    let fabrics = setup.mesh(3);
    let mut ways = Vec::new();
    for from in 0..3u32 {
        for to in (0..3u32).filter(|to| *to != from) {
            let (source, target) = (&fabrics[from as usize], &fabrics[to as usize]);
            let way = route(source, target, to, (from as usize + to as usize) % 4, 70_000);
            fill(&way.source, u64::from(from * 3 + to));
            way.write(70_000, 1, 0).unwrap();
            ways.push((from, to, way));
        }
    }
    for (from, to, way) in &ways {
        await_arrival(&fabrics[*to as usize], way.slot, 1);
        let seed = u64::from(from * 3 + to);
        assert_eq!(mismatch(&way.target, 0, 70_000, seed), None, "{from} to {to}");
    }
    fabrics.iter().for_each(|fabric| drop(completions(fabric, 2)));
    close(&fabrics);
    assert!(fabrics.iter().all(|fabric| fabric.fault().is_none()));
}

pub fn statistics_count(setup: Setup) {
    let fabrics = setup.mesh(2);
    let way = route(&fabrics[0], &fabrics[1], 1, 0, 1000);
    way.write(600, 1, 0).unwrap();
    way.write(400, 2, 0).unwrap();
    way.channel.memcpy(way.memcpy(Direction::Read, 50, 0, 0)).unwrap();
    completions(&fabrics[0], 3);
    way.channel.send_message(b"hello", soon()).unwrap();
    fabrics[1].receive_message(soon()).unwrap();
    let sender = fabrics[0].stats();
    assert_eq!((sender.writes, sender.bytes_written), (2, 1000));
    assert_eq!((sender.reads, sender.bytes_read), (1, 50));
    assert_eq!((sender.messages, fabrics[1].stats().messages), (1, 1));
    assert_eq!((sender.connections_refused, fabrics[1].stats().writes), (0, 0));
}

pub fn channels_are_checked(setup: Setup) {
    let fabrics = setup.mesh(3);
    let unknown = fabrics[0].channel(Rank(3), 0).unwrap_err();
    assert_eq!(unknown, ChannelError::NotConnected { rank: Rank(3) });
    let too_many = fabrics[0].channel(Rank(1), 4).unwrap_err();
    assert_eq!(too_many, ChannelError::NoSuchQueuePair { queue_pair: 4, count: 4 });
    let way = route(&fabrics[0], &fabrics[1], 1, 0, 8);
    let elsewhere = fabrics[0].channel(Rank(2), 0).unwrap();
    let refused = elsewhere.memcpy(way.memcpy(Direction::Write, 8, 0, 0)).unwrap_err();
    assert_eq!(refused, PostError::WrongPeer { channel: Rank(2), region: Rank(1) });
}

pub fn a_slot_is_raised_at_once_where_memory_is_shared(setup: Setup) {
    let fabrics = setup.mesh(2);
    let slot = fabrics[1].alloc_arrival().unwrap();
    let channel = fabrics[0].channel(Rank(1), 0).unwrap();
    let shares = fabrics[0].shares_memory(Rank(1));
    let arrived = |epoch| if shares { epoch } else { 0 };
    assert_eq!(channel.raise(Signal { slot, epoch: 3 }), shares);
    assert_eq!(fabrics[1].arrived(slot), arrived(3));
    assert!(!channel.raise(Signal { slot: ArrivalSlot(u32::MAX >> 1), epoch: 1 }), "no such slot");
    close(&fabrics);
    assert_eq!(channel.raise(Signal { slot, epoch: 4 }), shares);
    assert_eq!(fabrics[1].arrived(slot), arrived(4), "behind the goodbye, too");
}

pub fn arrival_slots_run_out(setup: Setup) {
    let fabrics = setup.mesh_with(2, |config| config.arrival_slots = 3);
    let slots: Vec<_> = (0..3).map(|_| fabrics[0].alloc_arrival().unwrap()).collect();
    assert!(slots.iter().all(|slot| fabrics[0].arrived(*slot) == 0));
    assert_eq!(fabrics[0].alloc_arrival().unwrap_err(), ArrivalError::NoSlot { slots: 3 });
}

pub fn impossible_regions_are_errors(setup: Setup) {
    let fabrics = setup.mesh(2);
    for bytes in [u64::MAX, 1 << 62, 1 << 50] {
        fabrics[0].alloc_region(bytes).unwrap_err();
    }
    // and the fabric goes on
    let way = route(&fabrics[0], &fabrics[1], 1, 0, 8);
    way.write(8, 1, 0).unwrap();
    await_arrival(&fabrics[1], way.slot, 1);
    wait_until(&fabrics[0], "the completion", || fabrics[0].poll(&mut Vec::new()) > 0);
}
