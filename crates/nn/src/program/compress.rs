//! Less of a gradient crosses than there is, and what that leaves is added to the next one: error feedback. What is computed with is
//! what all can make of that, also where the gradient was made, so that the bits do not depend on who is where.

use tensorwire_graph::{Gradient, Graph, GraphError, Hint, Init, NARROWED_FROM, Op, Output};
use tensorwire_tensor::{DType, TensorSpec};

/// What crosses of gradients of f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Compression {
    /// A byte for each element, and a scale for every 256 of them ([`Op::Quantize`]).
    Int8,
    /// This share of the elements, the largest ones ([`Op::TopK`]), at least one.
    TopK { share: f64 },
}

impl Compression {
    /// Elements that have one scale. A scale of 4 bytes is 1.6 % of them; where one element is much larger than the others, these
    /// 256 are what it costs.
    pub const BLOCK: usize = 256;

    /// Returns how many of so many elements a share is, one at least.
    pub fn chosen(share: f64, elements: usize) -> usize {
        // fits: between 1 and the elements
        ((elements as f64 * share).round() as usize).clamp(1, elements.max(1))
    }

    /// Puts what crosses, and what is made of it, behind a replica's gradient of a variable. Returns that gradient, and the name of the
    /// variable that has what is left; none where the gradient is of rows, too small or of another type: it stays as it is.
    pub(super) fn add(
        self,
        graph: &mut Graph,
        (replica, variable): (u32, &str),
        gradient: Gradient,
    ) -> Result<Option<(Output, String)>, GraphError> {
        let Some(x) = gradient.dense() else { return Ok(None) };
        let fact = graph.fact(x).clone();
        let spec = fact.spec().and_then(Result::ok);
        let worth_it =
            |spec: &TensorSpec| fact.dtype == DType::F32 && spec.elements() >= NARROWED_FROM;
        let Some(spec) = spec.filter(worth_it) else { return Ok(None) };
        let (elements, to) = (spec.elements(), spec.dims().to_vec());
        let name = residual_of(replica, variable);
        // where the gradient is
        let hint = Hint::With(x.node);
        let op = Op::Variable { spec, init: Init::Zeros };
        let residual = graph.add(&name, hint, op, &[])?.into();
        let (less, all) = match self {
            Compression::Int8 => {
                let block = Compression::BLOCK;
                (Op::Quantize { block }, Op::Dequantize { block, first: 0 })
            }
            Compression::TopK { share } => {
                let count = Compression::chosen(share, elements);
                (Op::TopK { count }, Op::ScatterElements { to, first: 0 })
            }
        };
        let of = format!("replica{replica}/gradient/{variable}");
        let less = graph.add(&format!("{of} compressed"), hint, less, &[residual, x])?;
        let parts = [0, 1].map(|index| Output { node: less, index });
        let made = graph.add(&format!("{of} expanded"), hint, all, &parts)?;
        Ok(Some((made.into(), name)))
    }
}

/// The name of the variable that has what a replica has not sent yet of the gradient of a variable.
fn residual_of(replica: u32, variable: &str) -> String {
    format!("worker{replica}/residual/{variable}")
}

/// True if a variable of this name has what a replica has not sent yet of a gradient.
pub fn is_residual(name: &str) -> bool {
    let rest = name.strip_prefix("worker").and_then(|rest| rest.split_once("/residual/"));
    rest.is_some_and(|(replica, _)| replica.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_residual_is_known_by_its_name() {
        assert!(is_residual(&residual_of(12, "layer/weight")));
        for other in ["layer/weight", "worker/residual/w", "worker1/residual", "residual/w"] {
            assert!(!is_residual(other), "{other}");
        }
    }
}
