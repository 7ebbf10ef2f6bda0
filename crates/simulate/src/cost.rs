//! How much work a node is, from the shapes around it: what one measured time of a step is spread over its nodes by.

use tensorwire_graph::{Attention, AttentionMask, Graph, NodeId, Op};
use tensorwire_tensor::{Dim, Fact};

/// Operations that are done in the time in which a byte is moved: about 12 on the machines this was compared with (a
/// P100: 9.3 TFLOP/s and 732 GB/s; a core of Zen 4: some 100 GFLOP/s and 10 GB/s).
const BALANCE: f64 = 12.0;

/// Multiplications and additions of a node.
pub fn flops(graph: &Graph, id: NodeId) -> f64 {
    let node = graph.node(id);
    let input = |at: usize| node.inputs.get(at).map(|input| graph.fact(*input));
    let output = || node.facts.first();
    // an output channel's share of the weights: what one of its elements is made of
    let taps =
        |weights: Option<&Fact>| weights.map_or(0.0, |fact| elements(fact) / dim(fact, 0).max(1.0));
    let of = |fact: Option<&Fact>| fact.map_or(0.0, elements);
    match &node.op {
        Op::MatMul { transpose_a, .. } => {
            let inner = input(0).map_or(0.0, |a| dim(a, if *transpose_a { 0 } else { 1 }));
            2.0 * of(output()) * inner
        }
        Op::BatchMatMul { transpose_a, .. } => {
            let inner = input(0).map_or(0.0, |a| {
                let last = a.dims.len().saturating_sub(1);
                dim(a, if *transpose_a { last.saturating_sub(1) } else { last })
            });
            2.0 * of(output()) * inner
        }
        // two products, and five; with a causal mask half of each
        Op::Attention(by) => 4.0 * of(input(0)) * seen(by, input(1)),
        Op::AttentionGrad(by) => 10.0 * of(input(1)) * seen(by, input(2)),
        Op::Conv2d { .. } => 2.0 * of(output()) * taps(input(1)),
        Op::Conv2dGradInput { .. } => 2.0 * of(input(0)) * taps(input(1)),
        Op::Conv2dGradWeight { .. } => 2.0 * of(input(0)) * taps(output()),
        Op::Recurrent { cell } => {
            let recurrent = input(cell.gates());
            2.0 * of(output()) * recurrent.map_or(0.0, |u| dim(u, 1)) * gates(cell.gates())
        }
        // the states' gradients and the matrices'
        Op::RecurrentGrad { cell, .. } => {
            let products: f64 = (0..cell.gates()).map(|g| of(node.facts.get(g))).sum();
            let recurrent = node.facts.get(cell.gates());
            4.0 * products * recurrent.map_or(0.0, |u| dim(u, 1))
        }
        _ => 0.0,
    }
}

/// Work of a node, in operations: its own, or those of the time in which its operands are moved.
pub fn work(graph: &Graph, id: NodeId) -> f64 {
    if !graph.node(id).op.is_computed() {
        return 0.0;
    }
    let node = graph.node(id);
    let inputs: f64 = node.inputs.iter().map(|input| bytes(graph.fact(*input))).sum();
    let outputs: f64 = node.facts.iter().map(bytes).sum();
    let changed: f64 =
        node.inputs.iter().take(node.op.mutated_inputs()).map(|v| bytes(graph.fact(*v))).sum();
    flops(graph, id).max(BALANCE * (inputs + outputs + changed))
}

/// Bytes of a tensor, as far as its dimensions are known.
pub(crate) fn bytes(fact: &Fact) -> f64 {
    // fits: sizes in memory
    elements(fact) * fact.dtype.bytes() as f64
}

fn elements(fact: &Fact) -> f64 {
    (0..fact.dims.len()).map(|at| dim(fact, at)).product()
}

fn dim(fact: &Fact, at: usize) -> f64 {
    match fact.dims.get(at) {
        // fits: sizes in memory
        Some(Dim::Known(size)) => *size as f64,
        _ => 0.0,
    }
}

/// How many keys a query sees, of keys as attention has them.
fn seen(by: &Attention, keys: Option<&Fact>) -> f64 {
    let [_, positions] = by.heads.axes();
    let all = keys.map_or(0.0, |keys| dim(keys, positions));
    if by.mask == AttentionMask::Causal { all / 2.0 } else { all }
}

fn gates(count: usize) -> f64 {
    // fits: at most 4
    count as f64
}
