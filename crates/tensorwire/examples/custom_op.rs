//! An operator of one's own, with its gradient and kernel, checked as ours are and trained with on two workers:
//! `cargo run --release -p tensorwire --example custom_op`
#![allow(clippy::print_stdout)] // a program for people

use tensorwire::graph::{Backward, CustomOperator, Gradient, Refusal};
use tensorwire::kernels::check::{self, Tensor};
use tensorwire::kernels::{Call, CustomKernel, custom};
use tensorwire::prelude::*;
use tensorwire::tensor::Fact;
use tensorwire::zoo::data::{SampleKind, Source};

/// (x) → x/(1 + |x|).
#[derive(Debug)]
struct SoftSign;

/// (dy, x) → dy/(1 + |x|)².
#[derive(Debug)]
struct SoftSignGrad;

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
        let dx = backward.add(custom(SoftSignGrad), &[dy, x])?;
        Ok(vec![Some(dx.into())])
    }

    fn works_in_place(&self) -> bool {
        true
    }
}

impl CustomKernel for SoftSign {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        match call.dtype() {
            Some(DType::F64) => call.by_elements(|x: f64, []| x / (1.0 + x.abs()))?,
            _ => call.by_elements(|x: f32, []| x / (1.0 + x.abs()))?,
        }
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

    fn works_in_place(&self) -> bool {
        true
    }
}

impl CustomKernel for SoftSignGrad {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        match call.dtype() {
            Some(DType::F64) => call.by_elements(|dy: f64, [x]| dy / (1.0 + x.abs()).powi(2))?,
            _ => call.by_elements(|dy: f32, [x]| dy / (1.0 + x.abs()).powi(2))?,
        }
        Ok(())
    }
}

/// A perceptron with the operator between its layers.
struct Net;

impl Model for Net {
    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> nn::Result<Outputs> {
        let x = s.flatten("input", batch.input("input")?)?;
        let y = s.linear("hidden", x, 128)?;
        let y = s.op("softsign", custom(SoftSign), &[y])?;
        let logits = s.linear("output", y, batch.classes()?)?;
        Ok(Outputs::classification(logits, batch.labels()?))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tensorwire::init()?;
    // in f64, against central differences
    check::gradient(&custom(SoftSign), &[Tensor::new(&[5], &[-2.0, -0.5, 0.25, 1.0, 3.0])])?;
    let source: Source = "digits".parse()?;
    let data = source.open(SampleKind::Images { dims: [8, 8, 1], classes: 10 }, 1)?;
    let summary = Training::new(Net, data)
        .strategy(ParameterServers { workers: 2, servers: 1 })
        .batch(32)
        .epochs(8)
        .run()?;
    println!("test accuracy {:.3}", summary.test_accuracy.unwrap_or_default());
    Ok(())
}
