//! A job on two hosts, where the second is this one by another name: a script in the place of ssh runs there
//! what it is told to. The same bits, one warning, one clear error, and nothing left behind.

use std::time::{Duration, Instant};

use crate::support::{Ended, Job, LATE, children, send};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use tensorwire_testkit::skip::{skip, skip_part};

const LIMIT: Duration = Duration::from_secs(10);
const LONG_LIMIT: Duration = Duration::from_secs(120);

/// The command takes the script's place, so that its process is the launcher's child.
pub(crate) const IN_PLACE: &str = "exec sh -c \"$2\"";
/// The script stays, as ssh does, and ends with the command's status.
pub(crate) const BESIDE: &str = "sh -c \"$2\"; exit $?";
/// The same of a command in a session of its own, as one on another host is: what signals the script's group does not reach it.
const APART: &str = "exec 3<&0; setsid sh -c \"$2\" <&3 & wait $!; exit $?";
/// A host that does not answer.
const SILENT: &str = "exec sleep 600";

/// A command for `--rsh`: a script that notes what it was given.
pub(crate) struct Rsh {
    folder: TempDir,
    command: String,
}

impl Rsh {
    pub(crate) fn new(body: &str) -> Rsh {
        let folder = tempfile::tempdir().unwrap();
        let (script, log) = (folder.path().join("rsh.sh"), folder.path().join("log"));
        let note = format!("printf '%s|' \"$#\" \"$@\" >> '{}'", log.display());
        std::fs::write(&script, format!("{note}\n{body}\n")).unwrap();
        Rsh { command: format!("sh {}", script.display()), folder }
    }

    /// Everything that it was given: the number of arguments and each of them, `|` behind each.
    fn given(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// What has every second process of a job be on the other host.
    pub(crate) fn options(&self) -> [&str; 6] {
        ["--hosts", "127.0.0.1,other", "--listen", "127.0.0.1:0", "--rsh", &self.command]
    }

    pub(crate) fn start(&self, arguments: &str) -> Job {
        Job::start_with(arguments.split_whitespace().chain(self.options()))
    }
}

fn warnings(ended: &Ended) -> Vec<&str> {
    ended.stderr.lines().filter(|line| line.starts_with("warning: ")).collect()
}

/// The first process under `parent`; waits for it.
fn child_of(parent: Pid) -> Pid {
    let start = Instant::now();
    loop {
        if let Some(child) = children(parent).first() {
            return *child;
        }
        assert!(start.elapsed() < LIMIT, "no process under {parent:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whatever the strategy sends, and on several hosts over TCP, also where RDMA could be had.
#[test]
fn encrypted_tensors_give_the_bits_of_plain_ones() {
    for (strategy, way) in
        [("ps", ""), ("dist-sgd", "--transport tcp"), ("allreduce", "--transport tcp")]
    {
        let job = format!("train --json --steps 6 --batch 16 --strategy {strategy}");
        let plain = Job::start(&job).end(LONG_LIMIT).json();
        let rsh = Rsh::new(IN_PLACE);
        let encrypted = rsh.start(&format!("{job} {way} --encrypt")).end(LONG_LIMIT);
        assert!(warnings(&encrypted).is_empty(), "{}", encrypted.stderr);
        let encrypted = encrypted.json();
        assert_eq!(encrypted["weights_sha256"], plain["weights_sha256"], "{strategy}");
        assert_eq!(encrypted["transport"], "tcp", "{strategy}");
    }
}

#[test]
fn two_hosts_train_over_tcp_to_the_bits_of_shared_memory_on_one() {
    let one = Job::start("train --steps 5 --transport shm --json").end(LONG_LIMIT).json();
    for body in [IN_PLACE, BESIDE] {
        let rsh = Rsh::new(body);
        let ended = rsh.start("train --steps 5 --servers 2 --transport tcp --json").end(LONG_LIMIT);
        let two = ended.json();
        assert_eq!(two["weights_sha256"], one["weights_sha256"]);
        assert_eq!((&two["transport"], &two["bytes_copied"]), (&"tcp".into(), &0.into()));
        let placed = "127.0.0.1 (this machine): worker 0, server 0; other: worker 1, server 1";
        assert!(ended.stderr.contains(placed), "{}", ended.stderr);
        assert!(warnings(&ended).is_empty(), "tcp was asked for: {}", ended.stderr);
        // for each of two members: two arguments, the host and one line, which holds no secret
        let line = format!("2|other|exec {} member|", env!("CARGO_BIN_EXE_tensorwire"));
        assert_eq!(rsh.given(), line.repeat(2));
    }
}

/// sshd turns some away of more than ten that are about to log in.
#[test]
fn few_log_in_on_a_host_at_the_same_time() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().display();
    // what logs in is a file for a while, and each notes how many there are
    let body = format!(
        ": > {at}/login.$$; ls {at}/login.* | wc -l >> {at}/counts; sleep 0.5; rm {at}/login.$$; {IN_PLACE}"
    );
    let rsh = Rsh::new(&body);
    let line = "train --strategy allreduce --workers 11 --batch 1 --steps 1 --threads 1 --json";
    let hosts = ["--hosts", "other", "--listen", "127.0.0.1:0", "--rsh", &rsh.command];
    let job = Job::start_with(line.split_whitespace().chain(hosts));
    assert_eq!(job.end(LONG_LIMIT).json()["workers"], 11);
    let counts = std::fs::read_to_string(folder.path().join("counts")).unwrap();
    let counts: Vec<u32> = counts.lines().map(|line| line.trim().parse().unwrap()).collect();
    assert_eq!(counts.len(), 11);
    assert!(counts.iter().all(|count| *count <= 8), "{counts:?}");
}

/// Any address can be bound where the system is told so, as on hosts that take over each other's addresses.
#[test]
fn a_host_whose_address_can_be_bound_here_is_another_all_the_same() {
    let line = "ip link set lo up && echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind && exec \"$0\" train \
        --steps 1 --hosts 192.0.2.7 --listen 127.0.0.1:0 --rsh false";
    let mut command = std::process::Command::new("unshare");
    command.args(["--net", "sh", "-c", line, env!("CARGO_BIN_EXE_tensorwire")]);
    let ended = Job::start_command(command).end(LIMIT);
    if !ended.stderr.contains("error: ") {
        return skip(None, &format!("no network of its own: {}", ended.stderr));
    }
    assert!(ended.stderr.contains("192.0.2.7"), "{}", ended.stderr);
    assert!(!ended.status.success());
}

/// Where nobody says how many servers there are, and each host has a worker, each worker is a server too.
#[test]
fn few_hosts_have_a_worker_each_that_is_a_server_too_to_the_same_bits() {
    let job = "train --steps 5 --transport tcp --json";
    let one = Job::start(job).end(LONG_LIMIT).json();
    let rsh = Rsh::new(IN_PLACE);
    let ended = rsh.start(job).end(LONG_LIMIT);
    let two = ended.json();
    assert_eq!((&one["servers"], &two["servers"]), (&2.into(), &0.into()));
    assert_eq!(two["weights_sha256"], one["weights_sha256"]);
    let said = "2 workers, each a server of its share of the variables";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    // workers at paces of their own are not
    let ended = rsh.start(&format!("{job} --async")).end(LONG_LIMIT);
    assert_eq!(ended.json()["servers"], 2);
}

#[test]
fn auto_takes_tcp_with_one_warning_where_a_host_cannot_do_rdma() {
    let rsh = Rsh::new(IN_PLACE);
    // no machine has such a NIC
    let ended = rsh.start("train --steps 3 --nic nonesuch --json").end(LONG_LIMIT);
    assert_eq!(ended.json()["transport"], "tcp");
    let warnings = warnings(&ended);
    assert_eq!(warnings.len(), 1, "{}", ended.stderr);
    assert!(warnings[0].contains("on 127.0.0.1"), "{warnings:?}");
    // what is the same on both is said of both
    let says = ["on 127.0.0.1, other: ", "; nor on other: "];
    assert!(says.iter().any(|says| warnings[0].contains(says)), "{warnings:?}");
}

#[test]
fn the_warning_is_not_said_again_of_a_job_that_is_started_again() {
    let rsh = Rsh::new(IN_PLACE);
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept");
    let job =
        "train --steps 300 --batch 8 --threads 1 --nic nonesuch --restarts 3 --checkpoint-every 10";
    let job = rsh.start(&format!("{job} --checkpoint {}", kept.display()));
    let begins = Instant::now();
    let has_one = || std::fs::read_dir(&kept).is_ok_and(|all| all.flatten().any(is_checkpoint));
    while !has_one() {
        assert!(begins.elapsed() < LONG_LIMIT, "no checkpoint");
        std::thread::sleep(Duration::from_millis(5));
    }
    send(child_of(job.launcher()), Signal::KILL);
    let ended = job.end(LONG_LIMIT);
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(ended.stderr.contains("restart 1 of 3"), "{}", ended.stderr);
    assert_eq!(warnings(&ended).len(), 1, "{}", ended.stderr);
}

/// Of three processes one is alone on its host, and the others share one, whichever is which.
#[test]
fn hosts_of_one_process_and_of_several_train_together() {
    let rsh = Rsh::new(IN_PLACE);
    for strategy in [
        "ps --servers 1",
        "dist-sgd --servers 1",
        "allreduce --workers 3 --deterministic",
        // two on each of three hosts would be even: five are not
        "ps --workers 3 --servers 2",
    ] {
        let job = format!("train --steps 4 --json --batch 8 --threads 1 --strategy {strategy}");
        let one = Job::start(&format!("{job} --transport shm")).end(LONG_LIMIT).json();
        let ended = rsh.start(&format!("{job} --nic nonesuch")).end(LONG_LIMIT);
        let two = ended.json();
        assert_eq!(two["weights_sha256"], one["weights_sha256"], "{strategy}: {}", ended.stderr);
        assert_eq!(two["transport"], "tcp", "{strategy}");
    }
}

fn is_checkpoint(entry: std::fs::DirEntry) -> bool {
    entry.file_name().to_string_lossy().starts_with("step-")
}

/// Of four processes two are on each host: what crosses between them is by reference within a host, and written between hosts.
#[test]
fn auto_shares_memory_within_a_host_and_writes_between_hosts_to_the_same_bits() {
    let rsh = Rsh::new(IN_PLACE);
    // no machine has such a NIC
    let between = "--nic nonesuch";
    let job = "train --steps 5 --json --strategy ps --servers 2 --placement round-robin";
    let [one, both, far] = [
        Job::start(&format!("{job} --transport shm")),
        rsh.start(&format!("{job} {between}")),
        rsh.start(&format!("{job} --transport tcp")),
    ]
    .map(|job| job.end(LONG_LIMIT));
    assert!(both.stderr.contains("shm within a host"), "{}", both.stderr);
    let [one, both, far] = [one, both, far].map(|ended| ended.json());
    assert_eq!(both["weights_sha256"], one["weights_sha256"]);
    assert_eq!((&both["transport"], &both["bytes_copied"]), (&"tcp".into(), &0.into()));
    let written = |job: &serde_json::Value| job["bytes_written"].as_u64().unwrap();
    assert_eq!(far["weights_sha256"], one["weights_sha256"]);
    let (share, of) = (written(&both) as f64, written(&far) as f64);
    // a weight is on the host of one of its two workers
    assert!((0.45..0.6).contains(&(share / of)), "{share} of {of} bytes were written");

    // of two workers of a host one sends the other host's weights on to the other
    let four = rsh.start(&format!("{job} --workers 4 {between}")).end(LONG_LIMIT).json();
    let alone = Job::start(&format!("{job} --workers 4 --transport shm")).end(LONG_LIMIT).json();
    assert_eq!(four["weights_sha256"], alone["weights_sha256"]);
    assert_eq!(four["bytes_copied"], 0);

    // one plan for workers of both hosts
    let apart = format!("train --steps 5 --json --strategy ps --async --servers 2 {between}");
    let apart = rsh.start(&apart).end(LONG_LIMIT).json();
    assert!(apart["final_loss"].as_f64().unwrap().is_finite(), "{apart}");

    for strategy in [
        "dist-sgd",
        "allreduce --workers 4 --deterministic",
        "mpi-sgd --workers 4 --clients 2 --deterministic",
    ] {
        let job = format!("train --steps 5 --json --strategy {strategy}");
        let one = Job::start(&format!("{job} --transport shm")).end(LONG_LIMIT).json();
        let two = rsh.start(&format!("{job} {between}")).end(LONG_LIMIT).json();
        assert_eq!(two["weights_sha256"], one["weights_sha256"], "{strategy}");
        assert_eq!(two["transport"], "tcp", "{strategy}");
    }
}

/// Of four processes, two are on each host: what crosses is what two would send.
#[test]
fn an_all_reduce_is_measured_on_two_hosts_that_processes_share() {
    let (rsh, folder) = (Rsh::new(IN_PLACE), tempfile::tempdir().unwrap());
    let lines = folder.path().join("lines");
    // no machine has such a NIC
    let sizes = "--ranks 4 --sizes 256KiB --times 2 --quick --nic nonesuch";
    let bench = format!("bench allreduce {sizes} --json {}", lines.display());
    let ended = rsh.start(&format!("{bench} --algorithm hierarchical,ring")).end(LONG_LIMIT);
    assert!(ended.status.success(), "{}", ended.stderr);
    let lines = std::fs::read_to_string(lines).unwrap();
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found: Vec<_> = lines
        .iter()
        .map(|line| (&line["transport"], &line["algorithm"], line["hosts"].as_u64().unwrap()))
        .collect();
    let wanted: Vec<_> =
        lines.iter().map(|line| line["bytes_over_wire"].as_u64().unwrap()).collect();
    // auto comes first; every other process is on the other host, so that a ring always crosses
    let (least, ring) = (256 << 10, 768 << 10);
    assert_eq!(wanted, [least, ring, ring, ring], "{found:?}");
    assert!(found.iter().all(|(_, _, hosts)| *hosts == 2), "{found:?}");
    assert!(lines.iter().all(|line| line["verified"] == true));
}

/// A table of hosts that processes share says `hosts`, and counts there alone.
#[test]
fn what_is_fastest_on_two_hosts_is_measured_and_taken() {
    let (rsh, folder) = (Rsh::new(IN_PLACE), tempfile::tempdir().unwrap());
    let (table, lines) = (folder.path().join("table"), folder.path().join("lines"));
    let common = "bench allreduce --ranks 4 --sizes 4KiB --iterations 2 --quick --transport auto --nic nonesuch";
    let ended = rsh.start(&format!("{common} --tune {}", table.display())).end(LONG_LIMIT);
    assert!(ended.status.success(), "{}", ended.stderr);
    let row = std::fs::read_to_string(&table).unwrap();
    let row: serde_json::Value = serde_json::from_str(&row).unwrap();
    let found = [&row["transport"], &row["world"], &row["hosts"], &row["from_bytes"]];
    assert_eq!(found, [&serde_json::json!("tcp"), &4.into(), &2.into(), &0.into()]);
    let other = |hosts: u64| {
        let row = format!(
            r#"{{"transport":"tcp","world":4,"hosts":{hosts},"from_bytes":0,"algorithm":"multi-ring"}}"#
        );
        std::fs::write(&table, row).unwrap();
        let table = format!("--table {} --json {}", table.display(), lines.display());
        let ended = rsh.start(&format!("{common} {table}")).end(LONG_LIMIT);
        assert!(ended.status.success(), "{}", ended.stderr);
        let text = std::fs::read_to_string(&lines).unwrap();
        let line: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        line["algorithm"].as_str().unwrap().to_string()
    };
    assert_eq!(other(2), "multi-ring");
    assert_ne!(other(3), "multi-ring");
}

#[test]
fn a_push_and_a_pull_are_measured_on_two_hosts() {
    let (rsh, folder) = (Rsh::new(IN_PLACE), tempfile::tempdir().unwrap());
    let lines = folder.path().join("lines");
    // no machine has such a NIC
    let bench =
        "bench kvstore --workers 2 --servers 2 --sizes 1MiB --times 3 --quick --exchange zero-copy";
    let bench = format!("{bench} --nic nonesuch --json {}", lines.display());
    let ended = rsh.start(&bench).end(LONG_LIMIT);
    assert!(ended.status.success(), "{}", ended.stderr);
    let lines = std::fs::read_to_string(lines).unwrap();
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found: Vec<_> = lines.iter().map(|line| (&line["transport"], &line["pull"])).collect();
    assert_eq!(found, [(&"auto".into(), &"filled".into()), (&"tcp".into(), &"filled".into())]);
    assert!(lines.iter().all(|line| line["verified"] == true && line["hosts"] == 2), "{lines:?}");
}

/// The second host's clock is 5,000 s ahead: times of both are compared in spite of that.
#[test]
fn a_tensor_and_a_write_are_measured_between_two_hosts() {
    let ahead = "unshare --map-root-user --time --monotonic 5000 sh -c";
    let tried = std::process::Command::new("sh").args(["-c", &format!("{ahead} true")]).status();
    let has_clocks = tried.is_ok_and(|status| status.success());
    if !has_clocks {
        skip_part(&"no process can have a clock of its own in a namespace here (unshare)");
    }
    let rsh = Rsh::new(&if has_clocks { format!("exec {ahead} \"$2\"") } else { IN_PLACE.into() });
    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("lines");
    let measured = |bench: &str| {
        let ended = rsh.start(&format!("{bench} --json {}", lines.display())).end(LONG_LIMIT);
        assert!(ended.status.success(), "{}", ended.stderr);
        let text = std::fs::read_to_string(&lines).unwrap();
        let line: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!((&line["transport"], &line["hosts"]), (&"tcp".into(), &2.into()), "{line}");
        (line, ended)
    };
    let transfer =
        "bench transfer --sizes 1MiB --exchange write --kind static --iterations 40 --warm-up 1";
    let (line, ended) = measured(transfer);
    let number = |field: &str| line[field].as_u64().unwrap();
    // in 9 rounds, and two for each of them
    assert_eq!(line["transfer_ns"]["count"], 9 * 5, "{line}");
    assert_eq!((number("values_verified"), number("tensors_verified")), (9 * 6, 9), "{line}");
    assert!(line.get("limit_ns").is_none(), "{line}");
    let error = line["clock_error_ns"].as_u64();
    assert_eq!(error.is_some(), has_clocks, "{line}");
    assert!(error.unwrap_or(0) < 1_000_000_000, "{line}");
    // 5,000 s are not in it
    assert!(line["end_to_end_ns"]["median"].as_f64().unwrap() < 1e10, "{line}");
    let own = "the two hosts have clocks of their own";
    assert_eq!(ended.stdout.contains(own), has_clocks, "{}", ended.stdout);

    let (line, _) = measured("bench write --sizes 64KiB --quick");
    assert_eq!(line["verified"], true, "{line}");
}

#[test]
fn auto_takes_shared_memory_where_all_are_on_one_host() {
    let job = "train --steps 3 --json --hosts 127.0.0.1,localhost:2";
    let here = Job::start(job).end(LONG_LIMIT);
    assert_eq!(here.json()["transport"], "shm");
    assert!(warnings(&here).is_empty(), "{}", here.stderr);

    let (rsh, folder) = (Rsh::new(BESIDE), tempfile::tempdir().unwrap());
    let file = folder.path().join("hosts");
    std::fs::write(&file, "# one that is not this one\nother:2\n").unwrap();
    let hosts = format!("@{}", file.display());
    let job = ["train", "--steps", "3", "--json", "--hosts", &hosts, "--rsh", &rsh.command];
    let there = Job::start_with(job.into_iter().chain(["--listen", "127.0.0.1:0"]));
    assert_eq!(there.end(LONG_LIMIT).json()["transport"], "shm");
}

#[test]
fn a_step_is_measured_on_two_hosts_and_says_over_what() {
    let rsh = Rsh::new(IN_PLACE);
    // no machine has such a NIC
    let job =
        rsh.start("bench step --servers 2 --steps 3 --iterations 2 --nic nonesuch --json r.jsonl");
    let ended = job.end(LONG_LIMIT);
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_eq!(warnings(&ended).len(), 1, "two jobs, one warning: {}", ended.stderr);
    assert!(ended.stdout.contains("2 workers, 2 servers, tcp, zero-copy"), "{}", ended.stdout);
}

#[test]
fn rdma_that_was_asked_for_and_is_not_there_is_the_users_mistake_and_names_the_host() {
    let rsh = Rsh::new(IN_PLACE);
    let verbs = "train --steps 3 --transport verbs --nic nonesuch --listen 127.0.0.1:0";
    let other = ["--hosts", "other", "--rsh", &rsh.command];
    let ended = Job::start_with(verbs.split_whitespace().chain(other)).end(LIMIT);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    let last = ended.last_line();
    assert!(last.contains(", on other) ") && last.contains("RDMA cannot be used"), "{last}");
}

#[test]
fn a_host_that_cannot_be_reached_ends_the_job_with_what_was_said_of_it() {
    let absent = "exec sh -c 'exec /none/there member'";
    for (body, says, mend) in [
        ("echo no route to $1 >&2; exit 255", "no route to other", "other true` work?"),
        (absent, "/none/there", "put this program there"),
    ] {
        let rsh = Rsh::new(body);
        let ended = rsh.start("train --steps 100000").end(LIMIT);
        assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
        let last = ended.last_line();
        assert!(last.starts_with("error: first to fail: "), "{last}");
        assert!(last.contains(", on other) before the first step: "), "{last}");
        assert!(last.contains(mend), "{last}");
    }
    let missing =
        ["--hosts", "127.0.0.1,other", "--listen", "127.0.0.1:0", "--rsh", "none-such-rsh"];
    let ended = Job::start_with(["train"].into_iter().chain(missing)).end(LIMIT);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("none-such-rsh: No such file"), "{}", ended.stderr);
}

#[test]
fn a_host_that_does_not_answer_is_given_up() {
    let ended = Rsh::new(SILENT).start("train --steps 100000").end(Duration::from_secs(60));
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    let last = ended.last_line();
    assert!(last.contains(", on other) before the first step: nothing was heard of it"), "{last}");
    assert!(last.contains("--listen, firewall"), "{last}");
}

#[test]
fn a_killed_process_of_the_other_host_is_the_first_cause() {
    for body in [IN_PLACE, BESIDE] {
        for moment in [0, 60, 900] {
            let rsh = Rsh::new(body);
            let mut job = rsh.start("train --steps 100000 --servers 2 --transport tcp");
            let started = job.members(4)[1];
            let victim = if body == BESIDE { child_of(started) } else { started };
            std::thread::sleep(Duration::from_millis(moment));
            send(victim, Signal::KILL);
            let ended = job.end(LIMIT);
            let context = format!("{body}, after {moment} ms:\n{}", ended.stderr);
            assert_eq!(ended.status.code(), Some(1), "{context}");
            let who = "error: first to fail: worker 1 (rank 1, on other) ";
            assert!(ended.last_line().starts_with(who), "{context}");
            assert!(ended.last_line().contains("killed by signal 9"), "{context}");
        }
    }
}

#[test]
fn nothing_is_left_on_any_host_when_the_launcher_is_killed() {
    for body in [IN_PLACE, BESIDE, SILENT] {
        for moment in [100, 1500] {
            let rsh = Rsh::new(body);
            let options = format!("--servers 2 --transport tcp {LATE}");
            let mut job = rsh.start(&format!("train --steps 100000 {options}"));
            job.members(4);
            std::thread::sleep(Duration::from_millis(moment));
            send(job.launcher(), Signal::KILL);
            // `end` fails if a process is left, and does not wait until the launcher is missed
            assert_eq!(job.end(LIMIT).status.code(), None, "killed");
        }
    }
}

#[test]
fn ctrl_c_ends_both_hosts() {
    let rsh = Rsh::new(BESIDE);
    let mut job = rsh.start("train --steps 100000 --servers 2 --transport tcp");
    job.members(4);
    std::thread::sleep(Duration::from_millis(900));
    send(job.launcher(), Signal::TERM);
    let ended = job.end(LIMIT);
    assert_eq!(ended.status.code(), Some(143), "{}", ended.stderr);
    assert!(ended.last_line().contains("interrupted"), "{}", ended.stderr);
}

/// It goes to ssh as well, and would end the connection.
#[test]
fn a_terminals_ctrl_c_cuts_off_no_host() {
    let (rsh, folder) = (Rsh::new(APART), tempfile::tempdir().unwrap());
    let path = folder.path().join("kept");
    let job = rsh.start(&format!(
        "train --steps 100000 --servers 2 --transport tcp --metrics m.jsonl --checkpoint {} --checkpoint-every 1000000",
        path.display()
    ));
    let (metrics, start) = (job.folder().join("m.jsonl"), Instant::now());
    while std::fs::metadata(&metrics).map_or(0, |file| file.len()) == 0 {
        assert!(start.elapsed() < LONG_LIMIT, "no step");
        std::thread::sleep(Duration::from_millis(5));
    }
    job.signal_group(Signal::INT);
    let ended = job.end(LONG_LIMIT);
    assert_eq!(ended.status.code(), Some(130), "{}", ended.stderr);
    let says = "error: interrupted; the newest checkpoint is of step ";
    assert!(ended.last_line().starts_with(says), "{}", ended.stderr);
}
