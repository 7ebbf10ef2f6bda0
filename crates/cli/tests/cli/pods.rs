//! Pods of Kubernetes: processes with a rank and an address each, on hosts that share no memory. No cluster runs here; each host is a
//! network namespace of this machine, and who starts a process anew is the test. [`crate::launchers`] has what starts all of them itself.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::launchers::{BINARY, LIMIT, LONG_LIMIT, plain_digest, skip_without};
use crate::support::{Ended, Job, await_file, process_with, send};

/// Two networks of one machine, joined by a cable: what is in one shares no memory with the other.
struct TwoHosts {
    names: [String; 2],
}

impl TwoHosts {
    const ADDRESSES: [&str; 2] = ["10.213.77.1", "10.213.77.2"];

    /// None where networks cannot be made.
    fn new() -> Option<TwoHosts> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let names = ["a", "b"].map(|end| format!("tw{}-{number}{end}", std::process::id()));
        let [a, b] = &names;
        let ip = |line: String| {
            let status = Command::new("ip").args(line.split_whitespace()).output();
            status.is_ok_and(|output| output.status.success())
        };
        if !ip(format!("netns add {a}")) || !ip(format!("netns add {b}")) {
            return None;
        }
        let two = TwoHosts { names: names.clone() };
        let mut made = ip(format!("link add v0 netns {a} type veth peer name v0 netns {b}"));
        for (name, address) in two.names.iter().zip(Self::ADDRESSES) {
            made &= ip(format!("-n {name} addr add {address}/24 dev v0"));
            made &= ip(format!("-n {name} link set v0 up"));
            made &= ip(format!("-n {name} link set lo up"));
        }
        made.then_some(two)
    }

    /// Starts four processes of a job, every second one on the other host. The first leads.
    fn start(&self, arguments: &str) -> Vec<Job> {
        let start = |rank: usize| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &self.names[rank % 2], BINARY]);
            command.args(arguments.split_whitespace());
            command.env("JOB_COMPLETION_INDEX", rank.to_string());
            command.env("WORLD_SIZE", "4").env("MASTER_ADDR", Self::ADDRESSES[0]);
            Job::start_command(command)
        };
        (0..4).map(start).collect()
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

#[test]
fn two_hosts_meet_at_the_first_and_train_over_tcp_to_the_same_bits() {
    let Some(hosts) = TwoHosts::new() else {
        skip_without("ip netns, or not root");
        return;
    };
    let mut jobs = hosts.start("train --steps 5 --transport tcp --json").into_iter();
    let ended = jobs.next().unwrap().end(LONG_LIMIT);
    let json = ended.json();
    assert_eq!(
        (&json["weights_sha256"], &json["transport"]),
        (&plain_digest().into(), &"tcp".into())
    );
    let placed = format!("({}): worker 1, server 1", TwoHosts::ADDRESSES[1]);
    assert!(ended.stderr.contains(&placed), "{}", ended.stderr);
    assert!(jobs.all(|job| job.end(LIMIT).status.success()));

    let jobs = hosts.start("train --steps 100000 --transport tcp --metrics m.jsonl");
    // `ip` becomes the command that it is given
    let victim = jobs[3].launcher();
    process_with(jobs[0].folder(), "member", "JOB_COMPLETION_INDEX=0");
    await_file(&jobs[0], "m.jsonl");
    send(victim, Signal::KILL);
    let ended: Vec<Ended> = jobs.into_iter().map(|job| job.end(LIMIT)).collect();
    let last = ended[0].last_line();
    assert!(last.contains("first to fail: server 1 (rank 3, on "), "{}", ended[0].stderr);
    assert_eq!(ended[1].status.code(), Some(1), "{}", ended[1].stderr);
}

/// One pod is lost, so all of the job end; all are made again, by the same command, and go on. What only another command mends is
/// told apart by its status, which `examples/clusters/jobset.yaml` looks at.
#[test]
fn pods_that_are_made_again_go_on_from_the_newest_checkpoint() {
    let Some(hosts) = TwoHosts::new() else {
        skip_without("ip netns, or not root");
        return;
    };
    let job = "train --json --threads 1 --batch 8 --steps 300 --transport tcp";
    let undisturbed = Job::start(&format!("{job} --no-detect")).end(LONG_LIMIT).json();
    let kept = tempfile::tempdir().unwrap();
    let folder = kept.path().display();
    let job = format!("{job} --checkpoint {folder} --checkpoint-every 25 --resume auto");
    let pods = hosts.start(&job);
    let begun = Instant::now();
    while !kept.path().join("step-00000025").exists() {
        assert!(begun.elapsed() < LONG_LIMIT, "nothing is kept");
        std::thread::sleep(Duration::from_millis(5));
    }
    send(pods[2].launcher(), Signal::KILL);
    for (rank, pod) in pods.into_iter().enumerate() {
        let ended = pod.end(LONG_LIMIT);
        let by_us = rank != 2;
        assert_eq!(ended.status.code(), by_us.then_some(1), "{rank}: {}", ended.stderr);
    }
    let mut pods = hosts.start(&job).into_iter();
    let first = pods.next().unwrap().end(LONG_LIMIT);
    assert_eq!(first.json()["weights_sha256"], undisturbed["weights_sha256"], "{}", first.stderr);
    assert!(first.stderr.contains("goes on from "), "{}", first.stderr);
    assert!(pods.all(|pod| pod.end(LIMIT).status.success()));

    let wrong = hosts.start("train --model nonesuch --transport tcp");
    let statuses: Vec<_> = wrong.into_iter().map(|pod| pod.end(LONG_LIMIT).status.code()).collect();
    assert_eq!(statuses, [Some(2); 4], "each says that it is the user's");
}
