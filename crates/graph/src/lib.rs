//! The data-flow graph, its passes and the plans they make. Pure: no memory, no time, no I/O, no
//! threads; the same input gives the same graph with the same ids on every machine.
//!
//! A model's author calls [`Graph::add`] and never says "send". The passes, in order:
//! [`gradients`] → [`simplify`] → [`place`] → [`plan`] (partition, write-after-read order, reuse
//! proofs, memory plan). After each, [`verify`] names the pass that broke an invariant.
#![forbid(unsafe_code)]

mod error;
mod graph;
mod op;
mod optimizer;
mod output;
mod pass;
mod plan;
mod render;

pub use error::GraphError;
pub use graph::{Graph, Hint, Job, Node, Task};
pub use op::{
    Arity, Backward, Cell, CustomOp, CustomOperator, EdgeId, Family, Init, Kind, Op, OpFacts,
    Reduction, Refusal, Rule, Window, dropout_keeps,
};
pub use output::{Gradient, NodeId, Output};
pub use pass::gradient::gradients;
pub use pass::infer::infer;
pub use pass::memory::{Lane, MemoryPlan, SendFrom, Spot};
pub use pass::place::{Cluster, place};
pub use pass::reference::{Transfer, WhyWrite};
pub use pass::simplify::simplify;
pub use pass::verify::verify;
pub use plan::{
    Edge, Part, Plan, PlanOptions, Reuse, ReuseRule, Run, RunId, RunSpec, SharedMemory, Traffic,
    plan,
};
