//! Threads that turn in a loop for ever: they use a processor, and what says that the process is alive goes on. Real processes; a
//! thread of one is put into a loop, as a debugger could. [`crate::failure`] has those that stand still.

use std::fmt::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use tensorwire_testkit::skip::skip;

use crate::failure::thread_of;
use crate::support::{Ended, Job};

const STEP_DEADLINE: Duration = Duration::from_secs(8);
/// Longest that a job may take to its end, on a machine that is busy.
const LONG: Duration = Duration::from_secs(120);

/// Puts a thread of another process into a loop of one instruction (`jmp` to itself), of which a program of some size has the bytes
/// somewhere. Not where it may hold a lock that all need, of the allocator or the connection to the launcher: it is to wait, or to
/// be in the program itself.
const TURN: &str = r#"
import ctypes, os, sys, time
process, thread = sys.argv[1], int(sys.argv[2])
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
GETREGS, SETREGS, SEIZE, INTERRUPT, DETACH, WALL = 12, 13, 0x4206, 0x4207, 17, 0x40000000
RIP, CALL, NONE = 16, 15, 2**64 - 1
# futex, epoll_wait, epoll_pwait, clock_nanosleep
WAITS = (202, 232, 281, 230)
def must(failed):
    if failed:
        sys.exit(f"ptrace: error {ctypes.get_errno()}")
program = os.readlink(f"/proc/{process}/exe")
code = []
for line in open(f"/proc/{process}/maps"):
    fields = line.split()
    if "x" in fields[1] and fields[-1] == program:
        code.append([int(end, 16) for end in fields[0].split("-")])
memory = open(f"/proc/{process}/mem", "rb", 0)
loop = None
for begin, end in code:
    memory.seek(begin)
    at = memory.read(end - begin).find(b"\xeb\xfe")
    loop = begin + at if at >= 0 else loop
if loop is None:
    sys.exit("there is no such instruction")
for _ in range(2000):
    must(ptrace(SEIZE, thread, None, None))
    must(ptrace(INTERRUPT, thread, None, None))
    os.waitpid(thread, WALL)
    registers = (ctypes.c_ulonglong * 27)()
    must(ptrace(GETREGS, thread, None, registers))
    here, call = registers[RIP], registers[CALL]
    is_own = call == NONE and any(begin <= here < end for begin, end in code)
    if is_own or call in WAITS:
        registers[RIP], registers[CALL] = loop, NONE
        must(ptrace(SETREGS, thread, None, registers))
        must(ptrace(DETACH, thread, None, None))
        print("turns")
        break
    must(ptrace(DETACH, thread, None, None))
    time.sleep(0.002)
"#;

/// A thread to put into a loop, and what is said of it.
struct Case {
    job: &'static str,
    /// None: the process that trains alone.
    rank: Option<usize>,
    /// None: the main one.
    thread: Option<&'static str>,
    /// What the last line begins with, without the number of the process.
    named: &'static str,
    /// One of these the last line has, in the process's own words or the launcher's.
    said: &'static [&'static str],
}

/// Starts a job, puts a thread into a loop once steps are made, and waits for its end: that, and all that status said meanwhile.
/// None, and the reason is printed, where that cannot be done here.
fn turned(case: &Case) -> Option<(Ended, String)> {
    let seconds = STEP_DEADLINE.as_secs();
    let line =
        format!("train {} --steps 100000000 --metrics m.jsonl --step-deadline {seconds}", case.job);
    let mut job = Job::start(&line);
    let launcher = number(job.launcher());
    let process = match case.rank {
        Some(rank) => number(job.members(rank + 1)[rank]),
        None => launcher.clone(),
    };
    let metrics = job.folder().join("m.jsonl");
    let begins = Instant::now() + LONG;
    while !std::fs::read_to_string(&metrics).is_ok_and(|lines| !lines.is_empty()) {
        assert!(Instant::now() < begins, "{line}: steps begin");
        std::thread::sleep(Duration::from_millis(10));
    }
    let thread = case.thread.map_or_else(|| process.clone(), |name| thread_of(&process, name));
    let turn = Command::new("python3").args(["-c", TURN, &process, &thread]).output();
    let why = match &turn {
        Err(_) => "there is no python3 to put a thread into a loop by".to_string(),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_string(),
    };
    if !turn.is_ok_and(|output| output.stdout == b"turns\n") {
        skip(None, &format!("a thread of another process cannot be put into a loop: {why}"));
        return None;
    }
    let (mut shown, until) = (String::new(), Instant::now() + STEP_DEADLINE - STEP_DEADLINE / 4);
    while case.rank.is_some() && Instant::now() < until {
        let mut status = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
        let status = status.args(["status", &launcher]).output().unwrap();
        writeln!(shown, "{}", String::from_utf8_lossy(&status.stdout)).unwrap();
        std::thread::sleep(Duration::from_millis(500));
    }
    Some((job.end(LONG), shown))
}

fn number(process: Pid) -> String {
    process.as_raw_nonzero().to_string()
}

fn check(case: &Case) {
    if !cfg!(target_arch = "x86_64") {
        return skip(None, &"the instruction that a thread is put to is of x86-64");
    }
    let Some((ended, shown)) = turned(case) else { return };
    let context = format!("{}: {:?} of {:?}:\n{}", case.job, case.thread, case.rank, ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{context}");
    let last = ended.last_line();
    assert!(last.starts_with(&format!("error: {}", case.named)), "{context}");
    assert!(case.said.iter().any(|said| last.contains(said)), "{context}");
    let is_shown = |said: &&str| shown.contains(said);
    let seen =
        ["computes '", "between two operators", "makes no progress", "waits for the batch of step"];
    assert!(case.rank.is_none() || seen.iter().any(is_shown), "{context}\nstatus:\n{shown}");
}

const MAIN: &[&str] = &[
    "it computes '",
    "it is between two operators for",
    "its thread 'main' has made no progress for",
    "its thread 'main' makes no progress for",
];

#[test]
fn the_main_thread_of_a_worker_that_turns_for_ever_is_named() {
    let (job, named) = ("--transport shm", "first to fail: worker 0 (rank 0, pid ");
    check(&Case { job, rank: Some(0), thread: None, named, said: MAIN });
}

#[test]
fn the_main_thread_of_a_stores_server_that_turns_for_ever_is_named() {
    let (job, named) = ("--strategy dist-sgd", "first to fail: server 0 (rank 2, pid ");
    check(&Case { job, rank: Some(2), thread: None, named, said: MAIN });
}

#[test]
fn the_main_thread_of_one_that_trains_alone_and_turns_for_ever_ends_it() {
    let (job, named) = ("--strategy local", "the process stands still for good: ");
    check(&Case { job, rank: None, thread: None, named, said: MAIN });
}

#[test]
fn a_thread_of_the_fabric_that_turns_for_ever_is_named() {
    let (job, thread) = ("--strategy allreduce --transport tcp", Some("fabric-cq-0"));
    let named = "first to fail: worker 1 (rank 1, pid ";
    check(&Case { job, rank: Some(1), thread, named, said: &["'fabric-cq-0'"] });
}

#[test]
fn a_thread_that_makes_batches_and_turns_for_ever_ends_the_job_and_is_named() {
    let (job, thread) = ("--transport shm", Some("batches"));
    let named = "first to fail: worker 1 (rank 1, pid ";
    let said = &["its batch was not made within 8 s", "it waits for the batch of step"];
    check(&Case { job, rank: Some(1), thread, named, said });
}
