//! The command line of `tensorwire bench`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{
    AllreduceArgs, CheckArgs, EvaluationArgs, KvstoreArgs, ModesArgs, StepArgs, TransferArgs,
    WriteArgs, check, evaluation,
};

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) scenario: Scenario,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Scenario {
    /// One tensor to a `reduce_max` in another process
    ///
    /// Xue et al., figure 8.
    Transfer(TransferArgs),
    /// A training step, against the same arithmetic alone
    ///
    /// With communication, and without.
    Step(Box<StepArgs>),
    /// One-sided writes, with no graph above them
    ///
    /// Into another process's memory; against gRPC if you like.
    Write(WriteArgs),
    /// Push and pull of one key by several workers
    ///
    /// In step; over ZeroMQ, too (Mamidala et al.).
    Kvstore(KvstoreArgs),
    /// Collective operations by every algorithm
    ///
    /// And of tensors that devices hold (Mamidala et al., section 6).
    Allreduce(Box<AllreduceArgs>),
    /// Learning curves of ways of training
    ///
    /// Accuracy, time and traffic by epoch (Mamidala et al., figures 11 to 14).
    Modes(ModesArgs),
    /// The figures of three papers that one machine can measure
    #[command(after_long_help = evaluation::EXAMPLES)]
    Evaluation(EvaluationArgs),
    /// Fail where a run is slower than an earlier one
    ///
    /// For continuous integration.
    #[command(after_long_help = check::EXAMPLES)]
    Check(CheckArgs),
    /// What a link carries (how `evaluation` measures between the hosts that it makes)
    #[command(hide = true)]
    Sockets(SocketsArgs),
}

/// Either end of a connection.
#[derive(Args, Debug)]
pub(crate) struct SocketsArgs {
    /// Receive here what one sender sends, until it ends
    #[arg(long, value_name = "ADDRESS", required_unless_present = "send_to")]
    pub(crate) receive_at: Option<SocketAddr>,
    /// Send to who receives there
    #[arg(long, value_name = "ADDRESS", conflicts_with = "receive_at", requires = "json")]
    pub(crate) send_to: Option<SocketAddr>,
    /// Append what went in a second to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Send as long as this file is there, which is made when bytes begin to go [default: for a moment]
    #[arg(long, value_name = "FILE", requires = "send_to")]
    pub(crate) as_long_as: Option<PathBuf>,
}
