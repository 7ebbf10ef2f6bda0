//! What a driver says of itself and of its GPUs, and why there is none.

use std::path::Path;

use tensorwire_device::{Device, DeviceError, Driver, DriverVersion, OpenError, WritesOrdering};

use crate::support::{on_each, on_fake, open_driver};

#[test]
fn a_gpu_says_what_it_is() {
    on_each(|machine| {
        let all = machine.driver.devices().unwrap();
        assert_eq!(all.len(), machine.driver.device_count().unwrap());
        let facts = machine.device.facts();
        assert_eq!(&all[0], facts);
        eprintln!("{facts:#?}");
        assert!(machine.driver.version() >= DriverVersion { major: 12, minor: 0 });
        assert!(facts.uuid.starts_with("GPU-") && facts.uuid.len() == 40, "{}", facts.uuid);
        assert_eq!(facts.pci_bus_id.len(), "0000:3b:00.0".len());
        assert!(!facts.name.is_empty() && facts.memory_bytes > 1 << 28);
        assert!(facts.compute >= (5, 0) && facts.multiprocessors > 0);
        assert_eq!(facts.threads_per_block_max, 1024);
        assert!(facts.shared_bytes_allowed_max >= facts.shared_bytes_max);
        assert!(facts.virtual_memory && facts.unified_addressing);
        let memory = machine.device.memory().unwrap();
        assert!(memory.free <= memory.total && memory.total <= facts.memory_bytes);
        assert!(machine.driver.can_reach(0, 0).unwrap());
        let missing = machine.driver.facts(all.len()).unwrap_err();
        let count = all.len();
        assert_eq!(missing, DeviceError::NoSuchDevice { ordinal: count, count });
    });
}

#[test]
fn a_thread_has_the_context_that_it_had() {
    on_each(|machine| {
        let current = || {
            // SAFETY: room for a pointer is there.
            unsafe {
                let name = std::env::var("DEVICE_TEST_DRIVER").unwrap();
                let name = if name == "real" { "libcuda.so.1".to_owned() } else { name };
                let library = std::mem::ManuallyDrop::new(libloading::Library::new(name).unwrap());
                let get: unsafe extern "C" fn(*mut usize) -> u32 =
                    *library.get(b"cuCtxGetCurrent").unwrap();
                let mut context = 0;
                assert_eq!(get(&mut context), 0);
                context
            }
        };
        machine.device.memory().unwrap();
        let own = current();
        assert_ne!(own, 0, "who had none keeps the device's");
        if machine.driver.device_count().unwrap() > 1 {
            let other = Device::open(&machine.driver, 1).unwrap();
            other.memory().unwrap();
            assert_eq!(current(), own);
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(current(), 0);
                machine.device.memory().unwrap();
                assert_eq!(current(), own);
            });
        });
    });
}

#[test]
fn another_context_comes_back_after_a_call() {
    on_fake(&[("FAKE_CUDA_DEVICES", "2")], || {
        let driver = open_driver().unwrap();
        let [first, second] = [0, 1].map(|ordinal| Device::open(&driver, ordinal).unwrap());
        let used = |device: &Device| {
            let memory = device.memory().unwrap();
            memory.total - memory.free
        };
        let _memory = second.alloc(1).unwrap();
        assert_eq!((used(&first), used(&second)), (0, 2 << 20));
        assert_eq!(used(&first), 0, "the call went to the right one");
        assert!(driver.can_reach(0, 1).unwrap());
    });
}

#[test]
fn a_machine_without_a_driver_says_what_to_install() {
    let missing = Driver::open(Some(Path::new("/nonexistent/libcuda.so.1"))).unwrap_err();
    assert!(missing.is_absence());
    let text = missing.to_string();
    assert!(
        text.contains("/nonexistent/libcuda.so.1") && text.contains("install a driver"),
        "{text}"
    );
    // some other library
    let other = Driver::open(Some(Path::new("libm.so.6"))).unwrap_err();
    assert!(matches!(other, OpenError::Function { function: "cuInit", .. }), "{other}");
    assert!(!other.is_absence());
}

#[test]
fn a_driver_without_gpus_is_none() {
    on_fake(&[("FAKE_CUDA_DEVICES", "0")], || {
        let error = open_driver().unwrap_err();
        assert!(error.is_absence(), "{error}");
        assert!(error.to_string().contains("CUDA_ERROR_NO_DEVICE"), "{error}");
        assert!(error.to_string().contains("--gpus all"), "{error}");
    });
}

#[test]
fn a_driver_that_is_too_old_says_which_is_needed() {
    on_fake(&[("FAKE_CUDA_VERSION", "11080")], || {
        let error = open_driver().unwrap_err();
        let (found, needed) =
            (DriverVersion { major: 11, minor: 8 }, DriverVersion { major: 12, minor: 0 });
        assert_eq!(error, OpenError::TooOld { found, needed });
        assert!(error.to_string().contains("11.8; 12.0 or newer"), "{error}");
    });
}

#[test]
fn what_a_gpu_lacks_is_among_its_facts() {
    let faults = "noexport,nodmabuf,stale,nopeer";
    on_fake(&[("FAKE_CUDA_FAULTS", faults), ("FAKE_CUDA_DEVICES", "2")], || {
        let driver = open_driver().unwrap();
        let facts = driver.facts(1).unwrap();
        assert!(!facts.export && !facts.dmabuf && facts.flush);
        assert_eq!((facts.ordering, facts.ordinal), (WritesOrdering::None, 1));
        assert!(!driver.can_reach(0, 1).unwrap());
        let device = Device::open(&driver, 1).unwrap();
        let memory = device.alloc(100).unwrap();
        for error in [memory.export().unwrap_err(), device.dma_buf(&memory.slab()).unwrap_err()] {
            assert!(matches!(error, DeviceError::Unsupported { device: 1, .. }), "{error}");
        }
        let first = Device::open(&driver, 0).unwrap();
        let error = memory.allow(&first).unwrap_err().to_string();
        assert!(error.contains("nvidia-smi topo"), "{error}");
    });
}
