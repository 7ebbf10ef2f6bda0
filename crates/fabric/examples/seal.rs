//! What sealing costs: the time of a header of TCP and of a record of payload, at both ends together.
//!
//! ```text
//! cargo run --release -p tensorwire-fabric --example seal
//! ```

// an example speaks to whoever runs it
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::time::Instant;

use tensorwire_fabric::seal::{Forged, Opener, Sealer, TAG_BYTES};

/// Of a header, and of a record of payload.
const SIZES: [usize; 2] = [64, 64 << 10];
/// How long a batch takes, about, and how many there are.
const BATCH_BYTES: usize = 8 << 20;
const BATCHES: usize = 200;

/// Nanoseconds of each batch for sealing a frame and opening it.
fn batch(frame: &mut [u8], sealer: &mut Sealer, opener: &mut Opener) -> Result<f64, Forged> {
    let frames = (BATCH_BYTES / (frame.len() + TAG_BYTES * 8)).max(1);
    let begun = Instant::now();
    for _ in 0..frames {
        let tag = sealer.seal(&[], black_box(frame));
        opener.open(&[], black_box(frame), &tag)?;
    }
    Ok(begun.elapsed().as_secs_f64() * 1e9 / frames as f64)
}

fn main() -> Result<(), Forged> {
    for bytes in SIZES {
        let (mut sealer, mut opener) = (Sealer::new(&[7; 32]), Opener::new(&[7; 32]));
        let mut frame = vec![9; bytes];
        let times: Result<Vec<f64>, Forged> =
            (0..BATCHES).map(|_| batch(&mut frame, &mut sealer, &mut opener)).collect();
        let mut times = times?;
        times.sort_by(f64::total_cmp);
        println!(
            "{bytes} bytes: sealed and opened in {:.0} ns (median of {BATCHES}; least {:.0})",
            times[BATCHES / 2],
            times[0]
        );
    }
    Ok(())
}
