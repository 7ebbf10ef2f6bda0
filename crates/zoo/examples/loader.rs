//! Samples a second that are made of a folder of images, and nothing else: what training can be fed with.
//!
//! ```sh
//! cargo run --release -p tensorwire-zoo --example loader -- FOLDER [THREADS [SIDE]]
//! cargo run --release -p tensorwire-zoo --example loader -- --make FOLDER [SIDE]
//! ```
//!
//! The first reads a folder as `--data images:FOLDER` does, in batches of 32, each thread steps of its own, as training does. The second
//! makes a folder of 500 images to try it with.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // what fails ends the example

use std::path::Path;
use std::time::Instant;

use tensorwire_nn::{BatchMemory, Batches, HostBatch};
use tensorwire_zoo::data::{SampleKind, Source};

#[path = "../tests/zoo/made_images.rs"]
mod made_images;

const BATCH: usize = 32;
/// A first round to warm up, and those of which the median counts.
const ROUNDS: usize = 6;
/// Steps of each thread in a round.
const STEPS: u64 = 4;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, default: usize| {
        arguments.get(place).map_or(default, |text| text.parse().unwrap())
    };
    match arguments.first().map(String::as_str) {
        Some("--make") => {
            // fits: pixels
            made_images::write(Path::new(&arguments[1]), 10, 50, number(2, 400) as u32);
        }
        Some(folder) => measure(folder, number(1, 1).max(1), number(2, 224)),
        None => println!("loader FOLDER [THREADS [SIDE]] | loader --make FOLDER [SIDE]"),
    }
}

fn measure(folder: &str, threads: usize, side: usize) {
    let kind = SampleKind::Images { dims: [side, side, 3], classes: 1000 };
    let source: Source = format!("images:{folder}").parse().unwrap();
    let data = source.open(kind, 1).unwrap();
    let samples = data.train.samples().unwrap();
    let batches = Batches::new(data.train, 1, BATCH.min(samples), 1).unwrap();
    let mut rates: Vec<f64> = (0..ROUNDS).map(|round| rate(&batches, threads, round)).collect();
    rates.remove(0);
    rates.sort_by(f64::total_cmp);
    let (least, median, most) = (rates[0], rates[rates.len() / 2], rates[rates.len() - 1]);
    println!(
        "{samples} images, {side}×{side}, {threads} threads: {median:.0} samples/s ({least:.0} to {most:.0})"
    );
}

/// Samples a second of one round, each thread making steps of its own.
fn rate(batches: &Batches, threads: usize, round: usize) -> f64 {
    let started = Instant::now();
    let made: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                let mut batches = batches.clone();
                // fits: few
                let first = ((round * threads + thread) as u64) * STEPS;
                scope.spawn(move || {
                    let mut batch = HostBatch::new();
                    let memory: &mut dyn BatchMemory = &mut batch;
                    (first..first + STEPS)
                        .map(|step| batches.fill(step, 0, memory).unwrap().samples)
                        .sum::<usize>()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    made as f64 / started.elapsed().as_secs_f64()
}
