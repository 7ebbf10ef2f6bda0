//! How large the models of Xue et al. are, and the tensors of their variables (table 2 and figure 7). Counted, not measured.

use serde::Serialize;
use tensorwire_nn::{Error, Program, ProgramSpec};
use tensorwire_simulate::paper::BENCHMARKS;
use tensorwire_zoo::Shipped;

use super::tell;
use crate::error::BenchError;
use crate::machine::Machine;

/// Where the text has a number for figure 7: 10 KB.
const TEXT_BYTES: usize = 10 << 10;

#[derive(Debug, Serialize)]
struct ModelSize {
    bench: &'static str,
    model: &'static str,
    bytes: usize,
    variables: usize,
    /// Table 2.
    paper_bytes: f64,
    paper_variables: usize,
    machine: Machine,
}

/// What of all variables, of all six models, is larger than so many bytes.
#[derive(Debug, Serialize)]
struct LargerThan {
    bench: &'static str,
    bytes: usize,
    /// Of their number, from 0 to 1.
    tensors: f64,
    /// Of the bytes of all.
    capacity: f64,
    variables: usize,
    machine: Machine,
}

/// Tells of each model, and of its tensors together with the others'.
pub(super) fn sizes(on_line: &mut dyn FnMut(serde_json::Value)) -> Result<(), BenchError> {
    let mut all = Vec::new();
    for of_paper in BENCHMARKS {
        let sizes = variables(tensorwire_zoo::model(of_paper.model).map_err(Error::other)?)?;
        let size = ModelSize {
            bench: "model-size",
            model: of_paper.model,
            bytes: sizes.iter().sum(),
            variables: sizes.len(),
            paper_bytes: of_paper.model_mb * f64::from(1 << 20),
            paper_variables: of_paper.variables,
            machine: Machine::here(),
        };
        tell(on_line, &size)?;
        all.extend(sizes);
    }
    // 16 B to 256 MiB by fours
    let mut thresholds: Vec<usize> = (2..=14).map(|power| 1 << (2 * power)).collect();
    thresholds.push(TEXT_BYTES);
    thresholds.sort_unstable();
    thresholds.into_iter().try_for_each(|bytes| tell(on_line, &larger_than(bytes, &all)))
}

/// The bytes of each variable.
fn variables(model: &dyn Shipped) -> Result<Vec<usize>, BenchError> {
    let program = Program::new(model, &model.samples().describe(), &ProgramSpec::default())?;
    Ok(program.variables.iter().map(|variable| variable.spec.bytes()).collect())
}

fn larger_than(bytes: usize, sizes: &[usize]) -> LargerThan {
    let larger = || sizes.iter().filter(|size| **size > bytes);
    // fits: models have far fewer
    let share = |part: usize, whole: usize| part as f64 / whole as f64;
    LargerThan {
        bench: "tensor-sizes",
        bytes,
        tensors: share(larger().count(), sizes.len()),
        capacity: share(larger().sum(), sizes.iter().sum()),
        variables: sizes.len(),
        machine: Machine::here(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_as_large_as_the_papers_to_the_printed_digit() {
        let mut lines = Vec::new();
        sizes(&mut |line| lines.push(line)).unwrap();
        let models = lines.iter().filter(|line| line["bench"] == "model-size");
        let differences = models.map(|line| {
            let number = |field: &str| line[field].as_f64().unwrap();
            assert_eq!(line["variables"], line["paper_variables"], "{line}");
            (number("bytes") - number("paper_bytes")).abs() / f64::from(1 << 20)
        });
        let differences: Vec<f64> = differences.collect();
        assert_eq!(differences.len(), 6);
        assert!(differences.iter().all(|mebibytes| *mebibytes <= 0.005), "{differences:?}");
    }

    #[test]
    fn shares_are_of_what_is_larger() {
        let of = |bytes| {
            let found = larger_than(bytes, &[4, 16, 60]);
            (found.tensors, found.capacity)
        };
        assert_eq!(of(3), (1.0, 1.0));
        assert_eq!(of(16), (1.0 / 3.0, 0.75));
        assert_eq!(of(60), (0.0, 0.0));
    }
}
