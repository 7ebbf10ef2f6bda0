//! `tensorwire models`: what there is to train, to the byte.

use tensorwire_models::{Model, Optimizer, Program, ProgramSpec};

use super::{Failure, output::print, table::table};

pub(crate) fn run() -> Result<(), Failure> {
    let mut rows = Vec::new();
    for model in Model::ALL {
        let (features, classes) = model.input_shape();
        let optimizer = Optimizer::Sgd { rate: 1.0 };
        let spec = ProgramSpec { model, features, classes, batch: 1, replicas: 1, optimizer };
        let program = Program::new(&spec).map_err(Failure::other)?;
        let parameters: usize = program.variables.iter().map(|v| v.spec.elements()).sum();
        let bytes: usize = program.variables.iter().map(|v| v.spec.bytes()).sum();
        rows.push(vec![
            model.name().to_string(),
            format!("{features} → {classes}"),
            program.variables.len().to_string(),
            parameters.to_string(),
            // fits: shown to a person
            format!("{:.2}", bytes as f64 / f64::from(1 << 20)),
        ]);
    }
    let header = ["model", "input → classes", "variables", "parameters", "MiB"];
    print(table(&header, &rows, &[2, 3, 4]))?;
    Ok(())
}
