//! Trains a model of its own on data of its own, with two workers: `cargo run --release --example train [STRATEGY [TRANSPORT]]`
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
            let noise = (seed * 2_654_435_761 ^ at * 40_503) % 1000;
            *pixel = f32::from(u8::from(stripe)) + noise as f32 / 1000.0 - 0.5;
        }
        sample.set_label("labels", class as i32)
    }
}

fn main() -> tensorwire::Result<()> {
    tensorwire::init()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let training = Training::new(Net, (Stripes(0..1024), Stripes(1024..1280)))
        .batch(16)
        .epochs(4)
        .kernels(Kernels::Cpu);
    let (workers, servers) = (2, 2);
    let training = match arguments.first().map_or("ps", String::as_str) {
        "local" => training.strategy(Local { replicas: workers }),
        "dist-sgd" => training.strategy(Store { workers, servers, ..Store::default() }),
        "allreduce" => training.strategy(AllReduce { workers, deterministic: true }),
        _ => training.strategy(ParameterServers { workers, servers }),
    };
    let tcp = arguments.get(1).is_some_and(|transport| transport == "tcp");
    let training = if tcp { training.transport(Transport::Tcp) } else { training };
    let summary = training.run()?;
    println!("test accuracy {:.3}", summary.test_accuracy.unwrap_or_default());
    println!("weights {}", summary.weights_sha256);
    Ok(())
}
