//! An exported module as data. Says what is there and decides nothing.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use tensorwire_tensor::DType;

/// A module with its loss, as `torch.export` sees it for batches of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Module {
    /// What messages call it.
    pub name: String,
    /// Samples of a batch.
    pub batch: usize,
    /// What it is fed with, in the data's names.
    pub inputs: Vec<TensorInput>,
    /// What is learned.
    pub parameters: Vec<ModuleState>,
    /// Moving averages of normalisations.
    pub averages: Vec<ModuleState>,
    /// In an order in which each comes behind those that it uses.
    pub nodes: Vec<ModuleNode>,
    /// What is minimised: one number.
    pub loss: TensorArgument,
}

/// A tensor of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorInput {
    pub name: String,
    pub dtype: DType,
    /// Of the whole batch.
    pub dims: Vec<usize>,
}

/// A tensor that outlives a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModuleState {
    /// What nodes call it.
    pub name: String,
    /// Its key in the module's `state_dict`.
    pub key: String,
    pub dims: Vec<usize>,
}

/// One call of an operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModuleNode {
    pub name: String,
    /// With its overload: `aten.conv2d.default`.
    pub operator: String,
    /// All that the operator's schema names, with what is left out at its default.
    pub arguments: BTreeMap<String, Argument>,
    /// What it makes; none for what is no tensor.
    pub outputs: Vec<Option<OutputShape>>,
    #[serde(default)]
    pub place: SourcePlace,
}

/// What is known of a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutputShape {
    pub dtype: DType,
    pub dims: Vec<usize>,
}

/// Where a node stands in the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourcePlace {
    /// The part of the module: `layer1.0.conv1`. Empty for the module itself.
    pub module: String,
    /// The line of its source: `net.py:12: return self.conv(x)`.
    pub line: String,
}

/// An argument of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Argument {
    None(()),
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Tensor(TensorArgument),
    /// A number that JSON has no form for: `inf`, `-inf`, `nan`.
    Special {
        number: String,
    },
    List(Vec<Argument>),
}

/// An output of a node, or an input, a parameter or a constant by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorArgument {
    pub tensor: String,
    #[serde(default)]
    pub output: usize,
}

impl Argument {
    /// The number, if it is one.
    pub(crate) fn number(&self) -> Option<f64> {
        match self {
            // fits: exact below 2^53, which no argument reaches
            Argument::Int(number) => Some(*number as f64),
            Argument::Float(number) => Some(*number),
            Argument::Bool(is) => Some(f64::from(u8::from(*is))),
            Argument::Special { number } => number.parse().ok(),
            _ => None,
        }
    }
}

impl fmt::Display for SourcePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [self.module.as_str(), self.line.as_str()];
        let said: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        if said.is_empty() { Ok(()) } else { write!(f, " ({})", said.join(", ")) }
    }
}
