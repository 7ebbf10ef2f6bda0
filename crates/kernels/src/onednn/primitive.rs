//! The library's objects with owners: each holds the engine, is destroyed once, and a status that is not
//! success is an error. Knows no operator.

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::library::{self as sys, Dim, Library, OpenError, Status, arg, query};

/// Why the library did not compute: the caller's own kernels then do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// `dnnl_status_t`: 3 is "not implemented for this".
    Status(Status),
    /// There is nothing to compute, or a number is too large for the library, or the operator is defined
    /// otherwise than the library's.
    Shape,
}

/// The CPU, as the library names it, with how primitives are made.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) library: Library,
    raw: NonNull<sys::Engine>,
    /// Scratch is the caller's.
    attributes: NonNull<sys::Attributes>,
}

/// Where primitives run: in a CPU's stream, before the call returns.
#[derive(Debug)]
pub(super) struct Stream {
    raw: NonNull<sys::Stream>,
    engine: Arc<Engine>,
}

/// Dimensions, element type and order of a tensor.
#[derive(Debug)]
pub(super) struct Desc {
    raw: NonNull<sys::MemoryDesc>,
    engine: Arc<Engine>,
}

/// A primitive that could be made.
#[derive(Debug)]
pub(super) struct Blueprint {
    raw: NonNull<sys::PrimitiveDesc>,
    engine: Arc<Engine>,
}

/// Code for one operator and its sizes.
#[derive(Debug)]
pub(super) struct Primitive {
    raw: NonNull<sys::Primitive>,
    scratchpad: Option<Desc>,
    engine: Arc<Engine>,
}

/// A descriptor with an address.
struct Memory<'e> {
    raw: NonNull<sys::Memory>,
    engine: &'e Engine,
}

// SAFETY: for all of these, the library's objects belong to the process, not to a thread; engine, attributes,
// descriptors and primitives are not changed after they were made (a primitive whose scratch is the caller's
// keeps nothing between runs), and their reference counts are atomic. Each value owns its object alone and
// destroys it once, in `drop`. A stream of a CPU engine is changed by nobody but a run, which takes it
// exclusively.
unsafe impl Send for Engine {}
// SAFETY: as above.
unsafe impl Sync for Engine {}
// SAFETY: as above.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Send for Desc {}
// SAFETY: as above.
unsafe impl Send for Blueprint {}
// SAFETY: as above.
unsafe impl Send for Primitive {}

/// What a function of the library made, if it says that it did.
fn made<T>(status: Status, raw: *mut T) -> Result<NonNull<T>, Refused> {
    check(status)?;
    NonNull::new(raw).ok_or(Refused::Status(status))
}

fn check(status: Status) -> Result<(), Refused> {
    if status == sys::SUCCESS { Ok(()) } else { Err(Refused::Status(status)) }
}

/// `sizes` as the library's, with zeros behind: it reads as many as a descriptor has, at most all.
pub(super) fn dims(sizes: &[usize]) -> Result<[Dim; sys::DIMS_MAX], Refused> {
    let mut dims = [0; sys::DIMS_MAX];
    if sizes.len() > dims.len() {
        return Err(Refused::Shape);
    }
    for (dim, &size) in dims.iter_mut().zip(sizes) {
        *dim = Dim::try_from(size).map_err(|_| Refused::Shape)?;
    }
    Ok(dims)
}

impl Engine {
    pub(super) fn open(library: Library) -> Result<Arc<Engine>, OpenError> {
        let failed = |refused| match refused {
            Refused::Status(status) => OpenError::Engine { status },
            Refused::Shape => OpenError::Engine { status: 0 },
        };
        let functions = &library.functions;
        let mut raw = ptr::null_mut();
        // SAFETY: a valid place for the engine.
        let status = unsafe { (functions.engine_create)(&mut raw, sys::CPU, 0) };
        let raw = made(status, raw).map_err(failed)?;
        let mut attributes = ptr::null_mut();
        // SAFETY: a valid place for the attributes.
        let status = unsafe { (functions.primitive_attr_create)(&mut attributes) };
        let attributes = made(status, attributes).map_err(failed)?;
        let engine = Engine { library, raw, attributes };
        let set = engine.library.functions.primitive_attr_set_scratchpad_mode;
        // SAFETY: living attributes, which nobody else knows yet.
        check(unsafe { set(attributes.as_ptr(), sys::SCRATCHPAD_USER) }).map_err(failed)?;
        Ok(Arc::new(engine))
    }

    pub(super) fn raw(&self) -> *mut sys::Engine {
        self.raw.as_ptr()
    }

    pub(super) fn attributes(&self) -> *const sys::Attributes {
        self.attributes.as_ptr()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let functions = &self.library.functions;
        // SAFETY: made by this value, destroyed once; everything made of the engine holds it.
        unsafe {
            (functions.primitive_attr_destroy)(self.attributes.as_ptr());
            (functions.engine_destroy)(self.raw.as_ptr());
        }
    }
}

impl Stream {
    pub(super) fn new(engine: &Arc<Engine>) -> Result<Stream, Refused> {
        let mut raw = ptr::null_mut();
        let create = engine.library.functions.stream_create;
        // SAFETY: a valid place, a living engine, which the stream holds.
        let status = unsafe { create(&mut raw, engine.raw(), sys::STREAM_DEFAULT) };
        Ok(Stream { raw: made(status, raw)?, engine: engine.clone() })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made by this value, destroyed once.
        unsafe { (self.engine.library.functions.stream_destroy)(self.raw.as_ptr()) };
    }
}

impl Desc {
    /// Elements at these steps, of f32.
    pub(super) fn strided(
        engine: &Arc<Engine>,
        sizes: &[usize],
        strides: &[usize],
    ) -> Result<Desc, Refused> {
        let (rank, sizes, strides) = Desc::lists(sizes, strides)?;
        let create = engine.library.functions.memory_desc_create_with_strides;
        let mut raw = ptr::null_mut();
        // SAFETY: a valid place, and lists of DIMS_MAX numbers, of which `rank` are read.
        let status = unsafe { create(&mut raw, rank, sizes.as_ptr(), sys::F32, strides.as_ptr()) };
        Ok(Desc { raw: made(status, raw)?, engine: engine.clone() })
    }

    /// Elements one behind the other, the last dimension innermost, of f32.
    pub(super) fn dense(engine: &Arc<Engine>, sizes: &[usize]) -> Result<Desc, Refused> {
        let mut strides = vec![1; sizes.len()];
        for dim in (1..sizes.len()).rev() {
            strides[dim - 1] = strides[dim] * sizes[dim];
        }
        Desc::strided(engine, sizes, &strides)
    }

    /// [n,c,h,w] with the channels innermost, of f32.
    pub(super) fn image(
        engine: &Arc<Engine>,
        batch: usize,
        channels: usize,
        [h, w]: [usize; 2],
    ) -> Result<Desc, Refused> {
        let strides = [h * w * channels, 1, w * channels, channels];
        Desc::strided(engine, &[batch, channels, h, w], &strides)
    }

    /// The order is the library's choice, f32.
    pub(super) fn any(engine: &Arc<Engine>, sizes: &[usize]) -> Result<Desc, Refused> {
        let (rank, sizes, _) = Desc::lists(sizes, sizes)?;
        let create = engine.library.functions.memory_desc_create_with_tag;
        let mut raw = ptr::null_mut();
        // SAFETY: a valid place, and a list of DIMS_MAX numbers, of which `rank` are read.
        let status = unsafe { create(&mut raw, rank, sizes.as_ptr(), sys::F32, sys::ANY) };
        Ok(Desc { raw: made(status, raw)?, engine: engine.clone() })
    }

    #[allow(clippy::type_complexity)] // the arguments, in their order
    fn lists(
        sizes: &[usize],
        strides: &[usize],
    ) -> Result<(c_int, [Dim; sys::DIMS_MAX], [Dim; sys::DIMS_MAX]), Refused> {
        if sizes.len() != strides.len() || sizes.contains(&0) {
            return Err(Refused::Shape);
        }
        let rank = c_int::try_from(sizes.len()).map_err(|_| Refused::Shape)?;
        Ok((rank, dims(sizes)?, dims(strides)?))
    }

    pub(super) fn raw(&self) -> *const sys::MemoryDesc {
        self.raw.as_ptr()
    }

    /// Bytes from the first element's to the last's end, with the padding of blocks.
    pub(super) fn bytes(&self) -> usize {
        // SAFETY: a living descriptor.
        unsafe { (self.engine.library.functions.memory_desc_get_size)(self.raw()) }
    }

    pub(super) fn is_same(&self, other: &Desc) -> bool {
        // SAFETY: living descriptors.
        unsafe { (self.engine.library.functions.memory_desc_equal)(self.raw(), other.raw()) != 0 }
    }
}

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY: made by this value, destroyed once.
        unsafe { (self.engine.library.functions.memory_desc_destroy)(self.raw.as_ptr()) };
    }
}

impl Blueprint {
    /// What `create` makes of the engine and its attributes.
    ///
    /// # Safety
    /// `create` calls one of the library's `*_primitive_desc_create` with the place it is given, living
    /// descriptors, and lists of DIMS_MAX numbers.
    pub(super) unsafe fn new(
        engine: &Arc<Engine>,
        create: impl FnOnce(*mut *mut sys::PrimitiveDesc) -> Status,
    ) -> Result<Blueprint, Refused> {
        let mut raw = ptr::null_mut();
        let status = create(&mut raw);
        Ok(Blueprint { raw: made(status, raw)?, engine: engine.clone() })
    }

    /// From one order to another.
    pub(super) fn reorder(source: &Desc, target: &Desc) -> Result<Blueprint, Refused> {
        let engine = &source.engine;
        let create = engine.library.functions.reorder_primitive_desc_create;
        let (raw, attributes) = (engine.raw(), engine.attributes());
        // SAFETY: `create` is the library's, the descriptors live.
        unsafe {
            Blueprint::new(engine, |place| {
                create(place, source.raw(), raw, target.raw(), raw, attributes)
            })
        }
    }

    pub(super) fn raw(&self) -> *const sys::PrimitiveDesc {
        self.raw.as_ptr()
    }

    /// How the primitive wants an argument; none where it takes no such.
    pub(super) fn argument(&self, argument: c_int) -> Option<Desc> {
        self.described(query::ARGUMENT, argument)
    }

    fn described(&self, what: c_int, index: c_int) -> Option<Desc> {
        let functions = &self.engine.library.functions;
        // SAFETY: a living descriptor; the result lives as long, and is cloned before.
        let found = unsafe { (functions.primitive_desc_query_md)(self.raw(), what, index) };
        if found.is_null() {
            return None;
        }
        let mut raw = ptr::null_mut();
        // SAFETY: a valid place, a living descriptor.
        let status = unsafe { (functions.memory_desc_clone)(&mut raw, found) };
        let desc = Desc { raw: made(status, raw).ok()?, engine: self.engine.clone() };
        // what is not there is a descriptor of nothing
        (desc.bytes() > 0).then_some(desc)
    }

    pub(super) fn build(&self) -> Result<Primitive, Refused> {
        let mut raw = ptr::null_mut();
        let create = self.engine.library.functions.primitive_create;
        // SAFETY: a valid place, a living descriptor.
        let status = unsafe { create(&mut raw, self.raw()) };
        let raw = made(status, raw)?;
        let scratchpad = self.described(query::SCRATCHPAD, 0);
        Ok(Primitive { raw, scratchpad, engine: self.engine.clone() })
    }
}

impl Drop for Blueprint {
    fn drop(&mut self) {
        // SAFETY: made by this value, destroyed once.
        unsafe { (self.engine.library.functions.primitive_desc_destroy)(self.raw.as_ptr()) };
    }
}

impl Primitive {
    /// Bytes that it needs while it runs.
    pub(super) fn scratchpad_bytes(&self) -> usize {
        self.scratchpad.as_ref().map_or(0, Desc::bytes)
    }

    /// Runs with arguments at these addresses.
    ///
    /// # Safety
    /// The descriptors are those that the primitive's blueprint has for these arguments. Each address is
    /// valid for reads of [`Desc::bytes`], and for writes too where the primitive writes, and
    /// `scratchpad` for both of [`Primitive::scratchpad_bytes`]; nobody else touches what is written
    /// until this returns.
    pub(super) unsafe fn run(
        &self,
        stream: &mut Stream,
        arguments: &[(c_int, &Desc, *mut u8)],
        scratchpad: *mut u8,
    ) -> Result<(), Refused> {
        let own = self.scratchpad.as_ref().map(|desc| (arg::SCRATCHPAD, desc, scratchpad));
        let mut memories = Vec::with_capacity(arguments.len() + 1);
        let mut list = Vec::with_capacity(arguments.len() + 1);
        for &(arg, desc, address) in arguments.iter().chain(&own) {
            let memory = Memory::new(&self.engine, desc, address)?;
            list.push(sys::Argument { arg, memory: memory.raw.as_ptr() });
            memories.push(memory);
        }
        let count = c_int::try_from(list.len()).map_err(|_| Refused::Shape)?;
        let functions = &self.engine.library.functions;
        // SAFETY: primitive, stream and memories live; what lies at their addresses is the caller's duty.
        unsafe {
            let (primitive, stream) = (self.raw.as_ptr(), stream.raw.as_ptr());
            check((functions.primitive_execute)(primitive, stream, count, list.as_ptr()))?;
            check((functions.stream_wait)(stream))
        }
    }
}

impl Drop for Primitive {
    fn drop(&mut self) {
        // SAFETY: made by this value, destroyed once.
        unsafe { (self.engine.library.functions.primitive_destroy)(self.raw.as_ptr()) };
    }
}

impl<'e> Memory<'e> {
    fn new(engine: &'e Engine, desc: &Desc, address: *mut u8) -> Result<Memory<'e>, Refused> {
        let mut raw = ptr::null_mut();
        let create = engine.library.functions.memory_create;
        // SAFETY: a valid place, living descriptor and engine; the address is kept and not looked at.
        let status = unsafe { create(&mut raw, desc.raw(), engine.raw(), address.cast()) };
        Ok(Memory { raw: made(status, raw)?, engine })
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // SAFETY: made by this value, destroyed once; what lies at its address is not the library's.
        unsafe { (self.engine.library.functions.memory_destroy)(self.raw.as_ptr()) };
    }
}
