//! What a graph computes, without plan, parts, memory or order: node after node, each into memory of its
//! own.

use std::collections::{BTreeMap, HashMap, HashSet};

use tensorwire_graph::{Graph, NodeId, Op, Output, infer};
use tensorwire_kernels::Kernels;
use tensorwire_memory::{TensorMut, TensorRef};
use tensorwire_tensor::{Fact, TensorSpec};

/// A tensor's spec and bytes, aligned for every element type.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Value {
    pub(crate) spec: TensorSpec,
    words: Vec<u64>,
}

impl Value {
    pub(crate) fn zeros(spec: TensorSpec) -> Value {
        let words = vec![0; spec.bytes().div_ceil(8)];
        Value { spec, words }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.spec.bytes()]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = self.spec.bytes();
        &mut bytemuck::cast_slice_mut(&mut self.words)[..bytes]
    }

    fn tensor(&self) -> TensorRef<'_> {
        TensorRef::new(&self.spec, self.bytes()).unwrap()
    }
}

/// The values of all outputs of `members` in one run, from what is fed and from the variables, which the
/// run may change.
pub(crate) fn evaluate(
    graph: &Graph,
    kernels: &Kernels,
    members: &HashSet<NodeId>,
    fed: &BTreeMap<NodeId, Value>,
    variables: &mut BTreeMap<NodeId, Value>,
) -> HashMap<Output, Value> {
    let mut values: HashMap<Output, Value> = HashMap::new();
    for (id, node) in graph.nodes().filter(|(id, _)| members.contains(id)) {
        let inputs: Vec<Value> = node.inputs.iter().map(|input| values[input].clone()).collect();
        let facts: Vec<Fact> = inputs.iter().map(|value| Fact::from(&value.spec)).collect();
        let facts = infer(&node.name, &node.op, &facts).unwrap();
        match &node.op {
            Op::Input { .. } => drop(values.insert(id.into(), fed[&id].clone())),
            Op::Variable { .. } => drop(values.insert(id.into(), variables[&id].clone())),
            Op::NoOp => {}
            Op::Reshape { .. } => {
                let spec = facts[0].spec().unwrap().unwrap();
                values.insert(id.into(), Value { spec, ..inputs[0].clone() });
            }
            op => {
                // what moves no byte in a part is a copy here
                let op = &match op {
                    Op::Rows { start, length } => {
                        Op::Slice { axis: 0, start: *start, length: *length }
                    }
                    Op::Join => Op::Concat { axis: 0, size: None },
                    op => op.clone(),
                };
                let made = facts.iter().map(|fact| Value::zeros(fact.spec().unwrap().unwrap()));
                let mut outputs = inputs[..op.mutated_inputs()].to_vec();
                outputs.extend(made);
                let read: Vec<TensorRef> =
                    inputs[op.mutated_inputs()..].iter().map(Value::tensor).collect();
                compute(kernels, op, &read, &mut outputs);
                for (variable, value) in node.inputs.iter().zip(&outputs[..op.mutated_inputs()]) {
                    variables.insert(variable.node, value.clone());
                }
                for (index, value) in (0..).zip(outputs.drain(..).skip(op.mutated_inputs())) {
                    values.insert(Output { node: id, index }, value);
                }
            }
        }
    }
    values
}

fn compute(kernels: &Kernels, op: &Op, inputs: &[TensorRef], outputs: &mut [Value]) {
    let specs: Vec<TensorSpec> = outputs.iter().map(|value| value.spec.clone()).collect();
    let written = outputs.iter_mut().zip(&specs);
    let mut written: Vec<TensorMut> =
        written.map(|(value, spec)| TensorMut::new(spec, value.bytes_mut()).unwrap()).collect();
    kernels.run(op, inputs, &mut written).unwrap();
}

/// A node and all that it needs.
pub(crate) fn closure(graph: &Graph, roots: &[NodeId]) -> HashSet<NodeId> {
    let (mut open, mut needed) = (roots.to_vec(), HashSet::new());
    while let Some(id) = open.pop() {
        if needed.insert(id) {
            open.extend(graph.predecessors(id));
        }
    }
    needed
}
