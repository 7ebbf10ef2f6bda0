//! `tensorwire models`: what there is to train, to the byte.

use tensorwire_nn::{Optimizer, Program, ProgramSpec};
use tensorwire_zoo::MODELS;

use super::{Failure, output::print, table::table};

pub(crate) fn run() -> Result<(), Failure> {
    let mut rows = Vec::new();
    for model in MODELS {
        let samples = model.samples();
        let optimizer = Optimizer::sgd(1.0);
        let spec = ProgramSpec { optimizer, ..ProgramSpec::default() };
        let program = Program::new(model, &samples.describe(), &spec).map_err(Failure::other)?;
        let parameters: usize = program.variables.iter().map(|v| v.spec.elements()).sum();
        let bytes: usize = program.variables.iter().map(|v| v.spec.bytes()).sum();
        rows.push(vec![
            model.name(),
            samples.to_string(),
            program.variables.len().to_string(),
            parameters.to_string(),
            // fits: shown to a person
            format!("{:.2}", bytes as f64 / f64::from(1 << 20)),
        ]);
    }
    let header = ["model", "samples", "variables", "parameters", "MiB"];
    print(table(&header, &rows, &[2, 3, 4]))?;
    Ok(())
}
