//! Exponential moving averages of parameters (EMA): what the last so many steps had, on average, each counting less than the
//! one behind it. Worker 0, which evaluates, averages what it reads; so no strategy knows of them, and nothing more crosses.

use tensorwire_graph::{Graph, GraphError, Hint, NodeId, Op, Output};
use tensorwire_tensor::{DType, TensorSpec};

use super::build::{Built, declared};

/// What is added for averages.
#[derive(Debug, Default)]
pub(super) struct Averages {
    /// The variables that they are kept in, by name.
    pub(super) kept: Vec<String>,
    /// What a step does to them.
    pub(super) updates: Vec<NodeId>,
    /// By parameter: its average with the value that it has now.
    pub(super) now: Vec<NodeId>,
}

const KEPT: &str = "/average";

/// The parameter that an average of this name would be of.
pub(super) fn of(average: &str) -> Option<&str> {
    average.strip_suffix(KEPT)
}

/// The variable that the average of a parameter is kept in.
pub fn average_of(parameter: &str) -> String {
    format!("{parameter}{KEPT}")
}

/// The node that has the average of a parameter, with the value that it has now.
pub(crate) fn now(parameter: &str) -> String {
    format!("average/{parameter}")
}

/// Adds an average a for each parameter w of the first replica: a ← decay·a + (1 − decay)·w with the value that a step begins
/// with, so that with the value now it is what `timm.utils.ModelEmaV2` has after the last step.
pub(super) fn add(graph: &mut Graph, decay: f64, first: &Built) -> Result<Averages, GraphError> {
    let mut added = Averages::default();
    let rate = 1.0 - decay;
    for learned in &first.made.learned {
        let weight = learned.variable;
        let Some(variable) = declared(graph, weight) else { continue };
        let (name, dtype) = (variable.name, variable.spec.dtype);
        // where it is evaluated, and where a layer that is pinned is
        let hint = match graph.node(weight.node).hint {
            Hint::Shared => Hint::Replica(0),
            _ => Hint::With(weight.node),
        };
        let mut node = |what: &str, hint, op, inputs: &[Output]| {
            graph.add(&format!("{name}/average/{what}"), hint, op, inputs)
        };
        // a small share of a bf16 would be lost
        let (weight, spec) = match dtype {
            DType::BF16 => {
                let cast = node("f32", hint, Op::Cast { to: DType::F32 }, &[weight])?;
                let spec = TensorSpec::new(DType::F32, variable.spec.dims());
                let node = name.clone();
                (cast.into(), spec.map_err(|source| GraphError::Shape { node, source })?)
            }
            _ => (weight, variable.spec),
        };
        let kept = average_of(&name);
        let init = variable.init;
        let average = graph.variable_at(&kept, hint, spec, init)?;
        let with = Hint::With(average.node);
        let mut node = |what: &str, op, inputs: &[Output]| {
            graph.add(&format!("{name}/average/{what}"), with, op, inputs)
        };
        added.updates.push(node("update", Op::ApplyAverage { rate }, &[average, weight])?);
        let difference = node("difference", Op::Sub, &[weight, average])?;
        let part = node("part", Op::Scale { by: rate }, &[difference.into()])?;
        let (now, inputs) = (now(&name), [average, part.into()]);
        let now = match dtype {
            DType::BF16 => {
                let sum = node("sum", Op::Add, &inputs)?;
                graph.add(&now, with, Op::Cast { to: dtype }, &[sum.into()])?
            }
            _ => graph.add(&now, with, Op::Add, &inputs)?,
        };
        added.kept.push(kept);
        added.now.push(now);
    }
    Ok(added)
}
