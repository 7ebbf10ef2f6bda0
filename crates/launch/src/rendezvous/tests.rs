//! A gathering and those who call it, in one process.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::AtomicBool;
use std::thread;

use super::*;
use crate::rendezvous::{Gathering, LaunchedAs, detect};

fn of_two(rank: u32, port: u16, run: &str) -> Detected {
    of(2, rank, port, run)
}

/// As process `rank` of `world` under torchrun, whose master port is `port`.
fn of(world: u32, rank: u32, port: u16, run: &str) -> Detected {
    let variables = [
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", world.to_string()),
        ("MASTER_ADDR", "127.0.0.1".to_string()),
        ("MASTER_PORT", port.to_string()),
        ("TORCHELASTIC_RUN_ID", run.to_string()),
    ];
    let variables: BTreeMap<_, _> =
        variables.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
    detect(&variables, 1).unwrap().unwrap()
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn text(text: &str) -> KeySource {
    KeySource::Text(text.to_string())
}

/// Where the key of a test's job lies.
struct Keys(tempfile::TempDir);

impl Keys {
    fn new() -> Keys {
        Keys(tempfile::tempdir().unwrap())
    }

    fn source(&self) -> KeySource {
        KeySource::Folder(self.0.path().join("keys"))
    }
}

fn join_within(
    detected: &Detected,
    key: &KeySource,
    patience: Duration,
) -> Result<Joined, RendezvousError> {
    join(&Detected { patience, ..detected.clone() }, key)
}

/// Another process, which joins.
fn spawn_join(
    detected: Detected,
    key: KeySource,
) -> thread::JoinHandle<Result<Joined, RendezvousError>> {
    thread::spawn(move || join_within(&detected, &key, SOON))
}

const SOON: Duration = Duration::from_secs(30);
static GO_ON: AtomicBool = AtomicBool::new(false);

#[test]
fn who_joins_is_gathered_and_told_when_there_is_no_job() {
    let port = free_port();
    let gathering = Gathering::open(&of_two(0, port, "job"), &text("s"), None).unwrap();
    assert!(gathering.at().port() > port, "torchrun's own store listens at its port");
    let other = thread::spawn(move || join_within(&of_two(1, port, "job"), &text("s"), SOON));
    gathering.gather(&GO_ON).unwrap();
    assert!(!gathering.hosts().any_remote() && !gathering.hosts().spread(2));
    gathering.dismiss("the job has ended", 1);
    assert!(matches!(other.join().unwrap(), Err(RendezvousError::NoJob { status: 1 })));
}

#[test]
fn a_launcher_beside_its_members_gathers_rank_0_too() {
    let keys = Keys::new();
    let port = free_port();
    let beside = Detected { launched_as: LaunchedAs::Scheduler, ..of_two(0, port, "job") };
    let gathering = Gathering::open(&beside, &keys.source(), None).unwrap();
    let join = |rank| spawn_join(of_two(rank, port, "job"), keys.source());
    let members = [0, 1].map(join);
    gathering.gather(&GO_ON).unwrap();
    gathering.dismiss("the job has ended", 1);
    for member in members {
        assert!(matches!(member.join().unwrap(), Err(RendezvousError::NoJob { status: 1 })));
    }
}

#[test]
fn who_does_not_know_the_secret_is_told_so() {
    let keys = Keys::new();
    let port = free_port();
    let gathering = Gathering::open(&of_two(0, port, "job"), &text("s"), None).unwrap();
    let patience = Duration::from_secs(6);
    let error = join_within(&of_two(1, port, "job"), &text("another"), patience).unwrap_err();
    assert!(matches!(error, RendezvousError::Secret { .. }), "{error}");
    assert!(error.to_string().contains("TENSORWIRE_SECRET"), "{error}");
    // the launcher may write its key yet
    let moment = Duration::from_millis(200);
    let error =
        join_within(&of_two(1, port, "job"), &keys.source(), moment).unwrap_err().to_string();
    assert!(
        error.contains("no key of this job at ") && error.contains("TENSORWIRE_SECRET"),
        "{error}"
    );
    // a third one too many, and one that was counted otherwise
    let refused = |detected| join_within(&detected, &text("s"), SOON).unwrap_err().to_string();
    let twice = refused(of_two(0, port, "job"));
    assert!(twice.contains("a process of rank 0 already"), "{twice}");
    let counted = refused(Detected { world: 3, ..of_two(1, port, "job") });
    assert!(counted.contains("told of 3 processes, and the launcher of 2"), "{counted}");
    drop(gathering);
}

/// Whoever has the port may say that a process does not know the secret; the launcher comes in at the next one.
#[test]
fn a_stranger_where_the_launcher_is_looked_for_sends_nobody_away() {
    let port = free_port();
    let detected = of_two(1, port, "job");
    let stranger = TcpListener::bind(("127.0.0.1", detected.rendezvous.ports[0])).unwrap();
    let (called, calls) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for caller in stranger.incoming() {
            let mut caller = caller.unwrap();
            let mut hello = [0; handshake::HELLO_BYTES];
            // its own magic and version, that it does not know the secret, and nothing that proves it
            if caller.read_exact(&mut hello).is_ok() {
                let said = [&hello[..10], &5u16.to_le_bytes(), &[0; 44]].concat();
                let _ = caller.write_all(&said);
                let _ = called.send(());
            }
        }
    });
    let other = thread::spawn(move || join_within(&detected, &text("s"), SOON));
    // sent away twice, it calls on
    (0..2).for_each(|_| calls.recv().unwrap());
    let gathering = Gathering::open(&of_two(0, port, "job"), &text("s"), None).unwrap();
    gathering.gather(&GO_ON).unwrap();
    gathering.dismiss("the job has ended", 1);
    assert!(matches!(other.join().unwrap(), Err(RendezvousError::NoJob { status: 1 })));
}

/// The key of a launcher that was killed is there until the next one writes its own.
#[test]
fn whoever_comes_first_waits_for_the_launchers_key() {
    let keys = Keys::new();
    let port = free_port();
    let (_, left) = key::made(&of_two(0, port, "job").key, &keys.source()).unwrap();
    let other = spawn_join(of_two(1, port, "job"), keys.source());
    thread::sleep(Duration::from_millis(100));
    let gathering = Gathering::open(&of_two(0, port, "job"), &keys.source(), None).unwrap();
    gathering.gather(&GO_ON).unwrap();
    gathering.dismiss("the job has ended", 1);
    assert!(matches!(other.join().unwrap(), Err(RendezvousError::NoJob { status: 1 })));
    drop(left);
}

#[test]
fn the_next_port_is_taken_where_one_is_and_other_jobs_are_passed_by() {
    let keys = Keys::new();
    let port = free_port();
    let first = Gathering::open(&of_two(0, port, "first"), &keys.source(), None).unwrap();
    let second = Gathering::open(&of_two(0, port, "second"), &keys.source(), None).unwrap();
    assert_ne!(first.at().port(), second.at().port());
    let call = |run| spawn_join(of_two(1, port, run), keys.source());
    let callers = [call("second"), call("first")];
    first.gather(&GO_ON).unwrap();
    second.gather(&GO_ON).unwrap();
    first.dismiss("the job has ended", 1);
    second.dismiss("the job has ended", 1);
    for caller in callers {
        assert!(matches!(caller.join().unwrap(), Err(RendezvousError::NoJob { status: 1 })));
    }
}

/// Where the address that the others call is none of this host's own, as behind a service, they come by either kind of address.
#[test]
fn where_the_name_is_not_this_hosts_own_both_kinds_of_addresses_are_heard() {
    let has_ipv6 = std::net::TcpListener::bind("[::1]:0").is_ok();
    let port = free_port();
    let mut behind = of_two(0, port, "job");
    // for documentation: nobody's
    behind.rendezvous.host = Some("192.0.2.1".to_string());
    for caller in ["127.0.0.1", "::1"].into_iter().take(1 + usize::from(has_ipv6)) {
        let gathering = Gathering::open(&behind, &text("s"), None).unwrap();
        let mut calls = of_two(1, port, "job");
        calls.rendezvous.host = Some(caller.to_string());
        let other = spawn_join(calls, text("s"));
        gathering.gather(&GO_ON).unwrap();
        let (_, waiting) = gathering.take_over().unwrap();
        // members find the launcher where it was called, as they called it
        assert_eq!(gathering.reached_at(&waiting).ip().to_string(), caller);
        drop((waiting, gathering));
        assert!(other.join().unwrap().is_err(), "there is no job");
    }
}

#[test]
fn nobody_there_is_said_in_time_and_a_lobby_that_closes_is_noticed() {
    let keys = Keys::new();
    let port = free_port();
    let error =
        join_within(&of_two(1, port, "job"), &text("s"), Duration::from_millis(200)).unwrap_err();
    assert!(error.to_string().contains("nobody answers at 127.0.0.1, port"), "{error}");
    let gathering = Gathering::open(&of_two(0, port, "job"), &keys.source(), None).unwrap();
    let other = spawn_join(of_two(1, port, "job"), keys.source());
    gathering.gather(&GO_ON).unwrap();
    drop(gathering);
    let error = other.join().unwrap().unwrap_err();
    assert!(matches!(error, RendezvousError::HungUp { .. }), "{error}");
}

#[test]
fn who_does_not_come_in_time_is_named_with_how_to_wait_longer() {
    let port = free_port();
    let patience = Duration::from_secs(1);
    let impatient = Detected { patience, ..of_two(0, port, "job") };
    let gathering = Gathering::open(&impatient, &text("s"), None).unwrap();
    let error = gathering.gather(&GO_ON).unwrap_err().to_string();
    assert!(error.starts_with("1 of 2 processes did not call "), "{error}");
    assert!(
        error.contains(" within 1 s: rank 1; ") && error.contains("--gather-timeout"),
        "{error}"
    );
}

#[test]
fn one_that_ends_before_all_are_there_is_named() {
    let keys = Keys::new();
    let port = free_port();
    let of_three = |rank| of(3, rank, port, "job");
    let gathering = Gathering::open(&of_three(0), &keys.source(), None).unwrap();
    let called = call(&of_three(1), &keys.source(), Deadline::after(SOON)).unwrap();
    let (_, (mut speaker, hearer)) = called;
    let (machine, pid) = (Machine::here(), 4711);
    let (launched_as, cpus) = (of_three(1).launched_as, CpuMask::here());
    let said = JoinRequest { launched_as, world: 3, machine, pid, cpus };
    speaker.say_all(&said).unwrap();
    let dying = thread::spawn(move || {
        thread::sleep(Duration::from_millis(200));
        drop((speaker, hearer));
    });
    let error = gathering.gather(&GO_ON).unwrap_err().to_string();
    assert!(error.starts_with("first to fail: rank 1 (pid 4711 on "), "{error}");
    dying.join().unwrap();
    let told = AtomicBool::new(true);
    let gathering = Gathering::open(&of_three(0), &keys.source(), None).unwrap();
    let error = gathering.gather(&told).unwrap_err().to_string();
    assert!(error.contains("missing: rank 1, rank 2"), "{error}");
}

/// As mpirun and srun bind processes: each divides its processors among those that it shares them with.
#[test]
fn members_that_are_bound_apart_share_no_cores() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let own = sched_getaffinity(None).unwrap();
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| own.is_set(*cpu)).collect();
    let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
    let keys = Keys::new();
    let port = free_port();
    let of_three = |rank| of(3, rank, port, "job");
    let gathering = Gathering::open(&of_three(0), &keys.source(), None).unwrap();
    let bound = [(1, first), (2, last)].map(|(rank, cpu)| {
        let (detected, key) = (of_three(rank), keys.source());
        thread::spawn(move || {
            let mut one = CpuSet::new();
            one.set(cpu);
            sched_setaffinity(None, &one).unwrap();
            join_within(&detected, &key, SOON)
        })
    });
    gathering.gather(&GO_ON).unwrap();
    let hosts = gathering.hosts();
    assert!(hosts.share_cores(Rank(0), Rank(1)) && hosts.share_cores(Rank(0), Rank(2)));
    assert_eq!(hosts.share_cores(Rank(1), Rank(2)), first == last);
    assert!(hosts.together(Rank(1), Rank(2)), "they share memory all the same");
    // a job's members are told how many they are
    let spec = crate::job::JobSpec { hosts, ..crate::job::JobSpec::new("", "", Vec::new()) };
    let at = gathering.at();
    let identity = crate::assignment::JobIdentity::random(3);
    let told = |rank| identity.assignment(Rank(rank), Rank(rank), at, &spec);
    let shared_by = if first == last { 3 } else { 2 };
    assert_eq!([0, 1, 2].map(|rank| told(rank).cores_shared_by), [3, shared_by, shared_by]);
    assert_eq!(told(1).members_here, 3);
    gathering.dismiss("the job has ended", 1);
    bound.into_iter().for_each(|thread| drop(thread.join()));
}

#[test]
fn an_assignment_arrives_with_its_secret() {
    use crate::assignment::JobIdentity;
    use crate::job::JobSpec;
    let port = free_port();
    let gathering = Gathering::open(&of_two(0, port, "job"), &text("s"), None).unwrap();
    let other = thread::spawn(move || join_within(&of_two(1, port, "job"), &text("s"), SOON));
    gathering.gather(&GO_ON).unwrap();
    let identity = JobIdentity::random(2);
    let (_, mut waiting) = gathering.take_over().unwrap();
    let at = gathering.reached_at(&waiting);
    let assignment = identity.assignment(Rank(1), Rank(1), at, &JobSpec::new("", "", Vec::new()));
    gathering.assign(waiting[1].as_mut().unwrap(), assignment).unwrap();
    let got = other.join().unwrap().unwrap();
    assert_eq!(got.assignment.identity().unwrap().credentials, identity.credentials);
    assert!(!waiting[1].as_ref().unwrap().is_gone());
    drop(got);
    let patience = Deadline::after(SOON);
    while !waiting[1].as_ref().unwrap().is_gone() {
        assert!(!patience.passed(), "its end is not seen");
        thread::sleep(Duration::from_millis(5));
    }
}
