//! Rows for operators that change variables: what they take, since they make nothing.

use tensorwire_tensor::{DType, Dim, Fact};

use super::{Row, scalar};
use crate::error::GraphError;
use crate::op::Rule;

impl Row<'_> {
    pub(super) fn apply(&self, rule: Rule, clipped: bool) -> Result<Vec<Fact>, GraphError> {
        let (variable, mut gradients) = self.variable(rule)?;
        if clipped {
            let (scale, rest) = gradients.split_at(1);
            if scale[0] != scalar(DType::F64) {
                return self.mismatch("the factor of a clipped gradient must be f64[]");
            }
            gradients = rest;
        }
        self.alike_floats(&[&[variable], gradients].concat())?;
        Ok(Vec::new())
    }

    pub(super) fn square_sums(&self) -> Result<Vec<Fact>, GraphError> {
        let gradient = self.alike_floats(self.inputs)?;
        let rows = gradient.dims.first().copied().unwrap_or(Dim::Known(1));
        self.one(DType::F64, &[rows])
    }

    pub(super) fn apply_rows(&self, rule: Rule) -> Result<Vec<Fact>, GraphError> {
        if rule.method.needs_whole() {
            return self.mismatch("this rule needs the gradient of the whole variable");
        }
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
        let counts = usize::from(rule.method.counts_steps());
        let (like_variable, count) = state.split_at(state.len() - counts);
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
