//! Which part of an image a sample is: a random one for training, the middle for a test. Knows sizes, no pixels.

use tensorwire_nn::order::{RngCore, below};

/// The share of an image's area that a random part has at least, and the ratio of its width to its height (Szegedy et al.,
/// *Going Deeper with Convolutions*, 2015; `RandomResizedCrop` of torchvision has the same).
const SCALE: [f64; 2] = [0.08, 1.0];
const RATIO: [f64; 2] = [3.0 / 4.0, 4.0 / 3.0];
/// So often a part is drawn until one fits.
const DRAWS: usize = 10;
/// What is left of the short side of a test image when its middle is cut out: 224 of 256.
const KEPT: f64 = 224.0 / 256.0;

/// A part of an image in pixels, not all of them whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Part {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// A part of an image of `[width, height]`, and whether it is to be mirrored.
pub(super) fn random_part(size: [u32; 2], random: &mut impl RngCore) -> (Part, bool) {
    let part = drawn(size, random).unwrap_or_else(|| nearest_ratio(size));
    (part, random.next_u64() & 1 == 1)
}

fn drawn([width, height]: [u32; 2], random: &mut impl RngCore) -> Option<Part> {
    let area = f64::from(width) * f64::from(height);
    for _ in 0..DRAWS {
        let area = area * between(SCALE, random);
        let ratio = between(RATIO.map(f64::ln), random).exp();
        let wide = (area * ratio).sqrt().round();
        let high = (area / ratio).sqrt().round();
        if (1.0..=f64::from(width)).contains(&wide) && (1.0..=f64::from(height)).contains(&high) {
            // whole numbers, of which both are at most a u32
            let place = |room: u32, of: f64, random: &mut _| {
                below((room - of as u32) as usize + 1, random) as f64
            };
            let top = place(height, high, random);
            let left = place(width, wide, random);
            return Some(Part { left, top, width: wide, height: high });
        }
    }
    None
}

/// The largest part in the middle whose ratio is allowed.
fn nearest_ratio([width, height]: [u32; 2]) -> Part {
    let (width, height) = (f64::from(width), f64::from(height));
    let ratio = (width / height).clamp(RATIO[0], RATIO[1]);
    let wide = (height * ratio).round().clamp(1.0, width);
    let high = (width / ratio).round().clamp(1.0, height);
    middle([width, height], [wide, high])
}

/// What is left of an image of `[width, height]` for a sample of `wanted` when its short side is made a seventh longer than
/// that of the sample, and the middle is cut out.
pub(super) fn middle_part(size: [u32; 2], wanted: [u32; 2]) -> Part {
    let [width, height] = size.map(f64::from);
    let [wanted_width, wanted_height] = wanted.map(f64::from);
    // pixels of the image for each of the sample
    let scale = KEPT * (width / wanted_width).min(height / wanted_height);
    middle([width, height], [wanted_width * scale, wanted_height * scale])
}

fn middle([width, height]: [f64; 2], [wide, high]: [f64; 2]) -> Part {
    Part { left: (width - wide) / 2.0, top: (height - high) / 2.0, width: wide, height: high }
}

/// A random number between two.
fn between([least, most]: [f64; 2], random: &mut impl RngCore) -> f64 {
    // 53 bits, as many as an f64 has
    let unit = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    least + (most - least) * unit
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tensorwire_nn::order::random;

    #[test]
    fn the_middle_is_seven_eighths_of_the_short_side() {
        let part = middle_part([512, 256], [224, 224]);
        assert_eq!(part, Part { left: 144.0, top: 16.0, width: 224.0, height: 224.0 });
        let part = middle_part([100, 400], [50, 50]);
        assert_eq!((part.width, part.left), (87.5, 6.25));
        assert_eq!((part.height, part.top), (87.5, 156.25));
    }

    #[test]
    fn parts_have_any_allowed_size_and_every_second_is_mirrored() {
        let mut random = random(1, 0);
        let drawn: Vec<(Part, bool)> =
            (0..4000).map(|_| random_part([400, 300], &mut random)).collect();
        let shares: Vec<f64> = drawn.iter().map(|(p, _)| p.width * p.height / 120_000.0).collect();
        assert!(shares.iter().all(|share| (0.079..=1.0).contains(share)));
        assert!(shares.iter().any(|&share| share < 0.1) && shares.iter().any(|&share| share > 0.9));
        let ratios: Vec<f64> = drawn.iter().map(|(part, _)| part.width / part.height).collect();
        assert!(ratios.iter().all(|ratio| (0.74..1.35).contains(ratio)));
        // 2000 expected; five standard deviations of a binomial are 158
        let mirrored = drawn.iter().filter(|(_, mirrored)| *mirrored).count();
        assert!(mirrored.abs_diff(2000) < 158, "{mirrored}");
    }

    proptest! {
        #[test]
        fn every_part_lies_in_its_image(width in 1u32..5000, height in 1u32..5000, seed: u64) {
            let (part, _) = random_part([width, height], &mut random(seed, 0));
            let middle = middle_part([width, height], [224, 160]);
            for Part { left, top, width: wide, height: high } in [part, middle] {
                prop_assert!(left >= 0.0 && top >= 0.0 && wide > 0.0 && high > 0.0);
                prop_assert!(left + wide <= f64::from(width) + 1e-6);
                prop_assert!(top + high <= f64::from(height) + 1e-6);
            }
        }
    }
}
