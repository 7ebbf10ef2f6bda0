//! The verifier: what every pass must keep true. Run after each pass; the error names the pass.

use std::collections::HashSet;

use tensorwire_tensor::Fact;

use crate::error::GraphError;
use crate::graph::{Graph, Node};
use crate::op::Op;
use crate::pass::infer::infer;

/// Checks a graph after `pass`: inputs precede users and exist, names are unique, facts are what
/// inference gives, only variables are changed in place and each by one node.
///
/// # Errors
/// [`GraphError::Broken`] with the pass and the first thing that is wrong.
pub fn verify(graph: &Graph, pass: &'static str) -> Result<(), GraphError> {
    check(graph).map_err(|source| GraphError::Broken { pass, source: Box::new(source) })
}

fn check(graph: &Graph) -> Result<(), GraphError> {
    let mut changed = HashSet::new();
    for (id, node) in graph.nodes() {
        if graph.find(&node.name) != Some(id) {
            return Err(GraphError::DuplicateName { name: node.name.clone() });
        }
        let invalid =
            |what: &str| GraphError::Invalid { node: node.name.clone(), what: what.into() };
        if node.inputs.iter().any(|input| input.node >= id) {
            return Err(invalid("an input comes after it"));
        }
        if node.controls.iter().any(|before| *before >= id) {
            return Err(invalid("a control comes after it"));
        }
        check_facts(graph, node)?;
        for input in &node.inputs[..node.op.mutated_inputs().min(node.inputs.len())] {
            if !matches!(graph.node(input.node).op, Op::Variable { .. }) {
                return Err(invalid("changes in place what is no variable"));
            }
            if !changed.insert(*input) {
                return Err(invalid("changes in place what another node changes too"));
            }
        }
    }
    Ok(())
}

fn check_facts(graph: &Graph, node: &Node) -> Result<(), GraphError> {
    let missing = || GraphError::UnknownOutput { node: node.name.clone() };
    let inputs: Option<Vec<Fact>> =
        node.inputs.iter().map(|input| graph.try_fact(*input).cloned()).collect();
    let inferred = infer(&node.name, &node.op, &inputs.ok_or_else(missing)?)?;
    if inferred == node.facts {
        return Ok(());
    }
    let what = format!("its facts are {:?}, inference says {inferred:?}", node.facts);
    Err(GraphError::Invalid { node: node.name.clone(), what })
}
