//! Rows of lines: what tells one measurement from another, and its numbers.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::Value;
use tensorwire_base::human_bytes;

use crate::figure::{Better, Unit};
use crate::line::{Lacks, Line};
use crate::measure::Measure;
use crate::origin::Origin;
use crate::runs::RUN;

/// Of one or several lines that measured the same.
#[derive(Debug)]
pub(super) struct Row {
    /// Equal for what is the same.
    pub(super) key: String,
    /// For people.
    pub(super) name: String,
    pub(super) unit: Unit,
    pub(super) better: Better,
    /// Of a training run, and what comes of its seed, too.
    pub(super) is_of_run: bool,
    pub(super) is_learned: bool,
    /// In the order of the lines.
    pub(super) measured: Vec<Measured>,
}

/// What a line says of a row.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) measure: Measure,
    /// How long what the machine itself can do took beside it: a memcpy of as many bytes, or their way over the loopback.
    pub(super) limit_ns: Option<f64>,
    /// Of a training run, whose first weights and order of samples are the seed's.
    pub(super) seed: Option<u64>,
    pub(super) origin: Option<Rc<Origin>>,
}

/// A number of a kind of line.
struct Quantity {
    kinds: &'static [&'static str],
    name: &'static str,
    unit: Unit,
    better: Better,
    /// Another seed has another.
    is_learned: bool,
    take: fn(&Line) -> Result<Measure, Lacks>,
}

const fn time(
    kinds: &'static [&'static str],
    name: &'static str,
    take: fn(&Line) -> Result<Measure, Lacks>,
) -> Quantity {
    Quantity { kinds, name, unit: Unit::Seconds, better: Better::Lower, is_learned: false, take }
}

/// Of a training run that came to its end.
const fn of_run(
    name: &'static str,
    better: Better,
    take: fn(&Line) -> Result<Measure, Lacks>,
) -> Quantity {
    Quantity { kinds: &[RUN], name, unit: Unit::Plain, better, is_learned: false, take }
}

const fn learned(
    name: &'static str,
    better: Better,
    take: fn(&Line) -> Result<Measure, Lacks>,
) -> Quantity {
    Quantity { is_learned: true, ..of_run(name, better, take) }
}

/// What is called so of a training run. The one has a spread, and the other counts how the job began, too.
const STEP: &str = "step";
const RATE: &str = "samples/s";
/// What a step of a training run took.
const STEP_MS: &str = "summary.step_ms.median";

/// What is compared. A line has those that it has the numbers of.
const QUANTITIES: &[Quantity] = &[
    time(&["transfer"], "end to end", |line| {
        Ok(line.quantiles("end_to_end_ns.median")?.scaled(1e-9))
    }),
    time(&["transfer"], "transfer", |line| Ok(line.quantiles("transfer_ns.median")?.scaled(1e-9))),
    time(&["write"], "round trip", |line| {
        Ok(line.percentiles("round_trip_us", "round_trips")?.scaled(1e-6))
    }),
    Quantity {
        kinds: &["write"],
        name: "bytes/s",
        unit: Unit::Plain,
        better: Better::Higher,
        is_learned: false,
        take: |line| line.percentiles("bytes_per_second", "rounds"),
    },
    time(&["step"], "step", |line| Ok(line.quantiles("ps_ms.median")?.scaled(1e-3))),
    time(&["step"], "step alone", |line| match line.optional_number("ps_ms.median") {
        // said again beside every way of exchanging
        Some(_) => Err(Lacks::Number("ps_ms.median")),
        None => Ok(line.quantiles("local_ms.median")?.scaled(1e-3)),
    }),
    time(&["pytorch-step"], "step alone", |line| {
        let ms = line.of_rounds("tensorwire_ms", ["tensorwire_min_ms", "tensorwire_max_ms"])?;
        Ok(ms.scaled(1e-3))
    }),
    time(
        &["throughput", "scaling", "gpudirect", "links", "links-simulated", "epoch", "nodes"],
        "step",
        |line| line.seconds("step_s"),
    ),
    time(&["simulate"], "step", |line| Ok(line.number("step_s")?.into())),
    time(&["kvstore"], "push and pull", |line| line.seconds("median_s")),
    time(&["allreduce", "gpu-allreduce"], "operation", |line| line.seconds("median_s")),
    time(&["modes"], "epoch", |line| match line.number("epoch")? {
        // before the first there was none
        epoch if epoch > 0.0 => line.percentiles("epoch_seconds", "repetitions"),
        _ => Err(Lacks::Number("epoch_seconds")),
    }),
    time(&["peers-transfer"], "end to end", |line| {
        Ok(line.quantiles("tensorwire_end_to_end_ns.median")?.scaled(1e-9))
    }),
    time(&["peers-kvstore", "peers-allreduce"], "tensorwire", |line| {
        line.quantiles("tensorwire_s.median")
    }),
    time(&["peer-step"], "step", |line| Ok(line.percentiles("step_ms", "rounds")?.scaled(1e-3))),
    Quantity {
        unit: Unit::Seconds,
        ..of_run(STEP, Better::Lower, |line| Ok(line.quantiles(STEP_MS)?.scaled(1e-3)))
    },
    of_run(RATE, Better::Higher, |line| Ok(line.number("summary.samples_per_second")?.into())),
    learned("final loss", Better::Lower, |line| Ok(line.number("summary.final_loss")?.into())),
    learned("test loss", Better::Lower, |line| Ok(line.number("summary.test_loss")?.into())),
    learned("test accuracy", Better::Higher, |line| {
        Ok(line.number("summary.test_accuracy")?.into())
    }),
    Quantity {
        unit: Unit::Bytes,
        ..of_run("peak memory", Better::Lower, |line| Ok(line.number("summary.peak_bytes")?.into()))
    },
];

/// Numbers that say what was measured, as `--bytes` would, in the order of names, with their words.
const SETTINGS: &[(&str, &str)] = &[
    ("bytes", ""),
    ("workers", "workers"),
    ("servers", "servers"),
    ("clients", "clients"),
    ("ranks", "ranks"),
    ("devices", "devices"),
    ("vectors", "vectors at once"),
    ("devices_per_worker", "devices a worker"),
    ("hosts", "hosts"),
    ("threads", "threads"),
    ("batch", "a batch"),
    ("steps", "steps"),
    ("interval", "steps apart"),
    ("window", "under way"),
];

/// What goes without saying in a name.
const USUAL: &[(&str, &str)] = &[
    ("system", "tensorwire"),
    ("collective", "all-reduce"),
    ("dtype", "f32"),
    ("sizes", "static"),
    ("devices", "1"),
    ("hosts", "1"),
    ("wire", "f32"),
    ("devices_per_worker", "1"),
];

/// Texts and truths that say how it went, or where.
const RESULTS: &[&str] = &[
    "bench",
    "kernels",
    "limit",
    "verified",
    "bottleneck",
    "commit",
    "version",
    "weights_sha256",
    "date",
    "case",
    "device_steps",
];

/// All rows, in the order of their first lines. What has no number to compare is none.
pub(super) fn rows(lines: &[Line]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for line in lines {
        let Some(kind) = line.kind() else { continue };
        let origin = Origin::of(line);
        let limit_ns =
            line.optional_number("limit_ns.median").or_else(|| line.optional_number("limit_ns"));
        let limit_ns = limit_ns.filter(|limit_ns| *limit_ns > 0.0);
        let seed = line.optional_whole("summary.seed");
        for quantity in QUANTITIES.iter().filter(|one| one.kinds.contains(&kind)) {
            let measure = (quantity.take)(line).ok();
            let is_usable = |it: &Measure| it.median.is_finite() && it.median > 0.0;
            let Some(measure) = measure.filter(is_usable) else { continue };
            let (key, name) = identity(kind, quantity, line);
            let measured = Measured { measure, limit_ns, seed, origin: origin.clone() };
            let place = *places.entry(key.clone()).or_insert(rows.len());
            match rows.get_mut(place) {
                Some(row) => row.measured.push(measured),
                None => {
                    let Quantity { unit, better, is_learned, .. } = *quantity;
                    let (is_of_run, measured) = (kind == RUN, vec![measured]);
                    let row = Row { key, name, unit, better, is_of_run, is_learned, measured };
                    rows.push(row);
                }
            }
        }
    }
    rows
}

/// Leaves out how many samples a second training runs made where each of both sides says what a step of it took, which says more:
/// lines of earlier versions do not.
pub(super) fn without_rates(rows: &mut Vec<Row>, other: &[Row]) {
    let names = |name: &str| serde_json::Value::from(name).to_string();
    let (rate, step) = (names(RATE), names(STEP));
    let count = |rows: &[Row], key: &str| {
        rows.iter().find(|row| row.key == key).map_or(0, |row| row.measured.len())
    };
    let is_said_twice = |row: &Row, rows: &[Row]| {
        let key = row.key.replacen(&rate, &step, 1);
        let has_steps = |rows: &[Row]| {
            let steps = count(rows, &key);
            steps > 0 && steps >= count(rows, &row.key)
        };
        key != row.key && has_steps(rows) && has_steps(other)
    };
    let said: Vec<bool> =
        rows.iter().map(|row| row.is_of_run && is_said_twice(row, rows)).collect();
    let mut said = said.into_iter();
    rows.retain(|_| !said.next().unwrap_or_default());
}

/// All that says what was measured: the key has the names of fields, the name their values.
fn identity(kind: &str, quantity: &Quantity, line: &Line) -> (String, String) {
    let mut fields: Vec<(usize, &str, String, String)> = Vec::new();
    // what a table chose is a result
    let is_chosen = |name: &str| name == "algorithm" && line.is_true("by_table");
    for (name, value) in line.fields() {
        if RESULTS.contains(&name) || is_chosen(name) {
            continue;
        }
        match value {
            Value::String(text) => fields.push((0, name, text.clone(), text.clone())),
            Value::Bool(is_so) => {
                let shown = if *is_so { name.replace('_', " ") } else { String::new() };
                fields.push((2, name, is_so.to_string(), shown));
            }
            Value::Number(number) => {
                let Some(at) = SETTINGS.iter().position(|(setting, _)| *setting == name) else {
                    continue;
                };
                let shown = match (name, number.as_u64()) {
                    ("bytes", Some(bytes)) => human_bytes(bytes),
                    (_, Some(1)) => format!("1 {}", SETTINGS[at].1.trim_end_matches('s')),
                    _ => format!("{number} {}", SETTINGS[at].1),
                };
                fields.push((3 + at, name, number.to_string(), shown));
            }
            Value::Null | Value::Array(_) | Value::Object(_) => {}
        }
    }
    fields.sort();
    // as JSON, in which no text of a field can pass for another field
    let key: Vec<(&str, &str)> =
        fields.iter().map(|(_, name, value, _)| (*name, value.as_str())).collect();
    let key = serde_json::json!([kind, quantity.name, key]).to_string();
    // a worker by itself is a client
    let workers =
        fields.iter().find(|(_, name, ..)| *name == "workers").map(|(_, _, value, _)| value);
    let is_told = |(_, name, value, shown): &&(usize, &str, String, String)| {
        let is_said = *name == "clients" && Some(value) == workers;
        !shown.is_empty() && !is_said && !USUAL.contains(&(*name, value.as_str()))
    };
    let shown = fields.iter().filter(is_told).map(|(.., shown)| shown.as_str());
    let shown: Vec<&str> = std::iter::once(kind).chain(shown).collect();
    (key, format!("{}: {}", shown.join(", "), quantity.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<Row> {
        rows(&Line::read_all("a", text).unwrap())
    }

    #[test]
    fn rows_are_told_apart_by_what_was_asked_for_not_by_how_it_went() {
        let line = |bytes: u32, more: &str| {
            format!(
                "{{\"bench\":\"allreduce\",\"transport\":\"tcp\",\"ranks\":2,\"bytes\":{bytes},\"by_table\":true,\
                 \"median_s\":1,{more}}}\n"
            )
        };
        let rows = of(&(line(4096, "\"algorithm\":\"ring\",\"bytes_sent\":1,\"verified\":true")
            + &line(4096, "\"algorithm\":\"direct\",\"bytes_sent\":2,\"verified\":false")
            + &line(8192, "\"algorithm\":\"direct\"")
            + &line(8192, "\"dtype\":\"bf16\"")));
        let names: Vec<(&str, usize)> =
            rows.iter().map(|row| (row.name.as_str(), row.measured.len())).collect();
        assert_eq!(
            names,
            [
                ("allreduce, tcp, by table, 4 KiB, 2 ranks: operation", 2),
                ("allreduce, tcp, by table, 8 KiB, 2 ranks: operation", 1),
                ("allreduce, bf16, tcp, by table, 8 KiB, 2 ranks: operation", 1),
            ]
        );
    }

    #[test]
    fn training_runs_have_rows_of_their_summaries_whatever_their_seed_and_rate() {
        let run = |seed: u32, loss: f64| {
            format!(
                "{{\"step\":1,\"loss\":3}}\n{{\"summary\":{{\"model\":\"mlp\",\"strategy\":\"ps\",\"workers\":2,\
                 \"clients\":2,\"wire\":\"f32\",\"async\":false,\"seed\":{seed},\"rate\":{seed},\"final_loss\":{loss},\
                 \"test_accuracy\":null,\"samples_per_second\":9,\"peak_bytes\":4096,\"machine\":{{\"cores\":2}}}}}}\n"
            )
        };
        let rows = of(&(run(1, 0.5) + &run(2, 0.25)));
        let names: Vec<(&str, usize)> =
            rows.iter().map(|row| (row.name.as_str(), row.measured.len())).collect();
        assert_eq!(
            names,
            [
                ("train, mlp, ps, 2 workers: samples/s", 2),
                ("train, mlp, ps, 2 workers: final loss", 2),
                ("train, mlp, ps, 2 workers: peak memory", 2),
            ]
        );
        assert_eq!(rows[1].measured[1].measure.median, 0.25);
        assert_eq!(rows[1].measured[1].seed, Some(2));
        assert_eq!([0, 1, 2].map(|row: usize| rows[row].is_learned), [false, true, false]);
        let step = r#"{"summary":{"model":"mlp","samples_per_second":9,"step_ms":{"count":4,"p10":1,"median":2,"p90":3}}}"#;
        let rows = of(step);
        assert_eq!(rows[0].name, "train, mlp: step", "{rows:?}");
        assert!(rows[0].measured[0].measure.spread.is_some());
        // what an earlier version wrote has no steps
        let names = |other: &[Row]| {
            let mut rows = of(step);
            without_rates(&mut rows, other);
            rows.into_iter().map(|row| row.name).collect::<Vec<String>>()
        };
        assert_eq!(names(&rows), ["train, mlp: step"]);
        let before = of(r#"{"summary":{"model":"mlp","samples_per_second":9}}"#);
        assert_eq!(names(&before), ["train, mlp: step", "train, mlp: samples/s"]);
    }

    #[test]
    fn what_has_no_number_is_no_row() {
        assert!(of("{\"bench\":\"tea\",\"median_s\":1}\n{\"bench\":\"kvstore\"}\n[]\n").is_empty());
        assert!(of(r#"{"bench":"kvstore","median_s":0}"#).is_empty());
        assert_eq!(of(r#"{"bench":"kvstore","median_s":2}"#)[0].measured[0].measure.median, 2.0);
    }
}
