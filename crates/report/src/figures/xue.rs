//! Xue et al., *Fast Distributed Deep Learning over RDMA* (EuroSys'19), §5: figures 8 to 12, table 3.

use super::learned::learned_from;
use super::{
    At, BATCH, BYTES, CLOCK, RATE, WORKERS, has_store, members, over_link, role, time, wire,
    wire_and_link, words,
};
use crate::figure::{Axis, Better, Claim, Figure, Point, Role, Scale, Shape, Unit, Wants};
use crate::line::{Lacks, Line};
use crate::measure::Measure;

/// The paper's RDMA.zerocp, which is one write. Between hosts that is what zero-copy does, too.
const WRITE: &[&str] = &["write", "zero-copy"];
/// Zero-copy where processes share memory: nothing is written, and the paper has no such thing.
const BY_REFERENCE: &str = "zero-copy, by reference";
/// What a user gets: the fastest way that the transport has.
const BEST: &[&str] = &[BY_REFERENCE, "zero-copy", "write"];
const TENSORFLOW: &str = "TensorFlow gRPC";

pub(super) const TRANSFER: Figure = Figure {
    id: "xue-8",
    source: "Xue et al., Fig. 8",
    title: "One tensor to a reduce_max in another process",
    says: "Zero-copy RDMA is 1.7× to 61× as fast as gRPC.TCP by size, 1.3× to 14× as gRPC.RDMA (which fails above \
           1 GB), and 1.2× to 1.8× as with a copy at the sender. Two servers, 100 Gb/s InfiniBand.",
    kinds: &["transfer", "peers-transfer"],
    run: "tensorwire bench evaluation --only transfer --json FILE",
    take: transfer,
    shape: Shape::Lines(BYTES),
    y: time("Send to the end of reduce_max"),
    better: Better::Lower,
    claims: &[
        Claim::of("over gRPC.TCP, every size", WRITE, &["grpc-tcp"], Wants::Least(1.7)),
        Claim::of("over gRPC.TCP, the best size", WRITE, &["grpc-tcp"], Wants::Best(61.0)),
        Claim::of("over gRPC.RDMA, every size", WRITE, &["grpc-rdma"], Wants::Least(1.3)),
        Claim::of("over gRPC.RDMA, the best size", WRITE, &["grpc-rdma"], Wants::Best(14.0)),
        Claim::of(
            "by reference, which the paper does not have, over gRPC.RDMA, every size",
            &[BY_REFERENCE],
            &["grpc-rdma"],
            Wants::Least(1.3),
        ),
        Claim::of("over a copy at the sender, every size", WRITE, &["copy"], Wants::Least(1.2)),
        Claim::of("over a copy at the sender, the best size", WRITE, &["copy"], Wants::Best(1.8)),
        Claim::of("not slower than TensorFlow here", BEST, &[TENSORFLOW], Wants::Least(1.0)),
    ],
};

pub(super) const THROUGHPUT: Figure = Figure {
    id: "xue-9",
    source: "Xue et al., Fig. 9",
    title: "Training throughput by batch",
    says: "Over gRPC.RDMA on average: AlexNet +169 %, FCN-5 +151 %, VGG-16 +117 to +145 %, LSTM +118 %, GRU +69 %, \
           Inception-v3 +65 %; VGG-16 25× over gRPC.TCP. Eight servers with GPUs, 100 Gb/s InfiniBand.",
    kinds: &["throughput", "step"],
    run: "tensorwire bench evaluation --only throughput --json FILE",
    take: throughput,
    shape: Shape::Lines(BATCH),
    y: RATE,
    better: Better::Higher,
    claims: &[
        of_model(&["alexnet"], Wants::Mean(2.69)),
        of_model(&["fcn5"], Wants::Mean(2.51)),
        of_model(&["vgg16"], Wants::Mean(2.17)),
        of_model(&["lstm"], Wants::Mean(2.18)),
        of_model(&["gru"], Wants::Mean(1.69)),
        of_model(&["inception-v3"], Wants::Mean(1.65)),
        Claim {
            only: &["vgg16"],
            ..Claim::of("over gRPC.TCP, the best batch", WRITE, &["grpc-tcp"], Wants::Best(25.0))
        },
        Claim::of(
            "by reference, which the paper does not have, over gRPC.RDMA, the best of all models",
            &[BY_REFERENCE],
            &["grpc-rdma"],
            Wants::BestOfAll(2.69),
        ),
    ],
};

pub(super) const CONVERGENCE: Figure = Figure {
    id: "xue-10",
    source: "Xue et al., Fig. 10",
    title: "Convergence of three applications",
    says: "Over gRPC.TCP: Seq2Seq converges 3× as fast, CIFAR 2.6×, sentence embedding 1.85×; over gRPC.RDMA 1.53× \
           and 1.18×, the third crashes there. Eight workers; CIFAR-10, French and English of WMT, and text of their own.",
    kinds: &["convergence"],
    run: "tensorwire bench evaluation --only convergence --json FILE",
    take: convergence,
    shape: Shape::Curves(CLOCK, "step"),
    y: Axis { title: "loss", unit: Unit::Plain, scale: Scale::Linear },
    better: Better::Lower,
    claims: &[
        converges(&["seq2seq"], "over gRPC.TCP", &["grpc-tcp"], 3.0),
        converges(&["seq2seq"], "over gRPC.RDMA", &["grpc-rdma"], 1.53),
        converges(&["cifar"], "over gRPC.TCP", &["grpc-tcp"], 2.6),
        converges(&["cifar"], "over gRPC.RDMA", &["grpc-rdma"], 1.18),
        converges(&["sentence-embedding"], "over gRPC.TCP", &["grpc-tcp"], 1.85),
    ],
};

const LOCAL: &str = "one process, no communication";

pub(super) const SCALING: Figure = Figure {
    id: "xue-11",
    source: "Xue et al., Fig. 11",
    title: "Scaling over workers, with the local line",
    says: "On 8 servers LSTM is 5× as fast as one machine without communication, Inception-v3 7.9×, VGG-16 4.3×; all \
           three are faster than local from 2 servers on. Over gRPC.RDMA: +98 %, +12 %, +140 %. Batch 32, which is simulated; what \
           is measured here has batch 8, as two cores have time for.",
    kinds: &["scaling"],
    run: "tensorwire bench evaluation --only scaling --json FILE",
    take: scaling,
    shape: Shape::Lines(WORKERS),
    y: RATE,
    better: Better::Higher,
    claims: &[
        scales("over local, 8 workers", &["lstm"], &[LOCAL], Wants::At(8.0, 5.0)),
        scales("over local, 8 workers", &["inception-v3"], &[LOCAL], Wants::At(8.0, 7.9)),
        scales("over local, 8 workers", &["vgg16"], &[LOCAL], Wants::At(8.0, 4.3)),
        Claim::of("faster than local with 2 workers", WRITE, &[LOCAL], Wants::At(2.0, 1.0)),
        Claim::of(
            "by reference, which the paper does not have, faster than local with 2 workers",
            &[BY_REFERENCE],
            &[LOCAL],
            Wants::At(2.0, 1.0),
        ),
        scales("over gRPC.RDMA, 8 workers", &["lstm"], &["grpc-rdma"], Wants::At(8.0, 1.98)),
        scales(
            "over gRPC.RDMA, 8 workers",
            &["inception-v3"],
            &["grpc-rdma"],
            Wants::At(8.0, 1.12),
        ),
        scales("over gRPC.RDMA, 8 workers", &["vgg16"], &["grpc-rdma"], Wants::At(8.0, 2.4)),
    ],
};

pub(super) const COPIES: Figure = Figure {
    id: "xue-12",
    source: "Xue et al., Fig. 12",
    title: "What the sender's copy costs a step",
    says: "Without the copy a step at batch 8 is up to 21 % faster; least for Inception-v3 and GRU. Eight servers.",
    kinds: &["throughput", "step"],
    run: "tensorwire bench evaluation --only copies --json FILE",
    take: copies,
    shape: Shape::Bars,
    y: Axis { title: "a step at batch 8", unit: Unit::Seconds, scale: Scale::Linear },
    better: Better::Lower,
    claims: &[Claim::of("the best of all models", WRITE, &["copy"], Wants::BestOfAll(1.21))],
};

const DIRECT: &str = "from memory to memory";
const BY_HOST: &str = "by way of the host";

pub(super) const GPUDIRECT: Figure = Figure {
    id: "xue-table-3",
    source: "Xue et al., Table 3",
    title: "Steps of GPUs whose memory the NIC reaches",
    says: "Milliseconds a step without and with GPUDirect RDMA: AlexNet 178.5 and 135.2, FCN-5 157.0 and 101.9, VGGNet 690.1 and \
           610.4, Inception 172.5 and 171.9, LSTM 84.4 and 68.1, GRU 62.3 and 52.6. Eight workers, P100s. Here tensors cross from the \
           memory of a GPU to that of another, or by way of the host, where servers update then. Where they share a host and no NIC \
           takes part (shm), that is no claim of the paper's.",
    kinds: &["gpudirect"],
    run: "tensorwire bench evaluation --only gpudirect --json FILE",
    take: gpudirect,
    shape: Shape::Bars,
    y: Axis { title: "a step", unit: Unit::Seconds, scale: Scale::Linear },
    better: Better::Lower,
    claims: &[
        direct(&["alexnet", "verbs"], 1.32),
        direct(&["fcn5", "verbs"], 1.54),
        direct(&["vgg16", "verbs"], 1.13),
        direct(&["inception-v3", "verbs"], 1.004),
        direct(&["lstm", "verbs"], 1.24),
        direct(&["gru", "verbs"], 1.19),
    ],
};

const fn direct(only: &'static [&'static str], faster: f64) -> Claim {
    Claim {
        only,
        ..Claim::of("over by way of the host", &[DIRECT], &[BY_HOST], Wants::Least(faster))
    }
}

/// A model's throughput over gRPC.RDMA.
const fn of_model(only: &'static [&'static str], wants: Wants) -> Claim {
    Claim { only, ..Claim::of("over gRPC.RDMA", WRITE, &["grpc-rdma"], wants) }
}

/// A model's throughput with so many workers.
const fn scales(
    says: &'static str,
    only: &'static [&'static str],
    against: &'static [&'static str],
    wants: Wants,
) -> Claim {
    Claim { only, ..Claim::of(says, WRITE, against, wants) }
}

const fn converges(
    only: &'static [&'static str],
    says: &'static str,
    against: &'static [&'static str],
    faster: f64,
) -> Claim {
    Claim { only, ..Claim::of(says, WRITE, against, Wants::TimeTo(faster)) }
}

/// What an exchange of a job is called: its zero-copy is one write, but where processes share memory.
fn mechanism<'a>(line: &'a Line, exchange: &'a str) -> &'a str {
    match named(line, exchange) {
        "zero-copy" => "write",
        name => name,
    }
}

/// What an exchange is called: on shared memory zero-copy is another thing than between hosts.
fn named<'a>(line: &'a Line, exchange: &'a str) -> &'a str {
    match (exchange, line.optional_text("transport")) {
        ("zero-copy", Some("shm")) => BY_REFERENCE,
        _ => exchange,
    }
}

fn transfer(line: &Line) -> Result<Vec<Point>, Lacks> {
    let bytes = line.number("bytes")?;
    let seconds = |path| Ok(line.quantiles(path)?.scaled(1e-9));
    if line.kind() == Some("peers-transfer") {
        let exchange = line.text("exchange")?;
        let at = At::x("", Some(over_link(line, line.text("transport")?)), bytes);
        return Ok(vec![
            at.point(Role::Peer, TENSORFLOW, seconds("tensorflow_end_to_end_ns.median")?),
            at.point(
                role(exchange),
                named(line, exchange),
                seconds("tensorwire_end_to_end_ns.median")?,
            ),
        ]);
    }
    if line.optional_text("peer").is_some() {
        let y = seconds("end_to_end_ns.median")?;
        return Ok(vec![At::x("", None, bytes).point(Role::Peer, TENSORFLOW, y)]);
    }
    let exchange = line.text("exchange")?;
    let at = At::x("", Some(wire_and_link(line, exchange)?), bytes);
    let name = match line.optional_text("sizes") {
        Some("dynamic") => format!("{exchange}, size not planned"),
        _ => named(line, exchange).to_string(),
    };
    let mut points = vec![at.point(role(exchange), name, seconds("end_to_end_ns.median")?)];
    if let Some(limit) = line.optional_text("limit") {
        let name = match limit {
            "memcpy" => "limit: one memcpy",
            _ => "limit: raw loopback TCP",
        };
        points.push(at.point(Role::Limit, name, seconds("limit_ns.median")?));
    }
    Ok(points)
}

/// Where a training step was measured, by batch.
fn at_batch(line: &Line, exchange: &str) -> Result<At, Lacks> {
    let place = format!("{}, {}", wire_and_link(line, exchange)?, members(line)?);
    Ok(At::x(line.text("model")?, Some(place), line.number("batch")?))
}

/// `bench step`'s own lines, less those of one process alone.
fn is_step_of_a_job(line: &Line) -> bool {
    line.kind() != Some("step") || line.optional_number("ps_ms.median").is_some()
}

/// Of a job's step, in either kind of line.
fn step_s(line: &Line) -> Result<Measure, Lacks> {
    match line.kind() {
        Some("step") => Ok(line.quantiles("ps_ms.median")?.scaled(1e-3)),
        _ => line.seconds("step_s"),
    }
}

fn throughput(line: &Line) -> Result<Vec<Point>, Lacks> {
    if has_store(line) || !is_step_of_a_job(line) {
        return Ok(Vec::new());
    }
    let exchange = line.text("exchange")?;
    let at = at_batch(line, exchange)?;
    let samples = line.number("batch")? * line.number("workers")?;
    let rate = step_s(line)?.rate_of(samples);
    let mut points = vec![at.point(role(exchange), mechanism(line, exchange), rate)];
    if let Ok(ms) = line.quantiles("local_ms.median") {
        let name = "all replicas in one process";
        points.push(at.point(Role::Limit, name, ms.scaled(1e-3).rate_of(samples)));
    }
    Ok(points)
}

fn convergence(line: &Line) -> Result<Vec<Point>, Lacks> {
    let exchange = line.text("exchange")?;
    let place = match line.optional_text("transport") {
        Some(_) => Some(wire(line, exchange)?.to_string()),
        None => None,
    };
    let model = line.text("model")?;
    let papers = match model {
        "cifar" => Some("CIFAR-10"),
        "seq2seq" => Some("WMT News Commentary"),
        "sentence-embedding" => Some("the paper's own text"),
        _ => None,
    };
    let subject = words([Some(model.to_string()), learned_from(line, papers), None, None]);
    let x = line.number("seconds")?;
    let at = At { key: line.number("step")?, ..At::x(subject, place, x) };
    Ok(vec![at.point(role(exchange), mechanism(line, exchange), line.number("loss")?)])
}

fn scaling(line: &Line) -> Result<Vec<Point>, Lacks> {
    if has_store(line) {
        return Ok(Vec::new());
    }
    let exchange = line.text("exchange")?;
    let (batch, workers) = (line.number("batch")?, line.number("workers")?);
    let subject = format!("{}, batch {batch}", line.text("model")?);
    let at = At::x(subject, Some(wire(line, exchange)?.to_string()), workers);
    let rate = line.seconds("step_s")?.rate_of(workers * batch);
    let mut points = vec![at.point(role(exchange), mechanism(line, exchange), rate)];
    if let Ok(local) = line.local_seconds() {
        points.push(at.point(Role::Limit, LOCAL, local.rate_of(batch)));
    }
    Ok(points)
}

fn copies(line: &Line) -> Result<Vec<Point>, Lacks> {
    const PAPER_BATCH: f64 = 8.0;
    if has_store(line) || !is_step_of_a_job(line) || line.number("batch")? != PAPER_BATCH {
        return Ok(Vec::new());
    }
    let exchange = line.text("exchange")?;
    if !matches!(exchange, "write" | "copy") {
        return Ok(Vec::new());
    }
    let at = At { key: 0.0, x: 0.0, ..at_batch(line, exchange)? };
    Ok(vec![at.point(role(exchange), exchange, step_s(line)?)])
}

fn gpudirect(line: &Line) -> Result<Vec<Point>, Lacks> {
    let (series, role) = match line.text("crossing")? {
        "direct" => (DIRECT, Role::Ours),
        _ => (BY_HOST, Role::Baseline),
    };
    let (wire, batch) = (line.text("transport")?, line.number("batch")?);
    let place = format!("{wire}, batch {batch}, {}", members(line)?);
    let at = At { key: 0.0, ..At::x(line.text("model")?, Some(place), 0.0) };
    Ok(vec![at.point(role, series, line.seconds("step_s")?)])
}
