//! An imported module as a model.

use std::collections::HashMap;
use std::sync::Arc;

use safetensors::{Dtype, SafeTensors};
use tensorwire_graph::GraphError;
use tensorwire_nn::{
    Batch, DType, Description, Extent, Feature, Init, Model, Outputs, Program, ProgramSpec, Scope,
    Values,
};
use tensorwire_tensor::TensorSpec;

use crate::call::{Call, Value};
use crate::error::{CallSite, ImportError, Result};
use crate::module::{Module, ModuleNode, OutputShape};
use crate::operators::Constant;
use crate::order::Tensor;
use crate::table;

/// A module of PyTorch as a model. Its parameters have the keys that they have in its `state_dict`, and its own shapes; their
/// first values are zeros until those of a file are loaded.
pub struct ImportedModel {
    module: Module,
    constants: Vec<Given>,
}

/// A tensor that never changes.
struct Given {
    name: String,
    spec: TensorSpec,
    bytes: Arc<[u8]>,
}

impl std::fmt::Debug for ImportedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImportedModel").field("module", &self.module).finish_non_exhaustive()
    }
}

impl ImportedModel {
    /// The model that a module is, with the values of its constants as safetensors.
    ///
    /// # Errors
    /// When an operator is not known: the first one, and where it stands.
    pub fn new(module: Module, constants: &[u8]) -> Result<ImportedModel> {
        for node in &module.nodes {
            if table::rule(&node.operator).is_none() {
                return Err(ImportError::Unknown(CallSite::of(node)));
            }
        }
        let file = SafeTensors::deserialize(constants).map_err(ImportError::Constants)?;
        let mut given = Vec::new();
        for (name, tensor) in file.tensors() {
            let dtype = match tensor.dtype() {
                Dtype::F32 => DType::F32,
                Dtype::F64 => DType::F64,
                Dtype::I32 => DType::I32,
                Dtype::U8 | Dtype::BOOL => DType::U8,
                other => {
                    let reason = format!("constant '{name}' is of {other:?}");
                    return Err(ImportError::Description(reason));
                }
            };
            let spec = TensorSpec::new(dtype, tensor.shape())
                .map_err(|error| ImportError::Description(error.to_string()))?;
            given.push(Given { name, spec, bytes: tensor.data().into() });
        }
        // a file has them in any order, and every process must build the same graph
        given.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(ImportedModel { module, constants: given })
    }

    /// The module as it came.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// The data that it learns from.
    pub fn data(&self) -> Description {
        let features = self.module.inputs.iter().map(|input| {
            let each = input.dims.first().map_or(1, |size| size / self.module.batch.max(1));
            let rest = input.dims.iter().skip(1).map(|&size| Extent::Known(size));
            let dims = std::iter::once(Extent::Batch(each)).chain(rest).collect();
            Feature { name: input.name.clone(), dtype: input.dtype, dims, values: Values::Any }
        });
        features.fold(Description::new(), Description::feature)
    }

    /// Builds a program of one copy as a trial, with its gradients.
    ///
    /// # Errors
    /// What would end a job before it begins: the operator, and where it stands.
    pub fn check(&self, dtype: DType) -> Result<()> {
        let spec = ProgramSpec { batch: self.module.batch, dtype, ..ProgramSpec::default() };
        Program::new(self, &self.data(), &spec).map(drop).map_err(|error| self.placed(error))
    }

    /// An error of building a program, with the place in the module that it is of.
    fn placed(&self, error: tensorwire_nn::Error) -> ImportError {
        match error {
            tensorwire_nn::Error::Other(error) => match error.downcast::<ImportError>() {
                Ok(error) => *error,
                Err(error) => ImportError::Model(tensorwire_nn::Error::Other(error)),
            },
            tensorwire_nn::Error::Graph(GraphError::NoGradient { node, op }) => {
                // REPLICA/NODE/PART
                let name = node.split('/').nth(1).unwrap_or_default();
                match self.module.nodes.iter().find(|node| node.name == name) {
                    Some(node) => ImportError::refused(
                        node,
                        format!(
                            "{op} has no gradient; detach what it is given, or write it otherwise"
                        ),
                    ),
                    None => tensorwire_nn::Error::from(GraphError::NoGradient { node, op }).into(),
                }
            }
            error => error.into(),
        }
    }

    /// What all names stand for before the first node.
    fn given<'m>(
        &'m self,
        s: &mut Scope<'_>,
        batch: &Batch<'_>,
    ) -> Result<HashMap<&'m str, Value>> {
        let mut values = HashMap::new();
        let made = |output, rank| Value::Made(vec![Tensor::plain(output, rank)]);
        for input in &self.module.inputs {
            values.insert(input.name.as_str(), made(batch.input(&input.name)?, input.dims.len()));
        }
        for parameter in &self.module.parameters {
            let output = s.parameter(&parameter.key, &parameter.dims, Init::Zeros)?;
            values.insert(parameter.name.as_str(), made(output, parameter.dims.len()));
        }
        for average in &self.module.averages {
            values.insert(average.name.as_str(), Value::Average(average.key.clone()));
        }
        for Given { name, spec, bytes } in &self.constants {
            let mut output = s.op(name, Constant::op(spec.clone(), bytes.clone()), &[])?;
            let to = s.dtype();
            if spec.dtype.is_floating() && spec.dtype != to {
                output = s.cast(&format!("{name}/cast"), output, to)?;
            }
            values.insert(name.as_str(), made(output, spec.dims().len()));
        }
        Ok(values)
    }

    fn add(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        if s.batch() != self.module.batch {
            return Err(ImportError::Description(format!(
                "it is of batches of {}, and the job's have {}; import it again with an example of so many samples",
                self.module.batch,
                s.batch()
            )));
        }
        let mut values = self.given(s, batch)?;
        for node in &self.module.nodes {
            let unknown = || ImportError::Unknown(CallSite::of(node));
            let rule = table::rule(&node.operator).ok_or_else(unknown)?;
            let made = rule(&mut Call { s, node, values: &values, model: &self.module })?;
            self.compare(s, node, &made)?;
            values.insert(&node.name, Value::Made(made));
        }
        let loss = &self.module.loss;
        match values.get(loss.tensor.as_str()) {
            Some(Value::Made(outputs)) if loss.output < outputs.len() => {
                Ok(Outputs::loss(outputs[loss.output].output))
            }
            _ => Err(ImportError::Description(format!("the loss '{}' is not made", loss.tensor))),
        }
    }

    /// Holds what a node became against what PyTorch said of it.
    fn compare(&self, s: &Scope<'_>, node: &ModuleNode, made: &[Tensor]) -> Result<()> {
        for (tensor, wanted) in made.iter().zip(&node.outputs) {
            let Some(OutputShape { dims: wanted, .. }) = wanted else { continue };
            let found = tensor.dims(s)?;
            if found != *wanted {
                let reason = format!(
                    "gives {found:?} here and {wanted:?} in PyTorch; this is a mistake of tensorwire, please report it"
                );
                return Err(ImportError::refused(node, reason));
            }
        }
        Ok(())
    }
}

impl Model for ImportedModel {
    fn name(&self) -> String {
        self.module.name.clone()
    }

    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> tensorwire_nn::Result<Outputs> {
        self.add(s, batch).map_err(Into::into)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOTHING: &[u8] = b"\x02\0\0\0\0\0\0\0{}";

    /// A linear layer, some nodes, and the mean of squares as the loss.
    fn described(nodes: Value) -> Module {
        let shape = |dims: &[usize]| json!([{ "dtype": "f32", "dims": dims }]);
        let tensor = |name: &str| json!({ "tensor": name });
        let mut all = vec![json!({
            "name": "linear", "operator": "aten.linear.default", "outputs": shape(&[2, 4]),
            "arguments": { "input": tensor("x"), "weight": tensor("w"), "bias": null },
        })];
        all.extend(nodes.as_array().unwrap().clone());
        all.push(json!({
            "name": "loss", "operator": "aten.mse_loss.default", "outputs": shape(&[]),
            "arguments": { "self": tensor("y"), "target": tensor("linear"), "reduction": 1 },
        }));
        serde_json::from_value(json!({
            "name": "Net", "batch": 2, "averages": [], "nodes": all, "loss": tensor("loss"),
            "inputs": [{ "name": "x", "dtype": "f32", "dims": [2, 3] }],
            "parameters": [{ "name": "w", "key": "layer.weight", "dims": [4, 3] }],
        }))
        .unwrap()
    }

    fn node(operator: &str, arguments: Value, dims: &[usize]) -> Value {
        let place = json!({ "module": "part.0", "line": "net.py:7: return f(x)" });
        let outputs = json!([{ "dtype": "f32", "dims": dims }]);
        json!([{ "name": "y", "operator": operator, "arguments": arguments, "outputs": outputs, "place": place }])
    }

    fn checked(nodes: Value) -> Result<()> {
        ImportedModel::new(described(nodes), NOTHING)?.check(DType::F32)
    }

    fn said(nodes: Value) -> String {
        checked(nodes).unwrap_err().to_string()
    }

    #[test]
    fn what_is_known_can_be_trained() {
        let x = json!({ "self": { "tensor": "linear", "output": 0 }, "other": 0.5 });
        checked(node("aten.mul.Tensor", x.clone(), &[2, 4])).unwrap();
        checked(node("aten.add_.Tensor", x, &[2, 4])).unwrap();
    }

    #[test]
    fn what_is_not_known_is_named_with_its_place() {
        let text = said(node("aten.fft_fft.default", json!({}), &[2, 4]));
        let wanted =
            "aten.fft_fft.default (part.0, net.py:7: return f(x)): this operator is not known";
        assert!(text.starts_with(wanted), "{text}");
    }

    #[test]
    fn dimensions_are_held_against_pytorchs() {
        let x = json!({ "self": { "tensor": "linear" }, "dim0": 0, "dim1": 1 });
        let text = said(node("aten.transpose.int", x, &[2, 4]));
        assert!(
            text.contains("(part.0, net.py:7: return f(x)): gives [4, 2] here and [2, 4]"),
            "{text}"
        );
    }

    #[test]
    fn a_use_that_the_graph_refuses_has_its_place() {
        let x = json!({ "input": { "tensor": "linear" }, "weight": { "tensor": "w" } });
        let text = said(node("aten.linear.default", x, &[2, 4]));
        assert!(text.starts_with("aten.linear.default (part.0, net.py:7"), "{text}");
        assert!(text.contains("the inner dimensions differ"), "{text}");
    }

    #[test]
    fn a_description_that_contradicts_itself_is_refused() {
        let x = json!({ "self": { "tensor": "nobody" } });
        assert!(said(node("aten.relu.default", x, &[2, 4])).contains("'nobody' is not made"));
        let mut module = described(json!([]));
        module.loss.tensor = "nothing".to_string();
        let error = ImportedModel::new(module, NOTHING).unwrap().check(DType::F32).unwrap_err();
        assert!(error.to_string().contains("'y' is not made"), "{error}");
        let torn = ImportedModel::new(described(json!([])), b"torn").unwrap_err();
        assert!(matches!(torn, ImportError::Constants(_)), "{torn}");
    }

    #[test]
    fn a_model_is_of_one_size_of_batch() {
        let x = json!({ "self": { "tensor": "linear" } });
        let model =
            ImportedModel::new(described(node("aten.relu.default", x, &[2, 4])), NOTHING).unwrap();
        let spec = ProgramSpec { batch: 3, ..ProgramSpec::default() };
        let text = Program::new(&model, &model.data(), &spec).unwrap_err().to_string();
        assert!(text.contains("of batches of 2, and the job's have 3; import it again"), "{text}");
    }
}
