//! What `tensorwire simulate` says of larger clusters, and how far it was off where both were measured.

use super::{At, WORKERS, time};
use crate::figure::{Axis, Better, Claim, Figure, Point, Role, Scale, Shape, Unit, Wants};
use crate::line::{Lacks, Line};

pub(super) const SPEED_UP: Figure = Figure {
    id: "simulated",
    source: "Simulated; Xue et al., Fig. 11",
    title: "Past this machine: speed-up over one worker's compute",
    says: "On their cluster of 8 servers at 100 Gb/s, over one machine without communication: LSTM 5×, Inception-v3 7.9×, \
           VGG-16 4.3×; over gRPC.RDMA +98 %, +12 % and +140 %. By their figure 9 the mean of all batches is over gRPC.RDMA: AlexNet \
           +169 %, FCN-5 +151 %, VGG-16 +117 to +145 %, LSTM +118 %, GRU +69 %, Inception-v3 +65 %.",
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
        over_grpc("figure 11: over gRPC.RDMA, 8 workers", &["lstm", "paper-xue"], 1.98),
        over_grpc("figure 11: over gRPC.RDMA, 8 workers", &["inception-v3", "paper-xue"], 1.12),
        over_grpc("figure 11: over gRPC.RDMA, 8 workers", &["vgg16", "paper-xue"], 2.4),
        over_grpc("figure 9: over gRPC.RDMA, at batch 32", &["alexnet", "paper-xue"], 2.69),
        over_grpc("figure 9: over gRPC.RDMA, at batch 32", &["fcn5", "paper-xue"], 2.51),
        over_grpc("figure 9: over gRPC.RDMA, at batch 32", &["vgg16", "paper-xue"], 2.17),
        over_grpc("figure 9: over gRPC.RDMA, at batch 32", &["lstm", "paper-xue"], 2.18),
        over_grpc("figure 9: over gRPC.RDMA, at batch 32", &["gru", "paper-xue"], 1.69),
        over_grpc("figure 9: over gRPC.RDMA, at batch 32", &["inception-v3", "paper-xue"], 1.65),
        Claim {
            says: "figure 9: over gRPC.TCP, at batch 32",
            only: &["vgg16", "paper-xue"],
            ours: &["ps"],
            against: &["ps, grpc-tcp"],
            wants: Wants::At(8.0, 25.0),
        },
    ],
};

/// What they say of a model, on their cluster of 8 machines.
const fn over_grpc(says: &'static str, only: &'static [&'static str], times: f64) -> Claim {
    Claim { only, ..Claim::of(says, &["ps"], &["ps, grpc-rdma"], Wants::At(8.0, times)) }
}

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

fn speed_up(line: &Line) -> Result<Vec<Point>, Lacks> {
    // what is measured beside has a figure of its own
    if line.optional_number("measured_step_s").is_some() {
        return Ok(Vec::new());
    }
    let workers = line.number("workers")?;
    let at = At::x(line.text("model")?, Some(place(line)?), workers);
    let (series, speed_up) = (series(line)?, line.number("speedup")?);
    let role = if series.contains("copy") || series.contains("grpc") {
        Role::Baseline
    } else {
        Role::Ours
    };
    let mut points = vec![at.point(role, series.as_str(), speed_up)];
    if let Some(theirs) = line.optional_number("paper_speedup") {
        let name = if series.contains("grpc") { THEIRS_GRPC } else { THEIRS };
        points.push(at.point(Role::Peer, name, theirs));
    }
    Ok(points)
}

fn validation(line: &Line) -> Result<Vec<Point>, Lacks> {
    let Some(measured) = line.optional_number("measured_step_s") else {
        return Ok(Vec::new());
    };
    let subject = format!("{}, {}", line.text("model")?, series(line)?);
    let at = At::x(subject, Some(place(line)?), line.number("workers")?);
    let simulated = at.point(Role::Ours, "simulated", line.number("step_s")?);
    Ok(vec![simulated, at.point(Role::Limit, "measured", measured)])
}
