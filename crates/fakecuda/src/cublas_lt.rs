//! cuBLASLt without a GPU: the functions that this project calls, over the memory and the streams of the fake driver. It is
//! the same library under another name: a link of the name libcublasLt.so.13 to it is found as the real one is. It is as
//! strict as the real one is where that refuses, and refuses what would crash that.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use tensorwire_device::sys::CUstream;
use tensorwire_device::sys::cublas_lt::*;

use crate::api::on_stream;
use crate::numbers::Kind;
use crate::state::{Fake, Handles, say};
use crate::stream::{LibraryCall, Op};
use product::{Product, compute};

mod product;

/// 13.1.0, as the real one says it.
const VERSION: usize = 130_100;

/// The first word of an algorithm that the heuristic here made.
const MARK: u64 = 0x7465_6e73_6f72_7769;

/// Products at least so deep may be cut in two.
const CUT_DEPTH: u64 = 64;

/// Workspaces lie at multiples of so many bytes.
const WORKSPACE_ALIGNMENT: u64 = 16;

type Status = Result<(), cublasStatus_t>;

#[derive(Debug)]
struct Description {
    compute: u32,
    scale: u32,
    is_turned: [bool; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    kind: Kind,
    rows: u64,
    columns: u64,
    step: i64,
    batch: i32,
    batch_step: i64,
}

#[derive(Debug)]
struct Preference {
    workspace: u64,
    schemes: u32,
    alignments: [u32; 4],
}

/// What was made; nothing of it needs a GPU.
struct Objects {
    handles: Handles<()>,
    descriptions: Handles<Mutex<Description>>,
    layouts: Handles<Mutex<Layout>>,
    preferences: Handles<Mutex<Preference>>,
}

static OBJECTS: LazyLock<Objects> = LazyLock::new(|| Objects {
    handles: Handles::new(8),
    descriptions: Handles::new(9),
    layouts: Handles::new(10),
    preferences: Handles::new(11),
});

/// How many objects there are.
pub(crate) fn alive() -> usize {
    let Objects { handles, descriptions, layouts, preferences } = &*OBJECTS;
    handles.count() + descriptions.count() + layouts.count() + preferences.count()
}

fn answer(work: impl FnOnce() -> Status) -> cublasStatus_t {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => CUBLAS_STATUS_SUCCESS,
        Ok(Err(status)) => status,
        Err(_) => {
            say("its cuBLASLt has a fault of its own");
            CUBLAS_STATUS_INTERNAL_ERROR
        }
    }
}

/// Refuses what the caller did wrong, in words.
fn wrong<T>(why: &str) -> Result<T, cublasStatus_t> {
    say(&format!("cuBLASLt: {why}"));
    Err(CUBLAS_STATUS_INVALID_VALUE)
}

fn known<T>(of: &Handles<T>, handle: *const c_void) -> Result<Arc<T>, cublasStatus_t> {
    of.get(handle.addr()).map_err(|_| CUBLAS_STATUS_INVALID_VALUE)
}

/// # Safety
/// `room` is null, or has room for a pointer.
unsafe fn made<T>(of: &Handles<T>, value: T, room: *mut *mut c_void) -> Status {
    if room.is_null() {
        return Err(CUBLAS_STATUS_INVALID_VALUE);
    }
    // SAFETY: the caller's duty.
    unsafe { room.write(std::ptr::without_provenance_mut(of.add(Arc::new(value)))) };
    Ok(())
}

fn gone<T>(of: &Handles<T>, handle: *const c_void) -> cublasStatus_t {
    answer(|| of.remove(handle.addr()).map(|_| ()).map_err(|_| CUBLAS_STATUS_INVALID_VALUE))
}

/// An attribute's value, which has the size of its type.
///
/// # Safety
/// `value` has `bytes` bytes.
unsafe fn value_of<const N: usize>(
    value: *const c_void,
    bytes: usize,
) -> Result<[u8; N], cublasStatus_t> {
    if value.is_null() || bytes != N {
        return Err(CUBLAS_STATUS_INVALID_VALUE);
    }
    // SAFETY: it has so many bytes.
    Ok(unsafe { value.cast::<[u8; N]>().read() })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetVersion() -> usize {
    match Fake::start() {
        Ok(fake) if fake.config.cublas_version > 0 => fake.config.cublas_version,
        _ => VERSION,
    }
}

fn names(status: cublasStatus_t) -> [*const c_char; 2] {
    let [name, text] = match status {
        CUBLAS_STATUS_SUCCESS => [c"CUBLAS_STATUS_SUCCESS", c"success"],
        CUBLAS_STATUS_NOT_INITIALIZED => [c"CUBLAS_STATUS_NOT_INITIALIZED", c"not initialized"],
        CUBLAS_STATUS_INVALID_VALUE => [c"CUBLAS_STATUS_INVALID_VALUE", c"an invalid value"],
        CUBLAS_STATUS_EXECUTION_FAILED => [c"CUBLAS_STATUS_EXECUTION_FAILED", c"execution failed"],
        CUBLAS_STATUS_NOT_SUPPORTED => [c"CUBLAS_STATUS_NOT_SUPPORTED", c"not supported"],
        _ => [c"CUBLAS_STATUS_INTERNAL_ERROR", c"internal error"],
    };
    [name.as_ptr(), text.as_ptr()]
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetStatusName(status: cublasStatus_t) -> *const c_char {
    names(status)[0]
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetStatusString(status: cublasStatus_t) -> *const c_char {
    names(status)[1]
}

/// # Safety
/// As of the library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtCreate(handle: *mut cublasLtHandle_t) -> cublasStatus_t {
    answer(|| {
        let fake = Fake::get().map_err(|_| CUBLAS_STATUS_NOT_INITIALIZED)?;
        let ready = fake
            .current()
            .and_then(|context| fake.before_making(context, "a handle of cuBLASLt's that is made"));
        if fake.config.faults.no_library || ready.is_err() {
            return Err(CUBLAS_STATUS_NOT_INITIALIZED);
        }
        // SAFETY: the caller's duty.
        unsafe { made(&OBJECTS.handles, (), handle) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtDestroy(handle: cublasLtHandle_t) -> cublasStatus_t {
    gone(&OBJECTS.handles, handle)
}

/// # Safety
/// As of the library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulDescCreate(
    description: *mut cublasLtMatmulDesc_t,
    compute: cublasComputeType_t,
    scale: cudaDataType_t,
) -> cublasStatus_t {
    answer(|| {
        // SAFETY: the caller's duty.
        unsafe {
            let new = Description { compute, scale, is_turned: [false; 2] };
            made(&OBJECTS.descriptions, Mutex::new(new), description)
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulDescDestroy(description: cublasLtMatmulDesc_t) -> cublasStatus_t {
    gone(&OBJECTS.descriptions, description)
}

/// # Safety
/// As of the library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulDescSetAttribute(
    description: cublasLtMatmulDesc_t,
    attribute: cublasLtMatmulDescAttributes_t,
    value: *const c_void,
    bytes: usize,
) -> cublasStatus_t {
    answer(|| {
        let description = known(&OBJECTS.descriptions, description)?;
        let which = match attribute {
            CUBLASLT_MATMUL_DESC_TRANSA => 0,
            CUBLASLT_MATMUL_DESC_TRANSB => 1,
            _ => return wrong("a description has no such attribute"),
        };
        // SAFETY: the caller's duty.
        let value = u32::from_ne_bytes(unsafe { value_of::<4>(value, bytes) }?);
        description.lock().is_turned[which] = match value {
            CUBLAS_OP_N => false,
            CUBLAS_OP_T => true,
            _ => return wrong("a factor is turned or not"),
        };
        Ok(())
    })
}

/// # Safety
/// As of the library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatrixLayoutCreate(
    layout: *mut cublasLtMatrixLayout_t,
    kind: cudaDataType_t,
    rows: u64,
    columns: u64,
    step: i64,
) -> cublasStatus_t {
    answer(|| {
        let kind = match kind {
            CUDA_R_32F => Kind::F32,
            CUDA_R_64F => Kind::F64,
            CUDA_R_16BF => Kind::Bf16,
            _ => return wrong("a matrix of another type"),
        };
        let new = Layout { kind, rows, columns, step, batch: 1, batch_step: 0 };
        // SAFETY: the caller's duty.
        unsafe { made(&OBJECTS.layouts, Mutex::new(new), layout) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatrixLayoutDestroy(layout: cublasLtMatrixLayout_t) -> cublasStatus_t {
    gone(&OBJECTS.layouts, layout)
}

/// # Safety
/// As of the library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatrixLayoutSetAttribute(
    layout: cublasLtMatrixLayout_t,
    attribute: cublasLtMatrixLayoutAttribute_t,
    value: *const c_void,
    bytes: usize,
) -> cublasStatus_t {
    answer(|| {
        let layout = known(&OBJECTS.layouts, layout)?;
        // SAFETY: the caller's duty.
        unsafe {
            match attribute {
                CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT => {
                    layout.lock().batch = i32::from_ne_bytes(value_of(value, bytes)?);
                }
                CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET => {
                    layout.lock().batch_step = i64::from_ne_bytes(value_of(value, bytes)?);
                }
                _ => return wrong("a layout has no such attribute"),
            }
        }
        Ok(())
    })
}

/// # Safety
/// As of the library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulPreferenceCreate(
    preference: *mut cublasLtMatmulPreference_t,
) -> cublasStatus_t {
    answer(|| {
        let new = Preference { workspace: 0, schemes: 7, alignments: [256; 4] };
        // SAFETY: the caller's duty.
        unsafe { made(&OBJECTS.preferences, Mutex::new(new), preference) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulPreferenceDestroy(
    preference: cublasLtMatmulPreference_t,
) -> cublasStatus_t {
    gone(&OBJECTS.preferences, preference)
}

/// # Safety
/// As of the library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulPreferenceSetAttribute(
    preference: cublasLtMatmulPreference_t,
    attribute: cublasLtMatmulPreferenceAttributes_t,
    value: *const c_void,
    bytes: usize,
) -> cublasStatus_t {
    answer(|| {
        let preference = known(&OBJECTS.preferences, preference)?;
        let mut preference = preference.lock();
        if attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES {
            // SAFETY: the caller's duty.
            preference.workspace = u64::from_ne_bytes(unsafe { value_of(value, bytes) }?);
            return Ok(());
        }
        // SAFETY: the caller's duty.
        let value = u32::from_ne_bytes(unsafe { value_of(value, bytes) }?);
        match attribute {
            CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK => preference.schemes = value,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES => preference.alignments[0] = value,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES => preference.alignments[1] = value,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES => preference.alignments[2] = value,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES => preference.alignments[3] = value,
            _ => return wrong("a preference has no such attribute"),
        }
        Ok(())
    })
}

/// # Safety
/// As of the library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    handle: cublasLtHandle_t,
    description: cublasLtMatmulDesc_t,
    a: cublasLtMatrixLayout_t,
    b: cublasLtMatrixLayout_t,
    c: cublasLtMatrixLayout_t,
    d: cublasLtMatrixLayout_t,
    preference: cublasLtMatmulPreference_t,
    room: c_int,
    answers: *mut cublasLtMatmulHeuristicResult_t,
    count: *mut c_int,
) -> cublasStatus_t {
    answer(|| {
        known(&OBJECTS.handles, handle).map_err(|_| CUBLAS_STATUS_NOT_INITIALIZED)?;
        let fake = Fake::get().map_err(|_| CUBLAS_STATUS_NOT_INITIALIZED)?;
        let preference = known(&OBJECTS.preferences, preference)?;
        let Preference { workspace, schemes, alignments } = *preference.lock();
        if room <= 0 || answers.is_null() || count.is_null() {
            return Err(CUBLAS_STATUS_INVALID_VALUE);
        }
        let product = Product::of(description, [a, b, c, d].map(<*mut c_void>::cast_const))?;
        if fake.config.faults.no_algorithm {
            return Err(CUBLAS_STATUS_NOT_SUPPORTED);
        }
        let [x, y, z, w] = alignments.map(u64::from);
        let made = |scheme: u32, workspaceSize: u64, state| {
            let words = [u64::from(scheme), workspaceSize, product.mark(), x, y, z, w, MARK];
            let algo = cublasLtMatmulAlgo_t { data: words };
            // fits: a size of this machine
            let workspaceSize = workspaceSize as usize;
            let reserved = [0; 4];
            cublasLtMatmulHeuristicResult_t {
                algo,
                workspaceSize,
                state,
                wavesCount: 1.0,
                reserved,
            }
        };
        // the best first, and first of all one that is none
        let mut found = vec![made(0, 0, CUBLAS_STATUS_NOT_SUPPORTED)];
        let cut = product.cut_bytes();
        let may_cut = product.d.kind == Kind::F32 && product.depth >= CUT_DEPTH && cut <= workspace;
        for scheme in [1, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE] {
            if may_cut && schemes & scheme != 0 {
                found.push(made(scheme, cut, CUBLAS_STATUS_SUCCESS));
            }
        }
        found.push(made(CUBLASLT_REDUCTION_SCHEME_NONE, 0, CUBLAS_STATUS_SUCCESS));
        // fits: not negative, and few
        found.truncate(room as usize);
        // SAFETY: room is the caller's duty.
        unsafe {
            count.write(found.len() as c_int);
            for (at, answer) in found.into_iter().enumerate() {
                answers.add(at).write(answer);
            }
        }
        Ok(())
    })
}

/// # Safety
/// As of the library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulAlgoConfigGetAttribute(
    algorithm: *const cublasLtMatmulAlgo_t,
    attribute: cublasLtMatmulAlgoConfigAttributes_t,
    value: *mut c_void,
    bytes: usize,
    written: *mut usize,
) -> cublasStatus_t {
    answer(|| {
        if attribute != CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME || bytes != 4 || algorithm.is_null() {
            return wrong("an algorithm has no such attribute");
        }
        // SAFETY: the algorithm is there, and room is the caller's duty.
        unsafe {
            // fits: written so
            value.cast::<u32>().write((*algorithm).data[0] as u32);
            written.write(4);
        }
        Ok(())
    })
}

/// # Safety
/// As of the library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmul(
    handle: cublasLtHandle_t,
    description: cublasLtMatmulDesc_t,
    alpha: *const c_void,
    a: *const c_void,
    a_layout: cublasLtMatrixLayout_t,
    b: *const c_void,
    b_layout: cublasLtMatrixLayout_t,
    beta: *const c_void,
    c: *const c_void,
    c_layout: cublasLtMatrixLayout_t,
    d: *mut c_void,
    d_layout: cublasLtMatrixLayout_t,
    algorithm: *const cublasLtMatmulAlgo_t,
    workspace: *mut c_void,
    workspace_bytes: usize,
    stream: CUstream,
) -> cublasStatus_t {
    answer(|| {
        known(&OBJECTS.handles, handle).map_err(|_| CUBLAS_STATUS_NOT_INITIALIZED)?;
        let layouts = [a_layout, b_layout, c_layout, d_layout].map(<*mut c_void>::cast_const);
        let product = Product::of(description, layouts)?;
        if algorithm.is_null() || alpha.is_null() || beta.is_null() || c != d.cast_const() {
            return wrong("an algorithm, alpha and beta are needed, and C is D here");
        }
        // SAFETY: it is there: the caller's duty.
        let [scheme, needed, mark, alignments @ .., own] = unsafe { (*algorithm).data };
        if own != MARK || mark != product.mark() {
            return wrong("the algorithm is not the heuristic's for this product");
        }
        // SAFETY: both are numbers of the type that is computed in.
        let scales = unsafe {
            match product.d.kind {
                Kind::F64 => [*alpha.cast::<f64>(), *beta.cast::<f64>()],
                _ => [*alpha.cast::<f32>(), *beta.cast::<f32>()].map(f64::from),
            }
        };
        if scales != [1.0, 0.0] {
            return wrong("alpha is 1 and beta 0 here");
        }
        let addresses = [a, b, c, d.cast_const()].map(|at| at.addr() as u64);
        let is_aligned = |(at, to): (&u64, u64)| to == 0 || at.is_multiple_of(to);
        if !addresses.iter().zip(alignments).all(is_aligned) {
            return wrong("an operand does not lie where the preference says");
        }
        let workspace = workspace.addr() as u64;
        let lacks = needed > workspace_bytes as u64
            || (needed > 0 && (workspace == 0 || !workspace.is_multiple_of(WORKSPACE_ALIGNMENT)));
        if lacks {
            return wrong("the workspace is too small, or lies askew");
        }
        let fake = Fake::get().map_err(|_| CUBLAS_STATUS_NOT_INITIALIZED)?;
        let number = fake.counts.products.fetch_add(1, Ordering::Relaxed) + 1;
        if number == fake.config.faults.product {
            return Err(CUBLAS_STATUS_EXECUTION_FAILED);
        }
        let bytes = |of: &Layout| {
            let last = (of.columns - 1) * of.step.unsigned_abs() + of.rows;
            let before = (of.batch as u64 - 1) * of.batch_step.unsigned_abs();
            // fits: a size of this machine
            (before + last) as usize * of.kind.bytes()
        };
        let mut operands = vec![
            (addresses[0], bytes(&product.a)),
            (addresses[1], bytes(&product.b)),
            (addresses[3], bytes(&product.d)),
        ];
        if needed > 0 {
            operands.push((workspace, needed as usize));
        }
        let is_cut = scheme != 0;
        let call = LibraryCall::new("cublasLtMatmul", operands, move |places| {
            // SAFETY: the places have as many bytes as were asked for, and nobody else uses them while the stream does
            // this: the duty of who told it.
            unsafe { compute(&product, is_cut, places) }
        });
        let told = on_stream(stream, |fake, stream| {
            fake.before_using(&stream.context, format!("product {mark:#x}"))?;
            stream.tell(Op::Library(Arc::new(call)))
        });
        if told == 0 { Ok(()) } else { Err(CUBLAS_STATUS_EXECUTION_FAILED) }
    })
}
