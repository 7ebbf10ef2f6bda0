//! Training jobs: what a job is told, the strategies, and what each process does from its first values to its report.
//! Chooses and connects; reads no environment and no arguments, and starts no process by itself.
#![forbid(unsafe_code)]

mod attempts;
mod awaiting;
mod batches;
mod best;
mod carried;
mod checkpoint;
mod classes;
mod config;
mod crossings;
mod evaluated;
mod figures;
#[doc(hidden)]
pub mod fuzz;
mod group;
mod growth;
mod job;
mod left;
#[cfg_attr(not(feature = "baselines"), path = "messages_absent.rs")]
mod messages;
#[cfg(test)]
mod mounted;
mod mover;
mod open_part;
mod origin;
mod quantiles;
mod rates;
mod report;
mod resizing;
mod run;
mod steps;
mod store;
mod strategy;
mod summary;
mod tensorboard;
mod topology;
mod trace;
mod weights;
pub mod whole_file;
mod whole_records;

pub use batches::{BatchesSpec, write_batches};
pub use best::BestEvaluation;
pub use checkpoint::{
    CheckpointConfig, CheckpointError, CheckpointFolder, CheckpointState, DataPosition, FileState,
    FoundCheckpoint, Resumed, SampleCounts, ShardReport,
};
pub use classes::BeginsWith;
pub use config::{
    Averaging, Budget, ClientConfig, CollectivesChoice, ConfigError, CudaLibraries, DeviceChoice,
    DeviceDesign, Exchange, FloatType, Kernels, MathMode, SendOrder, StoreConfig, TraceConfig,
    TrainConfig, TunedLink, TunedRow, WireType, WireTypeError,
};
pub use crossings::LinkLoad;
pub use evaluated::EvaluationSummary;
pub use figures::{ProcessFigures, StoreFigures};
pub use group::{ClientError, VectorReducer, link_cost};
pub use growth::{GrownLoss, LossGrowth};
pub use job::{
    Prepared, StoreValue, Supply, TrainError, Workload, checked_gpu, train_local, train_member,
};
pub use left::{Kept, Left};
pub use open_part::{
    OpenPart, OpenSessions, PartError, PartOptions, SessionRanks, open_part, open_sessions,
};
pub use origin::WeightsOrigin;
pub use quantiles::Quantiles;
pub use rates::{RateFunction, Rates};
pub use report::{EpochEnd, Evaluation, Polling, Progress, Traffic, TrainReport, copies_key};
pub use run::{JobFailure, MemberRecord, TRAIN, TrainOutcome, TrainUpdate, launch_train};
pub use steps::{FinishedStep, PollingFigures, StepAggregator, StepEvaluation};
pub use store::{
    Arithmetic, GradientCompression, OpenStoreError, SnapshotFiles, StoreEnd, StoreOptions,
    StoreRule, StoreRules, StoreWire, open_store,
};
pub use strategy::Strategy;
pub use summary::{Summary, SummaryError};
pub use tensorboard::{EventFile, EventFileError};
pub use tensorwire_collectives::Algorithm;
pub use tensorwire_cuda::CheckedGpu;
pub use tensorwire_kernels::KernelChoice;
pub use tensorwire_kvstore::{ServerLoad, TransferMode};
pub use topology::{Pace, Topology, Weights};
pub use trace::{Hidden, TraceError, TraceEvent, TraceSummary};
pub use weights::WeightsError;
pub use whole_records::WholeRecords;
