//! Training in groups with real processes: the bits of `ps` without servers and with, on every transport and
//! algorithm; averages that learn with a small part of the traffic; and jobs that end when somebody dies.

use std::time::Duration;

use crate::support::{Ended, Job, send};
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(240);
/// Within which a job ends that cannot go on.
const DEADLINE: Duration = Duration::from_secs(10);

fn train(arguments: &str) -> Ended {
    Job::start(&format!("train --json {arguments}")).end(LIMIT)
}

fn hash(arguments: &str) -> String {
    train(arguments).json()["weights_sha256"].as_str().unwrap().to_string()
}

fn number(ended: &Ended, field: &str) -> f64 {
    ended.json()[field].as_f64().unwrap()
}

#[test]
fn allreduce_and_one_client_have_the_bits_of_ps_and_of_the_local_fold() {
    for (workers, model) in [(1, "mlp"), (2, "mlp"), (3, "mlp"), (3, "cifar")] {
        let job = format!("--model {model} --workers {workers} --batch 8 --steps 4 --threads 1");
        let local = hash(&format!("--strategy local {job}"));
        assert_eq!(hash(&job), local, "ps: {job}");
        for strategy in ["allreduce", "mpi-sgd", "mpi-sgd --servers 0"] {
            for transport in ["shm", "tcp"] {
                let how = format!("--strategy {strategy} --transport {transport} --deterministic");
                assert_eq!(hash(&format!("{how} {job}")), local, "{how} {job}");
            }
        }
    }
}

/// Worker 0's weights go through the largest vector: into it there, out of it at the others.
#[test]
fn the_first_weights_are_copied_once_at_each_of_several_workers() {
    for workers in [1, 2, 3] {
        let how = "--strategy allreduce --batch 8 --steps 1 --transport tcp";
        let ended = train(&format!("{how} --workers {workers}"));
        // a worker alone has nobody to share them with
        let copied = if workers == 1 { 0.0 } else { f64::from(workers) * WEIGHTS };
        assert_eq!(number(&ended, "bytes_copied_broadcast"), copied);
        assert_eq!(number(&ended, "bytes_copied"), 0.0);
    }
}

/// State of optimizers, types, and what is dropped: a replica drops what it drops with servers.
#[test]
fn allreduce_has_the_bits_of_ps_for_every_optimizer_type_and_way_of_folding() {
    for job in [
        "--optimizer sgd",
        "--optimizer adagrad --algorithm direct",
        "--optimizer adam --lr 0.003 --algorithm multi-ring",
        "--dtype f64 --workers 3 --algorithm ring",
        "--dtype f64 --workers 3 --algorithm halving-doubling",
    ] {
        let all = format!("{job} --deterministic --batch 8 --steps 4");
        let (plain, _) = job.split_once(" --algorithm").unwrap_or((job, ""));
        let ps = hash(&format!("{plain} --batch 8 --steps 4"));
        for how in ["allreduce --transport shm", "mpi-sgd --transport tcp"] {
            assert_eq!(hash(&format!("--strategy {how} {all}")), ps, "{how} {job}");
        }
    }
}

/// Over a wire a step begins while gradients of the one before are reduced, or pushed: whatever is done with these, or looked at in
/// between, each step's updates are as if it did not.
#[test]
fn steps_that_begin_early_have_the_bits_of_steps_that_do_not() {
    for (strategy, options) in [
        ("allreduce", "--optimizer momentum --schedule cosine --warmup 2 --val-every 3"),
        ("allreduce", "--clip-norm 0.5 --accumulate 2 --ema 0.9"),
        ("allreduce", "--wire bf16 --optimizer adam --lr 0.003"),
        ("dist-sgd", "--optimizer momentum --schedule cosine --warmup 2 --val-every 3"),
        ("dist-sgd", "--accumulate 2 --ema 0.9"),
        ("dist-sgd", "--wire bf16 --optimizer adam --lr 0.003"),
        ("dist-sgd", "--wire int8 --elastic"),
    ] {
        let job = format!("{options} --batch 8 --steps 7 --threads 1 --strategy {strategy}");
        let over_memory = train(&format!("{job} --transport shm"));
        assert_eq!(number(&over_memory, "early_kernels"), 0.0, "nothing waits for a wire");
        for order in ["priority", "ready"] {
            let over_tcp = train(&format!("{job} --transport tcp --send-order {order}"));
            for field in ["weights_sha256", "final_loss", "test_accuracy"] {
                let found = [&over_tcp, &over_memory].map(|ended| ended.json()[field].clone());
                assert_eq!(found[0], found[1], "{options}, {order}: {field}");
            }
        }
    }
}

/// Gradients by rows become tensors, which the optimizer takes otherwise than rows; moving averages are folded too.
#[test]
fn every_kind_of_gradient_is_folded() {
    let job = "--model seq2seq --data reverse:400 --optimizer adam --lr 0.003 --batch 8 --steps 3";
    let job = format!("{job} --deterministic --threads 1");
    let first = hash(&format!("--strategy allreduce {job}"));
    for how in ["allreduce --transport tcp", "mpi-sgd --servers 1"] {
        assert_eq!(hash(&format!("--strategy {how} {job}")), first, "{how}");
    }
    let job = "--model resnet50 --data synthetic:8 --batch 1 --steps 1 --deterministic --threads 1";
    assert_eq!(hash(&format!("--strategy allreduce {job}")), hash(job));
}

#[test]
fn a_table_that_was_measured_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("table.jsonl");
    let row = r#"{"transport":"tcp","world":2,"from_bytes":0,"algorithm":"multi-ring"}"#;
    std::fs::write(&table, row).unwrap();
    let job = "--strategy allreduce --transport tcp --batch 8 --steps 3";
    assert_eq!(hash(&format!("{job} --table {}", table.display())), hash(job));
    std::fs::write(&table, row.replace("multi-ring", "shared")).unwrap();
    let ended = train(&format!("{job} --table {}", table.display()));
    assert_eq!(ended.status.code(), Some(2));
    let says = "table.jsonl: line 1: the algorithm `shared` is for shm alone";
    assert!(ended.stderr.contains(says), "{}", ended.stderr);
}

#[test]
fn clients_repeat_their_bits_and_clients_of_one_are_workers_of_a_store() {
    let job = "--workers 4 --batch 8 --steps 5 --deterministic";
    let two = hash(&format!("--strategy mpi-sgd --clients 2 {job}"));
    assert_eq!(hash(&format!("--strategy mpi-sgd --clients 2 {job}")), two);
    assert_eq!(hash(&format!("--strategy mpi-sgd --clients 2 --transport tcp {job}")), two);
    assert_eq!(hash(&format!("--strategy mpi-sgd --clients 2 --servers 3 {job}")), two);
    let four = hash(&format!("--strategy mpi-sgd --clients 4 {job}"));
    assert_eq!(four, hash(&format!("--strategy dist-sgd {job}")));
    // a mean of means, and the sums in another order
    assert_ne!(two, four);
}

#[test]
fn clients_at_their_own_pace_learn_the_digits() {
    let ended =
        train(&format!("--strategy mpi-asgd --workers 4 --clients 2 --epochs 2 --batch 8 {ADAM}"));
    assert_eq!(ended.json()["async"], true);
    assert!(number(&ended, "test_accuracy") > 0.9, "{}", ended.json());
    let alone = "--workers 2 --batch 8 --steps 9 --deterministic";
    let one = hash(&format!("--strategy mpi-asgd --clients 1 {alone}"));
    assert_eq!(one, hash(&format!("--strategy mpi-sgd --clients 1 {alone}")), "nobody is early");
}

/// What learns the digits in a few epochs of small batches.
const ADAM: &str = "--optimizer adam --lr 0.001";
/// Bytes of the weights of the digits' model.
const WEIGHTS: f64 = 4_349_962.0 * 4.0;

#[test]
fn a_job_that_is_over_before_its_workers_meet_the_centre_is_told_so() {
    for (steps, is_told) in [(3, true), (4, false)] {
        let job = format!("train --strategy dist-esgd --interval 3 --batch 8 --steps {steps}");
        let said = Job::start(&job).end(LIMIT).stderr;
        assert_eq!(said.contains("warning: nobody meets the centre"), is_told, "{said}");
    }
}

#[test]
fn averages_learn_the_digits_with_a_64th_of_the_traffic() {
    // steps cost more than samples: 132 of them either way
    for (how, clients) in [
        ("dist-esgd --batch 16 --transport shm", 2.0),
        #[cfg(feature = "baselines")]
        ("dist-esgd --batch 16 --exchange zmq", 2.0),
        ("mpi-esgd --workers 4 --clients 2 --batch 8 --transport tcp", 2.0),
        ("mpi-esgd --clients 1 --batch 16", 1.0),
    ] {
        let job = Job::start(&format!("train --json --epochs 3 {ADAM} --strategy {how}"));
        let ended = job.end(LIMIT);
        let steps = number(&ended, "steps");
        assert!(steps > 128.0, "it meets the centre three times: {how}");
        assert!(number(&ended, "test_accuracy") >= 0.955, "{how}: {}", ended.json());
        // once at the beginning, every 64th step from the first on, and what is evaluated
        let meetings = (steps / 64.0).ceil();
        let bytes = clients * WEIGHTS * (1.0 + 2.0 * meetings) + WEIGHTS;
        assert_eq!(number(&ended, "store_bytes"), bytes, "{how}: {}", ended.json());
        let says = "a 64th of dist-sgd's";
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
    }
}

#[test]
fn weights_go_in_and_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let first = hash(&format!("--strategy allreduce --steps 4 --save {}", path.display()));
    for how in [
        "allreduce --workers 3",
        "allreduce --workers 3 --transport tcp",
        "mpi-sgd --workers 4 --clients 2",
        "dist-esgd --interval 1",
        "mpi-esgd --workers 4 --clients 2",
        "ps",
    ] {
        let job = format!("--strategy {how} --steps 1 --lr 1e-45 --load {}", path.display());
        assert_eq!(hash(&job), first, "{how}");
    }
}

#[test]
fn a_death_ends_the_job_by_name() {
    for (strategy, victim, role, signal) in [
        ("allreduce --workers 3", 0, "worker 0", Signal::KILL),
        ("allreduce --workers 3 --transport tcp", 2, "worker 2", Signal::KILL),
        ("allreduce --workers 3 --deadline 4", 1, "worker 1", Signal::STOP),
        // masters, then servers, then the others
        ("mpi-sgd --workers 4 --clients 2", 1, "worker 1", Signal::KILL),
        ("mpi-sgd --workers 4 --clients 2", 3, "server 1", Signal::KILL),
        ("mpi-sgd --workers 4 --clients 2 --transport tcp", 5, "worker 3", Signal::KILL),
        ("mpi-asgd --workers 4 --clients 2 --deadline 4", 4, "worker 2", Signal::STOP),
        ("mpi-esgd --workers 4 --clients 2", 4, "worker 2", Signal::KILL),
        ("mpi-esgd --workers 4 --clients 2", 2, "server 0", Signal::KILL),
        ("dist-esgd --interval 5", 1, "worker 1", Signal::KILL),
    ] {
        for moment in [100, 1500] {
            let arguments = format!("--strategy {strategy} --steps 100000 --batch 8");
            let mut job = Job::start(&format!("train --json {arguments}"));
            let members = job.members(if strategy.starts_with("allreduce") { 3 } else { 4 });
            std::thread::sleep(Duration::from_millis(moment));
            let members = job.members(members.len().max(victim + 1));
            send(members[victim], signal);
            let ended = job.end(LIMIT);
            let context = format!("{role}, {arguments}, {moment} ms:\n{}", ended.stderr);
            let pid = members[victim].as_raw_nonzero();
            let who = format!("error: first to fail: {role} (rank {victim}, pid {pid}) ");
            assert!(ended.last_line().starts_with(&who), "{context}");
            assert_eq!(ended.status.code(), Some(1), "{context}");
            let took = ended.took.saturating_sub(Duration::from_millis(moment));
            assert!(took < DEADLINE, "{took:?}: {context}");
        }
    }
}

#[test]
fn graph_shows_what_is_folded_and_what_is_spread() {
    let shown = |arguments: &str| {
        let ended = Job::start(&format!("graph --full {arguments}")).end(LIMIT);
        assert!(ended.status.success(), "{}", ended.stderr);
        ended.stdout
    };
    let text = shown("--strategy allreduce --workers 3");
    assert_eq!(text.matches("all-reduced where it was made").count(), 6, "{text}");
    assert!(text.contains("of 3 workers 16.6 MiB are all-reduced to their mean"), "{text}");
    assert!(text.contains("nothing else crosses"), "{text}");
    let text = shown("--strategy mpi-sgd --workers 4 --clients 2");
    assert_eq!(text.matches("broadcast from the client's master").count(), 6, "{text}");
    assert!(text.contains("each of 2 clients pulls 16.6 MiB and pushes 16.6 MiB"), "{text}");
    let text = shown("--strategy dist-esgd");
    assert!(text.contains("every 64 training steps: each of 2 workers pulls 16.6 MiB"), "{text}");
}
