//! A training step over links of a given rate, measured and simulated.

use super::{At, WORKERS, counted, members, role, time};
use crate::figure::{Axis, Better, Claim, Figure, Point, Role, Scale, Shape, Unit, Wants};
use crate::line::{Lacks, Line};

const COMPUTED: &str = "what is computed, nothing exchanged";
const LOCAL: &str = "one worker alone, no communication";

pub(super) const LINKS: Figure = Figure {
    id: "links",
    source: "Beside Xue et al., Fig. 9",
    title: "A training step over links of a given rate",
    says: "No paper's: two hosts of a worker and a server each, which are network namespaces of one machine with a link of that \
           rate to a switch. The simulated hosts have half of the machine each.",
    kinds: &["links"],
    run: "tensorwire bench evaluation --only links --json FILE",
    take: links,
    shape: Shape::Bars,
    y: Axis { title: "a step", unit: Unit::Seconds, scale: Scale::Linear },
    better: Better::Lower,
    claims: &[
        Claim::of("not slower than gRPC.TCP", &["write"], &["grpc-tcp"], Wants::Least(1.0)),
        Claim::of("not slower than gRPC.RDMA", &["write"], &["grpc-rdma"], Wants::Least(1.0)),
        Claim::of("not slower than ZeroMQ", &["write"], &["zmq"], Wants::Least(1.0)),
        Claim::of(
            "simulated against measured",
            &["write, simulated"],
            &["write"],
            Wants::Within(0.15),
        ),
        Claim::of(
            "gRPC.RDMA, simulated against measured",
            &["grpc-rdma, simulated"],
            &["grpc-rdma"],
            Wants::Within(0.15),
        ),
        Claim::of(
            "gRPC.TCP, simulated against measured",
            &["grpc-tcp, simulated"],
            &["grpc-tcp"],
            Wants::Within(0.15),
        ),
    ],
};

pub(super) const SIMULATED: Figure = Figure {
    id: "links-simulated",
    source: "Beside Xue et al., Fig. 9",
    title: "Steps of 2 to 8 processes over links of a given rate, simulated and measured",
    says: "No paper's: two hosts with as many workers each, which are network namespaces of one machine with a link of that rate to a \
           switch. Workers hold the variables of ps, and have as many servers of the store of dist-sgd beside them; what stays on \
           a host goes by shared memory. The simulated hosts have half of the machine each; what was measured beside is what \
           the workers compute if they exchange nothing, what sockets cost a core, and how fast memory is.",
    kinds: &["links-simulated"],
    run: "tensorwire bench evaluation --only links-simulated --json FILE",
    take: simulated,
    shape: Shape::Lines(WORKERS),
    y: time("a step"),
    better: Better::Lower,
    claims: &[Claim::of(
        "simulated against measured, the worst",
        &["simulated"],
        &["measured"],
        Wants::Within(0.15),
    )],
};

/// How many of those rows are near enough, which `bench evaluation` counts itself.
pub(super) const WITHIN: Figure = Figure {
    id: "links-simulated-rows",
    source: "Beside Xue et al., Fig. 9",
    title: "How many of these steps are simulated within 15 % of the measured",
    says: "No paper's: of all steps of a run over links of a given rate, a share of 0.9 is wanted. A quick run has fewer.",
    kinds: &["links-simulated-goal"],
    run: "tensorwire bench evaluation --only links-simulated --json FILE",
    take: within,
    shape: Shape::Bars,
    y: Axis { title: "share of the steps", unit: Unit::Plain, scale: Scale::Linear },
    better: Better::Higher,
    claims: &[Claim::of("simulated within 15 %", &[NEAR], &[], Wants::Reaches(0.9))],
};

const NEAR: &str = "within 15 % of the measured";

fn within(line: &Line) -> Result<Vec<Point>, Lacks> {
    let subject = counted(line.number("rows")?, "step");
    let at = At { key: 0.0, ..At::x(subject, None, 0.0) };
    Ok(vec![at.point(Role::Ours, NEAR, line.number("ratio")?)])
}

fn simulated(line: &Line) -> Result<Vec<Point>, Lacks> {
    let subject = format!("{}, {}", line.text("model")?, line.text("strategy")?);
    let place = format!("{}, batch {}", line.text("link")?, line.number("batch")?);
    let at = At::x(subject, Some(place), line.number("workers")?);
    let measured = at.point(Role::Limit, "measured", line.seconds("step_s")?);
    let simulated = at.point(Role::Ours, "simulated", line.number("simulated_step_s")?);
    let computed = line.optional_number("local_step_s");
    let computed = computed.map(|seconds| at.point(Role::Limit, COMPUTED, seconds));
    Ok([simulated, measured].into_iter().chain(computed).collect())
}

fn links(line: &Line) -> Result<Vec<Point>, Lacks> {
    let exchange = line.text("exchange")?;
    let subject = format!("{}, batch {}", line.text("model")?, line.number("batch")?);
    let place = format!("{}, {}", line.text("link")?, members(line)?);
    let at = At { key: 0.0, ..At::x(subject, Some(place), 0.0) };
    let mut points = vec![at.point(role(exchange), exchange, line.seconds("step_s")?)];
    if let Some(simulated) = line.optional_number("simulated_step_s") {
        points.push(at.point(Role::Limit, format!("{exchange}, simulated"), simulated));
    }
    if let Some(local) = line.optional_number("local_step_s") {
        points.push(at.point(Role::Limit, LOCAL, local));
    }
    Ok(points)
}
