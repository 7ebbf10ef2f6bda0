//! What a model's author writes with: layers that add nodes to one replica and share variables by name.

use tensorwire_graph::{Graph, GraphError, Hint, Init, Op, Output};
use tensorwire_tensor::{DType, Fact, TensorSpec};

/// One replica of a model in the making. Nodes are named `replica<r>/<name>`; variables plainly.
#[derive(Debug)]
pub struct Scope<'a> {
    pub graph: &'a mut Graph,
    pub replica: u32,
}

impl Scope<'_> {
    /// The full name of one of this replica's nodes.
    pub fn name(&self, name: &str) -> String {
        format!("replica{}/{name}", self.replica)
    }

    /// Adds a node of this replica.
    ///
    /// # Errors
    /// When the inputs do not fit the operator.
    pub fn add(&mut self, name: &str, op: Op, inputs: &[Output]) -> Result<Output, GraphError> {
        let name = self.name(name);
        self.graph.add(&name, Hint::Replica(self.replica), op, inputs).map(Output::from)
    }

    /// A tensor that is fed before each step.
    ///
    /// # Errors
    /// When the name is taken.
    pub fn input(
        &mut self,
        name: &str,
        dtype: DType,
        dims: &[usize],
    ) -> Result<Output, GraphError> {
        self.add(name, Op::Input { fact: Fact::known(dtype, dims) }, &[])
    }

    /// A fully connected layer, x[b, inputs] → x·Wᵀ + b with W[outputs, inputs]: variables
    /// `<name>/weight` and `<name>/bias`.
    ///
    /// # Errors
    /// When `x` is not a floating matrix.
    pub fn dense(
        &mut self,
        name: &str,
        x: Output,
        outputs: usize,
        init: fn(usize, usize) -> Init,
    ) -> Result<Output, GraphError> {
        let fact = self.graph.fact(x).clone();
        let inputs = match fact.spec() {
            Some(Ok(spec)) if spec.dims().len() == 2 => spec.dims()[1],
            _ => {
                let (node, op) = (self.name(name), "dense layer");
                let wanted = "a matrix of known size is needed";
                return Err(GraphError::Mismatch { node, op, found: vec![fact], wanted });
            }
        };
        let spec = |dims: &[usize]| {
            TensorSpec::new(fact.dtype, dims)
                .map_err(|source| GraphError::Shape { node: name.to_string(), source })
        };
        let (weight_spec, bias_spec) = (spec(&[outputs, inputs])?, spec(&[outputs])?);
        let weight =
            self.graph.variable(&format!("{name}/weight"), weight_spec, init(inputs, outputs))?;
        let bias = self.graph.variable(&format!("{name}/bias"), bias_spec, Init::Zeros)?;
        let product = Op::MatMul { transpose_a: false, transpose_b: true };
        let y = self.add(&format!("{name}/product"), product, &[x, weight])?;
        self.add(name, Op::BiasAdd, &[y, bias])
    }
}
