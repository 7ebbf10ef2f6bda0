//! Images and launches.

use tensorwire_device::{DeviceError, Function, Module, Stream};

use crate::support::*;

/// Launches one thread with words as its structure.
fn launch(stream: &Stream, function: &Function, words: &[u64]) -> Result<(), DeviceError> {
    // SAFETY: the tests give their kernels what these take, and keep the memory until the stream is idle.
    unsafe { stream.launch(function, [1; 3], [1; 3], 0, &arguments(words)) }
}

#[test]
fn a_kernel_computes_where_its_structure_says() {
    on_each(|machine| {
        let Some(axpy) = machine.kernel("axpy") else { return };
        const COUNT: usize = 1000;
        let doubles = |of: fn(f64) -> f64| -> Vec<u8> {
            (0..COUNT).flat_map(|at| of(at as f64).to_ne_bytes()).collect()
        };
        let [x, y] = [(); 2].map(|()| whole(&machine.memory(8 * COUNT as u64).slab()));
        upload(machine, &doubles(|at| at), &x);
        upload(machine, &doubles(|at| 1000.0 - at), &y);
        let stream = machine.stream();
        let words = [x.address() as u64, y.address() as u64, COUNT as u64, 2.5f64.to_bits()];
        // SAFETY: both hold as many numbers, and live until the stream is idle.
        unsafe { stream.launch(&axpy, [4, 1, 1], [256, 1, 1], 0, &arguments(&words)) }.unwrap();
        stream.synchronize(soon()).unwrap();
        assert!(download(machine, &y) == doubles(|at| 1000.0 - at + 2.5 * at));
    });
}

#[test]
fn launches_of_a_graph_come_in_order() {
    on_each_with(&[("FAKE_CUDA_FAULTS", "delay=100")], |machine| {
        let (Some(mix), Some(spin)) = (machine.kernel("mix"), machine.kernel("spin")) else {
            return;
        };
        let word = whole(&machine.memory(8).slab());
        let other = whole(&machine.memory(8).slab());
        upload(machine, &[0; 8], &word);
        let stream = machine.stream();
        stream.begin_capture().unwrap();
        for value in 1..=5 {
            launch(&stream, &spin, &[other.address() as u64, 1000]).unwrap();
            launch(&stream, &mix, &[word.address() as u64, value]).unwrap();
        }
        let graph = stream.end_capture().unwrap();
        for _ in 0..3 {
            graph.launch(&stream).unwrap();
        }
        stream.synchronize(soon()).unwrap();
        let values = (1..=5u64).cycle().take(15);
        let expected = values.fold(0u64, |state, value| {
            state.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(value)
        });
        assert_eq!(download(machine, &word), expected.to_ne_bytes());
    });
}

#[test]
fn an_image_outlives_its_name_by_its_kernels() {
    on_each(|machine| {
        let Some(mix) = machine.kernel("mix") else { return };
        // the module's own name went with `kernel`
        let word = whole(&machine.memory(8).slab());
        upload(machine, &[0; 8], &word);
        let stream = machine.stream();
        launch(&stream, &mix.clone(), &[word.address() as u64, 7]).unwrap();
        drop(mix);
        stream.synchronize(soon()).unwrap();
        assert_eq!(download(machine, &word), 7u64.to_ne_bytes());
    });
}

#[test]
fn bad_images_are_refused_with_what_the_compiler_says() {
    on_each(|machine| {
        let text = std::str::from_utf8(PTX).unwrap();
        let load = |text: &str| Module::load(&machine.device, text.as_bytes());
        let errors = [
            load("these are no kernels").unwrap_err(),
            load(&text.replace(".version 8.0", ".version 99.0")).unwrap_err(),
            load(&text.replace("sm_80", "sm_999")).unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, DeviceError::Image { device: 0, .. }), "{error}");
            eprintln!("{error}");
        }
        let module = load(text).unwrap();
        let missing = module.function("nonsense").unwrap_err();
        assert!(matches!(missing, DeviceError::NoSuchKernel { .. }), "{missing}");
        assert!(module.function("with\0zero").is_err());
    });
}

#[test]
fn launches_over_the_limits_are_refused() {
    on_each(|machine| {
        let Some(spin) = machine.kernel("spin") else { return };
        let word = whole(&machine.memory(8).slab());
        let stream = machine.stream();
        let arguments = arguments(&[word.address() as u64, 1]);
        let facts = machine.device.facts();
        let launch = |grid, block, shared| {
            // SAFETY: as the kernel takes it; the memory lives until the stream is idle.
            unsafe { stream.launch(&spin, grid, block, shared, &arguments) }
        };
        for (grid, block) in [([0, 1, 1], [1; 3]), ([1; 3], [1, 0, 1]), ([1; 3], [1025, 1, 1])] {
            assert!(launch(grid, block, 0).is_err(), "{grid:?} {block:?}");
        }
        assert!(launch([1; 3], [1; 3], facts.shared_bytes_max + 1024).is_err());
        spin.allow_shared(facts.shared_bytes_allowed_max).unwrap();
        assert!(spin.allow_shared(facts.shared_bytes_allowed_max + 1).is_err());
        launch([1; 3], [1; 3], facts.shared_bytes_allowed_max).unwrap();
        stream.synchronize(soon()).unwrap();
    });
}

#[test]
fn a_kernel_that_fails_loses_the_gpu_and_says_so() {
    on_each(|machine| {
        let Some(trap) = machine.kernel("trap") else { return };
        let stream = machine.stream();
        let started = launch(&stream, &trap, &[0]);
        let error = started.and_then(|()| stream.synchronize(soon())).unwrap_err();
        assert!(error.is_lost(), "{error}");
        assert!(error.to_string().contains("compute-sanitizer"), "{error}");
        // and every later call says the same
        assert!(machine.device.alloc(1).unwrap_err().is_lost());
        assert!(machine.device.event().unwrap_err().is_lost());
    });
}
