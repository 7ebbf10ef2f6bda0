//! What crosses in a training step as a drawing that fits a screen: a box for each layer and side, an arrow for each way.
//! Knows names, bytes and tasks; whoever makes a [`Crossing`] knows where it comes from.

mod fold;
mod svg;
mod text;

use crate::graph::Task;

/// A tensor, or an order, that crosses between processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crossing {
    pub tensor: String,
    /// The scope of the variables that it belongs to.
    pub layer: String,
    pub what: What,
    pub from: Vec<Task>,
    /// The same as `from` where all of them reduce or share it among themselves.
    pub to: Vec<Task>,
    /// None where they are known only when the tensor exists.
    pub bytes: Option<u64>,
    /// How it crosses, in the words of docs/vocabulary.md.
    pub how: String,
    /// Element type and dimensions.
    pub fact: String,
    /// Why it crosses so.
    pub reason: String,
    /// Where the sender's operator puts it, if the plan says so.
    pub lies_at: String,
    /// Where its reader finds it.
    pub at: String,
    /// Why its memory may be used again.
    pub reuse: String,
}

/// What a crossing tensor is to its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    Weights,
    Gradient,
    /// A gradient that a group reduces among its members.
    AllReduce,
    Broadcast,
    /// What updates moving averages, in a model that normalises.
    Statistics,
    /// How far weights are from a centre.
    Difference,
    /// Anything else of the graph: activations, indices, norms.
    Tensor,
    /// Nothing but an order.
    Signal,
}

/// A layer of the model: the variables of one scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelLayer {
    pub name: String,
    pub variables: usize,
    pub bytes: u64,
}

/// A model's layers, and what crosses in a training step.
#[derive(Clone, Debug)]
pub struct Picture {
    pub title: String,
    /// In the order of declaration.
    pub layers: Vec<ModelLayer>,
    pub crossings: Vec<Crossing>,
    /// What stands below it: sums, and how to see more.
    pub notes: Vec<String>,
}

/// Lines and columns of a screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Screen {
    pub lines: usize,
    pub columns: usize,
}

impl What {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            What::Weights => "weights",
            What::Gradient => "gradient",
            What::AllReduce => "all-reduce",
            What::Broadcast => "broadcast",
            What::Statistics => "statistics",
            What::Difference => "difference",
            What::Tensor => "tensor",
            What::Signal => "signal",
        }
    }
}

/// The scope of a variable: its name without the last part.
///
/// ```
/// use tensorwire_graph::layer_of;
/// assert_eq!(layer_of("stage1/block2/conv1/weight"), "stage1/block2/conv1");
/// assert_eq!(layer_of("bert.encoder.layer.3.output.dense.bias"), "bert.encoder.layer.3.output.dense");
/// assert_eq!(layer_of("table"), "table");
/// ```
pub fn layer_of(variable: &str) -> &str {
    variable.rsplit_once(SEPARATORS).map_or(variable, |(scope, _)| scope)
}

/// What parts of a name are told apart by.
const SEPARATORS: [char; 2] = ['/', '.'];

impl Crossing {
    /// True if all that take part give and get: an all-reduce, a broadcast in a group.
    fn is_among(&self) -> bool {
        self.from == self.to
    }
}
