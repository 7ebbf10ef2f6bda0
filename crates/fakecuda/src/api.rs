//! The driver's functions, as `cuda.h` declares them: they check what they are given, as the driver does and where it
//! crashes, too, and hand on.

mod devices;
mod graphs;
mod memory;
mod modules;
mod streams;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tensorwire_device::sys::*;

use crate::state::{Context, Fake, Outcome, say};
use crate::stream::Stream;

pub use devices::*;
pub use graphs::*;
pub use memory::*;
pub use modules::*;
pub use streams::*;

/// Makes a number of an outcome.
fn answer(work: impl FnOnce() -> Outcome) -> CUresult {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => CUDA_SUCCESS,
        Ok(Err(status)) => status,
        Err(_) => {
            say("it has a fault of its own");
            CUDA_ERROR_UNKNOWN
        }
    }
}

/// A function that needs a driver that was started.
fn started(work: impl FnOnce(&'static Fake) -> Outcome) -> CUresult {
    answer(|| work(Fake::get()?))
}

/// A function that needs a current context.
fn in_context(work: impl FnOnce(&'static Fake, &'static Arc<Context>) -> Outcome) -> CUresult {
    answer(|| {
        let fake = Fake::get()?;
        work(fake, fake.current()?)
    })
}

/// A function that needs a stream of the current context.
pub(crate) fn on_stream(
    stream: CUstream,
    work: impl FnOnce(&'static Fake, &Arc<Stream>) -> Outcome,
) -> CUresult {
    in_context(|fake, context| {
        let stream = fake.streams.get(stream.addr())?;
        same(&stream.context, context)?;
        work(fake, &stream)
    })
}

/// Fails if something is of another context than the current one.
pub(crate) fn same(of: &Arc<Context>, current: &Arc<Context>) -> Outcome {
    if Arc::ptr_eq(of, current) { Ok(()) } else { Err(CUDA_ERROR_INVALID_HANDLE) }
}

/// Writes a result where the caller wants it.
///
/// # Safety
/// It is null or has room for it.
unsafe fn put<T>(room: *mut T, value: T) -> Outcome {
    if room.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: room is the caller's duty.
    unsafe { room.write(value) };
    Ok(())
}

/// A handle, as a pointer that nobody follows.
pub(crate) fn pointer<T>(handle: usize) -> *mut T {
    std::ptr::without_provenance_mut(handle)
}
