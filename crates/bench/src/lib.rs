//! Scenarios as data, one runner: warm-up, median of repetitions, verified data, the machine's limits
//! measured in the same run. Knows no arguments and prints nothing.
#![forbid(unsafe_code)]

/// Repetitions of an operation between processes that are not measured, where nobody says how many.
const WARM_UP: usize = 3;

mod allreduce;
mod busy;
mod by_name;
mod error;
mod evaluation;
mod job;
mod kvstore;
mod limit;
mod machine;
mod modes;
mod simulate;
mod size;
mod step;
mod transfer;
mod versions;
mod write;

pub use allreduce::{
    ALLREDUCE, AllreduceError, AllreduceResult, AllreduceSpec, CONTRIBUTORS_MAX, CollectiveKind,
    DeviceTensor, DeviceThreads, GPU_ALLREDUCE, GpuAllreduceError, GpuAllreduceResult,
    GpuAllreduceSpec, GpuSystem, Way, allreduce, allreduce_member, gpu_allreduce,
    gpu_allreduce_member, measure_link, tuned_rows,
};
pub use by_name::ByName;
pub use error::BenchError;
pub use evaluation::{
    Case, DataFolder, DoneCase, Earlier, FIGURES, Figure, FigureScope, LinkBench, LinkJob,
    LinkRate, LinkSpeed, LinkSteps, NextCase, NoData, NodesDesign, NodesOf, NotMeasured, Runner,
    SimulatedNodes, Turns, case_key, no_links, receive_over_link, send_over_link,
};
pub use job::QUIET_RATE;
pub use kvstore::{
    KVSTORE, KvstoreError, KvstoreResult, KvstoreSpec, PAPER_BYTES, Pull, WORKERS_MAX, kvstore,
    kvstore_member,
};
pub use limit::LimitKind;
pub use machine::Machine;
pub use modes::{Curve, ModePoint, PAPER_MODES, curve, in_mode};
pub use simulate::{
    Compute, SimulateResult, SimulateSpec, calibrate, measure_compute, simulate, validate,
};
pub use size::{SizeError, parse_bytes, parse_size};
pub use step::{Overlap, StepEvent, StepOptions, StepResult, step};
pub use transfer::{
    Sizes, StampError, TRANSFER, TransferError, TransferResult, TransferSpec, transfer_member,
    transfer_sizes, transfers,
};
pub use versions::Versions;
pub use write::{WINDOW_MAX, WRITE, WriteError, WriteResult, WriteSpec, write, write_member};
