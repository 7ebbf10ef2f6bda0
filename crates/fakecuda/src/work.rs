//! What a stream's thread does for each thing that it was told. Addresses are looked up when it is done, and not when it
//! was told: memory that went meanwhile is found out, as a GPU finds it out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tensorwire_device::sys::*;

use crate::kernels::Launching;
use crate::random::Random;
use crate::state::{Fake, Outcome, is_pinned, say};
use crate::stream::{LibraryCall, Op, Stream};

/// Addresses of the host from here on are of its programs, libraries, stacks and mappings.
const HOST_ADDRESSES: std::ops::Range<u64> = 0x5500_0000_0000..0x8000_0000_0000;

/// A stream was destroyed, or its GPU failed, while it waited: what comes behind must not be done as if it had not.
const ENDED: CUresult = CUDA_ERROR_DEINITIALIZED;

pub(crate) fn run(fake: &Fake, stream: &Stream, op: &Op, random: &mut Random) -> Outcome {
    if let Some(delay) = fake.config.faults.delay(random) {
        std::thread::sleep(delay);
    }
    match op {
        Op::Copy { from, to, bytes } => copy(fake, stream, *from, *to, *bytes),
        Op::CopyBetween { from, to, bytes } => copy_between(fake, stream, *from, *to, *bytes),
        Op::Staged { from, to } => {
            with_place(fake, stream, *to, from.len(), |first| {
                // SAFETY: the place has so many bytes, which are nobody's memory of Rust's.
                unsafe { std::ptr::copy(from.as_ptr(), first, from.len()) }
            })
        }
        Op::Unstaged { from, to, bytes } => with_place(fake, stream, *from, *bytes, |first| {
            // SAFETY: the place has so many bytes; who asked waits, and keeps the target until then.
            unsafe { std::ptr::copy(first, *to as *mut u8, *bytes) }
        }),
        Op::Fill { to, count, value, width } => {
            with_place(fake, stream, *to, count * width, |first| {
                let bytes = value.to_ne_bytes();
                let same = *width == 1 || bytes == [bytes[0]; 4];
                // SAFETY: the place has `count` times `width` bytes, a width is 1 or 4, and words lie at multiples of it.
                unsafe {
                    if same {
                        first.write_bytes(bytes[0], count * width);
                    } else {
                        (0..*count).for_each(|at| first.cast::<u32>().add(at).write(*value));
                    }
                }
            })
        }
        Op::Launch(launching) => launch(fake, stream, launching),
        Op::Library(call) => of_library(fake, stream, call),
        Op::WaitEvent { event, record } => match event.wait(*record, || stream.is_wanted()) {
            true => Ok(()),
            false => Err(ENDED),
        },
        Op::Record { event, record } => {
            event.reach(*record);
            Ok(())
        }
        Op::WaitValue { address, value, condition } => {
            wait_value(fake, stream, *address, *value, *condition)
        }
        Op::WriteValue { address, value } => with_place(fake, stream, *address, 4, |first| {
            // SAFETY: an aligned word of the place, which others use atomically, too.
            unsafe { AtomicU32::from_ptr(first.cast()) }.store(*value, Ordering::Release);
        }),
        Op::Graph(exec) => {
            let _turn = exec.turn.lock();
            exec.ops.iter().enumerate().try_for_each(|(done, op)| {
                stream.has_done_of_graph(done);
                run(fake, stream, op, random)
            })
        }
        Op::Collective(collective) => collective.run(fake, stream),
    }
}

/// Calls `work` with the first of some bytes, if they are there.
pub(crate) fn with_place<T>(
    fake: &Fake,
    stream: &Stream,
    address: u64,
    bytes: usize,
    work: impl FnOnce(*mut u8) -> T,
) -> Outcome<T> {
    let pinned = fake.pinned.read();
    let place = fake.place(address, bytes, stream.context.ordinal, &pinned);
    Ok(work(place.ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)?.first()))
}

fn copy(fake: &Fake, stream: &Stream, from: u64, to: u64, bytes: usize) -> Outcome {
    let pinned = fake.pinned.read();
    let place = |address| {
        let place = fake.place(address, bytes, stream.context.ordinal, &pinned);
        place.ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)
    };
    let (source, target) = (place(from)?, place(to)?);
    // SAFETY: both places have so many bytes and stay while they are held; no Rust reference is made of either.
    unsafe { std::ptr::copy(source.first(), target.first(), bytes) };
    Ok(())
}

/// A copy from another GPU's memory. That GPU's streams go on beside this one: what they were told before and have not done
/// must not write what is read here, which an event would have waited for.
fn copy_between(
    fake: &Fake,
    stream: &Stream,
    (from, from_device): (u64, usize),
    (to, to_device): (u64, usize),
    bytes: usize,
) -> Outcome {
    let number = stream.number_of_work().unwrap_or(u64::MAX);
    let races = |other: &Arc<Stream>| {
        other.number != stream.number && other.may_yet_write(number, from, bytes)
    };
    if fake.streams.all().iter().any(races) {
        say(&format!(
            "a copy from GPU {from_device} to GPU {to_device} reads {bytes} bytes at {from:#x} that another stream was told \
             to write before, and has not: no event is between them"
        ));
        return Err(CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    let pinned = fake.pinned.read();
    let place = |address, device| {
        fake.place(address, bytes, device, &pinned).ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)
    };
    let (source, target) = (place(from, from_device)?, place(to, to_device)?);
    // SAFETY: as for `copy`.
    unsafe { std::ptr::copy(source.first(), target.first(), bytes) };
    Ok(())
}

fn wait_value(fake: &Fake, stream: &Stream, address: u64, value: u32, condition: u32) -> Outcome {
    let number = fake.counts.waits.fetch_add(1, Ordering::Relaxed) + 1;
    let hangs = number == fake.config.faults.hang;
    let mut asked = 0u32;
    while stream.is_wanted() {
        let found = with_place(fake, stream, address, 4, |first| {
            // SAFETY: an aligned word of the place, which others use atomically, too.
            unsafe { AtomicU32::from_ptr(first.cast()) }.load(Ordering::Acquire)
        })?;
        let is_so = match condition {
            CU_STREAM_WAIT_VALUE_EQ => found == value,
            // a difference that may wrap around, as the driver has it
            _ => found.wrapping_sub(value).cast_signed() >= 0,
        };
        if is_so && !hangs {
            break;
        }
        asked = asked.saturating_add(1);
        match asked {
            ..20 => std::thread::yield_now(),
            20..100 => std::thread::sleep(Duration::from_micros(50)),
            _ => std::thread::sleep(Duration::from_micros(500)),
        }
    }
    if stream.is_wanted() { Ok(()) } else { Err(ENDED) }
}

fn launch(fake: &Fake, stream: &Stream, launching: &Arc<Launching>) -> Outcome {
    let number = fake.counts.launches.fetch_add(1, Ordering::Relaxed) + 1;
    if number == fake.config.faults.launch {
        return Err(CUDA_ERROR_LAUNCH_FAILED);
    }
    let of_program = launching.kernel.library.as_deref();
    if of_program.is_some() {
        let number = fake.counts.program_launches.fetch_add(1, Ordering::Relaxed) + 1;
        if number == fake.config.faults.program {
            return Err(CUDA_ERROR_ILLEGAL_ADDRESS);
        }
    }
    let Some(kernels) = of_program.or(fake.kernels.as_ref()) else {
        say("a kernel was launched, and FAKE_CUDA_KERNELS names no library that runs it");
        return Err(CUDA_ERROR_LAUNCH_FAILED);
    };
    // who unmaps memory, or frees pinned memory, waits for the kernel
    let (_running, _pinned) = (fake.running.read(), fake.pinned.read());
    let device = stream.context.ordinal;
    for &word in &launching.arguments.words {
        if !may_reach(fake, word, device) {
            let name = launching.kernel.name.to_string_lossy();
            say(&format!(
                "kernel {name}: argument {word:#x} is an address that GPU {device} does not reach"
            ));
            return Err(CUDA_ERROR_ILLEGAL_ADDRESS);
        }
    }
    fake.space.write().enter_kernel();
    let done = kernels.run(launching);
    fake.space.write().leave_kernel();
    done.map_err(|why| {
        say(&why);
        CUDA_ERROR_LAUNCH_FAILED
    })
}

fn of_library(fake: &Fake, stream: &Stream, call: &LibraryCall) -> Outcome {
    // as for a launch
    let (_running, pinned) = (fake.running.read(), fake.pinned.read());
    let device = stream.context.ordinal;
    let place = |&(address, bytes): &(u64, usize)| {
        fake.place(address, bytes, device, &pinned).ok_or_else(|| {
            let name = call.name;
            say(&format!("{name}: GPU {device} does not reach {bytes} bytes from {address:#x} on"));
            CUDA_ERROR_ILLEGAL_ADDRESS
        })
    };
    let places = call.operands.iter().map(place).collect::<Outcome<Vec<_>>>()?;
    let firsts: Vec<*mut u8> = places.iter().map(|place| place.first()).collect();
    (call.work)(&firsts);
    Ok(())
}

/// False if a word of an argument is an address that a GPU would not reach: of its own and not mapped, or of the host and
/// not pinned. A number may look like one; hardly any does that is an address of what is there.
fn may_reach(fake: &Fake, word: u64, device: usize) -> bool {
    let space = fake.space.read();
    if space.contains(word) {
        // right behind the end, too: an empty tensor's
        return space.bytes(word, 0, device).is_some();
    }
    drop(space);
    if !HOST_ADDRESSES.contains(&word) || !is_mapped(word) {
        return true;
    }
    // fits: an address of this machine. The caller holds `pinned`, which two may read
    is_pinned(&fake.pinned.read_recursive(), word as usize, 0)
}

/// True if something is mapped at an address of the host.
fn is_mapped(address: u64) -> bool {
    let page = rustix::param::page_size() as u64;
    let start = (address / page * page) as *mut std::ffi::c_void;
    // SAFETY: asks the kernel about a page, and changes nothing: there is nothing to write back of what is in memory.
    unsafe { rustix::mm::msync(start, page as usize, rustix::mm::MsyncFlags::ASYNC) }.is_ok()
}
