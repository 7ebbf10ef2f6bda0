//! A member that knows the job's secret and lies: a real process of a real job, which joins as any other and then says what is
//! not so. The job ends in time, with words, nobody panics, and what the liar says is nobody else's word.

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tensorwire_base::{Deadline, Rank};
use tensorwire_bench::ByName;
use tensorwire_fabric::handshake::{Purpose, dial};
use tensorwire_launch::{
    Assignment, Blame, Member, Peers, QUEUE_PAIRS, Stand, Transport, VerbsOptions, Whereabouts,
    WireOptions,
};
use tensorwire_train::{Prepared, TrainConfig};

use crate::support::{Ended, Job};

const LIMIT: Duration = Duration::from_secs(30);
/// What the liar is to say.
const LIE: &str = "TENSORWIRE_TEST_LIE";
/// A file in the job's folder, by which it is told that what it said was seen.
const IS_SEEN: &str = "seen";
/// The longest that it stays.
const STAYS: Duration = Duration::from_secs(60);

/// Runs a job of two workers of which the second lies so, and what else it is told.
fn ended(lie: &str, options: &str) -> Ended {
    let (command, _script) = command(lie, options);
    let ended = Job::start_command(command).end(LIMIT);
    assert_eq!(ended.status.code(), Some(1), "{lie}: {}", ended.stderr);
    ended
}

/// Returns what runs it, and the folder of a script that this needs.
fn command(lie: &str, options: &str) -> (Command, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("rsh.sh");
    let this = std::env::current_exe().unwrap();
    let body = format!(
        "{LIE}='{lie}' exec '{}' --exact lies::says_what_it_is_told --ignored --nocapture >/dev/null\n",
        this.display()
    );
    std::fs::write(&script, body).unwrap();
    let options = format!(
        "train --steps 100000000 --transport tcp --hosts 127.0.0.1,other --listen 127.0.0.1:0 {options}"
    );
    let rsh = format!("sh {}", script.display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
    command.args(options.split_whitespace()).args(["--rsh", &rsh]);
    (command, folder)
}

/// The plan of the liar's job has this digest.
fn digest(member: &Member) -> String {
    let payload: serde_json::Value = member.payload().unwrap();
    let config: TrainConfig = serde_json::from_value(payload["config"].clone()).unwrap();
    let digest = Prepared::new(config, &ByName).unwrap().plan.digest();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// It stands wherever it says.
#[derive(Debug)]
struct Nowhere;

impl Whereabouts for Nowhere {
    fn turns(&self) -> u64 {
        0
    }

    fn stand(&self) -> Stand {
        let what = format!("\u{1b}[2J{}", "x".repeat(3 << 20));
        Stand { what, waits: false, patience: None }
    }
}

fn wire(queue_pairs: usize) -> WireOptions {
    WireOptions {
        transport: Transport::Tcp,
        verbs: VerbsOptions::default(),
        arrival: None,
        encrypt: false,
        spin: Duration::ZERO,
        queue_pairs,
        peers: Peers::All,
    }
}

#[test]
#[ignore = "started by the other tests, as a member of a job"]
fn says_what_it_is_told() {
    let assignment: Assignment = serde_json::from_reader(std::io::stdin()).unwrap();
    let member = Member::join(assignment, |_| std::process::exit(1)).unwrap();
    let honest = Rank(0);
    match std::env::var(LIE).unwrap().as_str() {
        "progress of another form" => member.progress("so far, so good").unwrap(),
        "progress of a step that there is not" => {
            let polling = serde_json::json!({ "polls": u64::MAX, "poll_misses": u64::MAX, "waits": u64::MAX, "poll_ns": u64::MAX, "wait_ns": u64::MAX });
            for step in (1..2000).map(|n| u64::MAX - n) {
                let told = serde_json::json!({ "step": step, "loss": 1e38, "polling": polling });
                member.begin_step(step).unwrap();
                member.progress(told).unwrap();
            }
            std::process::exit(3);
        }
        "files that it has not written" => {
            let file = serde_json::json!({ "Ok": { "bytes": u64::MAX, "sha256": "00" } });
            let shard = |step: u64, name: &str| serde_json::json!({ "step": step, "shard": name, "written": file });
            member.record(&[shard(u64::MAX, "worker0"), shard(3, "../../etc/passwd")]).unwrap();
            std::process::exit(3);
        }
        "an endpoint that is none" => {
            let digest = digest(&member);
            drop(member.introduce(vec!["nowhere at all".to_string()], &digest));
        }
        "another plan" => drop(member.introduce(vec!["127.0.0.1:9".to_string()], "another")),
        "introductions that make no sense" => {
            let fabric = member.connect(&wire(4), &digest(&member)).unwrap();
            let channel = fabric.channel(honest, 0).unwrap();
            for _ in 0..4 {
                let _ = channel.send_message(&[0xff; 300], Deadline::after(STAYS));
            }
            // whoever leaves may be missed before a word of it is read
            std::thread::sleep(STAYS);
            return;
        }
        "frames that break the protocol" => {
            let mut endpoints =
                member.introduce(vec!["tcp:127.0.0.1:9".to_string()], &digest(&member)).unwrap();
            let at = endpoints[0].take().unwrap().remove(0);
            let at = at.rsplit_once(':').map(|(_, port)| format!("127.0.0.1:{port}")).unwrap();
            let (me, target) = (member.life(member.rank()), member.life(honest));
            let (deadline, job) = (Deadline::after(STAYS), member.credentials());
            let call = |purpose| {
                let mut stream = TcpStream::connect(&at).unwrap();
                let (_, seals) =
                    dial(&mut stream, job, me, Some(target), purpose, deadline).unwrap();
                (stream, seals)
            };
            let (mut stream, mut seals) = call(Purpose::Control);
            let _data: Vec<_> =
                (0..QUEUE_PAIRS as u32).map(|n| call(Purpose::QueuePair(n))).collect();
            for _ in 0..4 {
                let (clear, mut frame) = (64u32.to_le_bytes(), [0xee; 64]);
                let tag = seals.sealer.seal(&clear, &mut frame);
                let sent = [&clear[..], &frame, &tag].concat();
                let _ = stream.write_all(&sent);
            }
        }
        "a failure with commands to the terminal" => {
            let said = "\u{1b}[2Jall is well\nerror: first to fail: worker 0 (rank 0)";
            member.fail(said, Blame::Own);
            std::process::exit(1);
        }
        "a place that is long" => {
            member.is_watched(Arc::new(Nowhere));
            member.begin_step(1).unwrap();
            let deadline = Deadline::after(STAYS);
            while !Path::new(IS_SEEN).exists() && !deadline.passed() {
                std::thread::sleep(Duration::from_millis(20));
            }
            std::process::exit(3);
        }
        "a report of another form" => {
            let _ = member.finish("done");
            std::process::exit(0);
        }
        lie => panic!("no lie '{lie}'"),
    }
    std::thread::sleep(STAYS);
}

#[test]
fn what_a_member_says_that_makes_no_sense_ends_the_job_and_names_it() {
    for (lie, options, said) in [
        (
            "progress of another form",
            "--strategy allreduce",
            "worker 1 (rank 1): its progress makes no sense",
        ),
        (
            "progress of a step that there is not",
            "--strategy allreduce",
            "first to fail: worker 1 (rank 1",
        ),
        (
            "files that it has not written",
            "--strategy allreduce --checkpoint c",
            "first to fail: worker 1 (rank 1",
        ),
        ("an endpoint that is none", "--strategy allreduce", "first to fail: worker 1 (rank 1"),
        (
            "another plan",
            "--strategy allreduce",
            "worker 1 (rank 1) made another plan than worker 0",
        ),
        (
            "introductions that make no sense",
            "--strategy ps --workers 1 --servers 1",
            "first to fail: server 0 (rank 1",
        ),
        (
            "frames that break the protocol",
            "--strategy ps --workers 1 --servers 1",
            "first to fail: server 0 (rank 1",
        ),
        ("a report of another form", "--strategy allreduce", "first to fail: worker 1 (rank 1"),
    ] {
        let ended = ended(lie, options);
        assert!(ended.last_line().contains(said), "{lie}: {}", ended.stderr);
    }
}

#[test]
fn what_a_member_says_is_shown_as_its_own_word_and_never_at_length() {
    let ended = ended("a failure with commands to the terminal", "--strategy allreduce");
    assert!(!ended.stderr.contains('\u{1b}'), "{:?}", ended.stderr);
    let spoofed = "\n  error: first to fail: worker 0 (rank 0)";
    assert!(ended.stderr.contains(spoofed), "{}", ended.stderr);
    let said = said_of_long_place();
    assert!(!said.contains('\u{1b}') && !said.contains("panicked") && said.len() < 20_000);
}

/// All that is said where the liar ends once it is seen that its place was.
fn said_of_long_place() -> String {
    let (program, _script) = command("a place that is long", "--strategy allreduce --deadline 60");
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" \"$@\" 2>said"]).arg(program.get_program());
    command.args(program.get_args());
    let job = Job::start_command(command);
    let said = || std::fs::read_to_string(job.folder().join("said")).unwrap_or_default();
    let deadline = Deadline::after(STAYS);
    while !said().contains("nothing moves: worker 1 (rank 1)  [2Jxxx") {
        assert!(!deadline.passed(), "{:.300}", said());
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::write(job.folder().join(IS_SEEN), "").unwrap();
    let ended = job.end(LIMIT);
    let said = String::from_utf8(ended.read("said")).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{said:.300}");
    said
}
