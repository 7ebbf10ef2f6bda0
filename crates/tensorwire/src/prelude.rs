//! What a program that trains a model of its own uses.

pub use tensorwire_graph::Placement;
pub use tensorwire_launch::Transport;
// with all that a layer of a scope is given
pub use tensorwire_nn::{
    self as nn, Averages, Batch, Cell, Comparison, CrossEntropy, DType, Data, Dataset, Description,
    HeadOrder, Init, LocalNorm, Mask, Mode, Model, Norm, Op, Optimizer, Output, Outputs, Padding,
    Recurrent, Sample, Schedule, Scope, Sequence, Stream, Task, Unary,
};
pub use tensorwire_train::{FinishedStep, FloatType, Kernels, StoreConfig, Summary, WireType};

pub use crate::Training;
pub use crate::strategies::{
    AllReduce, AsyncGroups, AsyncParameterServers, AsyncStore, ElasticAveraging, ElasticGroups,
    Groups, Local, ParameterServers, Store,
};

#[cfg(test)]
mod tests {
    // of nothing else, as in a program
    use crate::prelude::*;

    struct Net;

    impl Net {
        fn gate(s: &mut Scope<'_>, x: Output) -> nn::Result<Output> {
            let gate = s.parameter("gate", &[8], Init::Zeros)?;
            let gate = s.unary("gate/silu", Unary::Silu, gate)?;
            s.add("gated", x, gate)
        }
    }

    impl Model for Net {
        fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> nn::Result<Outputs> {
            let x = batch.input("image")?;
            let x = s.batch_norm("norm", x, Norm { scaled: false, ..Norm::default() })?;
            let x = s.local_response_norm("local", x, LocalNorm::default())?;
            let x = s.attention("look", [x, x, x], Mask::Causal, HeadOrder::Outer)?;
            let x = Net::gate(s, x)?;
            let x = s.flatten("flat", x)?;
            let logits = s.on(Task::server(0), |s| s.linear("output", x, 4))?;
            Ok(Outputs::classification(logits, batch.labels()?))
        }
    }

    #[test]
    fn a_model_takes_what_its_layers_are_given_from_the_prelude() {
        let described =
            Description::new().input("image", DType::F32, &[2, 4, 8]).labels("labels", 4);
        let program = nn::Program::new(&Net, &described, &nn::ProgramSpec::default()).unwrap();
        assert!(program.variables.iter().any(|variable| variable.name == "gate"));
    }
}
