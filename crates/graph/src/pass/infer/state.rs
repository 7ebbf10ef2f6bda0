//! Rows for operators that change variables: what they take, since they make nothing.

use tensorwire_tensor::{DType, Fact};

use super::{Row, scalar};
use crate::error::GraphError;
use crate::op::Rule;

impl Row<'_> {
    pub(super) fn apply(&self, rule: Rule) -> Result<Vec<Fact>, GraphError> {
        let (variable, gradients) = self.variable(rule)?;
        self.alike_floats(&[&[variable], gradients].concat())?;
        Ok(Vec::new())
    }

    pub(super) fn apply_rows(&self, rule: Rule) -> Result<Vec<Fact>, GraphError> {
        let (variable, gradients) = self.variable(rule)?;
        let pairs = gradients.chunks(2);
        let fits = |pair: &[Fact]| matches!(pair, [indices, rows] if self.fit_rows(rows, indices, &variable));
        match pairs.into_iter().all(fits) {
            true => Ok(Vec::new()),
            false => self.mismatch("a variable f[v,d], indices i32[k] and rows f[k,d] are needed"),
        }
    }

    /// The variable, whose slots fit it, and what comes behind.
    fn variable(&self, rule: Rule) -> Result<(Fact, &[Fact]), GraphError> {
        let (state, gradients) = self.inputs.split_at(1 + rule.slots());
        let (like_variable, count) = match rule {
            Rule::Adam { .. } => state.split_at(state.len() - 1),
            _ => (state, &[][..]),
        };
        if count.iter().any(|count| *count != scalar(DType::I64)) {
            return self.mismatch("the number of steps must be i64[]");
        }
        let (variable, slots) = like_variable.split_at(1);
        let wanted = match variable[0].dtype {
            DType::BF16 => DType::F32,
            dtype => dtype,
        };
        if slots.iter().any(|slot| slot.dtype != wanted) {
            return self.mismatch("slots must be of the variable's type, of bf16 f32");
        }
        let dtype = variable[0].dtype;
        let alike = like_variable.iter().map(|fact| Fact { dtype, ..fact.clone() });
        Ok((self.alike_floats(&alike.collect::<Vec<Fact>>())?, gradients))
    }
}
