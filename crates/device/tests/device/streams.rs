//! The order of streams, and waiting for them.

use std::time::{Duration, Instant};

use tensorwire_base::Deadline;
use tensorwire_device::{DeviceError, Event, Until};

use crate::support::*;
use crate::words::word;

#[test]
fn a_stream_does_one_thing_after_the_other() {
    on_each_with(&[("FAKE_CUDA_FAULTS", "delay=300")], |machine| {
        let [a, b] = [(); 2].map(|()| whole(&machine.memory(4096).slab()));
        let stream = machine.stream();
        for round in 0..20 {
            stream.set(&writing(&a), 0..4096, round).unwrap();
            stream.copy_within_device(&reading(&a), 0..4096, &writing(&b), 0).unwrap();
            stream.set(&writing(&a), 0..4096, 255).unwrap();
            stream.synchronize(soon()).unwrap();
            assert!(stream.query().unwrap());
            assert!(download(machine, &b).iter().all(|&byte| byte == round));
        }
    });
}

#[test]
fn events_order_streams() {
    on_each_with(&[("FAKE_CUDA_FAULTS", "delay=300")], |machine| {
        let buffer = whole(&machine.memory(4096).slab());
        let streams = [machine.stream(), machine.device.urgent_stream().unwrap()];
        let events = [machine.event(), machine.event()];
        assert!(events[0].has_passed().unwrap(), "it was never recorded");
        for round in 0..40u8 {
            let (own, other) = (usize::from(round % 2), usize::from((round + 1) % 2));
            streams[own].wait_event(&events[other]).unwrap();
            streams[own].set(&writing(&buffer), 0..4096, round).unwrap();
            events[own].record(&streams[own]).unwrap();
        }
        for event in &events {
            event.synchronize(soon()).unwrap();
            assert!(event.has_passed().unwrap());
        }
        assert!(download(machine, &buffer).iter().all(|&byte| byte == 39));
    });
}

#[test]
fn a_wait_for_what_does_not_end_ends_at_its_deadline() {
    on_each(|machine| {
        let (gate, _loan) = word(machine);
        let (stream, event) = (machine.stream(), machine.event());
        stream.wait_value32(&gate, Until::Equal(1)).unwrap();
        event.record(&stream).unwrap();
        assert!(!stream.query().unwrap() && !event.has_passed().unwrap());
        let (start, near) = (Instant::now(), Duration::from_millis(50));
        let errors = [
            stream.synchronize(Deadline::after(near)).unwrap_err(),
            event.synchronize(Deadline::after(near)).unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, DeviceError::TimedOut { waited_ms: 49.., .. }), "{error}");
        }
        assert!(start.elapsed() < Duration::from_secs(10));
        assert!(gate.store(1));
        event.synchronize(soon()).unwrap();
        stream.synchronize(soon()).unwrap();
    });
}

#[test]
fn a_stream_that_is_dropped_does_what_it_was_told() {
    on_each(|machine| {
        let buffer = whole(&machine.memory(1000).slab());
        let (gate, loan) = word(machine);
        let (stream, event) = (machine.stream(), machine.event());
        stream.set(&writing(&buffer), 0..1000, 1).unwrap();
        stream.wait_value32(&gate, Until::Equal(1)).unwrap();
        stream.set(&writing(&buffer), 0..1000, 2).unwrap();
        event.record(&stream).unwrap();
        drop(stream);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!event.has_passed().unwrap());
        gate.store(1);
        event.synchronize(soon()).unwrap();
        assert_eq!(download(machine, &buffer), [2; 1000]);
        drop((gate, loan));
    });
}

#[test]
fn memory_is_not_given_back_while_a_stream_may_use_it() {
    on_each(|machine| {
        let memory = machine.memory(1000);
        let buffer = whole(&memory.slab());
        let host = machine.pinned(1000);
        let (gate, _loan) = word(machine);
        let stream = machine.stream();
        stream.wait_value32(&gate, Until::Equal(1)).unwrap();
        stream.copy_to_host(&reading(&buffer), 0..1000, &writing(&host), 0).unwrap();
        drop(buffer);
        let opener = gate.clone();
        let opening = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            opener.store(1)
        });
        // both wait for the stream
        drop((memory, host));
        assert!(gate.load() == Some(1) && stream.query().unwrap());
        assert!(opening.join().unwrap());
    });
}

#[test]
fn memory_goes_although_another_stream_is_never_idle() {
    on_each(|machine| {
        let (gate, _loan) = word(machine);
        let busy = machine.stream();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // there is always one wait more than was answered
                let mut round = 1;
                busy.wait_value32(&gate, Until::AtLeast(round)).unwrap();
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    round += 1;
                    busy.wait_value32(&gate, Until::AtLeast(round)).unwrap();
                    gate.store(round - 1);
                    std::thread::sleep(Duration::from_millis(1));
                }
                gate.store(round);
            });
            std::thread::sleep(Duration::from_millis(5));
            let free = || machine.device.memory().unwrap().free;
            let (start, before) = (Instant::now(), free());
            for _ in 0..10 {
                drop(machine.memory(1000));
            }
            let (took, after) = (start.elapsed(), free());
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            // what is waited for in vain, for ten seconds, is kept for good; others may use memory of a real GPU
            let is_given_back = after == before || !machine.is_fake();
            assert!(is_given_back, "{} bytes are kept", before - after);
            assert!(machine.is_fake() || took < Duration::from_secs(8), "{took:?}");
        });
        busy.synchronize(soon()).unwrap();
    });
}

#[test]
fn threads_use_one_gpu_at_once() {
    on_each(|machine| {
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                scope.spawn(move || {
                    let (stream, event) = (machine.stream(), machine.event());
                    let buffer = whole(&machine.memory(1000).slab());
                    for round in 0..20 {
                        stream.set(&writing(&buffer), 0..1000, thread * 20 + round).unwrap();
                        event.record(&stream).unwrap();
                        event.synchronize(soon()).unwrap();
                    }
                    assert_eq!(download(machine, &buffer), [thread * 20 + 19; 1000]);
                });
            }
        });
    });
}

/// One round of two streams that hand memory to each other, and a third that copies it out, as the seed delays them.
fn hand_over(machine: &Machine, rounds: u8) {
    let [a, b] = [(); 2].map(|()| whole(&machine.memory(64).slab()));
    let streams = [machine.stream(), machine.stream()];
    let host = machine.pinned(64 * usize::from(rounds));
    let events: Vec<Event> = (0..2 * rounds).map(|_| machine.event()).collect();
    for round in 0..rounds {
        let (filled, copied) =
            (&events[usize::from(2 * round)], &events[usize::from(2 * round) + 1]);
        // the first fills what the second has copied out before
        if round > 0 {
            streams[0].wait_event(&events[usize::from(2 * round) - 1]).unwrap();
        }
        streams[0].set(&writing(&a), 0..64, round).unwrap();
        streams[0].copy_within_device(&reading(&a), 0..64, &writing(&b), 0).unwrap();
        filled.record(&streams[0]).unwrap();
        streams[1].wait_event(filled).unwrap();
        let at = 64 * usize::from(round);
        streams[1].copy_to_host(&reading(&b), 0..64, &writing(&host), at).unwrap();
        copied.record(&streams[1]).unwrap();
    }
    streams[1].synchronize(soon()).unwrap();
    for (round, bytes) in host.read().unwrap().chunks(64).enumerate() {
        assert!(bytes.iter().all(|&byte| usize::from(byte) == round), "round {round}: {bytes:?}");
    }
}

#[test]
fn a_thousand_seeds_of_delayed_streams_tear_nothing() {
    on_fake(&[("FAKE_CUDA_FAULTS", "delay=40")], || {
        let machine = Machine::open();
        // SAFETY: it is of this type.
        let seed: extern "C" fn(u64) -> u32 = unsafe { of_fake("fakeCudaSeed") };
        for number in 0..1000 {
            assert_eq!(seed(number), 0);
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                hand_over(&machine, 3);
            }));
            assert!(done.is_ok(), "seed {number}");
        }
    });
}

#[test]
fn the_order_of_streams_matters() {
    // without what orders them, delayed streams do tear: the test above can fail
    on_fake(&[("FAKE_CUDA_FAULTS", "delay=40")], || {
        let machine = Machine::open();
        let [a, b] = [(); 2].map(|()| whole(&machine.memory(64).slab()));
        let torn = (0..200u8).filter(|&round| {
            let streams = [machine.stream(), machine.stream()];
            streams[0].set(&writing(&a), 0..64, round).unwrap();
            streams[1].copy_within_device(&reading(&a), 0..64, &writing(&b), 0).unwrap();
            streams.iter().for_each(|stream| stream.synchronize(soon()).unwrap());
            download(&machine, &b)[0] != round
        });
        assert!(torn.count() > 10);
    });
}
