//! Checkpoints of jobs whose workers each train at their own pace, or on weights of their own, or may be lost: what goes on
//! learns what an undisturbed job learns, and where there is one worker it has the same bits.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tensorwire_testkit::long;

use super::checkpoint::{hash, names, place, step, train};
use crate::support::{Ended, Job, send};

const LIMIT: Duration = Duration::from_secs(240);

fn number(ended: &Ended, field: &str) -> f64 {
    ended.json()[field].as_f64().unwrap()
}

/// Nobody is early or late, so nothing depends on time.
#[test]
fn one_worker_at_its_own_pace_goes_on_to_the_same_bits() {
    let adam = "--optimizer adam --lr 0.001 --schedule step:2,0.5 --warmup 3 --workers 1";
    for (job, files) in [
        ("--async --servers 2", 2),
        ("--async --split-above 1KiB --transport tcp", 2),
        ("--strategy dist-asgd", 2),
        #[cfg(feature = "baselines")]
        ("--async --exchange grpc-tcp", 2),
        #[cfg(feature = "baselines")]
        ("--strategy dist-asgd --exchange zmq", 2),
        ("--strategy dist-asgd --elastic", 2),
        // the centre, and what the client has for itself; the last before a checkpoint meet behind step 4
        ("--strategy dist-esgd --interval 3", 3),
    ] {
        goes_on(&format!("{adam} {job}"), files);
    }
    let groups = "--workers 2 --clients 1 --deterministic";
    goes_on(&format!("--strategy mpi-asgd {groups}"), 2);
    goes_on(&format!("--strategy mpi-esgd --interval 2 {groups}"), 3);
}

fn goes_on(job: &str, files: usize) {
    let undisturbed = hash(&train(&format!("{job} --steps 9")));
    let (_folder, path) = place();
    let first = format!("{job} --steps 5 --checkpoint {path} --checkpoint-every 2 --keep 2");
    let first = train(&first);
    assert_eq!(names(&path), ["step-00000004", "step-00000005"], "{job}: {}", first.stderr);
    assert_eq!(names(step(&path, 5).to_str().unwrap()).len(), files + 1, "{job}");
    let second = train(&format!("{job} --steps 9 --resume {path}"));
    assert_eq!(hash(&second), undisturbed, "{job}: {}", second.stderr);
    assert!(second.stderr.contains(", after step 5\n"), "{job}: {}", second.stderr);
}

/// Of a batch that is small, so that there are many steps in little time.
const DIGITS: &str = "--batch 32 --checkpoint-every 15 --steps";

#[test]
fn a_killed_job_of_workers_at_their_own_pace_goes_on_and_learns() {
    let jobs = [
        "--async",
        "--strategy dist-asgd --max-delay 2",
        "--strategy dist-esgd --interval 8",
        "--strategy mpi-asgd --workers 4 --clients 2",
        "--async --workers 3 --transport tcp",
        "--strategy dist-asgd --transport tcp --schedule cosine",
        "--strategy mpi-esgd --interval 8 --workers 4 --clients 2",
    ];
    for how in &jobs[..long::of(3, jobs.len())] {
        let (_folder, path) = place();
        let job = format!("{how} --checkpoint {path} {DIGITS}");
        let endless = Job::start(&format!("train {job} 100000"));
        let start = Instant::now();
        while !step(&path, 30).exists() {
            assert!(start.elapsed() < LIMIT, "{how}: no checkpoint");
            std::thread::sleep(Duration::from_millis(1));
        }
        endless.signal_group(Signal::KILL);
        endless.end(LIMIT);
        let ended = Job::start(&format!("train --json {job} 110 --resume {path}")).end(LIMIT);
        assert!(number(&ended, "test_accuracy") > 0.9, "{how}: {}", ended.json());
        assert!(names(&path).contains(&"step-00000110".to_string()), "{how}: {:?}", names(&path));
    }
}

#[test]
fn ctrl_c_ends_workers_at_their_own_pace_behind_the_same_step() {
    for how in ["--async", "--strategy dist-asgd", "--strategy dist-esgd --interval 4"] {
        let (_folder, path) = place();
        let job = format!("{how} --checkpoint {path} --checkpoint-every 1000000");
        let endless =
            Job::start(&format!("train {job} --batch 8 --steps 1000000 --metrics m.jsonl"));
        let metrics = endless.folder().join("m.jsonl");
        let start = Instant::now();
        while std::fs::metadata(&metrics).map_or(0, |file| file.len()) == 0 {
            assert!(start.elapsed() < LIMIT, "no step");
            std::thread::sleep(Duration::from_millis(1));
        }
        endless.signal_group(Signal::INT);
        let ended = endless.end(LIMIT);
        let last = ended.last_line();
        assert!(last.starts_with("error: interrupted; the newest"), "{how}: {}", ended.stderr);
        let names = names(&path);
        let [name] = names.as_slice() else { panic!("{how}: {names:?}, {}", ended.stderr) };
        let steps = name[5..].parse::<u64>().unwrap() + 2;
        let ended = train(&format!("{job} --steps {steps} --resume {path}"));
        assert_eq!(ended.json()["steps"], steps, "{how}: {}", ended.stderr);
    }
}

/// Whoever is lost is no reason to wait, also while a checkpoint is made.
#[test]
fn an_elastic_job_makes_checkpoints_without_a_worker_that_it_lost() {
    for (strategy, victim, moment) in
        [("dist-sgd", 0, 4), ("dist-sgd", 1, 8), ("dist-asgd", 0, 8), ("dist-asgd", 1, 4)]
    {
        let (_folder, path) = place();
        let job = format!("--strategy {strategy} --elastic --checkpoint {path} --batch 32");
        let mut first = Job::start(&format!("train --json {job} --steps 40 --checkpoint-every 4"));
        let members = first.members(4);
        let start = Instant::now();
        while !step(&path, moment).exists() {
            assert!(start.elapsed() < LIMIT, "no checkpoint");
            std::thread::sleep(Duration::from_millis(1));
        }
        send(members[victim], Signal::KILL);
        let ended = first.end(LIMIT);
        let context = format!("{strategy}, worker {victim}: {}", ended.stderr);
        assert!(ended.status.success(), "{context}");
        assert_eq!(number(&ended, "workers_finished"), 1.0, "{context}");
        // the one that was being made, if there was one, may be missing, which is said
        let is_missing = |step: &u64| {
            let said = format!("no checkpoint of step {step}: a process was lost meanwhile");
            ended.stderr.contains(&said)
        };
        let made: Vec<u64> = (4..=40).step_by(4).filter(|step| !is_missing(step)).collect();
        assert!(made.len() >= 3, "{context}");
        let kept = made[made.len() - 3..].iter().map(|step| format!("step-{step:08}"));
        assert_eq!(names(&path), kept.collect::<Vec<_>>(), "{context}");
        let ended = Job::start(&format!("train --json {job} --steps 70 --resume {path}"));
        let ended = ended.end(LIMIT);
        assert!(number(&ended, "test_accuracy") > 0.85, "{context}: {}", ended.json());
        assert_eq!(number(&ended, "workers_finished"), 2.0, "{context}");
    }
}

#[test]
fn clients_begin_at_the_centre_where_there_is_no_state_of_as_many() {
    let (folder, path) = place();
    let job = "--strategy dist-esgd --interval 2 --steps";
    let centre = hash(&train(&format!("{job} 4 --checkpoint {path}")));
    let says = "each client begins at the centre with a fresh optimizer";
    for (other, is_said) in [("", false), ("--workers 3", true)] {
        let ended = train(&format!("{job} 6 {other} --resume {path}"));
        assert_eq!(ended.stderr.contains(says), is_said, "{other}: {}", ended.stderr);
        ended.json();
    }
    // the centre alone is what the job is evaluated by
    let saved = folder.path().join("w").display().to_string();
    let at = step(&path, 4);
    let converted = Job::start(&format!("checkpoint convert {} {saved}", at.display())).end(LIMIT);
    assert!(converted.status.success(), "{}", converted.stderr);
    let still = format!("--strategy local --lr 1e-45 --steps 1 --load {saved}");
    assert_eq!(hash(&train(&still)), centre);
    // weights of a job without a centre are as good a centre
    let (_other, local) = place();
    train(&format!("--strategy local --steps 4 --checkpoint {local}")).json();
    let ended = train(&format!("{job} 6 --resume {local}"));
    assert!(ended.stderr.contains(says), "{}", ended.stderr);
    // and a job without one takes the weights alone
    let refused = train(&format!("--steps 6 --resume {path}"));
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
    assert!(refused.last_line().contains("take its weights alone: --load "), "{}", refused.stderr);
}
