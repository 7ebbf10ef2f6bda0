//! Shape inference: one arm per operator (Xue et al. §3.4, "static shape inference"). Arms of more than
//! a few lines are in the files below, by family.

mod attention;
mod compression;
mod custom;
mod elements;
mod layers;
mod moves;
mod state;

use tensorwire_tensor::{DType, Dim, Fact, Symbol, TensorSpec};

use crate::error::GraphError;
use crate::op::{Op, OpFacts};

/// The facts of an operator's outputs, from those of its inputs.
///
/// # Errors
/// When the inputs do not fit the operator; the error names `node`.
pub fn infer(node: &str, op: &Op, inputs: &[Fact]) -> Result<Vec<Fact>, GraphError> {
    check_count(node, op, inputs.len())?;
    let row = Row { node, op, inputs };
    match op {
        Op::Input { fact } | Op::Recv { fact, .. } | Op::RecvDynamic { fact, .. } => {
            Ok(vec![fact.clone()])
        }
        Op::Variable { spec, .. } | Op::Fill { spec, .. } => Ok(vec![Fact::from(spec)]),
        Op::MatMul { transpose_a, transpose_b } => row.matmul(*transpose_a, *transpose_b),
        Op::BatchMatMul { transpose_a, transpose_b } => {
            row.batch_matmul(*transpose_a, *transpose_b)
        }
        Op::BiasAdd => row.bias_add(),
        Op::SumRows => match inputs[0].dims.split_last() {
            Some((columns, [_, ..])) if float(&inputs[0]) => row.one(inputs[0].dtype, &[*columns]),
            _ => row.mismatch("a floating tensor of two dimensions or more is needed"),
        },
        Op::Relu | Op::Sigmoid | Op::Tanh | Op::Scale { .. } => row.same_floats(),
        Op::ReluGrad | Op::SigmoidGrad | Op::TanhGrad | Op::SoftmaxGrad => row.same_floats(),
        Op::Add | Op::Sub | Op::Mul | Op::Div | Op::Mean => row.same_floats(),
        Op::Unary { .. } | Op::UnaryGrad { .. } => row.same_floats(),
        Op::Binary { .. } => row.binary(),
        Op::Compare { .. } => row.one(DType::U8, &row.broadcast()?),
        Op::Select => row.select(2),
        Op::SelectGrad { .. } => row.select(1),
        Op::ExpandTo { to } => row.expand_to(to),
        Op::SumTo { to } => row.sum_to(to),
        Op::ScaleBy => match float(&inputs[0]) && inputs[1].dims.is_empty() {
            true if inputs[0].dtype == inputs[1].dtype => Ok(vec![inputs[0].clone()]),
            _ => row.mismatch("a floating tensor and a scalar of its type are needed"),
        },
        Op::Dropout { .. } => match float(&inputs[0]) && inputs[1] == scalar(DType::I64) {
            true => Ok(vec![inputs[0].clone()]),
            false => row.mismatch("a floating tensor and the step, i64[], are needed"),
        },
        Op::Softmax => match float(&inputs[0]) && !inputs[0].dims.is_empty() {
            true => Ok(vec![inputs[0].clone()]),
            false => row.mismatch("a floating tensor with a last dimension is needed"),
        },
        Op::Cast { to } => match float(&inputs[0]) && to.is_floating() {
            true => row.one(*to, &inputs[0].dims),
            false => row.mismatch("only floating types are cast, to floating types"),
        },
        Op::CrossEntropy { smoothing, .. } if !(0.0..=1.0).contains(smoothing) => {
            row.mismatch("a smoothing from 0 to 1 is needed")
        }
        Op::SoftmaxCrossEntropy | Op::CrossEntropy { .. } => {
            row.logits_and_labels()?;
            Ok(vec![scalar(inputs[0].dtype), inputs[0].clone()])
        }
        Op::CountCorrect | Op::CountWithin { .. } => {
            row.logits_and_labels()?;
            row.one(DType::I64, &[])
        }
        Op::ReduceMax if float(&inputs[0]) => row.one(inputs[0].dtype, &[]),
        Op::ReduceMax => row.mismatch("a floating tensor is needed"),
        Op::Reduce { axis, .. } => row.reduce(*axis),
        Op::ReduceGrad { axis, .. } => row.reduce_grad(*axis),
        Op::Apply { rule, clipped } => row.apply(*rule, *clipped),
        Op::ApplyRows { rule } => row.apply_rows(*rule),
        Op::SquareSums => row.square_sums(),
        Op::ClipScale { .. } => match inputs.iter().all(|sums| sums.dtype == DType::F64) {
            true => row.one(DType::F64, &[]),
            false => row.mismatch("sums of squares, f64[…], are needed"),
        },
        Op::ApplyAverage { .. } => row.nothing_of_same_floats(),
        Op::Quantize { block } => row.quantize(*block),
        Op::Dequantize { block, first } => row.dequantize(*block, *first),
        Op::TopK { count } => row.top_k(*count),
        Op::ScatterElements { to, .. } => row.scatter_elements(to),
        Op::Reshape { to } => row.reshape(to),
        Op::Concat { axis, size } => row.concat(*axis, *size),
        Op::ConcatGrad { axis } => row.concat_grad(*axis),
        Op::SliceGrad { axis, start } => row.slice_grad(*axis, *start),
        Op::Join => row.concat(0, None),
        Op::Rows { start, length } => row.slice(0, *start, *length),
        Op::Slice { axis, start, length } => row.slice(*axis, *start, *length),
        Op::Pad { axis, before, after } => row.pad(*axis, *before, *after),
        Op::Transpose { permutation } => row.transpose(permutation),
        Op::Gather => row.gather(),
        Op::ScatterRows => row.scatter_rows(),
        Op::AddRows => row.rows_added(),
        Op::Attention(by) => row.attention(by),
        Op::AttentionGrad(by) => row.attention_grad(by),
        Op::Rotary(by) => row.rotary(by),
        Op::SampleNorm { by, .. } => row.sample_norm(*by),
        Op::SampleNormGrad { by } => row.sample_norm_grad(*by),
        Op::Conv2d { window, groups } => row.conv2d(window, *groups),
        Op::Conv2dGradInput { window, groups, size } => {
            row.conv2d_grad_input(window, *groups, *size)
        }
        Op::Conv2dGradWeight { window, groups } => row.conv2d_grad_weight(window, *groups),
        Op::MaxPool { window } => {
            let [area_rows, area_columns] = window.kernel;
            if area_rows.saturating_mul(area_columns) > 256 {
                return row.mismatch("a window of at most 256 elements is needed");
            }
            let y = row.pool(window)?;
            let places = Fact { dtype: DType::U8, dims: y.dims.clone() };
            Ok(vec![y, places])
        }
        Op::MaxPoolGrad { window, size } => {
            if inputs[1].dtype != DType::U8 || inputs[1].dims != inputs[0].dims {
                return row.mismatch("places u8[n,oh,ow,c], as many as gradients, are needed");
            }
            row.pool_grad(window, *size)
        }
        Op::AvgPool { window } => Ok(vec![row.pool(window)?]),
        Op::AvgPoolGrad { window, size } => row.pool_grad(window, *size),
        Op::BatchNorm { scaled, .. } => {
            let channels = row.channels(0, 1..inputs_of(*scaled, 2))?;
            let statistic = Fact { dtype: inputs[0].dtype, dims: vec![channels] };
            Ok(vec![inputs[0].clone(), statistic.clone(), statistic])
        }
        Op::BatchNormGrad { scaled, .. } => {
            let channels = row.channels(1, 2..inputs_of(*scaled, 4))?;
            if inputs[0].dtype != inputs[1].dtype || !alike(&inputs[0].dims, &inputs[1].dims) {
                return row.mismatch("a gradient of x's type and shape is needed");
            }
            let vector = Fact { dtype: inputs[1].dtype, dims: vec![channels] };
            let mut outputs = vec![inputs[1].clone()];
            outputs.resize(inputs_of(*scaled, 2), vector);
            Ok(outputs)
        }
        Op::Normalize { scaled, .. } => {
            row.channels(0, 1..inputs_of(*scaled, 4))?;
            Ok(vec![inputs[0].clone()])
        }
        Op::LocalResponseNorm { size, .. } | Op::LocalResponseNormGrad { size, .. } => {
            if size % 2 == 0 || inputs[0].dims.is_empty() {
                return row.mismatch("an odd number of channels and a last dimension are needed");
            }
            row.same_floats()
        }
        Op::Recurrent { cell } => row.recurrent(*cell),
        Op::RecurrentGrad { cell, sequence, finals } => {
            row.recurrent_grad(*cell, *sequence, *finals)
        }
        Op::AllReduce { .. } if float(&inputs[0]) && inputs[0].spec().is_some() => {
            row.one(inputs[0].dtype, &inputs[0].dims)
        }
        Op::AllReduce { .. } => row.mismatch("a floating tensor of known size is needed"),
        Op::Broadcast { spec, .. } => match inputs.iter().all(|x| *x == Fact::from(spec)) {
            true => Ok(vec![Fact::from(spec)]),
            false => row.mismatch("a tensor of the size that all members know is needed"),
        },
        // of any type and size
        Op::CopyTo { .. } => Ok(inputs.to_vec()),
        Op::NoOp | Op::Send { .. } | Op::SendDynamic { .. } => Ok(Vec::new()),
        Op::Custom(op) => row.custom(op),
    }
}

/// `without_scale` operands, and one more for the scale where there is one.
fn inputs_of(scaled: bool, without_scale: usize) -> usize {
    without_scale + usize::from(scaled)
}

fn check_count(node: &str, op: &Op, found: usize) -> Result<(), GraphError> {
    let OpFacts { name, arity, .. } = op.facts();
    match arity.fits(found) {
        true => Ok(()),
        false => Err(GraphError::InputCount {
            node: node.to_string(),
            op: name,
            wanted: arity.to_string(),
            found,
        }),
    }
}

/// What a row of the table sees.
pub(super) struct Row<'a> {
    node: &'a str,
    op: &'a Op,
    pub(super) inputs: &'a [Fact],
}

impl Row<'_> {
    pub(super) fn mismatch<T>(&self, wanted: &'static str) -> Result<T, GraphError> {
        let (node, op) = (self.node.to_string(), self.op.name());
        Err(GraphError::Mismatch { node, op, found: self.inputs.to_vec(), wanted })
    }

    /// One output; its size is checked where it is known.
    pub(super) fn one(&self, dtype: DType, dims: &[Dim]) -> Result<Vec<Fact>, GraphError> {
        let fact = Fact { dtype, dims: dims.to_vec() };
        if let Some(Err(source)) = fact.spec() {
            return Err(GraphError::Shape { node: self.node.to_string(), source });
        }
        Ok(vec![fact])
    }

    fn matmul(&self, transpose_a: bool, transpose_b: bool) -> Result<Vec<Fact>, GraphError> {
        let (a, b) = (&self.inputs[0], &self.inputs[1]);
        let (&[a0, a1], &[b0, b1]) = (&a.dims[..], &b.dims[..]) else {
            return self.mismatch("two matrices are needed");
        };
        let (m, k) = if transpose_a { (a1, a0) } else { (a0, a1) };
        let (also_k, n) = if transpose_b { (b1, b0) } else { (b0, b1) };
        if !float(a) || a.dtype != b.dtype {
            return self.mismatch("two matrices of the same floating type are needed");
        }
        if unify(k, also_k).is_none() {
            return self.mismatch("the inner dimensions differ");
        }
        self.one(a.dtype, &[m, n])
    }

    fn bias_add(&self) -> Result<Vec<Fact>, GraphError> {
        let (x, b) = (&self.inputs[0], &self.inputs[1]);
        match (x.dims.split_last(), &b.dims[..]) {
            (Some((columns, rows @ [_, ..])), &[bias]) if float(x) && x.dtype == b.dtype => {
                match unify(*columns, bias) {
                    Some(columns) => self.one(x.dtype, &[rows, &[columns]].concat()),
                    None => self.mismatch("the bias must be as long as a row"),
                }
            }
            _ => self.mismatch("a floating tensor with rows and a vector of its type are needed"),
        }
    }

    /// All inputs are floating and alike; the first one's fact, refined by the others.
    fn same_floats(&self) -> Result<Vec<Fact>, GraphError> {
        self.alike_floats(self.inputs).map(|fact| vec![fact])
    }

    fn nothing_of_same_floats(&self) -> Result<Vec<Fact>, GraphError> {
        self.same_floats().map(|_| Vec::new())
    }

    pub(super) fn alike_floats(&self, inputs: &[Fact]) -> Result<Fact, GraphError> {
        let mut fact = inputs[0].clone();
        for other in inputs {
            if !float(other) || other.dtype != fact.dtype || other.dims.len() != fact.dims.len() {
                return self.mismatch("floating tensors of one type and shape are needed");
            }
            for (dim, also) in fact.dims.iter_mut().zip(&other.dims) {
                match unify(*dim, *also) {
                    Some(refined) => *dim = refined,
                    None => return self.mismatch("floating tensors of one shape are needed"),
                }
            }
        }
        Ok(fact)
    }

    /// The open dimension is the input's dynamic one where all others cancel, a number where the
    /// input is known, and else the symbol that it was given.
    fn reshape(&self, to: &[Dim]) -> Result<Vec<Fact>, GraphError> {
        let input = &self.inputs[0];
        let (from, rest) = (product(&input.dims), product(to));
        let (Some(from), Some(rest)) = (from, rest) else {
            return self.mismatch("the product of the dimensions must fit an address space");
        };
        let open = match (&from.open[..], &rest.open[..]) {
            (_, [_, _, ..]) => return self.mismatch("one dimension may be open, not several"),
            ([], []) if from.known == rest.known => None,
            ([], [_]) if rest.known > 0 && from.known % rest.known == 0 => {
                Some(Dim::Known(from.known / rest.known))
            }
            ([], _) => return self.mismatch("the number of elements must stay the same"),
            ([symbol], [_]) if from.known == rest.known => Some(Dim::Dynamic(*symbol)),
            (_, [symbol]) => Some(Dim::Dynamic(*symbol)),
            (_, []) => None,
        };
        let dims: Vec<Dim> = to
            .iter()
            .map(|dim| match (dim, open) {
                (Dim::Dynamic(_), Some(open)) => open,
                _ => *dim,
            })
            .collect();
        self.one(input.dtype, &dims)
    }

    fn logits_and_labels(&self) -> Result<(), GraphError> {
        let (logits, labels) = (&self.inputs[0], &self.inputs[1]);
        match (&logits.dims[..], &labels.dims[..]) {
            (&[rows, _], &[also_rows])
                if float(logits)
                    && labels.dtype == DType::I32
                    && unify(rows, also_rows).is_some() =>
            {
                Ok(())
            }
            _ => self.mismatch("logits f[b,c] and labels i32[b] are needed"),
        }
    }
}

/// The product of the known dimensions, and the symbols of the others.
struct Extent {
    known: usize,
    open: Vec<Symbol>,
}

fn product(dims: &[Dim]) -> Option<Extent> {
    let mut extent = Extent { known: 1, open: Vec::new() };
    for dim in dims {
        match dim {
            Dim::Known(size) => extent.known = extent.known.checked_mul(*size)?,
            Dim::Dynamic(symbol) => extent.open.push(*symbol),
        }
    }
    Some(extent)
}

pub(super) fn float(fact: &Fact) -> bool {
    fact.dtype.is_floating()
}

pub(super) fn scalar(dtype: DType) -> Fact {
    Fact { dtype, dims: Vec::new() }
}

/// True if the two can be the same dimensions.
pub(in crate::pass) fn alike(a: &[Dim], b: &[Dim]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| unify(*a, *b).is_some())
}

/// The dimension that both are, none where they are known to differ. A known and a dynamic one may
/// be equal: the kernel checks it when the tensors exist.
pub(super) fn unify(a: Dim, b: Dim) -> Option<Dim> {
    match (a, b) {
        (Dim::Known(x), Dim::Known(y)) => (x == y).then_some(a),
        (Dim::Known(_), Dim::Dynamic(_)) => Some(a),
        (Dim::Dynamic(_), Dim::Known(_)) => Some(b),
        (Dim::Dynamic(x), Dim::Dynamic(y)) => Some(if x <= y { a } else { b }),
    }
}

/// The spec of a fact, none where a dimension is dynamic.
pub(crate) fn known_spec(node: &str, fact: &Fact) -> Result<Option<TensorSpec>, GraphError> {
    let wrong = |source| GraphError::Shape { node: node.to_string(), source };
    fact.spec().transpose().map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Rule;

    fn f32s(dims: &[usize]) -> Fact {
        Fact::known(DType::F32, dims)
    }

    const PLAIN: Op = Op::MatMul { transpose_a: false, transpose_b: false };

    #[test]
    fn a_product_takes_its_outer_dimensions() {
        let out = infer("y", &PLAIN, &[f32s(&[2, 3]), f32s(&[3, 5])]).unwrap();
        assert_eq!(out, [f32s(&[2, 5])]);
        let op = Op::MatMul { transpose_a: true, transpose_b: true };
        let out = infer("y", &op, &[f32s(&[3, 2]), f32s(&[5, 3])]).unwrap();
        assert_eq!(out, [f32s(&[2, 5])]);
    }

    #[test]
    fn a_dynamic_batch_flows_through() {
        let x = Fact { dtype: DType::F32, dims: vec![Dim::Dynamic(Symbol(7)), Dim::Known(3)] };
        let y = infer("y", &PLAIN, &[x.clone(), f32s(&[3, 5])]).unwrap().remove(0);
        assert_eq!(y.dims, [Dim::Dynamic(Symbol(7)), Dim::Known(5)]);
        let y = infer("z", &Op::BiasAdd, &[y, f32s(&[5])]).unwrap().remove(0);
        assert_eq!(y.dims[0], Dim::Dynamic(Symbol(7)));
    }

    #[test]
    fn a_reshape_keeps_the_elements() {
        let reshape = |from: &[Dim], to: &[Dim]| {
            let input = Fact { dtype: DType::F32, dims: from.to_vec() };
            let facts = infer("r", &Op::Reshape { to: to.to_vec() }, &[input]);
            facts.map(|facts| facts[0].dims.clone())
        };
        let (known, open) = (Dim::Known, |symbol| Dim::Dynamic(Symbol(symbol)));
        let all = [known(2), known(6)];
        assert_eq!(reshape(&all, &[known(3), known(4)]).unwrap(), [known(3), known(4)]);
        assert_eq!(reshape(&all, &[open(9), known(4)]).unwrap(), [known(3), known(4)]);
        assert_eq!(reshape(&all, &[]).unwrap_err().to_string().matches("Reshape").count(), 1);
        assert!(reshape(&all, &[open(9), known(5)]).is_err());
        assert!(reshape(&all, &[open(1), open(2)]).is_err());
        assert!(reshape(&all, &[known(usize::MAX), known(2)]).is_err());
        // the batch stays the batch where the rest cancels, and is another number where it does not
        let batch = [open(1), known(2), known(3)];
        assert_eq!(reshape(&batch, &[open(9), known(6)]).unwrap(), [open(1), known(6)]);
        assert_eq!(reshape(&batch, &[open(9)]).unwrap(), [open(9)]);
        assert_eq!(reshape(&batch, &[known(4), known(3)]).unwrap(), [known(4), known(3)]);
        // an empty tensor has any shape that is empty too
        assert_eq!(reshape(&[known(0), known(3)], &[open(1), known(3)]).unwrap()[0], known(0));
        assert!(reshape(&[known(0)], &[open(1), known(0)]).is_err());
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let bad = infer("y", &PLAIN, &[f32s(&[2, 3]), f32s(&[4, 5])]).unwrap_err();
        assert_eq!(
            bad.to_string(),
            "node 'y': MatMul cannot take (f32[2×3], f32[4×5]): the inner dimensions differ"
        );
        assert!(infer("y", &PLAIN, &[f32s(&[2, 3])]).is_err());
        assert!(infer("b", &Op::BiasAdd, &[f32s(&[2, 3]), f32s(&[2])]).is_err());
        let labels = Fact::known(DType::I64, &[2]);
        assert!(infer("l", &Op::SoftmaxCrossEntropy, &[f32s(&[2, 3]), labels]).is_err());
        let step = Op::Apply { rule: Rule::sgd(0.1), clipped: false };
        assert!(infer("s", &step, &[f32s(&[2]), f32s(&[2]), f32s(&[3])]).is_err());
        assert!(infer("s", &step, &[f32s(&[2])]).is_err());
        let huge = f32s(&[1 << 40, 1]);
        let wide = f32s(&[1, 1 << 40]);
        assert!(matches!(infer("h", &PLAIN, &[huge, wide]), Err(GraphError::Shape { .. })));
    }

    #[test]
    fn the_loss_has_two_outputs_and_the_count_is_an_integer() {
        let inputs = [f32s(&[4, 10]), Fact::known(DType::I32, &[4])];
        let out = infer("l", &Op::SoftmaxCrossEntropy, &inputs).unwrap();
        assert_eq!(out, [f32s(&[]), f32s(&[4, 10])]);
        let out = infer("c", &Op::CountCorrect, &inputs).unwrap();
        assert_eq!(out, [Fact::known(DType::I64, &[])]);
    }
}
