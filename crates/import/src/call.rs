//! One call of an operator while it becomes nodes: its arguments by name, and what they are made into.

use std::collections::HashMap;

use tensorwire_nn::{DType, Op, Output, Scope};

use crate::error::{CallSite, ImportError, Result};
use crate::module::{Argument, Module, ModuleNode, TensorArgument};
use crate::order::Tensor;

/// What a name of the module stands for.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// The outputs of a node; none for what is no tensor, or nobody uses.
    Made(Vec<Tensor>),
    /// A moving average, by its key.
    Average(String),
}

/// A call, the scope that it adds to, and the values that are there.
pub(crate) struct Call<'c, 'g> {
    pub(crate) s: &'c mut Scope<'g>,
    pub(crate) node: &'c ModuleNode,
    pub(crate) values: &'c HashMap<&'c str, Value>,
    pub(crate) model: &'c Module,
}

impl Call<'_, '_> {
    /// The name of a node that the call adds. `what` tells it from others of the same call.
    pub(crate) fn name(&self, what: &str) -> String {
        format!("{}/{what}", self.node.name)
    }

    /// An error of this call, for the user.
    pub(crate) fn refuse<T>(&self, reason: impl Into<String>) -> Result<T> {
        Err(ImportError::refused(self.node, reason))
    }

    /// What the scope returned, its error with the place of the call.
    pub(crate) fn ok<T>(&self, result: tensorwire_nn::Result<T>) -> Result<T> {
        result.map_err(|source| ImportError::Graph {
            site: CallSite::of(self.node),
            source: Box::new(source),
        })
    }

    /// Adds any operator under the call's name and `what`.
    pub(crate) fn op(
        &mut self,
        what: &str,
        op: impl Into<Op>,
        inputs: &[Output],
    ) -> Result<Output> {
        let name = self.name(what);
        let made = self.s.op(&name, op, inputs);
        self.ok(made)
    }

    /// Calls one of the scope's layers under the call's name and `what`.
    pub(crate) fn layer<T>(
        &mut self,
        what: &str,
        layer: impl FnOnce(&mut Scope<'_>, &str) -> tensorwire_nn::Result<T>,
    ) -> Result<T> {
        let name = self.name(what);
        let made = layer(self.s, &name);
        self.ok(made)
    }

    /// The argument of this name; none if it was left out.
    pub(crate) fn given(&self, name: &str) -> Option<&Argument> {
        self.node.arguments.get(name).filter(|argument| **argument != Argument::None(()))
    }

    fn needed(&self, name: &str) -> Result<&Argument> {
        match self.given(name) {
            Some(argument) => Ok(argument),
            None => self.refuse(format!("argument '{name}' is needed")),
        }
    }

    /// The tensor that an argument names.
    pub(crate) fn found(&self, argument: &TensorArgument) -> Result<Tensor> {
        match self.values.get(argument.tensor.as_str()) {
            Some(Value::Made(outputs)) if argument.output < outputs.len() => {
                Ok(outputs[argument.output].clone())
            }
            Some(Value::Average(key)) => self.refuse(format!(
                "it computes with the buffer '{key}', which a normalisation changes; keep a buffer of its own for it"
            )),
            _ => Err(ImportError::Description(format!("'{}' is not made", argument.tensor))),
        }
    }

    /// The tensor of this name, if the argument is one.
    pub(crate) fn tensor_or_none(&self, name: &str) -> Result<Option<Tensor>> {
        match self.given(name) {
            Some(Argument::Tensor(argument)) => self.found(argument).map(Some),
            _ => Ok(None),
        }
    }

    /// The tensor of this name.
    pub(crate) fn tensor(&self, name: &str) -> Result<Tensor> {
        match self.needed(name)? {
            Argument::Tensor(argument) => self.found(argument),
            other => self.refuse(format!("argument '{name}' is {other:?}, and a tensor is needed")),
        }
    }

    /// True if the argument `name` is what this operator makes.
    pub(crate) fn is_made_by(&self, name: &str, operator: &str) -> bool {
        let Some(Argument::Tensor(argument)) = self.given(name) else { return false };
        let mut nodes = self.model.nodes.iter();
        nodes.any(|node| node.name == argument.tensor && node.operator == operator)
    }

    /// True if a tensor is neither fed nor learned nor made by a node.
    pub(crate) fn is_constant(&self, argument: &TensorArgument) -> bool {
        let Module { inputs, parameters, nodes, .. } = self.model;
        let name = &argument.tensor;
        !inputs.iter().any(|input| input.name == *name)
            && !parameters.iter().any(|parameter| parameter.name == *name)
            && !nodes.iter().any(|node| node.name == *name)
    }

    /// The key of the moving average of this name.
    pub(crate) fn average(&self, name: &str) -> Option<String> {
        match self.given(name) {
            Some(Argument::Tensor(argument)) => match self.values.get(argument.tensor.as_str()) {
                Some(Value::Average(key)) => Some(key.clone()),
                _ => None,
            },
            _ => None,
        }
    }

    /// The tensors of a list.
    pub(crate) fn tensors(&self, name: &str) -> Result<Vec<Tensor>> {
        let Argument::List(list) = self.needed(name)? else {
            return self.refuse(format!("argument '{name}' is no list of tensors"));
        };
        let each = list.iter().map(|argument| match argument {
            Argument::Tensor(argument) => self.found(argument),
            _ => self.refuse(format!("argument '{name}' holds what is no tensor")),
        });
        each.collect()
    }

    /// The tensor of this name with its dimensions as the module has them.
    pub(crate) fn plain(&mut self, name: &str) -> Result<Output> {
        let tensor = self.tensor(name)?;
        self.as_plain(&tensor, name)
    }

    /// A tensor with its dimensions as the module has them; `what` names the node that turns it.
    pub(crate) fn as_plain(&mut self, tensor: &Tensor, what: &str) -> Result<Output> {
        let order: Vec<usize> = (0..tensor.rank()).collect();
        self.laid(tensor, what, &order)
    }

    /// A tensor with dimension d at `order[d]`.
    pub(crate) fn laid(&mut self, tensor: &Tensor, what: &str, order: &[usize]) -> Result<Output> {
        let name = self.name(&format!("{what}/turned"));
        let laid = tensor.laid(self.s, &name, order);
        self.ok(laid)
    }

    pub(crate) fn dims(&self, tensor: &Tensor) -> Result<Vec<usize>> {
        self.ok(tensor.dims(self.s))
    }

    pub(crate) fn dtype(&self, output: Output) -> Result<DType> {
        self.ok(self.s.fact(output).map(|fact| fact.dtype))
    }

    /// The number of this name.
    pub(crate) fn number(&self, name: &str) -> Result<f64> {
        match self.needed(name)?.number() {
            Some(number) => Ok(number),
            None => self.refuse(format!("argument '{name}' is no number that never changes")),
        }
    }

    /// The number of this name, or this one.
    pub(crate) fn number_or(&self, name: &str, otherwise: f64) -> Result<f64> {
        self.given(name).map_or(Ok(otherwise), |_| self.number(name))
    }

    /// True if the argument is given and true.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.given(name).and_then(Argument::number).is_some_and(|number| number != 0.0)
    }

    /// The text of this name; empty if there is none.
    pub(crate) fn text(&self, name: &str) -> &str {
        match self.given(name) {
            Some(Argument::Text(text)) => text,
            _ => "",
        }
    }

    /// The integers of this name: a list, or one; empty if it was left out.
    pub(crate) fn ints(&self, name: &str) -> Result<Vec<i64>> {
        let int = |argument: &Argument| match argument {
            Argument::Int(int) => Ok(*int),
            _ => self.refuse(format!("argument '{name}' holds what is no integer")),
        };
        match self.given(name) {
            None => Ok(Vec::new()),
            Some(Argument::List(list)) => list.iter().map(int).collect(),
            Some(one) => Ok(vec![int(one)?]),
        }
    }

    /// The integer of this name.
    pub(crate) fn int(&self, name: &str) -> Result<i64> {
        match self.ints(name)?[..] {
            [int] => Ok(int),
            _ => self.refuse(format!("argument '{name}' is no integer")),
        }
    }

    /// Two sizes, of height and width: as many are given, or one for both; `otherwise` if none is.
    pub(crate) fn pair(&self, name: &str, otherwise: [usize; 2]) -> Result<[usize; 2]> {
        let sizes: Result<Vec<usize>> =
            self.ints(name)?.into_iter().map(|i| self.size(name, i)).collect();
        match sizes?[..] {
            [] => Ok(otherwise),
            [both] => Ok([both, both]),
            [rows, columns] => Ok([rows, columns]),
            _ => self.refuse(format!("argument '{name}' has more than two sizes")),
        }
    }

    fn size(&self, name: &str, int: i64) -> Result<usize> {
        usize::try_from(int).or_else(|_| self.refuse(format!("argument '{name}' is {int}")))
    }

    /// The dimension that this number is of a tensor of this rank; counted from the last if it is negative.
    pub(crate) fn axis(&self, int: i64, rank: usize) -> Result<usize> {
        // fits: ranks are few
        let axis = if int < 0 { int + rank as i64 } else { int };
        match usize::try_from(axis) {
            Ok(axis) if axis < rank.max(1) => Ok(axis),
            _ => self.refuse(format!("there is no dimension {int} of {rank}")),
        }
    }

    /// The dimensions of this name; all, if none is given.
    pub(crate) fn axes(&self, name: &str, rank: usize) -> Result<Vec<usize>> {
        let given = self.ints(name)?;
        match given.is_empty() {
            true => Ok((0..rank).collect()),
            false => given.into_iter().map(|int| self.axis(int, rank)).collect(),
        }
    }

    /// The dimensions of an output, as PyTorch gave them.
    pub(crate) fn wanted(&self, output: usize) -> Result<Vec<usize>> {
        match self.node.outputs.get(output) {
            Some(Some(shape)) => Ok(shape.dims.clone()),
            _ => Err(ImportError::Description(format!("'{}' lacks a shape", self.node.name))),
        }
    }

    /// One value in every element, of the type of `like`.
    pub(crate) fn filled(
        &mut self,
        what: &str,
        value: f64,
        like: Output,
        dims: &[usize],
    ) -> Result<Output> {
        let dtype = self.dtype(like)?;
        let spec = tensorwire_tensor::TensorSpec::new(dtype, dims);
        let spec = spec.or_else(|error| self.refuse(error.to_string()))?;
        self.op(what, Op::Fill { value, spec }, &[])
    }

    /// A tensor of the dimensions that PyTorch gave, in its order.
    pub(crate) fn reshaped(&mut self, what: &str, output: Output) -> Result<Tensor> {
        let dims = self.wanted(0)?;
        let y = match self.ok(self.s.fact(output))?.dims.len() == dims.len()
            && self.ok(Tensor::plain(output, dims.len()).dims(self.s))? == dims
        {
            true => output,
            false => self.layer(what, |s, name| s.reshape(name, output, &dims))?,
        };
        Ok(Tensor::plain(y, dims.len()))
    }
}
