//! Seeded schedules: sessions of a job that a seed made, driven by one thread in an order that the seed
//! chooses, over a network that places bytes, signals and completions as the seed likes. Every tensor of
//! every step is held against what the graph computes without any of this.
//!
//! To see one seed again: `TENSORWIRE_SEED=1234 cargo test -p tensorwire-runtime --test runtime seeds::one_seed
//! -- --nocapture`.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use crate::support;
use crate::support::driver::{Life, drive};
use crate::support::generate::{Job, Size};
use crate::support::oracle::{Value, closure, evaluate};
use crate::support::random::{Random, fold};
use tensorwire_fabric::{Backend, Fabric, SimNetwork};
use tensorwire_graph::{NodeId, Op, PlanOptions, Reuse, ReuseRule, RunId, SharedMemory, Transfer};
use tensorwire_kernels::{KernelChoice, Kernels};
use tensorwire_runtime::{
    OneSided, OneSidedOptions, Opening, Ports, Session, SessionOptions, Storage,
};
use tensorwire_tensor::DType;
use tensorwire_testkit::{long, mesh};

/// No state: the seeds share them and stay independent.
pub(crate) static KERNELS: LazyLock<Arc<Kernels>> =
    LazyLock::new(|| Arc::new(Kernels::open(KernelChoice::Cpu, 1).unwrap()));

/// What is to be fed and found, step by step.
pub(crate) struct Expected<'a> {
    job: &'a Job,
    fed: Vec<BTreeMap<NodeId, Value>>,
    start: BTreeMap<NodeId, Value>,
    /// By step: the roots' values when it is over.
    found: Vec<BTreeMap<NodeId, Value>>,
    /// Tensors verified so far.
    pub(crate) verified: u64,
    /// Numbers may differ by so much of 1, or of themselves: sums are added in another order.
    tolerance: f32,
}

impl<'a> Expected<'a> {
    /// As what computes in another order finds it.
    pub(crate) fn nearly(self) -> Expected<'a> {
        Expected { tolerance: 1e-4, ..self }
    }

    pub(crate) fn new(job: &'a Job, seed: u64) -> Expected<'a> {
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
        Expected { job, fed, start, found, verified: 0, tolerance: 0.0 }
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
            let wrong = match self.tolerance > 0.0 && spec.dtype == DType::F32 {
                true => {
                    let number = |four: &[u8]| f32::from_le_bytes(four.try_into().unwrap());
                    let both = bytes.chunks_exact(4).zip(expected.bytes().chunks_exact(4));
                    let differ = |(a, b): &(&[u8], &[u8])| {
                        let (a, b) = (number(a), number(b));
                        let near = (a - b).abs() <= self.tolerance * b.abs().max(1.0);
                        !(near || a == b || a.is_nan() && b.is_nan())
                    };
                    both.filter(differ).count()
                }
                false => {
                    let wrong = |at: &usize| bytes[*at] != expected.bytes()[*at];
                    (0..bytes.len()).filter(wrong).count()
                }
            };
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
    by_reference: usize,
    is_looked_at: bool,
}

fn run_seed(seed: u64, reuse: ReuseRule) -> Result<Seen, String> {
    let mut random = Random::new(seed);
    let options = PlanOptions { reuse, ..PlanOptions::default() };
    let job = Job::new(&mut random, options, Size::Small);
    let network = SimNetwork::new(random.draw(), job.knobs);
    // no patience: nobody waits here
    let options = support::options(Duration::ZERO);
    let (mut sessions, _fabrics) = open(&job, Backend::Sim(network.clone()), options);
    run_job(&job, seed, &mut sessions, &mut random, &mut || network.advance())
}

/// The same for a job whose parts share memory, without a network.
fn run_in_place(seed: u64, reuse: ReuseRule) -> Result<Seen, String> {
    let mut random = Random::new(seed);
    let options =
        PlanOptions { reuse, shared_memory: SharedMemory::Used, ..PlanOptions::default() };
    let job = Job::new(&mut random, options, Size::Pages);
    let options = support::options(Duration::from_secs(30));
    let (mut sessions, _fabrics) = open(&job, Backend::Shm, options);
    run_job(&job, seed, &mut sessions, &mut random, &mut || false)
}

fn open(job: &Job, backend: Backend, options: SessionOptions) -> (Vec<Session>, Vec<Fabric>) {
    let fabrics = mesh::open(&backend, job.plan.parts.len() as u32, |config| {
        (config.queue_depth, config.queue_pairs_per_peer) = (job.queue_depth, job.queue_pairs);
        config.completion_queues = 1;
        config.arrival_slots = 512;
    });
    mesh::connect(&fabrics);
    let told = OneSidedOptions::new(&job.plan, job.queue_pairs, options.dynamic_bytes_max);
    let openings = fabrics.iter().enumerate().map(|(part, fabric)| {
        Opening::new(fabric, &job.plan, part, told.clone(), mesh::soon()).unwrap()
    });
    let opened = Opening::complete_all(openings.collect(), mesh::soon()).unwrap();
    let session = |(part, (exchange, storage)): (usize, (OneSided, Storage))| {
        let ports = Some(Ports::from(exchange));
        Session::new(&job.plan, part, storage, KERNELS.clone(), ports, options).unwrap()
    };
    (opened.into_iter().enumerate().map(session).collect(), fabrics)
}

fn run_job(
    job: &Job,
    seed: u64,
    sessions: &mut [Session],
    random: &mut Random,
    network: &mut dyn FnMut() -> bool,
) -> Result<Seen, String> {
    let mut expected = Expected::new(job, seed);
    let driven = drive(sessions, network, random, job.burst_max, &mut expected);
    let trace = driven.map_err(|what| format!("{}\n{}", report(seed, &what), job.describe()))?;
    let edges = || job.plan.edges.iter();
    Ok(Seen {
        trace: fold(trace, expected.verified),
        verified: expected.verified,
        credits: edges().filter(|edge| matches!(edge.reuse, Reuse::Credit { .. })).count(),
        dynamic: edges().filter(|edge| edge.transfer == Transfer::Dynamic).count(),
        by_reference: edges().filter(|edge| edge.transfer == Transfer::Reference).count(),
        is_looked_at: job.is_looked_at,
    })
}

fn report(seed: u64, what: &str) -> String {
    format!(
        "seed {seed}: {what}\nsee it again: TENSORWIRE_SEED={seed} cargo test -p tensorwire-runtime \
         --test runtime seeds::one_seed -- --nocapture"
    )
}

#[test]
fn one_seed() {
    let seed = std::env::var("TENSORWIRE_SEED").map_or(0, |seed| seed.parse().unwrap());
    for (name, run) in [("sim", run_seed as fn(u64, ReuseRule) -> _), ("shm", run_in_place)] {
        let seen: Result<Seen, String> = run(seed, ReuseRule::Proved);
        let Seen { verified, trace, .. } =
            seen.unwrap_or_else(|what| panic!("over {name}, {what}"));
        println!("seed {seed} over {name}: {verified} tensors, trace {trace:016x}");
        assert!(verified > 0);
    }
}

#[test]
fn thousands_of_seeds() {
    // each is a job that is planned, run and held against what it computes: ten thousand take a minute
    let seeds: u64 = long::of(2_000, 10_000);
    let next = AtomicU64::new(0);
    let (total, failures) = (Mutex::new([0; 4]), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    match run_seed(seed, ReuseRule::Proved) {
                        Ok(Seen { verified, credits, dynamic, is_looked_at, .. }) => {
                            let mut total = total.lock().unwrap();
                            let [credits, dynamic] = [credits, dynamic].map(|count| count as u64);
                            let more = [verified, credits, dynamic, is_looked_at.into()];
                            total.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
                        }
                        Err(what) => failures.lock().unwrap().push((seed, what)),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    if let Some((_, first)) = failures.iter().min() {
        panic!("{} of {seeds} seeds fail; {first}", failures.len());
    }
    let [verified, credits, dynamic, looked_at] = total.into_inner().unwrap();
    println!(
        "{seeds} seeds: {verified} tensors, {credits} credits, {dynamic} dynamic edges, in {looked_at} \
         the caller looks at what another part sent"
    );
    // the generator still makes what this is about
    assert!(verified > 20 * seeds && credits > seeds && dynamic > seeds && looked_at > seeds / 100);
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

/// Processes that share memory read most tensors where they lie. Payloads of this size are written by
/// the poster, so that over shm, too, one thread does everything in an order of its own choice.
#[test]
fn what_is_read_where_it_lies_is_never_overwritten_under_its_reader() {
    let mut by_reference = 0;
    for seed in 0..300 {
        let seen = run_in_place(seed, ReuseRule::Proved).unwrap_or_else(|what| panic!("{what}"));
        by_reference += seen.by_reference;
    }
    assert!(by_reference > 1000, "{by_reference} edges are read where they lie");
    let caught = (0..100).filter(|seed| run_in_place(*seed, ReuseRule::Trusted).is_err()).count();
    println!("{by_reference} edges by reference; {caught} of 100 seeds without proofs fail");
    assert!(caught > 3);
}
