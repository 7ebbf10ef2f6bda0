//! What `gradients` builds, row by row of its table: each operator in a graph of its own, its outputs times
//! fixed random weights summed to a loss, forward and backward run node by node on the reference in f64, and
//! every gradient held against central differences of the forward part. Once with all operands wanted, and
//! once with each of them alone.

use crate::common::images::{Shape, count, shape};
use crate::common::{self, Tensor, Values, profile};
use proptest::prelude::*;
use tensorwire_graph::{Cell, GraphError, Hint, NodeId, Op, Output, Reduction, Window, gradients};
use tensorwire_kernels::check;
use tensorwire_tensor::{DType, Dim, Symbol};

const HINT: Hint = Hint::Replica(0);

/// A network to be checked, and random numbers for it.
struct Net {
    net: check::Net,
    values: Values,
}

impl Net {
    fn new(seed: u64) -> Net {
        Net { net: common::net(), values: Values(seed) }
    }

    fn add(&mut self, op: Op, inputs: &[Output]) -> NodeId {
        self.net.add(op, inputs).unwrap()[0].node
    }

    /// The first output of an operator.
    fn op(&mut self, op: Op, inputs: &[Output]) -> Output {
        self.add(op, inputs).into()
    }

    /// An input whose gradient is not asked for.
    fn fixed(&mut self, tensor: Tensor) -> Output {
        self.net.fixed(tensor).unwrap()
    }

    /// An input whose gradient is asked for.
    fn holding(&mut self, dims: &[usize], elements: &[f64]) -> Output {
        self.net.differentiated(Tensor::new(dims, elements)).unwrap()
    }

    /// As `holding`, of random numbers in ±2.
    fn x(&mut self, dims: &[usize]) -> Output {
        let elements: Vec<f64> = self.values.reals(count(dims));
        self.holding(dims, &elements)
    }

    /// As `x`, at least `least` away from zero.
    fn x_away(&mut self, dims: &[usize], least: f64) -> Output {
        let elements: Vec<f64> = self.values.reals(count(dims));
        let moved: Vec<f64> = elements.iter().map(|x| x + least.copysign(*x)).collect();
        self.holding(dims, &moved)
    }

    /// As `x`, no two equal.
    fn x_apart(&mut self, dims: &[usize]) -> Output {
        let elements = self.values.apart(count(dims));
        self.holding(dims, &elements)
    }

    /// As `x`, a variable.
    fn variable(&mut self, dims: &[usize]) -> Output {
        let elements: Vec<f64> = self.values.reals(count(dims));
        self.net.variable(Tensor::new(dims, &elements)).unwrap()
    }

    /// Asserts that the gradients of a loss that takes all of `outputs` are central differences of it.
    #[track_caller]
    fn check(mut self, outputs: &[Output]) {
        self.net.check(outputs).unwrap();
    }
}

/// An operator of one operand.
#[track_caller]
fn unary(op: Op, dims: &[usize], seed: u64) {
    let mut net = Net::new(seed);
    let x = net.x_away(dims, 0.01);
    let y = net.op(op, &[x]);
    net.check(&[y]);
}

/// An operator of operands of `dims`, all of them wanted.
#[track_caller]
fn of_several(op: Op, dims: &[&[usize]], seed: u64) {
    let mut net = Net::new(seed);
    let operands: Vec<Output> = dims.iter().map(|dims| net.x(dims)).collect();
    let y = net.op(op, &operands);
    net.check(&[y]);
}

#[test]
fn by_elements() {
    let dims = [2, 3, 4];
    for (seed, op) in (0..).zip([Op::Add, Op::Sub, Op::Mul]) {
        of_several(op, &[&dims, &dims], seed);
    }
    let mut net = Net::new(3);
    let (a, b) = (net.x(&dims), net.x_away(&dims, 0.5));
    let y = net.op(Op::Div, &[a, b]);
    net.check(&[y]);
    let ops = [Op::Scale { by: -1.75 }, Op::Relu, Op::Sigmoid, Op::Tanh, Op::Softmax];
    for (seed, op) in (4..).zip(ops) {
        unary(op, &dims, seed);
    }
    of_several(Op::BiasAdd, &[&[3, 4], &[4]], 9);
    of_several(Op::BiasAdd, &[&[2, 3, 4], &[4]], 10);
    let mut net = Net::new(11);
    let (x, scale) = (net.x(&dims), net.fixed(Tensor::scalar(-0.6f64)));
    let y = net.op(Op::ScaleBy, &[x, scale]);
    net.check(&[y]);
}

#[test]
fn dropout() {
    for (step, rate) in [(0i64, 0.5), (7, 0.25), (8, 0.0)] {
        let mut net = Net::new(12);
        let (x, step) = (net.x(&[5, 6]), net.fixed(Tensor::scalar(step)));
        let y = net.op(Op::Dropout { rate, key: 99 }, &[x, step]);
        net.check(&[y]);
    }
}

#[test]
fn softmax_cross_entropy() {
    let mut net = Net::new(13);
    let (logits, labels) = (net.x(&[4, 5]), net.fixed(Tensor::new(&[4], &[0i32, 4, -1, 2])));
    let y = net.op(Op::SoftmaxCrossEntropy, &[logits, labels]);
    net.check(&[y]);
}

/// Through f32 the loss moves in steps, and central differences say nothing; but what comes back is exactly
/// what flows in, rounded. f64 to f64 is the identity.
#[test]
fn casts() {
    unary(Op::Cast { to: DType::F64 }, &[3, 2], 14);
    let mut net = Net::new(15);
    let x = net.x(&[3, 2]);
    let narrow = net.op(Op::Cast { to: DType::F32 }, &[x]);
    let wide = net.op(Op::Cast { to: DType::F64 }, &[narrow]);
    let loss = net.net.loss(&[wide]).unwrap();
    let held = net.net.graph().ids().filter(|id| *id != x.node);
    let weights = held.filter_map(|id| net.net.held(id.into())).next().unwrap().to_vec::<f64>();
    let rounded: Vec<f64> = weights.iter().map(|w| f64::from(*w as f32)).collect();
    assert_eq!(net.net.gradients(loss, &[x]), Ok(vec![rounded]));
}

#[test]
fn outputs_with_several_users() {
    // the same operand on both sides
    for (seed, op) in (15..).zip([Op::Mean, Op::Add, Op::Sub, Op::Mul, Op::Div]) {
        let mut net = Net::new(seed);
        let x = net.x_away(&[3, 4], 0.5);
        let y = net.op(op, &[x, x]);
        net.check(&[y]);
    }
    let mut net = Net::new(20);
    let (x, w) = (net.x(&[3, 3]), net.x(&[3, 3]));
    let h = net.op(Op::Tanh, &[x]);
    let product = Op::MatMul { transpose_a: false, transpose_b: true };
    let (a, b) = (net.op(product.clone(), &[h, w]), net.op(product, &[h, h]));
    let (c, d) =
        (net.op(Op::Sigmoid, &[h]), net.op(Op::Concat { axis: 1, size: None }, &[h, x, h]));
    let e = net.op(Op::Mean, &[h, x, c]);
    net.check(&[a, b, c, d, e, h]);
}

/// Sizes that the graph does not know: what is joined, and what is sliced.
#[test]
fn open_sizes() {
    for (axis, seed) in [(0, 300), (1, 301)] {
        let mut net = Net::new(seed);
        let parts = [2usize, 3, 1].map(|length| {
            let dims = if axis == 0 { [length, 3] } else { [3, length] };
            let elements: Vec<f64> = net.values.reals(count(&dims));
            net.net.open(Tensor::new(&dims, &elements), axis).unwrap()
        });
        let known = net.x(&[3, 3]);
        let size = Some(Symbol(99));
        let [a, b, c] = parts;
        let joined = net.op(Op::Concat { axis, size }, &[a, known, b, c]);
        // it begins in the first part and ends in the last
        let y = net.op(Op::Slice { axis, start: 1, length: 8 }, &[joined]);
        let z = net.op(Op::Slice { axis, start: 1, length: 2 }, &[b]);
        net.check(&[y, z]);
    }
    let mut net = Net::new(302);
    let short = net.net.open(Tensor::new(&[2, 3], &[0.5f64; 6]), 0).unwrap();
    let far = net.op(Op::Slice { axis: 0, start: 1, length: 2 }, &[short]);
    let loss = net.net.loss(&[far]).unwrap();
    let refused = net.net.gradients(loss, &[short]).unwrap_err().to_string();
    assert!(refused.contains("a dimension that reaches as far as the slice"), "{refused}");
}

#[test]
fn gathers() {
    let indices = Tensor::new(&[5], &[3i32, 0, 3, 2, 3]);
    // from a variable: rows
    let mut net = Net::new(21);
    let (table, named) = (net.variable(&[4, 3]), net.fixed(indices.clone()));
    let y = net.op(Op::Gather, &[table, named]);
    net.check(&[y]);
    // twice from one, and used otherwise: a sum of what was rows
    let mut net = Net::new(22);
    let (table, named) = (net.variable(&[4, 3]), net.fixed(indices.clone()));
    let others = net.fixed(Tensor::new(&[2], &[1i32, 3]));
    let (y, z) = (net.op(Op::Gather, &[table, named]), net.op(Op::Gather, &[table, others]));
    let h = net.op(Op::Tanh, &[table]);
    net.check(&[y, z, h]);
    // from what is computed
    let mut net = Net::new(23);
    let (x, named) = (net.x(&[4, 3]), net.fixed(indices));
    let table = net.op(Op::Tanh, &[x]);
    let y = net.op(Op::Gather, &[table, named]);
    net.check(&[y]);
}

#[test]
fn reshapes() {
    let to = |dims: &[usize]| Op::Reshape { to: dims.iter().map(|&d| Dim::Known(d)).collect() };
    unary(to(&[3, 4]), &[2, 6], 24);
    unary(to(&[24]), &[2, 3, 4], 25);
    // a gradient that is not what flows in
    let mut net = Net::new(26);
    let x = net.x(&[2, 6]);
    let y = net.op(to(&[4, 3]), &[x]);
    let y = net.op(Op::Softmax, &[y]);
    net.check(&[y]);
}

#[test]
fn what_has_no_row_is_refused() {
    let refused = |net: &Net, loss: Output, x: Output| {
        let error = gradients(&mut net.net.graph().clone(), "g", HINT, loss, &[x]).unwrap_err();
        assert!(matches!(error, GraphError::NoGradient { .. }), "{error}");
    };
    // the factor of a ScaleBy
    let mut net = Net::new(27);
    let (x, scale) = (net.x(&[3]), net.x(&[]));
    let y = net.op(Op::ScaleBy, &[x, scale]);
    let loss = net.net.loss(&[y]).unwrap();
    refused(&net, loss, scale);
    // a batch's mean and variance
    let mut net = Net::new(28);
    let (x, shift) = (net.x(&[4, 3]), net.x(&[3]));
    let node = net.add(Op::BatchNorm { epsilon: 0.1, scaled: false }, &[x, shift]);
    let mean = Output { node, index: 1 };
    let loss = net.net.loss(&[node.into(), mean]).unwrap();
    refused(&net, loss, x);
    // the gradient that comes with a loss
    let mut net = Net::new(29);
    let (logits, labels) = (net.x(&[2, 3]), net.fixed(Tensor::new(&[2], &[0i32, 2])));
    let node = net.add(Op::SoftmaxCrossEntropy, &[logits, labels]);
    let loss = net.net.loss(&[Output { node, index: 1 }]).unwrap();
    refused(&net, loss, logits);
}

fn convolution(shape: Shape, seed: u64) {
    let Shape { window, groups, .. } = shape;
    of_several(Op::Conv2d { window, groups }, &[&shape.x(), &shape.w()], seed);
}

fn poolings(shape: Shape, seed: u64) {
    unary(Op::AvgPool { window: shape.window }, &shape.x(), seed);
    let mut net = Net::new(seed);
    let x = net.x_apart(&shape.x());
    let y = net.op(Op::MaxPool { window: shape.window }, &[x]);
    net.check(&[y]);
}

/// All at once: rows and columns differ in everything, and the last rows and columns are left over.
#[test]
fn uneven_windows() {
    let window =
        Window { kernel: [3, 2], stride: [2, 3], dilation: [1, 2], before: [2, 0], after: [1, 1] };
    let shape = Shape { batch: 2, size: [6, 5], channels: 4, outputs: 6, groups: 2, window };
    convolution(shape, 30);
    poolings(shape, 31);
    convolution(Shape { channels: 3, outputs: 3, groups: 3, ..shape }, 32);
    convolution(Shape { channels: 2, outputs: 3, groups: 1, ..shape }, 33);
}

/// A cell over a batch of `batch`, of whose outputs the loss takes y if `sequence`, and the final states for
/// which `finals` says so.
fn recurrent(cell: Cell, [batch, steps, hidden]: [usize; 3], taken: (bool, [bool; 2]), seed: u64) {
    let mut net = Net::new(seed);
    let active = profile(&mut net.values, batch, steps);
    let total = active.iter().sum::<i32>() as usize;
    let sizes = [(cell.gates(), total), (cell.gates(), hidden), (cell.states(), batch)];
    let mut operands = Vec::new();
    for (many, rows) in sizes {
        operands.extend((0..many).map(|_| net.x(&[rows, hidden])));
    }
    operands.push(net.fixed(Tensor::new(&[active.len()], &active)));
    let node = net.add(Op::Recurrent { cell }, &operands);
    let (sequence, finals) = taken;
    let mut outputs = vec![];
    for (index, taken) in (0..).zip([sequence, finals[0], cell.states() > 1 && finals[1]]) {
        outputs.extend(taken.then_some(Output { node, index }));
    }
    net.check(&outputs);
}

#[test]
fn recurrent_cells() {
    for (seed, cell) in (34..).zip([Cell::Rnn, Cell::Gru, Cell::Lstm]) {
        for sequence in [true, false] {
            for finals in [[false, false], [true, false], [false, true], [true, true]] {
                if !sequence && !finals[0] && (cell.states() == 1 || !finals[1]) {
                    continue;
                }
                recurrent(cell, [3, 4, 2], (sequence, finals), seed);
                recurrent(cell, [2, 3, 3], (sequence, finals), seed + 10);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn products(m in 1usize..5, k in 1usize..5, n in 1usize..5, seed: u64) {
        for (transpose_a, transpose_b) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let a = if transpose_a { [k, m] } else { [m, k] };
            let b = if transpose_b { [n, k] } else { [k, n] };
            of_several(Op::MatMul { transpose_a, transpose_b }, &[&a, &b], seed);
        }
    }

    #[test]
    fn reductions(dims in [1usize..4, 1..4, 1..4], seed: u64) {
        for by in [Reduction::Sum, Reduction::Mean, Reduction::Max] {
            for axis in 0..3 {
                let mut net = Net::new(seed);
                let x = net.x_apart(&dims);
                let y = net.op(Op::Reduce { by, axis }, &[x]);
                net.check(&[y]);
            }
        }
    }

    #[test]
    fn concatenations(
        dims in [1usize..4, 1..4, 1..4], lengths in prop::collection::vec(0usize..4, 1..4), seed: u64,
    ) {
        for axis in 0..3 {
            let of = |&length: &usize| {
                let mut dims = dims;
                dims[axis] = length;
                dims
            };
            let dims: Vec<[usize; 3]> = lengths.iter().map(of).collect();
            let dims: Vec<&[usize]> = dims.iter().map(|dims| &dims[..]).collect();
            of_several(Op::Concat { axis, size: None }, &dims, seed);
        }
    }

    #[test]
    fn slices_and_pads(
        dims in [1usize..5, 1..5, 1..5], before in 0usize..4, after in 0usize..4, seed: u64,
    ) {
        for axis in 0..3 {
            unary(Op::Pad { axis, before, after }, &dims, seed);
            let start = before.min(dims[axis]);
            let length = (dims[axis] - start).saturating_sub(after);
            unary(Op::Slice { axis, start, length }, &dims, seed);
        }
    }

    #[test]
    fn transpositions(
        permutation in Just(vec![0usize, 1, 2, 3]).prop_shuffle(), dims in [1usize..4, 1..4, 1..4, 1..4],
        seed: u64,
    ) {
        unary(Op::Transpose { permutation }, &dims, seed);
        // a cycle, which is not its own inverse
        unary(Op::Transpose { permutation: vec![2, 0, 1] }, &[2, 3, 4], seed);
    }

    #[test]
    fn windows(shape in shape(2), seed: u64) {
        let shape = Shape { batch: shape.batch.min(2), size: shape.size.map(|s| s.min(6)), ..shape };
        if shape.window.output(shape.size).is_some() {
            convolution(shape, seed);
        }
        // a dilated window may see nothing but padding, of which the largest is no number
        let window = Window { dilation: [1, 1], ..shape.window };
        let fits = (0..2).all(|s| window.before[s] < window.kernel[s]);
        if fits && window.output(shape.size).is_some() {
            poolings(Shape { window, ..shape }, seed);
        }
    }

    #[test]
    fn normalisations(
        rows in [1usize..4, 1..4], channels in 1usize..6, reach in 0usize..4, beta in 0.1f64..2.0, seed: u64,
    ) {
        let (x, c) = ([rows[0], rows[1], channels], [channels]);
        of_several(Op::BatchNorm { epsilon: 0.25, scaled: true }, &[&x, &c, &c], seed);
        of_several(Op::BatchNorm { epsilon: 0.25, scaled: false }, &[&x, &c], seed);
        let size = 2 * reach + 1;
        unary(Op::LocalResponseNorm { size, alpha: 0.7, beta, bias: 1.5 }, &x, seed);
    }

    #[test]
    fn recurrent_shapes(batch in 1usize..4, steps in 1usize..5, hidden in 1usize..4, seed: u64) {
        for cell in [Cell::Rnn, Cell::Gru, Cell::Lstm] {
            recurrent(cell, [batch, steps, hidden], (true, [true, true]), seed);
        }
    }
}
