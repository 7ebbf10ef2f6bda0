//! The command line of `tensorwire models`.

use clap::Args;

#[derive(Args, Debug)]
pub(crate) struct ModelsArgs {
    /// One object of JSON a model
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads the name of a model, and gives it as `tensorwire models` prints it. Whoever looks for one that is none says so.
pub(super) fn model_name(given: &str) -> Result<String, std::convert::Infallible> {
    Ok(tensorwire_zoo::model(given).map_or_else(|_| given.to_string(), |model| model.name()))
}
