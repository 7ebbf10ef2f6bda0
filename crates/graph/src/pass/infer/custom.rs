//! Users' operators: what their own rules say, checked.

use tensorwire_tensor::Fact;

use super::{Row, alike};
use crate::error::GraphError;
use crate::op::CustomOp;

impl Row<'_> {
    pub(super) fn custom(&self, op: &CustomOp) -> Result<Vec<Fact>, GraphError> {
        let outputs = op.infer(self.node, self.inputs)?;
        for fact in &outputs {
            if let Some(Err(source)) = fact.spec() {
                return Err(GraphError::Shape { node: self.node.to_string(), source });
            }
        }
        let is_known = |facts: &[Fact]| facts.iter().all(|fact| fact.spec().is_some());
        if is_known(self.inputs) && !is_known(&outputs) {
            return self.broken("leaves a dimension open though all inputs are known");
        }
        let like_first = |(x, y): (&Fact, &Fact)| x.dtype == y.dtype && alike(&x.dims, &y.dims);
        let first = self.inputs.first().zip(outputs.first());
        if op.works_in_place() && !first.is_some_and(like_first) {
            return self.broken("works in place, and makes a first output unlike its first input");
        }
        Ok(outputs)
    }

    /// The error of a rule that does not keep to its contract.
    fn broken<T>(&self, why: &str) -> Result<T, GraphError> {
        let node = self.node.to_string();
        let why = format!("its shape rule {why}");
        Err(GraphError::Refused { node, op: self.op.name(), found: self.inputs.to_vec(), why })
    }
}
