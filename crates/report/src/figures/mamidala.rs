//! Mamidala et al., *MXNET-MPI*, §7: epochs and learning curves of the six modes (figures 11 to 14), all-reduce of tensors
//! that devices hold (17 to 20).

use tensorwire_base::human_bytes;

use super::{At, BYTES, CLOCK, counted, time};
use crate::figure::{Axis, Better, Claim, Figure, Point, Role, Scale, Shape, Unit, Wants};
use crate::line::{Lacks, Line};

pub(super) const EPOCHS: Figure = Figure {
    id: "mamidala-12",
    source: "Mamidala et al., Fig. 12",
    title: "An epoch of the six modes",
    says: "Workers in groups (mpi-) instead of each on its own with the servers (dist-) make an epoch 6× shorter. 12 \
           workers on 6 nodes, 2 groups, 2 servers, ResNet-50 on ImageNet.",
    kinds: &["modes"],
    run: "tensorwire bench evaluation --only modes --json FILE",
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
            Wants::Best(1.0),
        ),
    ],
};

pub(super) const CURVES: Figure = Figure {
    id: "mamidala-11",
    source: "Mamidala et al., Fig. 11, 13 and 14",
    title: "Learning curves of the six modes",
    says: "mpi-sgd learns faster than dist-sgd, mpi-asgd than dist-asgd; mpi-esgd converges more than 2× as fast as all other \
           modes. The same machines; validation accuracy.",
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
    claims: &[Claim {
        says: "multi-ring over reg, every number of processes",
        only: &[],
        ours: MULTI_RING,
        against: &["reg"],
        wants: Wants::Least(2.0),
    }],
};

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
    let (epoch, seconds) = (line.number("epoch")?, line.number("seconds")?);
    if epoch <= 0.0 {
        return Ok(Vec::new());
    }
    let at = At { key: 0.0, x: 0.0, ..At::x(workers(line)?, None, epoch) };
    Ok(vec![mode(line, &at, seconds / epoch)?])
}

fn curves(line: &Line) -> Result<Vec<Point>, Lacks> {
    let at = At::x(workers(line)?, None, line.number("seconds")?);
    let at = At { key: line.number("epoch")?, ..at };
    Ok(vec![mode(line, &at, line.number("test_accuracy")?)?])
}

fn workers(line: &Line) -> Result<String, Lacks> {
    Ok(counted(line.number("workers")?, "worker"))
}

fn mode(line: &Line, at: &At, y: f64) -> Result<Point, Lacks> {
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
