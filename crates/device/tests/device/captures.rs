//! Graphs of what a stream was told.

use std::sync::Arc;

use tensorwire_device::{DeviceError, Stream, Until, Word};

use crate::support::*;
use crate::words::word;

#[test]
fn a_graph_is_told_again_and_again() {
    on_each(|machine| {
        let [a, b] = [(); 2].map(|()| whole(&machine.memory(100).slab()));
        let host = machine.pinned(100);
        let stream = machine.stream();
        stream.begin_capture().unwrap();
        stream.copy_to_device(&reading(&host), 0..100, &writing(&a), 0).unwrap();
        stream.copy_within_device(&reading(&a), 0..50, &writing(&b), 50).unwrap();
        stream.set(&writing(&b), 0..50, 1).unwrap();
        let graph = stream.end_capture().unwrap();
        upload(machine, &[0; 100], &b);
        assert_eq!(download(machine, &b), [0; 100], "nothing was done yet");
        for round in 2..10 {
            host.write().unwrap().fill(round);
            graph.launch(&stream).unwrap();
            stream.synchronize(soon()).unwrap();
            assert_eq!(download(machine, &b), [[1; 50], [round; 50]].concat());
        }
    });
}

#[test]
fn a_graph_keeps_its_memory() {
    on_each(|machine| {
        let stream = machine.stream();
        let memory = machine.memory(100);
        let used = machine.device.memory().unwrap();
        stream.begin_capture().unwrap();
        stream.set(&writing(&whole(&memory.slab())), 0..100, 1).unwrap();
        let graph = stream.end_capture().unwrap();
        drop(memory);
        graph.launch(&stream).unwrap();
        stream.synchronize(soon()).unwrap();
        drop(graph);
        assert!(machine.device.memory().unwrap().free > used.free);
    });
}

#[test]
fn streams_that_are_led_there_and_back_are_part_of_it() {
    on_each_with(&[("FAKE_CUDA_FAULTS", "delay=100")], |machine| {
        let [a, b] = [(); 2].map(|()| whole(&machine.memory(64).slab()));
        let streams = [machine.stream(), machine.stream()];
        let events = [machine.event(), machine.event()];
        streams[0].begin_capture().unwrap();
        streams[0].set(&writing(&a), 0..64, 3).unwrap();
        events[0].record(&streams[0]).unwrap();
        streams[1].wait_event(&events[0]).unwrap();
        streams[1].copy_within_device(&reading(&a), 0..64, &writing(&b), 0).unwrap();
        events[1].record(&streams[1]).unwrap();
        // a change of memory in between asks no captured stream for its end
        drop(machine.memory(100));
        streams[0].wait_event(&events[1]).unwrap();
        streams[0].set(&writing(&a), 0..64, 4).unwrap();
        let graph = streams[0].end_capture().unwrap();
        for _ in 0..5 {
            graph.launch(&streams[0]).unwrap();
            streams[0].synchronize(soon()).unwrap();
            assert_eq!((download(machine, &a)[0], download(machine, &b)[0]), (4, 3));
        }
        // the other works by itself again
        streams[1].set(&writing(&b), 0..64, 9).unwrap();
        streams[1].synchronize(soon()).unwrap();
        assert_eq!(download(machine, &b)[0], 9);
    });
}

#[test]
fn words_in_a_graph_are_waited_for_in_each_launch() {
    on_each(|machine| {
        let host = machine.pinned(64);
        let loan = Arc::new(writing(&host));
        let [gate, done] = [0, 4].map(|at| Word::new(&loan, at));
        let stream = machine.stream();
        stream.begin_capture().unwrap();
        stream.wait_value32(&gate, Until::Equal(1)).unwrap();
        // else the next launch passes on what this one found
        stream.write_value32(&gate, 0).unwrap();
        stream.write_value32(&done, 1).unwrap();
        let graph = stream.end_capture().unwrap();
        for _ in 0..10 {
            done.store(0);
            graph.launch(&stream).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(2));
            assert_eq!(done.load(), Some(0));
            gate.store(1);
            stream.synchronize(soon()).unwrap();
            assert_eq!((gate.load(), done.load()), (Some(0), Some(1)));
        }
    });
}

/// Something is refused, by the driver without a GPU under this name of CUDA's; what another driver calls it is told.
fn refused<T: std::fmt::Debug>(machine: &Machine, outcome: Result<T, DeviceError>, name: &str) {
    match outcome.unwrap_err() {
        DeviceError::Call { call, failure, .. } if machine.is_fake() => {
            assert_eq!(failure.name, name, "{call}");
        }
        DeviceError::Call { call, failure, .. } => {
            eprintln!("{call}: {} where {name} was expected", failure.name);
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_stream_that_does_not_come_back_cannot_be_captured() {
    on_each(|machine| {
        let buffer = whole(&machine.memory(64).slab());
        let [stream, other] = [machine.stream(), machine.stream()];
        let event = machine.event();
        refused(machine, stream.end_capture(), "CUDA_ERROR_ILLEGAL_STATE");
        stream.begin_capture().unwrap();
        refused(machine, stream.begin_capture(), "CUDA_ERROR_ILLEGAL_STATE");
        event.record(&stream).unwrap();
        other.wait_event(&event).unwrap();
        other.set(&writing(&buffer), 0..64, 1).unwrap();
        refused(machine, stream.end_capture(), "CUDA_ERROR_STREAM_CAPTURE_UNJOINED");
        work_as_before(machine, [&stream, &other]);
    });
}

#[test]
fn nobody_asks_what_is_captured_for_its_end() {
    on_each(|machine| {
        let [stream, other] = [machine.stream(), machine.stream()];
        let event = machine.event();
        stream.begin_capture().unwrap();
        event.record(&stream).unwrap();
        refused(machine, event.has_passed(), "CUDA_ERROR_CAPTURED_EVENT");
        refused(machine, stream.query(), "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED");
        refused(machine, stream.end_capture(), "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED");
        work_as_before(machine, [&stream, &other]);
    });
}

#[test]
fn work_from_outside_is_no_part_of_a_capture() {
    on_each(|machine| {
        let [stream, other] = [machine.stream(), machine.stream()];
        let outside = machine.event();
        let (gate, _loan) = word(machine);
        other.wait_value32(&gate, Until::Equal(1)).unwrap();
        outside.record(&other).unwrap();
        stream.begin_capture().unwrap();
        let waited = stream.wait_event(&outside);
        refused(machine, waited, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION");
        assert!(stream.end_capture().is_err());
        gate.store(1);
        work_as_before(machine, [&stream, &other]);
    });
}

fn work_as_before(machine: &Machine, streams: [&Stream; 2]) {
    let buffer = whole(&machine.memory(64).slab());
    for (byte, stream) in (7..).zip(streams) {
        stream.set(&writing(&buffer), 0..64, byte).unwrap();
        stream.synchronize(soon()).unwrap();
        assert_eq!(download(machine, &buffer), [byte; 64]);
    }
}
