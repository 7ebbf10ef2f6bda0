//! `tensorwire batches`: what a worker is fed, as a file.

use tensorwire_bench::ByName;
use tensorwire_train::{Supply, Workload, write_batches};

use super::args::BatchesArgs;
use super::{Failure, output::note};

pub(crate) fn run(args: BatchesArgs) -> Result<(), Failure> {
    let (config, spec, path) = args.spec();
    let (model, data) = (ByName.model(&config)?, ByName.data(&config)?);
    let workload = Workload { model, data, rates: None };
    write_batches(&spec, &workload, &path)?;
    note(format_args!("{} steps' batches written to {}", spec.steps, path.display()));
    Ok(())
}
