//! The shim itself: threads meet at barriers of a block and of a warp, and what would hang a device or be wrong there is an
//! error here.

use std::path::Path;

use tensorwire_cuda::Launch;
use tensorwire_testkit::shim::cuda_shim_of;
use tensorwire_testkit::skip::skip;

use crate::shim::Shim;

fn open() -> Option<Shim> {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/meeting.cu");
    match cuda_shim_of(&kernels) {
        Ok(library) => Some(Shim::open(&library)),
        Err(reason) => {
            skip(None, &reason);
            None
        }
    }
}

fn launch(kernel: &'static str, blocks: u32, threads: u32) -> Launch {
    let (grid, block) = ([blocks, 1, 1], [threads, 1, 1]);
    Launch { kernel, grid, block, shared_bytes: 0, arguments: vec![] }
}

/// What a kernel of so many blocks of 256 threads writes.
fn run(
    shim: &Shim,
    kernel: &'static str,
    blocks: u32,
    how: i64,
    order: u64,
) -> Result<Vec<i64>, String> {
    let mut y = vec![-7i64; 256 * blocks as usize];
    let address = y.as_mut_ptr().expose_provenance() as u64;
    let argument = [address.to_ne_bytes(), how.to_ne_bytes()].concat();
    // SAFETY: the kernel writes a number for each thread into `y`, which nobody else uses
    unsafe { shim.launch(&launch(kernel, blocks, 256), &argument, order)? };
    Ok(y)
}

/// What thread `thread` passes on in the last of three rounds.
fn passed(thread: i64) -> i64 {
    let next = |thread: i64| (thread + 1) % 256 + 2;
    let beside = next(thread / 32 * 32 + (thread + 1) % 32);
    // of a warp's 32 numbers, which are neighbours, 16 are odd
    next(thread) + 1000 * beside + 16_000_000
}

#[test]
fn threads_meet_in_any_order_of_blocks_and_warps() {
    let Some(shim) = open() else { return };
    let expected: Vec<i64> = (0..5).flat_map(|_| (0..256).map(passed)).collect();
    for order in [0, 1, 2, 0x9e37_79b9_7f4a_7c15, u64::MAX] {
        assert_eq!(run(&shim, "pass_on", 5, 0, order).unwrap(), expected);
    }
    // on several threads at a time
    std::thread::scope(|scope| {
        for order in 0..4 {
            let (shim, expected) = (&shim, &expected);
            scope.spawn(move || {
                for _ in 0..20 {
                    assert_eq!(run(shim, "pass_on", 5, 0, order).unwrap(), *expected);
                }
            });
        }
    });
}

#[test]
fn threads_that_part_ways_are_told() {
    let Some(shim) = open() else { return };
    for how in 0..4 {
        let said = run(&shim, "part_ways", 2, how, 0).unwrap_err();
        assert!(said.starts_with("part_ways: threads of block 0 diverge"), "{how}: {said}");
    }
    // and the thread of the system goes on
    assert!(run(&shim, "part_ways", 2, 9, 0).is_ok());
    assert_eq!(run(&shim, "read_first", 1, 0, 0).unwrap(), [-1; 256]);
}

#[test]
fn what_no_device_would_launch_is_refused() {
    let Some(shim) = open() else { return };
    let refused = |launch: Launch, bytes: usize| {
        // SAFETY: nothing is run
        unsafe { shim.launch(&launch, &vec![0u8; bytes], 0) }.unwrap_err()
    };
    assert_eq!(refused(launch("nothing", 1, 32), 16), "nothing: no such kernel");
    assert!(refused(launch("pass_on", 1, 256), 8).contains("its argument has 16 bytes, not 8"));
    assert!(refused(launch("pass_on", 0, 256), 16).contains("no device runs such a grid"));
    assert!(refused(launch("pass_on", 1, 2048), 16).contains("no device runs such a grid"));
    assert!(refused(launch("pass_on", 1, 100), 16).contains("a warp has 32 threads"));
    let shared = Launch { shared_bytes: 64, ..launch("pass_on", 1, 256) };
    assert!(refused(shared, 16).contains("dynamic shared memory"));
}
