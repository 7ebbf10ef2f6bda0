//! Steps over links of a given rate: by exchange, and by strategy beside what is simulated.

use tensorwire_simulate::SimulatedStrategy;
use tensorwire_train::Exchange;
use tensorwire_zoo::{Fcn5, Mlp, Shipped, Vgg16};

use super::FigureScope;
use super::xue::SMALL_BATCH;
use crate::evaluation::{Case, LinkBench, LinkJob, LinkRate, LinkSteps, NotMeasured};
use crate::machine::cores;

const SLOW: LinkRate = LinkRate { name: "1gbit", bits_per_second: 1e9 };
const FAST: LinkRate = LinkRate { name: "10gbit", bits_per_second: 1e10 };

/// Of the papers' InfiniBand.
const FASTEST: LinkRate = LinkRate { name: "100gbit", bits_per_second: 1e11 };

/// What is said where there can be no such hosts.
fn missing(scope: &FigureScope, figure: &'static str) -> Option<Case> {
    missing_part(scope, (figure, figure), Vec::new())
}

/// The same of a part of a figure of the page, which is measured by another name.
fn missing_part(
    scope: &FigureScope,
    (figure, only): (&'static str, &'static str),
    subject: Vec<&'static str>,
) -> Option<Case> {
    let why = scope.no_links.as_ref()?;
    Some(Case::NotMeasured(NotMeasured {
        figure,
        subject,
        why: format!("no such hosts: {why}"),
        command: Some(format!("tensorwire bench evaluation --only {only}")),
    }))
}

/// A benchmark of this program over a link, or why not.
fn over_link(
    scope: &FigureScope,
    (figure, only): (&'static str, &'static str),
    rate: LinkRate,
    arguments: &[&str],
) -> Case {
    let arguments = arguments.iter().copied().map(str::to_string).collect();
    let scratch = scope.scratch.clone();
    missing_part(scope, (figure, only), vec![rate.name]).unwrap_or(Case::LinkBench(LinkBench {
        figure,
        only,
        rate,
        arguments,
        scratch,
    }))
}

/// What a benchmark is given that has fewer repetitions of its own.
fn quickly(scope: &FigureScope) -> &'static [&'static str] {
    if scope.quick { &["--quick"] } else { &[] }
}

/// Names of those of `exchanges` that there are, with commas between.
fn built_in(scope: &FigureScope, exchanges: &[Exchange]) -> String {
    let all = exchanges.iter().filter(|exchange| scope.exchanges.contains(exchange));
    all.map(|exchange| exchange.name()).collect::<Vec<_>>().join(",")
}

/// Figure 8 of Xue et al. between hosts: nothing is by reference there.
pub(super) fn transfers(scope: &FigureScope) -> Vec<Case> {
    let exchanges = [Exchange::Write, Exchange::GrpcTcp, Exchange::GrpcRdma];
    let exchanges = built_in(scope, &exchanges);
    let of = |rate| {
        let arguments = ["transfer", "--transport", "tcp", "--kind", "static"];
        let more = ["--exchange", &exchanges, "--sizes", "64KiB,1MiB,16MiB"];
        let all = [&arguments[..], &more, quickly(scope)].concat();
        over_link(scope, ("xue-8", "transfer-links"), rate, &all)
    };
    [SLOW, FAST, FASTEST].map(of).to_vec()
}

/// Figure 7 of Li et al. over their slower link.
pub(super) fn store(scope: &FigureScope) -> Case {
    let exchanges = match scope.exchanges.contains(&Exchange::Zmq) {
        true => "zero-copy,zmq",
        false => "zero-copy",
    };
    let workers = if scope.quick { "1,2" } else { "1,2,4,8" };
    let arguments = ["kvstore", "--transport", "tcp", "--pull", "filled"];
    let more = ["--workers", workers, "--exchange", exchanges];
    let all = [&arguments[..], &more, quickly(scope)].concat();
    over_link(scope, ("li-7", "store"), SLOW, &all)
}

/// Why figure 8 of Li et al. is not measured over their slower link.
pub(super) fn no_store_training(scope: &FigureScope) -> Option<Case> {
    missing_part(scope, ("li-8", "store-training"), vec![SLOW.name])
}

/// Figure 8 of Li et al. over their slower link, of images of this size, if there can be such.
pub(super) fn store_training(scope: &FigureScope, data: &str, workers: u32) -> Option<Case> {
    if scope.no_links.is_some() {
        return None;
    }
    // workers begin one after the other, and take some steps to come together
    let (steps, repetitions) = if scope.quick { ("20", "1") } else { ("30", "3") };
    // hosts do not know that they share this machine's cores
    let threads = (cores() / workers as usize).max(1).to_string();
    let workers = workers.to_string();
    let job = ["step", "--model", "mlp", "--data", data, "--strategy", "dist-sgd"];
    let size =
        ["--workers", &workers, "--servers", &workers, "--batch", "64", "--threads", &threads];
    let much = ["--steps", steps, "--iterations", repetitions, "--transport", "tcp"];
    let against: &[&str] = match scope.exchanges.contains(&Exchange::Zmq) {
        true => &["--against", "zmq"],
        false => &[],
    };
    let all = [&job[..], &size, &much, against].concat();
    Some(over_link(scope, ("li-8", "store-training"), SLOW, &all))
}

/// What crosses of a small model, and of one of the paper's that sends much.
pub(super) fn exchanges(scope: &FigureScope) -> Vec<Case> {
    if let Some(missing) = missing(scope, "links") {
        return vec![missing];
    }
    let exchanges = [Exchange::Write, Exchange::GrpcTcp, Exchange::GrpcRdma, Exchange::Zmq];
    let exchanges = exchanges.into_iter().filter(|of| scope.exchanges.contains(of));
    let exchanges: Vec<Exchange> = exchanges.collect();
    if exchanges.is_empty() {
        return Vec::new();
    }
    let steps = |quick, all| if scope.quick { quick } else { all };
    // what takes longest is last
    let cases: [(&dyn Shipped, usize, LinkRate, u64); 4] = [
        (&Mlp, 16, SLOW, steps(8, 30)),
        (&Mlp, 16, FAST, steps(16, 30)),
        (&Fcn5, SMALL_BATCH, FAST, steps(4, 8)),
        (&Fcn5, SMALL_BATCH, SLOW, steps(3, 5)),
    ];
    let case = |(model, batch, rate, steps)| {
        let (exchanges, scratch) = (exchanges.clone(), scope.scratch.clone());
        Case::Links(LinkSteps { model, batch, rate, exchanges, steps, scratch })
    };
    cases.map(case).to_vec()
}

/// A model over such links, and how much of it is measured.
struct Linked {
    model: &'static dyn Shipped,
    data: &'static str,
    batch: usize,
    rate: LinkRate,
    /// Workers of a host.
    a_host: &'static [u32],
    steps: u64,
    /// A step of the large one takes up to 20 s.
    repetitions_max: usize,
    computing_max: u32,
}

const STRATEGIES: [SimulatedStrategy; 3] =
    [SimulatedStrategy::Ps, SimulatedStrategy::AllReduce, SimulatedStrategy::DistSgd];

/// Two hosts of 1, 2 and 4 workers, by each strategy. The faster link with one each: two cores cannot feed more.
pub(super) fn simulated(scope: &FigureScope) -> Vec<Case> {
    if let Some(missing) = missing(scope, "links-simulated") {
        return vec![missing];
    }
    let all: &[u32] = &[1, 2, 4];
    let mlp = Linked {
        model: &Mlp,
        data: "synthetic:256",
        batch: 16,
        rate: SLOW,
        a_host: all,
        // workers begin one after the other, and take some steps to come together
        steps: 20,
        repetitions_max: 3,
        computing_max: u32::MAX,
    };
    let fcn5 = Linked { model: &Fcn5, batch: SMALL_BATCH, steps: 8, ..mlp };
    let vgg16 = Linked {
        model: &Vgg16,
        data: "synthetic:16",
        batch: 1,
        // the last one's all-reduce has no step to hide in: of few it is much
        steps: 5,
        repetitions_max: 1,
        computing_max: 2,
        ..mlp
    };
    // what takes longest is last
    let models = match scope.quick {
        true => vec![
            Linked { a_host: &[1, 2], steps: 10, ..mlp },
            Linked { a_host: &[1], steps: 3, ..fcn5 },
        ],
        false => vec![
            Linked { a_host: &[1], rate: FAST, steps: 30, ..mlp },
            mlp,
            Linked { a_host: &[1], rate: FAST, ..fcn5 },
            fcn5,
            Linked { a_host: &[1], rate: FAST, steps: 8, ..vgg16 },
            vgg16,
        ],
    };
    let mut cases = Vec::new();
    for linked in models {
        let Linked { model, data, batch, rate, steps, repetitions_max, computing_max, .. } = linked;
        for &a_host in linked.a_host {
            cases.extend(STRATEGIES.map(|strategy| {
                Case::LinkJob(LinkJob {
                    model,
                    data,
                    batch,
                    rate,
                    strategy,
                    a_host,
                    steps,
                    repetitions_max,
                    computing_max,
                    scratch: scope.scratch.clone(),
                })
            }));
        }
    }
    cases
}
