//! Trains a model of its own on data of its own, with two workers:
//! `cargo run --release -p tensorwire --example train [STRATEGY [TRANSPORT]]`
#![allow(clippy::print_stdout)] // a program for people
use tensorwire::prelude::*;

/// Two convolutions and a classifier.
struct Net;

impl Model for Net {
    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> nn::Result<Outputs> {
        let y = s.conv_relu("conv1", batch.input("image")?, 8, 3, 1, Padding::Same)?;
        let y = s.max_pool("pool1", y, 2, 2, Padding::Valid)?;
        let y = s.conv_relu("conv2", y, 16, 3, 1, Padding::Same)?;
        let y = s.global_avg_pool("pool2", y)?;
        let logits = s.linear("output", y, batch.classes()?)?;
        Ok(Outputs::classification(logits, batch.labels()?))
    }
}

/// Images of 12×12 with noisy stripes: upright, level, or along a diagonal.
struct Stripes(std::ops::Range<usize>);

impl Dataset for Stripes {
    fn describe(&self) -> Description {
        Description::new().input("image", DType::F32, &[12, 12, 1]).labels("labels", 4)
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize, sample: &mut Sample<'_>) -> nn::Result<()> {
        let (seed, class) = (self.0.start + index, index % 4);
        for (at, pixel) in sample.values::<f32>("image")?.iter_mut().enumerate() {
            let (row, column) = (at / 12 + seed / 4, at % 12);
            let stripe = [column, row, row + column, row + 12 - column % 12][class] % 4 < 2;
            let noise = ((seed * 2_654_435_761) ^ (at * 40_503)) % 1000;
            *pixel = f32::from(u8::from(stripe)) + noise as f32 / 1000.0 - 0.5;
        }
        sample.set_label("labels", class as i32)
    }
}

fn main() -> tensorwire::Result<()> {
    tensorwire::init()?;
    let argument = |at| std::env::args().nth(at).unwrap_or_default();
    let training = Training::new(Net, (Stripes(0..1024), Stripes(1024..1280)))
        .transport(if argument(2) == "tcp" { Transport::Tcp } else { Transport::Auto })
        .kernels(Kernels::Cpu)
        .batch(16)
        .epochs(4);
    // where `bench/link.sh --plain -- PROGRAM` has made hosts, on these
    let training = match (std::env::var("LINK_HOSTS"), std::env::var("LINK_RSH")) {
        (Ok(hosts), Ok(shell)) => training.hosts(hosts.split(',')).remote_shell(&shell),
        _ => training,
    };
    let training = match argument(1).as_str() {
        "local" => training.strategy(Local { replicas: 2 }),
        "dist-sgd" => training.strategy(Store { workers: 2, servers: 2, ..Store::default() }),
        "allreduce" => training.strategy(AllReduce { workers: 2, deterministic: true }),
        _ => training.strategy(ParameterServers { workers: 2, servers: 2 }),
    };
    let Summary { test_accuracy, weights_sha256, .. } = training.run()?;
    println!("test accuracy {:.3}\nweights {weights_sha256}", test_accuracy.unwrap_or_default());
    Ok(())
}
