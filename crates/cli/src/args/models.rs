//! The command line of `tensorwire models`.

use clap::Args;

#[derive(Args, Debug)]
pub(crate) struct ModelsArgs {
    /// One object of JSON a model
    #[arg(long)]
    pub(crate) json: bool,
}
