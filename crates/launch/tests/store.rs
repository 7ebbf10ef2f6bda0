//! The launcher as the scheduler of a store, with real processes and real signals: barriers, workers that die
//! or stop with and without an elastic job, servers that are replaced. A member is this test binary again,
//! running [`member_process`].
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde::{Deserialize, Serialize};
use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::{Fabric, PeerAddress};
use tensorwire_launch::{
    Assignment, BarrierError, Blame, FirstFailure, JobError, JobOutcome, JobSpec, JobUpdate,
    Member, Messages, Peers, Role, StoreEvent, StoreJob, Transport, WireOptions, launch,
};

/// What the members of a job do.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Script {
    transport: Transport,
    /// Workers pass so many barriers.
    barriers: u64,
    /// Before them, they wait for so many new servers.
    replaced: usize,
    /// The worker that never comes to a barrier; it is lost otherwise.
    stays_away: Option<u32>,
    /// The member of this rank reports what is no report.
    garbles: Option<u32>,
}

/// What a member reports.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Report {
    barriers: u64,
    /// Workers left, as a worker was last told; a server that was not told waits in vain.
    world: Option<Vec<u32>>,
    /// New servers: the index, whom each replaced, its rank.
    replaced: Vec<(u32, u32, u32)>,
    /// Whom it itself replaces.
    replaces: Option<u32>,
}

const SCRIPT: Script =
    Script { transport: Transport::Shm, barriers: 3, replaced: 0, stays_away: None, garbles: None };
/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
#[ignore = "no test, but what the processes of the jobs below run"]
fn member_process() {
    let mut line = String::new();
    std::io::stdin().read_to_string(&mut line).unwrap();
    let Ok(assignment) = serde_json::from_str::<Assignment>(&line) else {
        println!("skipped: nobody launched this process");
        return;
    };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let member = Member::join(assignment, |_| std::process::exit(1)).unwrap();
    if let Err(error) = take_part(&member) {
        member.fail(&error, Blame::Own);
        std::process::exit(1);
    }
}

fn take_part(member: &Member) -> Result<(), String> {
    let script: Script = member.payload().unwrap();
    let store = member.store().unwrap();
    let options = WireOptions {
        transport: script.transport,
        verbs: Default::default(),
        arrival: None,
        encrypt: false,
        spin: Duration::ZERO,
        queue_pairs: 1,
        peers: Peers::Across { workers: store.workers },
    };
    let fabric = member.connect(&options, "store").map_err(|error| error.to_string())?;
    let replaces = store.replaces().map(|rank| rank.0);
    let mut report = Report { replaces, ..Report::default() };
    member.progress("up").unwrap();
    match store.role {
        Role::Worker(index) => {
            let servers = (store.workers..store.workers + store.servers).map(Rank).collect();
            let (expected, report) = (BTreeMap::new(), &mut report);
            let worker = Worker { member, fabric: &fabric, servers, expected, report };
            worker.run(index, store.workers, &script)?;
        }
        Role::Server(_) => serve(member, &fabric, store.workers)?,
    }
    fabric.close(Deadline::after(PATIENCE)).map_err(|error| error.to_string())?;
    let reported = match script.garbles == Some(member.rank().0) {
        true => member.finish("all is well"),
        false => member.finish(report),
    };
    reported.map_err(|error| error.to_string())
}

/// What the members say.
#[derive(Debug)]
struct Store;

impl Messages for Store {
    type Progress = String;
    type Record = ();
    type Report = Report;
}

struct Worker<'a> {
    member: &'a Member,
    fabric: &'a Fabric,
    /// By their index.
    servers: Vec<Rank>,
    /// New servers that have not called yet, and whom each replaces.
    expected: BTreeMap<u32, (Rank, PeerAddress)>,
    report: &'a mut Report,
}

impl Worker<'_> {
    fn run(mut self, index: u32, workers: u32, script: &Script) -> Result<(), String> {
        for worker in (0..workers).map(Rank) {
            assert!(self.fabric.channel(worker, 0).is_err(), "workers speak to servers only");
        }
        self.until(|worker| worker.report.replaced.len() >= script.replaced)?;
        if script.stays_away == Some(index) {
            self.until(|_| false)?;
        }
        for _ in 0..script.barriers {
            let number = self.member.scheduling().enter_barrier().unwrap();
            self.until(|worker| worker.member.scheduling().barrier_passed(number))?;
            self.report.barriers = number;
        }
        self.member.barrier(Deadline::after(PATIENCE)).map_err(|error| error.to_string())?;
        for server in &self.servers {
            let channel = self.fabric.channel(*server, 0).map_err(|error| error.to_string())?;
            let told = channel.send_message(b"bye", Deadline::after(PATIENCE));
            told.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Does what the launcher says until `done`.
    fn until(&mut self, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        let deadline = Deadline::after(PATIENCE);
        while !done(self) {
            for event in self.member.scheduling().store_events() {
                match event {
                    StoreEvent::World { alive, .. } => self.report.world = Some(alive),
                    StoreEvent::ServerReplaced { server, was, peer } => {
                        self.expected.insert(server, (was, peer));
                    }
                }
            }
            self.meet_servers();
            if deadline.passed() {
                return Err("it waited in vain".to_string());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// A new server may be lost before it has called: then another is announced.
    fn meet_servers(&mut self) {
        let Worker { fabric, servers, report, .. } = self;
        self.expected.retain(|server, (was, peer)| {
            let one_try = Deadline::after(Duration::from_secs(2));
            let met = fabric.connect(std::slice::from_ref(peer), one_try).is_ok();
            if met {
                servers[*server as usize] = peer.rank;
                report.replaced.push((*server, was.0, peer.rank.0));
            }
            !met
        });
    }
}

/// Stays until all live workers have said goodbye.
fn serve(member: &Member, fabric: &Fabric, workers: u32) -> Result<(), String> {
    assert!(matches!(member.barrier(Deadline::after(PATIENCE)), Err(BarrierError::NoWorker)));
    let mut waited_for: BTreeSet<u32> = (0..workers).collect();
    let deadline = Deadline::after(PATIENCE);
    while !waited_for.is_empty() {
        for event in member.scheduling().store_events() {
            if let StoreEvent::World { alive, .. } = event {
                waited_for.retain(|worker| alive.contains(worker));
            }
        }
        while let Some(message) = fabric.try_receive_message() {
            waited_for.remove(&message.from.0);
        }
        if deadline.passed() {
            return Err(format!("workers {waited_for:?} did not say goodbye"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A job that was launched.
struct Done {
    outcome: Result<JobOutcome<Report>, JobError>,
    /// By rank.
    pids: BTreeMap<Rank, Pid>,
    shrunk: Vec<(Rank, String, usize)>,
    replaced: Vec<(Rank, Rank)>,
    /// From when all were up, and those were struck that were to be.
    took: Duration,
}

/// Two servers, and as many workers as there are to be.
fn store(workers: u32) -> StoreJob {
    StoreJob { workers, servers: 2, elastic: false, replace_servers: false }
}

/// Launches a job; `strike` gets each member's rank and process twice: as it starts (false), and once it and
/// all that were there at the beginning are up (true).
fn run(
    store: StoreJob,
    script: Script,
    liveness: Duration,
    mut strike: impl FnMut(Rank, Pid, bool),
) -> Done {
    let program = std::env::current_exe().unwrap();
    let job = JobSpec {
        arguments: ["member_process", "--exact", "--ignored"].map(String::from).to_vec(),
        store: Some(store),
        liveness,
        ..JobSpec::new(program, "store", store.roles()).with_payload(&script).unwrap()
    };
    let (mut pids, mut shrunk, mut replaced) = (BTreeMap::new(), Vec::new(), Vec::new());
    let (mut begun, mut up) = (Instant::now(), BTreeSet::new());
    let world = store.workers + store.servers;
    let outcome = launch::<Store>(&job, &mut |update| match update {
        JobUpdate::Started { rank, pid } => {
            let pid = Pid::from_raw(pid.cast_signed()).unwrap();
            pids.insert(rank, pid);
            strike(rank, pid, false);
        }
        JobUpdate::Progress { rank, .. } => {
            up.insert(rank);
            if rank.0 >= world {
                strike(rank, pids[&rank], true);
            } else if up.len() == world as usize {
                begun = Instant::now();
                up.iter().for_each(|rank| strike(*rank, pids[rank], true));
            }
        }
        JobUpdate::Shrunk { rank, why, left } => shrunk.push((rank, why, left)),
        JobUpdate::Replacing { rank, by, .. } => replaced.push((rank, by)),
        _ => {}
    });
    for pid in pids.values() {
        assert!(test_kill_process(*pid).is_err(), "process {pid:?} was left behind");
    }
    Done { outcome, pids, shrunk, replaced, took: begun.elapsed() }
}

impl Done {
    fn reports(self) -> BTreeMap<u32, Report> {
        let reports = self.outcome.unwrap().reports.into_iter();
        reports.map(|(rank, report)| (rank.0, report)).collect()
    }

    fn failure(&self) -> &FirstFailure {
        match &self.outcome {
            Err(JobError::Failed(failure)) => failure,
            other => panic!("it should have failed: {other:?}"),
        }
    }
}

/// Signals `victim` once it is up.
fn strike_once_up(victim: u32, signal: Signal) -> impl FnMut(Rank, Pid, bool) {
    move |rank, pid, up| {
        if up && rank == Rank(victim) {
            kill_process(pid, signal).unwrap();
        }
    }
}

/// Long enough that a busy machine does not look dead; those that are stopped do.
const LIVENESS: Duration = Duration::from_secs(6);

#[test]
fn all_workers_pass_their_barriers_together() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let script = Script { barriers: 20, transport, ..SCRIPT };
        let reports = run(store(4), script, LIVENESS, |_, _, _| {}).reports();
        assert_eq!(reports.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        for (rank, report) in reports {
            let barriers = if rank < 4 { 20 } else { 0 };
            assert_eq!(report, Report { barriers, ..Report::default() }, "rank {rank}");
        }
    }
}

#[test]
fn a_report_that_makes_no_sense_is_an_error_that_names_who_reported_it() {
    let done = run(store(2), Script { garbles: Some(3), ..SCRIPT }, LIVENESS, |_, _, _| {});
    let Err(error @ JobError::Garbled { rank: Rank(3), .. }) = &done.outcome else {
        panic!("{:?}", done.outcome);
    };
    let said = error.to_string();
    assert!(said.starts_with("server 1 (rank 3): its report makes no sense: "), "{said}");
    assert!(said.contains("all is well"), "{said}");
}

#[test]
fn a_worker_killed_ends_a_job_that_is_not_elastic() {
    let script = Script { stays_away: Some(1), ..SCRIPT };
    let done = run(store(3), script, LIVENESS, strike_once_up(1, Signal::KILL));
    let failure = done.failure();
    assert_eq!((failure.rank, failure.role.as_str()), (Rank(1), "worker 1"));
    assert!(failure.cause.contains("killed by signal 9"), "{failure}");
    assert!(done.took < Duration::from_secs(10) && done.shrunk.is_empty(), "{:?}", done.took);
}

/// What an elastic job of three workers makes of the loss of the second.
fn shrinks(signal: Signal, why: &str) {
    let script = Script { stays_away: Some(1), ..SCRIPT };
    let elastic = StoreJob { elastic: true, ..store(3) };
    let done = run(elastic, script, LIVENESS, strike_once_up(1, signal));
    let [(rank, cause, left)] = &done.shrunk[..] else {
        panic!("it shrank once: {:?}", done.shrunk);
    };
    assert_eq!((*rank, *left), (Rank(1), 2));
    assert!(cause.contains(why), "{cause}");
    let reports = done.reports();
    assert_eq!(reports.keys().copied().collect::<Vec<_>>(), [0, 2, 3, 4]);
    for (rank, report) in reports {
        let (barriers, world) = if rank < 3 { (3, Some(vec![0, 2])) } else { (0, None) };
        assert_eq!(report, Report { barriers, world, ..Report::default() }, "rank {rank}");
    }
}

#[test]
fn an_elastic_job_goes_on_without_a_worker_that_was_killed() {
    shrinks(Signal::KILL, "killed by signal 9");
}

#[test]
fn an_elastic_job_goes_on_without_a_worker_that_was_stopped_and_ends_it() {
    shrinks(Signal::STOP, "nothing was heard of it");
}

#[test]
fn a_job_whose_workers_all_died_names_one_of_them() {
    let elastic = StoreJob { elastic: true, ..store(2) };
    let done = run(elastic, Script { barriers: u64::MAX, ..SCRIPT }, LIVENESS, |rank, pid, up| {
        if up && rank < Rank(2) {
            kill_process(pid, Signal::KILL).unwrap();
        }
    });
    assert!(done.failure().role.starts_with("worker"), "{}", done.failure());
    assert!(done.failure().cause.contains("killed by signal 9"), "{}", done.failure());
    assert_eq!(done.shrunk.len(), 1);
}

#[test]
fn a_server_killed_ends_a_job_that_does_not_replace_it() {
    let script = Script { stays_away: Some(0), ..SCRIPT };
    let elastic = StoreJob { elastic: true, ..store(2) };
    let done = run(elastic, script, LIVENESS, strike_once_up(3, Signal::KILL));
    let failure = done.failure();
    assert_eq!((failure.rank, failure.role.as_str()), (Rank(3), "server 1"));
    assert!(done.took < Duration::from_secs(10), "{:?}", done.took);
}

/// A server is lost: another comes, is introduced to the workers, and serves them to the end.
fn is_replaced(transport: Transport, signal: Signal) {
    let script = Script { transport, replaced: 1, ..SCRIPT };
    let replacing = StoreJob { replace_servers: true, ..store(2) };
    let done = run(replacing, script, LIVENESS, strike_once_up(3, signal));
    assert_eq!(done.replaced, [(Rank(3), Rank(4))]);
    assert_eq!(done.pids.len(), 5);
    let reports = done.reports();
    assert_eq!(reports.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 4]);
    for worker in [0, 1] {
        let replaced = vec![(1, 3, 4)];
        assert_eq!(reports[&worker], Report { barriers: 3, replaced, ..Report::default() });
    }
    assert_eq!(reports[&4], Report { replaces: Some(3), ..Report::default() });
}

#[test]
fn a_server_killed_is_replaced_on_shm() {
    is_replaced(Transport::Shm, Signal::KILL);
}

#[test]
fn a_server_killed_is_replaced_on_tcp() {
    is_replaced(Transport::Tcp, Signal::KILL);
}

#[test]
fn a_server_stopped_is_replaced_and_ended() {
    is_replaced(Transport::Tcp, Signal::STOP);
}

#[test]
fn a_replacement_killed_at_its_start_is_replaced_before_anybody_hears_of_it() {
    let script = Script { replaced: 1, ..SCRIPT };
    let replacing = StoreJob { replace_servers: true, ..store(2) };
    let done = run(replacing, script, LIVENESS, |rank, pid, up| {
        if (up && rank == Rank(2)) || (!up && rank == Rank(4)) {
            kill_process(pid, Signal::KILL).unwrap();
        }
    });
    assert_eq!(done.replaced, [(Rank(2), Rank(4)), (Rank(4), Rank(5))]);
    let reports = done.reports();
    assert_eq!(reports[&0].replaced, [(0, 4, 5)]);
    assert_eq!(reports[&5].replaces, Some(4));
}

#[test]
fn a_server_that_dies_again_and_again_ends_the_job() {
    let script = Script { replaced: usize::MAX, ..SCRIPT };
    let replacing = StoreJob { replace_servers: true, ..store(2) };
    let done = run(replacing, script, LIVENESS, |rank, pid, up| {
        if up && rank >= Rank(3) {
            kill_process(pid, Signal::KILL).unwrap();
        }
    });
    let ranks: Vec<(u32, u32)> = done.replaced.iter().map(|(was, by)| (was.0, by.0)).collect();
    assert_eq!(ranks, [(3, 4), (4, 5), (5, 6)]);
    let failure = done.failure();
    assert_eq!((failure.rank, failure.role.as_str()), (Rank(6), "server 1"), "{failure}");
}
