//! What a model is: a function from a scope to what its loss is made of.

use tensorwire_graph::{GraphError, Output};

use crate::scope::Scope;

/// A model, on samples that it knows.
pub trait Model {
    /// Adds one copy of the model to the scope's graph.
    ///
    /// # Errors
    /// When a layer's inputs do not fit it.
    fn forward(&self, scope: &mut Scope<'_>) -> Result<Outcome, GraphError>;
}

/// What a model makes of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// [rows, classes].
    pub logits: Output,
    /// i32[rows].
    pub labels: Output,
    /// More logits for the same labels, and how much they weigh in the loss, in training.
    pub auxiliary: Option<(Output, f64)>,
}
