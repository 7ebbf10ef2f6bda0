//! Lines of JSON as they were written. Knows where each stands, not what its numbers mean.

use serde_json::Value;

use crate::measure::{Between, Measure, Spread};
use crate::runs::RUN;

/// One measurement, as a benchmark wrote it.
#[derive(Clone, Debug)]
pub struct Line {
    file: String,
    number: usize,
    kind: Option<String>,
    value: Value,
}

/// What is no line of JSON.
#[derive(Debug, thiserror::Error)]
#[error(
    "{file}:{number} is no line of JSON: {cause}; give files that `tensorwire bench … --json FILE` or `tensorwire train \
     --metrics FILE` wrote, and remove a line that was cut off"
)]
pub struct LineError {
    file: String,
    number: usize,
    cause: serde_json::Error,
}

/// What a line of a known kind does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Lacks {
    #[error("no number `{0}`")]
    Number(&'static str),
    #[error("no text `{0}`")]
    Text(&'static str),
    #[error("no list `{0}`")]
    List(&'static str),
}

impl Line {
    /// All lines of `text`; empty ones are skipped. `file` is what errors call it.
    ///
    /// # Errors
    /// When a line is no JSON.
    pub fn read_all(file: &str, text: &str) -> Result<Vec<Line>, LineError> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        lines
            .map(|(index, line)| {
                let (file, number) = (file.to_string(), index + 1);
                match serde_json::from_str::<Value>(line) {
                    Ok(value) => {
                        let kind = value.get("bench").and_then(Value::as_str);
                        let kind = kind.or_else(|| is_of_run(&value).then_some(RUN));
                        Ok(Line { file, number, kind: kind.map(str::to_string), value })
                    }
                    Err(cause) => Err(LineError { file, number, cause }),
                }
            })
            .collect()
    }

    /// The file that it is of, as errors call it.
    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// What was measured, as the line itself says; [`RUN`] for one of a training run.
    pub(crate) fn kind(&self) -> Option<&str> {
        self.kind.as_deref()
    }

    /// `file:line`.
    pub(crate) fn place(&self) -> String {
        format!("{}:{}", self.file, self.number)
    }

    /// The number at a path such as `limit_ns.median`.
    pub(crate) fn number(&self, path: &'static str) -> Result<f64, Lacks> {
        self.optional_number(path).ok_or(Lacks::Number(path))
    }

    /// The same where the line may have none, or null.
    pub(crate) fn optional_number(&self, path: &str) -> Option<f64> {
        self.find(path).and_then(Value::as_f64)
    }

    /// A number that is whole and not negative, to its last digit.
    pub(crate) fn optional_whole(&self, path: &str) -> Option<u64> {
        self.find(path).and_then(Value::as_u64)
    }

    pub(crate) fn text(&self, path: &'static str) -> Result<&str, Lacks> {
        self.optional_text(path).ok_or(Lacks::Text(path))
    }

    pub(crate) fn optional_text(&self, path: &str) -> Option<&str> {
        self.find(path).and_then(Value::as_str)
    }

    /// Of a list, what of it is text.
    pub(crate) fn optional_texts(&self, path: &str) -> Vec<&str> {
        let list = self.find(path).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// Whatever is there, as JSON writes it; none where nothing is.
    pub(crate) fn shown(&self, path: &str) -> Option<String> {
        self.find(path).filter(|value| !value.is_null()).map(Value::to_string)
    }

    pub(crate) fn is_true(&self, path: &str) -> bool {
        self.find(path).and_then(Value::as_bool) == Some(true)
    }

    /// A list of numbers.
    pub(crate) fn numbers(&self, path: &'static str) -> Result<Vec<f64>, Lacks> {
        let list = self.find(path).and_then(Value::as_array);
        let numbers = list.and_then(|list| list.iter().map(Value::as_f64).collect());
        numbers.ok_or(Lacks::List(path))
    }

    /// The median at a path such as `limit_ns.median`, with what stands beside it: `p10`, `p90` and `count` of repetitions, or
    /// `min` and `max` of the line's `rounds`.
    pub(crate) fn quantiles(&self, path: &'static str) -> Result<Measure, Lacks> {
        let median = self.number(path)?;
        let beside = path.strip_suffix("median").unwrap_or(path);
        let number = |name: &str| self.optional_number(&format!("{beside}{name}"));
        Ok(match number("p10").zip(number("p90")) {
            Some(ends) => {
                Measure::new(median, Some(spread(Between::Percentiles, ends)), number("count"))
            }
            None => {
                let ends = number("min").zip(number("max"));
                let spread = ends.map(|ends| spread(Between::Rounds, ends));
                Measure::new(median, spread, self.optional_number("rounds"))
            }
        })
    }

    /// The median of seconds at a path, with the line's `p10_s`, `p90_s` and `repetitions`.
    pub(crate) fn seconds(&self, path: &'static str) -> Result<Measure, Lacks> {
        let ends = self.optional_number("p10_s").zip(self.optional_number("p90_s"));
        let spread = ends.map(|ends| spread(Between::Percentiles, ends));
        Ok(Measure::new(self.number(path)?, spread, self.optional_number("repetitions")))
    }

    /// A step of one process alone, with the percentiles of its steps where the line has them.
    pub(crate) fn local_seconds(&self) -> Result<Measure, Lacks> {
        self.step_beside("local_step_s", ["local_p10_s", "local_p90_s"])
    }

    /// A step that was measured beside a simulated one, so.
    pub(crate) fn measured_seconds(&self) -> Result<Measure, Lacks> {
        self.step_beside("measured_step_s", ["measured_p10_s", "measured_p90_s"])
    }

    fn step_beside(&self, median: &'static str, ends: [&str; 2]) -> Result<Measure, Lacks> {
        let [low, high] = ends.map(|end| self.optional_number(end));
        let spread = low.zip(high).map(|ends| spread(Between::Percentiles, ends));
        Ok(Measure::new(self.number(median)?, spread, None))
    }

    /// The median under a name, with the line's `p10_NAME` and `p90_NAME`, and how many there were.
    pub(crate) fn percentiles(&self, name: &'static str, count: &str) -> Result<Measure, Lacks> {
        let end = |tenths: &str| self.optional_number(&format!("{tenths}_{name}"));
        let spread = end("p10").zip(end("p90")).map(|ends| spread(Between::Percentiles, ends));
        Ok(Measure::new(self.number(name)?, spread, self.optional_number(count)))
    }

    /// The median of the line's `rounds`, with the least and the greatest where the line has them.
    pub(crate) fn of_rounds(
        &self,
        median: &'static str,
        ends: [&str; 2],
    ) -> Result<Measure, Lacks> {
        let [low, high] = ends.map(|end| self.optional_number(end));
        // one round has no spread
        let ends = low.zip(high).filter(|(low, high)| low < high);
        let spread = ends.map(|ends| spread(Between::Rounds, ends));
        Ok(Measure::new(self.number(median)?, spread, self.optional_number("rounds")))
    }

    /// All fields of the line itself, or of the summary that it is, if that is an object.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&str, &Value)> {
        let of = self.find("summary").unwrap_or(&self.value);
        of.as_object().into_iter().flatten().map(|(name, value)| (name.as_str(), value))
    }

    /// All texts of an object, by name; none if there is no object.
    pub(crate) fn texts_by_name(&self, path: &str) -> Vec<(String, String)> {
        let object = self.find(path).and_then(Value::as_object);
        let all = object.into_iter().flatten();
        all.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_string()))).collect()
    }

    /// All numbers of an object, by name; none if there is no object.
    pub(crate) fn numbers_by_name(&self, path: &str) -> Vec<(String, f64)> {
        let object = self.find(path).and_then(Value::as_object);
        let all = object.into_iter().flatten();
        all.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect()
    }

    fn find(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(&self.value, |value, name| value.get(name))
    }
}

fn spread(between: Between, (low, high): (f64, f64)) -> Spread {
    Spread { low, high, between }
}

/// True if it is a step of `train --metrics`, or the summary that ends them.
fn is_of_run(value: &Value) -> bool {
    let has = |name| value.get(name).is_some();
    ["step", "loss", "samples_per_second"].into_iter().all(has)
        || value.get("summary").is_some_and(Value::is_object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_was_cut_off_is_named() {
        let error = Line::read_all("a.jsonl", "{\"bench\":\"x\"}\n\n{\"bench\":\n").unwrap_err();
        assert!(error.to_string().starts_with("a.jsonl:3 is no line of JSON: "), "{error}");
    }

    #[test]
    fn numbers_are_found_by_their_path() {
        let text = r#"{"bench":"x","a":{"b":2},"n":null,"l":[1,2]}"#;
        let line = Line::read_all("a", text).unwrap().remove(0);
        assert_eq!((line.kind(), line.place().as_str()), (Some("x"), "a:1"));
        assert_eq!(line.number("a.b"), Ok(2.0));
        assert_eq!(line.number("n"), Err(Lacks::Number("n")));
        assert_eq!(line.numbers("l"), Ok(vec![1.0, 2.0]));
        assert_eq!(line.numbers("a"), Err(Lacks::List("a")));
    }

    #[test]
    fn spreads_are_found_beside_their_median() {
        let text = r#"{"a":{"count":9,"p10":1,"median":2,"p90":4},"b":{"median":2,"min":1,"max":3},"rounds":3,
            "median_s":2,"p10_s":1,"p90_s":8,"repetitions":7,"c":{"median":5}}"#;
        let line = Line::read_all("a", &text.replace('\n', "")).unwrap().remove(0);
        let of = |measure: Measure| {
            let ends = measure.spread.map(|it| (it.low, it.high, it.between));
            (measure.median, ends, measure.count)
        };
        let percentiles = |low, high| Some((low, high, Between::Percentiles));
        let (a, b) = (line.quantiles("a.median").unwrap(), line.quantiles("b.median").unwrap());
        assert_eq!(of(a), (2.0, percentiles(1.0, 4.0), Some(9.0)));
        assert_eq!(of(b), (2.0, Some((1.0, 3.0, Between::Rounds)), Some(3.0)));
        assert_eq!(of(line.seconds("median_s").unwrap()), (2.0, percentiles(1.0, 8.0), Some(7.0)));
        assert_eq!(of(line.quantiles("c.median").unwrap()), (5.0, None, Some(3.0)));
        assert_eq!(line.quantiles("d.median"), Err(Lacks::Number("d.median")));
        let text = r#"{"trip_us":2,"p10_trip_us":1,"p90_trip_us":8,"trips":7,"speed":5}"#;
        let line = Line::read_all("a", text).unwrap().remove(0);
        let trip = line.percentiles("trip_us", "trips").unwrap();
        assert_eq!(of(trip), (2.0, percentiles(1.0, 8.0), Some(7.0)));
        assert_eq!(of(line.percentiles("speed", "rounds").unwrap()), (5.0, None, None));
        assert_eq!(line.percentiles("none", "rounds"), Err(Lacks::Number("none")));
    }
}
