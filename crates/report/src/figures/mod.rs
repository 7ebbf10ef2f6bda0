//! The figures that there are: the papers', and those that set us beside today's systems. What a paper says is data
//! here, taken from its text (its plots have no numbers).

mod learned;
mod li;
mod links;
mod mamidala;
mod peers;
mod simulated;
mod sizes;
mod xue;

pub(crate) use sizes::{MODEL_SIZE, TENSOR_SIZES};

use crate::figure::{Axis, Figure, Point, Role, Scale, Unit};
use crate::line::{Lacks, Line};
use crate::measure::Measure;

/// In the order of the page.
pub(crate) const FIGURES: &[&Figure] = &[
    &sizes::MODELS,
    &sizes::SIZES,
    &xue::TRANSFER,
    &xue::THROUGHPUT,
    &xue::CONVERGENCE,
    &xue::SCALING,
    &xue::COPIES,
    &xue::GPUDIRECT,
    &links::LINKS,
    &links::SIMULATED,
    &links::WITHIN,
    &li::STORE,
    &li::TRAINING,
    &mamidala::EPOCHS,
    &mamidala::CURVES,
    &mamidala::NODES,
    &mamidala::BATCHES,
    &mamidala::TENSORS_BY_RANKS,
    &mamidala::TENSORS_BY_SIZE,
    &simulated::SPEED_UP,
    &simulated::BY_BATCH,
    &simulated::WITHOUT_COPY,
    &simulated::VALIDATION,
    &peers::ALL_REDUCE,
    &peers::STORE_BY_SIZE,
    &peers::WRITE,
    &peers::ONE_PROCESS,
    &peers::JOB_OVER_ALONE,
    &peers::STEP_OVER_LINK,
    &peers::LOSSES,
];

/// The kind of lines that say what could not be measured, and of which figure.
pub(crate) const NOT_MEASURED: &str = "not-measured";

/// Kinds of lines that hold what was judged where it was measured.
pub(crate) const GOALS: &[&str] =
    &["peers-transfer-goal", "peers-kvstore-goal", "peers-allreduce-goal"];

const BYTES: Axis = Axis { title: "tensor", unit: Unit::Bytes, scale: Scale::Log2 };
const BATCH: Axis = Axis { title: "batch per worker", unit: Unit::Plain, scale: Scale::Log2 };
const WORKERS: Axis = Axis { title: "workers", unit: Unit::Plain, scale: Scale::Log2 };
const RATE: Axis = Axis { title: "samples per second", unit: Unit::Plain, scale: Scale::Log10 };
const CLOCK: Axis = Axis { title: "seconds of training", unit: Unit::Plain, scale: Scale::Linear };

/// Of a measurement's time, by what was measured.
const fn time(title: &'static str) -> Axis {
    Axis { title, unit: Unit::Seconds, scale: Scale::Log10 }
}

/// Where a point belongs, before it is known who it is.
struct At {
    subject: String,
    place: Option<String>,
    key: f64,
    x: f64,
    x_ends: Option<[f64; 2]>,
}

impl At {
    /// Where what repeats is x.
    fn x(subject: impl Into<String>, place: Option<String>, x: f64) -> At {
        At { subject: subject.into(), place, key: x, x, x_ends: None }
    }

    fn point(&self, role: Role, series: impl Into<String>, y: impl Into<Measure>) -> Point {
        let At { ref subject, ref place, key, x, x_ends } = *self;
        let (subject, place) = (subject.clone(), place.clone());
        let (series, y) = (series.into(), y.into());
        Point { subject, place, series, role, key, x, x_ends, y, origin: None }
    }
}

/// Words of a title, with commas between; those that are none are left out.
fn words(all: [Option<String>; 4]) -> String {
    all.into_iter().flatten().collect::<Vec<String>>().join(", ")
}

/// Who an exchange is, as `--exchange` spells it.
fn role(exchange: &str) -> Role {
    match exchange {
        "zero-copy" | "write" => Role::Ours,
        _ => Role::Baseline,
    }
}

/// What an exchange's bytes cross: some bring their own protocol, which is over TCP whatever the fabric is.
fn wire<'a>(line: &'a Line, exchange: &str) -> Result<&'a str, Lacks> {
    match exchange {
        "grpc-tcp" | "grpc-tcp-tuned" | "zmq" => Ok("tcp"),
        _ => line.text("transport"),
    }
}

/// The same, with the link between hosts: what was measured over one is not what was measured over the loopback. A paced one says
/// its rate.
fn wire_and_link(line: &Line, exchange: &str) -> Result<String, Lacks> {
    Ok(over_link(line, wire(line, exchange)?))
}

fn over_link(line: &Line, wire: &str) -> String {
    let hosts = line.optional_number("hosts").filter(|hosts| *hosts > 1.0);
    match (line.optional_text("link"), hosts) {
        (Some(link), _) => format!("{wire}, {link}"),
        (None, Some(hosts)) => format!("{wire}, {hosts} hosts"),
        (None, None) => wire.to_string(),
    }
}

/// `2 workers, 1 server`.
fn members(line: &Line) -> Result<String, Lacks> {
    let (workers, servers) = (line.number("workers")?, line.optional_number("servers"));
    let servers = servers.filter(|count| *count > 0.0);
    let servers = servers.map(|count| format!(", {}", counted(count, "server")));
    Ok(counted(workers, "worker") + &servers.unwrap_or_default())
}

fn counted(count: f64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1.0 { "" } else { "s" })
}

/// Is it a job whose tensors go to a store's servers?
fn has_store(line: &Line) -> bool {
    let strategy = line.optional_text("strategy").unwrap_or("ps");
    strategy.starts_with("dist-") || strategy.starts_with("mpi-")
}
