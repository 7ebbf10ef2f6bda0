//! Why a benchmark gave no figure.

use tensorwire_graph::GraphError;
use tensorwire_kernels::{KernelError, OpenError};
use tensorwire_launch::JobError;
use tensorwire_memory::TensorError;
use tensorwire_simulate::SimulateError;
use tensorwire_tensor::ShapeError;
use tensorwire_train::{ConfigError, JobFailure, TrainError};

use crate::transfer::StampError;

/// Why a benchmark gave no figure. One that verifies wrong data is no figure either.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error(transparent)]
    Workload(#[from] tensorwire_nn::Error),
    #[error(transparent)]
    Job(#[from] JobError),
    /// Of a job that may be started again.
    #[error(transparent)]
    Restarts(Box<JobFailure>),
    #[error(transparent)]
    Train(Box<TrainError>),
    #[error(transparent)]
    Simulate(#[from] SimulateError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error(transparent)]
    Shape(#[from] ShapeError),
    #[error(
        "Xue et al. do not say how long '{model}' takes; give --compute-ms, or a model of theirs: {known}"
    )]
    NotInPaper { model: String, known: String },
    #[error("the {expected} reported what is another's; do all processes run the same version?")]
    WrongEnd { expected: &'static str },
    #[error("hosts with links of a given rate: {0}; `bench/link.sh -- COMMAND` tries them alone")]
    Links(#[source] std::io::Error),
    #[error(
        "cannot measure what sockets cost a core: {0}; it takes a loopback, and threads that may choose their core"
    )]
    Sockets(#[source] std::io::Error),
    #[error("the stamps of the two sides do not fit: {0}")]
    Stamps(#[from] StampError),
    #[error("{what} must be at least 1")]
    Zero { what: &'static str },
    #[error(
        "a vector of {bytes} bytes is no whole number of elements of {element_bytes}; give a multiple"
    )]
    Uneven { bytes: usize, element_bytes: usize },
    #[error(
        "{contributors} vectors are more than have exact sums (at most {most}); give fewer ranks or devices"
    )]
    Contributors { contributors: u64, most: u32 },
    #[error("a worker ended and had not said how far it was after epoch {epoch}")]
    NoEpoch { epoch: u64 },
    #[error(
        "test accuracy {last} after the last epoch, {in_the_end} in the end, and nothing came between; same bits are \
         promised"
    )]
    AccuracyDiffers { last: f64, in_the_end: f64 },
    #[error("no process reported the weights of the {kind} run")]
    NoWeights { kind: &'static str },
    #[error(
        "the weights differ: sha256 {local} without communication, {ps} with; same bits are promised"
    )]
    WeightsDiffer { local: String, ps: String },
}

impl BenchError {
    /// True if another command line fixes it.
    pub fn is_user_error(&self) -> bool {
        match self {
            BenchError::Config(_)
            | BenchError::Workload(_)
            | BenchError::Simulate(_)
            | BenchError::NotInPaper { .. }
            | BenchError::Zero { .. }
            | BenchError::Uneven { .. }
            | BenchError::Contributors { .. } => true,
            BenchError::Train(error) => error.is_user_error(),
            BenchError::Job(error) => error.is_user_error(),
            _ => false,
        }
    }
}

impl From<JobFailure> for BenchError {
    fn from(failure: JobFailure) -> BenchError {
        match failure {
            JobFailure::Job(error) => BenchError::Job(error),
            JobFailure::Trace(error) => TrainError::from(error).into(),
            failure => BenchError::Restarts(Box::new(failure)),
        }
    }
}

impl From<TrainError> for BenchError {
    fn from(error: TrainError) -> BenchError {
        BenchError::Train(Box::new(error))
    }
}
