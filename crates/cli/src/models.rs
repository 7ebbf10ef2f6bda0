//! `tensorwire models`: what there is to train, to the byte.

use serde::Serialize;
use tensorwire_nn::{Optimizer, Program, ProgramSpec};
use tensorwire_zoo::MODELS;

use super::args::ModelsArgs;
use super::output::{json_line, print};
use super::{Failure, table::table};

/// What `--json` prints of one model.
#[derive(Serialize)]
struct ModelSize {
    model: String,
    /// What it learns from: the dimensions of a sample, and what becomes of it.
    samples: String,
    variables: usize,
    parameters: usize,
    bytes: usize,
}

pub(crate) fn run(args: &ModelsArgs) -> Result<(), Failure> {
    let sizes = MODELS.into_iter().map(|model| {
        let samples = model.samples();
        let optimizer = Optimizer::sgd(1.0);
        let spec = ProgramSpec { optimizer, ..ProgramSpec::default() };
        let program = Program::new(model, &samples.describe(), &spec).map_err(Failure::other)?;
        Ok(ModelSize {
            model: model.name(),
            samples: samples.to_string(),
            variables: program.variables.len(),
            parameters: program.variables.iter().map(|v| v.spec.elements()).sum(),
            bytes: program.variables.iter().map(|v| v.spec.bytes()).sum(),
        })
    });
    let sizes = sizes.collect::<Result<Vec<_>, Failure>>()?;
    if args.json {
        return sizes.iter().try_for_each(|size| print(json_line(size)?));
    }
    let rows: Vec<Vec<String>> = sizes.into_iter().map(row).collect();
    let header = ["model", "samples", "variables", "parameters", "MiB"];
    print(table(&header, &rows, &[2, 3, 4]))
}

fn row(size: ModelSize) -> Vec<String> {
    let ModelSize { model, samples, variables, parameters, bytes } = size;
    // fits: shown to a person
    let mebibytes = format!("{:.2}", bytes as f64 / f64::from(1 << 20));
    vec![model, samples, variables.to_string(), parameters.to_string(), mebibytes]
}
