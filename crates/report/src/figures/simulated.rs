//! What `tensorwire simulate` says of larger clusters, and how far it was off where both were measured.

use super::xue::{COPIES, THROUGHPUT};
use super::{At, BATCH, RATE, WORKERS, time};
use crate::figure::{Axis, Better, Claim, Figure, Point, Role, Scale, Shape, Unit, Wants};
use crate::line::{Lacks, Line};

pub(super) const SPEED_UP: Figure = Figure {
    id: "simulated",
    source: "Simulated; Xue et al., Fig. 11",
    title: "Past this machine: speed-up over one worker's compute",
    says: "On their cluster of 8 servers at 100 Gb/s, over one machine without communication: LSTM 5×, Inception-v3 7.9×, \
           VGG-16 4.3×, and all three faster than it from 2 servers on; over one server of their own more than 7×, more than 7× \
           and 5.2×; over gRPC.RDMA +98 %, +12 % and +140 %.",
    kinds: &["simulate"],
    run: "tensorwire bench evaluation --only simulated --json FILE",
    take: speed_up,
    shape: Shape::Lines(WORKERS),
    y: Axis { title: "speed-up", unit: Unit::Plain, scale: Scale::Log2 },
    better: Better::Higher,
    claims: &[
        Claim::of("simulated as they measured, 8 workers", &["ps"], &[THEIRS], Wants::Within(0.15)),
        Claim::of(
            "gRPC.RDMA, simulated as they measured, 8 workers",
            &["ps, grpc-rdma"],
            &[THEIRS_GRPC],
            Wants::Within(0.15),
        ),
        from_two(&["lstm", "paper-xue"]),
        from_two(&["inception-v3", "paper-xue"]),
        from_two(&["vgg16", "paper-xue"]),
        over_one(&["lstm", "paper-xue"], 7.0),
        over_one(&["inception-v3", "paper-xue"], 7.0),
        over_one(&["vgg16", "paper-xue"], 5.2),
        over_grpc("over gRPC.RDMA, 8 workers", &["lstm", "paper-xue"], 1.98),
        over_grpc("over gRPC.RDMA, 8 workers", &["inception-v3", "paper-xue"], 1.12),
        over_grpc("over gRPC.RDMA, 8 workers", &["vgg16", "paper-xue"], 2.4),
    ],
};

const fn from_two(only: &'static [&'static str]) -> Claim {
    let wants = Wants::ReachesAt(2.0, 1.0);
    Claim { only, ..Claim::of("faster than local with 2 workers", &["ps"], &[], wants) }
}

const fn over_one(only: &'static [&'static str], times: f64) -> Claim {
    let wants = Wants::Gains(1.0, THEIR_MACHINES, times);
    Claim { only, ..Claim::of("8 workers over one and its own server", &["ps"], &[], wants) }
}

/// What they say of a model, on their cluster of 8 machines.
const fn over_grpc(says: &'static str, only: &'static [&'static str], times: f64) -> Claim {
    Claim { only, ..Claim::of(says, &["ps"], &["ps, grpc-rdma"], Wants::At(8.0, times)) }
}

/// Their figure 9, on as many machines as they had.
pub(super) const BY_BATCH: Figure = Figure {
    id: "simulated-9",
    source: "Simulated; Xue et al., Fig. 9",
    title: "Past this machine: training throughput by batch",
    says: THROUGHPUT.says,
    kinds: &["simulate"],
    run: "tensorwire bench evaluation --only simulated --json FILE",
    take: by_batch,
    shape: Shape::Lines(BATCH),
    y: RATE,
    better: Better::Higher,
    claims: &[
        on_average(&["alexnet"], 2.69),
        on_average(&["fcn5"], 2.51),
        on_average(&["vgg16"], 2.17),
        on_average(&["lstm"], 2.18),
        on_average(&["gru"], 1.69),
        on_average(&["inception-v3"], 1.65),
        Claim {
            only: &["vgg16"],
            ..Claim::of(
                "over gRPC.TCP, the best batch",
                &["ps"],
                &["ps, grpc-tcp"],
                Wants::Best(25.0),
            )
        },
    ],
};

const fn on_average(only: &'static [&'static str], times: f64) -> Claim {
    let wants = Wants::Mean(times);
    Claim { only, ..Claim::of("over gRPC.RDMA", &["ps"], &["ps, grpc-rdma"], wants) }
}

/// Their figure 12, there.
pub(super) const WITHOUT_COPY: Figure = Figure {
    id: "simulated-12",
    source: "Simulated; Xue et al., Fig. 12",
    title: "Past this machine: what the sender's copy costs a step",
    says: COPIES.says,
    kinds: &["simulate"],
    run: "tensorwire bench evaluation --only simulated --json FILE",
    take: without_copy,
    shape: Shape::Bars,
    y: Axis { title: "a step at batch 8", unit: Unit::Seconds, scale: Scale::Linear },
    better: Better::Lower,
    claims: &[Claim::of("the best of all models", &["ps"], &["ps, copy"], Wants::BestOfAll(1.21))],
};

pub(super) const VALIDATION: Figure = Figure {
    id: "validation",
    source: "Simulated and measured",
    title: "How far the simulation is off",
    says: "No paper's: a step as simulated against the same step as measured, on one machine.",
    kinds: &["simulate"],
    run: "tensorwire bench evaluation --only simulated --json FILE",
    take: validation,
    shape: Shape::Lines(WORKERS),
    y: time("a step"),
    better: Better::Lower,
    claims: &[Claim {
        says: "simulated against measured, the worst",
        only: &[],
        ours: &["simulated"],
        against: &["measured"],
        wants: Wants::Within(0.15),
    }],
};

/// Their machines, and the batches of their figures 11 and 12.
const THEIR_MACHINES: f64 = 8.0;
const THEIR_BATCH: f64 = 32.0;
const SMALL_BATCH: f64 = 8.0;

/// What they measured on the cluster that is simulated.
const THEIRS: &str = "the paper's RDMA";
const THEIRS_GRPC: &str = "the paper's gRPC.RDMA";

/// Strategy, and exchange where it is not the usual one.
fn series(line: &Line) -> Result<String, Lacks> {
    let strategy = line.text("strategy")?;
    Ok(match line.optional_text("exchange") {
        None | Some("zero-copy") => strategy.to_string(),
        Some(exchange) => format!("{strategy}, {exchange}"),
    })
}

fn place(line: &Line) -> Result<String, Lacks> {
    let batch = line.optional_number("batch").map(|batch| format!(", batch {batch}"));
    Ok(line.text("cluster")?.to_string() + &batch.unwrap_or_default())
}

/// True of a job of theirs, on their cluster, but for the batch.
fn is_theirs(line: &Line) -> Result<bool, Lacks> {
    let is_paper = line.text("cluster")? == "paper-xue" && line.text("strategy")? == "ps";
    let is_in_turns = line.optional_text("placement").is_none();
    Ok(is_paper && is_in_turns && line.number("workers")? == THEIR_MACHINES)
}

/// Samples of all workers in a second.
fn by_batch(line: &Line) -> Result<Vec<Point>, Lacks> {
    if !is_theirs(line)? || line.optional_text("exchange") == Some("copy") {
        return Ok(Vec::new());
    }
    let batch = line.number("batch")?;
    let at = At::x(line.text("model")?, Some(line.text("cluster")?.to_string()), batch);
    let series = series(line)?;
    let rate = batch * line.number("workers")? / line.number("step_s")?;
    Ok(vec![at.point(role_of(&series), series.as_str(), rate)])
}

fn without_copy(line: &Line) -> Result<Vec<Point>, Lacks> {
    let is_compared = matches!(line.optional_text("exchange"), None | Some("zero-copy" | "copy"));
    let batch = line.optional_number("batch");
    if !is_theirs(line)? || !is_compared || batch != Some(SMALL_BATCH) {
        return Ok(Vec::new());
    }
    let at = At::x(line.text("model")?, Some(line.text("cluster")?.to_string()), 0.0);
    let series = series(line)?;
    Ok(vec![at.point(role_of(&series), series.as_str(), line.number("step_s")?)])
}

fn role_of(series: &str) -> Role {
    match series.contains("copy") || series.contains("grpc") {
        true => Role::Baseline,
        false => Role::Ours,
    }
}

fn speed_up(line: &Line) -> Result<Vec<Point>, Lacks> {
    // what is measured beside has a figure of its own, and so have their batches
    let batch = line.optional_number("batch");
    let is_of_another = is_theirs(line)? && batch.is_some_and(|batch| batch != THEIR_BATCH);
    if line.optional_number("measured_step_s").is_some() || is_of_another {
        return Ok(Vec::new());
    }
    let workers = line.number("workers")?;
    let at = At::x(line.text("model")?, Some(place(line)?), workers);
    let (series, speed_up) = (series(line)?, line.number("speedup")?);
    let mut points = vec![at.point(role_of(&series), series.as_str(), speed_up)];
    if let Some(theirs) = line.optional_number("paper_speedup") {
        let name = if series.contains("grpc") { THEIRS_GRPC } else { THEIRS };
        points.push(at.point(Role::Peer, name, theirs));
    }
    Ok(points)
}

fn validation(line: &Line) -> Result<Vec<Point>, Lacks> {
    let Ok(measured) = line.measured_seconds() else { return Ok(Vec::new()) };
    let subject = format!("{}, {}", line.text("model")?, series(line)?);
    let at = At::x(subject, Some(place(line)?), line.number("workers")?);
    let simulated = at.point(Role::Ours, "simulated", line.number("step_s")?);
    Ok(vec![simulated, at.point(Role::Limit, "measured", measured)])
}
