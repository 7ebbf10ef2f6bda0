//! Operators that users bring. Here is what planning needs of one: its name, the shapes of what it makes, and its
//! gradient. What computes it is carried along, unseen.

use std::any::{Any, TypeId};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tensorwire_tensor::Fact;

use super::Op;
use crate::error::GraphError;
use crate::output::{Gradient, Output};

/// Why an operator refuses what it is given, in words: `Err("two vectors are needed".into())`, or any error by `?`.
pub type Refusal = Box<dyn std::error::Error + Send + Sync>;

/// The rules of an operator: what it makes of what, and how its gradient flows.
///
/// Every process of a job builds the same graph by itself. So the rules may depend on the operator's fields and on
/// what they are given, and on nothing else; and `Debug` must show every field, as the derived one does: two
/// operators are the same if they are of one type and print the same.
///
/// A rule that panics ends the graph's construction with [`GraphError::Panicked`], which names operator and node.
pub trait CustomOperator: Any + fmt::Debug + Send + Sync {
    /// What diagrams, traces and errors call it: `"Huber"`.
    fn name(&self) -> &'static str;

    /// The facts of its outputs, from those of its inputs. It is asked several times: when the node is added, by the
    /// passes, and when the tensors exist. A dimension of an input may be dynamic; one that then is new and dynamic in an
    /// output takes a symbol that the operator holds ([`Graph::symbol`](crate::Graph::symbol)). Where all inputs are
    /// known, all outputs must be.
    ///
    /// # Errors
    /// When the inputs do not fit. The node, the operator and what was found are added to the message.
    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal>;

    /// For each input, what of its gradient flows through the operator; none where the operator has no derivative in
    /// it, and where it is not wanted. Without this no gradient flows.
    ///
    /// # Errors
    /// When a node cannot be added, or no gradient can be given.
    fn gradient(&self, backward: &mut dyn Backward) -> Result<Vec<Option<Gradient>>, Refusal> {
        Ok(vec![None; backward.inputs().len()])
    }

    /// True if its first output may be computed over its first input's bytes. Both must have one type and shape, and
    /// the kernel must be ready for either case.
    fn works_in_place(&self) -> bool {
        false
    }
}

/// One node on the way back from the loss, as a gradient rule sees it.
pub trait Backward {
    /// The node's inputs.
    fn inputs(&self) -> &[Output];

    /// What the node computed from them.
    fn outputs(&self) -> &[Output];

    /// The gradients of its outputs, of their shapes; none where the loss does not depend on one. At least one is
    /// there.
    fn flowing(&self) -> &[Option<Output>];

    /// For each input, true if its gradient is asked for.
    fn wanted(&self) -> &[bool];

    /// What is known of a tensor.
    fn fact(&self, output: Output) -> &Fact;

    /// Adds a node; its outputs.
    ///
    /// # Errors
    /// When the inputs do not fit the operator.
    fn add_all(&mut self, op: Op, inputs: &[Output]) -> Result<Vec<Output>, GraphError>;

    /// Adds a node; its first output.
    ///
    /// # Errors
    /// When the inputs do not fit the operator, or it has no output.
    fn add(&mut self, op: Op, inputs: &[Output]) -> Result<Output, GraphError>;
}

/// An operator that a user brought, with what computes it. Cheap to clone.
#[derive(Clone)]
pub struct CustomOp(Arc<Carried>);

struct Carried {
    operator: Arc<dyn CustomOperator>,
    // asked once, so that no answer changes while a plan stands on it
    name: &'static str,
    works_in_place: bool,
    /// As it printed when it came: its identity.
    printed: String,
    kernel: Option<Arc<dyn Any + Send + Sync>>,
    computes_on_devices: bool,
}

impl CustomOp {
    /// An operator that can be planned and differentiated, and has nothing that computes it.
    pub fn new(operator: impl CustomOperator) -> CustomOp {
        CustomOp::carrying(Arc::new(operator), None, false)
    }

    /// As [`CustomOp::new`], with what computes it, which is the business of whoever runs the graph.
    pub fn with_kernel(
        operator: Arc<dyn CustomOperator>,
        kernel: Arc<dyn Any + Send + Sync>,
    ) -> CustomOp {
        CustomOp::carrying(operator, Some(kernel), false)
    }

    /// As [`CustomOp::with_kernel`], of what computes it on the host and on devices.
    pub fn with_device_kernel(
        operator: Arc<dyn CustomOperator>,
        kernel: Arc<dyn Any + Send + Sync>,
    ) -> CustomOp {
        CustomOp::carrying(operator, Some(kernel), true)
    }

    fn carrying(
        operator: Arc<dyn CustomOperator>,
        kernel: Option<Arc<dyn Any + Send + Sync>>,
        computes_on_devices: bool,
    ) -> CustomOp {
        let (name, works_in_place) = (operator.name(), operator.works_in_place());
        let printed = format!("{operator:?}");
        CustomOp(Arc::new(Carried {
            operator,
            name,
            works_in_place,
            printed,
            kernel,
            computes_on_devices,
        }))
    }

    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// True if its first output may be computed over its first input's bytes.
    pub fn works_in_place(&self) -> bool {
        self.0.works_in_place
    }

    /// True if it is computed where its task's tensors are, in a device's memory, too; else on the host alone.
    pub fn computes_on_devices(&self) -> bool {
        self.0.computes_on_devices
    }

    pub fn operator(&self) -> &dyn CustomOperator {
        &*self.0.operator
    }

    /// What computes it, if that was given.
    pub fn kernel(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.0.kernel.as_deref()
    }

    /// The facts of its outputs, as its own rule gives them.
    ///
    /// # Errors
    /// When the rule refuses or panics.
    pub(crate) fn infer(&self, node: &str, inputs: &[Fact]) -> Result<Vec<Fact>, GraphError> {
        let ruled = self.ruled(node, "shape rule", || self.operator().infer(inputs))?;
        ruled.map_err(|refusal| GraphError::Refused {
            node: node.to_string(),
            op: self.name(),
            found: inputs.to_vec(),
            why: refusal.to_string(),
        })
    }

    /// What of its inputs' gradients flows through it, by its own rule.
    ///
    /// # Errors
    /// When the rule refuses or panics.
    pub(crate) fn gradient(
        &self,
        node: &str,
        backward: &mut dyn Backward,
    ) -> Result<Vec<Option<Gradient>>, GraphError> {
        let ruled = self.ruled(node, "gradient rule", || self.operator().gradient(backward))?;
        ruled.map_err(|refusal| match refusal.downcast::<GraphError>() {
            Ok(error) => *error,
            Err(refusal) => GraphError::Invalid {
                node: node.to_string(),
                what: format!("the gradient rule of {}: {refusal}", self.name()),
            },
        })
    }

    /// What a rule says, or that it panicked.
    fn ruled<T>(
        &self,
        node: &str,
        rule: &'static str,
        ask: impl FnOnce() -> T,
    ) -> Result<T, GraphError> {
        catch_unwind(AssertUnwindSafe(ask)).map_err(|panic| {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
            GraphError::Panicked {
                node: node.to_string(),
                op: self.name(),
                rule,
                said: said.unwrap_or("no message").to_string(),
            }
        })
    }
}

impl From<CustomOp> for Op {
    fn from(op: CustomOp) -> Op {
        Op::Custom(op)
    }
}

impl PartialEq for CustomOp {
    /// True if both are of one type and print the same. What computes them is not compared.
    fn eq(&self, other: &CustomOp) -> bool {
        let kind = |op: &CustomOp| -> TypeId { (*op.0.operator).type_id() };
        Arc::ptr_eq(&self.0, &other.0)
            || (kind(self) == kind(other) && self.0.printed == other.0.printed)
    }
}

impl fmt::Debug for CustomOp {
    /// As the operator printed when it came: the same in every process.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.printed)
    }
}
