//! oneDNN, loaded at run time, for what it computes faster than our own loops; all else, every f64, and
//! whatever the library refuses, is the `cpu` back end's.
//!
//! Images and matrices are used where they lie. Convolution weights are turned into the order that the
//! library likes, into scratch that one call after the other uses, and gradients out of it: nothing is kept
//! from call to call but code. One call runs at a time: it has all threads.
//!
//! The same operands give the same bits every time on the same number of threads; on another number a sum may
//! be added in another order.

mod backend;
mod convolution;
mod images;
mod library;
mod normalization;
mod plan;
mod primitive;
mod product;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::cpu::Cpu;
use crate::launch::Product;
use crate::launch::images::{Convolution, ResponseNorm};
use plan::{Operand, Plan, Scratch};
use primitive::{Engine, Stream};

pub use library::OpenError;
pub(crate) use primitive::Refused;

/// Plans that are kept: many times what a model has. Behind that, shapes change from step to step, and all
/// are made anew.
const PLANS_MAX: usize = 2048;

/// The opened back end.
#[derive(Debug)]
pub(crate) struct OneDnn {
    /// Computes the rest.
    pub(crate) cpu: Cpu,
    engine: Arc<Engine>,
    threads: usize,
    state: Mutex<State>,
}

/// What one call has to itself.
#[derive(Debug)]
struct State {
    stream: Stream,
    scratch: Scratch,
    /// What the library refused once, it is not asked again.
    plans: HashMap<Key, Result<Plan, Refused>>,
}

/// An operator with all that its plan depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Conv2d(Convolution),
    Conv2dGradInput(Convolution),
    Conv2dGradWeight(Convolution),
    /// Rows and channels, the bits of epsilon, scaled.
    BatchNorm([usize; 2], u32, bool),
    BatchNormGrad([usize; 2], u32, bool),
    /// Rows, channels and size, the bits of alpha, beta and bias.
    ResponseNorm([usize; 3], [u32; 3]),
    ResponseNormGrad([usize; 3], [u32; 3]),
    /// m, n and k, transpositions.
    MatMul([usize; 3], [bool; 2]),
}

fn input(slice: &[f32]) -> Operand<'_> {
    Operand::In(bytemuck::cast_slice(slice))
}

fn output(slice: &mut [f32]) -> Operand<'_> {
    Operand::Out(bytemuck::cast_slice_mut(slice))
}

impl OneDnn {
    /// Opens the library of that path, or the one that the dynamic linker finds, with `threads` threads;
    /// `cpu` computes the rest.
    pub(crate) fn open(path: Option<&Path>, cpu: Cpu, threads: usize) -> Result<OneDnn, OpenError> {
        let engine = Engine::open(library::Library::load(path)?)?;
        let threads = if engine.library.is_parallel() { threads.max(1) } else { 1 };
        let stream = Stream::new(&engine).map_err(|refused| match refused {
            Refused::Status(status) => OpenError::Engine { status },
            Refused::Shape => OpenError::Engine { status: 0 },
        })?;
        let state = State { stream, scratch: Scratch::default(), plans: HashMap::new() };
        Ok(OneDnn { cpu, engine, threads, state: Mutex::new(state) })
    }

    pub(crate) fn description(&self) -> String {
        let library = &self.engine.library;
        let (version, file) = (&library.version, &library.looked_for);
        let rest = self.cpu.description();
        format!(
            "onednn {version} ({file}): convolution, normalisation, matrix product; rest as {rest}"
        )
    }

    /// Runs what `make` plans for `key`, planned once.
    fn run(
        &self,
        key: Key,
        make: impl FnOnce(&Arc<Engine>) -> Result<Plan, Refused>,
        operands: &mut [Operand<'_>],
    ) -> Result<(), Refused> {
        // a panic leaves nothing half done: plans are put in when they are complete
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { stream, scratch, plans } = &mut *state;
        self.engine.library.set_threads(self.threads);
        if plans.len() >= PLANS_MAX && !plans.contains_key(&key) {
            plans.clear();
        }
        match plans.entry(key).or_insert_with(|| make(&self.engine)) {
            Ok(plan) => plan.run(stream, scratch, operands),
            Err(refused) => Err(*refused),
        }
    }

    /// y ← a·b.
    pub(crate) fn matmul(
        &self,
        product: Product,
        a: &[f32],
        b: &[f32],
        y: &mut [f32],
    ) -> Result<(), Refused> {
        let Product { m, n, k, transpose_a, transpose_b } = product;
        let key = Key::MatMul([m, n, k], [transpose_a, transpose_b]);
        let make = |engine: &Arc<Engine>| product::product(engine, &product);
        self.run(key, make, &mut [input(a), input(b), output(y)])
    }

    pub(crate) fn conv2d(
        &self,
        shape: Convolution,
        x: &[f32],
        w: &[f32],
        y: &mut [f32],
    ) -> Result<(), Refused> {
        let make = |engine: &Arc<Engine>| convolution::forward(engine, &shape);
        self.run(Key::Conv2d(shape), make, &mut [input(x), input(w), output(y)])
    }

    pub(crate) fn conv2d_grad_input(
        &self,
        shape: Convolution,
        dy: &[f32],
        w: &[f32],
        dx: &mut [f32],
    ) -> Result<(), Refused> {
        let make = |engine: &Arc<Engine>| convolution::grad_input(engine, &shape);
        self.run(Key::Conv2dGradInput(shape), make, &mut [input(dy), input(w), output(dx)])
    }

    pub(crate) fn conv2d_grad_weight(
        &self,
        shape: Convolution,
        dy: &[f32],
        x: &[f32],
        dw: &mut [f32],
    ) -> Result<(), Refused> {
        let make = |engine: &Arc<Engine>| convolution::grad_weight(engine, &shape);
        self.run(Key::Conv2dGradWeight(shape), make, &mut [input(dy), input(x), output(dw)])
    }

    #[allow(clippy::too_many_arguments)] // the operator's operands, in their order
    pub(crate) fn batch_norm(
        &self,
        epsilon: f32,
        x: &[f32],
        scale: Option<&[f32]>,
        shift: &[f32],
        y: &mut [f32],
        mean: &mut [f32],
        variance: &mut [f32],
    ) -> Result<(), Refused> {
        let sizes = rows(x, shift.len())?;
        let scaled = scale.is_some();
        let make = |engine: &Arc<Engine>| normalization::batch(engine, sizes, epsilon, scaled);
        let mut operands = vec![input(x)];
        operands.extend(scale.map(input));
        operands.extend([input(shift), output(y), output(mean), output(variance)]);
        self.run(Key::BatchNorm(sizes, epsilon.to_bits(), scaled), make, &mut operands)
    }

    #[allow(clippy::too_many_arguments)] // the operator's operands, in their order
    pub(crate) fn batch_norm_grad(
        &self,
        epsilon: f32,
        dy: &[f32],
        x: &[f32],
        mean: &[f32],
        variance: &[f32],
        scale: Option<&[f32]>,
        dx: &mut [f32],
        dscale: Option<&mut [f32]>,
        dshift: &mut [f32],
    ) -> Result<(), Refused> {
        let sizes = rows(x, mean.len())?;
        let scaled = scale.is_some();
        let make = |engine: &Arc<Engine>| normalization::batch_grad(engine, sizes, epsilon, scaled);
        let mut operands = vec![input(dy), input(x), input(mean), input(variance)];
        operands.extend(scale.map(input));
        operands.push(output(dx));
        operands.extend(dscale.map(output));
        operands.push(output(dshift));
        self.run(Key::BatchNormGrad(sizes, epsilon.to_bits(), scaled), make, &mut operands)
    }

    pub(crate) fn response_norm(
        &self,
        norm: ResponseNorm<f32>,
        x: &[f32],
        y: &mut [f32],
    ) -> Result<(), Refused> {
        let [rows, _] = rows(x, norm.channels)?;
        let (sizes, numbers) = numbers(rows, &norm);
        let make = |engine: &Arc<Engine>| normalization::response(engine, rows, &norm);
        self.run(Key::ResponseNorm(sizes, numbers), make, &mut [input(x), output(y)])
    }

    pub(crate) fn response_norm_grad(
        &self,
        norm: ResponseNorm<f32>,
        dy: &[f32],
        x: &[f32],
        dx: &mut [f32],
    ) -> Result<(), Refused> {
        let [rows, _] = rows(x, norm.channels)?;
        let (sizes, numbers) = numbers(rows, &norm);
        let make = |engine: &Arc<Engine>| normalization::response_grad(engine, rows, &norm);
        let operands = &mut [input(dy), input(x), output(dx)];
        self.run(Key::ResponseNormGrad(sizes, numbers), make, operands)
    }
}

/// Rows of so many channels, and that number.
fn rows(x: &[f32], channels: usize) -> Result<[usize; 2], Refused> {
    match x.len().checked_div(channels) {
        Some(rows) if rows > 0 => Ok([rows, channels]),
        _ => Err(Refused::Shape),
    }
}

fn numbers(rows: usize, norm: &ResponseNorm<f32>) -> ([usize; 3], [u32; 3]) {
    let bits = [norm.alpha, norm.beta, norm.bias].map(f32::to_bits);
    ([rows, norm.channels, norm.size], bits)
}
