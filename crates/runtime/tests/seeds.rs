//! Seeded schedules: sessions of a job that a seed made, driven by one thread in an order that the seed
//! chooses, over a network that places bytes, signals and completions as the seed likes. Every tensor of
//! every step is held against what the graph computes without any of this.
//!
//! To see one seed again: `TENSORWIRE_SEED=1234 cargo test -p tensorwire-runtime --test seeds one_seed
//! -- --nocapture`.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use support::driver::{Life, drive};
use support::generate::Job;
use support::oracle::{Value, closure, evaluate};
use support::random::{Random, fold};
use tensorwire_fabric::{Backend, SimNetwork};
use tensorwire_graph::{NodeId, Op, PlanOptions, Reuse, ReuseRule, RunId};
use tensorwire_kernels::{KernelChoice, Kernels};
use tensorwire_runtime::{OneSidedOptions, Opening, Session};
use tensorwire_testkit::mesh;

/// No state: the seeds share them and stay independent.
static KERNELS: LazyLock<Arc<Kernels>> =
    LazyLock::new(|| Arc::new(Kernels::open(KernelChoice::Cpu, 1)));

/// What is to be fed and found, step by step.
struct Expected<'a> {
    job: &'a Job,
    fed: Vec<HashMap<NodeId, Value>>,
    start: HashMap<NodeId, Value>,
    /// By step: the roots' values when it is over.
    found: Vec<HashMap<NodeId, Value>>,
    /// Tensors verified so far.
    verified: u64,
}

impl<'a> Expected<'a> {
    fn new(job: &'a Job, seed: u64) -> Expected<'a> {
        let start = job.variables(seed);
        let fed: Vec<_> = (0..job.steps.len()).map(|step| job.fed(seed, step)).collect();
        let members: Vec<HashSet<NodeId>> =
            job.roots.iter().map(|roots| closure(&job.graph, roots)).collect();
        let mut variables = start.clone();
        let mut found = Vec::new();
        for (fed, run) in fed.iter().zip(&job.steps) {
            let values = evaluate(&job.graph, &KERNELS, &members[*run], fed, &mut variables);
            let value = |root: &NodeId| {
                let value = variables.get(root).or_else(|| values.get(&(*root).into()))?;
                Some((*root, value.clone()))
            };
            found.push(job.roots[*run].iter().filter_map(value).collect());
        }
        Expected { job, fed, start, found, verified: 0 }
    }
}

impl Life for Expected<'_> {
    fn begin(&mut self, _part: usize, step: usize, session: &mut Session) -> Option<RunId> {
        let run = *self.job.steps.get(step)?;
        let start = self.start.iter().filter(|_| step == 0);
        for (id, value) in start.chain(&self.fed[step]) {
            if let Ok(node) = session.node(&self.job.graph.node(*id).name)
                && matches!(
                    session.part().graph.node(node).op,
                    Op::Input { .. } | Op::Variable { .. }
                )
            {
                let (_, mut bytes) = session.feed(node.into(), value.spec.dims()).unwrap();
                bytes.copy_from_slice(value.bytes());
            }
        }
        Some(RunId(run))
    }

    fn end(&mut self, _part: usize, step: usize, session: &Session) -> Result<(), String> {
        for (id, expected) in &self.found[step] {
            let name = &self.job.graph.node(*id).name;
            let Ok(node) = session.node(name) else {
                continue;
            };
            let (spec, bytes) = session.read(node.into()).map_err(|error| error.to_string())?;
            if *spec != expected.spec {
                return Err(format!("'{name}' is {spec}, not {}", expected.spec));
            }
            let wrong = |at: &usize| bytes[*at] != expected.bytes()[*at];
            let wrong = (0..bytes.len()).filter(wrong).count();
            if wrong > 0 {
                return Err(format!("{wrong} of {} bytes of '{name}' are wrong", bytes.len()));
            }
            self.verified += 1;
        }
        Ok(())
    }
}

/// What a seed showed.
struct Seen {
    trace: u64,
    verified: u64,
    /// Edges whose memory was kept by a credit.
    credits: usize,
    dynamic: usize,
}

fn run_seed(seed: u64, reuse: ReuseRule) -> Result<Seen, String> {
    let mut random = Random::new(seed);
    let job = Job::new(&mut random, PlanOptions { reuse, ..PlanOptions::default() });
    let mut expected = Expected::new(&job, seed);
    let network = SimNetwork::new(random.next(), job.knobs);
    let parts = job.plan.parts.len() as u32;
    let fabrics = mesh::open(&Backend::Sim(network.clone()), parts, |config| {
        (config.queue_depth, config.queue_pairs_per_peer) = (job.queue_depth, job.queue_pairs);
        config.arrival_slots = 512;
    });
    mesh::connect(&fabrics);
    let told = OneSidedOptions::new(&job.plan, job.queue_pairs, 1 << 22);
    let openings = fabrics.iter().enumerate().map(|(part, fabric)| {
        Opening::new(fabric, &job.plan, part, told.clone(), mesh::soon()).unwrap()
    });
    let opened = Opening::complete_all(openings.collect(), mesh::soon()).unwrap();
    let mut sessions: Vec<Session> = opened
        .into_iter()
        .enumerate()
        .map(|(part, (exchange, storage))| {
            // no patience: nobody waits here
            let options = support::options(Duration::ZERO);
            let kernels = KERNELS.clone();
            Session::new(&job.plan, part, storage, kernels, Some(Box::new(exchange)), options)
                .unwrap()
        })
        .collect();
    let driven = drive(&mut sessions, &network, &mut random, job.burst_max, &mut expected);
    let trace = driven.map_err(|what| report(seed, &what))?;
    let is_credit = |edge: &&tensorwire_graph::Edge| matches!(edge.reuse, Reuse::Credit { .. });
    Ok(Seen {
        trace: fold(trace, expected.verified),
        verified: expected.verified,
        credits: job.plan.edges.iter().filter(is_credit).count(),
        dynamic: job.plan.edges.iter().filter(|edge| edge.bytes().is_none()).count(),
    })
}

fn report(seed: u64, what: &str) -> String {
    format!(
        "seed {seed}: {what}\nsee it again: TENSORWIRE_SEED={seed} cargo test -p tensorwire-runtime \
         --test seeds one_seed -- --nocapture"
    )
}

#[test]
fn one_seed() {
    let seed = std::env::var("TENSORWIRE_SEED").map_or(0, |seed| seed.parse().unwrap());
    println!("{}", Job::new(&mut Random::new(seed), PlanOptions::default()).describe());
    let seen = run_seed(seed, ReuseRule::Proved).unwrap_or_else(|what| panic!("{what}"));
    println!("seed {seed}: {} tensors, trace {:016x}", seen.verified, seen.trace);
}

#[test]
fn ten_thousand_seeds() {
    const SEEDS: u64 = 10_000;
    let next = AtomicU64::new(0);
    let (total, failures) = (Mutex::new([0; 3]), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let seed @ 0..SEEDS = next.fetch_add(1, Ordering::Relaxed) {
                    match run_seed(seed, ReuseRule::Proved) {
                        Ok(Seen { verified, credits, dynamic, .. }) => {
                            let mut total = total.lock().unwrap();
                            let more = [verified, credits as u64, dynamic as u64];
                            total.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
                        }
                        Err(what) => failures.lock().unwrap().push(what),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {SEEDS} seeds fail; {}", failures.len(), failures[0]);
    let [verified, credits, dynamic] = total.into_inner().unwrap();
    println!("{SEEDS} seeds: {verified} tensors, {credits} credits, {dynamic} dynamic edges");
    // the generator still makes what this is about
    assert!(verified > 20 * SEEDS && credits > SEEDS && dynamic > SEEDS);
}

#[test]
fn a_seed_determines_everything() {
    let traces = |seeds: std::ops::Range<u64>| -> Vec<u64> {
        seeds.map(|seed| run_seed(seed, ReuseRule::Proved).map_or(0, |seen| seen.trace)).collect()
    };
    let first = traces(0..100);
    assert_eq!(first, traces(0..100));
    assert_eq!(first.iter().collect::<HashSet<_>>().len(), 100, "and no two are alike");
}

#[test]
fn a_schedule_without_proofs_is_caught() {
    let failure = |seed: &u64| run_seed(*seed, ReuseRule::Trusted).err();
    let failing: Vec<u64> = (0..300).filter(|seed| failure(seed).is_some()).collect();
    println!("{} of 300 seeds without proofs fail", failing.len());
    assert!(failing.len() > 30, "{failing:?}");
    for seed in &failing[..20] {
        assert_eq!(failure(seed), failure(seed), "a failure is as repeatable as anything else");
    }
}
