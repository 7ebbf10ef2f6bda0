//! A device that is the CPU: the shim's library, and operators that run on it as a stream would do them.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use libloading::Library;
use tensorwire_cuda::{
    Address, Addresses, Command, DeviceFault, Launch, LowerError, Lowered, Lowering, Rounding,
    lower,
};
use tensorwire_graph::Op;
use tensorwire_kernels::KernelError;
use tensorwire_kernels::check::Computes;
use tensorwire_memory::{TensorMut, TensorRef};
use tensorwire_tensor::TensorSpec;
use tensorwire_testkit::shim::cuda_shim;
use tensorwire_testkit::skip::skip;

/// What the library exports.
pub(crate) struct Shim {
    launch: unsafe extern "C" fn(
        *const c_char,
        *const c_uint,
        *const c_uint,
        c_uint,
        *const c_void,
        usize,
    ) -> c_int,
    error: unsafe extern "C" fn() -> *const c_char,
    kernel: unsafe extern "C" fn(usize) -> *const c_char,
    order: unsafe extern "C" fn(c_ulonglong),
    _library: Library,
}

/// The library, opened once; none where there is no compiler, which is said.
pub(crate) fn shim() -> Option<&'static Shim> {
    static SHIM: OnceLock<Result<Shim, String>> = OnceLock::new();
    match SHIM.get_or_init(|| cuda_shim().map(|path| Shim::open(&path))) {
        Ok(shim) => Some(shim),
        Err(reason) => {
            skip(None, reason);
            None
        }
    }
}

impl Shim {
    pub(crate) fn open(path: &std::path::Path) -> Shim {
        // SAFETY: the library's start registers kernels and does nothing else, and the functions have the types that
        // shim/shim.cpp gives them
        unsafe {
            let library = Library::new(path).unwrap();
            Shim {
                launch: *library.get(b"tensorwire_shim_launch\0").unwrap(),
                error: *library.get(b"tensorwire_shim_error\0").unwrap(),
                kernel: *library.get(b"tensorwire_shim_kernel\0").unwrap(),
                order: *library.get(b"tensorwire_shim_order\0").unwrap(),
                _library: library,
            }
        }
    }

    /// The names of all kernels.
    pub(crate) fn kernels(&self) -> Vec<String> {
        // SAFETY: the function takes any number, and gives a string that lives as long as the library, or null
        let name = |at: usize| unsafe { (self.kernel)(at) };
        let names = (0..).map(name).take_while(|name| !name.is_null());
        // SAFETY: as above
        names.map(|name| unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned()).collect()
    }

    /// Runs a kernel over what its argument points to.
    ///
    /// # Safety
    /// All that the argument points to is memory that the kernel may read or write, and nobody else does meanwhile.
    pub(crate) unsafe fn launch(
        &self,
        launch: &Launch,
        argument: &[u8],
        order: u64,
    ) -> Result<(), String> {
        let name = CString::new(launch.kernel).unwrap();
        // SAFETY: grids and blocks are three numbers; of the argument as many bytes are read as there are; for the rest
        // the caller vouches
        unsafe {
            (self.order)(order);
            let done = (self.launch)(
                name.as_ptr(),
                launch.grid.as_ptr(),
                launch.block.as_ptr(),
                launch.shared_bytes,
                argument.as_ptr().cast(),
                argument.len(),
            );
            match done {
                0 => Ok(()),
                _ => Err(CStr::from_ptr((self.error)()).to_string_lossy().into_owned()),
            }
        }
    }
}

/// Memory of a device, with bytes around it that must stay as they are.
pub(crate) struct Guarded {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

const GUARD: u8 = 0x5a;
const GUARD_BYTES: usize = 128;
const ALIGNMENT: usize = 256;
const GUARDS: [u8; 4 * ALIGNMENT] = [GUARD; 4 * ALIGNMENT];

impl Guarded {
    /// Bytes that are all ones, `shift` bytes behind a multiple of 256.
    pub(crate) fn new(bytes: usize, shift: usize) -> Guarded {
        let mut memory = vec![GUARD; bytes + 2 * GUARD_BYTES + ALIGNMENT + shift];
        let first = memory.as_ptr().addr() + GUARD_BYTES;
        let start = GUARD_BYTES + first.next_multiple_of(ALIGNMENT) - first + shift;
        memory[start..start + bytes].fill(0xff);
        Guarded { memory, start, bytes }
    }

    /// As [`Guarded::new`], holding `bytes`.
    pub(crate) fn holding(bytes: &[u8], shift: usize) -> Guarded {
        let mut guarded = Guarded::new(bytes.len(), shift);
        let start = guarded.start;
        guarded.memory[start..start + bytes.len()].copy_from_slice(bytes);
        guarded
    }

    pub(crate) fn address(&mut self) -> u64 {
        self.memory[self.start..].as_mut_ptr().expose_provenance() as u64
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..self.bytes]
    }

    /// Asserts that nothing was written around it.
    pub(crate) fn check(&self, what: &str) {
        let (before, rest) = self.memory.split_at(self.start);
        let behind = &rest[self.bytes..];
        let is_whole = *before == GUARDS[..before.len()] && *behind == GUARDS[..behind.len()];
        assert!(is_whole, "{what}: bytes beside the tensor were written");
    }
}

/// One stream of a device, whose blocks run in an order of their own.
#[derive(Clone, Copy)]
pub(crate) struct Device {
    pub(crate) shim: &'static Shim,
    /// Of blocks and warps; 0 is their own.
    pub(crate) order: u64,
    /// True if tensors lie at multiples of 256, else of their elements alone.
    pub(crate) is_aligned: bool,
    pub(crate) rounding: Rounding,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.description())
    }
}

/// By what optimizers multiply their rates, and what kernels find.
struct Besides {
    rate_factor: f64,
    fault: DeviceFault,
}

impl Device {
    /// Lowers `op` and does what it says. `outputs` hold what is read of them.
    pub(crate) fn run(
        &self,
        op: &Op,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
        in_place: bool,
        rate_factor: f64,
    ) -> Result<(), KernelError> {
        let out: Vec<TensorSpec> = outputs.iter().map(|output| output.spec().clone()).collect();
        let given = inputs.iter().map(|input| input.spec());
        // the first input has the first output's spec where it lies there
        let given: Vec<TensorSpec> =
            out.iter().take(usize::from(in_place)).chain(given).cloned().collect();
        let options = Lowering { tag: 77, rounding: self.rounding, ..Lowering::default() };
        let lowered =
            lower(op, &given, &out, in_place, &options).map_err(|error| said(op, error))?;
        let shift = |spec: &TensorSpec| if self.is_aligned { 0 } else { spec.dtype.bytes() };
        let mut read: Vec<Guarded> =
            inputs.iter().map(|x| Guarded::holding(x.bytes(), shift(x.spec()))).collect();
        if in_place {
            read.insert(0, Guarded::new(0, 0));
        }
        let read_outputs = if in_place { 1 } else { op.mutated_inputs() };
        let mut made: Vec<Guarded> = Vec::with_capacity(outputs.len());
        for (place, output) in outputs.iter_mut().enumerate() {
            let shift = shift(output.spec());
            made.push(match place < read_outputs {
                true => Guarded::holding(output.bytes(), shift),
                false => Guarded::new(output.spec().bytes(), shift),
            });
        }
        let before: Vec<Vec<u8>> = read.iter().map(|x| x.bytes().to_vec()).collect();
        let fault = self.commands(op, &lowered, &mut read, &mut made, rate_factor);
        if fault != DeviceFault::default() {
            return Err(lowered.explain(&fault).unwrap());
        }
        for (place, (x, before)) in read.iter().zip(before).enumerate() {
            assert!(x.bytes() == before, "{}: input {place} was written", op.name());
            x.check(op.name());
        }
        for (output, made) in outputs.iter_mut().zip(&made) {
            made.check(op.name());
            output.bytes().copy_from_slice(made.bytes());
        }
        Ok(())
    }

    fn commands(
        &self,
        op: &Op,
        lowered: &Lowered,
        read: &mut [Guarded],
        made: &mut [Guarded],
        rate_factor: f64,
    ) -> DeviceFault {
        let mut workspace = Guarded::new(lowered.workspace_bytes, 0);
        let mut besides = Besides { rate_factor, fault: DeviceFault::default() };
        let (inputs, outputs) = (addresses(read), addresses(made));
        let addresses = Addresses {
            inputs: &inputs,
            outputs: &outputs,
            workspace: workspace.address(),
            rate_factor: (&raw mut besides.rate_factor).expose_provenance() as u64,
            fault: (&raw mut besides.fault).expose_provenance() as u64,
            progress: 0,
        };
        for command in &lowered.commands {
            self.command(op, command, &addresses);
        }
        workspace.check(op.name());
        // SAFETY: it is there, and kernels have ended
        unsafe { (&raw const besides.fault).read_volatile() }
    }

    fn command(&self, op: &Op, command: &Command, addresses: &Addresses<'_>) {
        let at = |address: Address| addresses.resolve(address).unwrap() as usize;
        match command {
            Command::Launch(launch) => {
                let argument = launch.bytes(addresses).unwrap();
                // SAFETY: operands, workspace and the rest are memory that nobody else uses while this runs; that the
                // commands stay within them is what the guards around them test
                let ran = unsafe { self.shim.launch(launch, &argument, self.order) };
                ran.unwrap_or_else(|error| panic!("{}: {error}", op.name()));
            }
            Command::Program(_) => panic!("{}: nothing compiles programs here", op.name()),
            Command::Product(_) | Command::Convolution(_) => {
                panic!("{}: no library is here", op.name())
            }
            Command::Copy { from, to, bytes } => {
                let (from, to) = (at(*from), at(*to));
                assert!(from + bytes <= to || to + bytes <= from, "{}: a copy overlaps", op.name());
                // SAFETY: as above, and they do not overlap
                unsafe {
                    let from = std::ptr::with_exposed_provenance::<u8>(from);
                    from.copy_to_nonoverlapping(std::ptr::with_exposed_provenance_mut(to), *bytes);
                }
            }
            Command::Set { to, bytes, byte } => {
                // SAFETY: as above
                unsafe {
                    std::ptr::with_exposed_provenance_mut::<u8>(at(*to)).write_bytes(*byte, *bytes)
                }
            }
        }
    }
}

fn addresses(all: &mut [Guarded]) -> Vec<u64> {
    all.iter_mut().map(Guarded::address).collect()
}

fn said(op: &Op, error: LowerError) -> KernelError {
    match error {
        LowerError::Kernel(error) => error,
        other => KernelError::Refused { op: op.name(), why: other.to_string() },
    }
}

impl Computes for Device {
    fn description(&self) -> String {
        let Device { order, is_aligned, rounding, .. } = self;
        format!(
            "cuda kernels on one thread of the CPU, order {order}, aligned {is_aligned}, {rounding:?} rounded"
        )
    }

    fn compute(
        &self,
        op: &Op,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), KernelError> {
        self.run(op, inputs, outputs, false, 1.0)
    }

    fn compute_in_place(
        &self,
        op: &Op,
        rest: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), KernelError> {
        self.run(op, rest, outputs, true, 1.0)
    }

    /// The same bits in any order of blocks, wherever tensors lie.
    fn kin(&self, _: &Op) -> Option<String> {
        Some("cuda".to_owned())
    }
}
