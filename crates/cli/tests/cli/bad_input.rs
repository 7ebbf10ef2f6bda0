//! What a user can get wrong: exit status 2 and one line that says what and how to mend it. Never a
//! panic, never a file that was not asked for; and strangers at the door do not disturb a job.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::{Ended, Job};
use tensorwire_testkit::skip::skip;

const LIMIT: Duration = Duration::from_secs(60);

fn refused(arguments: &str) -> Ended {
    let ended = Job::start(arguments).end(LIMIT);
    assert_eq!(ended.status.code(), Some(2), "{arguments}: {}", ended.stderr);
    assert!(ended.stdout.is_empty(), "{arguments}: {}", ended.stdout);
    ended
}

/// The message, which must be one line.
fn message(arguments: &str) -> String {
    let ended = refused(arguments);
    let errors: Vec<&str> = ended.stderr.lines().filter(|l| l.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{}", ended.stderr);
    assert_eq!(ended.last_line(), errors[0], "the error comes last: {}", ended.stderr);
    errors[0].to_string()
}

#[test]
fn numbers_and_names_that_make_no_sense() {
    for (arguments, says) in [
        ("--model perceptron", "there is no model 'perceptron'; known models: mlp"),
        (
            "--data cifar",
            "unknown data 'cifar'; did you mean 'cifar10'? known are: digits, digits:N, mnist:DIR",
        ),
        ("--workers 0", "--workers must be at least 1"),
        ("--batch 0", "--batch must be at least 1"),
        ("--epochs 0", "--epochs must be at least 1"),
        ("--steps 0", "--steps must be at least 1"),
        ("--threads 0", "--threads must be at least 1"),
        ("--servers 7", "of 7 servers only 6 would hold variables of 'mlp'; give --servers 1 to 6"),
        ("--workers 300", "at most 256"),
        ("--batch 720", "there are 1438; lower the batch or the workers"),
        ("--lr 0", "--lr must be a positive number"),
        ("--lr -1", "--lr must be a positive number, not -1"),
        ("--lr nan", "--lr must be a positive number"),
        ("--momentum 1", "--momentum must be from 0 to below 1"),
        ("--deadline 0.5", "--deadline must be from 1 to 3600 seconds"),
        ("--data synthetic:100000000", "N from 1 to 1000000"),
        ("--threads 100000", "--threads must be from 1 to 1024"),
        ("--save /dev/null", "it is there and is no regular file"),
        ("--save w/", "it names a folder"),
        ("--save same --metrics same", "give each its own"),
        ("--load none.safetensors", "cannot read weights from none.safetensors"),
        ("--save none/w.safetensors", "in a folder that exists"),
        ("--metrics none/m.jsonl", "cannot write metrics to none/m.jsonl"),
        ("--checkpoint /dev/null", "/dev/null is no folder, and --checkpoint takes one"),
        ("--accumulate 257", "--accumulate must be from 1 to 256"),
        ("--tensorboard /proc/runs", "cannot write TensorBoard's event files to /proc/runs"),
        ("--tensorboard /dev/null", "choose a folder that may be written"),
        ("--trace none/t.json", "cannot write a trace to none/t.json: No such file"),
        ("--trace none/t.json", "in a folder that exists and may be written"),
        ("--trace t/", "it names a folder"),
        ("--trace /dev/null", "it is there and is no regular file"),
        ("--trace /proc/t.json", "cannot write a trace to /proc/t.json"),
        (
            "--trace same --metrics same",
            "--metrics and --trace name the same file; give each its own",
        ),
        ("--trace same --save same", "--save and --trace name the same file; give each its own"),
        ("--step-deadline 0.5", "--step-deadline must be from 1 to 604800 seconds, not 0.5"),
        ("--dynamic-memory 64KiB", "--dynamic-memory must be at least 1 MiB, not 65536"),
        ("--trace t.json --trace-steps 0", "--trace-steps must be from 1 to 1000, not 0"),
        ("--trace t.json --trace-steps 1001", "--trace-steps must be from 1 to 1000, not 1001"),
    ] {
        for strategy in ["ps", "local"] {
            // of several processes
            let others = ["server", "256", "--deadline must"];
            if strategy == "local" && others.iter().any(|other| says.contains(other)) {
                continue;
            }
            let found = message(&format!("train --strategy {strategy} {arguments}"));
            assert!(found.contains(says), "{arguments}: {found}");
        }
    }
}

#[test]
fn asynchronous_training_without_what_it_needs() {
    let found = message("train --async --strategy local");
    assert!(found.contains("give it with --strategy ps"), "{found}");
    let found = message("train --async --trace t.json");
    assert!(
        found.contains("leave --async or --trace out, or take ps, dist-sgd, mpi-sgd or allreduce"),
        "{found}"
    );
}

#[test]
fn servers_that_are_workers() {
    for (arguments, says) in [
        ("--servers 0 --async", "a worker is no such server; give --servers 1 or more"),
        ("--colocate --async", "a worker is no such server; give --servers 1 or more"),
        (
            "--colocate --strategy allreduce",
            "--colocate changes nothing here: it is for --strategy ps",
        ),
        ("--strategy dist-sgd --servers 0", "--servers must be at least 1"),
    ] {
        let found = message(&format!("train {arguments}"));
        assert!(found.contains(says), "{arguments}: {found}");
    }
    refused("train --colocate --servers 2");
}

#[test]
fn options_that_would_change_nothing() {
    for optimizer in ["sgd", "adagrad", "adam"] {
        let found = message(&format!("train --optimizer {optimizer} --momentum 0.9"));
        assert!(found.contains("--momentum changes nothing here"), "{found}");
        assert!(
            found.contains("it is for --optimizer momentum and nesterov; leave it out"),
            "{found}"
        );
    }
    for given in [
        "--servers 2",
        "--deadline 10",
        "--transport tcp",
        "--transport auto",
        "--exchange copy",
        "--nic mlx5_0",
        "--gid 3",
        "--arrival write-imm",
        "--encrypt",
        "--listen 127.0.0.1:0",
    ] {
        for command in ["train", "bench step", "graph"] {
            let found = message(&format!("{command} --strategy local {given}"));
            let option = given.split(' ').next().unwrap();
            assert!(found.contains(&format!("{option} changes nothing here")), "{found}");
            assert!(found.contains("it is for jobs of several processes"), "{found}");
        }
    }
    let found = message("train --rsh ssh");
    assert!(found.contains("--rsh changes nothing here: it is for --hosts"), "{found}");
    let found = message("train --strategy dist-esgd --send-order ready");
    assert!(found.contains("--send-order changes nothing here"), "{found}");
    let found = message("train --strategy allreduce --servers 2");
    assert!(found.contains("it is for jobs with servers, which --strategy allreduce"), "{found}");
}

#[test]
fn options_of_a_store_without_one_or_that_do_not_go_together() {
    for (arguments, says) in [
        ("--max-delay 2", "--max-delay is of a key-value store; give it with --strategy dist-asgd"),
        ("--strategy dist-sgd --max-delay 2", "give it with --strategy dist-asgd"),
        ("--elastic", "give it with --strategy dist-sgd or dist-asgd"),
        ("--strategy local --snapshot s", "give it with --strategy dist-sgd or dist-asgd"),
        (
            "--strategy allreduce --exchange zmq",
            "with --strategy ps, dist-sgd, dist-asgd or dist-esgd",
        ),
        ("--strategy dist-sgd --exchange copy", "is no way of a key-value store"),
        #[cfg(feature = "baselines")]
        (
            "--strategy dist-sgd --exchange zmq --transport shm",
            "goes over TCP of its own; give --transport",
        ),
        #[cfg(feature = "baselines")]
        ("--strategy dist-sgd --exchange zmq --snapshot s", "leave --snapshot out"),
        ("--strategy dist-sgd --snapshot none/s", "cannot write snapshots to none/s"),
        ("--strategy dist-sgd --snapshot s/", "it names a folder"),
        (
            "--strategy dist-asgd --trace t.json",
            "leave --async or --trace out, or take ps, dist-sgd, mpi-sgd or allreduce",
        ),
        ("--strategy dist-sgd --async", "give it with --strategy ps"),
    ] {
        let found = message(&format!("train {arguments}"));
        assert!(found.contains(says), "{arguments}: {found}");
    }
    refused("train --strategy dist-sgd --snapshot-every 5");
    refused("train --strategy dist-sgd --snapshot s --snapshot-every 0");
}

#[test]
fn options_of_groups_without_any_or_that_do_not_go_together() {
    for (arguments, says) in [
        ("--clients 2", "--clients is of groups of workers; give it with --strategy mpi-sgd,"),
        (
            "--strategy allreduce --clients 2",
            "give it with --strategy mpi-sgd, mpi-asgd or mpi-esgd",
        ),
        ("--interval 5", "give it with --strategy dist-esgd or mpi-esgd"),
        ("--strategy mpi-sgd --alpha 0.5", "give it with --strategy dist-esgd or mpi-esgd"),
        ("--strategy dist-sgd --algorithm ring", "give it with --strategy allreduce, mpi-sgd,"),
        ("--strategy dist-asgd --deterministic", "give it with --strategy allreduce or mpi-sgd"),
        ("--strategy dist-esgd --interval 0", "--interval must be at least 1"),
        ("--strategy mpi-sgd --clients 0", "--clients must be at least 1"),
        ("--strategy mpi-esgd --alpha 0", "--alpha must be above 0 and at most 1, not 0"),
        ("--strategy mpi-esgd --alpha 1.5", "--alpha must be above 0 and at most 1, not 1.5"),
        ("--strategy mpi-sgd --workers 4 --clients 3", "--clients 3 does not divide --workers 4"),
        (
            "--strategy mpi-sgd --workers 4 --clients 2 --servers 0",
            "nobody to keep the weights; give --servers 1 or more, or mpi-sgd with one client",
        ),
        ("--strategy mpi-esgd --servers 0", "give --servers 1 or more"),
        ("--strategy dist-esgd --servers 0", "--servers must be at least 1"),
        ("--strategy allreduce --exchange write", "is no way of a group of workers; leave it out"),
        (
            "--strategy mpi-sgd --exchange zmq",
            "with --strategy ps, dist-sgd, dist-asgd or dist-esgd",
        ),
        ("--strategy mpi-sgd --snapshot s", "give it with --strategy dist-sgd or dist-asgd"),
        ("--strategy dist-esgd --elastic", "give it with --strategy dist-sgd or dist-asgd"),
        ("--strategy allreduce --max-delay 2", "give it with --strategy dist-asgd or mpi-asgd"),
        ("--strategy allreduce --async", "give it with --strategy ps"),
    ] {
        let found = message(&format!("train {arguments}"));
        assert!(found.contains(says), "{arguments}: {found}");
    }
    refused("train --strategy allreduce --algorithm snake");
    refused("train --strategy allreduce --algorithm ring --table t");
    let found = message("train --strategy allreduce --table none");
    assert!(found.contains("cannot read the table none") && found.contains("--tune"), "{found}");
}

#[test]
fn hosts_that_make_no_sense_or_cannot_do_what_is_asked() {
    for (arguments, says) in [
        ("--hosts ,", "--hosts names no host; give at least one"),
        ("--hosts a;b", "'a;b' is no host; write NAME"),
        ("--hosts other:0", "'other:0' has no number of slots"),
        ("--hosts @none", "cannot read the hosts in none: No such file"),
        ("--hosts localhost,no-such-host.invalid", "give --listen ADDRESS:0"),
        ("--hosts localhost,other --transport shm", "share no memory; give --transport auto"),
        ("--hosts other --save w", "host of worker 0, which is other; put this machine first"),
        ("--hosts other --strategy local", "leave --hosts out"),
        ("--strategy dist-sgd --placement balanced", "it is for --strategy ps; leave it out"),
        ("--placement round-robin --split-above 1MiB", "ps with --placement balanced; leave it"),
        ("--nic mlx5_0", "--nic is for RDMA, which this job does not use"),
        ("--transport tcp --gid 1", "leave --gid out"),
        ("--transport shm --arrival flag-tail", "leave --arrival out"),
        ("--transport verbs --nic nonesuch", "RDMA cannot be used here"),
        ("--transport verbs --encrypt", "RDMA cannot encrypt; give --transport tcp"),
    ] {
        let found = message(&format!("train {arguments}"));
        assert!(found.contains(says), "{arguments}: {found}");
    }
    let found = message("bench transfer --transport verbs --nic nonesuch");
    assert!(found.contains("RDMA cannot be used here"), "{found}");
    let found = message("bench transfer --transport tcp --nic nonesuch");
    assert!(found.contains("leave --nic out"), "{found}");
}

#[test]
fn a_job_that_does_not_fit_this_host() {
    let available = tensorwire_fabric::available_bytes();
    if available > 64 << 30 {
        skip(None, &format!("a graph too large for {available} bytes takes long to plan"));
        return;
    }
    // each replica has gradients of 5,824,522 numbers of its own
    let replicas = available / (5_824_522 * 4) * 5 / 4;
    let job = format!("--data synthetic:{replicas} --batch 1 --workers {replicas}");
    let found = message(&format!("train --strategy local {job}"));
    assert!(found.contains("of memory on this host"), "{found}");

    // it may be looked at
    let graph = Job::start(&format!("graph --strategy local {job}")).end(LIMIT);
    let is_noted = graph.stderr.starts_with("note: this job needs");
    assert!(graph.status.success() && is_noted, "{}", graph.stderr);
}

#[test]
fn options_that_do_not_parse() {
    for arguments in [
        "train --workers many",
        "train --wokers 2",
        "fly",
        "bench",
        "train --trace-steps 5",
        "train --transport verbs --gid first",
        "train --transport verbs --arrival soon",
    ] {
        let ended = refused(arguments);
        assert!(ended.stderr.contains("--help"), "{}", ended.stderr);
    }
}

#[test]
fn data_files_that_are_missing_torn_or_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let data = format!("train --data mnist:{} --batch 2", folder.path().display());
    assert!(message(&data).contains("train-images-idx3-ubyte"), "missing");
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    let images =
        |n: u32| [[0x0803, n, 2, 2].map(u32::to_be_bytes).concat(), vec![7; n as usize * 4]];
    let labels = |n: u32| [[0x0801, n].map(u32::to_be_bytes).concat(), vec![1; n as usize]];
    for split in ["train", "t10k"] {
        write(&format!("{split}-images-idx3-ubyte"), &images(8).concat());
        write(&format!("{split}-labels-idx1-ubyte"), &labels(8).concat());
    }
    let good = Job::start(&format!("{data} --steps 2")).end(LIMIT);
    assert!(good.status.success(), "{}", good.stderr);

    let mut torn = images(8).concat();
    torn.truncate(30);
    write("train-images-idx3-ubyte", &torn);
    assert!(message(&data).contains("train-images-idx3-ubyte"));
    write("train-images-idx3-ubyte", b"\x89PNG something else entirely");
    assert!(message(&data).contains("train-images-idx3-ubyte"));
    write("train-images-idx3-ubyte", &images(8).concat());

    let mut foreign = labels(8).concat();
    foreign[11] = 10;
    write("train-labels-idx1-ubyte", &foreign);
    let found = message(&data);
    assert!(found.contains("train-labels-idx1-ubyte") && found.contains("10"), "{found}");
    write("train-labels-idx1-ubyte", &labels(7).concat());
    assert!(message(&data).contains('7'), "counts differ");
}

#[test]
fn weights_of_another_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let save = format!("train --strategy local --steps 1 --batch 4 --save {}", path.display());
    let trained = Job::start(&format!("{save} --data synthetic")).end(LIMIT);
    assert!(trained.status.success(), "{}", trained.stderr);
    let found = message(&format!("train --load {}", path.display()));
    let difference = "'hidden1/weight' is F32[2048, 784], not f32[2048×64]";
    assert!(found.contains(difference), "{found}");
    std::fs::write(&path, "not weights").unwrap();
    let found = message(&format!("train --load {}", path.display()));
    assert!(found.contains("no safetensors file"), "{found}");
}

#[test]
fn a_host_whose_loopback_is_down() {
    let apart = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.arg("--net").args(arguments);
        Job::start_command(command).end(LIMIT)
    };
    let tried = apart(&["true"]);
    if !tried.status.success() {
        return skip(None, &tried.stderr);
    }
    for listen in [&[][..], &["--listen", "127.0.0.1:0"]] {
        let job = [&[env!("CARGO_BIN_EXE_tensorwire"), "train", "--steps", "1"], listen].concat();
        let ended = apart(&job);
        let errors = ended.stderr.lines().filter(|line| line.starts_with("error: ")).count();
        assert_eq!((ended.status.code(), errors), (Some(2), 1), "{}", ended.stderr);
        assert!(ended.last_line().contains("ip link set lo up"), "{}", ended.stderr);
    }
}

#[test]
fn a_busy_port() {
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = busy.local_addr().unwrap();
    let found = message(&format!("train --listen {at}"));
    assert!(found.contains(&format!("cannot listen on {at}")), "{found}");
    assert!(found.contains("port 0"), "{found}");
}

#[test]
fn a_member_started_by_hand_says_so() {
    let ended = refused("member");
    assert!(ended.last_line().contains("started by a launcher"), "{}", ended.stderr);
}

#[test]
fn a_disk_that_is_full_costs_the_metrics_alone() {
    let job = "train --steps 3 --batch 8 --threads 1 --json --metrics /dev/full";
    let ended = Job::start(job).end(LIMIT);
    assert_eq!(ended.json()["steps"], 3);
    let why =
        "writing metrics to /dev/full: No space left on device (os error 28); free space there";
    let first = format!("{why}; the job goes on, and this step is left out");
    assert_eq!(ended.stderr.matches(&first).count(), 1, "{}", ended.stderr);
    let last = format!("warning: {why}; what could not be written is left out");
    assert_eq!(ended.last_line(), last, "{}", ended.stderr);
}

#[test]
fn a_job_that_never_began_leaves_earlier_metrics_as_they_are() {
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = busy.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (folder.path().join("old.jsonl"), folder.path().join("new.jsonl"));
    std::fs::write(&old, "precious").unwrap();
    for path in [&old, &new] {
        message(&format!("train --listen {at} --metrics {}", path.display()));
    }
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "precious");
    assert!(!new.exists());
}

#[test]
fn a_failed_command_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (save, metrics, trace) = (path("w.safetensors"), path("m.jsonl"), path("t.json"));
    refused(&format!("train --save {save} --metrics {metrics} --trace {trace} --servers 7"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Random bytes, another protocol, silence, and a job of yesterday knock at the launcher's door: the
/// job goes on, and the log names them.
#[test]
fn strangers_are_turned_away_and_logged() {
    let port = {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let mut job = Job::start(&format!("train --epochs 6 --json --listen 127.0.0.1:{port}"));
    job.members(4);
    let knock = |says: &[u8]| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(says).unwrap();
        stream
    };
    let mut strangers = [
        knock(b"GET / HTTP/1.1\r\nHost: tensorwire\r\n\r\n"),
        knock(&[0xa5; 4096]),
        knock(b""),
        knock(&yesterdays_hello()),
    ];
    let mut answer = Vec::new();
    strangers[0].set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let _ = strangers[0].read_to_end(&mut answer);
    assert!(answer.is_empty(), "a stranger learns nothing: {answer:?}");
    let ended = job.end(LIMIT);
    assert_eq!(ended.json()["steps"], 66);
    let turned_away = ended.stderr.matches("turned away 127.0.0.1").count();
    assert!(turned_away >= 3, "{}", ended.stderr);
    assert!(ended.stderr.contains("does not speak this protocol"), "{}", ended.stderr);
    assert!(ended.stderr.contains("belongs to another job"), "{}", ended.stderr);
}

/// More strangers than the launcher has places for, all silent: they wait, and the members get in.
#[test]
fn a_crowd_of_silent_strangers_does_not_keep_members_out() {
    let port = {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let mut job = Job::start(&format!("train --steps 3 --json --listen 127.0.0.1:{port}"));
    job.members(1);
    let crowd: Vec<_> = (0..90).map(|_| TcpStream::connect(("127.0.0.1", port))).collect();
    let ended = job.end(LIMIT);
    assert_eq!(ended.json()["steps"], 3);
    drop(crowd);
}

/// What a process of another job says first: the right form, another job's number.
fn yesterdays_hello() -> Vec<u8> {
    use tensorwire_base::{Deadline, Incarnation, JobId, Rank};
    use tensorwire_fabric::handshake::{Purpose, dial};
    use tensorwire_fabric::{Identity, JobCredentials, Secret};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut other, _) = listener.accept().unwrap();
    let job = JobCredentials { job_id: JobId(1), secret: Secret([1; 32]) };
    let me = Identity { rank: Rank(0), incarnation: Incarnation(1) };
    let deadline = Deadline::after(Duration::from_millis(300));
    // nobody answers; what was sent is what we want
    let answer = dial(&mut stream, &job, me, None, Purpose::Rendezvous, deadline);
    assert!(answer.is_err());
    drop(stream);
    let mut hello = Vec::new();
    other.read_to_end(&mut hello).unwrap();
    hello
}

#[test]
fn the_shipped_data_is_what_the_binary_trains_on() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../zoo/data/digits");
    let mnist = format!("train --steps 3 --json --data mnist:{}", folder.display());
    let from_files = Job::start(&mnist).end(LIMIT).json();
    let built_in = Job::start("train --steps 3 --json").end(LIMIT).json();
    assert_eq!(from_files["weights_sha256"], built_in["weights_sha256"]);
}
