//! Every operator with numbers that are stored as bf16: the bits that it gives of the same numbers in f32, rounded. The
//! examples are of all operators, so that none is without a kernel.

use std::collections::BTreeSet;

use half::bf16;
use tensorwire_graph::{
    Attention, AttentionMask, Binary, Cell, Comparison, HeadOrder, Kind, Method, Op, Reduction,
    Rotary, Rule, SampleNorm, Unary, Window, infer,
};
use tensorwire_kernels::check::{Computes, Tensor};
use tensorwire_memory::{TensorMut, TensorRef};
use tensorwire_tensor::{DType, Dim, Fact, TensorSpec};

use crate::common::{Values, all, reference, run_all};

/// An operator of numbers, which come first among its operands but where others are between.
struct Example {
    op: Op,
    operands: Vec<Tensor>,
    /// Operands that are f32 where the others are bf16.
    wide: Vec<usize>,
}

/// Operands of f32 by their dimensions.
struct Examples {
    values: Values,
    all: Vec<Example>,
}

impl Examples {
    /// Numbers that bf16 has, of no less than ¼.
    fn reals(&mut self, dims: &[usize]) -> Tensor {
        let reals = self.values.reals::<f32>(dims.iter().product());
        let rounded = reals.iter().map(|x| bf16::from_f32(x.abs() + 0.25).to_f32());
        Tensor::new(dims, &rounded.collect::<Vec<f32>>())
    }

    fn add(&mut self, op: Op, dims: &[&[usize]], others: &[Tensor]) {
        let mut operands: Vec<Tensor> = dims.iter().map(|dims| self.reals(dims)).collect();
        operands.extend(others.iter().cloned());
        self.all.push(Example { op, operands, wide: vec![] });
    }

    fn wide(&mut self, places: &[usize]) {
        self.all.last_mut().unwrap().wide = places.to_vec();
    }
}

fn known(dims: &[usize]) -> Vec<Dim> {
    dims.iter().copied().map(Dim::Known).collect()
}

fn by_elements(examples: &mut Examples) {
    let dims: &[usize] = &[3, 50];
    let spec = TensorSpec::new(DType::F32, dims).unwrap();
    examples.add(Op::Fill { value: -0.3, spec }, &[], &[]);
    examples.add(Op::BiasAdd, &[dims, &[50]], &[]);
    for op in [Op::Relu, Op::Sigmoid, Op::Tanh, Op::Scale { by: -0.3 }] {
        examples.add(op, &[dims], &[]);
    }
    for op in [Op::ReluGrad, Op::SigmoidGrad, Op::TanhGrad, Op::Add, Op::Sub, Op::Mul, Op::Div] {
        examples.add(op, &[dims, dims], &[]);
    }
    examples.add(Op::Mean, &[dims, dims, dims], &[]);
    examples.add(Op::ScaleBy, &[dims, &[]], &[]);
    for by in [Unary::Gelu, Unary::GeluTanh, Unary::Softplus, Unary::Pow { exponent: 1.7 }] {
        examples.add(Op::Unary { by }, &[dims], &[]);
        examples.add(Op::UnaryGrad { by }, &[dims, dims], &[]);
    }
    examples.add(Op::Binary { by: Binary::Div }, &[dims, &[3, 1]], &[]);
    examples.add(Op::Compare { by: Comparison::Less }, &[dims, &[50]], &[]);
    let condition: Vec<u8> = (0..150).map(|i| i % 3).collect();
    let condition = [Tensor::new(dims, &condition)];
    examples.add(Op::Select, &[dims, dims], &condition);
    examples.add(Op::SelectGrad { holds: false }, &[dims], &condition);
    examples.add(Op::Dropout { rate: 0.4, key: 9 }, &[dims], &[Tensor::scalar(5i64)]);
}

fn moves(examples: &mut Examples) {
    let dims: &[usize] = &[3, 5, 6];
    examples.add(Op::ExpandTo { to: known(&[4, 3, 5, 6]) }, &[&[3, 1, 6]], &[]);
    examples.add(Op::Concat { axis: 1, size: None }, &[dims, &[3, 2, 6], dims], &[]);
    examples.add(Op::ConcatGrad { axis: 1 }, &[&[3, 7, 6], dims, &[3, 2, 6]], &[]);
    examples.add(Op::Slice { axis: 2, start: 1, length: 3 }, &[dims], &[]);
    examples.add(Op::SliceGrad { axis: 1, start: 2 }, &[&[3, 2, 6], dims], &[]);
    examples.add(Op::Pad { axis: 2, before: 1, after: 3 }, &[dims], &[]);
    examples.add(Op::Transpose { permutation: vec![2, 0, 1] }, &[dims], &[]);
    examples.add(Op::Transpose { permutation: vec![1, 0, 2] }, &[dims], &[]);
    let indices = [Tensor::new(&[4], &[2i32, 0, 2, 1])];
    examples.add(Op::Gather, &[&[3, 7]], &indices);
    // the indices are in the middle
    examples.add(Op::ScatterRows, &[&[4, 7]], &indices);
    let like = examples.reals(&[3, 7]);
    examples.all.last_mut().unwrap().operands.push(like);
    examples.add(Op::AddRows, &[&[3, 7], &[4, 7]], &indices);
}

fn reductions(examples: &mut Examples) {
    let (rows, row): (&[usize], &[usize]) = (&[600, 7], &[7]);
    examples.add(Op::SumRows, &[rows], &[]);
    examples.add(Op::SumTo { to: known(&[5, 1]) }, &[&[40, 5, 300]], &[]);
    examples.add(Op::ReduceMax, &[rows], &[]);
    for by in [Reduction::Sum, Reduction::Mean, Reduction::Max] {
        examples.add(Op::Reduce { by, axis: 0 }, &[rows], &[]);
        examples.add(Op::Reduce { by, axis: 1 }, &[&[3, 2000]], &[]);
        examples.add(Op::ReduceGrad { by, axis: 0 }, &[row, rows, row], &[]);
    }
    for columns in [40, 1500] {
        let labels = Tensor::new(&[3], &[1i32, -1, 2]);
        let dims: &[usize] = &[3, columns];
        examples.add(Op::Softmax, &[dims], &[]);
        examples.add(Op::SoftmaxGrad, &[dims, dims], &[]);
        examples.add(Op::SoftmaxCrossEntropy, &[dims], std::slice::from_ref(&labels));
        let smoothed = Op::CrossEntropy { smoothing: 0.2, ignored: -1 };
        examples.add(smoothed, &[dims], std::slice::from_ref(&labels));
        examples.add(Op::CountCorrect, &[dims], std::slice::from_ref(&labels));
        examples.add(Op::CountWithin { k: 9 }, &[dims], &[labels]);
        examples.add(Op::SquareSums, &[dims, dims], &[]);
    }
    let sums = [Tensor::new(&[2], &[3.0f64, 4.0])];
    examples.add(Op::ClipScale { norm: 1.0 }, &[], &sums);
    for [m, n, k] in [[5, 9, 30], [3, 70, 900]] {
        let op = Op::MatMul { transpose_a: false, transpose_b: true };
        examples.add(op, &[&[m, k], &[n, k]], &[]);
        let op = Op::BatchMatMul { transpose_a: true, transpose_b: false };
        examples.add(op, &[&[2, k, m], &[2, k, n]], &[]);
    }
}

fn images(examples: &mut Examples) {
    let window = Window { before: [1, 1], after: [1, 1], ..Window::valid([3, 3], [2, 2]) };
    let one = Window::valid([1, 1], [1, 1]);
    for (groups, channels, outputs, window) in
        [(1, 3, 5, window), (2, 32, 36, window), (4, 8, 12, window), (1, 6, 4, one)]
    {
        let size = [11, 9];
        let [rows, columns] = window.output(size).unwrap();
        let [high, wide] = window.kernel;
        let (x, w) = ([2, 11, 9, channels], [outputs, channels / groups, high, wide]);
        let y = [2, rows, columns, outputs];
        examples.add(Op::Conv2d { window, groups }, &[&x, &w], &[]);
        examples.add(Op::Conv2dGradInput { window, groups, size }, &[&y, &w], &[]);
        examples.add(Op::Conv2dGradWeight { window, groups }, &[&y, &x], &[]);
    }
    let (x, y): (&[usize], &[usize]) = (&[2, 11, 9, 4], &[2, 6, 5, 4]);
    let size = [11, 9];
    examples.add(Op::MaxPool { window }, &[x], &[]);
    let places: Vec<u8> = (0..240).map(|i| i % 9).collect();
    examples.add(Op::MaxPoolGrad { window, size }, &[y], &[Tensor::new(y, &places)]);
    examples.add(Op::AvgPool { window }, &[x], &[]);
    examples.add(Op::AvgPoolGrad { window, size }, &[y], &[]);
    let (all, c): (&[usize], &[usize]) = (&[100, 3, 4], &[4]);
    for scaled in [true, false] {
        let more: &[&[usize]] = if scaled { &[c] } else { &[] };
        let epsilon = 0.1;
        let op = Op::BatchNorm { epsilon, scaled };
        examples.add(op, &[&[all], more, &[c]].concat(), &[]);
        let op = Op::BatchNormGrad { epsilon, scaled };
        examples.add(op, &[&[all, all, c, c], more].concat(), &[]);
        let op = Op::Normalize { epsilon, scaled };
        examples.add(op, &[&[all], more, &[c, c, c]].concat(), &[]);
    }
    let (size, alpha, beta, bias) = (5, 0.5, 0.75, 1.0);
    examples.add(Op::LocalResponseNorm { size, alpha, beta, bias }, &[&[3, 7]], &[]);
    let op = Op::LocalResponseNormGrad { size, alpha, beta, bias };
    examples.add(op, &[&[3, 7], &[3, 7], &[3, 7]], &[]);
}

fn layers(examples: &mut Examples) {
    let (q, k): (&[usize], &[usize]) = (&[2, 4, 70, 6], &[2, 2, 70, 6]);
    for mask in [AttentionMask::None, AttentionMask::Causal, AttentionMask::Given] {
        let heads = HeadOrder::Outer;
        let by = Attention { mask, heads, scale: 0.4 };
        let masks: &[&[usize]] = &[&[1, 4, 1, 70]];
        let masks = if mask == AttentionMask::Given { masks } else { &[] };
        examples.add(Op::Attention(by), &[&[q, k, k], masks].concat(), &[]);
        let lse: &[usize] = &[2, 4, 70];
        let operands = [&[q, q, k, k, q, lse], masks].concat();
        examples.add(Op::AttentionGrad(by), &operands, &[]);
        examples.wide(&[5]);
    }
    let by = Rotary { base: 100.0, offset: 2, heads: HeadOrder::Inner, inverse: true };
    examples.add(Op::Rotary(by), &[&[2, 3, 4, 6]], &[]);
    let (x, c): (&[usize], &[usize]) = (&[3, 50, 12], &[12]);
    for by in [SampleNorm::Layer, SampleNorm::Rms, SampleNorm::Group { groups: 3 }] {
        let statistic: &[usize] = match by {
            SampleNorm::Group { .. } => &[3, 3],
            _ => &[3, 50],
        };
        let (shift, mean) = match by {
            SampleNorm::Rms => (vec![], vec![]),
            _ => (vec![c], vec![statistic]),
        };
        let op = Op::SampleNorm { by, epsilon: 0.1 };
        examples.add(op, &[&[x, c], &shift[..]].concat(), &[]);
        let operands = [&[x, x], &mean[..], &[statistic, c]].concat();
        examples.add(Op::SampleNormGrad { by }, &operands, &[]);
        examples.wide(&(2..3 + mean.len()).collect::<Vec<usize>>());
    }
    for cell in [Cell::Rnn, Cell::Gru, Cell::Lstm] {
        let (row, square, first): (&[usize], &[usize], &[usize]) = (&[3, 5], &[5, 5], &[3, 5]);
        let (gates, states) = (cell.gates(), cell.states());
        // one step: what goes from step to step is not rounded between them
        let active = [Tensor::new(&[1], &[3i32])];
        let operands = [vec![row; gates], vec![square; gates], vec![first; states]].concat();
        examples.add(Op::Recurrent { cell }, &operands, &active);
        let op = Op::RecurrentGrad { cell, sequence: true, finals: [true, states > 1] };
        let flowing = [vec![row], vec![first; states], vec![square; gates], vec![first; states]];
        examples.add(op, &flowing.concat(), &active);
        let behind = [examples.reals(row), examples.reals(&[3, 5 * cell.saved()])];
        examples.all.last_mut().unwrap().operands.extend(behind);
    }
}

fn updates(examples: &mut Examples) {
    let dims: &[usize] = &[4, 6];
    let adam = Method::Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-6 };
    let lamb = Method::Lamb { beta1: 0.9, beta2: 0.99, epsilon: 1e-6 };
    for rule in [Rule::sgd(0.1), Rule::nesterov(0.1).decaying(0.1), adam.at(0.1), lamb.at(0.1)] {
        let slots = rule.slots() - usize::from(rule.method.counts_steps());
        let steps = rule.method.counts_steps().then(|| Tensor::scalar(3i64));
        let state: Vec<&[usize]> = vec![dims; 1 + slots];
        let places: Vec<usize> = (1..=slots).collect();
        let gradients = [examples.reals(dims), examples.reals(dims)];
        let behind = [steps.clone().as_slice(), &gradients].concat();
        examples.add(Op::Apply { rule, clipped: false }, &state, &behind);
        examples.wide(&places);
        if !rule.method.needs_whole() {
            let rows = [Tensor::new(&[3], &[1i32, 3, 1]), examples.reals(&[3, 6])];
            let behind = [steps.as_slice(), &rows].concat();
            examples.add(Op::ApplyRows { rule }, &state, &behind);
            examples.wide(&places);
        }
    }
    examples.add(Op::ApplyAverage { rate: 0.3 }, &[dims, dims], &[]);
}

fn examples() -> Vec<Example> {
    let mut examples = Examples { values: Values(12), all: Vec::new() };
    by_elements(&mut examples);
    moves(&mut examples);
    reductions(&mut examples);
    images(&mut examples);
    layers(&mut examples);
    updates(&mut examples);
    examples.all
}

/// The operand as bf16, if it is of numbers.
fn narrowed(tensor: &Tensor) -> Tensor {
    match tensor.spec().dtype {
        DType::F32 => {
            let numbers: Vec<bf16> =
                tensor.to_vec::<f32>().into_iter().map(bf16::from_f32).collect();
            Tensor::new(tensor.spec().dims(), &numbers)
        }
        _ => tensor.clone(),
    }
}

/// What the operator changes, and what it makes.
fn run<C: Computes>(computes: &C, op: &Op, operands: &[Tensor]) -> Vec<Tensor> {
    let facts: Vec<Fact> = operands.iter().map(|operand| Fact::from(operand.spec())).collect();
    let (state, inputs) = operands.split_at(op.mutated_inputs());
    let mut made = state.to_vec();
    for fact in infer("example", op, &facts).unwrap() {
        let spec = fact.spec().unwrap().unwrap();
        made.push(Tensor::unwritten(spec.dtype, spec.dims()));
    }
    let inputs: Vec<TensorRef<'_>> = inputs.iter().map(Tensor::view).collect();
    let mut outputs: Vec<TensorMut<'_>> = made.iter_mut().map(Tensor::view_mut).collect();
    computes.compute(op, &inputs, &mut outputs).unwrap();
    drop(outputs);
    made
}

#[test]
fn what_is_stored_in_bf16_is_computed_in_f32_and_rounded() {
    for Example { op, operands, wide } in examples() {
        // its type is in the operator
        let narrow_op = match &op {
            Op::Fill { value, spec } => {
                let spec = TensorSpec::new(DType::BF16, spec.dims()).unwrap();
                Op::Fill { value: *value, spec }
            }
            op => op.clone(),
        };
        let narrow = |(place, operand): (usize, &Tensor)| match wide.contains(&place) {
            true => operand.clone(),
            false => narrowed(operand),
        };
        let stored: Vec<Tensor> = operands.iter().enumerate().map(narrow).collect();
        for device in all() {
            let expected = run(&device, &op, &operands);
            let found = run(&device, &narrow_op, &stored);
            for (output, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let expected = match found.spec().dtype {
                    DType::BF16 => narrowed(expected),
                    _ => expected.clone(),
                };
                let same = found.view().bytes() == expected.view().bytes();
                assert!(same, "{op:?}: output {output} on {}", device.description());
            }
        }
    }
}

/// Near what the reference makes of them, so that an example that both types have wrong is seen.
#[test]
fn examples_are_near_the_reference() {
    for Example { op, operands, .. } in examples() {
        let expected = run(&reference(), &op, &operands);
        for device in all() {
            let found = run(&device, &op, &operands);
            for (output, (found, expected)) in found.iter().zip(&expected).enumerate() {
                if found.spec().dtype != DType::F32 {
                    assert_eq!(found.view().bytes(), expected.view().bytes(), "{op:?}");
                    continue;
                }
                let (found, expected) = (found.to_vec::<f32>(), expected.to_vec::<f32>());
                let most = expected.iter().fold(1.0f32, |most, x| most.max(x.abs()));
                for (found, expected) in found.iter().zip(&expected) {
                    let near = (found - expected).abs() <= 2e-4 * most;
                    assert!(near, "{op:?}: output {output}: {found} for {expected}");
                }
            }
        }
    }
}

/// Whoever adds an operator adds an example here, and lowers it.
#[test]
fn every_operator_is_lowered() {
    let cast = [Tensor::new(&[3], &[1.5f32, -2.0, 0.1])];
    for (from, to) in [(DType::F32, DType::F64), (DType::F32, DType::BF16)] {
        assert_eq!(cast[0].spec().dtype, from);
        let op = Op::Cast { to };
        for device in all() {
            let (found, expected) = (run(&device, &op, &cast), run(&reference(), &op, &cast));
            assert_eq!(found[0].view().bytes(), expected[0].view().bytes());
        }
    }
    let variant = |op: &Op| {
        let printed = format!("{op:?}");
        printed.split(|c: char| !c.is_alphanumeric()).next().unwrap().to_owned()
    };
    let mut covered: BTreeSet<String> =
        examples().iter().map(|example| variant(&example.op)).collect();
    covered.insert(variant(&Op::Cast { to: DType::F32 }));
    // the runtime does them, or a user's kernel
    let others = [
        "Input",
        "Variable",
        "Reshape",
        "Rows",
        "Join",
        "AllReduce",
        "Broadcast",
        "NoOp",
        "Send",
        "Recv",
        "SendDynamic",
        "RecvDynamic",
        "CopyTo",
        "Custom",
        // of f32 alone: `agreement_compression` has them
        "Quantize",
        "Dequantize",
        "TopK",
        "ScatterElements",
    ];
    let missing: Vec<&str> =
        Op::variants().filter(|name| !covered.contains(*name) && !others.contains(name)).collect();
    assert!(missing.is_empty(), "no example: {missing:?}");
    let computed = examples().iter().all(|e| matches!(e.op.facts().kind, Kind::Kernel(_)));
    assert!(computed);
}

/// The reference computes in f32 what is stored in bf16 as well; devices agree with it over several steps, too.
#[test]
fn states_of_cells_are_not_rounded_between_steps() {
    let mut values = Values(3);
    for cell in [Cell::Rnn, Cell::Gru, Cell::Lstm] {
        let (gates, states, hidden) = (cell.gates(), cell.states(), 7);
        let mut narrow = |dims: &[usize]| {
            let reals = values.reals::<f32>(dims.iter().product());
            Tensor::new(dims, &reals.into_iter().map(bf16::from_f32).collect::<Vec<bf16>>())
        };
        let mut inputs: Vec<Tensor> = (0..gates).map(|_| narrow(&[9, hidden])).collect();
        inputs.extend((0..gates).map(|_| narrow(&[hidden, hidden])));
        inputs.extend((0..states).map(|_| narrow(&[4, hidden])));
        inputs.push(Tensor::new(&[3], &[4i32, 3, 2]));
        let (row, first, saved) = ([9, hidden], [4, hidden], [9, cell.saved() * hidden]);
        let dims: Vec<&[usize]> = [vec![&row[..]], vec![&first; states], vec![&saved]].concat();
        let op = Op::Recurrent { cell };
        let expected = run_all::<bf16>(&reference(), &op, &inputs, &dims);
        for device in all() {
            let found = run_all::<bf16>(&device, &op, &inputs, &dims);
            for (found, expected) in found.concat().into_iter().zip(expected.concat()) {
                // one unit in the last place, where the last bit of an f32 decides
                let apart = (found.to_f32() - expected.to_f32()).abs();
                assert!(apart <= expected.to_f32().abs() * 0.008, "{found} {expected}");
            }
        }
    }
}
