//! Seeded schedules on devices: the jobs of `seeds`, computed by GPUs that stand in for real ones and are late as a seed
//! likes. Their tensors cross in one of three ways ([`Between`]): in pieces by the host's memory; from memory to memory by a NIC,
//! whose writes are stale until they are flushed; or devices map each other's memory. Of some jobs the NICs of every other part alone
//! reach its device. Network and NICs place bytes as the seed
//! likes. The latter two tell their devices whole steps where they can: streams wait at gates. Every tensor of every step is held
//! against what the graph computes without any of this; parts die and kernels fail while others wait.
//!
//! To see one seed again: `TENSORWIRE_SEED=1234 cargo test -p tensorwire-runtime --test runtime devices::one_seed
//! -- --nocapture`.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorwire_base::Space;
use tensorwire_cuda::{CudaKernels, CudaOptions, RemoteWrites};
use tensorwire_fabric::{Fabric, HostId, SimKnobs, SimNetwork};
use tensorwire_graph::{
    Cluster, DeviceCrossing, DeviceTasks, Edge, Graph, Hint, Op, Placement, Plan, PlanOptions,
    RunId, RunSpec, SharedMemory, Transfer, place, plan,
};
use tensorwire_kernels::SharedDevice;
use tensorwire_memory::{CopyPurpose, Slab};
use tensorwire_runtime::{
    Advance, Computing, OneSided, OneSidedOptions, Opening, Ports, Session, Storage,
};
use tensorwire_tensor::{DType, Fact};
use tensorwire_testkit::shim::cuda_shim;
use tensorwire_testkit::{long, mesh, skip::skip};

pub(crate) use crate::between::{Between, TWO_HOSTS};
use crate::seeds::{Expected, KERNELS};
use crate::support;
use crate::support::driver::{Life, drive};
use crate::support::generate::{Job, Size};
use crate::support::random::Random;

/// Tells a child which seeds are its: the first, and how many.
const FIRST: &str = "TENSORWIRE_DEVICE_SEEDS";
/// Tells a child that nothing is flushed.
const UNFLUSHED: &str = "TENSORWIRE_UNFLUSHED";
/// A whole run, of which a seed takes milliseconds.
pub(crate) const HANGS: Duration = Duration::from_secs(60);
/// What children have in common: a seed's streams are late by its own numbers.
pub(crate) const LATE: &str = "delay=100,garbage,stale";
/// Of a piece: tensors here are small.
pub(crate) const PIECE_BYTES: usize = 64;

/// A job's sessions, each with a device of its own.
pub(crate) struct OnDevices {
    pub(crate) sessions: Vec<Session>,
    pub(crate) fabrics: Vec<Fabric>,
    pub(crate) network: SimNetwork,
}

fn device(part: usize) -> SharedDevice {
    let driver = tensorwire_fakecuda::library();
    let remote_writes = match std::env::var_os(UNFLUSHED) {
        Some(_) => RemoteWrites::Unflushed,
        None => RemoteWrites::AsNeeded,
    };
    let usual = CudaOptions::default();
    // every other one is told a step in as many graphs as can be
    let most = if part % 2 == 1 { 1 } else { usual.launches_behind_gate_max };
    let options = CudaOptions { driver, remote_writes, launches_behind_gate_max: most, ..usual };
    Arc::new(Mutex::new(CudaKernels::open(&options, part).unwrap()))
}

fn open(job: &Job, random: &mut Random, between: Between) -> OnDevices {
    let network = between.network(random.draw(), job.knobs);
    let queues = (job.queue_depth, job.queue_pairs);
    open_plan(&job.plan, (network, between), queues)
}

/// All parts of a plan, with queues of this depth, and as many to each peer.
pub(crate) fn open_plan(
    plan: &Plan,
    (network, between): (SimNetwork, Between),
    (depth, pairs): (usize, usize),
) -> OnDevices {
    let options = support::options(Duration::from_secs(30));
    let fabrics = mesh::open(&between.backend(&network), plan.parts.len() as u32, |config| {
        (config.queue_depth, config.queue_pairs_per_peer) = (depth, pairs);
        config.completion_queues = 1;
        config.arrival_slots = 512;
        let host = TWO_HOSTS[config.me.rank.index()];
        config.host = between.is_of_hosts().then(|| HostId::here(&format!("host {host}")));
        config.arrival = between.arrival();
    });
    mesh::connect(&fabrics);
    let devices: Vec<SharedDevice> = (0..fabrics.len()).map(device).collect();
    // another exchange may have what none crosses of here
    let elsewhere = |part: usize| {
        let here = |edge: &&Edge| edge.from == part || edge.to == part;
        let on_host = |edge: &Edge| edge.space == Space::Host && edge.transfer != Transfer::Signal;
        let bytes = plan.parts[part].memory.registered_bytes;
        let is_free = !plan.edges.iter().filter(here).any(on_host);
        (part % 2 == 1 && is_free).then(|| Slab::anonymous(bytes).unwrap())
    };
    let told = |part: usize| OneSidedOptions {
        device: Some(devices[part].clone()),
        registered: elsewhere(part),
        piece_bytes: PIECE_BYTES,
        ..OneSidedOptions::new(plan, pairs, options.dynamic_bytes_max)
    };
    let openings = fabrics
        .iter()
        .enumerate()
        .map(|(part, fabric)| Opening::new(fabric, plan, part, told(part), mesh::soon()).unwrap());
    let opened = Opening::complete_all(openings.collect(), mesh::soon()).unwrap();
    let session = |(part, (exchange, storage)): (usize, (OneSided, Storage))| {
        let ports = Some(Ports::from(exchange));
        let computing = Computing { kernels: KERNELS.clone(), device: Some(devices[part].clone()) };
        Session::new(plan, part, storage, computing, ports, options).unwrap()
    };
    let sessions = opened.into_iter().enumerate().map(session).collect();
    OnDevices { sessions, fabrics, network }
}

/// Devices everywhere, between which tensors cross.
pub(crate) fn crossing(shared_memory: SharedMemory) -> PlanOptions {
    PlanOptions {
        devices: DeviceTasks::All,
        device_crossing: DeviceCrossing::Direct,
        shared_memory,
        ..PlanOptions::default()
    }
}

fn job(random: &mut Random, between: Between) -> Job {
    let shared_memory = match between {
        Between::Maps | Between::MapsKnown => {
            [SharedMemory::Used, SharedMemory::Unused][random.below(2)].clone()
        }
        _ if between.is_of_hosts() => {
            let shared = [SharedMemory::UsedOnHosts(TWO_HOSTS.into()), SharedMemory::None];
            shared[random.below(2)].clone()
        }
        _ => SharedMemory::None,
    };
    let size = match between {
        Between::MapsKnown | Between::Nics => Size::Known,
        Between::HostsByNics if random.below(2) == 0 => Size::Known,
        _ => Size::Small,
    };
    Job::new(random, crossing(shared_memory), size)
}

/// What a seed showed.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) verified: u64,
    /// Edges that crossed by way of the host, and more than one piece of them.
    pub(crate) staged: usize,
    in_pieces: usize,
    /// Runs that a device was told as a whole, and those of them whose tensors NICs write.
    pub(crate) whole_steps: u64,
    whole_by_nic: u64,
    pub(crate) died: u64,
    /// Parts that heard that a peer gave up its step.
    heard: u64,
    /// Edges whose tensors have no size before they exist and crossed by the host's memory, by NICs, and by some of both.
    open_by_host: usize,
    open_by_nic: usize,
    open_by_some: usize,
    /// Bytes of unknown size that a device read in the memory of another process's, and that were copied first for that.
    pub(crate) read: u64,
    copied_first: u64,
    /// Tensors that were made where peers map them.
    placed: u64,
}

/// All steps of a job, on late streams.
pub(crate) fn run_seed(seed: u64, between: Between) -> Result<Seen, String> {
    let mut random = Random::new(seed);
    let job = job(&mut random, between);
    let mut expected = Expected::new(&job, seed).nearly();
    let OnDevices { mut sessions, fabrics, network } = open(&job, &mut random, between);
    let begun = Instant::now();
    // what nothing moves in the network may still move in a device
    let mut moves = || {
        if !network.advance() {
            std::thread::sleep(Duration::from_micros(20));
        }
        begun.elapsed() < HANGS
    };
    drive(&mut sessions, &mut moves, &mut random, job.burst_max, &mut expected)
        .map_err(|what| format!("{what}\n{}", job.describe()))?;
    let edges = || {
        let edges = job.plan.edges.iter().filter(|edge| between.stages((edge.from, edge.to)));
        edges
            .filter(|edge| edge.space.is_device())
            .filter(|edge| matches!(edge.transfer, Transfer::Write(_)))
    };
    let of = |purpose| sessions.iter().map(|session| session.copies().of(purpose)).sum::<u64>();
    if edges().count() > 0 && of(CopyPurpose::ToDevice) == 0 {
        return Err("nothing was copied to a device".to_string());
    }
    let whole_steps = sessions.iter().map(|session| session.counters().whole_steps).sum();
    let open = job
        .plan
        .edges
        .iter()
        .filter(|edge| edge.space.is_device() && matches!(edge.transfer, Transfer::Dynamic));
    let open = open.count();
    let is_read = fabrics.iter().any(|fabric| fabric.stats().bytes_read > 0);
    let by = |ways: &[Between]| if ways.contains(&between) && is_read { open } else { 0 };
    let is_large = |edge: &&Edge| edge.bytes() > Some(PIECE_BYTES);
    Ok(Seen {
        verified: expected.verified,
        staged: edges().count(),
        in_pieces: edges().filter(is_large).count(),
        whole_steps,
        whole_by_nic: if between == Between::Nics { whole_steps } else { 0 },
        died: 0,
        heard: 0,
        open_by_host: by(&[Between::Pieces]),
        open_by_nic: by(&[Between::OpenNics]),
        open_by_some: by(&[Between::SomeNics]),
        read: of(CopyPurpose::FromPeers),
        // over a network it is counted as staging what goes in pieces
        copied_first: if of(CopyPurpose::FromPeers) > 0 { of(CopyPurpose::Staging) } else { 0 },
        placed: sessions.iter().map(Session::placed_to_send).sum(),
    })
}

/// A part dies while others wait for it, its device with work or without: they end in time, and by its name if it is the cause.
/// What they report as done until then is right, whatever the device of the part that gave up its step does meanwhile: the others
/// lose the connection to it only later.
pub(crate) fn run_dying(seed: u64, between: Between) -> Result<Seen, String> {
    let mut random = Random::new(seed);
    let job = job(&mut random, between);
    let mut expected = Expected::new(&job, seed).nearly();
    let OnDevices { sessions, fabrics, network } = open(&job, &mut random, between);
    let mut members: Vec<Option<(Session, Fabric)>> =
        sessions.into_iter().zip(fabrics).map(Some).collect();
    let victim = random.below(members.len());
    let (mut before, mut lingers) = (random.below(200), random.below(200));
    let mut dying: Option<Fabric> = None;
    let begun = Instant::now();
    let mut running = vec![(0, false); members.len()];
    let (mut died, mut whole_steps, mut heard) = (0, 0, 0);
    while members.iter().any(Option::is_some) {
        if begun.elapsed() > HANGS {
            return Err("it hangs".to_string());
        }
        if before == 0
            && let Some((session, fabric)) = members[victim].take()
        {
            whole_steps += session.counters().whole_steps;
            died = 1;
            drop(session);
            dying = Some(fabric);
        }
        // the first step is told in parts, as those of the other ways: of them enough are given up
        if running[victim].0 > 0 || !computes_on(between) {
            before = before.saturating_sub(1);
        }
        if dying.is_some() {
            lingers = lingers.saturating_sub(1);
            dying = dying.filter(|_| lingers > 0);
        }
        network.advance();
        for part in 0..members.len() {
            let Some((session, fabric)) = &mut members[part] else { continue };
            let (step, is_running) = &mut running[part];
            if !*is_running {
                let Some(run) = expected.begin(part, *step, session) else {
                    members[part] = None;
                    continue;
                };
                session.start(run);
                *is_running = true;
            }
            match session.advance() {
                Ok(Advance::Finished) => match expected.end(part, *step, session) {
                    Ok(()) => (*step, *is_running) = (*step + 1, false),
                    // it may look at memory that a peer has written in a step that it gave up
                    Err(said) if died == 1 && said.contains("rank") => {
                        heard += u64::from(said.contains("gave up its step"));
                        members[part] = None;
                    }
                    Err(wrong) => return Err(format!("part {part}, step {step}: {wrong}")),
                },
                Ok(Advance::Progress) => {}
                // what is lost is told to who waits
                Ok(Advance::Blocked) if fabric.fault().is_none() => {}
                Ok(Advance::Blocked) => {
                    if let Err(error) = session.wait() {
                        heard += u64::from(error.to_string().contains("gave up its step"));
                        members[part] = None;
                    }
                }
                Err(error) => {
                    let said = error.to_string();
                    if !said.contains("rank") {
                        return Err(format!("part {part} blames nobody who died: {said}"));
                    }
                    heard += u64::from(said.contains("gave up its step"));
                    members[part] = None;
                }
            }
        }
    }
    Ok(Seen { verified: expected.verified, whole_steps, died, heard, ..Seen::default() })
}

/// A kernel fails: what is told first is that, of the GPU that it failed on. True if the job was not over before.
fn run_failing(seed: u64) -> bool {
    match run_seed(seed, Between::of(seed)) {
        Ok(_) => false,
        Err(what) => {
            let first = what.lines().next().unwrap_or_default();
            assert!(first.contains("GPU") && first.contains("is lost"), "seed {seed}: {what}");
            true
        }
    }
}

/// True if a step that is given up computes on.
fn computes_on(between: Between) -> bool {
    matches!(between, Between::MapsKnown | Between::Nics)
}

/// One of four, and one of two where a step that is given up computes on.
fn is_dying(seed: u64) -> bool {
    seed % 4 == 3 || computes_on(Between::of(seed)) && seed % 4 == 1
}

fn see(seed: u64) -> Seen {
    let between = Between::of(seed);
    let seen = if is_dying(seed) { run_dying(seed, between) } else { run_seed(seed, between) };
    seen.unwrap_or_else(|what| {
        panic!(
            "seed {seed}: {what}\nsee it again: TENSORWIRE_SEED={seed} cargo test -p tensorwire-runtime --test runtime \
             devices::one_seed -- --nocapture"
        )
    })
}

/// Runs the calling test in a process whose driver is that for tests, and does so what `faults` say. None where kernels cannot
/// be built here.
pub(crate) fn child(seeds: (u64, u64), faults: &str) -> Option<Command> {
    let kernels = match cuda_shim() {
        Ok(kernels) => kernels,
        Err(reason) => {
            skip(Some("TENSORWIRE_LAUNCHERS"), &reason);
            return None;
        }
    };
    let thread = std::thread::current();
    let name = thread.name().expect("a test has a name");
    let mut command = Command::new(tensorwire_testkit::program::itself());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    let (first, count) = seeds;
    command.env(FIRST, format!("{first} {count}"));
    command.env("FAKE_CUDA_KERNELS", kernels).env("FAKE_CUDA_DEVICES", "8");
    // tensors here are small, and all of an allocation is filled with garbage
    command.env("FAKE_CUDA_GRAIN_KIB", "64");
    command.env("FAKE_CUDA_SEED", (first + 1).to_string()).env("FAKE_CUDA_FAULTS", faults);
    Some(command)
}

/// The seeds of this process, if it is a child.
pub(crate) fn own_seeds() -> Option<std::ops::Range<u64>> {
    let told = std::env::var(FIRST).ok()?;
    let (first, count) = told.split_once(' ').unwrap();
    let (first, count): (u64, u64) = (first.parse().unwrap(), count.parse().unwrap());
    Some(first..first + count)
}

pub(crate) fn run_child(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    let said = said.concat();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    said
}

#[test]
fn one_seed() {
    if let Some(seeds) = own_seeds() {
        seeds.for_each(|seed| {
            see(seed);
        });
        return;
    }
    let seed = std::env::var("TENSORWIRE_SEED").map_or(0, |seed| seed.parse().unwrap());
    let Some(mut command) = child((seed, 1), LATE) else { return };
    run_child(&mut command);
}

#[test]
fn a_thousand_seeds() {
    if let Some(seeds) = own_seeds() {
        let mut total = Seen::default();
        for seen in seeds.clone().map(see) {
            total.verified += seen.verified;
            total.staged += seen.staged;
            total.in_pieces += seen.in_pieces;
            total.whole_steps += seen.whole_steps;
            total.whole_by_nic += seen.whole_by_nic;
            total.died += seen.died;
            total.heard += seen.heard;
            total.open_by_host += seen.open_by_host;
            total.open_by_nic += seen.open_by_nic;
            total.open_by_some += seen.open_by_some;
            total.read += seen.read;
            total.copied_first += seen.copied_first;
            total.placed += seen.placed;
        }
        let Seen { verified, staged, in_pieces, whole_steps, died, .. } = total;
        let Seen { read, copied_first, placed, whole_by_nic, heard, .. } = total;
        let Seen { open_by_host, open_by_nic, open_by_some, .. } = total;
        println!(
            "{seeds:?}: {verified} tensors, {staged} edges by the host, {in_pieces} in pieces, {whole_steps} whole steps, \
             {whole_by_nic} by NICs, of unknown size {open_by_host} edges by the host, {open_by_nic} by NICs, {open_by_some} by some \
             of both, {read} bytes read from peers, {copied_first} copied first, {placed} placed, {died} deaths, \
             {heard} heard of a step that was given up"
        );
        // the generator still makes what this is about
        let count = seeds.end - seeds.start;
        assert!(verified > 5 * count);
        assert!(staged as u64 > count / 4 && in_pieces as u64 > count / 40);
        // of a hundred seeds four to twenty-one
        assert!(open_by_host as u64 > count / 50 && open_by_nic as u64 > count / 50);
        assert!(open_by_some as u64 > count / 50);
        assert!(read > 5 * count && copied_first > 0 && placed > count / 8);
        assert!(whole_steps > 2 * count && whole_by_nic > count / 2);
        assert!(died > count / 20);
        return;
    }
    // each process has a driver with delays of its own; two at a time, as half of one's time is the system's
    let mut children = (0..1_000).step_by(100).filter_map(|first| child((first, 100), LATE));
    let heard_in = |mut child: Command| {
        let said = run_child(&mut child);
        println!("{said}");
        let before = said.split(" heard of a step").next().and_then(|text| text.rsplit(' ').next());
        before.and_then(|number| number.parse::<u64>().ok()).expect("a child says how many heard")
    };
    let (mut heard, mut seeds) = (0, 0);
    while let Some(first) = children.next() {
        let second = children.next();
        seeds += 100 + 100 * u64::from(second.is_some());
        heard += std::thread::scope(|scope| {
            let second = second.map(|second| scope.spawn(|| heard_in(second)));
            heard_in(first) + second.map_or(0, |second| second.join().expect("it has said why"))
        });
    }
    // of all: how many of a hundred hear of it depends on who comes first
    assert!(seeds == 0 || heard > seeds / 50, "{heard} heard");
}

#[test]
fn without_a_flush_a_stream_reads_what_was_there_before() {
    if let Some(seeds) = own_seeds() {
        let by_nic = seeds.filter(|seed| Between::of(*seed) == Between::Nics && !is_dying(*seed));
        let wrong = by_nic.filter_map(|seed| run_seed(seed, Between::Nics).err());
        let wrong = wrong.filter(|what| what.contains("are wrong")).count();
        println!("wrong: {wrong};");
        return;
    }
    let Some(mut command) = child((0, 64), LATE) else { return };
    let said = run_child(command.env(UNFLUSHED, "1"));
    let wrong = said.split("wrong: ").nth(1).and_then(|rest| rest.split(';').next());
    let wrong: u64 = wrong.and_then(|wrong| wrong.parse().ok()).unwrap();
    println!("{wrong} seeds fail");
    assert!(wrong > 0);
}

#[test]
fn a_kernel_that_fails_is_the_first_cause() {
    if let Some(mut seeds) = own_seeds() {
        println!("failed: {}", seeds.any(run_failing));
        return;
    }
    let seeds: u64 = long::of(8, 50);
    let mut failed = 0;
    for seed in 0..seeds {
        let faults = format!("{LATE},launch={}", 1 + seed * 7 % 40);
        let Some(mut command) = child((seed * 50, 10), &faults) else { return };
        failed += u64::from(run_child(&mut command).contains("failed: true"));
    }
    assert_eq!(failed, seeds);
}

/// A tensor of four pieces for two peers, whose queues have room for one piece each and are never emptied: each gets its
/// first piece, though the other's are in front of it.
#[test]
fn a_full_queue_holds_up_no_other_peers_pieces() {
    let Some(seeds) = own_seeds() else {
        let Some(mut command) = child((0, 1), LATE) else { return };
        run_child(&mut command);
        return;
    };
    let mut graph = Graph::new();
    let fact = Fact::known(DType::F32, &[PIECE_BYTES]);
    let x = graph.add("x", Hint::Replica(0), Op::Input { fact }, &[]).unwrap();
    let twice = Op::Scale { by: 2.0 };
    let y = graph.add("y", Hint::Replica(0), twice.clone(), &[x.into()]).unwrap();
    let used = |replica: u32| (format!("used {replica}"), Hint::Replica(replica));
    let roots = [1, 2]
        .map(used)
        .map(|(name, hint)| graph.add(&name, hint, twice.clone(), &[y.into()]).unwrap());
    let cluster = Cluster::Workers { workers: 3 };
    let placed = place(&graph, cluster, Placement::default()).unwrap();
    let run = RunSpec {
        name: "once",
        roots: roots.to_vec(),
        fetch_to: None,
        given: vec![],
        followed_by: vec![],
    };
    let options = crossing(SharedMemory::None);
    let plan = plan(&placed, &cluster.tasks(), &[run], options).unwrap();
    let network = SimNetwork::new(seeds.start, SimKnobs::default());
    let OnDevices { mut sessions, fabrics, .. } =
        open_plan(&plan, (network, Between::Pieces), (1, 1));
    let sent = || fabrics[0].stats().bytes_written;
    let before = sent();
    let mut session = sessions.remove(0);
    session.start(RunId(0));
    let begun = Instant::now();
    // fits: a piece is small
    while sent() - before < 2 * PIECE_BYTES as u64 {
        session.advance().unwrap();
        assert!(begun.elapsed() < HANGS, "{} bytes", sent() - before);
        std::thread::sleep(Duration::from_micros(20));
    }
}
