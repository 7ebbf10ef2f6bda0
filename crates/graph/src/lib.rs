//! The data-flow graph, its passes and the plans they make. Pure: no memory, no time, no I/O, no
//! threads; the same input gives the same graph with the same ids on every machine.
//!
//! A model's author calls [`Graph::add`] and never says "send". The passes, in order:
//! [`gradients`] → [`simplify`] → [`place`] → [`plan`] (partition, write-after-read order, reuse
//! proofs, memory plan). After each, [`verify`] names the pass that broke an invariant.
//!
//! A layer with its gradient, trained by one worker with one server:
//!
//! ```
//! use tensorwire_graph::{
//!     Cluster, Graph, GraphError, Hint, Init, Op, Placement, PlanOptions, Rule, RunId, RunSpec, gradients,
//!     place, plan, simplify,
//! };
//! use tensorwire_tensor::{DType, Fact, TensorSpec};
//!
//! # fn main() -> Result<(), GraphError> {
//! let (mut graph, here) = (Graph::new(), Hint::Replica(0));
//! let spec = TensorSpec::new(DType::F32, &[784, 10]).expect("a small matrix");
//! let w = graph.variable("w", spec, Init::GlorotUniform { fan_in: 784, fan_out: 10 })?;
//! let fact = Fact::known(DType::F32, &[32, 784]);
//! let x = graph.add("x", here, Op::Input { fact }, &[])?;
//! let fact = Fact::known(DType::I32, &[32]);
//! let labels = graph.add("labels", here, Op::Input { fact }, &[])?;
//! let product = Op::MatMul { transpose_a: false, transpose_b: false };
//! let logits = graph.add("logits", here, product, &[x.into(), w])?;
//! let inputs = [logits.into(), labels.into()];
//! let loss = graph.add("loss", here, Op::SoftmaxCrossEntropy, &inputs)?;
//!
//! let made = gradients(&mut graph, "gradients", here, loss.into(), &[w])?;
//! let dw = made[0].dense().expect("w is used whole");
//! let rule = Rule::sgd(0.1);
//! let update = graph.add("update", Hint::With(w.node), Op::Apply { rule, clipped: false }, &[w, dw])?;
//!
//! let (graph, moved) = simplify(&graph, &[loss, update])?;
//! let cluster = Cluster::ParameterServers { workers: 1, servers: 1 };
//! let placed = place(&graph, cluster, Placement::default())?;
//! let roots = vec![moved[&loss], moved[&update]];
//! let run = RunSpec { name: "train", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
//! let plan = plan(&placed, &cluster.tasks(), &[run], PlanOptions::default())?;
//!
//! // the weights cross to the worker, and their gradient back
//! assert_eq!(plan.traffic(RunId(0)).written, 2 * 784 * 10 * 4);
//! # Ok(())
//! # }
//! ```
//!
//! What an operator is stands in the row that [`Op::facts`] gives. [`CustomOperator`] is the rules of one of your own.
#![forbid(unsafe_code)]

mod error;
mod graph;
mod op;
mod optimizer;
mod output;
mod pass;
mod picture;
mod plan;
mod render;

pub use error::GraphError;
pub use graph::{Graph, Hint, Job, Node, Piece, Task};
pub use op::{
    Arity, Attention, AttentionMask, Backward, Binary, Cell, Comparison, CustomOp, CustomOperator,
    EdgeId, Family, HeadOrder, Init, Kind, Method, Op, OpFacts, Reduction, Refusal, Rotary, Rule,
    SampleNorm, Unary, Window, dropout_keeps, random_bits,
};
pub use output::{Gradient, NodeId, Output};
pub use pass::gradient::gradients;
pub use pass::infer::infer;
pub use pass::memory::{Lane, MemoryPlan, SendFrom, Spot};
pub use pass::partition::RELAYED_BYTES_MIN;
pub use pass::place::{Cluster, Placement, place};
pub use pass::reduce::AllReduceBy;
pub use pass::reference::{Transfer, WhyWrite};
pub use pass::rings::AmongDevices;
pub use pass::simplify::simplify;
pub use pass::space::{DeviceCrossing, DeviceTasks};
pub use pass::verify::verify;
pub use pass::wire::NARROWED_FROM;
pub use picture::{Crossing, ModelLayer, Picture, Screen, What, layer_of};
pub use plan::{
    Edge, Part, Plan, PlanOptions, Reuse, ReuseRule, Run, RunId, RunSpec, RunTraffic, SharedMemory,
    plan,
};
