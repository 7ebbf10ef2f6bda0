//! What goes wrong with a GPU, as the driver without one imitates it.

use std::time::{Duration, Instant};

use tensorwire_base::Deadline;
use tensorwire_device::{Device, DeviceError, Until};
use tensorwire_memory::Buffer;

use crate::support::*;
use crate::words::word;

#[test]
fn an_allocation_that_finds_no_memory_is_an_error_of_its_own() {
    on_fake(&[("FAKE_CUDA_FAULTS", "oom=2")], || {
        let machine = Machine::open();
        let first = machine.memory(100);
        let error = machine.device.alloc(100).unwrap_err();
        assert!(matches!(error, DeviceError::OutOfMemory { asked: 100, .. }), "{error}");
        assert!(!error.is_lost());
        let third = machine.memory(100);
        drop((first, third));
        drop(machine);
        assert_eq!(alive(), 0, "what failed left nothing");
    });
}

#[test]
fn pinned_memory_may_be_out_too() {
    on_fake(&[("FAKE_CUDA_FAULTS", "oom=1")], || {
        let machine = Machine::open();
        let error = machine.device.pinned(100).unwrap_err().to_string();
        assert!(error.contains("cuMemHostAlloc") && error.contains("out of memory"), "{error}");
    });
}

#[test]
fn a_launch_that_fails_loses_the_gpu() {
    on_fake(&[("FAKE_CUDA_FAULTS", "launch=3")], || {
        let machine = Machine::open();
        let Some(mix) = machine.kernel("mix") else { return };
        let buffer = whole(&machine.memory(8).slab());
        let stream = machine.stream();
        let words = arguments(&[buffer.address() as u64, 1]);
        for _ in 0..5 {
            // SAFETY: as the kernel takes it; the memory lives until the stream is idle.
            let _ = unsafe { stream.launch(&mix, [1; 3], [1; 3], 0, &words) };
        }
        let error = stream.synchronize(soon()).unwrap_err();
        assert!(error.is_lost() && error.to_string().contains("CUDA_ERROR_LAUNCH_FAILED"));
    });
}

/// What it was told may wait for the lost one.
#[test]
fn a_gpu_beside_a_lost_one_is_not_waited_for_as_long_as_it_may_take() {
    const LATE: &str = "it was waited for";
    let environment = [("FAKE_CUDA_DEVICES", "2"), ("FAKE_CUDA_FAULTS", "launch=1")];
    let beside_a_lost_one = || {
        let driver = open_driver().unwrap();
        let gpus = Device::open_together(&driver, &[0, 1]).unwrap();
        let [waits, fails] =
            [0, 1].map(|at: usize| Machine { driver: driver.clone(), device: gpus[at].clone() });
        let Some(mix) = fails.kernel("mix") else { return };
        let (gate, _loan) = word(&waits);
        let (memory, stream) = (waits.memory(100), waits.stream());
        stream.wait_value32(&gate, Until::Equal(1)).unwrap();
        let buffer = whole(&fails.memory(8).slab());
        let words = arguments(&[buffer.address() as u64, 1]);
        let failing = fails.stream();
        // SAFETY: as the kernel takes it; the memory lives until the stream is idle.
        let _ = unsafe { failing.launch(&mix, [1; 3], [1; 3], 0, &words) };
        assert!(failing.synchronize(soon()).unwrap_err().is_lost());
        let start = Instant::now();
        drop(memory);
        // a second; without the lost one ten
        if start.elapsed() > Duration::from_secs(8) {
            eprintln!("{LATE} for {:?}", start.elapsed());
        }
    };
    // where others keep the cores busy it may take longer, but not each time
    let is_soon = (0..3).any(|_| {
        let said = on_fake_said(&environment, beside_a_lost_one);
        said.is_none_or(|said| !said.contains(LATE))
    });
    assert!(is_soon);
}

#[test]
fn a_gpu_that_falls_off_ends_every_call_and_every_wait() {
    on_fake(&[("FAKE_CUDA_FAULTS", "lost=60")], || {
        let machine = Machine::open();
        let (gate, _loan) = word(&machine);
        let (stream, event) = (machine.stream(), machine.event());
        let memory = machine.memory(100);
        stream.wait_value32(&gate, Until::Equal(1)).unwrap();
        event.record(&stream).unwrap();
        // it polls until the GPU is gone
        let error = event.synchronize(soon()).unwrap_err();
        let start = Instant::now();
        assert!(error.is_lost(), "{error}");
        assert!(error.to_string().contains("go on from the last checkpoint"), "{error}");
        assert!(stream.query().unwrap_err().is_lost());
        assert!(machine.device.alloc(1).unwrap_err().is_lost());
        assert!(Device::open(&machine.driver, 0).unwrap_err().is_lost());
        // nothing that it may still use is given back, and nobody waits for it
        drop((memory, stream, event, gate, machine));
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    });
}

#[test]
fn a_wait_that_never_ends_costs_its_deadline_and_no_more() {
    on_fake(&[("FAKE_CUDA_FAULTS", "hang=2")], || {
        let machine = Machine::open();
        let (gate, _loan) = word(&machine);
        let stream = machine.stream();
        gate.store(1);
        stream.wait_value32(&gate, Until::Equal(1)).unwrap();
        stream.synchronize(soon()).unwrap();
        stream.wait_value32(&gate, Until::Equal(1)).unwrap();
        let error = stream.synchronize(Deadline::after(Duration::from_millis(50))).unwrap_err();
        assert!(matches!(error, DeviceError::TimedOut { .. }), "{error}");
        // the process ends all the same; what the stream may use is kept for good
        std::mem::forget((machine, stream, gate, _loan));
    });
}

#[test]
fn remote_writes_are_seen_behind_a_flush() {
    on_fake(&[("FAKE_CUDA_FAULTS", "stale")], || {
        let machine = Machine::open();
        let buffer = whole(&machine.memory(64).slab());
        let (stream, host) = (machine.stream(), machine.pinned(64));
        let (gate, _loan) = word(&machine);
        for (is_flushed, seen) in [(false, [1; 64].to_vec()), (true, [[2; 32], [1; 32]].concat())] {
            upload(&machine, &[1; 64], &buffer);
            gate.store(0);
            // told before the NIC writes
            stream.wait_value32(&gate, Until::Equal(1)).unwrap();
            stream.copy_to_host(&reading(&buffer), 0..64, &writing(&host), 0).unwrap();
            write_remotely(&buffer, &[2; 32]);
            if is_flushed {
                machine.device.flush_remote_writes().unwrap();
            }
            gate.store(1);
            stream.synchronize(soon()).unwrap();
            assert_eq!(host.read().unwrap().to_vec(), seen, "flushed: {is_flushed}");
        }
        write_remotely(&buffer, &[3; 64]);
        assert_eq!(download(&machine, &buffer), [3; 64], "told behind it");
    });
}

#[test]
fn remote_writes_are_seen_at_once_where_the_gpu_orders_them() {
    on_each(|machine| {
        if machine.device.facts().flush {
            machine.device.flush_remote_writes().unwrap();
        }
        if machine.is_fake() {
            let buffer = whole(&machine.memory(64).slab());
            write_remotely(&buffer, &[2; 64]);
            assert_eq!(download(machine, &buffer), [2; 64]);
        }
    });
}

#[test]
fn a_remote_write_is_of_the_memory_that_it_was_made_to() {
    on_fake(&[("FAKE_CUDA_FAULTS", "stale")], || {
        let machine = Machine::open();
        let memory = machine.memory(64);
        let address = memory.address();
        write_remotely(&whole(&memory.slab()), &[7; 64]);
        drop(memory);
        // its addresses are given away again, and no stream was told anything meanwhile
        let memory = machine.memory(64);
        assert_eq!(memory.address(), address);
        let mut found = [1; 64];
        type Read = unsafe extern "C" fn(u64, *mut u8, usize) -> u32;
        // SAFETY: it is of this type, and there is so much room.
        let status =
            unsafe { of_fake::<Read>("fakeCudaRemoteRead")(address, found.as_mut_ptr(), 64) };
        assert_eq!((status, found), (0, [0; 64]));
    });
}

/// As a NIC would.
fn write_remotely(to: &Buffer, bytes: &[u8]) {
    type Write = unsafe extern "C" fn(u64, *const u8, usize) -> u32;
    // SAFETY: it is of this type, and so many bytes are there.
    let status = unsafe {
        of_fake::<Write>("fakeCudaRemoteWrite")(to.address() as u64, bytes.as_ptr(), bytes.len())
    };
    assert_eq!(status, 0);
}

#[test]
fn memory_that_is_gone_is_not_worked_on() {
    on_fake(&[], || {
        let machine = Machine::open();
        let stream = machine.stream();
        let memory = machine.memory(100);
        let address = memory.address();
        drop(memory);
        // SAFETY: none: that the driver finds it out is the test.
        let error = unsafe { stream.set_at(address, 100, 1) }.unwrap_err();
        assert!(error.to_string().contains("CUDA_ERROR_INVALID_VALUE"), "{error}");
    });
}

#[test]
fn memory_that_goes_while_a_stream_is_to_work_on_it_is_found_out() {
    on_fake(&[], || {
        let machine = Machine::open();
        let (gate, _loan) = word(&machine);
        let stream = machine.stream();
        let memory = machine.memory(100);
        stream.wait_value32(&gate, Until::Equal(1)).unwrap();
        // SAFETY: none, as above.
        unsafe { stream.set_at(memory.address(), 100, 1) }.unwrap();
        // past what guards it here
        // SAFETY: it is of this type, and the memory is mapped and used by nobody else.
        let unmap: unsafe extern "C" fn(u64, usize) -> u32 = unsafe { of_fake("cuMemUnmap") };
        // SAFETY: as above.
        assert_eq!(unsafe { unmap(memory.address(), 2 << 20) }, 0);
        gate.store(1);
        let error = stream.synchronize(soon()).unwrap_err();
        assert!(error.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
    });
}

#[test]
fn addresses_of_the_other_side_are_found_out() {
    on_fake(&[], || {
        let machine = Machine::open();
        let stream = machine.stream();
        let (device, pinned) = (whole(&machine.memory(64).slab()), machine.pinned(64));
        let plain = [0u64; 8];
        // SAFETY: none: that the driver finds it out is the test.
        let set = |address| unsafe { stream.set_at(address, 8, 1) };
        set(pinned.address() as u64).unwrap();
        assert!(set(plain.as_ptr().addr() as u64).is_err());
        stream.synchronize(soon()).unwrap();
        let Some(mix) = machine.kernel("mix") else { return };
        let launch = |address: u64| {
            // SAFETY: none, as above.
            unsafe { stream.launch(&mix, [1; 3], [1; 3], 0, &arguments(&[address, 1])) }.unwrap();
            stream.synchronize(soon())
        };
        launch(device.address() as u64).unwrap();
        launch(pinned.address() as u64).unwrap();
        let error = launch(plain.as_ptr().addr() as u64).unwrap_err();
        assert!(error.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
    });
}

#[test]
fn the_host_cannot_follow_an_address_of_a_gpu() {
    on_fake(&[("FAKE_CUDA_GUARD", "1")], || {
        let machine = Machine::open();
        let memory = machine.memory(64);
        // SAFETY: asks the kernel to read there for this process, which fails in words.
        let read = {
            let file = std::fs::File::open("/proc/self/mem").unwrap();
            std::os::unix::fs::FileExt::read_at(&file, &mut [0; 8], memory.address())
        };
        // where a process may read its own memory past its protection, the mapping says so
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let start = format!("{:x}-", memory.address());
        let line = maps.lines().find(|line| line.starts_with(&start)).unwrap();
        assert!(line.contains(" ---s ") || read.is_err(), "{line}");
    });
}

#[test]
fn a_machine_that_is_described_wrongly_is_refused() {
    on_fake(&[("FAKE_CUDA_FAULTS", "flood")], || {
        let error = open_driver().unwrap_err();
        assert!(error.to_string().contains("CUDA_ERROR_OPERATING_SYSTEM"), "{error}");
    });
}
