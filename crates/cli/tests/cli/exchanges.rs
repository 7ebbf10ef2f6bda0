//! The ways that a tensor can cross, with real processes: the same bits by all of them, whatever the sizes
//! and paces; limits that are said before anything is started; and a death that ends the job.

use std::time::Duration;

use crate::support::{Ended, Job, send};
use rustix::process::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(240);

/// The baselines, each over what it can go over, and the transport that is shown then.
const WAYS: [(&str, &str); 5] = [
    ("--exchange grpc-tcp", "tcp"),
    ("--exchange grpc-tcp-tuned --transport tcp", "tcp"),
    ("--exchange grpc-rdma --transport shm", "shm"),
    ("--exchange grpc-rdma --transport tcp", "tcp"),
    ("--exchange zmq", "tcp"),
];

fn train(arguments: &str) -> Value {
    Job::start(&format!("train --json {arguments}")).end(LIMIT).json()
}

#[test]
fn the_same_bits_by_every_exchange() {
    // 2 workers and 2 servers, the digits, the mlp; and sequences, whose sizes nobody knows before
    for job in [
        "--batch 16 --steps 4",
        "--workers 3 --servers 3 --batch 8 --steps 3",
        "--model seq2seq --data reverse:400 --optimizer adam --lr 0.003 --batch 8 --steps 3",
    ] {
        let expected = train(job);
        for (way, transport) in WAYS {
            let result = train(&format!("{job} {way}"));
            assert_eq!(result["weights_sha256"], expected["weights_sha256"], "{job} {way}");
            assert_eq!(result["transport"], transport, "{way}");
            let exchange = way.split_whitespace().nth(1).unwrap();
            assert_eq!(result["exchange"], exchange);
            assert!(
                result["bytes_copied"].as_u64().unwrap() > 0,
                "a copy is what it is for: {way}"
            );
            // what is of unknown size is staged as well, until its site allocates registered memory
            let of = |key: &str| result[key].as_u64().unwrap();
            let staged = of("bytes_copied_staging");
            assert_eq!(of("bytes_copied_messages") + staged, of("bytes_copied"), "{way}");
            assert_eq!(staged > 0, job.contains("seq2seq"), "{way}");
        }
    }
}

/// Each byte of a tensor from where it came to its place; once more into a ring or a frame.
#[test]
fn copies_of_messages_are_counted_to_the_byte() {
    // 4,349,962 parameters of 4 bytes; three steps to and from two workers, and one fetch
    let sent: u64 = 4_349_962 * 4 * (3 * 4 + 1);
    for (way, copies) in
        [("grpc-tcp-tuned", 1), ("grpc-rdma --transport shm", 2), ("grpc-rdma", 2), ("zmq", 2)]
    {
        let result = train(&format!("--steps 3 --exchange {way}"));
        assert_eq!(result["bytes_copied_messages"], copies * sent, "{way}");
        assert_eq!(result["bytes_copied"], copies * sent, "{way}");
    }
}

#[test]
fn workers_at_their_own_pace_by_every_exchange() {
    for (way, _) in WAYS {
        let learns = "--epochs 2 --batch 16 --optimizer adam --lr 0.001";
        let result = train(&format!("--async --workers 3 {learns} {way}"));
        assert!(result["test_accuracy"].as_f64().unwrap() > 0.8, "{way}: {result}");
    }
}

#[test]
fn a_death_ends_the_job() {
    for (way, _) in WAYS {
        for (rank, role) in [(1, "worker 1"), (2, "server 0")] {
            for moment in [0, 60, 900] {
                let mut job = Job::start(&format!("train --steps 100000 --deadline 10 {way}"));
                let victim = job.members(4)[rank];
                std::thread::sleep(Duration::from_millis(moment));
                send(victim, Signal::KILL);
                let ended = job.end(Duration::from_secs(20));
                let context = format!("{way}, after {moment} ms:\n{}", ended.stderr);
                assert_eq!(ended.status.code(), Some(1), "{context}");
                let who = format!("error: first to fail: {role} (rank {rank}, ");
                assert!(ended.last_line().starts_with(&who), "{context}");
                assert!(ended.last_line().contains("killed by signal 9"), "{context}");
            }
        }
    }
}

#[test]
fn what_an_exchange_cannot_carry_is_said_before_anything_is_started() {
    for (arguments, says) in [
        ("bench transfer --exchange grpc-rdma --sizes 1028MiB", "at most 1 GiB"),
        ("bench transfer --exchange zero-copy,grpc-tcp --sizes 2GiB", "less than 2 GiB"),
        (
            "bench transfer --exchange grpc-tcp-tuned --transport tcp --sizes 4GiB",
            "less than 4 GiB",
        ),
        ("bench transfer --exchange grpc-tcp --transport shm", "goes over TCP of its own"),
        ("train --exchange grpc-tcp --transport shm", "give --transport tcp or leave it out"),
        ("train --exchange zmq --transport shm", "give --transport tcp or leave it out"),
        ("train --strategy dist-sgd --exchange grpc-tcp", "no way of a key-value store"),
        ("train --strategy allreduce --exchange grpc-rdma", "no way of a group of workers"),
    ] {
        let Ended { status, stdout, stderr, .. } = Job::start(arguments).end(LIMIT);
        assert_eq!(status.code(), Some(2), "{arguments}: {stderr}");
        assert!(stdout.is_empty() && stderr.contains(says), "{arguments}: {stderr}");
        assert_eq!(stderr.lines().filter(|line| line.starts_with("error:")).count(), 1, "{stderr}");
    }
}
