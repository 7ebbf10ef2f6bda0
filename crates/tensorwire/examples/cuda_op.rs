//! An operator of one's own that also brings CUDA C: the same checks on the host and on a GPU, and two workers that train with it,
//! on the host or each on a GPU: `cargo run --release -p tensorwire --example cuda_op [cuda [DRIVER LIBRARIES]]`
#![allow(clippy::print_stdout)] // a program for people

use std::path::PathBuf;
use std::sync::Arc;

use tensorwire::graph::{Backward, CustomOperator, Gradient, Refusal};
use tensorwire::kernels::check::{self, Net, Tensor, Tolerance};
use tensorwire::kernels::{
    Call, CudaArgument, CudaCall, CudaKernel, CudaProgram, CustomKernel, custom_with_cuda,
};
use tensorwire::memory::CopyPurpose;
use tensorwire::prelude::*;
use tensorwire::tensor::Fact;
use tensorwire::train::{CudaLibraries, DeviceChoice, TrainConfig, checked_gpu};
use tensorwire::zoo::data::{SampleKind, Source};

/// `Scalar` is the element type: float in jobs, double where gradients are checked.
const KERNELS: &str = r#"
extern "C" __global__ void soft_sign(const Scalar *x, Scalar *y, long long count, double scale) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < count) y[i] = Scalar(scale) * x[i] / (1 + fabs(x[i]));
}

extern "C" __global__ void soft_sign_grad(const Scalar *dy, const Scalar *x, Scalar *dx, long long count, double scale) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= count) return;
    Scalar root = 1 + fabs(x[i]);
    dx[i] = dy[i] * Scalar(scale) / (root * root);
}
"#;

/// (x) → scale·x/(1 + |x|).
#[derive(Debug)]
struct SoftSign {
    scale: f64,
}

/// (dy, x) → dy·scale/(1 + |x|)².
#[derive(Debug)]
struct SoftSignGrad {
    scale: f64,
}

impl CustomOperator for SoftSign {
    fn name(&self) -> &'static str {
        "SoftSign"
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        match inputs {
            [x] if x.dtype.is_floating() => Ok(vec![x.clone()]),
            _ => Err("one floating tensor is needed".into()),
        }
    }

    fn gradient(&self, backward: &mut dyn Backward) -> Result<Vec<Option<Gradient>>, Refusal> {
        let (x, dy) = (backward.inputs()[0], backward.flowing()[0].ok_or("nothing flows")?);
        let dx = backward.add(custom_with_cuda(SoftSignGrad { scale: self.scale })?, &[dy, x])?;
        Ok(vec![Some(dx.into())])
    }
}

impl CustomKernel for SoftSign {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        let scale = self.scale;
        match call.dtype() {
            Some(DType::F64) => call.by_elements(|x: f64, []| scale * x / (1.0 + x.abs()))?,
            _ => call.by_elements(|x: f32, []| scale as f32 * x / (1.0 + x.abs()))?,
        }
        Ok(())
    }
}

impl CudaKernel for SoftSign {
    fn program(&self) -> CudaProgram {
        CudaProgram::source(KERNELS)
    }

    fn launches(&self, call: &mut CudaCall<'_>) -> Result<(), Refusal> {
        let count = call.outputs()[0].elements();
        let all =
            [CudaArgument::Input(0), CudaArgument::Output(0), count.into(), self.scale.into()];
        call.launch_elements("soft_sign", count, all);
        Ok(())
    }
}

impl CustomOperator for SoftSignGrad {
    fn name(&self) -> &'static str {
        "SoftSignGrad"
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        match inputs {
            [dy, x] if dy == x => Ok(vec![x.clone()]),
            _ => Err("a gradient of x's type and shape is needed".into()),
        }
    }
}

impl CustomKernel for SoftSignGrad {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        let scale = self.scale;
        match call.dtype() {
            Some(DType::F64) => {
                call.by_elements(|dy: f64, [x]| dy * scale / (1.0 + x.abs()).powi(2))?;
            }
            _ => call.by_elements(|dy: f32, [x]| dy * scale as f32 / (1.0 + x.abs()).powi(2))?,
        }
        Ok(())
    }
}

impl CudaKernel for SoftSignGrad {
    fn program(&self) -> CudaProgram {
        CudaProgram::source(KERNELS)
    }

    fn launches(&self, call: &mut CudaCall<'_>) -> Result<(), Refusal> {
        let count = call.outputs()[0].elements();
        // a thread for each element, in blocks of 128
        let (inputs, output) = ([0, 1].map(CudaArgument::Input), CudaArgument::Output(0));
        let all = [inputs[0], inputs[1], output, count.into(), self.scale.into()];
        call.launch("soft_sign_grad", count.div_ceil(128), 128, all);
        Ok(())
    }
}

/// A perceptron with the operator between its layers.
struct Perceptron;

impl Model for Perceptron {
    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> nn::Result<Outputs> {
        let x = s.flatten("input", batch.input("input")?)?;
        let y = s.linear("hidden", x, 32)?;
        let y = s.op("softsign", custom_with_cuda(SoftSign { scale: 1.5 })?, &[y])?;
        let logits = s.linear("output", y, batch.classes()?)?;
        Ok(Outputs::classification(logits, batch.labels()?))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tensorwire::init()?;
    let argument = |at| std::env::args().nth(at);
    let mut config = TrainConfig::default();
    if argument(1).as_deref() == Some("cuda") {
        config.device = DeviceChoice::Cuda { ordinal: None };
        config.cuda_driver = argument(2).map(PathBuf::from);
        let folders = argument(3).map(PathBuf::from).into_iter().collect();
        config.cuda_libraries = CudaLibraries::Used { folders, cuda_home: None };
    }
    let op = custom_with_cuda(SoftSign { scale: 1.5 })?;
    let x = [Tensor::new(&[5], &[-2.0, -0.5, 0.25, 1.0, 3.0])];
    let y = [Tensor::new(&[5], &[-1.0, -0.5, 0.3, 0.75, 1.125])];
    let near = |_: usize, _: usize, _: f64| 1e-15;
    check::gradient(&op, &x)?;
    check::agreement(&check::backends(), &op, &x, &y, Tolerance::Within(&near))?;
    if config.device != DeviceChoice::Cpu {
        let gpu = Arc::new(checked_gpu(&config)?);
        check::agreement(std::slice::from_ref(&*gpu), &op, &x, &y, Tolerance::Within(&near))?;
        Net::on(gpu).gradient(&op, &x)?;
        println!("checked on a GPU");
    }
    let source: Source = "digits".parse()?;
    let data = source.open(SampleKind::Images { dims: [8, 8, 1], classes: 10 }, 1)?;
    let summary = Training::new(Perceptron, data)
        .strategy(ParameterServers { workers: 2, servers: 1 })
        .configure(|all| {
            all.device = config.device;
            all.cuda_driver = config.cuda_driver.clone();
            all.cuda_libraries = config.cuda_libraries.clone();
        })
        .batch(16)
        .steps(20)
        .run()?;
    println!("loss {:.6}", summary.final_loss);
    println!("copied to the host {}", summary.copies.of(CopyPurpose::ToHost));
    Ok(())
}
