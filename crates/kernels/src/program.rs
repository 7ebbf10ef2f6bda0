//! What computes a user's operator on GPUs: CUDA C or PTX that the operator brings, and what it launches of it, as plain data.
//! All of it is checked here, as far as no GPU and no compiler is needed. Knows no driver.

mod ptx;

use std::any::Any;
use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tensorwire_graph::{CustomOp, GraphError, Op, Refusal};
use tensorwire_tensor::{DType, TensorSpec};

use crate::error::KernelError;
use crate::launch::custom::{Carried, CustomKernel, said};

pub use ptx::PtxEntry;

/// Threads of a block, in each dimension and together; blocks of a grid, in each dimension.
const BLOCK_MAX: [usize; 3] = [1024, 1024, 64];
const THREADS_MAX: usize = 1024;
const GRID_MAX: [usize; 3] = [(1 << 31) - 1, 65_535, 65_535];
/// Bytes of shared memory that any GPU gives a block (compute capability 9.0 and newer).
const SHARED_MAX: usize = 227 << 10;
/// Bytes that a kernel takes as its arguments.
const ARGUMENTS_MAX: usize = 4096 / 8;
/// Threads of a block of [`CudaCall::launch_elements`].
const THREADS: usize = 256;
/// Where parts of the scratch begin.
const ALIGNMENT: usize = 256;
/// What a source calls the type of elements.
const SCALAR: &str = "Scalar";

/// What computes an operator on GPUs, besides what computes it on the host: it is then started there as ours are, and nothing
/// is copied. With [`custom_with_cuda`] it becomes an [`Op`].
pub trait CudaKernel: CustomKernel {
    /// The kernels, as CUDA C or as PTX. A program is compiled once in each process, for each type of elements.
    fn program(&self) -> CudaProgram;

    /// Says what is launched, in this order. It may depend on types and shapes and on the operator's fields, and on nothing
    /// else. What the outputs and the scratch held before is unspecified.
    ///
    /// # Errors
    /// When it cannot compute such operands.
    fn launches(&self, call: &mut CudaCall<'_>) -> Result<(), Refusal>;
}

/// The operator with its rules, what computes it on the host, and what computes it on GPUs.
///
/// # Errors
/// When the program is none, as far as that is seen without a compiler.
pub fn custom_with_cuda(operator: impl CudaKernel) -> Result<Op, GraphError> {
    let program = operator.program();
    program.check().map_err(|why| GraphError::Invalid {
        node: operator.name().to_owned(),
        what: format!("cannot compute on GPUs: {why}"),
    })?;
    Ok(Carried::with_cuda(operator))
}

/// Kernels as text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CudaProgram {
    text: Cow<'static, str>,
    is_ptx: bool,
    options: Vec<String>,
}

impl CudaProgram {
    /// CUDA C, which NVRTC compiles for the GPU at hand. Kernels are `extern "C" __global__ void` and take pointers,
    /// `long long` and `double`. `Scalar` is the type of elements of the first operand: `float`, `double`, `int`,
    /// `long long`, `unsigned char`, and `unsigned short` for bf16. NVRTC has none of the C++ library's headers.
    pub fn source(text: impl Into<Cow<'static, str>>) -> CudaProgram {
        CudaProgram { text: text.into(), is_ptx: false, options: Vec::new() }
    }

    /// PTX, which the driver compiles: NVRTC is not needed.
    pub fn ptx(text: impl Into<Cow<'static, str>>) -> CudaProgram {
        CudaProgram { text: text.into(), is_ptx: true, options: Vec::new() }
    }

    /// Adds an option of NVRTC's, as `--fmad=false` or `-DROWS=4`.
    #[must_use]
    pub fn option(mut self, option: impl Into<String>) -> CudaProgram {
        self.options.push(option.into());
        self
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn is_ptx(&self) -> bool {
        self.is_ptx
    }

    /// NVRTC's options for elements of a type.
    pub fn options(&self, scalar: Option<DType>) -> Vec<String> {
        let define = scalar.map(|dtype| format!("--define-macro={SCALAR}={}", name_of(dtype)));
        define.into_iter().chain(self.options.iter().cloned()).collect()
    }

    /// The kernels of PTX, its own or a compiler's.
    ///
    /// # Errors
    /// When it is none.
    pub fn entries(ptx: &str) -> Result<Vec<PtxEntry>, String> {
        ptx::entries(ptx)
    }

    fn check(&self) -> Result<(), String> {
        let text = self.text();
        if text.contains('\0') || self.options.iter().any(|option| option.contains('\0')) {
            return Err("a byte of it is 0".to_owned());
        }
        if self.is_ptx {
            return match self.options.first() {
                Some(option) => {
                    Err(format!("PTX is compiled by the driver, which takes no {option}"))
                }
                None => ptx::entries(text).map(|_| ()),
            };
        }
        if !text.contains("__global__") || !text.contains("extern \"C\"") {
            let why = "the source has no kernel: declare one as extern \"C\" __global__ void";
            return Err(why.to_owned());
        }
        let ours = ["-arch", "--gpu-architecture", "-dlto", "--dlink-time-opt", "-dc", "-rdc"];
        for option in &self.options {
            if !option.starts_with('-') || ours.iter().any(|ours| option.starts_with(ours)) {
                let why = "is not for an operator to say; give options as --fmad=false or -DROWS=4";
                return Err(format!("{option} {why}"));
            }
        }
        Ok(())
    }

    /// Checks that it has a kernel of this name, as far as that is seen without a compiler.
    fn check_launch(&self, launch: &CudaLaunch) -> Result<(), String> {
        let name = &launch.kernel;
        if self.is_ptx {
            return check_entry(&ptx::entries(self.text())?, launch);
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        match self.text().split(|c| !is_part(c)).any(|word| word == name) {
            true => Ok(()),
            false => Err(format!("the source has no kernel {name}")),
        }
    }
}

/// Checks that a program has the kernel of a launch, and that it takes such arguments.
///
/// # Errors
/// When it does not: what the program has, in words.
pub fn check_entry(entries: &[PtxEntry], launch: &CudaLaunch) -> Result<(), String> {
    let CudaLaunch { kernel, arguments, .. } = launch;
    let Some(entry) = entries.iter().find(|entry| entry.name == *kernel) else {
        let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        return Err(format!(
            "it has no kernel {kernel}, but {names}; a kernel has its name from extern \"C\""
        ));
    };
    let what = "kernels take pointers, long long and double, of 8 bytes each";
    if let Some((at, kind)) = entry.odd() {
        return Err(format!("parameter {at} of {kernel} is {kind}; {what}"));
    }
    let (takes, given) = (entry.bytes / 8, arguments.len());
    if takes != given {
        return Err(format!("{kernel} takes {takes} arguments, and is given {given}"));
    }
    for (at, (is_real, argument)) in entry.are_real.iter().zip(arguments).enumerate() {
        if is_real.is_some_and(|is_real| is_real != matches!(argument, CudaArgument::Real(_))) {
            let wanted = if *is_real == Some(true) { "a double" } else { "a pointer or long long" };
            return Err(format!(
                "parameter {at} of {kernel} is {wanted}, and is given {argument:?}"
            ));
        }
    }
    Ok(())
}

/// What a kernel is given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CudaArgument {
    /// A pointer to the first element of an input, or of an output. Where an operator works in place, those of the first ones
    /// may be the same.
    Input(usize),
    Output(usize),
    /// A pointer to scratch, so many bytes from its start.
    Scratch(usize),
    /// A `long long`: sizes.
    Integer(i64),
    /// A `double`.
    Real(f64),
}

impl From<i64> for CudaArgument {
    fn from(value: i64) -> CudaArgument {
        CudaArgument::Integer(value)
    }
}

/// Sizes of tensors, which fit.
impl From<usize> for CudaArgument {
    fn from(value: usize) -> CudaArgument {
        CudaArgument::Integer(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<f64> for CudaArgument {
    fn from(value: f64) -> CudaArgument {
        CudaArgument::Real(value)
    }
}

/// Blocks of a grid, or threads of a block, in x, y and z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaSize(pub [usize; 3]);

impl From<usize> for CudaSize {
    fn from(x: usize) -> CudaSize {
        CudaSize([x, 1, 1])
    }
}

impl From<[usize; 2]> for CudaSize {
    fn from([x, y]: [usize; 2]) -> CudaSize {
        CudaSize([x, y, 1])
    }
}

impl From<[usize; 3]> for CudaSize {
    fn from(size: [usize; 3]) -> CudaSize {
        CudaSize(size)
    }
}

/// A kernel over a grid of blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaLaunch {
    pub kernel: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Dynamic shared memory of a block; what the kernel declares itself is not counted.
    pub shared_bytes: u32,
    pub arguments: Vec<CudaArgument>,
}

/// The operands of an operator, and what it has launched so far.
#[derive(Debug)]
pub struct CudaCall<'c> {
    inputs: &'c [TensorSpec],
    outputs: &'c [TensorSpec],
    launches: Vec<Asked>,
    scratch_bytes: Option<usize>,
}

/// A launch as it is asked for.
#[derive(Debug)]
struct Asked {
    kernel: String,
    grid: CudaSize,
    block: CudaSize,
    shared_bytes: usize,
    arguments: Vec<CudaArgument>,
}

impl<'c> CudaCall<'c> {
    /// Types and shapes of the inputs, in their order; also where the first one lies in the first output.
    pub fn inputs(&self) -> &'c [TensorSpec] {
        self.inputs
    }

    /// Types and shapes of the outputs, in their order.
    pub fn outputs(&self) -> &'c [TensorSpec] {
        self.outputs
    }

    /// The element type of the first input, or of the first output where there is no input: the source's `Scalar`.
    pub fn dtype(&self) -> Option<DType> {
        self.inputs.first().or(self.outputs.first()).map(|spec| spec.dtype)
    }

    /// Takes so many bytes of scratch; a pointer to them, which is a multiple of 256.
    pub fn scratch(&mut self, bytes: usize) -> CudaArgument {
        let start = self.scratch_bytes.unwrap_or(0);
        let end = self.scratch_bytes.and_then(|start| start.checked_add(bytes));
        self.scratch_bytes = end.and_then(|end| end.checked_next_multiple_of(ALIGNMENT));
        CudaArgument::Scratch(start)
    }

    /// Launches a kernel; none where a size is 0.
    pub fn launch(
        &mut self,
        kernel: &str,
        grid: impl Into<CudaSize>,
        block: impl Into<CudaSize>,
        arguments: impl IntoIterator<Item = CudaArgument>,
    ) {
        self.launch_with_shared(kernel, grid, block, 0, arguments);
    }

    /// As [`CudaCall::launch`], with so many bytes of shared memory for each block, which the kernel knows as
    /// `extern __shared__ T name[]`. Of more than 48 KiB, with what it declares itself, GPUs have different amounts.
    pub fn launch_with_shared(
        &mut self,
        kernel: &str,
        grid: impl Into<CudaSize>,
        block: impl Into<CudaSize>,
        shared_bytes: usize,
        arguments: impl IntoIterator<Item = CudaArgument>,
    ) {
        let (kernel, grid, block) = (kernel.to_owned(), grid.into(), block.into());
        let arguments = arguments.into_iter().collect();
        self.launches.push(Asked { kernel, grid, block, shared_bytes, arguments });
    }

    /// Launches a kernel of a thread for each of `count` elements, in blocks of 256, of which the last has threads to spare.
    pub fn launch_elements(
        &mut self,
        kernel: &str,
        count: usize,
        arguments: impl IntoIterator<Item = CudaArgument>,
    ) {
        self.launch(kernel, count.div_ceil(THREADS), THREADS, arguments);
    }
}

/// What a GPU does for a user's operator.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaLaunches {
    pub program: CudaProgram,
    /// What the source calls `Scalar`.
    pub scalar: Option<DType>,
    pub launches: Vec<CudaLaunch>,
    pub scratch_bytes: usize,
    /// Operands of bf16 come as they are, and not as f32.
    pub takes_bf16: bool,
}

impl CudaLaunches {
    /// What a user's operator launches for such operands; none, where it has nothing that computes it on GPUs.
    ///
    /// # Errors
    /// When it refuses or panics, or says what no GPU or its own program can do.
    pub fn of(
        custom: &CustomOp,
        inputs: &[TensorSpec],
        outputs: &[TensorSpec],
    ) -> Result<Option<CudaLaunches>, KernelError> {
        let carried = custom.kernel().and_then(|kernel: &(dyn Any + Send + Sync)| {
            kernel.downcast_ref::<Carried>().and_then(Carried::cuda)
        });
        let Some(kernel) = carried else { return Ok(None) };
        let (op, takes_bf16) = (custom.name(), kernel.takes_bf16());
        let wrong = |why| KernelError::Program { op, why };
        let widened = |specs: &[TensorSpec]| -> Vec<TensorSpec> {
            let wide = specs.iter().map(|spec| match spec.dtype {
                DType::BF16 if !takes_bf16 => TensorSpec { dtype: DType::F32, ..spec.clone() },
                _ => spec.clone(),
            });
            wide.collect()
        };
        let (inputs, outputs) = (widened(inputs), widened(outputs));
        let (launches, scratch_bytes) = (Vec::new(), Some(0));
        let mut call = CudaCall { inputs: &inputs, outputs: &outputs, launches, scratch_bytes };
        let asked = catch_unwind(AssertUnwindSafe(|| {
            let program = kernel.program();
            kernel.launches(&mut call).map(|()| program)
        }));
        let program = match asked {
            Ok(Ok(program)) => program,
            Ok(Err(refusal)) => {
                return Err(KernelError::Refused { op, why: refusal.to_string() });
            }
            Err(panic) => return Err(KernelError::Panicked { op, said: said(&*panic) }),
        };
        program.check().map_err(wrong)?;
        let too_much = || wrong("its scratch is larger than an address space".to_owned());
        let scratch_bytes = call.scratch_bytes.ok_or_else(too_much)?;
        let scalar = call.dtype();
        let made = std::mem::take(&mut call.launches);
        let mut launches = Vec::with_capacity(made.len());
        for asked in made {
            let counts = [inputs.len(), outputs.len(), scratch_bytes];
            let checked = checked(asked, counts).map_err(wrong)?;
            if let Some(launch) = checked {
                program.check_launch(&launch).map_err(wrong)?;
                launches.push(launch);
            }
        }
        Ok(Some(CudaLaunches { program, scalar, launches, scratch_bytes, takes_bf16 }))
    }
}

/// A launch that a GPU can do; none where there is nothing to do.
fn checked(
    asked: Asked,
    [inputs, outputs, scratch]: [usize; 3],
) -> Result<Option<CudaLaunch>, String> {
    let Asked { kernel, grid: CudaSize(grid), block: CudaSize(block), shared_bytes, arguments } =
        asked;
    for argument in &arguments {
        let is_there = match *argument {
            CudaArgument::Input(at) => at < inputs,
            CudaArgument::Output(at) => at < outputs,
            // right behind the end is where scratch of nothing is
            CudaArgument::Scratch(at) => at <= scratch,
            CudaArgument::Integer(_) | CudaArgument::Real(_) => true,
        };
        if !is_there {
            return Err(format!(
                "{kernel} is given {argument:?} of {inputs} inputs, {outputs} outputs and {scratch} bytes of scratch"
            ));
        }
    }
    if arguments.len() > ARGUMENTS_MAX {
        return Err(format!("{kernel} is given more than {ARGUMENTS_MAX} arguments"));
    }
    if shared_bytes > SHARED_MAX {
        return Err(format!(
            "{kernel} is launched with {shared_bytes} bytes of shared memory a block; GPUs have at most {SHARED_MAX}"
        ));
    }
    if grid.iter().chain(&block).any(|size| *size == 0) {
        return Ok(None);
    }
    let within = |sizes: [usize; 3], most: [usize; 3]| sizes.iter().zip(most).all(|(a, b)| *a <= b);
    let threads = block.iter().fold(1usize, |all, size| all.saturating_mul(*size));
    if !within(grid, GRID_MAX) || !within(block, BLOCK_MAX) || threads > THREADS_MAX {
        return Err(format!(
            "{kernel} is launched on {grid:?} blocks of {block:?} threads; GPUs take at most {GRID_MAX:?} of \
             {BLOCK_MAX:?}, {THREADS_MAX} in all"
        ));
    }
    // fits: checked above
    let [grid, block] = [grid, block].map(|sizes| sizes.map(|size| size as u32));
    Ok(Some(CudaLaunch { kernel, grid, block, shared_bytes: shared_bytes as u32, arguments }))
}

/// What CUDA C calls a type of elements.
fn name_of(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::F64 => "double",
        DType::BF16 => "unsigned short",
        DType::I32 => "int",
        DType::I64 => "long long",
        DType::U8 => "unsigned char",
    }
}
