//! What is opened is closed: descriptors, mappings and threads of fabrics that ended, well or not. One
//! test alone in its process, since it counts what the whole process has.

// test code: what does not hold ends the test
#![allow(clippy::unwrap_used)]

use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::{Backend, Fabric, SimKnobs, SimNetwork};
use tensorwire_testkit::mesh::{await_arrival, close, completions, mesh, route, soon};

type Held = (usize, usize, usize);

/// Open descriptors, mappings of fabrics, threads.
fn held() -> Held {
    let count = |at| std::fs::read_dir(at).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours = maps.lines().filter(|line| line.contains("memfd:tensorwire")).count();
    (count("/proc/self/fd"), ours, count("/proc/self/task"))
}

fn use_and_close(make: fn() -> Backend) {
    let fabrics = mesh(make, 3);
    transfer(&fabrics);
    close(&fabrics);
}

fn use_and_drop(make: fn() -> Backend) {
    let fabrics = mesh(make, 3);
    transfer(&fabrics);
}

fn transfer(fabrics: &[Fabric]) {
    let way = route(&fabrics[0], &fabrics[1], 1, 0, 100_000);
    way.write(100_000, 1, 0).unwrap();
    await_arrival(&fabrics[1], way.slot, 1);
    completions(&fabrics[0], 1);
    fabrics[1].channel(Rank(2), 0).unwrap().send_message(b"x", soon()).unwrap();
}

#[test]
fn nothing_is_left_behind() {
    let backends: [fn() -> Backend; 3] = [
        || Backend::Shm,
        || Backend::Tcp,
        || Backend::Sim(SimNetwork::new(1, SimKnobs::default())),
    ];
    let shm_before = std::fs::read_dir("/dev/shm").unwrap().count();
    let before = held();
    for make in backends {
        for _ in 0..3 {
            use_and_close(make);
            use_and_drop(make);
        }
        assert_eq!(settled(before), before, "(descriptors, mappings, threads)");
    }
    assert_eq!(std::fs::read_dir("/dev/shm").unwrap().count(), shm_before);
}

/// Waits until only `wanted` is held: threads that greeted a caller end on their own.
fn settled(wanted: Held) -> Held {
    let deadline: Deadline = soon();
    loop {
        let now = held();
        if now == wanted || deadline.passed() {
            return now;
        }
        std::thread::yield_now();
    }
}
