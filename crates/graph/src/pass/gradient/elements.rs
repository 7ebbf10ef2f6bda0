//! Gradients of operators of elements that are repeated, chosen or looked up in pieces.

use tensorwire_tensor::Dim;

use super::Tape;
use crate::error::GraphError;
use crate::graph::Output;
use crate::op::{Attention, AttentionMask, Binary, Comparison, Op, SampleNorm};
use crate::output::Gradient;

impl Tape<'_> {
    /// The part of input `at`'s gradient of a function of two numbers, `y` its value.
    pub(super) fn binary(
        &mut self,
        name: &str,
        by: Binary,
        at: usize,
        (inputs, y): (&[Output], Output),
        dy: Output,
    ) -> Result<Gradient, GraphError> {
        let (a, b) = (inputs[0], inputs[1]);
        let falling = |tape: &mut Self, part| {
            let part = tape.summed(name, part, b)?;
            tape.add(name, Op::Scale { by: -1.0 }, &[part])
        };
        let part = match (by, at) {
            (Binary::Add, _) | (Binary::Sub, 0) => dy,
            (Binary::Sub, _) => falling(self, dy)?,
            (Binary::Mul, 0) => self.by_elements(name, Binary::Mul, dy, b)?,
            (Binary::Mul, _) => self.by_elements(name, Binary::Mul, dy, a)?,
            (Binary::Div, 0) => self.by_elements(name, Binary::Div, dy, b)?,
            (Binary::Div, _) => {
                // d(a/b)/db = −(a/b)/b
                let slope = self.by_elements(name, Binary::Div, y, b)?;
                let part = self.add(name, Op::Mul, &[slope, dy])?;
                falling(self, part)?
            }
            (Binary::Max | Binary::Min, at) => {
                let is_first = match by {
                    Binary::Max => Comparison::GreaterEqual,
                    _ => Comparison::LessEqual,
                };
                let first = self.add(name, Op::Compare { by: is_first }, &[a, b])?;
                self.add(name, Op::SelectGrad { holds: at == 0 }, &[dy, first])?
            }
        };
        self.summed(name, part, inputs[at]).map(Gradient::Dense)
    }

    /// `by` of two tensors, of which the first has the shape of the result.
    fn by_elements(
        &mut self,
        name: &str,
        by: Binary,
        a: Output,
        b: Output,
    ) -> Result<Output, GraphError> {
        let op = match by {
            Binary::Mul if self.graph.fact(a).dims == self.graph.fact(b).dims => Op::Mul,
            Binary::Div if self.graph.fact(a).dims == self.graph.fact(b).dims => Op::Div,
            by => Op::Binary { by },
        };
        self.add(name, op, &[a, b])
    }

    /// A part of the gradient of what `like` was repeated to, summed to its shape.
    fn summed(&mut self, name: &str, part: Output, like: Output) -> Result<Output, GraphError> {
        let to = &self.graph.fact(like).dims;
        match *to == self.graph.fact(part).dims {
            true => Ok(part),
            false => {
                let to = to.clone();
                self.add(name, Op::SumTo { to }, &[part])
            }
        }
    }

    /// The gradient of a sum over some of x's dimensions, none where they are known only at run time.
    pub(super) fn repeated(
        &mut self,
        name: &str,
        x: Output,
        dy: Output,
    ) -> Result<Option<Gradient>, GraphError> {
        let (to, from) = (&self.graph.fact(x).dims, &self.graph.fact(dy).dims);
        let before = to.len() - from.len();
        let is_open = |at: usize| {
            let is_summed = at < before || from[at - before] == Dim::Known(1);
            is_summed && matches!(to[at], Dim::Dynamic(_))
        };
        if (0..to.len()).any(is_open) {
            return Ok(None);
        }
        let to = to.clone();
        self.add(name, Op::ExpandTo { to }, &[dy]).map(|dx| Some(Gradient::Dense(dx)))
    }

    /// Those of q, k and v; the mask has none.
    pub(super) fn attention(
        &mut self,
        by: Attention,
        dy: Output,
        inputs: &[Output],
        y: Output,
    ) -> Result<Vec<Option<Gradient>>, GraphError> {
        let mut operands = vec![dy];
        operands.extend_from_slice(&inputs[..3]);
        operands.extend([y, Output { index: 1, ..y }]);
        operands.extend_from_slice(&inputs[3..]);
        let all = self.add(&self.name_for(inputs[0]), Op::AttentionGrad(by), &operands)?;
        let mut partials: Vec<_> = super::table::outputs_of(all.node, 3).collect();
        partials.extend((by.mask == AttentionMask::Given).then_some(None));
        Ok(partials)
    }

    pub(super) fn sample_norm(
        &mut self,
        by: SampleNorm,
        dy: Output,
        inputs: &[Output],
        y: Output,
    ) -> Result<Vec<Option<Gradient>>, GraphError> {
        let mut operands = vec![dy, inputs[0]];
        // fits: two statistics at most
        let statistics = 1 + by.is_centred() as u32;
        operands.extend((1..=statistics).map(|index| Output { index, ..y }));
        operands.push(inputs[1]);
        let all = self.add(&self.name_for(inputs[0]), Op::SampleNormGrad { by }, &operands)?;
        Ok(super::table::outputs_of(all.node, inputs.len()).collect())
    }
}
