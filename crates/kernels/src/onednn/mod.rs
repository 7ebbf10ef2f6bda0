//! oneDNN, loaded at run time, for convolutions of f32. All else, and what the library refuses, is the `cpu`
//! back end's: measured, its products and batch normalisations are as fast, and their bits depend on no number
//! of threads; the library's maximum passes over a NaN, which ours shows.
//!
//! Images are used where they lie. Weights are turned into the order that the library likes, into scratch
//! that one call after the other uses, and gradients out of it: nothing is kept from call to call but code.
//! One call runs at a time: it has all threads.
//!
//! The same operands give the same bits every time on the same number of threads; on another number a sum may
//! be added in another order.

mod backend;
mod convolution;
mod library;
mod plan;
mod primitive;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::cpu::Cpu;
use crate::launch::images::Convolution;
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
        format!("onednn {version} ({file}): convolution; rest as {rest}")
    }

    pub(crate) fn determined_by(&self) -> String {
        let (version, threads) = (&self.engine.library.version, self.cpu.thread_count());
        let plural = if threads == 1 { "" } else { "s" };
        format!("onednn {version} on {threads} thread{plural}")
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
}
