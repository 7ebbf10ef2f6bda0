//! Words that streams wait on and write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tensorwire_device::{Module, Until, Word};
use tensorwire_memory::{DeviceWriteLoan, LoanError, Slab};

use crate::support::*;

/// A word in pinned memory, and its loan.
pub(crate) fn word(machine: &Machine) -> (Word, Arc<DeviceWriteLoan>) {
    let loan = Arc::new(writing(&machine.pinned(64)));
    (Word::new(&loan, 8), loan)
}

#[test]
fn a_stream_waits_for_the_host_and_tells_it() {
    on_each(|machine| {
        let host = machine.pinned(64);
        let loan = Arc::new(writing(&host));
        let [gate, done] = [0, 4].map(|at| Word::new(&loan, at));
        assert_eq!(host.read().unwrap_err(), LoanError::BeingWritten, "nobody makes a slice of it");
        let stream = machine.stream();
        for round in 1..10 {
            stream.wait_value32(&gate, Until::Equal(round)).unwrap();
            stream.write_value32(&done, round).unwrap();
            std::thread::sleep(Duration::from_millis(1));
            assert_eq!(done.load(), Some(round - 1));
            assert!(gate.store(round));
            let deadline = soon();
            while done.load() != Some(round) {
                assert!(!deadline.passed(), "the word is never written");
                std::thread::yield_now();
            }
        }
    });
}

#[test]
fn words_that_count_may_wrap_around() {
    on_each(|machine| {
        let (count, _loan) = word(machine);
        let stream = machine.stream();
        count.store(u32::MAX - 1);
        stream.wait_value32(&count, Until::AtLeast(u32::MAX - 1)).unwrap();
        stream.synchronize(soon()).unwrap();
        stream.wait_value32(&count, Until::AtLeast(1)).unwrap();
        assert!(!stream.query().unwrap());
        count.store(u32::MAX);
        std::thread::sleep(Duration::from_millis(5));
        assert!(!stream.query().unwrap());
        count.store(2);
        stream.synchronize(soon()).unwrap();
    });
}

#[test]
fn words_lie_in_memory_of_a_gpu_and_in_registered_memory() {
    on_each(|machine| {
        let streams = [machine.stream(), machine.stream()];
        let buffer = whole(&machine.memory(64).slab());
        upload(machine, &[0; 64], &buffer);
        let of_gpu = Word::new(&Arc::new(writing(&buffer)), 12);
        assert_eq!((of_gpu.load(), of_gpu.store(1)), (None, false));
        let slab = Slab::anonymous(8192).unwrap();
        let registration = machine.device.register(&slab).unwrap();
        let loan = Arc::new(writing(&whole(&slab)));
        let registered = Word::registered(&registration, &loan, 4100);
        assert_eq!(registered.address(), registration.address() + 4100);
        streams[0].wait_value32(&of_gpu, Until::Equal(3)).unwrap();
        streams[0].write_value32(&registered, 4).unwrap();
        assert!(!streams[0].query().unwrap());
        streams[1].write_value32(&of_gpu, 3).unwrap();
        streams[0].synchronize(soon()).unwrap();
        assert_eq!(registered.load(), Some(4));
    });
}

#[test]
fn what_a_peer_wrote_before_the_word_is_there_behind_it() {
    on_each_with(&[("FAKE_CUDA_FAULTS", "delay=100")], |machine| {
        let buffer = whole(&machine.memory(64).slab());
        let host = machine.pinned(64);
        let (arrived, _loan) = word(machine);
        let streams = [machine.stream(), machine.stream()];
        for round in 1..50u8 {
            // the peer
            streams[0].set(&writing(&buffer), 0..64, round).unwrap();
            streams[0].write_value32(&arrived, round.into()).unwrap();
            // the receiver
            streams[1].wait_value32(&arrived, Until::Equal(round.into())).unwrap();
            streams[1].copy_to_host(&reading(&buffer), 0..64, &writing(&host), 0).unwrap();
            streams[1].synchronize(soon()).unwrap();
            assert!(host.read().unwrap().iter().all(|&byte| byte == round));
        }
    });
}

/// As of a real one, which has room for about 1,024 launches.
#[test]
fn a_stream_that_waits_holds_who_tells_it_more_than_it_has_room_for() {
    on_fake(&[("FAKE_CUDA_FAULTS", "queue=16")], || {
        let machine = Machine::open();
        let ((gate, _loan), told) = (word(&machine), AtomicU32::new(0));
        let (stream, buffer) = (machine.stream(), whole(&machine.memory(64).slab()));
        let tell = |count: u32| {
            let loan = writing(&buffer);
            for _ in 0..count {
                stream.set(&loan, 0..64, 1).unwrap();
                told.fetch_add(1, Ordering::Relaxed);
            }
        };
        gate.store(0);
        stream.wait_value32(&gate, Until::Equal(1)).unwrap();
        std::thread::scope(|scope| {
            let telling = scope.spawn(|| tell(40));
            let deadline = soon();
            while told.load(Ordering::Relaxed) < 16 {
                assert!(!deadline.passed(), "it takes less");
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(told.load(Ordering::Relaxed), 16);
            assert!(!telling.is_finished());
            gate.store(1);
        });
        stream.synchronize(soon()).unwrap();
        // however much is in it, a graph is one thing
        gate.store(0);
        stream.begin_capture().unwrap();
        stream.wait_value32(&gate, Until::Equal(1)).unwrap();
        tell(40);
        let graph = stream.end_capture().unwrap();
        graph.launch(&stream).unwrap();
        assert!(!stream.query().unwrap());
        gate.store(1);
        stream.synchronize(soon()).unwrap();
    });
}

/// As of a real one that loads lazily.
#[test]
fn what_is_made_while_a_stream_waits_holds_who_makes_it() {
    on_fake(&[("FAKE_CUDA_FAULTS", "lazy")], || {
        let machine = Machine::open();
        let ((gate, _loan), waiting) = (word(&machine), machine.stream());
        let makes: [fn(&Machine); 2] = [
            |machine| drop(machine.stream()),
            |machine| drop(Module::load(&machine.device, PTX).unwrap()),
        ];
        for make in makes {
            gate.store(0);
            waiting.wait_value32(&gate, Until::Equal(1)).unwrap();
            std::thread::scope(|scope| {
                let making = scope.spawn(|| make(&machine));
                std::thread::sleep(Duration::from_millis(20));
                assert!(!making.is_finished());
                gate.store(1);
            });
        }
    });
}
