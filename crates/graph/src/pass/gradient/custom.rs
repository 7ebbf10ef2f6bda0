//! A user's gradient rule, asked on the way back from the loss.

use tensorwire_tensor::Fact;

use super::Tape;
use crate::error::GraphError;
use crate::graph::NodeId;
use crate::op::{Backward, CustomOp, Op};
use crate::output::{Gradient, Output};
use crate::pass::infer::{alike, infer};

/// The node whose rule is asked.
struct Step<'a, 'g> {
    tape: &'a mut Tape<'g>,
    /// What its gradients' nodes are called.
    name: String,
    inputs: &'a [Output],
    outputs: Vec<Output>,
    flowing: &'a [Option<Output>],
    wanted: &'a [bool],
}

impl Tape<'_> {
    pub(super) fn custom(
        &mut self,
        id: NodeId,
        op: &CustomOp,
        flowing: &[Option<Output>],
        wanted: &[bool],
    ) -> Result<Vec<Option<Gradient>>, GraphError> {
        let node = self.graph.node(id);
        let (node, inputs) = (node.name.clone(), node.inputs.clone());
        // fits: as many as the rule made
        let outputs = (0..flowing.len() as u32).map(|index| Output { node: id, index });
        let (name, outputs) = (format!("d_{}", node.replace('/', "_")), outputs.collect());
        let mut step = Step { tape: self, name, inputs: &inputs, outputs, flowing, wanted };
        let partials = op.gradient(&node, &mut step)?;
        let broken = |what: String| {
            let what = format!("the gradient rule of {} gives {what}", op.name());
            GraphError::Invalid { node: node.clone(), what }
        };
        if partials.len() != inputs.len() {
            let (found, wanted) = (partials.len(), inputs.len());
            return Err(broken(format!("{found} gradients for {wanted} inputs")));
        }
        for (at, (&input, partial)) in inputs.iter().zip(&partials).enumerate() {
            if let Some(partial) = partial {
                let fits = self.fits(*partial, input);
                fits.map_err(|found| {
                    let input = self.graph.fact(input);
                    broken(format!("input {at}, which is {input}, {found}"))
                })?;
            }
        }
        Ok(partials)
    }

    /// Checks that a gradient is one of `input`, else says what it is.
    fn fits(&self, gradient: Gradient, input: Output) -> Result<(), String> {
        let wanted = self.graph.fact(input);
        let fact = |output: Output| {
            self.graph.try_fact(output).ok_or_else(|| "an output that does not exist".to_string())
        };
        match gradient {
            Gradient::Dense(dense) => match fact(dense)? {
                found if found.dtype == wanted.dtype && alike(&found.dims, &wanted.dims) => Ok(()),
                found => Err(found.to_string()),
            },
            Gradient::Rows { indices, rows } => {
                let (rows, indices) = (fact(rows)?.clone(), fact(indices)?.clone());
                let found = format!("rows {rows} at {indices}");
                infer("", &Op::ScatterRows, &[rows, indices, wanted.clone()])
                    .map(|_| ())
                    .map_err(|_| found)
            }
        }
    }
}

impl Backward for Step<'_, '_> {
    fn inputs(&self) -> &[Output] {
        self.inputs
    }

    fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    fn flowing(&self) -> &[Option<Output>] {
        self.flowing
    }

    fn wanted(&self) -> &[bool] {
        self.wanted
    }

    fn fact(&self, output: Output) -> &Fact {
        self.tape.graph.fact(output)
    }

    fn add_all(&mut self, op: Op, inputs: &[Output]) -> Result<Vec<Output>, GraphError> {
        let node = self.tape.add(&self.name, op, inputs)?.node;
        // fits: as many as inference gave
        let count = self.tape.graph.node(node).facts.len() as u32;
        Ok((0..count).map(|index| Output { node, index }).collect())
    }

    fn add(&mut self, op: Op, inputs: &[Output]) -> Result<Output, GraphError> {
        let name = op.name();
        let first = self.add_all(op, inputs)?.first().copied();
        first.ok_or_else(|| GraphError::Invalid {
            node: self.name.clone(),
            what: format!("{name} has no output that a gradient could flow from"),
        })
    }
}
