//! Executes one partition of a plan, step after step. It knows plans, buffers and ports; it does not
//! know models, what a gradient means, or how bytes travel.
//!
//! A product whose matrix stays, in one process; with several, each opens its part of the plan with [`Ports`] to the others:
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use tensorwire_graph::{
//!     Cluster, Graph, Hint, Init, Op, Placement, PlanOptions, RunId, RunSpec, place, plan,
//! };
//! use tensorwire_kernels::{KernelChoice, Kernels};
//! use tensorwire_memory::Slab;
//! use tensorwire_runtime::{Session, SessionOptions, Storage};
//! use tensorwire_tensor::{DType, Fact, TensorSpec};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (mut graph, here) = (Graph::new(), Hint::Replica(0));
//! let w = graph.variable("w", TensorSpec::new(DType::F32, &[2, 2])?, Init::Zeros)?;
//! let x = graph.add("x", here, Op::Input { fact: Fact::known(DType::F32, &[1, 2]) }, &[])?;
//! let product = Op::MatMul { transpose_a: false, transpose_b: false };
//! let y = graph.add("y", here, product, &[x.into(), w])?;
//!
//! let cluster = Cluster::Local;
//! let placed = place(&graph, cluster, Placement::default())?;
//! let run = RunSpec { name: "multiply", roots: vec![y], fetch_to: None, given: vec![], followed_by: vec![0] };
//! let plan = plan(&placed, &cluster.tasks(), &[run], PlanOptions::default())?;
//!
//! // what peers would read is cut from one slab, which a fabric would register
//! let part = &plan.parts[0];
//! let storage = Storage::new(part, &Slab::anonymous(part.memory.registered_bytes)?)?;
//! let kernels = Arc::new(Kernels::open(KernelChoice::Cpu, 1)?);
//! let options = SessionOptions {
//!     step_deadline: Duration::from_secs(10),
//!     timeline: false,
//!     dynamic_bytes_max: 1 << 20,
//!     variables_shared: false,
//! };
//! let mut session = Session::new(&plan, 0, storage, kernels, None, options)?;
//!
//! for (name, values) in [("w", &[1.0f32, 2.0, 3.0, 4.0][..]), ("x", &[10.0, 1.0])] {
//!     let (_, mut bytes) = session.write(session.node(name)?.into())?;
//!     bytemuck::cast_slice_mut(&mut bytes).copy_from_slice(values);
//! }
//! session.run(RunId(0))?;
//! let (spec, bytes) = session.read(session.node("y")?.into())?;
//! assert_eq!((spec.dims(), bytemuck::cast_slice(&bytes)), (&[1, 2][..], &[13.0f32, 24.0][..]));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod ahead;
mod dynamic;
mod error;
mod executor;
mod frontier;
#[doc(hidden)]
pub mod fuzz;
mod mirrors;
mod one_sided;
mod ports;
mod readers;
mod session;
mod sessions;
mod standing;
mod storage;
mod tail;
mod timeline;
mod under_way;
mod whole;
mod workspace;

pub use dynamic::LaneUse;
pub use error::{AllocError, ConnectEdgesError, ExchangeError, RunError, SessionError};
pub use executor::{Advance, Counters};
pub use mirrors::{Reading, Writing};
pub use one_sided::{OneSided, OneSidedOptions, Opening};
pub use ports::{
    AnnouncedWay, DeviceWay, Events, GroupOps, OnPeer, Ports, Sending, TensorExchange,
};
pub use session::{Computing, Session, SessionOptions};
pub use sessions::{run_sessions, share_memory, share_variables};
pub use standing::{Doing, Standing};
pub use storage::Storage;
pub use timeline::{Event, EventKind, Timeline};
