//! Memory of a GPU: what it holds, who else has it, and when it is given back.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::process::{Child, Stdio};

use tensorwire_base::Space;
use tensorwire_device::DeviceError;
use tensorwire_memory::{LoanError, Slab};

use crate::support::*;

const BYTES: usize = 3 << 20;

#[test]
fn what_is_copied_there_comes_back() {
    on_each(|machine| {
        let memory = machine.memory(BYTES as u64);
        assert_eq!(memory.bytes(), BYTES as u64);
        let slab = memory.slab();
        assert_eq!((slab.space(), slab.address() as u64), (Space::Device(0), memory.address()));
        let buffer = whole(&slab);
        assert_eq!(buffer.read().unwrap_err(), LoanError::OnDevice);
        let sent = pattern(BYTES, 1);
        upload(machine, &sent, &buffer);
        assert!(download(machine, &buffer) == sent);
        // a part, by memory that is not pinned
        let host = whole(&Slab::anonymous(4096).unwrap());
        host.write().unwrap().fill(9);
        let stream = machine.stream();
        stream.copy_to_device(&reading(&host), 0..5, &writing(&buffer), 100).unwrap();
        stream.copy_to_host(&reading(&buffer), 98..108, &writing(&host), 4000).unwrap();
        stream.synchronize(soon()).unwrap();
        let expected = [&sent[98..100], &[9; 5], &sent[105..108]].concat();
        assert_eq!(host.read().unwrap()[4000..4010], expected);
    });
}

#[test]
fn memory_that_is_not_pinned_is_free_again_when_a_copy_was_told() {
    on_each_with(&[("FAKE_CUDA_FAULTS", "delay=2000")], |machine| {
        let device = whole(&machine.memory(1000).slab());
        let host = whole(&Slab::anonymous(1000).unwrap());
        let stream = machine.stream();
        for round in 1..20 {
            host.write().unwrap().fill(round);
            stream.copy_to_device(&reading(&host), 0..1000, &writing(&device), 0).unwrap();
            host.write().unwrap().fill(255);
            stream.copy_to_host(&reading(&device), 0..1000, &writing(&host), 0).unwrap();
            assert!(host.read().unwrap().iter().all(|&byte| byte == round));
        }
    });
}

#[test]
fn copies_within_a_gpu_and_fills_do_what_they_say() {
    on_each(|machine| {
        let [a, b] = [(); 2].map(|()| whole(&machine.memory(10_000).slab()));
        upload(machine, &pattern(10_000, 2), &a);
        let stream = machine.stream();
        stream.set(&writing(&b), 0..10_000, 7).unwrap();
        stream.copy_within_device(&reading(&a), 1000..3000, &writing(&b), 5).unwrap();
        stream.set(&writing(&b), 100..101, 1).unwrap();
        // of nothing
        stream.set(&writing(&b), 3..3, 2).unwrap();
        stream.copy_within_device(&reading(&a), 9..9, &writing(&b), 9_999).unwrap();
        stream.synchronize(soon()).unwrap();
        let mut expected = vec![7; 10_000];
        expected[5..2005].copy_from_slice(&pattern(10_000, 2)[1000..3000]);
        expected[100] = 1;
        assert!(download(machine, &b) == expected);
    });
}

#[test]
#[should_panic(expected = "0..11 of 10 bytes")]
fn a_copy_out_of_bounds_is_refused() {
    if !is_child() {
        // the child panics, and says so
        return on_fake_panicking();
    }
    let machine = Machine::open();
    let buffer = whole(&machine.memory(10).slab());
    let host = machine.pinned(11);
    let _ = machine.stream().copy_to_device(&reading(&host), 0..11, &writing(&buffer), 0);
}

fn on_fake_panicking() {
    on_fake(&[], || ());
    panic!("the child refused it: 0..11 of 10 bytes");
}

#[test]
fn memory_is_given_back_with_its_last_holder() {
    on_each(|machine| {
        let free = || machine.device.memory().unwrap().free;
        // what the first call of each kind takes for itself stays
        drop((machine.memory(1), machine.pinned(1)));
        let before = free();
        let memory = machine.memory(64 << 20);
        let slab = memory.slab();
        assert!(before - free() >= 64 << 20);
        drop(memory);
        assert!(before - free() >= 64 << 20, "the slab holds it");
        drop(slab);
        // others may use the GPU, too
        assert!(free() + (8 << 20) > before);
    });
}

#[test]
fn more_than_there_is_is_refused_with_what_there_is() {
    on_each(|machine| {
        let total = machine.device.memory().unwrap().total;
        let error = machine.device.alloc(total * 2).unwrap_err();
        let DeviceError::OutOfMemory { asked, total: said, .. } = error else { panic!("{error}") };
        assert_eq!((asked, said), (total * 2, total));
        assert!(error.to_string().contains("lower the batch size"), "{error}");
        let error = machine.device.alloc(u64::MAX).unwrap_err();
        assert!(matches!(error, DeviceError::OutOfMemory { .. }), "{error}");
        // and the GPU goes on
        assert!(machine.device.alloc(1).is_ok());
    });
}

#[test]
fn no_bytes_are_memory_too() {
    on_each(|machine| {
        let memory = machine.memory(0);
        let buffer = whole(&memory.slab());
        assert_eq!((memory.bytes(), buffer.bytes()), (0, 0));
        machine.stream().set(&writing(&buffer), 0..0, 1).unwrap();
        assert_eq!(machine.pinned(0).bytes(), 0);
        let none = Slab::anonymous(0).unwrap();
        assert_eq!(machine.device.register(&none).unwrap().slab().bytes(), 0);
    });
}

/// A process that maps this one's memory by a descriptor.
struct Other {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Other {
    fn start(fd: BorrowedFd<'_>) -> Other {
        // one that a child inherits
        let inherited = rustix::io::dup(fd).unwrap();
        let mut child = peer(&format!("{} {BYTES}", inherited.as_raw_fd()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Other { child, lines }
    }

    fn wait_for(&mut self, word: &str) {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        assert!(lines.any(|line| line == word), "the other process ended before it said {word}");
    }

    fn tell(&mut self, word: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{word}").unwrap();
    }
}

#[test]
fn another_process_maps_the_same_memory() {
    on_each(|machine| {
        if let Some(role) = role() {
            return be_other(machine, &role);
        }
        let memory = machine.memory(BYTES as u64);
        let buffer = whole(&memory.slab());
        upload(machine, &pattern(BYTES, 3), &buffer);
        let fd = memory.export().unwrap();
        let mut other = Other::start(std::os::fd::AsFd::as_fd(&fd));
        drop(fd);
        other.wait_for("mapped and seen");
        let stream = machine.stream();
        stream.set(&writing(&buffer), 0..BYTES, 5).unwrap();
        stream.synchronize(soon()).unwrap();
        other.tell("look");
        other.wait_for("written");
        let mut expected = vec![5; BYTES];
        expected[1000..2000].fill(6);
        assert!(download(machine, &buffer) == expected);
        // what is mapped there stays when it is gone here
        drop((buffer, memory));
        other.tell("look again");
        assert!(other.child.wait().unwrap().success());
    });
}

/// The other process.
fn be_other(machine: &Machine, role: &str) {
    let (fd, bytes) = role.split_once(' ').unwrap();
    // SAFETY: the process that started this one left it the descriptor.
    let fd = unsafe { BorrowedFd::borrow_raw(fd.parse().unwrap()) };
    let memory = machine.device.import(fd, bytes.parse().unwrap()).unwrap();
    let buffer = whole(&memory.slab());
    assert!(download(machine, &buffer) == pattern(BYTES, 3));
    println!("\nmapped and seen");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    assert!(download(machine, &buffer).iter().all(|&byte| byte == 5));
    let stream = machine.stream();
    stream.set(&writing(&buffer), 1000..2000, 6).unwrap();
    stream.synchronize(soon()).unwrap();
    println!("\nwritten");
    std::io::stdin().read_line(&mut line).unwrap();
    assert_eq!(download(machine, &buffer)[1000], 6);
}

#[test]
fn what_is_said_of_a_descriptor_is_not_believed() {
    on_each(|machine| {
        let memory = machine.memory(100);
        let fd = memory.export().unwrap();
        let error = machine.device.import(&fd, 1 << 30).unwrap_err();
        assert!(matches!(error, DeviceError::Call { .. }), "{error}");
        let file = std::fs::File::open("/dev/null").unwrap();
        let error = machine.device.import(&file, 100).unwrap_err();
        assert!(matches!(error, DeviceError::Call { .. }), "{error}");
        // and the right one is taken, as often as one likes
        let [a, b] = [(); 2].map(|()| machine.device.import(&fd, 100).unwrap());
        assert_ne!(a.address(), b.address());
        upload(machine, &pattern(100, 4), &whole(&memory.slab()));
        assert_eq!(download(machine, &whole(&b.slab())), pattern(100, 4));
    });
}

#[test]
fn a_dma_buf_covers_whole_pages() {
    on_each(|machine| {
        let memory = machine.memory(100_000);
        if !machine.device.facts().dmabuf {
            return tensorwire_testkit::skip::skip_part(&"this GPU has no dma-buf");
        }
        let shown = machine.device.dma_buf(&memory.slab()).unwrap();
        assert_eq!((shown.offset, shown.bytes), (0, 100_000));
    });
}

#[test]
fn memory_of_the_host_is_pinned_once() {
    on_each(|machine| {
        let slab = Slab::anonymous(100_000).unwrap();
        let registration = machine.device.register(&slab).unwrap();
        let error = machine.device.register(&slab).unwrap_err().to_string();
        assert!(error.contains("CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"), "{error}");
        let device = whole(&machine.memory(100_000).slab());
        let host = whole(&slab);
        host.write().unwrap().copy_from_slice(&pattern(100_000, 6));
        let stream = machine.stream();
        stream.copy_to_device(&reading(&host), 0..100_000, &writing(&device), 0).unwrap();
        stream.synchronize(soon()).unwrap();
        assert!(download(machine, &device) == pattern(100_000, 6));
        drop(registration);
        assert!(machine.device.register(&slab).is_ok());
    });
}

#[test]
fn pinned_memory_is_zeroed() {
    on_each_with(&[("FAKE_CUDA_FAULTS", "garbage")], |machine| {
        assert!(machine.pinned(10_000).read().unwrap().iter().all(|&byte| byte == 0));
    });
}

#[test]
fn a_second_gpu_reaches_memory_when_it_is_allowed_to() {
    on_fake(&[("FAKE_CUDA_DEVICES", "2")], || {
        let machine = Machine::open();
        let other = tensorwire_device::Device::open(&machine.driver, 1).unwrap();
        let memory = machine.memory(100);
        let buffer = whole(&memory.slab());
        let stream = other.stream().unwrap();
        let error = stream.set(&writing(&buffer), 0..100, 1).unwrap_err();
        assert!(error.to_string().contains("CUDA_ERROR_INVALID_VALUE"), "{error}");
        memory.allow(&other).unwrap();
        stream.set(&writing(&buffer), 0..100, 1).unwrap();
        stream.synchronize(soon()).unwrap();
        assert_eq!(download(&machine, &buffer), [1; 100]);
    });
}

#[test]
fn gpus_that_were_opened_together_copy_from_each_other() {
    for faults in ["garbage", "nopeer,garbage"] {
        let environment =
            [("FAKE_CUDA_DEVICES", "2"), ("FAKE_CUDA_FAULTS", faults), ("FAKE_CUDA_SEED", "3")];
        on_fake(&environment, || {
            let driver = crate::support::open_driver().unwrap();
            let gpus = tensorwire_device::Device::open_together(&driver, &[0, 1]).unwrap();
            let [from, to] = [0, 1].map(|at: usize| whole(&gpus[at].alloc(100).unwrap().slab()));
            assert_eq!((from.space(), to.space()), (Space::Device(0), Space::Device(1)));
            let [first, second] = [0, 1].map(|at: usize| gpus[at].stream().unwrap());
            first.set(&writing(&from), 0..100, 7).unwrap();
            let event = gpus[0].event().unwrap();
            event.record(&first).unwrap();
            second.wait_event(&event).unwrap();
            second.copy_from_peer(&gpus[0], &reading(&from), 0..100, &writing(&to), 0).unwrap();
            second.synchronize(soon()).unwrap();
            // memory goes only when no stream of either may use it
            drop(from);
            let machine = Machine { driver, device: gpus[1].clone() };
            assert_eq!(download(&machine, &to), [7; 100]);
        });
    }
}

#[test]
fn a_copy_that_waits_for_no_event_of_who_writes_is_refused() {
    // late every other time: the fill is surely not done when it is read in one of many tries
    let environment = [("FAKE_CUDA_DEVICES", "2"), ("FAKE_CUDA_FAULTS", "delay=5000")];
    on_fake(&environment, || {
        let driver = crate::support::open_driver().unwrap();
        let gpus = tensorwire_device::Device::open_together(&driver, &[0, 1]).unwrap();
        let [from, to] = [0, 1].map(|at: usize| whole(&gpus[at].alloc(100).unwrap().slab()));
        let [first, second] = [0, 1].map(|at: usize| gpus[at].stream().unwrap());
        let race = || {
            first.set(&writing(&from), 0..100, 7)?;
            second.copy_from_peer(&gpus[0], &reading(&from), 0..100, &writing(&to), 0)?;
            second.synchronize(soon())
        };
        let refused = (0..100).find_map(|_| race().err()).expect("no race was seen");
        assert!(refused.is_lost(), "{refused}");
    });
}

#[test]
fn everything_is_given_back() {
    on_fake(&[], || {
        let machine = Machine::open();
        {
            let memory = machine.memory(100);
            let imported = machine.device.import(memory.export().unwrap(), 100).unwrap();
            let host = machine.pinned(100);
            let registration = machine.device.register(&Slab::anonymous(64).unwrap()).unwrap();
            let (stream, event) = (machine.stream(), machine.event());
            stream.begin_capture().unwrap();
            stream.set(&writing(&whole(&imported.slab())), 0..9, 1).unwrap();
            let graph = stream.end_capture().unwrap();
            graph.launch(&stream).unwrap();
            event.record(&stream).unwrap();
            assert!(alive() >= 7, "{}", alive());
            drop((registration, host));
        }
        drop(machine);
        assert_eq!(alive(), 0);
    });
}
