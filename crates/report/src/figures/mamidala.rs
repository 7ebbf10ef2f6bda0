//! Mamidala et al., *MXNET-MPI*, §7: epochs and learning curves of the six modes (figures 11 to 14), ResNet-50 by nodes and by
//! batch (15, 16), all-reduce of tensors that devices hold (17 to 20).

use tensorwire_base::human_bytes;

use super::learned::learned_from;
use super::{At, BYTES, CLOCK, RATE, counted, time, words};
use crate::figure::{Axis, Better, Claim, Figure, Point, Role, Scale, Shape, Unit, Wants};
use crate::line::{Lacks, Line};
use crate::measure::Measure;

pub(super) const EPOCHS: Figure = Figure {
    id: "mamidala-12",
    source: "Mamidala et al., Fig. 12",
    title: "An epoch of the six modes",
    says: "Workers in groups (mpi-) instead of each on its own with the servers (dist-) make an epoch 6× shorter. 12 \
           workers on 6 nodes, 2 groups, 2 servers, ResNet-50 on ImageNet. Here an epoch of ResNet-50 is as many steps as \
           1,281,167 images take, each as long as those that were measured; a perceptron's epochs on digits are run. mpi-asgd has the \
           shortest epoch; one of dist-esgd takes as long as one of mpi-esgd.",
    kinds: &["epoch", "modes"],
    run: "tensorwire bench evaluation --only epochs,modes --json FILE",
    take: epochs,
    shape: Shape::Bars,
    y: Axis { title: "an epoch", unit: Unit::Seconds, scale: Scale::Linear },
    better: Better::Lower,
    claims: &[
        Claim::of("mpi-sgd over dist-sgd", &["mpi-sgd"], &["dist-sgd"], Wants::Least(6.0)),
        Claim::of(
            "mpi-asgd not slower than dist-asgd",
            &["mpi-asgd"],
            &["dist-asgd"],
            Wants::Least(1.0),
        ),
        Claim::of("mpi-asgd over mpi-sgd", &["mpi-asgd"], &["mpi-sgd"], Wants::Least(1.0)),
        Claim::of(
            "mpi-esgd as long as dist-esgd",
            &["mpi-esgd"],
            &["dist-esgd"],
            Wants::Within(0.1),
        ),
    ],
};

pub(super) const CURVES: Figure = Figure {
    id: "mamidala-11",
    source: "Mamidala et al., Fig. 11, 13 and 14",
    title: "Learning curves of the six modes",
    says: "mpi-sgd learns faster than dist-sgd, mpi-asgd than dist-asgd; mpi-esgd converges more than 2× as fast as all other \
           modes, and reaches 0.67. The same machines, ResNet-50 on ImageNet; validation accuracy. Where ImageNet is not here, a perceptron \
           learns digits of 8×8, and in a whole run ResNet-50 some of them that are enlarged to 224×224.",
    kinds: &["modes"],
    run: "tensorwire bench evaluation --only modes --json FILE",
    take: curves,
    shape: Shape::Curves(CLOCK, "epoch"),
    y: Axis { title: "test accuracy", unit: Unit::Plain, scale: Scale::Linear },
    better: Better::Higher,
    claims: &[
        Claim::of(
            "mpi-esgd over dist-sgd, to the same accuracy",
            &["mpi-esgd"],
            &["dist-sgd"],
            Wants::TimeTo(2.0),
        ),
        Claim::of(
            "mpi-esgd over dist-asgd, to the same accuracy",
            &["mpi-esgd"],
            &["dist-asgd"],
            Wants::TimeTo(2.0),
        ),
        Claim::of(
            "mpi-esgd over mpi-asgd, to the same accuracy",
            &["mpi-esgd"],
            &["mpi-asgd"],
            Wants::TimeTo(2.0),
        ),
        Claim::of(
            "mpi-esgd over mpi-sgd, to the same accuracy",
            &["mpi-esgd"],
            &["mpi-sgd"],
            Wants::TimeTo(2.0),
        ),
        Claim::of(
            "mpi-esgd over dist-esgd, to the same accuracy",
            &["mpi-esgd"],
            &["dist-esgd"],
            Wants::TimeTo(2.0),
        ),
        Claim {
            says: "mpi-esgd's validation accuracy",
            only: &["resnet50", IMAGENET],
            ours: &["mpi-esgd"],
            against: &[],
            wants: Wants::Reaches(0.67),
        },
        Claim::of(
            "mpi-sgd over dist-sgd, to the same accuracy",
            &["mpi-sgd"],
            &["dist-sgd"],
            Wants::TimeTo(1.0),
        ),
        Claim::of(
            "mpi-asgd over dist-asgd, to the same accuracy",
            &["mpi-asgd"],
            &["dist-asgd"],
            Wants::TimeTo(1.0),
        ),
    ],
};

pub(super) const NODES: Figure = Figure {
    id: "mamidala-15",
    source: "Mamidala et al., Fig. 15",
    title: "ResNet-50 by nodes",
    says: "mpi-SGD without servers: with their rings nearly twice as many images a second as with MPI_Allreduce (reg); best where \
           the batch of a worker stays as it is (weak scaling). Minsky nodes of 4 P100s, 100 Gb/s InfiniBand. That cluster is \
           simulated here, with the speed of a P100 that TensorFlow published; what is measured has a process a node. The paper does \
           not say which algorithm its MPI_Allreduce takes: reg is whatever suits a group, and simulated a ring in which a core of the \
           host adds at 10 GB/s.",
    kinds: &["nodes"],
    run: "tensorwire bench evaluation --only nodes --json FILE",
    take: nodes,
    shape: Shape::Lines(Axis { title: "nodes", unit: Unit::Plain, scale: Scale::Log2 }),
    y: RATE,
    better: Better::Higher,
    claims: &[
        Claim::of(
            "rings over reg, weak scaling, 8 nodes",
            &["ring, weak scaling"],
            &["reg, weak scaling"],
            Wants::At(8.0, 2.0),
        ),
        Claim::of(
            // at two nodes, where the batch begins to be halved, both are the same job
            "weak scaling over strong scaling, 8 nodes",
            &["ring, weak scaling"],
            &["ring, strong scaling"],
            Wants::At(8.0, 1.0),
        ),
    ],
};

pub(super) const BATCHES: Figure = Figure {
    id: "mamidala-16",
    source: "Mamidala et al., Fig. 16",
    title: "Learning curves by batch",
    says: "ResNet-50 on ImageNet by mpi-SGD without servers, batches of 1024, 2048 and 4096 of the whole job on 32, 32 and 64 GPUs, \
           an initial rate of 0.5: a validation accuracy above 0.72. Here 8, 16 and 32 workers have 128 samples each. Where ImageNet is not here, a perceptron learns digits of 8×8, and in a whole \
           run ResNet-50 some of them that are enlarged to 224×224.",
    kinds: &["modes"],
    run: "tensorwire bench evaluation --only batches --json FILE",
    take: batches,
    shape: Shape::Curves(CLOCK, "epoch"),
    y: Axis { title: "test accuracy", unit: Unit::Plain, scale: Scale::Linear },
    better: Better::Higher,
    claims: &[Claim {
        says: "validation accuracy",
        only: &["resnet50", IMAGENET],
        ours: &["batch 2048", "batch 4096", "batch 1024"],
        against: &[],
        wants: Wants::Reaches(0.72),
    }],
};

/// As `--design` spells them; reg is the paper's reduce, MPI_Allreduce, broadcast.
const MULTI_RING: &[&str] = &["multi-ring"];

pub(super) const TENSORS_BY_RANKS: Figure = Figure {
    id: "mamidala-17",
    source: "Mamidala et al., Fig. 17 to 19",
    title: "All-reduce of a tensor on several devices, by processes",
    says: "Rings that devices take part in, against reduce, MPI_Allreduce and broadcast (reg): the multi-ring is best at 4, \
           16 and 64 MB on 2 to 32 nodes; training with it is nearly 2× as fast.",
    kinds: &["allreduce"],
    run: "tensorwire bench evaluation --only allreduce --json FILE",
    take: by_ranks,
    shape: Shape::Lines(Axis { title: "processes", unit: Unit::Plain, scale: Scale::Log2 }),
    y: time("an all-reduce"),
    better: Better::Lower,
    claims: &[
        Claim::of(
            "multi-ring over reg, every number of processes",
            MULTI_RING,
            &["reg"],
            Wants::Least(2.0),
        ),
        best_beside("multi-ring over one ring, every number of processes", &["single-ring"]),
        best_beside("multi-ring over a ring of hosts, every number of processes", &["omp-ring"]),
    ],
};

/// They say that it does best.
const fn best_beside(says: &'static str, against: &'static [&'static str]) -> Claim {
    Claim::of(says, MULTI_RING, against, Wants::Least(1.0))
}

pub(super) const TENSORS_BY_SIZE: Figure = Figure {
    id: "mamidala-20",
    source: "Mamidala et al., Fig. 20",
    title: "All-reduce of a tensor on several devices, by size",
    says: "A factor of six over a flat ring that connects every device (Baidu's), up to 300 MB, for 4, 8 and 16 GPUs.",
    kinds: &["allreduce"],
    run: "tensorwire bench evaluation --only allreduce --json FILE",
    take: by_size,
    shape: Shape::Lines(BYTES),
    y: time("an all-reduce"),
    better: Better::Lower,
    claims: &[Claim {
        says: "multi-ring over a flat ring, the best size",
        only: &[],
        ours: MULTI_RING,
        against: &["flat-ring"],
        wants: Wants::Best(6.0),
    }],
};

fn epochs(line: &Line) -> Result<Vec<Point>, Lacks> {
    if is_without_servers(line) {
        return Ok(Vec::new());
    }
    let seconds = if line.kind() == Some("epoch") {
        // each step as those that were measured
        line.seconds("step_s")?.scaled(line.number("epoch_steps")?)
    } else {
        let (epoch, seconds) = (line.number("epoch")?, line.number("seconds")?);
        if epoch <= 0.0 {
            return Ok(Vec::new());
        }
        (seconds / epoch).into()
    };
    let at = At { key: 0.0, ..At::x(job(line)?, None, 0.0) };
    Ok(vec![mode(line, &at, seconds)?])
}

fn curves(line: &Line) -> Result<Vec<Point>, Lacks> {
    if is_without_servers(line) {
        return Ok(Vec::new());
    }
    let at = at_epoch(line, job(line)?)?;
    Ok(vec![mode(line, &at, accuracy(line)?)?])
}

/// At an epoch's end, which runs of the job reached a little sooner or later.
fn at_epoch(line: &Line, subject: String) -> Result<At, Lacks> {
    let seconds = line.percentiles("seconds", "repetitions")?;
    let x_ends = seconds.spread.map(|it| [it.low, it.high]);
    let key = line.number("epoch")?;
    Ok(At { key, x_ends, ..At::x(subject, None, seconds.median) })
}

/// The median of as many runs as the line says.
fn accuracy(line: &Line) -> Result<Measure, Lacks> {
    line.percentiles("test_accuracy", "repetitions")
}

/// Curves of one mode, by the batch of the whole job.
fn batches(line: &Line) -> Result<Vec<Point>, Lacks> {
    if !is_without_servers(line) {
        return Ok(Vec::new());
    }
    let subject = words([model(line), learned_from(line, Some(IMAGENET)), None, None]);
    let at = at_epoch(line, subject)?;
    let series = format!("batch {}", line.number("workers")? * line.number("batch")?);
    Ok(vec![at.point(Role::Ours, series, accuracy(line)?)])
}

fn nodes(line: &Line) -> Result<Vec<Point>, Lacks> {
    let place = match line.optional_text("cluster") {
        Some(cluster) => format!("simulated, {cluster}"),
        None => format!("measured here, {}", line.text("transport")?),
    };
    let at = At::x(line.text("model")?, Some(place), line.number("nodes")?);
    let design = line.text("design")?;
    let role = if design == "ring" { Role::Ours } else { Role::Baseline };
    let samples = line.number("workers")? * line.number("batch")?;
    let rate = line.seconds("step_s")?.rate_of(samples);
    Ok(vec![at.point(role, format!("{design}, {} scaling", line.text("scaling")?), rate)])
}

const IMAGENET: &str = "ImageNet";

/// One mode, which has a figure of its own.
fn is_without_servers(line: &Line) -> bool {
    line.optional_number("servers") == Some(0.0)
}

fn model(line: &Line) -> Option<String> {
    line.optional_text("model").map(str::to_string)
}

/// Model, data and workers.
fn job(line: &Line) -> Result<String, Lacks> {
    let workers = counted(line.number("workers")?, "worker");
    Ok(words([model(line), learned_from(line, Some(IMAGENET)), Some(workers), None]))
}

fn mode(line: &Line, at: &At, y: impl Into<Measure>) -> Result<Point, Lacks> {
    let mode = line.text("mode")?;
    let role = if mode.starts_with("mpi-") { Role::Ours } else { Role::Baseline };
    Ok(at.point(role, mode, y))
}

/// The design of a line about tensors on devices, and how many of them a process has.
fn design(line: &Line) -> Result<Option<(&str, String)>, Lacks> {
    match line.optional_text("design") {
        Some(design) => Ok(Some((design, counted(line.number("devices")?, "device") + " each"))),
        None => Ok(None),
    }
}

fn design_role(design: &str) -> Role {
    if design == "multi-ring" { Role::Ours } else { Role::Baseline }
}

fn by_ranks(line: &Line) -> Result<Vec<Point>, Lacks> {
    let Some((design, devices)) = design(line)? else {
        return Ok(Vec::new());
    };
    // no size is negative; above 2^64 it is not one of a vector either
    let size = human_bytes(line.number("bytes")? as u64);
    let place = format!("{}, {devices}", line.text("transport")?);
    let at = At::x(size, Some(place), line.number("ranks")?);
    Ok(vec![at.point(design_role(design), design, line.seconds("median_s")?)])
}

fn by_size(line: &Line) -> Result<Vec<Point>, Lacks> {
    let Some((design, devices)) = design(line)? else {
        return Ok(Vec::new());
    };
    let subject = format!("{}, {devices}", counted(line.number("ranks")?, "rank"));
    let at = At::x(subject, Some(line.text("transport")?.to_string()), line.number("bytes")?);
    Ok(vec![at.point(design_role(design), design, line.seconds("median_s")?)])
}
