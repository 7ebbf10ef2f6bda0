//! Gradients against central differences: operators in a graph of their own, its loss computed forward and backward,
//! node by node on the reference, or on what else computes operators.

use std::collections::HashMap;
use std::sync::Arc;

use tensorwire_graph::{
    Gradient, Graph, GraphError, Hint, Init, Kind, NodeId, Op, Output, Reduction, gradients,
};
use tensorwire_tensor::{DType, Dim, Fact, TensorSpec};

use super::{Computes, Mismatch, Tensor, run};
use crate::Kernels;

const HINT: Hint = Hint::Replica(0);

/// How far a central difference is moved to either side.
const STEP: f64 = 1e-5;

/// What central differences leave over, of the largest of a gradient's elements or of 1.
const TOLERANCE: f64 = 1e-6;

/// Holds the gradients that an operator's rule gives for its inputs of f64 against central differences of a loss that
/// is made of all its outputs of f64; and once more of each output alone, where there are several. So the operator and
/// its gradient must take f64. Inputs of other types stay as they are. The inputs should lie away from where the operator
/// has no derivative, by more than 10⁻⁵.
///
/// For an output that no gradient flows from, or several operators at once, see [`Net`].
///
/// # Errors
/// The first thing that is not as it should be.
pub fn gradient(op: &Op, inputs: &[Tensor]) -> Result<(), Mismatch> {
    Net::new().gradient(op, inputs)
}

/// (f(x + h·eᵢ) − f(x − h·eᵢ)) / 2h for every i: the gradient of `f` at `x`, with an error of the order of h² and of
/// eps/h; h = 10⁻⁵ gives some 10⁻¹⁰ for values and derivatives around 1.
pub fn central_differences(x: &[f64], f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    match differences(x, |x| Ok::<f64, std::convert::Infallible>(f(x))) {
        Ok(differences) => differences,
        Err(never) => match never {},
    }
}

fn differences<E>(x: &[f64], f: impl Fn(&[f64]) -> Result<f64, E>) -> Result<Vec<f64>, E> {
    let mut moved = x.to_vec();
    let mut all = Vec::with_capacity(x.len());
    for i in 0..x.len() {
        moved[i] = x[i] + STEP;
        let above = f(&moved)?;
        moved[i] = x[i] - STEP;
        let below = f(&moved)?;
        moved[i] = x[i];
        all.push((above - below) / (2.0 * STEP));
    }
    Ok(all)
}

/// A graph with what its inputs and variables hold, whose gradients are checked.
#[derive(Debug, Default)]
pub struct Net {
    graph: Graph,
    held: HashMap<NodeId, Tensor>,
    /// Operands whose gradients are compared.
    wanted: Vec<Output>,
    /// The reference where none is said.
    on: Option<Arc<dyn Computes>>,
}

impl Net {
    /// A net that the reference computes.
    pub fn new() -> Net {
        Net::default()
    }

    /// A net that `computes` computes, both its gradients and what they are held against.
    pub fn on(computes: Arc<dyn Computes>) -> Net {
        Net { on: Some(computes), ..Net::default() }
    }

    /// As [`gradient`] says, of a net that holds nothing yet.
    ///
    /// # Errors
    /// The first thing that is not as it should be.
    pub fn gradient(mut self, op: &Op, inputs: &[Tensor]) -> Result<(), Mismatch> {
        let held = inputs.iter().map(|input| match input.spec().dtype {
            DType::F64 => self.differentiated(input.clone()),
            _ => self.fixed(input.clone()),
        });
        let held: Vec<Output> = held.collect::<Result<_, _>>()?;
        let outputs = self.add(op.clone(), &held)?;
        let is_real = |output: &Output| self.graph.fact(*output).dtype == DType::F64;
        let outputs: Vec<Output> = outputs.into_iter().filter(is_real).collect();
        self.check(&outputs)?;
        if let [_, _, ..] = outputs[..] {
            outputs.iter().try_for_each(|output| self.check(&[*output]))?;
        }
        Ok(())
    }

    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// What an input or a variable holds.
    pub fn held(&self, output: Output) -> Option<&Tensor> {
        self.held.get(&output.node).filter(|_| output.index == 0)
    }

    /// Adds a node; its outputs.
    ///
    /// # Errors
    /// When the operator does not take the inputs.
    pub fn add(&mut self, op: Op, inputs: &[Output]) -> Result<Vec<Output>, GraphError> {
        let name = format!("{}/{}", op.name(), self.graph.len());
        let node = self.graph.add(&name, HINT, op, inputs)?;
        // fits: operators have a dozen outputs at most
        let count = self.graph.node(node).facts.len() as u32;
        Ok((0..count).map(|index| Output { node, index }).collect())
    }

    /// Adds a node; its first output.
    fn first(&mut self, op: Op, inputs: &[Output]) -> Result<Output, GraphError> {
        let name = op.name();
        self.add(op, inputs)?.first().copied().ok_or_else(|| GraphError::Invalid {
            node: name.to_owned(),
            what: "has no output".to_owned(),
        })
    }

    /// Adds an input whose gradient is not asked for.
    ///
    /// # Errors
    /// Never for a tensor that exists.
    pub fn fixed(&mut self, tensor: Tensor) -> Result<Output, GraphError> {
        let input = self.first(Op::Input { fact: Fact::from(tensor.spec()) }, &[])?;
        self.held.insert(input.node, tensor);
        Ok(input)
    }

    /// Adds an input of f64 whose gradient is checked.
    ///
    /// # Errors
    /// Never for a tensor that exists.
    pub fn differentiated(&mut self, tensor: Tensor) -> Result<Output, GraphError> {
        let input = self.fixed(tensor)?;
        self.wanted.push(input);
        Ok(input)
    }

    /// As [`Net::differentiated`], of a size along `axis` that the graph does not know.
    ///
    /// # Errors
    /// When there is no such dimension.
    pub fn open(&mut self, tensor: Tensor, axis: usize) -> Result<Output, GraphError> {
        let mut fact = Fact::from(tensor.spec());
        let symbol = self.graph.symbol();
        let Some(dim) = fact.dims.get_mut(axis) else {
            let what = format!("has no dimension {axis}");
            return Err(GraphError::Invalid { node: "open".to_owned(), what });
        };
        *dim = Dim::Dynamic(symbol);
        let input = self.first(Op::Input { fact }, &[])?;
        self.held.insert(input.node, tensor);
        self.wanted.push(input);
        Ok(input)
    }

    /// Adds a variable of f64 whose gradient is checked.
    ///
    /// # Errors
    /// Never for a tensor that exists.
    pub fn variable(&mut self, tensor: Tensor) -> Result<Output, GraphError> {
        let name = format!("variable_{}", self.graph.len());
        let variable = self.graph.variable(&name, tensor.spec().clone(), Init::Zeros)?;
        self.held.insert(variable.node, tensor);
        self.wanted.push(variable);
        Ok(variable)
    }

    /// Holds the gradients of all inputs and variables that are differentiated against central differences of a loss
    /// that takes all of `outputs`; and again with each of them asked for alone, which must give the same bits.
    ///
    /// # Errors
    /// The first thing that is not as it should be; the operator named is that of the first output.
    pub fn check(&mut self, outputs: &[Output]) -> Result<(), Mismatch> {
        let op = outputs.first().map_or("nothing", |output| self.graph.node(output.node).op.name());
        let loss = self.loss(outputs)?;
        let all = self.gradients(loss, &self.wanted)?;
        for (input, (&wanted, found)) in self.wanted.iter().zip(all).enumerate() {
            let held = &self.held[&wanted.node];
            let forward = |x: &[f64]| -> Result<f64, Mismatch> {
                let mut moved = self.held.clone();
                moved.insert(wanted.node, Tensor::new(held.spec().dims(), x));
                Ok(self.evaluate(&self.graph, &moved)?[loss.node.index()][0].to_vec::<f64>()[0])
            };
            let expected = differences(&held.to_vec::<f64>(), forward)?;
            let scale = expected.iter().fold(1.0f64, |most, d| most.max(d.abs()));
            for (element, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
                // a NaN is close to nothing
                let is_close = (found - expected).abs() <= TOLERANCE * scale;
                if !is_close {
                    return Err(Mismatch::Gradient { op, input, element, found, expected });
                }
            }
            let alone = self.gradients(loss, &[wanted])?.swap_remove(0);
            let differs = |(a, b): (&f64, &f64)| a.to_bits() != b.to_bits();
            if let Some(element) = alone.iter().zip(&found).position(differs) {
                let (found, expected) = (alone[element], found[element]);
                return Err(Mismatch::Wanted { op, input, element, found, expected });
            }
        }
        Ok(())
    }

    /// Adds the sum of the sums of `outputs`, each element times a fixed weight between −2 and 2.
    ///
    /// # Errors
    /// When an output is not of f64.
    pub fn loss(&mut self, outputs: &[Output]) -> Result<Output, GraphError> {
        let mut loss: Option<Output> = None;
        for &output in outputs {
            let spec = spec(&self.graph, output)?;
            let weights: Vec<f64> = (0..spec.elements()).map(weight).collect();
            let weights = self.fixed(Tensor::new(spec.dims(), &weights))?;
            let mut sum = self.first(Op::Mul, &[output, weights])?;
            for _ in spec.dims() {
                sum = self.first(Op::Reduce { by: Reduction::Sum, axis: 0 }, &[sum])?;
            }
            loss = Some(match loss {
                None => sum,
                Some(loss) => self.first(Op::Add, &[loss, sum])?,
            });
        }
        loss.ok_or_else(|| GraphError::Invalid {
            node: "loss".to_owned(),
            what: "no output of f64 to make it of".to_owned(),
        })
    }

    /// The gradients of `loss` with respect to `wanted`, as the graph computes them that
    /// [`tensorwire_graph::gradients`] makes. Rows are added up to a whole.
    ///
    /// # Errors
    /// When a rule refuses, or a kernel.
    pub fn gradients(&self, loss: Output, wanted: &[Output]) -> Result<Vec<Vec<f64>>, Mismatch> {
        let mut graph = self.graph.clone();
        let made = gradients(&mut graph, "gradients", HINT, loss, wanted)?;
        let mut whole = Vec::with_capacity(made.len());
        for (at, (gradient, like)) in made.into_iter().zip(wanted).enumerate() {
            whole.push(match gradient {
                Gradient::Dense(dense) => dense,
                Gradient::Rows { indices, rows } => {
                    let name = format!("gradients/whole_{at}");
                    graph.add(&name, HINT, Op::ScatterRows, &[rows, indices, *like])?.into()
                }
            });
        }
        let values = self.evaluate(&graph, &self.held)?;
        let get = |output: Output| &values[output.node.index()][output.index as usize];
        let compared = whole.into_iter().zip(wanted).enumerate().map(|(output, (made, like))| {
            let (made, like) = (get(made), get(*like).spec());
            if made.spec() == like {
                return Ok(made.to_vec::<f64>());
            }
            let (op, found) = (graph.node(loss.node).op.name(), made.spec().to_string());
            Err(Mismatch::Spec { op, output, found, expected: like.clone() })
        });
        compared.collect()
    }

    /// All outputs of all nodes, computed in the order of their ids.
    fn evaluate(
        &self,
        graph: &Graph,
        held: &HashMap<NodeId, Tensor>,
    ) -> Result<Vec<Vec<Tensor>>, Mismatch> {
        let reference = Kernels::reference();
        let computes = self.on.as_deref().unwrap_or(&reference);
        let mut made: Vec<Vec<Tensor>> = Vec::with_capacity(graph.len());
        for (id, node) in graph.nodes() {
            let get = |input: &Output| made[input.node.index()][input.index as usize].clone();
            let mut inputs: Vec<Tensor> = node.inputs.iter().map(get).collect();
            made.push(match (node.op.facts().kind, held.get(&id)) {
                (Kind::State, Some(tensor)) => vec![tensor.clone()],
                (Kind::View, _) => vec![inputs.swap_remove(0).reshaped(spec(graph, id.into())?)],
                _ => run(computes, &node.op, &inputs)?,
            });
        }
        Ok(made)
    }
}

fn spec(graph: &Graph, output: Output) -> Result<TensorSpec, GraphError> {
    match graph.fact(output).spec() {
        Some(Ok(spec)) => Ok(spec),
        _ => Err(GraphError::Invalid {
            node: graph.node(output.node).name.clone(),
            what: "has no known size".to_owned(),
        }),
    }
}

/// Fixed numbers between −2 and 2 without a pattern: multiples of the golden ratio, modulo 1.
fn weight(at: usize) -> f64 {
    // fits: 53 bits of 64
    let part = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11;
    part as f64 / (1u64 << 51) as f64 - 2.0
}
