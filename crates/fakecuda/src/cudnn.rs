//! cuDNN without a GPU: the functions of its graph API that this project calls, over the memory and the streams of the
//! fake driver, for graphs of one convolution. It is the same library under another name, as `cublas_lt.rs` is. It is as
//! strict as the real one is where that refuses, and refuses what would crash that. Its engines are few, and the first ones
//! are those that nobody should take: one gives other bits each time, one rounds, one cannot be had, one needs too much
//! memory.

use std::cell::RefCell;
use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use tensorwire_device::sys::CUstream;
use tensorwire_device::sys::cudnn::*;

use crate::api::{on_stream, same};
use crate::state::{Context, Fake, Handles, say};
use crate::stream::{LibraryCall, Op};
use convolution::Engine;
use descriptors::{Descriptor, Made};

mod convolution;
mod descriptors;

/// 9.4.0, as the real one says it.
const VERSION: usize = 90_400;

/// Workspaces lie at multiples of so many bytes.
const WORKSPACE_ALIGNMENT: u64 = 16;

type Status<T = ()> = Result<T, cudnnStatus_t>;

/// A handle, with the stream that it works on, by its address.
struct Handle {
    context: Arc<Context>,
    stream: Mutex<usize>,
}

struct Objects {
    handles: Handles<Handle>,
    descriptors: Handles<Mutex<Descriptor>>,
}

static OBJECTS: LazyLock<Objects> =
    LazyLock::new(|| Objects { handles: Handles::new(12), descriptors: Handles::new(13) });

/// How often something was computed.
static EXECUTED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// What went wrong last.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// How many objects there are.
pub(crate) fn alive() -> usize {
    OBJECTS.handles.count() + OBJECTS.descriptors.count()
}

fn answer(work: impl FnOnce() -> Status) -> cudnnStatus_t {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => CUDNN_STATUS_SUCCESS,
        Ok(Err(status)) => status,
        Err(_) => {
            say("its cuDNN has a fault of its own");
            CUDNN_STATUS_INTERNAL_ERROR
        }
    }
}

/// Fails, and keeps why.
fn because<T>(status: cudnnStatus_t, why: &str) -> Status<T> {
    LAST.with_borrow_mut(|last| why.clone_into(last));
    Err(status)
}

/// Refuses what the caller did wrong, in words.
fn wrong<T>(why: &str) -> Status<T> {
    say(&format!("cuDNN: {why}"));
    because(CUDNN_STATUS_BAD_PARAM, why)
}

fn not_supported<T>(why: &str) -> Status<T> {
    because(CUDNN_STATUS_NOT_SUPPORTED, why)
}

fn descriptor(handle: *const c_void) -> Status<Arc<Mutex<Descriptor>>> {
    OBJECTS.descriptors.get(handle.addr()).or_else(|_| wrong("no such descriptor"))
}

/// A handle whose context is the caller's.
fn owner(handle: usize) -> Status<Arc<Handle>> {
    let found = OBJECTS.handles.get(handle).or_else(|_| wrong("no such handle"))?;
    let fake = Fake::get().or(Err(CUDNN_STATUS_NOT_INITIALIZED))?;
    let current = fake.current().or(Err(CUDNN_STATUS_EXECUTION_FAILED))?;
    match same(&found.context, current) {
        Ok(()) => Ok(found),
        Err(_) => wrong("the handle is of another context than the current one"),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetVersion() -> usize {
    match Fake::start() {
        Ok(fake) if fake.config.cudnn_version > 0 => fake.config.cudnn_version,
        _ => VERSION,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetErrorString(status: cudnnStatus_t) -> *const c_char {
    let name = match status {
        CUDNN_STATUS_SUCCESS => c"CUDNN_STATUS_SUCCESS",
        CUDNN_STATUS_NOT_INITIALIZED => c"CUDNN_STATUS_NOT_INITIALIZED",
        CUDNN_STATUS_BAD_PARAM => c"CUDNN_STATUS_BAD_PARAM",
        CUDNN_STATUS_NOT_SUPPORTED => c"CUDNN_STATUS_NOT_SUPPORTED",
        CUDNN_STATUS_EXECUTION_FAILED => c"CUDNN_STATUS_EXECUTION_FAILED",
        _ => c"CUDNN_STATUS_INTERNAL_ERROR",
    };
    name.as_ptr()
}

/// # Safety
/// As of the library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetLastErrorString(room: *mut c_char, bytes: usize) {
    let last = LAST.with_borrow(String::clone);
    let text = last.bytes().take(bytes.saturating_sub(1)).chain([0]);
    for (at, byte) in text.take(bytes).enumerate() {
        // SAFETY: there is room for so many bytes.
        unsafe { room.add(at).write(byte.cast_signed()) };
    }
}

/// # Safety
/// As of the library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnCreate(room: *mut cudnnHandle_t) -> cudnnStatus_t {
    answer(|| {
        let none = || because(CUDNN_STATUS_NOT_INITIALIZED, "no context is current");
        let Ok(fake) = Fake::get() else { return none() };
        let Ok(context) = fake.current() else { return none() };
        if fake.config.faults.no_library {
            return because(CUDNN_STATUS_NOT_INITIALIZED, "it was told not to start");
        }
        if fake.before_making(context, "a handle of cuDNN's that is made").is_err() {
            return because(CUDNN_STATUS_NOT_INITIALIZED, "the GPU does not come to rest");
        }
        let made = Handle { context: context.clone(), stream: Mutex::new(0) };
        let handle = OBJECTS.handles.add(Arc::new(made));
        // SAFETY: there is room for it: the caller's duty.
        unsafe { room.write(std::ptr::without_provenance_mut(handle)) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnDestroy(handle: cudnnHandle_t) -> cudnnStatus_t {
    answer(|| OBJECTS.handles.remove(handle.addr()).map(drop).or_else(|_| wrong("no such handle")))
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetStream(handle: cudnnHandle_t, stream: CUstream) -> cudnnStatus_t {
    answer(|| {
        let owner = owner(handle.addr())?;
        if on_stream(stream, |_, _| Ok(())) != 0 {
            return wrong("the stream is of another context than the handle");
        }
        *owner.stream.lock() = stream.addr();
        Ok(())
    })
}

/// # Safety
/// As of the library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendCreateDescriptor(
    kind: cudnnBackendDescriptorType_t,
    room: *mut cudnnBackendDescriptor_t,
) -> cudnnStatus_t {
    answer(|| {
        let made = Descriptor::new(kind)?;
        let handle = OBJECTS.descriptors.add(Arc::new(Mutex::new(made)));
        // SAFETY: there is room for it: the caller's duty.
        unsafe { room.write(std::ptr::without_provenance_mut(handle)) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnBackendDestroyDescriptor(of: cudnnBackendDescriptor_t) -> cudnnStatus_t {
    answer(|| {
        OBJECTS.descriptors.remove(of.addr()).map(drop).or_else(|_| wrong("no such descriptor"))
    })
}

/// # Safety
/// As of the library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendSetAttribute(
    of: cudnnBackendDescriptor_t,
    name: cudnnBackendAttributeName_t,
    kind: cudnnBackendAttributeType_t,
    count: i64,
    elements: *const c_void,
) -> cudnnStatus_t {
    answer(|| {
        let of = descriptor(of)?;
        // SAFETY: there are so many elements of that type: the caller's duty.
        unsafe { of.lock().set(name, kind, count, elements) }
    })
}

/// # Safety
/// As of the library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendGetAttribute(
    of: cudnnBackendDescriptor_t,
    name: cudnnBackendAttributeName_t,
    kind: cudnnBackendAttributeType_t,
    room: i64,
    count: *mut i64,
    elements: *mut c_void,
) -> cudnnStatus_t {
    answer(|| {
        let made = descriptor(of)?.lock().made();
        let Some(made) = made else { return wrong("what is asked is not finalized") };
        let room = usize::try_from(room).unwrap_or(0);
        // descriptors that the caller made are filled
        let fill = |answers: Vec<Made>, of: u32| {
            for (at, answer) in answers.iter().take(room).enumerate() {
                // SAFETY: there are so many descriptors.
                let handle = unsafe { *elements.cast::<cudnnBackendDescriptor_t>().add(at) };
                descriptor(handle)?.lock().fill(of, answer.clone())?;
            }
            Ok::<usize, cudnnStatus_t>(answers.len().min(room))
        };
        let found = match (made, name, kind) {
            (
                Made::Heuristic(convolution, mode),
                CUDNN_ATTR_ENGINEHEUR_RESULTS,
                CUDNN_TYPE_BACKEND_DESCRIPTOR,
            ) => {
                let fake = Fake::get().or(Err(CUDNN_STATUS_NOT_INITIALIZED))?;
                if fake.config.faults.no_algorithm {
                    return not_supported("no engine has this shape");
                }
                let engines = Engine::ranked(&convolution, mode)?;
                let answer = |engine| Made::Configuration(convolution, engine);
                fill(engines.into_iter().map(answer).collect(), CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)?
            }
            (
                Made::Configuration(_, engine),
                CUDNN_ATTR_ENGINECFG_ENGINE,
                CUDNN_TYPE_BACKEND_DESCRIPTOR,
            ) => fill(vec![Made::Engine(engine)], CUDNN_BACKEND_ENGINE_DESCRIPTOR)?,
            (Made::Engine(engine), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE) => {
                let notes = engine.notes();
                for (at, note) in notes.iter().take(room).enumerate() {
                    // SAFETY: there is room for so many.
                    unsafe { elements.cast::<u32>().add(at).write(*note) };
                }
                notes.len().min(room)
            }
            (
                Made::Plan(convolution, engine, _),
                CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                CUDNN_TYPE_INT64,
            ) if room > 0 => {
                let bytes = engine.workspace_bytes(&convolution).cast_signed();
                // SAFETY: there is room for one.
                unsafe { elements.cast::<i64>().write(bytes) };
                1
            }
            _ => return wrong("a descriptor has no such attribute to read"),
        };
        // SAFETY: there is room for it. Fits: few.
        unsafe { count.write(found as i64) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnBackendFinalize(of: cudnnBackendDescriptor_t) -> cudnnStatus_t {
    answer(|| {
        let of = descriptor(of)?;
        let made = of.lock().finished()?;
        of.lock().keep(made);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnBackendExecute(
    handle: cudnnHandle_t,
    plan: cudnnBackendDescriptor_t,
    pack: cudnnBackendDescriptor_t,
) -> cudnnStatus_t {
    answer(|| {
        let owner = owner(handle.addr())?;
        let at = plan.addr();
        let (plan, pack) = (descriptor(plan)?.lock().made(), descriptor(pack)?.lock().made());
        let (Some(Made::Plan(convolution, engine, of)), Some(Made::Pack(pack))) = (plan, pack)
        else {
            return wrong("a plan and a pack are needed that are finalized");
        };
        if of != handle.addr() {
            return wrong("the plan is of another handle");
        }
        let needed = engine.workspace_bytes(&convolution);
        let workspace = pack.workspace;
        if needed > 0 && (workspace == 0 || !workspace.is_multiple_of(WORKSPACE_ALIGNMENT)) {
            return wrong("the workspace is missing, or lies askew");
        }
        let mut operands = Vec::new();
        for tensor in &convolution.tensors {
            let Some(address) = pack.address_of(tensor.name) else {
                return wrong("a tensor of the graph has no address");
            };
            if address == 0 || !address.is_multiple_of(tensor.alignment) {
                return wrong("a tensor does not lie where its descriptor says");
            }
            operands.push((address, tensor.bytes()));
        }
        if needed > 0 {
            // fits: a size of this machine
            operands.push((workspace, needed as usize));
        }
        let fake = Fake::get().or(Err(CUDNN_STATUS_NOT_INITIALIZED))?;
        let number = fake.counts.convolutions.fetch_add(1, Ordering::Relaxed) + 1;
        if number == fake.config.faults.convolution {
            return because(CUDNN_STATUS_EXECUTION_FAILED, "it was told to fail");
        }
        let call = LibraryCall::new("cudnnBackendExecute", operands, move |places| {
            let number = EXECUTED.fetch_add(1, Ordering::Relaxed);
            // SAFETY: the places have as many bytes as were asked for, and nobody else uses them while the stream does
            // this: the duty of who told it.
            unsafe { convolution.compute(engine, number, places) }
        });
        let stream = *owner.stream.lock();
        let told = on_stream(std::ptr::without_provenance_mut(stream), |fake, stream| {
            fake.before_using(&stream.context, format!("convolution plan {at:#x}"))?;
            stream.tell(Op::Library(Arc::new(call)))
        });
        match told {
            0 => Ok(()),
            _ => because(CUDNN_STATUS_EXECUTION_FAILED, "its stream takes nothing"),
        }
    })
}
