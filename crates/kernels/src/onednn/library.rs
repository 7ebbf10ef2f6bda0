//! libdnnl, loaded at run time: the functions of its C API (version 3) that are called, with their types and
//! numbers as `dnnl.h` and `dnnl_types.h` have them. Knows no operator; who calls has the duties.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;

use tensorwire_base::{LOADS_NOTHING, LoadsNothing};

/// The library's name, as the dynamic linker looks for it.
const SONAME: &str = "libdnnl.so.3";

/// The least version: the C API of 3.x as it was measured here.
const VERSION_MIN: (c_int, c_int) = (3, 2);

/// An object of the library, which is known by its address alone.
macro_rules! opaque {
    ($($name:ident),*) => {$(
        #[repr(C)]
        pub(super) struct $name {
            _private: [u8; 0],
        }
    )*};
}
opaque!(Engine, Stream, MemoryDesc, Memory, Attributes, PrimitiveDesc, Primitive);

/// `dnnl_dim_t`.
pub(super) type Dim = i64;
/// `dnnl_status_t`.
pub(super) type Status = c_int;

pub(super) const SUCCESS: Status = 0;
pub(super) const CPU: c_int = 1;
pub(super) const STREAM_DEFAULT: c_uint = 1;
pub(super) const F32: c_int = 3;
pub(super) const ANY: c_int = 1;
pub(super) const SCRATCHPAD_USER: c_int = 1;
/// Entries of a list of dimensions.
pub(super) const DIMS_MAX: usize = 12;

pub(super) mod kind {
    use std::ffi::c_int;

    pub(in super::super) const FORWARD_TRAINING: c_int = 64;
    pub(in super::super) const CONVOLUTION_DIRECT: c_int = 0x1;
}

pub(super) mod query {
    use std::ffi::c_int;

    pub(in super::super) const SCRATCHPAD: c_int = 136;
    /// The descriptor of an argument, by the argument's number.
    pub(in super::super) const ARGUMENT: c_int = 255;
}

/// What an argument of a primitive is to it.
pub(super) mod arg {
    use std::ffi::c_int;

    pub(in super::super) const SRC: c_int = 1;
    pub(in super::super) const DST: c_int = 17;
    pub(in super::super) const WEIGHTS: c_int = 33;
    pub(in super::super) const SCRATCHPAD: c_int = 80;
    pub(in super::super) const DIFF_SRC: c_int = 129;
    pub(in super::super) const DIFF_DST: c_int = 145;
    pub(in super::super) const DIFF_WEIGHTS: c_int = 161;
}

/// `dnnl_exec_arg_t`.
#[repr(C)]
pub(super) struct Argument {
    pub(super) arg: c_int,
    pub(super) memory: *mut Memory,
}

/// `dnnl_version_t`.
#[repr(C)]
struct Version {
    major: c_int,
    minor: c_int,
    patch: c_int,
    hash: *const c_char,
    cpu_runtime: c_uint,
    gpu_runtime: c_uint,
}

/// Why oneDNN is not there to compute.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error(
        "oneDNN cannot be loaded: {reason}; looked for {looked_for}. Install the package libdnnl3 (Debian 13, \
         Ubuntu 24.04), or put libdnnl.so.3 from PyPI's onednn-cpu-gomp where the dynamic linker looks \
         (ldconfig, LD_LIBRARY_PATH)"
    )]
    Missing { looked_for: String, reason: String },
    #[error("oneDNN cannot be loaded: {why}; {mend}")]
    Static { why: &'static str, mend: &'static str },
    #[error("{looked_for} is oneDNN {found}; 3.2 or a later 3.x is needed")]
    Version { looked_for: String, found: String },
    #[error(
        "{looked_for} is oneDNN built for {runtime}; one built for OpenMP is needed, as Debian's libdnnl3 and \
         PyPI's onednn-cpu-gomp are"
    )]
    Threading { looked_for: String, runtime: &'static str },
    #[error("{looked_for} has no function {function}: it is not a whole oneDNN")]
    Function { looked_for: String, function: &'static str },
    #[error("oneDNN opens no CPU engine: status {status}")]
    Engine { status: i32 },
}

/// The functions by their names without `dnnl_`.
macro_rules! functions {
    ($($name:ident: fn($($type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
        }

        impl Functions {
            /// # Safety
            /// `library` is oneDNN of API version 3.
            unsafe fn load(
                library: &libloading::Library,
                looked_for: &str,
            ) -> Result<Functions, OpenError> {
                $(
                    let function = concat!("dnnl_", stringify!($name));
                    // SAFETY: a function of that name in oneDNN 3 has this type (dnnl.h); the library is
                    // the caller's duty.
                    let $name = unsafe {
                        library.get::<unsafe extern "C" fn($($type),*) $(-> $result)?>(
                            function.as_bytes(),
                        )
                    };
                    let looked_for_here = || looked_for.to_owned();
                    let $name = *$name.map_err(|_| OpenError::Function {
                        looked_for: looked_for_here(),
                        function,
                    })?;
                )*
                Ok(Functions { $($name,)* })
            }
        }
    };
}

functions! {
    engine_create: fn(*mut *mut Engine, c_int, usize) -> Status;
    engine_destroy: fn(*mut Engine) -> Status;
    stream_create: fn(*mut *mut Stream, *mut Engine, c_uint) -> Status;
    stream_destroy: fn(*mut Stream) -> Status;
    stream_wait: fn(*mut Stream) -> Status;
    memory_desc_create_with_strides:
        fn(*mut *mut MemoryDesc, c_int, *const Dim, c_int, *const Dim) -> Status;
    memory_desc_create_with_tag:
        fn(*mut *mut MemoryDesc, c_int, *const Dim, c_int, c_int) -> Status;
    memory_desc_clone: fn(*mut *mut MemoryDesc, *const MemoryDesc) -> Status;
    memory_desc_destroy: fn(*mut MemoryDesc) -> Status;
    memory_desc_equal: fn(*const MemoryDesc, *const MemoryDesc) -> c_int;
    memory_desc_get_size: fn(*const MemoryDesc) -> usize;
    memory_create: fn(*mut *mut Memory, *const MemoryDesc, *mut Engine, *mut c_void) -> Status;
    memory_destroy: fn(*mut Memory) -> Status;
    primitive_attr_create: fn(*mut *mut Attributes) -> Status;
    primitive_attr_destroy: fn(*mut Attributes) -> Status;
    primitive_attr_set_scratchpad_mode: fn(*mut Attributes, c_int) -> Status;
    primitive_desc_destroy: fn(*mut PrimitiveDesc) -> Status;
    primitive_desc_query_md: fn(*const PrimitiveDesc, c_int, c_int) -> *const MemoryDesc;
    primitive_create: fn(*mut *mut Primitive, *const PrimitiveDesc) -> Status;
    primitive_destroy: fn(*mut Primitive) -> Status;
    primitive_execute: fn(*const Primitive, *mut Stream, c_int, *const Argument) -> Status;
    // (out, source, its engine, target, its engine, attributes)
    reorder_primitive_desc_create: fn(
        *mut *mut PrimitiveDesc,
        *const MemoryDesc,
        *mut Engine,
        *const MemoryDesc,
        *mut Engine,
        *const Attributes,
    ) -> Status;
    // (out, engine, propagation, algorithm, x, weights, bias, y, strides, dilations, padding before, padding
    // behind, attributes)
    convolution_forward_primitive_desc_create: fn(
        *mut *mut PrimitiveDesc,
        *mut Engine,
        c_int,
        c_int,
        *const MemoryDesc,
        *const MemoryDesc,
        *const MemoryDesc,
        *const MemoryDesc,
        *const Dim,
        *const Dim,
        *const Dim,
        *const Dim,
        *const Attributes,
    ) -> Status;
    // (out, engine, algorithm, dx, weights, dy, strides, dilations, padding, padding, forward, attributes)
    convolution_backward_data_primitive_desc_create: fn(
        *mut *mut PrimitiveDesc,
        *mut Engine,
        c_int,
        *const MemoryDesc,
        *const MemoryDesc,
        *const MemoryDesc,
        *const Dim,
        *const Dim,
        *const Dim,
        *const Dim,
        *const PrimitiveDesc,
        *const Attributes,
    ) -> Status;
    // (out, engine, algorithm, x, d weights, d bias, dy, strides, dilations, padding, padding, forward,
    // attributes)
    convolution_backward_weights_primitive_desc_create: fn(
        *mut *mut PrimitiveDesc,
        *mut Engine,
        c_int,
        *const MemoryDesc,
        *const MemoryDesc,
        *const MemoryDesc,
        *const MemoryDesc,
        *const Dim,
        *const Dim,
        *const Dim,
        *const Dim,
        *const PrimitiveDesc,
        *const Attributes,
    ) -> Status;
}

/// The loaded library. It stays loaded: OpenMP's threads run code of its dependencies until the process ends.
pub(super) struct Library {
    pub(super) functions: Functions,
    /// Of the OpenMP runtime that this library runs on. None: the library is sequential.
    set_threads: Option<unsafe extern "C" fn(c_int)>,
    /// As people write it.
    pub(super) version: String,
    pub(super) looked_for: String,
    _handle: ManuallyDrop<libloading::Library>,
}

impl Library {
    /// Loads the library of that path, or of the plain name, for which the dynamic linker looks.
    pub(super) fn load(path: Option<&Path>) -> Result<Library, OpenError> {
        let name = path.unwrap_or(Path::new(SONAME));
        let looked_for = name.display().to_string();
        if let Some(LoadsNothing { why, mend }) = LOADS_NOTHING {
            return Err(OpenError::Static { why, mend });
        }
        let handle = on_one_cpu(|| {
            // SAFETY: a library's initialisers run: that oneDNN's and its dependencies' may is what a caller
            // asks for who opens this back end. They are not bound to a thread.
            unsafe { libloading::Library::new(name) }
        });
        let handle = handle.and_then(|loaded| loaded.map_err(|error| error.to_string()));
        let missing = |reason| OpenError::Missing { looked_for: looked_for.clone(), reason };
        let handle = handle.map_err(missing)?;
        let handle = ManuallyDrop::new(handle);
        type GetVersion = unsafe extern "C" fn() -> *const Version;
        // SAFETY: `dnnl_version` has this type in every version that has it, with fields that were only
        // added behind (dnnl_types.h of 0.x to 3.x), and returns a constant of the library, or null.
        let version = unsafe {
            handle.get::<GetVersion>(b"dnnl_version").ok().and_then(|get| get().as_ref())
        };
        let Some(version) = version else {
            return Err(OpenError::Function { looked_for, function: "dnnl_version" });
        };
        let Version { major, minor, patch, .. } = *version;
        let found = format!("{major}.{minor}.{patch}");
        if major != VERSION_MIN.0 || minor < VERSION_MIN.1 {
            return Err(OpenError::Version { looked_for, found });
        }
        let refused = |runtime| OpenError::Threading { looked_for: looked_for.clone(), runtime };
        // bits of DNNL_RUNTIME_*
        let set_threads = match version.cpu_runtime {
            1 => None,
            // found in the library's dependencies: the OpenMP runtime that it runs on, not just any
            // SAFETY: a function of that name has this type by the OpenMP standard.
            2 => match unsafe { handle.get(b"omp_set_num_threads") } {
                Ok(function) => Some(*function),
                Err(_) => return Err(refused("an OpenMP without omp_set_num_threads")),
            },
            4 => return Err(refused("TBB")),
            8 => return Err(refused("a thread pool of the caller")),
            _ => return Err(refused("SYCL")),
        };
        // SAFETY: `dnnl_version` has said that it is oneDNN 3.
        let functions = unsafe { Functions::load(&handle, &looked_for)? };
        Ok(Library { functions, set_threads, version: found, looked_for, _handle: handle })
    }

    /// How many threads the primitives that this thread makes and runs from now on have.
    pub(super) fn set_threads(&self, threads: usize) {
        if let Some(set) = self.set_threads {
            // SAFETY: takes any positive number; concerns the calling thread's parallel regions alone.
            unsafe { set(c_int::try_from(threads.max(1)).unwrap_or(c_int::MAX)) };
        }
    }

    /// True if it can use more than the caller's thread.
    pub(super) fn is_parallel(&self) -> bool {
        self.set_threads.is_some()
    }
}

/// Calls `load` on a thread that may use one CPU.
///
/// As GNU's OpenMP is loaded it counts the CPUs of the loading thread. Its threads wait for one another
/// spinning, some 3 ms, but where they are more than that count: there they sleep almost at once (libgomp,
/// `do_spin` in `config/linux/wait.h`). Spinning is for who owns the machine, and here threads that poll,
/// pools and other processes want the same cores: under load, two spinning threads took 8 ms, a slice of the
/// scheduler, for what one does in 0.2. The environment says the same (OMP_WAIT_POLICY), but cannot be
/// changed once there are threads.
fn on_one_cpu<T: Send>(load: impl FnOnce() -> T + Send) -> Result<T, String> {
    let loading = || {
        let mut one = rustix::thread::CpuSet::new();
        one.set(rustix::thread::sched_getcpu());
        // refused: it spins
        let _ = rustix::thread::sched_setaffinity(None, &one);
        load()
    };
    // a thread for this alone
    match rayon::ThreadPoolBuilder::new().num_threads(1).build() {
        Ok(thread) => Ok(thread.install(loading)),
        Err(error) => Err(error.to_string()),
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "oneDNN {} ({})", self.version, self.looked_for)
    }
}
