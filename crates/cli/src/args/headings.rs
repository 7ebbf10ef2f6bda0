//! The groups in which `--help` lists options, and in which `--print-config` writes them.

pub(super) const MODEL: &str = "Model and data";
pub(super) const STRATEGY: &str = "Strategy";
pub(super) const PROCESSES: &str = "Processes and hosts";
pub(super) const OPTIMIZER: &str = "Optimizer";
pub(super) const COMPUTE: &str = "Compute";
pub(super) const WIRE: &str = "Wire";
pub(super) const CHECKPOINTS: &str = "Checkpoints and weights";
pub(super) const FAILURES: &str = "Failures";
pub(super) const MEASUREMENT: &str = "Measurement";
/// What is simulated.
pub(super) const CLUSTER: &str = "Cluster";
pub(super) const OUTPUT: &str = "Output";
/// Of the program, in every command.
pub(crate) const PROGRAM: &str = "Program";
