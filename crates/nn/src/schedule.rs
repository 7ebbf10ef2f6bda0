//! Schedules of the learning rate: what it is multiplied by in each step.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The rate of each step, as a factor of the optimizer's: a warm-up, and then a curve.
///
/// ```
/// use tensorwire_nn::Schedule;
///
/// // up to the full rate in 500 steps, and down to a tenth of it at the end
/// let schedule = Schedule::cosine(0.1).warm_up(500);
/// assert_eq!(schedule.factor(250, 10_000), 0.5);
/// assert_eq!(schedule.factor(501, 10_000), 1.0);
/// assert_eq!(schedule, "cosine:0.1".parse::<Schedule>()?.warm_up(500));
/// # Ok::<(), tensorwire_nn::ScheduleError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    #[serde(default)]
    pub curve: RateCurve,
    /// Steps in which the factor grows to 1, the same in each (Goyal et al. 2017).
    #[serde(default)]
    pub warm_up: u64,
}

/// What follows the warm-up. t counts the steps behind it, from 0; n is how many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RateCurve {
    /// 1.
    #[default]
    Constant,
    /// factor^⌊t/every⌋.
    Step { every: u64, factor: f64 },
    /// factor^t.
    Exponential { factor: f64 },
    /// From 1 down to `least` along a line: 1 − (1 − least)·t/n.
    Linear { least: f64 },
    /// From 1 down to `least` along half a cosine: least + (1 − least)·(1 + cos(πt/n))/2 (Loshchilov and Hutter 2017).
    Cosine { least: f64 },
}

/// What is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{given}' is no schedule: {why}; give constant, step:EVERY,FACTOR, exponential:FACTOR, linear[:LEAST] or \
     cosine[:LEAST], such as step:1000,0.1 or cosine:0.1"
)]
pub struct ScheduleError {
    given: String,
    why: String,
}

impl Schedule {
    /// The optimizer's own rate in every step.
    pub fn constant() -> Schedule {
        RateCurve::Constant.into()
    }

    /// Multiplied by `factor` every `every` steps.
    pub fn step(every: u64, factor: f64) -> Schedule {
        RateCurve::Step { every, factor }.into()
    }

    /// Multiplied by `factor` after each step.
    pub fn exponential(factor: f64) -> Schedule {
        RateCurve::Exponential { factor }.into()
    }

    /// Along a line from 1 to `least` at the end of the training.
    pub fn linear(least: f64) -> Schedule {
        RateCurve::Linear { least }.into()
    }

    /// Along half a cosine from 1 to `least` at the end of the training.
    pub fn cosine(least: f64) -> Schedule {
        RateCurve::Cosine { least }.into()
    }

    /// It behind so many steps of warm-up.
    pub fn warm_up(self, steps: u64) -> Schedule {
        Schedule { warm_up: steps, ..self }
    }

    /// True if all steps have the same rate.
    pub fn is_constant(self) -> bool {
        self == Schedule::constant()
    }

    /// The factor of step `step`, from 1, of `steps`.
    pub fn factor(self, step: u64, steps: u64) -> f64 {
        if step <= self.warm_up {
            // fits: steps are far below 2^53, here and below
            return step as f64 / self.warm_up as f64;
        }
        let behind = step.saturating_sub(1 + self.warm_up);
        let all = steps.saturating_sub(self.warm_up).max(1);
        let share = (behind as f64 / all as f64).min(1.0);
        match self.curve {
            RateCurve::Constant => 1.0,
            RateCurve::Step { every, factor } => factor.powf((behind / every.max(1)) as f64),
            RateCurve::Exponential { factor } => factor.powf(behind as f64),
            RateCurve::Linear { least } => 1.0 - (1.0 - least) * share,
            RateCurve::Cosine { least } => {
                least + (1.0 - least) * (1.0 + (std::f64::consts::PI * share).cos()) / 2.0
            }
        }
    }

    /// Checks that all factors are positive numbers, or 0.
    ///
    /// # Errors
    /// The first parameter that is out of its range.
    pub fn check(self) -> Result<(), ScheduleError> {
        let refuse = |why: String| Err(ScheduleError { given: self.to_string(), why });
        match self.curve {
            RateCurve::Step { every: 0, .. } => refuse("EVERY is at least 1".to_string()),
            RateCurve::Step { factor, .. } | RateCurve::Exponential { factor }
                if !(factor.is_finite() && factor > 0.0) =>
            {
                refuse(format!("FACTOR is a positive number, not {factor}"))
            }
            RateCurve::Linear { least } | RateCurve::Cosine { least }
                if !(0.0..=1.0).contains(&least) =>
            {
                refuse(format!("LEAST is from 0 to 1, not {least}"))
            }
            _ => Ok(()),
        }
    }
}

impl From<RateCurve> for Schedule {
    fn from(curve: RateCurve) -> Schedule {
        Schedule { curve, warm_up: 0 }
    }
}

impl FromStr for Schedule {
    type Err = ScheduleError;

    /// Reads what [`Schedule`] shows, without the warm-up.
    fn from_str(text: &str) -> Result<Schedule, ScheduleError> {
        let refuse = |why: &str| ScheduleError { given: text.to_string(), why: why.to_string() };
        let (name, given) = text.split_once(':').unwrap_or((text, ""));
        let numbers: Vec<f64> = given
            .split(',')
            .filter(|number| !number.is_empty())
            .map(|number| {
                let parsed = number.trim().parse();
                parsed.map_err(|_| refuse(&format!("'{number}' is no number")))
            })
            .collect::<Result<_, _>>()?;
        let schedule = match (name, &numbers[..]) {
            ("constant", []) => Schedule::constant(),
            ("step", &[every, factor]) if every.fract() == 0.0 && every >= 0.0 => {
                // a whole number, cut off where it is larger than any step
                Schedule::step(every as u64, factor)
            }
            ("exponential", &[factor]) => Schedule::exponential(factor),
            ("linear", []) => Schedule::linear(0.0),
            ("linear", &[least]) => Schedule::linear(least),
            ("cosine", []) => Schedule::cosine(0.0),
            ("cosine", &[least]) => Schedule::cosine(least),
            ("constant" | "step" | "exponential" | "linear" | "cosine", _) => {
                return Err(refuse("it has other numbers than these"));
            }
            _ => return Err(refuse("it has none of their names")),
        };
        schedule.check()?;
        Ok(schedule)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.curve {
            RateCurve::Constant => write!(f, "constant"),
            RateCurve::Step { every, factor } => write!(f, "step:{every},{factor}"),
            RateCurve::Exponential { factor } => write!(f, "exponential:{factor}"),
            RateCurve::Linear { least } => write!(f, "linear:{least}"),
            RateCurve::Cosine { least } => write!(f, "cosine:{least}"),
        }?;
        match self.warm_up {
            0 => Ok(()),
            steps => write!(f, " behind {steps} steps of warm-up"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factors(text: &str, warm_up: u64, steps: u64) -> Vec<f64> {
        let schedule = text.parse::<Schedule>().unwrap().warm_up(warm_up);
        (1..=steps).map(|step| schedule.factor(step, steps)).collect()
    }

    #[test]
    fn factors_are_those_of_the_formulas() {
        assert_eq!(factors("constant", 0, 3), [1.0; 3]);
        assert_eq!(factors("constant", 2, 4), [0.5, 1.0, 1.0, 1.0]);
        assert_eq!(factors("step:2,0.5", 0, 5), [1.0, 1.0, 0.5, 0.5, 0.25]);
        assert_eq!(factors("exponential:0.5", 1, 4), [1.0, 1.0, 0.5, 0.25]);
        assert_eq!(factors("linear:0.5", 0, 4), [1.0, 0.875, 0.75, 0.625]);
        assert_eq!(factors("linear", 2, 6), [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]);
        let cosine = factors("cosine:0.5", 0, 4);
        let half = std::f64::consts::FRAC_1_SQRT_2;
        let wanted = [1.0, 0.75 + half / 4.0, 0.75, 0.75 - half / 4.0];
        let far = cosine.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(far < 1e-15, "{cosine:?}");
        // behind the end it stays as it is
        assert_eq!(Schedule::cosine(0.25).factor(1000, 10), 0.25);
        assert_eq!(Schedule::linear(0.25).factor(7, 0), 0.25);
    }

    #[test]
    fn what_is_written_is_read_again_and_what_is_none_is_said() {
        for text in ["constant", "step:10,0.1", "exponential:0.99", "linear:0.5", "cosine:0"] {
            assert_eq!(text.parse::<Schedule>().unwrap().to_string(), text);
        }
        for (text, why) in [
            ("cosin", "none of their names"),
            ("step:10", "other numbers"),
            ("step:0,0.1", "EVERY is at least 1"),
            ("step:1.5,0.1", "other numbers"),
            ("exponential:-1", "FACTOR is a positive number, not -1"),
            ("exponential:x", "'x' is no number"),
            ("linear:2", "LEAST is from 0 to 1, not 2"),
            ("cosine:NaN", "LEAST is from 0 to 1, not NaN"),
        ] {
            let error = text.parse::<Schedule>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("give constant, step:"), "{error}");
        }
    }
}
