//! A model that is cut over two processes: one holds the first layers, the other the rest, and each has only its own
//! weights. A third process has the data and the loss: `cargo run --release -p tensorwire --example model_parallel`
#![allow(clippy::print_stdout)] // a program for people

use tensorwire::prelude::*;
use tensorwire::zoo::data::{SampleKind, Source};

/// A perceptron whose halves are on two tasks; only activations and their gradients cross.
struct Halves;

impl Model for Halves {
    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> nn::Result<Outputs> {
        let x = s.flatten("input", batch.input("input")?)?;
        let y = s.on(Task::server(0), |s| {
            let y = s.linear_relu("first", x, 512)?;
            s.linear_relu("second", y, 512)
        })?;
        let logits = s.on(Task::server(1), |s| {
            let y = s.linear_relu("third", y, 512)?;
            s.linear("output", y, 10)
        })?;
        Ok(Outputs::classification(logits, batch.labels()?))
    }
}

fn main() -> tensorwire::Result<()> {
    tensorwire::init()?;
    let source: Source = "digits".parse().map_err(nn::Error::other)?;
    let digits = SampleKind::Images { dims: [8, 8, 1], classes: 10 };
    let data = source.open(digits, 1).map_err(nn::Error::other)?;
    let alone = std::env::args().nth(1).is_some_and(|strategy| strategy == "local");
    let training = Training::new(Halves, data).batch(32).epochs(8);
    let training = match alone {
        true => training.strategy(Local { replicas: 1 }),
        false => training.strategy(ParameterServers { workers: 1, servers: 2 }),
    };
    let summary = training.run()?;
    println!("test accuracy {:.3}", summary.test_accuracy.unwrap_or_default());
    println!("weights {}", summary.weights_sha256);
    Ok(())
}
