//! A session: one part of a plan with its memory, its kernels and its exchange; runs it again and again.

use std::sync::Arc;
use std::time::Duration;

use tensorwire_graph::{NodeId, Output, Part, Plan, RunId};
use tensorwire_kernels::Kernels;
use tensorwire_memory::{CopyCounter, ReadGuard, WriteGuard};
use tensorwire_tensor::TensorSpec;

use crate::error::{RunError, SessionError};
use crate::executor::{Counters, Executor};
use crate::frontier::Frontier;
use crate::ports::Exchange;
use crate::storage::{Storage, Tensor};
use crate::timeline::Timeline;

/// What a session may be told.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Longest a run may wait without any progress. A dead peer is noticed long before.
    pub step_deadline: Duration,
    /// Record when each node ran.
    pub timeline: bool,
}

/// One process's share of a plan.
pub struct Session {
    part: Part,
    storage: Storage,
    frontiers: Vec<Frontier>,
    executor: Executor,
}

impl Session {
    /// A session for `plan.parts[part]`. `exchange` may be none where nothing crosses.
    ///
    /// # Errors
    /// When edges cross and there is no exchange.
    pub fn new(
        plan: &Plan,
        part: usize,
        storage: Storage,
        kernels: Arc<Kernels>,
        exchange: Option<Box<dyn Exchange>>,
        options: SessionOptions,
    ) -> Result<Session, SessionError> {
        let edges = plan.edges.iter().filter(|e| e.from == part || e.to == part).count();
        if edges > 0 && exchange.is_none() {
            return Err(SessionError::NoExchange { part, edges });
        }
        let here = plan.parts[part].clone();
        let frontiers = plan.runs.iter().map(|r| Frontier::new(&here, &r.nodes[part])).collect();
        let executor = Executor::new(plan, part, kernels, exchange, options);
        Ok(Session { part: here, storage, frontiers, executor })
    }

    /// Runs one run of the plan once, to its end. Every other process must run the same one.
    ///
    /// # Errors
    /// When a kernel refuses, a peer is lost, or nothing happens for too long.
    pub fn run(&mut self, run: RunId) -> Result<(), RunError> {
        self.executor.run(&self.part, &self.storage, &mut self.frontiers[run.0])
    }

    pub fn part(&self) -> &Part {
        &self.part
    }

    /// The node of this name.
    ///
    /// # Errors
    /// When this part has none.
    pub fn node(&self, name: &str) -> Result<NodeId, SessionError> {
        self.part.graph.find(name).ok_or_else(|| SessionError::NoSuchNode {
            name: name.to_string(),
            task: self.part.task.to_string(),
        })
    }

    /// A tensor's spec and bytes, between runs.
    ///
    /// # Errors
    /// When the part has no such tensor, or it is still being sent.
    pub fn read(&self, output: Output) -> Result<(&TensorSpec, ReadGuard<'_>), SessionError> {
        let tensor = self.tensor(output)?;
        let lent = |source| SessionError::Lent { name: self.name(output), source };
        Ok((&tensor.spec, tensor.buffer.read().map_err(lent)?))
    }

    /// A tensor's spec and bytes, to be filled in place between runs: an input or a variable.
    ///
    /// # Errors
    /// As [`Session::read`].
    pub fn write(&self, output: Output) -> Result<(&TensorSpec, WriteGuard<'_>), SessionError> {
        let tensor = self.tensor(output)?;
        let lent = |source| SessionError::Lent { name: self.name(output), source };
        Ok((&tensor.spec, tensor.buffer.write().map_err(lent)?))
    }

    /// What the executor did so far.
    pub fn counters(&self) -> Counters {
        self.executor.counters
    }

    /// The bytes that the runtime itself copied.
    pub fn copies(&self) -> &CopyCounter {
        &self.executor.copies
    }

    /// When nodes ran, if [`SessionOptions::timeline`] asked for it.
    pub fn timeline(&mut self) -> Option<&mut Timeline> {
        self.executor.timeline.as_mut()
    }

    /// Stops recording: from now on it costs nothing. Returns what is recorded.
    pub fn stop_timeline(&mut self) -> Option<Timeline> {
        self.executor.timeline.take()
    }

    fn tensor(&self, output: Output) -> Result<&Tensor, SessionError> {
        self.storage.tensor(output).ok_or_else(|| SessionError::NoSuchNode {
            name: format!("{output:?}"),
            task: self.part.task.to_string(),
        })
    }

    fn name(&self, output: Output) -> String {
        self.part.graph.node(output.node).name.clone()
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("task", &self.part.task).finish_non_exhaustive()
    }
}
