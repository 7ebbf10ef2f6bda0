//! Training over a key-value store with real processes: the bits of `ps` on every wire and partition, also after a
//! server died, and jobs that lose workers and end well. Real signals, at moments of all kinds.

use std::time::{Duration, Instant};

use crate::support::{Ended, Job, await_file, send, wait_until_stopped};
use rustix::process::{Pid, Signal};
use tensorwire_testkit::long;
use tensorwire_train::SnapshotFiles;

/// ZeroMQ, where it is built in.
const ZMQ: &[&str] = if cfg!(feature = "baselines") { &["--exchange zmq"] } else { &[] };
const LIMIT: Duration = Duration::from_secs(120);
/// Within which a job ends that cannot go on.
const DEADLINE: Duration = Duration::from_secs(10);

fn train(arguments: &str) -> Ended {
    Job::start(&format!("train --json {arguments}")).end(LIMIT)
}

fn hash(arguments: &str) -> String {
    hash_of(&train(arguments))
}

fn hash_of(ended: &Ended) -> String {
    ended.json()["weights_sha256"].as_str().unwrap().to_string()
}

fn number(ended: &Ended, field: &str) -> f64 {
    ended.json()[field].as_f64().unwrap()
}

#[test]
fn dist_sgd_has_the_bits_of_ps_and_of_the_local_fold() {
    // the middle layer has more than a million numbers and is split over all servers
    for (workers, servers, batch) in [(1, 1, 16), (2, 2, 32), (3, 2, 8), (2, 3, 8)] {
        let job = format!("--workers {workers} --batch {batch} --steps 4");
        let local = hash(&format!("--strategy local {job}"));
        let job = format!("{job} --servers {servers}");
        assert_eq!(hash(&job), local, "ps: {job}");
        for wire in ["--transport shm", "--transport tcp", "--elastic"].iter().chain(ZMQ) {
            assert_eq!(hash(&format!("--strategy dist-sgd {wire} {job}")), local, "{wire} {job}");
        }
    }
}

/// State of optimizers, a narrow type, moving averages, what is dropped, and gradients by rows: of more words than
/// there are, so that rows are added before they are pushed.
#[test]
fn dist_sgd_has_the_bits_of_ps_for_every_optimizer_type_and_kind_of_gradient() {
    for job in [
        "--optimizer sgd",
        "--optimizer adagrad --servers 3",
        "--optimizer adam --lr 0.003",
        "--dtype bf16",
        "--dtype f64 --workers 3",
        "--model cifar",
        "--model seq2seq --data reverse:400 --optimizer adam --lr 0.003",
    ] {
        let job = format!("{job} --batch 8 --steps 4");
        let ps = hash(&job);
        for wire in ["--transport shm", "--transport tcp"].iter().chain(ZMQ) {
            assert_eq!(hash(&format!("--strategy dist-sgd {wire} {job}")), ps, "{wire} {job}");
        }
    }
}

/// Each worker at its own pace; with `--max-delay 0` nobody is a step ahead.
#[test]
fn dist_asgd_learns_the_digits() {
    for how in [
        "--transport shm",
        "--transport tcp --max-delay 2",
        "--transport tcp --wire int8",
        #[cfg(feature = "baselines")]
        "--exchange zmq --max-delay 0",
    ] {
        let learned = "--epochs 2 --batch 16 --optimizer adam --lr 0.001";
        let ended = train(&format!("--strategy dist-asgd {learned} {how}"));
        let result = ended.json();
        assert_eq!((&result["async"], &result["strategy"]), (&true.into(), &"dist-asgd".into()));
        assert!(number(&ended, "test_accuracy") > 0.93, "{how}: {result}");
    }
    let alone = "--workers 1 --servers 2 --batch 8 --steps 9";
    assert_eq!(hash(&format!("--strategy dist-asgd {alone}")), hash(alone));
}

#[test]
fn weights_go_in_and_out_of_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let first = hash(&format!("--strategy dist-sgd --steps 4 --save {}", path.display()));
    for job in ["--servers 1", "--servers 3 --elastic"].iter().chain(ZMQ) {
        let job = format!("{job} --strategy dist-sgd --steps 1 --lr 1e-45");
        assert_eq!(hash(&format!("{job} --load {}", path.display())), first, "{job}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// A job of two workers and two servers, of which some die.
fn disturbed(arguments: &str, deaths: &[(usize, u64)], signal: Signal) -> (Ended, Vec<Pid>) {
    let mut job = Job::start(&format!("train --json {arguments}"));
    let members = job.members(4);
    struck(job, &members, deaths, signal)
}

/// The same from its first step on: before, it ends with the first that dies.
fn disturbed_in_its_steps(arguments: &str, deaths: &[(usize, u64)]) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let metrics = folder.path().join("m.jsonl").display().to_string();
    let mut job = Job::start(&format!("train --json {arguments} --metrics {metrics}"));
    let members = job.members(4);
    await_file(&job, &metrics);
    struck(job, &members, deaths, Signal::KILL).0
}

/// Each dies so many milliseconds behind the one before.
fn struck(job: Job, members: &[Pid], deaths: &[(usize, u64)], signal: Signal) -> (Ended, Vec<Pid>) {
    let mut victims = Vec::new();
    for (rank, after_ms) in deaths {
        std::thread::sleep(Duration::from_millis(*after_ms));
        // whoever took a server's place is the last that was started
        let victim = members.get(*rank).copied().or_else(|| job.newest_member());
        victims.extend(victim);
        victim.into_iter().for_each(|victim| send(victim, signal));
    }
    (job.end(LIMIT), victims)
}

#[test]
fn a_death_ends_the_job_by_name_unless_it_may_go_on() {
    for (rank, role) in ["worker 0", "worker 1", "server 0", "server 1"].iter().enumerate() {
        for (strategy, extra, signal) in [
            ("dist-sgd", "", Signal::KILL),
            ("dist-sgd --transport tcp", "", Signal::KILL),
            ("dist-asgd", "", Signal::KILL),
            #[cfg(feature = "baselines")]
            ("dist-sgd --exchange zmq", "", Signal::KILL),
            ("dist-sgd", "--deadline 4", Signal::STOP),
            // what may be lost is of the other kind
            ("dist-sgd", if rank < 2 { "--snapshot s" } else { "--elastic" }, Signal::KILL),
        ] {
            let job = format!("--strategy {strategy} {extra} --steps 100000 --metrics m.jsonl");
            let moment = 100 + 350 * rank as u64;
            let (ended, victims) = disturbed(&job, &[(rank, moment)], signal);
            let context = format!("{role}, {job}:\n{}", ended.stderr);
            let pid = victims[0].as_raw_nonzero();
            let who = format!("error: first to fail: {role} (rank {rank}, pid {pid}) ");
            assert!(ended.last_line().starts_with(&who), "{context}");
            assert_eq!(ended.status.code(), Some(1), "{context}");
            assert!(ended.took < DEADLINE, "{:?}: {context}", ended.took);
        }
    }
}

#[test]
fn an_elastic_job_goes_on_without_a_worker_and_learns() {
    for (wire, rank, moment, signal) in [
        // before the first values are there, in the first steps, later
        ("--transport shm", 0, 250, Signal::KILL),
        ("--transport shm", 1, 600, Signal::KILL),
        ("--transport tcp", 0, 1500, Signal::KILL),
        ("--transport shm --deadline 4", 1, 900, Signal::STOP),
        ("--transport tcp --wire int8", 0, 900, Signal::KILL),
        #[cfg(feature = "baselines")]
        ("--exchange zmq", 0, 1200, Signal::KILL),
    ] {
        let files = "--metrics m.jsonl --save w.safetensors";
        let job = format!("--strategy dist-sgd --elastic --epochs 6 {wire} {files}");
        let (ended, _) = disturbed(&job, &[(rank, moment)], signal);
        let context = format!("worker {rank} after {moment} ms, {wire}:\n{}", ended.stderr);
        if ended.stderr.contains("before the first step") {
            // it never stood: what does not begin does not go on with less
            assert_eq!(ended.status.code(), Some(1), "{context}");
            continue;
        }
        assert!(ended.status.success(), "{context}");
        assert!(ended.stderr.contains(&format!("worker {rank} was lost: ")), "{context}");
        assert!(ended.stderr.contains("; 1 worker goes on"), "{context}");
        assert_eq!(number(&ended, "workers_finished"), 1.0, "{context}");
        assert!(number(&ended, "test_accuracy") > 0.85, "{}\n{context}", ended.json());
        // a line for each step of a small world, and the summary
        assert_eq!(ended.lines_of("m.jsonl"), 66 + 1, "{context}");
        let saved = ended.files();
        assert!(saved.iter().any(|(name, _)| name == "w.safetensors"), "{saved:?}");
    }
}

/// So many that they are not over when the last dies that is to.
const STEPS: &str = "--strategy dist-sgd --steps 44 --batch 32";

/// The weights are those of the job that nobody disturbed: no push is lost, none counts twice.
fn replaced(extra: &str, deaths: &[(usize, u64)], undisturbed: &str) {
    let job = format!("{STEPS} --snapshot s --snapshot-every {extra}");
    let ended = disturbed_in_its_steps(&job, deaths);
    let context = format!("{job}, {deaths:?}:\n{}", ended.stderr);
    assert!(ended.status.success(), "{context}");
    assert_eq!(hash_of(&ended), undisturbed, "{context}");
    let times = number(&ended, "servers_replaced");
    assert!(times <= deaths.len() as f64, "{context}");
    assert_eq!(ended.stderr.matches(" is to take its place").count() as f64, times, "{context}");
    for (name, _) in ended.files() {
        assert!(name.starts_with("s.server") && name.ends_with(".safetensors"), "{name}");
    }
}

#[test]
fn a_server_that_dies_is_replaced_and_no_bit_changes() {
    let undisturbed = hash(STEPS);
    for moment in (0..1800).step_by(long::of(600, 300)) {
        for rank in [2, 3] {
            let every = [3, 7, 50, 1][moment as usize / 300 % 4];
            let wire = if rank == 2 { "shm" } else { "tcp" };
            let extra = format!("{every} --transport {wire}");
            replaced(&extra, &[(rank, moment)], &undisturbed);
        }
    }
}

/// What a server gets again is what was pushed, byte by byte: a gradient is not made less of a second time.
#[test]
fn a_server_is_replaced_where_less_of_gradients_is_pushed() {
    for (wire, moment) in [("int8", 500), ("top-k:0.02", 300)] {
        let undisturbed = hash(&format!("{STEPS} --wire {wire}"));
        for (rank, transport) in [(2, "tcp"), (3, "shm")] {
            let extra = format!("7 --wire {wire} --transport {transport}");
            replaced(&extra, &[(rank, moment)], &undisturbed);
        }
    }
}

#[test]
fn servers_that_die_again_are_replaced_again() {
    let undisturbed = hash(STEPS);
    let newest = usize::MAX;
    for (extra, deaths) in [
        ("1", [(2, 200), (newest, 700)].as_slice()),
        ("5", &[(2, 400), (3, 100)]),
        ("50 --transport tcp", &[(3, 300), (newest, 900), (2, 300)]),
        // once it came up again, and while it does
        ("3", &[(3, 500), (newest, 60), (newest, 500)]),
    ] {
        replaced(extra, deaths, &undisturbed);
    }
}

#[test]
fn a_snapshot_of_another_job_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let job = |seed| {
        let path = path.display();
        format!("{STEPS} --seed {seed} --snapshot {path} --snapshot-every 5")
    };
    hash(&job(2));
    for moment in [200, 260, 320] {
        let (ended, _) = disturbed(&job(1), &[(2, moment)], Signal::KILL);
        if ended.status.success() {
            assert_eq!(hash_of(&ended), hash(STEPS), "{}", ended.stderr);
        } else {
            assert!(ended.last_line().contains("before the first step"), "{}", ended.stderr);
        }
    }
}

/// A byte that was other when it was written: the bits would be wrong, and nothing would say so.
#[test]
fn a_damaged_snapshot_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s").display().to_string();
    let mut job = Job::start(&format!(
        "train --strategy dist-sgd --steps 100000 --batch 32 --snapshot {path} --snapshot-every 30"
    ));
    let server = job.members(4)[2];
    let file = SnapshotFiles::path(0, &path);
    let appears = Instant::now() + LIMIT;
    // the first one has no values yet
    while !file.metadata().is_ok_and(|file| file.len() > 1 << 20) {
        assert!(Instant::now() < appears, "a snapshot is written");
        std::thread::sleep(Duration::from_millis(5));
    }
    // it would write the next one over what is damaged
    send(server, Signal::STOP);
    wait_until_stopped(server);
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    send(server, Signal::KILL);
    let ended = job.end(LIMIT);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("s.server0.safetensors is damaged"), "{}", ended.stderr);
}

#[test]
fn a_job_may_lose_workers_and_servers() {
    let job = "--strategy dist-sgd --elastic --snapshot s --snapshot-every 4 --epochs 5";
    let ended = disturbed_in_its_steps(job, &[(2, 400), (0, 400), (3, 700)]);
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_eq!(number(&ended, "workers_finished"), 1.0, "{}", ended.stderr);
    assert!(number(&ended, "test_accuracy") > 0.85, "{}", ended.stderr);
}

#[test]
fn graph_shows_what_is_pushed_and_pulled_and_where_it_lies() {
    let ended =
        Job::start("graph --full --strategy dist-sgd --transport tcp --servers 3").end(LIMIT);
    assert!(ended.status.success(), "{}", ended.stderr);
    let line = |name: &str| {
        let line = ended.stdout.lines().find(|line| line.trim_start().starts_with(name));
        line.unwrap_or_else(|| panic!("no {name}: {}", ended.stdout)).to_string()
    };
    assert!(line("hidden2/weight").contains("3 servers, in 9 slices"), "{}", ended.stdout);
    assert!(line("hidden2/bias").ends_with("server 0"), "{}", ended.stdout);
    // 4,349,962 numbers of 4 bytes
    assert!(line("all").contains("17399848"), "{}", ended.stdout);
    assert!(ended.stdout.contains("each of 2 workers pulls 16.6 MiB and pushes 16.6 MiB"));
}
