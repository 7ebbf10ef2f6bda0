//! Beside today's systems, in what no paper has a figure for.

use super::li::store_series;
use super::{At, BATCH, BYTES, counted, members, over_link, time};
use crate::figure::{Axis, Better, Claim, Figure, Point, Role, Scale, Shape, Unit, Wants};
use crate::line::{Lacks, Line};
use crate::measure::{Between, Measure, Spread};

const CHOSEN: &str = "tensorwire";
const NO_PAPER: &str = "No paper's: today's systems on the same machine.";

pub(super) const ALL_REDUCE: Figure = Figure {
    id: "allreduce",
    source: "Beside Open MPI and gloo",
    title: "All-reduce of one vector a process, by size",
    says: NO_PAPER,
    kinds: &["allreduce", "peers-allreduce"],
    run: "bench/peers/allreduce.sh --json FILE",
    take: all_reduce,
    shape: Shape::Lines(BYTES),
    y: time("an all-reduce"),
    better: Better::Lower,
    claims: &[
        beside("not slower than Open MPI, every size", &[CHOSEN], &["Open MPI"]),
        beside("not slower than gloo, every size", &[CHOSEN], &["gloo"]),
    ],
};

pub(super) const STORE_BY_SIZE: Figure = Figure {
    id: "kvstore",
    source: "Beside MXNet and ZeroMQ",
    title: "Push and pull of one value, by size",
    says: NO_PAPER,
    kinds: &["kvstore", "peers-kvstore"],
    run: "bench/peers/kvstore.sh --json FILE",
    take: store,
    shape: Shape::Lines(BYTES),
    y: time("a push and a pull"),
    better: Better::Lower,
    claims: &[
        beside("not slower than MXNet, every size", &["zero-copy, filled"], &["MXNet dist_sync"]),
        beside("not slower than ZeroMQ, every size", &["zero-copy, filled"], &["zmq"]),
    ],
};

pub(super) const WRITE: Figure = Figure {
    id: "write",
    source: "Beside gRPC",
    title: "A one-sided write and its answer, by size",
    says: "No paper's: what lies under Fig. 8, against a unary gRPC call of as many bytes.",
    kinds: &["write"],
    run: "tensorwire bench write --against grpc --json FILE",
    take: write,
    shape: Shape::Lines(BYTES),
    y: time("a round trip"),
    better: Better::Lower,
    claims: &[beside("not slower than gRPC, every size", &["write"], &["gRPC call"])],
};

pub(super) const ONE_PROCESS: Figure = Figure {
    id: "one-process",
    source: "Beside PyTorch",
    title: "A step of one process",
    says: "No paper's: the same model and batch, no communication.",
    kinds: &["pytorch-step"],
    run: "bench/peers/pytorch_step.py --json FILE",
    take: one_process,
    shape: Shape::Lines(BATCH),
    y: time("a step"),
    better: Better::Lower,
    claims: &[beside("not slower than PyTorch, every batch", &[CHOSEN], &["PyTorch"])],
};

pub(super) const JOB_OVER_ALONE: Figure = Figure {
    id: "peer-step",
    source: "Beside TensorFlow, MXNet and PyTorch",
    title: "What distribution costs a training step",
    says: "No paper's: a job's step over that of one worker alone, each system against itself; the others over TCP. A \
           system that computes slowly has it easier.",
    kinds: &["peer-step"],
    run: "bench/peers/step.sh --json FILE",
    take: job_over_alone,
    shape: Shape::Bars,
    y: Axis { title: "times a step alone", unit: Unit::Plain, scale: Scale::Linear },
    better: Better::Lower,
    claims: &[
        beside("ps, not more than TensorFlow", &["ps"], &["TensorFlow gRPC"]),
        beside("ps, not more than MXNet", &["ps"], &["MXNet dist_sync"]),
        beside("allreduce, not more than PyTorch", &["allreduce"], &["PyTorch DDP"]),
    ],
};

pub(super) const STEP_OVER_LINK: Figure = Figure {
    id: "peer-link",
    source: "Beside TensorFlow, MXNet and PyTorch",
    title: "A training step between two hosts",
    says: "No paper's: steps over links of a given rate, all by TCP, with one thread a process.",
    kinds: &["peer-step"],
    run: "bench/peers/step.sh --link 1gbit --json FILE",
    take: step_over_link,
    shape: Shape::Bars,
    y: Axis { title: "a step", unit: Unit::Seconds, scale: Scale::Linear },
    better: Better::Lower,
    claims: &[
        beside("ps, not slower than TensorFlow", &["ps"], &["TensorFlow gRPC"]),
        beside("ps, not slower than MXNet", &["ps"], &["MXNet dist_sync"]),
        beside("ps, not slower than PyTorch", &["ps"], &["PyTorch DDP"]),
        beside("allreduce, not slower than TensorFlow", &["allreduce"], &["TensorFlow gRPC"]),
        beside("allreduce, not slower than MXNet", &["allreduce"], &["MXNet dist_sync"]),
        beside("allreduce, not slower than PyTorch", &["allreduce"], &["PyTorch DDP"]),
        beside("dist-sgd, not slower than TensorFlow", &["dist-sgd"], &["TensorFlow gRPC"]),
        beside("dist-sgd, not slower than MXNet", &["dist-sgd"], &["MXNet dist_sync"]),
        beside("dist-sgd, not slower than PyTorch", &["dist-sgd"], &["PyTorch DDP"]),
    ],
};

pub(super) const LOSSES: Figure = Figure {
    id: "losses",
    source: "Beside PyTorch",
    title: "Loss by step, from the same weights and batches",
    says: "No paper's: that both learn the same.",
    kinds: &["pytorch-loss"],
    run: "bench/peers/pytorch_loss.py --json FILE",
    take: losses,
    shape: Shape::Lines(Axis { title: "step", unit: Unit::Plain, scale: Scale::Linear }),
    y: Axis { title: "loss", unit: Unit::Plain, scale: Scale::Linear },
    better: Better::Lower,
    claims: &[],
};

const fn beside(
    says: &'static str,
    ours: &'static [&'static str],
    against: &'static [&'static str],
) -> Claim {
    Claim { says, only: &[], ours, against, wants: Wants::Least(1.0) }
}

fn all_reduce(line: &Line) -> Result<Vec<Point>, Lacks> {
    if line.optional_text("design").is_some() {
        return Ok(Vec::new());
    }
    let ranks = counted(line.number("ranks")?, "rank");
    let bytes = line.number("bytes")?;
    let place = line.optional_text("transport").map(|transport| over_link(line, transport));
    if line.kind() == Some("peers-allreduce") {
        let at = At::x(ranks, place, bytes);
        let theirs =
            at.point(Role::Peer, peer(line.text("peer")?), line.quantiles("peer_s.median")?);
        let ours = at.point(Role::Ours, CHOSEN, line.quantiles("tensorwire_s.median")?);
        return Ok(vec![theirs, ours]);
    }
    let among = match line.optional_text("collective") {
        None | Some("all-reduce") => ranks,
        Some(other) => format!("{other}, {ranks}"),
    };
    let subject = match line.optional_number("vectors").filter(|vectors| *vectors > 1.0) {
        Some(vectors) => format!("{among}, {vectors} vectors at once"),
        None => among,
    };
    let at = At::x(subject, place, bytes);
    let seconds = line.seconds("median_s")?;
    if let Some(system @ ("openmpi" | "gloo")) = line.optional_text("system") {
        return Ok(vec![at.point(Role::Peer, peer(system), seconds)]);
    }
    let algorithm = line.text("algorithm")?;
    let (role, name) = match line.is_true("by_table") {
        true => (Role::Ours, CHOSEN.to_string()),
        false => (Role::Baseline, format!("by {algorithm}")),
    };
    let kind = line.optional_text("dtype").filter(|kind| *kind != "f32");
    let order = line.is_true("deterministic").then_some("in rank order");
    let words: Vec<&str> = [Some(name.as_str()), kind, order].into_iter().flatten().collect();
    Ok(vec![at.point(role, words.join(", "), seconds)])
}

/// As a comparison calls it, with or without its transport.
fn peer(name: &str) -> &str {
    match name {
        name if name.starts_with("openmpi") => "Open MPI",
        name if name.starts_with("gloo") => "gloo",
        other => other,
    }
}

fn store(line: &Line) -> Result<Vec<Point>, Lacks> {
    let place = line.optional_text("transport").map(|transport| over_link(line, transport));
    let at = At::x(members(line)?, place, line.number("bytes")?);
    if line.kind() == Some("peers-kvstore") {
        let ours = format!("zero-copy, {}", line.text("pull")?);
        return Ok(vec![
            at.point(Role::Peer, "MXNet dist_sync", line.quantiles("mxnet_s.median")?),
            at.point(Role::Ours, ours, line.quantiles("tensorwire_s.median")?),
        ]);
    }
    let (role, series) = store_series(line)?;
    Ok(vec![at.point(role, series, line.seconds("median_s")?)])
}

fn write(line: &Line) -> Result<Vec<Point>, Lacks> {
    let at = At::x("", Some(over_link(line, line.text("transport")?)), line.number("bytes")?);
    let trip = line.percentiles("round_trip_us", "round_trips")?;
    let mut points = vec![at.point(Role::Ours, "write", trip.scaled(1e-6))];
    if let Ok(call) = line.percentiles("grpc_round_trip_us", "grpc_round_trips") {
        points.push(at.point(Role::Baseline, "gRPC call", call.scaled(1e-6)));
    }
    Ok(points)
}

fn one_process(line: &Line) -> Result<Vec<Point>, Lacks> {
    let threads = counted(line.number("threads")?, "thread");
    let place = format!("{} kernels, {threads}", line.text("kernels")?);
    let at = At::x(line.text("model")?, Some(place), line.number("batch")?);
    let ours = line.of_rounds("tensorwire_ms", ["tensorwire_min_ms", "tensorwire_max_ms"])?;
    let theirs = line.of_rounds("pytorch_ms", ["pytorch_min_ms", "pytorch_max_ms"])?;
    Ok(vec![
        at.point(Role::Ours, CHOSEN, ours.scaled(1e-3)),
        at.point(Role::Peer, "PyTorch", theirs.scaled(1e-3)),
    ])
}

fn job_over_alone(line: &Line) -> Result<Vec<Point>, Lacks> {
    let workers = counted(line.number("workers")?, "worker");
    if line.optional_text("link").is_some() {
        return Ok(Vec::new());
    }
    let subject = format!("{}, batch {}, {workers}", line.text("model")?, line.number("batch")?);
    let overhead = overhead(line)?;
    let at = |place| At::x(subject, place, 0.0);
    let point = match line.optional_text("strategy") {
        Some(strategy) => {
            let place = Some(line.text("transport")?.to_string());
            at(place).point(Role::Ours, strategy, overhead)
        }
        None => at(None).point(Role::Peer, line.text("system")?, overhead),
    };
    Ok(vec![point])
}

/// With the least and the greatest of several rounds; of one round, what the percentiles of the job's steps are of the lone step.
fn overhead(line: &Line) -> Result<Measure, Lacks> {
    let ends = |low: &str, high: &str| line.optional_number(low).zip(line.optional_number(high));
    let rounds = ends("overhead_min", "overhead_max").filter(|(low, high)| low < high);
    let of_steps = || {
        let (low, high) = ends("p10_step_ms", "p90_step_ms").filter(|(low, high)| low < high)?;
        let local_ms = line.optional_number("local_ms")?;
        let (low, high) = (low / local_ms, high / local_ms);
        Some(Spread { low, high, between: Between::Percentiles })
    };
    let of_rounds = |(low, high)| Spread { low, high, between: Between::Rounds };
    let spread = rounds.map(of_rounds).or_else(of_steps);
    Ok(Measure::new(line.number("overhead")?, spread, line.optional_number("rounds")))
}

fn step_over_link(line: &Line) -> Result<Vec<Point>, Lacks> {
    let Some(link) = line.optional_text("link") else {
        return Ok(Vec::new());
    };
    let workers = counted(line.number("workers")?, "worker");
    let (model, batch) = (line.text("model")?, line.number("batch")?);
    let at = At::x(format!("{model}, batch {batch}, {link}, {workers}"), None, 0.0);
    let step = line.percentiles("step_ms", "rounds")?.scaled(1e-3);
    let point = match line.optional_text("strategy") {
        Some(strategy) => at.point(Role::Ours, strategy, step),
        None => at.point(Role::Peer, line.text("system")?, step),
    };
    Ok(vec![point])
}

fn losses(line: &Line) -> Result<Vec<Point>, Lacks> {
    let (model, dtype) = (line.text("model")?, line.text("dtype")?);
    let subject = format!("{model}, {dtype}");
    let curve = |role, name: &'static str, losses: Vec<f64>| {
        let subject = subject.clone();
        // fits: steps of a test
        losses.into_iter().enumerate().map(move |(step, loss)| {
            At::x(subject.clone(), None, (step + 1) as f64).point(role, name, loss)
        })
    };
    let ours = curve(Role::Ours, CHOSEN, line.numbers("losses")?);
    Ok(ours.chain(curve(Role::Peer, "PyTorch", line.numbers("pytorch")?)).collect())
}
