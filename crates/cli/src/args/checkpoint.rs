//! The command line of `tensorwire checkpoint`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Args, Debug)]
pub(crate) struct CheckpointArgs {
    #[command(subcommand)]
    pub(crate) command: CheckpointCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointCommand {
    /// List the checkpoints in a folder
    ///
    /// Every file is read and compared with its SHA-256.
    Show {
        /// What `train --checkpoint` was given
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// One object of JSON a checkpoint
        #[arg(long)]
        json: bool,
    },
    /// Write the weights of a checkpoint to one file
    ///
    /// A safetensors file, which `train --load` takes.
    Convert {
        /// The folder of the checkpoint: `DIR/step-00000200`
        #[arg(value_name = "CHECKPOINT")]
        checkpoint: PathBuf,
        /// The file to write, whole or not at all
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// What was written, as one object of JSON
        #[arg(long)]
        json: bool,
    },
}
