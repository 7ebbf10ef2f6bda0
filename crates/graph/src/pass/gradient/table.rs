//! The table: what of an operator's gradient flows to each of its inputs.

use tensorwire_tensor::Dim;

use super::Tape;
use crate::error::GraphError;
use crate::graph::{NodeId, Output};
use crate::op::{Op, Rotary, Unary};
use crate::output::Gradient;

impl Tape<'_> {
    /// For each input of node `id` the part of its gradient that flows through the node, given those of its
    /// outputs (none: nothing flows there); none where the operator has no derivative in that input, and
    /// where it is not wanted.
    pub(super) fn row(
        &mut self,
        id: NodeId,
        flowing: &[Option<Output>],
        wanted: &[bool],
    ) -> Result<Vec<Option<Gradient>>, GraphError> {
        let node = self.graph.node(id);
        let (op, inputs) = (node.op.clone(), node.inputs.clone());
        match &op {
            Op::Recurrent { .. } => return self.recurrent(id, flowing),
            Op::Custom(op) => return self.custom(id, op, flowing, wanted),
            _ => {}
        }
        let (Some(dy), true) = (flowing[0], flowing[1..].iter().all(Option::is_none)) else {
            return Err(self.no_gradient(id));
        };
        match op {
            Op::BatchNorm { epsilon, scaled } => {
                let [mean, variance] = [1, 2].map(|index| Output { node: id, index });
                let mut operands = vec![dy, inputs[0], mean, variance];
                operands.extend(scaled.then(|| inputs[1]));
                let op = Op::BatchNormGrad { epsilon, scaled };
                let all = self.add(&self.name_for(inputs[0]), op, &operands)?;
                return Ok(outputs_of(all.node, inputs.len()).collect());
            }
            Op::Attention(by) => return self.attention(by, dy, &inputs, id.into()),
            Op::SampleNorm { by, .. } => return self.sample_norm(by, dy, &inputs, id.into()),
            Op::Concat { axis, .. } => return self.concat(axis, dy, &inputs, wanted),
            _ => {}
        }
        // weights come last: their gradients are made first, and sent while the next is computed
        let mut partials = vec![None; inputs.len()];
        for at in (0..inputs.len()).rev().filter(|at| wanted[*at]) {
            partials[at] = self.partial(id, &op, &inputs, at, dy)?;
        }
        Ok(partials)
    }

    /// The part of input `at`'s gradient, for operators whose inputs each have their own.
    fn partial(
        &mut self,
        id: NodeId,
        op: &Op,
        inputs: &[Output],
        at: usize,
        dy: Output,
    ) -> Result<Option<Gradient>, GraphError> {
        let name = self.name_for(inputs[at]);
        let y = Output::from(id);
        let second = Output { node: id, index: 1 };
        let (x, other) = (inputs[0], inputs.get(1).copied());
        match op {
            &Op::Binary { by } => return self.binary(&name, by, at, (inputs, y), dy).map(Some),
            Op::SumTo { .. } => return self.repeated(&name, x, dy),
            _ => {}
        }
        let (op, operands) = match (op, at, other) {
            (Op::BiasAdd | Op::Add | Op::Sub, 0, _) | (Op::Add, _, _) => {
                return Ok(Some(Gradient::Dense(dy)));
            }
            (Op::Gather, 0, Some(indices)) => {
                return Ok(Some(Gradient::Rows { indices, rows: dy }));
            }
            (&Op::MatMul { transpose_a, transpose_b }, _, Some(other)) => {
                let (transposed, operands) =
                    product_grad(at, [transpose_a, transpose_b], [x, other], dy);
                let [transpose_a, transpose_b] = transposed;
                (Op::MatMul { transpose_a, transpose_b }, operands)
            }
            (&Op::BatchMatMul { transpose_a, transpose_b }, _, Some(other)) => {
                let (transposed, operands) =
                    product_grad(at, [transpose_a, transpose_b], [x, other], dy);
                let [transpose_a, transpose_b] = transposed;
                (Op::BatchMatMul { transpose_a, transpose_b }, operands)
            }
            (Op::BiasAdd, _, _) => (Op::SumRows, vec![dy]),
            (Op::Relu, _, _) => (Op::ReluGrad, vec![dy, y]),
            (Op::Sigmoid, _, _) => (Op::SigmoidGrad, vec![dy, y]),
            (Op::Tanh, _, _) => (Op::TanhGrad, vec![dy, y]),
            (Op::Softmax, _, _) => (Op::SoftmaxGrad, vec![dy, y]),
            (&Op::Unary { by: Unary::Neg }, _, _) => (Op::Unary { by: Unary::Neg }, vec![dy]),
            (&Op::Unary { by }, _, _) => {
                let of = if by.derives_from_value() { y } else { x };
                (Op::UnaryGrad { by }, vec![dy, of])
            }
            (Op::Select, 0 | 1, _) => (Op::SelectGrad { holds: at == 0 }, vec![dy, inputs[2]]),
            (Op::ExpandTo { .. }, _, _) => {
                (Op::SumTo { to: self.graph.fact(x).dims.clone() }, vec![dy])
            }
            (&Op::Rotary(by), _, _) => {
                (Op::Rotary(Rotary { inverse: !by.inverse, ..by }), vec![dy])
            }
            (Op::Sub, _, _) => (Op::Scale { by: -1.0 }, vec![dy]),
            (Op::Mul, 0, Some(other)) => (Op::Mul, vec![dy, other]),
            (Op::Mul, _, _) => (Op::Mul, vec![dy, x]),
            (Op::Div, 0, Some(other)) => (Op::Div, vec![dy, other]),
            (Op::Div, _, Some(other)) => {
                // d(a/b)/db = −(a/b)/b
                let slope = self.add(&name, Op::Div, &[y, other])?;
                let rising = self.add(&name, Op::Mul, &[slope, dy])?;
                (Op::Scale { by: -1.0 }, vec![rising])
            }
            // fits: ranks are few
            (Op::Mean, _, _) => (Op::Scale { by: 1.0 / inputs.len() as f64 }, vec![dy]),
            (&Op::Scale { by }, _, _) => (Op::Scale { by }, vec![dy]),
            (Op::ScaleBy, 0, Some(scale)) => (Op::ScaleBy, vec![dy, scale]),
            (Op::SoftmaxCrossEntropy | Op::CrossEntropy { .. }, 0, _) => {
                (Op::ScaleBy, vec![second, dy])
            }
            (&Op::Reduce { by, axis }, _, _) => (Op::ReduceGrad { by, axis }, vec![dy, x, y]),
            (Op::Cast { .. }, _, _) => (Op::Cast { to: self.graph.fact(x).dtype }, vec![dy]),
            (&Op::Dropout { rate, key }, 0, Some(step)) => {
                (Op::Dropout { rate, key }, vec![dy, step])
            }
            (Op::Reshape { .. }, _, _) => {
                (Op::Reshape { to: self.graph.fact(x).dims.clone() }, vec![dy])
            }
            (&Op::Slice { axis, start, .. }, _, _) if !self.is_known(x, axis) => {
                (Op::SliceGrad { axis, start }, vec![dy, x])
            }
            (&Op::Slice { axis, start, length }, _, _) => {
                let size = self.known(x, axis);
                (Op::Pad { axis, before: start, after: size - start - length }, vec![dy])
            }
            (&Op::Pad { axis, before, .. }, _, _) => {
                (Op::Slice { axis, start: before, length: self.known(x, axis) }, vec![dy])
            }
            (Op::Transpose { permutation }, _, _) => {
                let mut inverse = vec![0; permutation.len()];
                for (to, &from) in permutation.iter().enumerate() {
                    inverse[from] = to;
                }
                (Op::Transpose { permutation: inverse }, vec![dy])
            }
            (&Op::Conv2d { window, groups }, 0, Some(w)) => {
                let size = self.image_size(x);
                (Op::Conv2dGradInput { window, groups, size }, vec![dy, w])
            }
            (&Op::Conv2d { window, groups }, _, _) => {
                (Op::Conv2dGradWeight { window, groups }, vec![dy, x])
            }
            (&Op::MaxPool { window }, _, _) => {
                (Op::MaxPoolGrad { window, size: self.image_size(x) }, vec![dy, second])
            }
            (&Op::AvgPool { window }, _, _) => {
                (Op::AvgPoolGrad { window, size: self.image_size(x) }, vec![dy])
            }
            (&Op::LocalResponseNorm { size, alpha, beta, bias }, _, _) => {
                (Op::LocalResponseNormGrad { size, alpha, beta, bias }, vec![dy, x, y])
            }
            _ => return Ok(None),
        };
        self.add(&name, op, &operands).map(|partial| Some(Gradient::Dense(partial)))
    }

    /// Slices of a concatenation's gradient.
    fn concat(
        &mut self,
        axis: usize,
        dy: Output,
        inputs: &[Output],
        wanted: &[bool],
    ) -> Result<Vec<Option<Gradient>>, GraphError> {
        if let [_] = inputs {
            return Ok(vec![Some(Gradient::Dense(dy))]);
        }
        let (mut start, mut partials) = (0, Vec::with_capacity(inputs.len()));
        if !inputs.iter().all(|input| self.is_known(*input, axis)) {
            for (at, (&input, &wanted)) in inputs.iter().zip(wanted).enumerate() {
                let (name, op) = (self.name_for(input), Op::ConcatGrad { axis });
                let operands: Vec<Output> =
                    [dy].into_iter().chain(inputs[..=at].to_vec()).collect();
                let partial = wanted.then(|| self.add(&name, op, &operands)).transpose()?;
                partials.push(partial.map(Gradient::Dense));
            }
            return Ok(partials);
        }
        for (&input, &wanted) in inputs.iter().zip(wanted) {
            let length = self.known(input, axis);
            let name = self.name_for(input);
            let slice = Op::Slice { axis, start, length };
            let partial = wanted.then(|| self.add(&name, slice, &[dy])).transpose()?;
            partials.push(partial.map(Gradient::Dense));
            start += length;
        }
        Ok(partials)
    }

    fn recurrent(
        &mut self,
        id: NodeId,
        flowing: &[Option<Output>],
    ) -> Result<Vec<Option<Gradient>>, GraphError> {
        let node = self.graph.node(id);
        let (Op::Recurrent { cell }, inputs) = (node.op.clone(), node.inputs.clone()) else {
            return Err(self.no_gradient(id));
        };
        let (gates, states) = (cell.gates(), cell.states());
        if flowing[1 + states].is_some() {
            return Err(self.no_gradient(id));
        }
        let finals = [flowing[1].is_some(), states > 1 && flowing[2].is_some()];
        let op = Op::RecurrentGrad { cell, sequence: flowing[0].is_some(), finals };
        let mut operands: Vec<Output> = flowing[..=states].iter().copied().flatten().collect();
        operands.extend_from_slice(&inputs[gates..]);
        // fits: a cell has two states at most
        operands.extend([0, 1 + states as u32].map(|index| Output { node: id, index }));
        let all = self.add(&self.name_for(inputs[0]), op, &operands)?;
        let mut partials: Vec<_> = outputs_of(all.node, 2 * gates + states).collect();
        // active has no derivative
        partials.push(None);
        Ok(partials)
    }

    /// What a gradient of `input` is called.
    pub(super) fn name_for(&self, input: Output) -> String {
        format!("d_{}", self.graph.node(input.node).name.replace('/', "_"))
    }

    fn is_known(&self, output: Output, axis: usize) -> bool {
        matches!(self.graph.fact(output).dims.get(axis), Some(Dim::Known(_)))
    }

    /// A dimension that inference has found to be known.
    fn known(&self, output: Output, axis: usize) -> usize {
        match self.graph.fact(output).dims[axis] {
            Dim::Known(size) => size,
            Dim::Dynamic(_) => unreachable!("inference refuses it"),
        }
    }

    /// Height and width of images.
    fn image_size(&self, x: Output) -> [usize; 2] {
        [self.known(x, 1), self.known(x, 2)]
    }
}

pub(super) fn outputs_of(node: NodeId, count: usize) -> impl Iterator<Item = Option<Gradient>> {
    // fits: operators have a dozen outputs at most
    (0..count).map(move |index| Some(Gradient::Dense(Output { node, index: index as u32 })))
}

/// The factors of a factor's gradient in a·b, and which of them are transposed.
fn product_grad(
    at: usize,
    transposed: [bool; 2],
    [a, b]: [Output; 2],
    dy: Output,
) -> ([bool; 2], Vec<Output>) {
    match (at, transposed) {
        (0, [false, tb]) => ([false, !tb], vec![dy, b]),
        (0, [true, tb]) => ([tb, true], vec![b, dy]),
        (_, [ta, false]) => ([!ta, false], vec![a, dy]),
        (_, [ta, true]) => ([true, ta], vec![dy, a]),
    }
}
