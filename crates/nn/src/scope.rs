//! Scopes: layers that add nodes to one copy of a model and share parameters by name.
//!
//! Each layer has a name. Its parameters are called `<name>/weight`, `<name>/bias` and the like, also in weights files. Its
//! nodes are named after it, and plans, traces and errors use these names.

mod attention;
mod elements;
mod layers;
mod losses;
mod math;
mod recurrent;

use tensorwire_graph::{Graph, GraphError, Hint, Init, Op, Output, Task};
use tensorwire_tensor::{DType, Dim, Fact, TensorSpec};

use crate::data::STEP;
use crate::error::{Error, Result};
use crate::program::average;

pub use attention::Mask;
pub use layers::{Averages, LocalNorm, Norm, Padding};
pub use losses::CrossEntropy;
pub use recurrent::{Recurrent, Sequence};

/// The purpose of a copy of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Train,
    /// Dropout is off, and batch normalisation uses moving averages.
    Evaluate,
}

/// A copy of a model while it is built. A job has one copy for each worker, and another for evaluation if that computes
/// something else. All copies have the same parameters.
///
/// A layer takes tensors and returns one. A tensor is an [`Output`] of a node: cheap to copy, and valid in its own scope only.
/// Dimensions are written outermost first, and `f` is the type that the job computes with: f32, f64 or bf16.
#[derive(Debug)]
pub struct Scope<'a> {
    graph: &'a mut Graph,
    /// Such as `replica0`.
    prefix: String,
    /// The prefix of the first of the copies that a replica has, which has the parameters of all.
    owner: String,
    /// The prefix, as far as it decides what is drawn at random.
    drawn_as: String,
    /// The uses of shared layers that are being made, each with a '/' behind it.
    path: String,
    /// Where the copy is.
    home: Hint,
    /// Where what is added now is to be, if that is elsewhere.
    pinned: Option<Task>,
    mode: Mode,
    batch: usize,
    dtype: DType,
    /// The type of variables.
    kept_as: DType,
    seed: u64,
    weights: Weights,
    reads_averages: bool,
    width_divisor: usize,
    made: Made,
}

/// What a scope is made with.
#[derive(Debug)]
pub(crate) struct ScopeSpec {
    pub(crate) prefix: String,
    pub(crate) owner: String,
    pub(crate) drawn_as: String,
    pub(crate) hint: Hint,
    pub(crate) mode: Mode,
    pub(crate) batch: usize,
    pub(crate) dtype: DType,
    pub(crate) kept_as: DType,
    /// Of what is dropped.
    pub(crate) seed: u64,
    pub(crate) weights: Weights,
    /// Parameters are read as their moving averages.
    pub(crate) reads_averages: bool,
}

/// What a copy of the model turned out to be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Made {
    pub(crate) averages: Vec<Average>,
    /// What is learned, in the order of declaration: the tensors that the copy computes with.
    pub(crate) learned: Vec<Learned>,
    /// True if evaluation computes something else than training.
    pub(crate) has_modes: bool,
}

/// A variable that is a moving average: a ← a + rate·(latest − a) in each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Average {
    pub(crate) variable: Output,
    pub(crate) latest: Output,
    pub(crate) rate: f64,
}

/// How a copy of the model has its variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weights {
    /// They are shared by all copies, and each comes from where it lives.
    Shared,
    /// They are shared, and broadcast in a group: from its first member, who gets them, to the others. A variable's
    /// vector is its place in the order of declaration.
    Spread { is_first: bool },
    /// The copy has its own, which `prefix` tells from the others'; those of the first have none.
    Own { is_first: bool },
}

/// A variable, and the tensor that a copy of the model reads it as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Learned {
    pub(crate) variable: Output,
    /// Of the variable's type: what the loss is differentiated by.
    pub(crate) read_as: Output,
    /// Of the type that is computed with.
    used_as: Output,
}

impl<'a> Scope<'a> {
    pub(crate) fn new(graph: &'a mut Graph, spec: ScopeSpec) -> Scope<'a> {
        let ScopeSpec {
            prefix,
            owner,
            drawn_as,
            hint,
            mode,
            batch,
            dtype,
            kept_as,
            seed,
            weights,
            reads_averages,
        } = spec;
        Scope {
            graph,
            prefix,
            owner,
            drawn_as,
            path: String::new(),
            home: hint,
            pinned: None,
            mode,
            batch,
            dtype,
            kept_as,
            seed,
            weights,
            reads_averages,
            width_divisor: 1,
            made: Made::default(),
        }
    }

    pub(crate) fn into_made(self) -> Made {
        self.made
    }

    /// Marks the copy as one that evaluation cannot use.
    pub(crate) fn differs_in_training(&mut self) {
        self.made.has_modes = true;
    }

    pub(crate) fn graph(&mut self) -> &mut Graph {
        self.graph
    }
}

impl Scope<'_> {
    /// The number of samples in a batch.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The type of parameters and activations: f32, f64 or bf16.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The purpose of this copy. A model that asks gets a separate copy for evaluation.
    pub fn mode(&mut self) -> Mode {
        self.differs_in_training();
        self.mode
    }

    /// The type and dimensions of a tensor.
    ///
    /// # Errors
    /// When the tensor belongs to another scope.
    pub fn fact(&self, x: Output) -> Result<&Fact> {
        let is_known = x.node.index() < self.graph.len();
        let node = is_known.then(|| self.graph.node(x.node));
        let fact = node.and_then(|node| node.facts.get(x.index as usize));
        fact.ok_or_else(|| Error::other(format!("{x:?} is no tensor of this scope")))
    }

    /// The size of a tensor along `axis`.
    ///
    /// # Errors
    /// When there is no such dimension, or its size is known only at run time.
    pub fn size(&self, x: Output, axis: usize) -> Result<usize> {
        let fact = self.fact(x)?;
        match fact.dims.get(axis) {
            Some(Dim::Known(size)) => Ok(*size),
            _ => Err(Error::other(format!("dimension {axis} of {fact} is not known"))),
        }
    }

    /// Adds any operator, including one of your own, and returns its first output `y`. Other outputs are
    /// `Output { index, ..y }`.
    ///
    /// # Errors
    /// When the inputs do not fit the operator, or the name is taken.
    pub fn op(&mut self, name: &str, op: impl Into<Op>, inputs: &[Output]) -> Result<Output> {
        let node = self.name(name);
        let added = self.graph.add(&node, self.hint(), op.into(), inputs);
        added.map(Output::from).map_err(|error| of_layer(name, error))
    }

    /// A parameter: a variable that is learned, shared by all copies of the model. The same name returns the same parameter.
    ///
    /// # Errors
    /// When the name was used with other dimensions or another initialiser, or a dimension is 0.
    pub fn parameter(&mut self, name: &str, dims: &[usize], init: Init) -> Result<Output> {
        if dims.contains(&0) {
            // a layer's parameters are called after it
            let layer = name.rsplit_once('/').map_or(name, |(layer, _)| layer);
            let reason =
                format!("'{name}' would have dimensions {dims:?}; give each a size of at least 1");
            return Err(Error::layer(layer, reason));
        }
        let spec = crate::data::spec(name, self.kept_as, dims)?;
        let variable = self.state(name, spec.clone(), init)?;
        if let Some(known) = self.made.learned.iter().find(|learned| learned.variable == variable) {
            return Ok(known.used_as);
        }
        let average = self.graph.find(&average::now(name)).filter(|_| self.reads_averages);
        let read_as = match self.weights {
            _ if let Some(average) = average => average.into(),
            Weights::Shared | Weights::Own { .. } => variable,
            Weights::Spread { is_first } => {
                // fits: variables are few
                let op = Op::Broadcast { vector: self.made.learned.len() as u32, spec };
                let from: &[Output] = if is_first { &[variable] } else { &[] };
                let node = format!("{}/spread/{name}", self.owner);
                match self.graph.find(&node) {
                    Some(spread) => spread.into(),
                    None => self.graph.add(&node, self.hint(), op, from)?.into(),
                }
            }
        };
        let used_as = match self.kept_as == self.dtype {
            true => read_as,
            false => {
                let node = format!("{}/cast/{name}", self.prefix);
                let to = self.dtype;
                self.graph.add(&node, self.hint(), Op::Cast { to }, &[read_as])?.into()
            }
        };
        self.made.learned.push(Learned { variable, read_as, used_as });
        Ok(used_as)
    }

    /// Uses layers whose parameters are shared. Nodes that `layers` adds are named under `name`, while parameters keep the names
    /// that the layers give them. So the same layers in another `shared` use the same parameters.
    ///
    /// ```
    /// # use tensorwire_nn::{Output, Result, Scope};
    /// /// The vectors of two sentences, by the same layers.
    /// fn twins(s: &mut Scope<'_>, a: Output, b: Output) -> Result<[Output; 2]> {
    ///     let vector = |s: &mut Scope<'_>, x| {
    ///         let y = s.linear("vector", x, 64)?;
    ///         s.tanh("vector", y)
    ///     };
    ///     Ok([s.shared("a", |s| vector(s, a))?, s.shared("b", |s| vector(s, b))?])
    /// }
    /// ```
    ///
    /// # Errors
    /// Those of `layers`.
    pub fn shared<T>(
        &mut self,
        name: &str,
        layers: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let outside = self.path.len();
        self.path.push_str(name);
        self.path.push('/');
        let made = layers(self);
        self.path.truncate(outside);
        made
    }

    /// Puts everything that `layers` adds on one task, including parameters, in every copy of the model. Gradients and updates
    /// follow. The plan finds what crosses between tasks. In a job of one process this changes nothing.
    ///
    /// ```
    /// # use tensorwire_nn::{Output, Result, Scope, Task};
    /// /// A model that is larger than one worker's memory.
    /// fn halves(s: &mut Scope<'_>, x: Output) -> Result<Output> {
    ///     let y = s.on(Task::worker(0), |s| s.linear_relu("first", x, 8192))?;
    ///     s.on(Task::worker(1), |s| s.linear_relu("second", y, 8192))
    /// }
    /// ```
    ///
    /// # Errors
    /// Those of `layers`. A task that the job does not have is reported when the graph is placed.
    pub fn on<T>(&mut self, task: Task, layers: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let outside = self.pinned.replace(task);
        let made = layers(self);
        self.pinned = outside;
        made
    }

    /// A tensor that is fed before each step, which is done where the copy is.
    pub(crate) fn input(&mut self, name: &str, fact: Fact) -> Result<Output> {
        let node = format!("{}/{name}", self.prefix);
        let added = self.graph.add(&node, self.home, Op::Input { fact }, &[]);
        added.map(Output::from).map_err(|error| of_layer(name, error))
    }

    /// The number of the step, `i64[]`.
    fn step(&mut self) -> Result<Output> {
        match self.graph.find(&format!("{}/{STEP}", self.prefix)) {
            Some(step) => Ok(step.into()),
            None => self.input(STEP, Fact::known(DType::I64, &[])),
        }
    }

    /// Where what is added now is to be.
    fn hint(&self) -> Hint {
        self.pinned.map_or(self.home, Hint::Task)
    }

    /// The full name of one of this copy's nodes.
    fn name(&self, name: &str) -> String {
        format!("{}/{}{name}", self.prefix, self.path)
    }

    /// A variable itself, where this copy has it.
    fn state(&mut self, name: &str, spec: TensorSpec, init: Init) -> Result<Output> {
        let made = match self.weights {
            Weights::Shared | Weights::Spread { .. } => {
                let hint = self.pinned.map_or(Hint::Shared, Hint::Task);
                self.graph.variable_at(name, hint, spec, init)
            }
            Weights::Own { is_first: true } => {
                self.graph.variable_at(name, self.hint(), spec, init)
            }
            Weights::Own { is_first: false } => {
                let name = format!("{}/{name}", self.owner);
                self.graph.variable_at(&name, self.hint(), spec, init)
            }
        };
        made.map_err(|error| of_layer(name, error))
    }

    /// A moving average.
    fn average(&mut self, name: &str, channels: usize, init: Init) -> Result<Output> {
        let spec = crate::data::spec(name, self.kept_as, &[channels])?;
        self.state(name, spec, init)
    }

    /// A tensor as `to`.
    fn as_type(&mut self, name: &str, x: Output, to: DType) -> Result<Output> {
        match self.fact(x)?.dtype == to {
            true => Ok(x),
            false => self.cast(name, x, to),
        }
    }

    fn spec(&self, name: &str, dims: &[usize]) -> Result<TensorSpec> {
        crate::data::spec(name, self.dtype, dims)
    }

    /// The size of a dimension that a layer must know, and must be at least 1. `what` is how the layer calls the tensor, and
    /// `wanted` what it takes.
    fn known(
        &self,
        layer: &str,
        (what, x): (&str, Output),
        axis: usize,
        wanted: &str,
    ) -> Result<usize> {
        let fact = self.fact(x)?;
        match fact.dims.get(axis) {
            Some(Dim::Known(size)) if *size > 0 => Ok(*size),
            _ => Err(Error::layer(layer, format!("{what} is {fact}; {wanted}"))),
        }
    }

    /// Checks that a tensor has `rank` dimensions and is of floating point.
    fn check(
        &self,
        layer: &str,
        (what, x): (&str, Output),
        rank: usize,
        wanted: &str,
    ) -> Result<()> {
        let fact = self.fact(x)?;
        match fact.dims.len() == rank && fact.dtype.is_floating() {
            true => Ok(()),
            false => Err(Error::layer(layer, format!("{what} is {fact}; {wanted}"))),
        }
    }
}

/// An error of the graph, in a layer's words.
fn of_layer(layer: &str, error: GraphError) -> Error {
    match error {
        GraphError::Mismatch { op, found, wanted, .. } => {
            let found: Vec<String> = found.iter().map(Fact::to_string).collect();
            Error::layer(layer, format!("{op} cannot take ({}): {wanted}", found.join(", ")))
        }
        GraphError::InputCount { op, wanted, found, .. } => {
            Error::layer(layer, format!("{op} takes {wanted} inputs, {found} were given"))
        }
        GraphError::Refused { op, found, why, .. } => {
            let found: Vec<String> = found.iter().map(Fact::to_string).collect();
            Error::layer(layer, format!("{op} cannot take ({}): {why}", found.join(", ")))
        }
        GraphError::Panicked { op, rule, said, .. } => {
            Error::layer(layer, format!("the {rule} of {op} panicked: {said}"))
        }
        GraphError::Shape { source, .. } => Error::layer(layer, source.to_string()),
        GraphError::DuplicateName { .. } => Error::layer(
            layer,
            "a layer or a tensor of the data is called so already; give each a name of its own, or use it again in \
             shared()",
        ),
        GraphError::VariableRedeclared { first, second, .. } => {
            Error::layer(layer, format!("was declared as {first}, and again as {second}"))
        }
        GraphError::UnknownOutput { .. } => {
            Error::layer(layer, "was given a tensor of another scope")
        }
        other => other.into(),
    }
}
