//! One process of a job: names every room, chooses, connects. A launcher starts the members, on its own host
//! and on others, brings them together and watches them; a member does its part of the plan. Holds no algorithm, and reads
//! no environment and no arguments.
#![forbid(unsafe_code)]

mod assignment;
mod batches;
mod carried;
mod config;
mod control;
pub mod doctor;
pub mod enlist;
mod exit;
mod group;
mod hosts;
mod launch;
mod member;
mod messages;
mod negotiate;
mod open_part;
mod report;
mod start;
mod store;
mod trace;
mod train;
mod verdict;
mod weights;
pub mod whole_file;

pub use assignment::Assignment;
pub use batches::{BatchesSpec, write_batches};
pub use config::{
    Averaging, ClientConfig, ConfigError, Exchange, FloatType, Kernels, OptimizerChoice, Schedule,
    Seat, StoreConfig, Strategy, TensorLimit, TraceConfig, TrainConfig, Transport, TunedRow,
};
pub use group::{ClientError, VectorFold};
pub use hosts::{Hosts, HostsError, Placement, RSH};
pub use launch::{JobError, JobOutcome, JobSpec, Update, launch};
pub use member::{
    Ending, Farewell, JoinError, Member, MemberError, Peers, Scheduling, WireOptions,
};
pub use negotiate::Choice;
pub use open_part::{Lanes, OpenLanes, OpenPart, PartError, PartOptions};
pub use report::{EpochEnd, Evaluation, Polling, Progress, Traffic, TrainReport, copies_key};
pub use store::{
    Arithmetic, BarrierError, OpenStoreError, SnapshotFiles, StoreEnd, StoreEvent, StoreJob,
    StoreOptions, StorePlace, StoreRule, StoreRules, StoreWire,
};
pub use tensorwire_collectives::Algorithm;
pub use tensorwire_fabric::{ArrivalMode, GidChoice, VerbsOptions, VerbsUnusable, verbs_usable};
pub use tensorwire_kernels::KernelChoice;
pub use tensorwire_kvstore::proto::Role;
pub use tensorwire_kvstore::{ServerLoad, Travels};
pub use trace::{TraceError, TraceEvent};
pub use train::{
    Prepared, StoreValue, TrainError, launch_train, model_named, train_local, train_member,
};
pub use verdict::{FirstFailure, Remark};
pub use weights::WeightsError;
