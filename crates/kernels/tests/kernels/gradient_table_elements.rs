//! As `gradient_table.rs`, for functions of elements whose shapes may differ, products of many matrices, smoothed
//! losses, what normalises samples, and sums of a gradient that is rows with one that is a tensor.

use crate::agreement_elements::UNARY;
use crate::common::{self, Tensor, Values};
use proptest::prelude::*;
use tensorwire_graph::{Binary, Op, Output, SampleNorm, Unary};
use tensorwire_kernels::check::Net;
use tensorwire_tensor::Dim;

/// An input whose gradient is asked for, of random numbers in ±2, at least 0.01 from 0.
fn x(net: &mut Net, values: &mut Values, dims: &[usize]) -> Output {
    let reals: Vec<f64> = values.reals(dims.iter().product());
    let moved: Vec<f64> = reals.iter().map(|x| x + 0.01f64.copysign(*x)).collect();
    net.differentiated(Tensor::new(dims, &moved)).unwrap()
}

/// An operator of operands of `dims`, of whose outputs the loss takes the first.
#[track_caller]
fn of_several(op: &Op, dims: &[&[usize]], seed: u64) {
    let (mut net, mut values) = (common::net(), Values(seed));
    let operands: Vec<Output> = dims.iter().map(|dims| x(&mut net, &mut values, dims)).collect();
    let outputs = net.add(op.clone(), &operands).unwrap();
    net.check(&outputs[..1]).unwrap();
}

fn known(dims: &[usize]) -> Vec<Dim> {
    dims.iter().copied().map(Dim::Known).collect()
}

#[test]
fn functions() {
    for (seed, by) in (0..).zip(UNARY) {
        let from_zero = matches!(by, Unary::Log | Unary::Sqrt | Unary::Rsqrt | Unary::Pow { .. });
        let reals: Vec<f64> = Values(seed).reals(24);
        let moved = reals.iter().map(|x| match from_zero {
            true => x.abs() + 0.25,
            false => x + 0.01f64.copysign(*x),
        });
        let x = Tensor::new(&[4, 6], &moved.collect::<Vec<f64>>());
        common::gradient(&Op::Unary { by }, &[x]).unwrap();
    }
}

#[test]
fn choices() {
    let (mut net, mut values) = (common::net(), Values(1));
    let (a, b) = (x(&mut net, &mut values, &[3, 2]), x(&mut net, &mut values, &[3, 2]));
    let condition = net.fixed(Tensor::new(&[3, 2], &[1u8, 0, 2, 0, 0, 1])).unwrap();
    let y = net.add(Op::Select, &[a, b, condition]).unwrap();
    net.check(&y).unwrap();
}

#[test]
fn rows_and_a_tensor_are_added_up() {
    // a table that is looked up twice, and is the matrix of what comes out
    let (mut net, mut values) = (common::net(), Values(2));
    let table = net.variable(Tensor::new(&[5, 3], &values.reals::<f64>(15))).unwrap();
    let named = net.fixed(Tensor::new(&[4], &[3i32, 0, 3, 4])).unwrap();
    let others = net.fixed(Tensor::new(&[2], &[1i32, 3])).unwrap();
    let rows = net.add(Op::Gather, &[table, named]).unwrap()[0];
    let product = Op::MatMul { transpose_a: false, transpose_b: true };
    let logits = net.add(product, &[rows, table]).unwrap()[0];
    let more = net.add(Op::Gather, &[table, others]).unwrap()[0];
    let loss = net.loss(&[logits, more]).unwrap();
    let before = net.graph().len();
    net.check(&[logits, more]).unwrap();
    let mut graph = net.graph().clone();
    let hint = tensorwire_graph::Hint::Replica(0);
    tensorwire_graph::gradients(&mut graph, "g", hint, loss, &[table]).unwrap();
    // each is added to the tensor that the product gave; none becomes a tensor of its own
    let made = |op: &Op| graph.nodes().skip(before).filter(|(_, node)| node.op == *op).count();
    assert_eq!([made(&Op::AddRows), made(&Op::ScatterRows)], [2, 0]);
}

#[test]
fn smoothed_losses() {
    for (smoothing, ignored) in [(0.0, -100), (0.1, 2), (1.0, -1)] {
        let (mut net, mut values) = (common::net(), Values(3));
        let logits = x(&mut net, &mut values, &[4, 5]);
        let labels: Vec<i32> = [0, 4, ignored, 3].into();
        let labels = net.fixed(Tensor::new(&[4], &labels)).unwrap();
        let made = net.add(Op::CrossEntropy { smoothing, ignored }, &[logits, labels]).unwrap();
        net.check(&made[..1]).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn broadcasting(full in [1usize..4, 1..4, 1..4], ones: [[bool; 3]; 2], seed: u64) {
        let dims = ones.map(|ones| {
            let side = |d: usize| if ones[d] { 1 } else { full[d] };
            [side(0), side(1), side(2)]
        });
        for by in [Binary::Add, Binary::Sub, Binary::Mul, Binary::Max, Binary::Min] {
            of_several(&Op::Binary { by }, &[&dims[0], &dims[1]], seed);
            of_several(&Op::Binary { by }, &[&dims[0], &dims[1][1..]], seed);
        }
        let (mut net, mut values) = (common::net(), Values(seed));
        let a = x(&mut net, &mut values, &dims[0]);
        let reals: Vec<f64> = values.reals(dims[1].iter().product());
        let away: Vec<f64> = reals.iter().map(|x| x + 0.5f64.copysign(*x)).collect();
        let b = net.differentiated(Tensor::new(&dims[1], &away)).unwrap();
        let y = net.add(Op::Binary { by: Binary::Div }, &[a, b]).unwrap();
        net.check(&y).unwrap();
        of_several(&Op::ExpandTo { to: known(&full) }, &[&dims[0]], seed);
        of_several(&Op::SumTo { to: known(&dims[0]) }, &[&full], seed);
        of_several(&Op::SumTo { to: known(&full[1..]) }, &[&full], seed);
    }

    #[test]
    fn batches_of_products(many in 1usize..3, m in 1usize..4, k in 1usize..4, n in 1usize..4, seed: u64) {
        for (transpose_a, transpose_b) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let a = if transpose_a { [many, 2, k, m] } else { [many, 2, m, k] };
            let b = if transpose_b { [many, 2, n, k] } else { [many, 2, k, n] };
            of_several(&Op::BatchMatMul { transpose_a, transpose_b }, &[&a, &b], seed);
        }
    }

    #[test]
    fn normalisations(rows in [1usize..3, 1..4], groups in 1usize..4, group in 1usize..4, seed: u64) {
        let (dims, c) = ([rows[0], rows[1], 2, groups * group], [groups * group]);
        for by in [SampleNorm::Layer, SampleNorm::Group { groups }] {
            of_several(&Op::SampleNorm { by, epsilon: 0.25 }, &[&dims, &c, &c], seed);
        }
        of_several(&Op::SampleNorm { by: SampleNorm::Rms, epsilon: 0.25 }, &[&dims, &c], seed);
    }
}
