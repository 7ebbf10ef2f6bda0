//! Where a value is along an axis, and which values have a tick.

use tensorwire_base::{human_bytes, human_seconds};

use crate::figure::{Axis, Scale, Unit};
use crate::numbers::without_zeros;

/// Ticks along an axis, at most.
const TICKS_MAX: usize = 7;

/// Values are one if they differ by less, of the greatest: numbers of 32 bits that became ones of 64 do.
const ALIKE: f64 = 1e-6;

/// An axis with its ends.
#[derive(Debug)]
pub(super) struct Scaled {
    axis: Axis,
    /// Logarithms, where the scale is one.
    low: f64,
    high: f64,
}

impl Scaled {
    /// Around all values. `from_zero`: zero is there, too, if the scale has it.
    pub(super) fn around(axis: Axis, values: impl Iterator<Item = f64>, from_zero: bool) -> Scaled {
        let transformed = values.map(|value| transform(axis.scale, value));
        let (mut low, mut high) = transformed
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        if from_zero && axis.scale == Scale::Linear {
            low = low.min(0.0);
        }
        if high - low <= high.abs() * ALIKE {
            // one value: in the middle, and told from 0
            let around = match axis.scale {
                Scale::Linear if high != 0.0 => high.abs() / 10.0,
                _ => 0.5,
            };
            (low, high) = (low - around, high + around);
        }
        Scaled { axis, low, high }
    }

    /// The same up to the next ticks.
    pub(super) fn widened(self) -> Scaled {
        let Scaled { axis, low, high } = self;
        let span = high - low;
        let (low, high) = match axis.scale {
            Scale::Log10 if span <= 2.0 => {
                let at = |decade: f64, digit: f64| decade + digit.log10();
                let down = |d: &f64| at(low.floor(), *d) <= low + 1e-9;
                let up = |d: &f64| at(high.floor(), *d) >= high - 1e-9;
                let first = [5.0, 2.0].into_iter().find(down).unwrap_or(1.0);
                let last = [1.0, 2.0, 5.0].into_iter().find(up).unwrap_or(10.0);
                (at(low.floor(), first), at(high.floor(), last))
            }
            scale => {
                let step = if scale == Scale::Linear { nice_step(span / 5.0) } else { 1.0 };
                ((low / step + 1e-9).floor() * step, (high / step - 1e-9).ceil() * step)
            }
        };
        Scaled { axis, low, high }
    }

    /// From 0 to 1.
    pub(super) fn at(&self, value: f64) -> f64 {
        (transform(self.axis.scale, value) - self.low) / (self.high - self.low)
    }

    /// With the digits that a step has.
    fn exactly(&self, value: f64, step: f64) -> (f64, String) {
        // fits: plots have steps of more than a nanosecond
        let digits = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
        (self.at(value), format!("{value:.digits$}"))
    }

    /// Where, and what is written there.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let tick = |value: f64| (self.at(value), label(self.axis.unit, value));
        let slack = (self.high - self.low) * 1e-6;
        let is_there = |at: f64| at >= self.low - slack && at <= self.high + slack;
        let range = |step: f64| {
            let (first, last) =
                ((self.low / step - 1e-6).ceil(), (self.high / step + 1e-6).floor());
            // fits: it is cut
            let count = (last - first + 1.0).clamp(0.0, 3.0 * TICKS_MAX as f64) as usize;
            (0..count).map(move |i| (first + i as f64) * step)
        };
        match self.axis.scale {
            Scale::Linear => {
                let step = nice_step((self.high - self.low) / 5.0);
                let ticks: Vec<_> = range(step).filter(|v| is_there(*v)).map(tick).collect();
                match ticks.windows(2).any(|two| two[0].1 == two[1].1) {
                    // three digits do not tell them apart
                    true => range(step)
                        .filter(|v| is_there(*v))
                        .map(|v| self.exactly(v, step))
                        .collect(),
                    false => ticks,
                }
            }
            Scale::Log10 if self.high - self.low <= 2.01 => {
                let decades = (0..=3).map(|decade| self.low.floor() + f64::from(decade));
                let digits = |decade: f64| [1.0, 2.0, 5.0].map(|d| d * 10_f64.powf(decade));
                let all = decades.flat_map(digits);
                all.filter(|v| is_there(v.log10())).map(tick).collect()
            }
            Scale::Log2 | Scale::Log10 => {
                let base: f64 = if self.axis.scale == Scale::Log2 { 2.0 } else { 10.0 };
                let stride =
                    ((self.high - self.low) / (TICKS_MAX - 1) as f64 - 1e-6).ceil().max(1.0);
                range(stride).map(|exponent| tick(base.powf(exponent))).collect()
            }
        }
    }
}

fn transform(scale: Scale, value: f64) -> f64 {
    match scale {
        Scale::Linear => value,
        Scale::Log2 => value.log2(),
        Scale::Log10 => value.log10(),
    }
}

/// 1, 2 or 5 times a power of ten, at least `rough`.
fn nice_step(rough: f64) -> f64 {
    let power = 10_f64.powf(rough.log10().floor());
    let digit = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * power >= rough * 0.999);
    digit.unwrap_or(10.0) * power
}

/// A value as people read it: `4 KiB`, `12.3 µs`, `1.2k`.
pub(crate) fn label(unit: Unit, value: f64) -> String {
    match unit {
        // fits: sizes are not negative, and of one tensor
        Unit::Bytes => human_bytes(value.round() as u64),
        Unit::Seconds if value == 0.0 => "0".to_string(),
        Unit::Seconds => {
            let text = human_seconds(value);
            let (digits, unit) = text.split_once(' ').unwrap_or((&text, ""));
            format!("{} {unit}", without_zeros(digits))
        }
        Unit::Plain => plain(value),
    }
}

/// Three digits that are no zeros in front.
fn plain(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        v if v >= 1e12 => return format!("{value:.2e}"),
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        v if v >= 100.0 => format!("{scaled:.0}"),
        v if v >= 10.0 => format!("{scaled:.1}"),
        v if v >= 1.0 || v == 0.0 => format!("{scaled:.2}"),
        v if v >= 0.1 => format!("{scaled:.3}"),
        v if v >= 1e-2 => format!("{scaled:.4}"),
        v if v >= 1e-3 => format!("{scaled:.5}"),
        _ => return format!("{value:.1e}"),
    };
    format!("{}{suffix}", without_zeros(&digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(scale: Scale, unit: Unit, values: &[f64]) -> Vec<String> {
        let axis = Axis { title: "", unit, scale };
        let scaled = Scaled::around(axis, values.iter().copied(), false).widened();
        assert!(values.iter().all(|value| (0.0..=1.0).contains(&scaled.at(*value))));
        scaled.ticks().into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round_and_few() {
        let sizes = ticks(Scale::Log2, Unit::Bytes, &[4096.0, (64 << 20) as f64]);
        assert_eq!(sizes.first().map(String::as_str), Some("4 KiB"));
        assert!(sizes.len() <= TICKS_MAX && sizes.contains(&"2 MiB".to_string()), "{sizes:?}");
        assert_eq!(
            ticks(Scale::Log10, Unit::Seconds, &[2e-6, 0.4]),
            ["1 µs", "10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s"]
        );
        assert_eq!(ticks(Scale::Log10, Unit::Plain, &[110.0, 480.0]), ["100", "200", "500"]);
        assert_eq!(
            ticks(Scale::Linear, Unit::Plain, &[0.0, 1.0]),
            ["0", "0.2", "0.4", "0.6", "0.8", "1"]
        );
        assert_eq!(ticks(Scale::Log2, Unit::Plain, &[1.0, 64.0]).len(), 7);
    }

    #[test]
    fn small_numbers_have_as_many_digits_as_others() {
        let labels = [0.123456, 0.0123456, 0.00123456, 0.002, 0.000123456];
        let labels = labels.map(|value| label(Unit::Plain, value));
        assert_eq!(labels, ["0.123", "0.0123", "0.00123", "0.002", "1.2e-4"]);
    }

    #[test]
    fn a_constant_is_in_the_middle_and_is_not_read_as_zero() {
        for value in [0.001, 0.1, 3.0, -0.02, 0.0] {
            // as 32 bits have it
            for values in [[value; 2], [value, f64::from(value as f32)]] {
                let axis = Axis { title: "", unit: Unit::Plain, scale: Scale::Linear };
                let scaled = Scaled::around(axis, values.into_iter(), false).widened();
                let at = scaled.at(value);
                assert!((0.3..=0.7).contains(&at), "{value}: {at}");
                let nearest = scaled
                    .ticks()
                    .into_iter()
                    .min_by(|(a, _), (b, _)| (a - at).abs().total_cmp(&(b - at).abs()));
                let (_, label) = nearest.unwrap();
                assert_eq!(label.parse::<f64>().unwrap() == 0.0, value == 0.0, "{value}: {label}");
            }
        }
    }

    #[test]
    fn one_value_and_extreme_ones_have_ticks_too() {
        assert!(!ticks(Scale::Linear, Unit::Plain, &[3.0]).is_empty());
        assert!(!ticks(Scale::Log10, Unit::Seconds, &[1e-300, 1e300]).is_empty());
        assert!(ticks(Scale::Log2, Unit::Bytes, &[1.0, 1e300]).len() <= TICKS_MAX);
        assert!(!ticks(Scale::Linear, Unit::Plain, &[0.0, 1e300]).is_empty());
    }
}
