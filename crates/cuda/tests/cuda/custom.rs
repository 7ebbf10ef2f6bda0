//! Operators of users whose kernels are CUDA C or PTX, on a GPU by its driver: the same checks as on the host, and what is said
//! where a program is wrong. On the driver without a GPU NVRTC is the one that stands in its place.

use std::path::PathBuf;
use std::sync::Arc;

use half::bf16;
use tensorwire_cuda::{CheckedGpu, CudaOptions, Gpus, LibrarySearch, modules};
use tensorwire_device::Nvrtc;
use tensorwire_graph::{Backward, CustomOperator, Gradient, Op, Refusal};
use tensorwire_kernels::check::{self, Net, Tensor, Tolerance};
use tensorwire_kernels::{
    Call, CudaArgument, CudaCall, CudaKernel, CudaProgram, CustomKernel, custom_with_cuda,
};
use tensorwire_tensor::{DType, Fact, TensorSpec};
use tensorwire_testkit::cuda::OnlyDriver;
use tensorwire_testkit::skip::skip_part;

use crate::engine::{HEADER, in_a_process, is_own_process, libraries};

const SIGN: &str = "\
extern \"C\" __global__ void sign(const Scalar *x, Scalar *y, long long count, double scale) {
    long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at < count) y[at] = scale * x[at] / (1 + fabs(x[at]));
}
extern \"C\" __global__ void sign_grad(const Scalar *dy, const Scalar *x, Scalar *dx, long long count, double scale) {
    long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at >= count) return;
    Scalar root = 1 + fabs(x[at]);
    dx[at] = dy[at] * scale / (root * root);
}
";

/// What is launched otherwise than it should be.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    Nothing,
    Source,
    Kernel,
    Count,
    Kind,
    Narrow,
    Input,
    Block,
    Panics,
    Option,
    /// Nothing, either: it says 2·x by a header of the toolkit's.
    Header,
}

/// (x) → scale·x/(1 + |x|), and (dy, x) → dy·scale/(1 + |x|)², in place or not.
#[derive(Debug)]
struct Sign {
    scale: f64,
    is_gradient: bool,
    wrong: Wrong,
}

fn sign(is_gradient: bool, wrong: Wrong) -> Op {
    custom_with_cuda(Sign { scale: 1.5, is_gradient, wrong }).unwrap()
}

impl CustomOperator for Sign {
    fn name(&self) -> &'static str {
        if self.is_gradient { "SignGrad" } else { "Sign" }
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        inputs.last().map(|x| vec![x.clone()]).ok_or_else(|| "nothing is given".into())
    }

    fn gradient(&self, backward: &mut dyn Backward) -> Result<Vec<Option<Gradient>>, Refusal> {
        let (x, dy) = (backward.inputs()[0], backward.flowing()[0].ok_or("nothing flows")?);
        Ok(vec![Some(backward.add(sign(true, self.wrong), &[dy, x])?.into())])
    }

    fn works_in_place(&self) -> bool {
        true
    }
}

impl CustomKernel for Sign {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        let scale = self.scale;
        match (call.dtype(), self.is_gradient) {
            (Some(DType::F64), false) => {
                call.by_elements(|x: f64, []| scale * x / (1.0 + x.abs()))?
            }
            (_, false) => call.by_elements(|x: f32, []| scale as f32 * x / (1.0 + x.abs()))?,
            (_, true) => {
                call.by_elements(|dy: f64, [x]| dy * scale / (1.0 + x.abs()).powi(2))?;
            }
        }
        Ok(())
    }
}

impl CudaKernel for Sign {
    fn program(&self) -> CudaProgram {
        match self.wrong {
            Wrong::Source => CudaProgram::source(SIGN.replace("fabs(x[at]));", "fabs(z[at]));")),
            Wrong::Narrow => CudaProgram::source(SIGN.replace("double scale", "float scale")),
            Wrong::Header => CudaProgram::source(format!(
                "#include <{HEADER}>\n{}",
                SIGN.replace("scale * x[at]", "scale / 2 * TWICE(x[at])")
            )),
            Wrong::Option => CudaProgram::source(SIGN).option("--no-such-option"),
            _ => CudaProgram::source(SIGN),
        }
    }

    fn launches(&self, call: &mut CudaCall<'_>) -> Result<(), Refusal> {
        assert_ne!(self.wrong, Wrong::Panics, "no launches");
        let count = call.outputs()[0].elements();
        let inputs = (0..call.inputs().len()).map(CudaArgument::Input);
        let mut all: Vec<CudaArgument> = inputs.collect();
        all.extend([CudaArgument::Output(0), count.into(), self.scale.into()]);
        match self.wrong {
            Wrong::Count => all.truncate(3),
            Wrong::Kind => all[3] = 3i64.into(),
            Wrong::Input => all[0] = CudaArgument::Input(7),
            Wrong::Block => {
                call.launch("sign", 1, [64, 32], all);
                return Ok(());
            }
            _ => {}
        }
        let kernel = if self.is_gradient { "sign_grad" } else { "sign" };
        // a word of the source that is no kernel
        let kernel = if self.wrong == Wrong::Kernel { "root" } else { kernel };
        call.launch_elements(kernel, count, all);
        Ok(())
    }
}

/// (x) → the sums of the blocks of 64 rows of a vector, and of all of it: a barrier, memory of blocks, scratch, two launches.
#[derive(Debug)]
struct Sums {
    /// A block's memory is what its launch asks for, so many bytes, and not what the kernel declares.
    dynamic_bytes: Option<usize>,
}

fn sums(dynamic_bytes: Option<usize>) -> Op {
    custom_with_cuda(Sums { dynamic_bytes }).unwrap()
}

const SUMS: &str = "\
extern \"C\" {
// of 64 numbers each
__global__ void __launch_bounds__(64) block_sums(const Scalar *x, double *sums, long long count) {
    __shared__ double of[64];
    long long at = blockIdx.x * 64LL + threadIdx.x;
    of[threadIdx.x] = at < count ? x[at] : 0;
    for (int apart = 32; apart > 0; apart /= 2) {
        __syncthreads();
        if (threadIdx.x < apart) of[threadIdx.x] += of[threadIdx.x + apart];
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = of[0];
}
__global__ void all_sums(const double *sums, Scalar *each, Scalar *all, long long count) {
    if (threadIdx.x > 0) return;
    double sum = 0;
    for (long long at = 0; at < count; at++) {
        each[at] = sums[at];
        sum += sums[at];
    }
    *all = sum;
}
}
";

impl CustomOperator for Sums {
    fn name(&self) -> &'static str {
        "Sums"
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        let x = inputs[0].spec().ok_or("a known size is needed")??;
        let blocks = x.elements().div_ceil(64);
        let of = |dims: &[usize]| TensorSpec::new(x.dtype, dims).map(|spec| Fact::from(&spec));
        Ok(vec![of(&[blocks])?, of(&[])?])
    }
}

impl CustomKernel for Sums {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        let ([x], [each, all]) = call.operands()?;
        let sums: Vec<f32> = x.elements::<f32>()?.chunks(64).map(|x| x.iter().sum()).collect();
        each.elements()?.copy_from_slice(&sums);
        all.elements()?[0] = sums.iter().sum::<f32>();
        Ok(())
    }
}

impl CudaKernel for Sums {
    fn program(&self) -> CudaProgram {
        let declared = "__shared__ double of[64];";
        match self.dynamic_bytes {
            Some(_) => {
                CudaProgram::source(SUMS.replace(declared, "extern __shared__ double of[];"))
            }
            None => CudaProgram::source(SUMS),
        }
    }

    fn launches(&self, call: &mut CudaCall<'_>) -> Result<(), Refusal> {
        let (count, blocks) = (call.inputs()[0].elements(), call.outputs()[0].elements());
        let _before = call.scratch(100);
        let sums = call.scratch(8 * blocks);
        let all = [CudaArgument::Input(0), sums, count.into()];
        call.launch_with_shared("block_sums", blocks, 64, self.dynamic_bytes.unwrap_or(0), all);
        let outputs = [CudaArgument::Output(0), CudaArgument::Output(1)];
        // a warp: the driver without a GPU has no part of one
        call.launch("all_sums", 1, 32, [sums, outputs[0], outputs[1], blocks.into()]);
        Ok(())
    }
}

/// The GPU of this process, if it has one for these tests.
fn gpu() -> Option<CheckedGpu> {
    let driver: Option<PathBuf> = OnlyDriver::named().and_then(|only| only.library());
    let libraries = match is_own_process() {
        true => libraries(),
        false if Gpus::find(driver.as_deref()).is_ok_and(|gpus| gpus.count() > 0) => {
            let mut search = LibrarySearch::default();
            search.ask_python();
            if let Err(error) = Nvrtc::look(&search) {
                skip_part(&error);
                return None;
            }
            Some(search)
        }
        false => return None,
    };
    let options = CudaOptions { driver, libraries, ..CudaOptions::default() };
    Some(CheckedGpu::open(options, 0).unwrap())
}

fn failed(gpu: &CheckedGpu, op: &Op) -> String {
    let x = Tensor::new(&[3], &[1.0f32, -1.0, 3.0]);
    check::run(gpu, op, &[x]).unwrap_err().to_string()
}

#[test]
fn on_a_gpu_an_operator_passes_the_checks_of_the_host() {
    let Some(gpu) = gpu() else { return };
    let x: Vec<f32> = (0..1000).map(|at| at as f32 / 100.0 - 5.0).collect();
    let y: Vec<f32> = x.iter().map(|x| 1.5 * x / (1.0 + x.abs())).collect();
    let (x, y) = (Tensor::new(&[10, 100], &x), Tensor::new(&[10, 100], &y));
    let op = sign(false, Wrong::Nothing);
    // a rounding more or less, of numbers below 1.5
    let near = |_: usize, _: usize, _: f64| 4.0 * f64::from(f32::EPSILON);
    let (within, ones) = (Tolerance::Within(&near), std::slice::from_ref(&x));
    check::agreement(&check::backends(), &op, ones, std::slice::from_ref(&y), within).unwrap();
    let gpu = Arc::new(gpu);
    let one = std::slice::from_ref(&*gpu);
    check::agreement(one, &op, ones, &[y], within).unwrap();
    // of bf16 it is given f32, and what it gives is rounded
    let half = |x: f32| bf16::from_f32(x);
    let x: Vec<bf16> = [1.0, -3.0, 0.5].map(half).to_vec();
    let y: Vec<bf16> = [0.75, -1.125, 0.5].map(half).to_vec();
    let (x, y) = (Tensor::new(&[3], &x), Tensor::new(&[3], &y));
    check::agreement(one, &op, &[x], &[y], Tolerance::Bits).unwrap();
    // nothing is launched of nothing
    let empty = Tensor::new(&[0], &[0f32; 0]);
    check::agreement(
        one,
        &op,
        std::slice::from_ref(&empty),
        std::slice::from_ref(&empty),
        Tolerance::Bits,
    )
    .unwrap();
    let numbers: Vec<f32> = (0..150).map(|at| (at % 7) as f32).collect();
    let sum = |x: &[f32]| x.iter().sum::<f32>();
    let each: Vec<f32> = numbers.chunks(64).map(sum).collect();
    let expected = [Tensor::new(&[3], &each), Tensor::scalar(sum(&numbers))];
    let numbers = [Tensor::new(&[150], &numbers)];
    check::agreement(&check::backends(), &sums(None), &numbers, &expected, Tolerance::Bits)
        .unwrap();
    // declared, asked for, and more than a kernel may have that does not say so first
    for dynamic_bytes in [None, Some(64 * 8), Some(100 << 10)] {
        let all = sums(dynamic_bytes);
        check::agreement(one, &all, &numbers, &expected, Tolerance::Bits).unwrap();
    }
    // its gradient, on both
    let x = [Tensor::new(&[2, 2], &[-1.0f64, 0.5, 2.0, 0.25])];
    check::gradient(&op, &x).unwrap();
    Net::on(gpu.clone()).gradient(&op, &x).unwrap();
}

#[test]
fn on_a_gpu_a_program_that_is_wrong_is_said_with_its_line() {
    let Some(gpu) = gpu() else { return };
    let said = |wrong| failed(&gpu, &sign(false, wrong));
    let found = said(Wrong::Source);
    assert!(
        found.contains("Sign, what computes it on GPUs: its source does not compile (NVRTC 1"),
        "{found}"
    );
    let line = "in `if (at < count) y[at] = scale * x[at] / (1 + fabs(z[at]));`";
    assert!(
        found.contains("): line 3: ") && found.contains(line) && !found.contains('\n'),
        "{found}"
    );
    let found = said(Wrong::Kernel);
    assert!(found.contains("it has no kernel root, but sign, sign_grad; a kernel"), "{found}");
    let found = said(Wrong::Count);
    assert!(found.contains("sign takes 4 arguments, and is given 3"), "{found}");
    let found = said(Wrong::Kind);
    assert!(found.contains("parameter 3 of sign is a double, and is given Integer(3)"), "{found}");
    let found = said(Wrong::Narrow);
    assert!(
        found.contains("parameter 3 of sign is .f32; kernels take pointers, long long and"),
        "{found}"
    );
    let found = said(Wrong::Option);
    assert!(found.contains("unrecognized option --no-such-option"), "{found}");
    // and the next one is computed all the same
    check::run(&gpu, &sign(false, Wrong::Nothing), &[Tensor::new(&[1], &[1f32])]).unwrap();
}

#[test]
fn what_needs_no_gpu_is_seen_without_one() {
    let x = [Tensor::new(&[3], &[1.0f32, -1.0, 3.0])];
    let said = |wrong| {
        let all = Tolerance::Within(&|_, _, _| 9.0);
        check::agreement(&check::backends(), &sign(false, wrong), &x, &x, all)
            .unwrap_err()
            .to_string()
    };
    let found = said(Wrong::Input);
    assert!(found.contains("sign is given Input(7) of 1 inputs, 1 outputs and 0 bytes"), "{found}");
    let found = said(Wrong::Block);
    assert!(
        found.contains("sign is launched on [1, 1, 1] blocks of [64, 32, 1] threads; GPUs"),
        "{found}"
    );
    let all = Tolerance::Within(&|_, _, _| 9.0);
    let y = [Tensor::new(&[1], &[3f32]), Tensor::scalar(3f32)];
    let wrong = check::agreement(&check::backends(), &sums(Some(300 << 10)), &x, &y, all);
    let found = wrong.unwrap_err().to_string();
    assert!(found.contains("307200 bytes of shared memory a block; GPUs have at most"), "{found}");
    let found = said(Wrong::Panics);
    assert!(
        found.contains("the kernel of Sign panicked") && found.contains("no launches"),
        "{found}"
    );
    for (program, why) in [
        (CudaProgram::source("__global__ void f() {}"), "has no kernel: declare one as extern"),
        (CudaProgram::source(SIGN).option("-arch=sm_90"), "-arch=sm_90 is not for an operator"),
        (CudaProgram::source(format!("{SIGN}\0")), "a byte of it is 0"),
        (CudaProgram::ptx(SIGN), "the PTX has no .version"),
        (CudaProgram::ptx(MAP).option("-DA"), "takes no -DA"),
    ] {
        let found = custom_with_cuda(Mapped(program)).unwrap_err().to_string();
        assert!(found.contains("Mapped") && found.contains("cannot compute on GPUs: "), "{found}");
        assert!(found.contains(why), "{found}");
    }
}

const MAP: &str = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry f() { ret; }";

/// (x) → x, of f32: our own kernel that casts, as a user's PTX.
#[derive(Debug)]
struct Mapped(CudaProgram);

impl CustomOperator for Mapped {
    fn name(&self) -> &'static str {
        "Mapped"
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        let mut wide = inputs[0].clone();
        wide.dtype = DType::F64;
        Ok(vec![wide])
    }
}

impl CustomKernel for Mapped {
    fn run(&self, _: &mut Call<'_>) -> Result<(), Refusal> {
        Err("it computes on GPUs alone".into())
    }
}

impl CudaKernel for Mapped {
    fn program(&self) -> CudaProgram {
        self.0.clone()
    }

    fn launches(&self, call: &mut CudaCall<'_>) -> Result<(), Refusal> {
        let count = call.inputs()[0].elements();
        let all = [count.into(), CudaArgument::Input(0), CudaArgument::Output(0)];
        call.launch_elements("cast_f32_f64", count, all);
        Ok(())
    }
}

#[test]
fn on_a_gpu_ptx_needs_no_compiler() {
    let Some(gpu) = gpu() else { return };
    let module = modules().iter().find(|module| module.name == "element_wise").unwrap();
    let op = custom_with_cuda(Mapped(CudaProgram::ptx(module.ptx()))).unwrap();
    let x: Vec<f32> = (0..300).map(|at| at as f32).collect();
    let y: Vec<f64> = x.iter().copied().map(f64::from).collect();
    let x = [Tensor::new(&[300], &x)];
    assert_eq!(check::run(&gpu, &op, &x).unwrap()[0].to_vec::<f64>(), y);
    let op = custom_with_cuda(Mapped(CudaProgram::ptx(MAP))).unwrap();
    let found = check::run(&gpu, &op, &x).unwrap_err().to_string();
    assert!(
        found.contains("Mapped, what computes it on GPUs: it has no kernel cast_f32_f64, but f;"),
        "{found}"
    );
}

#[test]
fn on_a_stand_in_a_program_without_a_compiler_or_gpu_says_so() {
    let Some(gpu) = gpu().filter(|_| is_own_process()) else { return };
    let first = failed(&gpu, &sign(false, Wrong::Nothing));
    eprintln!("failed: {first}");
}

#[test]
fn on_a_stand_in_headers_beside_the_compiler_are_found() {
    let Some(gpu) = gpu().filter(|_| is_own_process()) else { return };
    let x = [Tensor::new(&[3], &[1.0f32, -3.0, 0.5])];
    let y = check::run(&gpu, &sign(false, Wrong::Header), &x).unwrap();
    assert_eq!(y[0].to_vec::<f32>(), [0.75, -1.125, 0.5]);
}

/// A GPU may let it pass.
#[test]
fn on_a_stand_in_what_is_behind_shared_memory_is_not_written() {
    let Some(gpu) = gpu().filter(|_| is_own_process()) else { return };
    let found = failed(&gpu, &sums(Some(200 << 10)));
    let why = "block_sums is launched with 204800 bytes of shared memory a block, of which this GPU has 166912";
    assert!(found.contains(why), "{found}");
    eprintln!("failed: {}", failed(&gpu, &sums(Some(63 * 8))));
}

#[test]
fn programs_on_the_driver_without_a_gpu() {
    in_a_process(&["custom::on_a_gpu", "custom::on_a_stand_in_headers"], true, &[]);
}

#[test]
fn what_has_no_compiler_or_loses_the_gpu_is_said() {
    let said = |libraries, faults| {
        let name = "custom::on_a_stand_in_a_program_without_a_compiler_or_gpu_says_so";
        in_a_process(&["--exact", name], libraries, &[("FAKE_CUDA_FAULTS", faults)])
    };
    let Some(found) = said(false, "") else { return };
    let why = "its source needs a compiler: no library is to be used; install NVRTC (python3 -m pip install \
        nvidia-cuda-nvrtc-cu12), name its folder with --cuda-libs, or give the operator PTX, which needs none";
    assert!(found.contains(why), "{found}");
    let found = said(true, "nolibrary").unwrap();
    assert!(found.contains("libnvrtc.so.12 does not start: nvrtcVersion says"), "{found}");
    let found = said(true, "program=1").unwrap();
    let why =
        "Sign, what computes it on GPUs: a kernel of it failed: GPU 0 is lost to this process: ";
    assert!(found.contains(why) && found.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{found}");
    // what is not the user's is not said to be
    let found = said(true, "launch=1").unwrap();
    assert!(found.contains("Sign refuses: GPU 0 is lost to this process"), "{found}");
    let shared = ["--exact", "custom::on_a_stand_in_what_is_behind_shared_memory_is_not_written"];
    let found = in_a_process(&shared, true, &[]).unwrap();
    assert!(found.contains("Sums, what computes it on GPUs: a kernel of it failed"), "{found}");
    assert!(found.contains("block_sums: it writes behind its dynamic shared memory"), "{found}");
    // and PTX is computed where there is no compiler
    in_a_process(&["custom::on_a_gpu_ptx"], false, &[]);
}
