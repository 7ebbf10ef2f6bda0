//! `tensorwire batches`: what a worker is fed, as a file.

use tensorwire_train::write_batches;

use super::args::BatchesArgs;
use super::{Failure, output::note};

pub(crate) fn run(args: BatchesArgs) -> Result<(), Failure> {
    let (spec, path) = args.spec()?;
    write_batches(&spec, &path)?;
    note(format_args!("{} steps' batches written to {}", spec.steps, path.display()));
    Ok(())
}
