//! Li et al., *Accelerating MXNet with RDMA*, §4: figures 7 and 8.

use super::learned::{image_size, learned_from};
use super::{At, RATE, WORKERS, counted, has_store, over_link, role, time, words};
use crate::figure::{Better, Claim, Figure, Point, Role, Shape, Wants};
use crate::line::{Lacks, Line};

/// 100,000 numbers of 4 bytes.
const PAPER_BYTES: f64 = 400_000.0;

/// A worker has the value in a tensor of its own in the end, as theirs. Shown where its server has it is less work.
const OURS: &[&str] = &["zero-copy, filled"];
const ZMQ: &[&str] = &["zmq"];
const SLOW_ZMQ: &str = "zmq over 1 Gb/s";

pub(super) const STORE: Figure = Figure {
    id: "li-7",
    source: "Li et al., Fig. 7",
    title: "Push and pull of 100,000 numbers, by workers and servers",
    says: "ps-lite over RDMA (40 Gb/s InfiniBand) is 21× as fast as over TCP (1 Gb/s Ethernet) with few workers and 16× with \
           32. Over the same InfiniBand's IP it is 11 % faster, 36 % with 32: that part is the software's.",
    kinds: &["kvstore"],
    run: "tensorwire bench evaluation --only store --json FILE",
    take: store,
    shape: Shape::Lines(WORKERS),
    y: time("a push and a pull"),
    better: Better::Lower,
    claims: &[
        claim("the same wire, every number of workers", &["tcp"], Wants::Least(1.11)),
        claim("the same wire, 32 workers", &["tcp"], Wants::At(32.0, 1.36)),
        claim("over a link of 1 Gb/s, every number of workers", &["1gbit"], Wants::Least(1.11)),
        claim("their RDMA over their TCP, every number of workers", &["shm"], Wants::Least(16.0)),
        claim("their RDMA over their TCP, the best", &["shm"], Wants::Best(21.0)),
        claim("RDMA over TCP, every number of workers", &["verbs"], Wants::Least(16.0)),
        claim("RDMA over TCP, the best", &["verbs"], Wants::Best(21.0)),
        slow("their RDMA over their TCP of 1 Gb/s, every number of workers", Wants::Least(16.0)),
        slow("their RDMA over their TCP of 1 Gb/s, the best", Wants::Best(21.0)),
    ],
};

pub(super) const TRAINING: Figure = Figure {
    id: "li-8",
    source: "Li et al., Fig. 8",
    title: "Training over a store, by workers",
    says: "A perceptron with two hidden layers of 2048: on MNIST 3.13× as fast as over TCP with 2 nodes and 4.62× with 8 \
           (over IP on the same InfiniBand 1.06× and 1.25×); on CIFAR-10 5× and 9× (1.14× and 1.31×). Where those images are \
           not here, made-up ones of the same size stand in their place: a step takes as long.",
    kinds: &["throughput", "scaling", "step"],
    run: "tensorwire bench evaluation --only store-training --json FILE",
    take: training,
    shape: Shape::Lines(WORKERS),
    y: RATE,
    better: Better::Higher,
    claims: &[
        trains("MNIST's size, the same wire, 2 workers", MNIST_TCP, Wants::At(2.0, 1.06)),
        trains("MNIST's size, the same wire, 8 workers", MNIST_TCP, Wants::At(8.0, 1.25)),
        trains(
            "MNIST's size, their RDMA over their TCP, 2 workers",
            MNIST_SHM,
            Wants::At(2.0, 3.13),
        ),
        trains(
            "MNIST's size, their RDMA over their TCP, 8 workers",
            MNIST_SHM,
            Wants::At(8.0, 4.62),
        ),
        slow_training(
            "MNIST's size, their RDMA over their TCP of 1 Gb/s, 2 workers",
            MNIST_SHM,
            Wants::At(2.0, 3.13),
        ),
        slow_training(
            "MNIST's size, their RDMA over their TCP of 1 Gb/s, 8 workers",
            MNIST_SHM,
            Wants::At(8.0, 4.62),
        ),
        trains("MNIST's size, RDMA over TCP, 2 workers", MNIST_VERBS, Wants::At(2.0, 3.13)),
        trains("MNIST's size, RDMA over TCP, 8 workers", MNIST_VERBS, Wants::At(8.0, 4.62)),
        trains("CIFAR-10's size, the same wire, 2 workers", CIFAR_TCP, Wants::At(2.0, 1.14)),
        trains("CIFAR-10's size, the same wire, 8 workers", CIFAR_TCP, Wants::At(8.0, 1.31)),
        trains(
            "CIFAR-10's size, their RDMA over their TCP, 2 workers",
            CIFAR_SHM,
            Wants::At(2.0, 5.0),
        ),
        trains(
            "CIFAR-10's size, their RDMA over their TCP, 8 workers",
            CIFAR_SHM,
            Wants::At(8.0, 9.0),
        ),
        slow_training(
            "CIFAR-10's size, their RDMA over their TCP of 1 Gb/s, 2 workers",
            CIFAR_SHM,
            Wants::At(2.0, 5.0),
        ),
        slow_training(
            "CIFAR-10's size, their RDMA over their TCP of 1 Gb/s, 8 workers",
            CIFAR_SHM,
            Wants::At(8.0, 9.0),
        ),
        trains("CIFAR-10's size, RDMA over TCP, 2 workers", CIFAR_VERBS, Wants::At(2.0, 5.0)),
        trains("CIFAR-10's size, RDMA over TCP, 8 workers", CIFAR_VERBS, Wants::At(8.0, 9.0)),
    ],
};

const MNIST_TCP: &[&str] = &["mlp", "28×28×1", "tcp"];
const MNIST_VERBS: &[&str] = &["mlp", "28×28×1", "verbs"];
const CIFAR_VERBS: &[&str] = &["mlp", "32×32×3", "verbs"];
const MNIST_SHM: &[&str] = &["mlp", "28×28×1", "shm"];
const CIFAR_TCP: &[&str] = &["mlp", "32×32×3", "tcp"];
const CIFAR_SHM: &[&str] = &["mlp", "32×32×3", "shm"];

const fn claim(says: &'static str, only: &'static [&'static str], wants: Wants) -> Claim {
    Claim { says, only, ours: OURS, against: ZMQ, wants }
}

/// Ours where processes share memory over ZeroMQ between hosts.
const fn slow(says: &'static str, wants: Wants) -> Claim {
    Claim { says, only: &["shm"], ours: OURS, against: &[SLOW_ZMQ], wants }
}

const fn trains(says: &'static str, only: &'static [&'static str], wants: Wants) -> Claim {
    Claim { says, only, ours: &["zero-copy"], against: ZMQ, wants }
}

/// The same, over ZeroMQ between hosts.
const fn slow_training(says: &'static str, only: &'static [&'static str], wants: Wants) -> Claim {
    Claim { says, only, ours: &["zero-copy"], against: &[SLOW_ZMQ], wants }
}

/// Who wrote a line about a store.
pub(super) fn store_series(line: &Line) -> Result<(Role, String), Lacks> {
    if line.optional_text("system") == Some("mxnet") {
        return Ok((Role::Peer, "MXNet dist_sync".to_string()));
    }
    let exchange = line.text("exchange")?;
    match (exchange, line.optional_text("pull")) {
        ("zero-copy", Some(pull)) => Ok((Role::Ours, format!("{exchange}, {pull}"))),
        _ => Ok((role(exchange), exchange.to_string())),
    }
}

fn store(line: &Line) -> Result<Vec<Point>, Lacks> {
    let (workers, servers) = (line.number("workers")?, line.number("servers")?);
    if line.number("bytes")? != PAPER_BYTES || workers != servers {
        return Ok(Vec::new());
    }
    let (role, series) = store_series(line)?;
    // ZeroMQ is beside each transport, over TCP
    let place = line.optional_text("transport").map(|transport| over_link(line, transport));
    let (subject, y) = ("as many servers as workers", line.seconds("median_s")?);
    let point = At::x(subject, place, workers).point(role, series.as_str(), y);
    // what they compare is memory that a NIC reaches with TCP over 1 Gb/s
    let beside = (series == "zmq" && line.optional_text("link") == Some("1gbit"))
        .then(|| At::x(subject, Some("shm".to_string()), workers).point(role, SLOW_ZMQ, y));
    Ok([point].into_iter().chain(beside).collect())
}

fn training(line: &Line) -> Result<Vec<Point>, Lacks> {
    if !has_store(line)
        || (line.kind() == Some("step") && line.optional_number("ps_ms.median").is_none())
    {
        return Ok(Vec::new());
    }
    let exchange = line.text("exchange")?;
    let (workers, batch) = (line.number("workers")?, line.number("batch")?);
    let step_s = match line.kind() {
        Some("step") => line.quantiles("ps_ms.median")?.scaled(1e-3),
        _ => line.seconds("step_s")?,
    };
    let strategy = line.text("strategy")?;
    let size = image_size(line);
    let papers = match size.as_deref() {
        Some("28×28×1") => Some("MNIST"),
        Some("32×32×3") => Some("CIFAR-10"),
        _ => None,
    };
    let subject = words([
        Some(line.text("model")?.to_string()),
        size,
        learned_from(line, papers),
        Some(format!("{strategy}, {}", counted(batch, "sample"))),
    ]);
    // ZeroMQ goes over TCP alone, and is what each transport is held against, as their TCP is
    let place = line.optional_text("transport").map(|transport| over_link(line, transport));
    let is_beside_all = exchange == "zmq" && line.optional_text("link").is_none();
    let at = |place| At::x(subject.clone(), place, workers);
    let rate = step_s.rate_of(workers * batch);
    let point = at(place.filter(|_| !is_beside_all)).point(role(exchange), exchange, rate);
    // as of figure 7
    let beside = (exchange == "zmq" && line.optional_text("link") == Some("1gbit"))
        .then(|| at(Some("shm".to_string())).point(role(exchange), SLOW_ZMQ, rate));
    Ok([point].into_iter().chain(beside).collect())
}
