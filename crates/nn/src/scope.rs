//! What a model's author writes with: layers that add nodes to one replica and share variables by name.

use tensorwire_graph::{Cell, Graph, GraphError, Hint, Init, Op, Output, Window};
use tensorwire_tensor::{DType, Dim, Fact, TensorSpec};

/// What the nodes are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Train,
    /// Nothing is dropped, and batches are normalised by moving averages.
    Evaluate,
}

/// How far a moving average goes to the latest value, in a step.
pub(crate) const AVERAGE_RATE: f64 = 0.1;

/// A model in the making, once. Nodes are named `<prefix>/<name>`; variables plainly, so that all copies of
/// the model share them.
#[derive(Debug)]
pub struct Scope<'a> {
    pub graph: &'a mut Graph,
    /// Such as `replica0`.
    pub prefix: String,
    pub hint: Hint,
    pub mode: Mode,
    /// Samples in a batch.
    pub batch: usize,
    /// Of variables and activations.
    pub dtype: DType,
    /// Of what is dropped.
    pub seed: u64,
    /// Variables that are moving averages, with the value that each takes up in this step.
    pub(crate) averages: Vec<(Output, Output)>,
    /// How this copy of the model has its variables.
    pub(crate) weights: Weights,
    /// What is learned, in the order of declaration: the tensors that the copy computes with.
    pub(crate) learned: Vec<Learned>,
    /// Does evaluation compute anything else than training?
    pub(crate) has_modes: bool,
}

/// How a copy of the model has its variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weights {
    /// They are shared by all copies, and each comes from where it lives.
    Shared,
    /// They are shared, and spread in a group: from its first member, who gets them, to the others. A variable's
    /// vector is its place in the order of declaration.
    Spread { is_first: bool },
    /// The copy has its own, which `prefix` tells from the others'; those of the first have none.
    Own { is_first: bool },
}

/// A variable, and the tensor that a copy of the model reads it as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Learned {
    pub(crate) variable: Output,
    pub(crate) read_as: Output,
}

/// Padding of a convolution or a pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    Valid,
    /// As many windows as strides fit the image: TensorFlow's SAME.
    Same,
    /// This many rows and columns on all sides.
    Of([usize; 2]),
}

/// A batch normalisation: epsilon, and whether it has a scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    pub epsilon: f64,
    pub scaled: bool,
}

/// First values of a layer's weight, from the number of inputs and outputs that one of its numbers is
/// between.
pub type WeightInit = fn(usize, usize) -> Init;

/// For layers before a ReLU.
pub fn he(fan_in: usize, _: usize) -> Init {
    Init::HeUniform { fan_in }
}

/// For all others.
pub fn glorot(fan_in: usize, fan_out: usize) -> Init {
    Init::GlorotUniform { fan_in, fan_out }
}

impl Scope<'_> {
    /// The full name of one of this copy's nodes.
    pub fn name(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    /// Adds a node.
    ///
    /// # Errors
    /// When the inputs do not fit the operator.
    pub fn add(&mut self, name: &str, op: Op, inputs: &[Output]) -> Result<Output, GraphError> {
        let name = self.name(name);
        self.graph.add(&name, self.hint, op, inputs).map(Output::from)
    }

    /// A tensor that is fed before each step.
    ///
    /// # Errors
    /// When the name is taken.
    pub fn input(&mut self, name: &str, dtype: DType, dims: &[Dim]) -> Result<Output, GraphError> {
        self.add(name, Op::Input { fact: Fact { dtype, dims: dims.to_vec() } }, &[])
    }

    /// A fed tensor of f32, as the model's type.
    pub fn numbers(&mut self, name: &str, dims: &[Dim]) -> Result<Output, GraphError> {
        let x = self.input(name, DType::F32, dims)?;
        match self.dtype {
            DType::F32 => Ok(x),
            to => self.add(&format!("{name}/cast"), Op::Cast { to }, &[x]),
        }
    }

    /// What is learned, shared by all copies of the model.
    pub fn variable(
        &mut self,
        name: &str,
        dims: &[usize],
        init: Init,
    ) -> Result<Output, GraphError> {
        let spec = self.spec(name, dims)?;
        let variable = self.state(name, spec.clone(), init)?;
        if let Some(known) = self.learned.iter().find(|learned| learned.variable == variable) {
            return Ok(known.read_as);
        }
        let read_as = match self.weights {
            Weights::Shared | Weights::Own { .. } => variable,
            Weights::Spread { is_first } => {
                // fits: variables are few
                let op = Op::Broadcast { vector: self.learned.len() as u32, spec };
                let from: &[Output] = if is_first { &[variable] } else { &[] };
                self.add(&format!("spread/{name}"), op, from)?
            }
        };
        self.learned.push(Learned { variable, read_as });
        Ok(read_as)
    }

    /// A variable itself, where this copy has it.
    fn state(&mut self, name: &str, spec: TensorSpec, init: Init) -> Result<Output, GraphError> {
        match self.weights {
            Weights::Shared | Weights::Spread { .. } => self.graph.variable(name, spec, init),
            Weights::Own { is_first: true } => self.graph.variable_at(name, self.hint, spec, init),
            Weights::Own { is_first: false } => {
                let name = self.name(name);
                self.graph.variable_at(&name, self.hint, spec, init)
            }
        }
    }

    /// A moving average.
    fn average(&mut self, name: &str, channels: usize, init: Init) -> Result<Output, GraphError> {
        let spec = self.spec(name, &[channels])?;
        self.state(name, spec, init)
    }

    fn spec(&self, name: &str, dims: &[usize]) -> Result<TensorSpec, GraphError> {
        TensorSpec::new(self.dtype, dims)
            .map_err(|source| GraphError::Shape { node: name.to_string(), source })
    }

    /// A tensor of zeros.
    pub fn zeros(&mut self, name: &str, dims: &[usize]) -> Result<Output, GraphError> {
        let spec = self.spec(name, dims)?;
        self.add(name, Op::Fill { value: 0.0, spec }, &[])
    }

    fn dims(&self, x: Output) -> Vec<Dim> {
        self.graph.fact(x).dims.clone()
    }

    /// The size of a dimension, which a model knows.
    fn known(&self, name: &str, x: Output, axis: usize) -> Result<usize, GraphError> {
        match self.graph.fact(x).dims.get(axis) {
            Some(Dim::Known(size)) => Ok(*size),
            _ => Err(GraphError::Mismatch {
                node: self.name(name),
                op: "layer",
                found: vec![self.graph.fact(x).clone()],
                wanted: "a dimension of known size is needed",
            }),
        }
    }

    /// A fully connected layer, x[b, inputs] → x·Wᵀ + b with W[outputs, inputs]: variables
    /// `<name>/weight` and `<name>/bias`.
    ///
    /// # Errors
    /// When `x` is not a floating matrix with a known number of columns.
    pub fn dense(
        &mut self,
        name: &str,
        x: Output,
        outputs: usize,
        init: WeightInit,
    ) -> Result<Output, GraphError> {
        let inputs = self.known(name, x, 1)?;
        let weight =
            self.variable(&format!("{name}/weight"), &[outputs, inputs], init(inputs, outputs))?;
        let bias = self.variable(&format!("{name}/bias"), &[outputs], Init::Zeros)?;
        self.project(name, x, weight, bias)
    }

    /// x·Wᵀ + b.
    fn project(
        &mut self,
        name: &str,
        x: Output,
        weight: Output,
        bias: Output,
    ) -> Result<Output, GraphError> {
        let product = Op::MatMul { transpose_a: false, transpose_b: true };
        let y = self.add(&format!("{name}/product"), product, &[x, weight])?;
        self.add(name, Op::BiasAdd, &[y, bias])
    }

    pub fn relu(&mut self, name: &str, x: Output) -> Result<Output, GraphError> {
        self.add(&format!("{name}/relu"), Op::Relu, &[x])
    }

    /// x[b,h,w,c] → x[b, h·w·c].
    pub fn flatten(&mut self, name: &str, x: Output) -> Result<Output, GraphError> {
        let dims = self.dims(x);
        let mut features = 1;
        for axis in 1..dims.len() {
            features *= self.known(name, x, axis)?;
        }
        let to = vec![dims[0], Dim::Known(features)];
        self.add(&format!("{name}/flat"), Op::Reshape { to }, &[x])
    }

    fn window(
        &self,
        name: &str,
        x: Output,
        kernel: [usize; 2],
        stride: usize,
        padding: Padding,
    ) -> Result<Window, GraphError> {
        let stride = [stride, stride];
        Ok(match padding {
            Padding::Valid => Window::valid(kernel, stride),
            Padding::Of(padding) => Window::padded(kernel, stride, padding),
            Padding::Same => {
                let size = [self.known(name, x, 1)?, self.known(name, x, 2)?];
                Window::same(kernel, stride, size)
            }
        })
    }

    /// A convolution without bias: variable `<name>/weight`, [outputs, c, kh, kw].
    pub fn conv(
        &mut self,
        name: &str,
        x: Output,
        outputs: usize,
        kernel: [usize; 2],
        stride: usize,
        padding: Padding,
    ) -> Result<Output, GraphError> {
        let inputs = self.known(name, x, 3)?;
        let window = self.window(name, x, kernel, stride, padding)?;
        let [rows, columns] = kernel;
        let init = he(inputs * rows * columns, outputs);
        let dims = [outputs, inputs, rows, columns];
        let weight = self.variable(&format!("{name}/weight"), &dims, init)?;
        self.add(&format!("{name}/conv"), Op::Conv2d { window, groups: 1 }, &[x, weight])
    }

    /// A convolution with a bias and a ReLU: variables `<name>/weight` and `<name>/bias`.
    pub fn conv_relu(
        &mut self,
        name: &str,
        x: Output,
        outputs: usize,
        kernel: usize,
        stride: usize,
        padding: Padding,
    ) -> Result<Output, GraphError> {
        let y = self.conv(name, x, outputs, [kernel, kernel], stride, padding)?;
        let bias = self.variable(&format!("{name}/bias"), &[outputs], Init::Zeros)?;
        let y = self.add(name, Op::BiasAdd, &[y, bias])?;
        self.relu(name, y)
    }

    pub fn max_pool(
        &mut self,
        name: &str,
        x: Output,
        kernel: usize,
        stride: usize,
        padding: Padding,
    ) -> Result<Output, GraphError> {
        let window = self.window(name, x, [kernel, kernel], stride, padding)?;
        self.add(name, Op::MaxPool { window }, &[x])
    }

    pub fn avg_pool(
        &mut self,
        name: &str,
        x: Output,
        kernel: usize,
        stride: usize,
        padding: Padding,
    ) -> Result<Output, GraphError> {
        let window = self.window(name, x, [kernel, kernel], stride, padding)?;
        self.add(name, Op::AvgPool { window }, &[x])
    }

    /// The mean of each channel over the whole image: x[b,h,w,c] → [b, c].
    pub fn global_avg_pool(&mut self, name: &str, x: Output) -> Result<Output, GraphError> {
        let size = [self.known(name, x, 1)?, self.known(name, x, 2)?];
        let pooled = self.add(name, Op::AvgPool { window: Window::valid(size, [1, 1]) }, &[x])?;
        self.flatten(name, pooled)
    }

    /// Batch normalisation over the last dimension: variables `<name>/shift` and, if it is scaled,
    /// `<name>/scale`; moving averages `<name>/mean` and `<name>/variance`.
    pub fn batch_norm(&mut self, name: &str, x: Output, norm: Norm) -> Result<Output, GraphError> {
        let Norm { epsilon, scaled } = norm;
        self.has_modes = true;
        let channels = self.known(name, x, self.dims(x).len().saturating_sub(1))?;
        let one = Init::Constant { value: 1.0 };
        let mut inputs = vec![x];
        if scaled {
            inputs.push(self.variable(&format!("{name}/scale"), &[channels], one)?);
        }
        inputs.push(self.variable(&format!("{name}/shift"), &[channels], Init::Zeros)?);
        let mean = self.average(&format!("{name}/mean"), channels, Init::Zeros)?;
        let variance = self.average(&format!("{name}/variance"), channels, one)?;
        let node = format!("{name}/norm");
        match self.mode {
            Mode::Train => {
                let y = self.add(&node, Op::BatchNorm { epsilon, scaled }, &inputs)?;
                let statistic = |index| Output { node: y.node, index };
                self.averages.push((mean, statistic(1)));
                self.averages.push((variance, statistic(2)));
                Ok(y)
            }
            Mode::Evaluate => {
                inputs.extend([mean, variance]);
                self.add(&node, Op::Normalize { epsilon, scaled }, &inputs)
            }
        }
    }

    /// Drops `rate` of the elements in training (Srivastava et al. 2014); which, depends on the seed, the
    /// node's name and the step alone.
    pub fn dropout(&mut self, name: &str, x: Output, rate: f64) -> Result<Output, GraphError> {
        self.has_modes = true;
        if self.mode == Mode::Evaluate {
            return Ok(x);
        }
        let step = match self.graph.find(&self.name("step")) {
            Some(step) => step.into(),
            None => self.input("step", DType::I64, &[])?,
        };
        let node = format!("{name}/dropout");
        let key = crate::init::fnv1a(&self.name(&node)) ^ self.seed;
        self.add(&node, Op::Dropout { rate, key }, &[x, step])
    }

    /// An embedding: the rows of variable `<name>/weight`, [words, size], that `tokens` names.
    pub fn embedding(
        &mut self,
        name: &str,
        node: &str,
        tokens: Output,
        [words, size]: [usize; 2],
    ) -> Result<Output, GraphError> {
        let init = Init::Uniform { limit: 0.1 };
        let table = self.variable(&format!("{name}/weight"), &[words, size], init)?;
        self.add(node, Op::Gather, &[table, tokens])
    }

    /// A recurrent layer over packed sequences (see [`Op::Recurrent`]): x[total, inputs] → (h after each
    /// step: [total, hidden], each final state: [b, hidden]). Per gate g an input matrix
    /// `<name>/<g>/input`, [hidden, inputs], a recurrent matrix `<name>/<g>/recurrent`, [hidden, hidden], and
    /// a bias `<name>/<g>/bias`. `node` names the nodes, where the layer is used more than once.
    pub fn recurrent(
        &mut self,
        (name, node): (&str, &str),
        cell: Cell,
        x: Output,
        hidden: usize,
        states: &[Output],
        active: Output,
    ) -> Result<(Output, Vec<Output>), GraphError> {
        let inputs = self.known(name, x, 1)?;
        let gates: &[&str] = match cell {
            Cell::Rnn => &["hidden"],
            Cell::Gru => &["reset", "update", "new"],
            Cell::Lstm => &["input", "forget", "cell", "output"],
        };
        // as in PyTorch: all in ±1/√hidden
        // fits: a layer's width, exact in f64
        let recurrent = Init::Uniform { limit: 1.0 / (hidden as f64).sqrt() };
        let (mut products, mut matrices) = (Vec::new(), Vec::new());
        for gate in gates {
            let of = |what: &str| format!("{name}/{gate}/{what}");
            let weight = self.variable(&of("input"), &[hidden, inputs], glorot(inputs, hidden))?;
            matrices.push(self.variable(&of("recurrent"), &[hidden, hidden], recurrent)?);
            // an LSTM starts by keeping what it has: Jozefowicz et al. 2015, §2.2
            let keeps = cell == Cell::Lstm && *gate == "forget";
            let init = if keeps { Init::Constant { value: 1.0 } } else { Init::Zeros };
            let bias = self.variable(&of("bias"), &[hidden], init)?;
            products.push(self.project(&format!("{node}/{gate}"), x, weight, bias)?);
        }
        let operands = [&products[..], &matrices, states, &[active]].concat();
        let y = self.add(node, Op::Recurrent { cell }, &operands)?;
        // fits: a cell has two states at most
        let state = |state: usize| Output { node: y.node, index: 1 + state as u32 };
        Ok((y, (0..cell.states()).map(state).collect()))
    }
}
