//! Any process of a job killed or stopped at any moment: the others end in time, with exit status 1,
//! and the last line says who failed first. Real processes, real signals; roles × moments.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tensorwire_testkit::skip::skip;

use crate::support::{Ended, Job, LATE, await_file, await_heard, send};
use rustix::process::{Pid, Signal};

/// From the first moments of a process to the middle of training, in milliseconds.
const MOMENTS_MS: [u64; 5] = [0, 15, 60, 250, 900];
const LIMIT: Duration = Duration::from_secs(10);
/// Where nobody is hurt.
const LONG: Duration = Duration::from_secs(60);
const ROLES: [&str; 4] = ["worker 0", "worker 1", "server 0", "server 1"];

fn long_job(transport: &str, deadline: u32) -> Job {
    let job = format!("train --steps 100000 --transport {transport} --deadline {deadline}");
    Job::start(&format!("{job} --metrics metrics.jsonl"))
}

/// The last line says at which step it was: the one after the last that all workers finished, or that
/// one; a process may also be one step ahead of what the slowest worker has reported.
fn check_step(ended: &Ended, finished: usize, context: &str) {
    let line = ended.last_line();
    let at = line.split_once(" at step ").and_then(|(_, rest)| rest.split(':').next());
    match at {
        Some(step) => {
            let step: usize = step.parse().unwrap();
            assert!((finished..=finished + 2).contains(&step), "{finished} were done: {context}");
        }
        None => {
            assert!(line.contains("before the first step"), "{context}");
            assert_eq!(finished, 0, "{context}");
        }
    }
}

fn kill_every_role_at_every_moment(transport: &str) {
    for (rank, role) in ROLES.iter().enumerate() {
        for moment in MOMENTS_MS {
            let mut job = long_job(transport, 10);
            let victim = job.members(4)[rank];
            std::thread::sleep(Duration::from_millis(moment));
            send(victim, Signal::KILL);
            let ended = job.end(LIMIT);
            let context = format!("{role} after {moment} ms:\n{}", ended.stderr);
            assert_eq!(ended.status.code(), Some(1), "{context}");
            let pid = victim.as_raw_nonzero();
            let who = format!("error: first to fail: {role} (rank {rank}, pid {pid}) ");
            assert!(ended.last_line().starts_with(&who), "{context}");
            assert!(ended.last_line().contains("killed by signal 9"), "{context}");
            check_step(&ended, ended.lines_of("metrics.jsonl"), &context);
        }
    }
}

fn stop_every_role(transport: &str) {
    for (rank, role) in ROLES.iter().enumerate() {
        for moment in [30, 700] {
            let mut job = long_job(transport, 4);
            let victim = job.members(4)[rank];
            std::thread::sleep(Duration::from_millis(moment));
            send(victim, Signal::STOP);
            let ended = job.end(LIMIT);
            let context = format!("{role} after {moment} ms:\n{}", ended.stderr);
            assert_eq!(ended.status.code(), Some(1), "{context}");
            let pid = victim.as_raw_nonzero();
            let who = format!("error: first to fail: {role} (rank {rank}, pid {pid}) ");
            assert!(ended.last_line().starts_with(&who), "{context}");
            assert!(ended.last_line().contains("nothing was heard of it"), "{context}");
            check_step(&ended, ended.lines_of("metrics.jsonl"), &context);
        }
    }
}

/// A process that is believed to be alive, and does nothing: a step waits for it as long as it was told to.
#[test]
fn a_step_that_waits_too_long_ends_the_job_and_names_the_option() {
    let options = format!("{LATE} --step-deadline 4 --metrics metrics.jsonl");
    let mut job = Job::start(&format!("train --steps 100000 {options}"));
    let worker = job.members(4)[1];
    await_file(&job, "metrics.jsonl");
    send(worker, Signal::STOP);
    let ended = job.end(LIMIT + Duration::from_secs(4));
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    let last = ended.last_line();
    assert!(last.contains("nothing happened for 4 s"), "{}", ended.stderr);
    assert!(last.contains("raise the step deadline (--step-deadline)"), "{}", ended.stderr);
}

/// Holds one thread of a process, as a debugger does, until another process has ended. One that happens to do what may take any
/// time, such as saying how far it is, is not known to stand still: whoever is held in vain for so many seconds is let go for
/// a moment, and held where it is then.
const HOLD: &str = r#"
import ctypes, sys, time
thread, until, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17
def has_ended():
    time.sleep(0.02)
    try:
        return open(f"/proc/{until}/stat").read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
said = False
while not said or not has_ended():
    if any(ptrace(request, thread, None, None) for request in (SEIZE, INTERRUPT)):
        sys.exit(f"ptrace: error {ctypes.get_errno()}")
    if not said:
        print("held", flush=True)
    said, begin = True, time.monotonic()
    while not has_ended() and time.monotonic() - begin < seconds:
        pass
    ptrace(DETACH, thread, None, None)
"#;

/// A thread that is to stand still, in a process that does not end when it is killed, for a debugger holds it.
struct Held {
    job: Job,
    holder: Child,
}

impl Held {
    /// Starts a job, and holds a thread of the process of this rank (the main one: none) once steps are made, for so many seconds
    /// at a time; of a process that trains alone, its own.
    fn start(
        command: &str,
        rank: Option<usize>,
        thread: Option<&str>,
        seconds: u32,
    ) -> Result<Held, &'static str> {
        let mut job =
            Job::start(&format!("train {command} --steps 100000000 --metrics metrics.jsonl"));
        let process = match rank {
            Some(rank) => job.members(rank + 1)[rank],
            None => job.launcher(),
        };
        let process = process.as_raw_nonzero().to_string();
        let metrics = job.folder().join("metrics.jsonl");
        let begins = Instant::now() + LONG;
        while !std::fs::read_to_string(&metrics).is_ok_and(|lines| !lines.is_empty()) {
            assert!(Instant::now() < begins, "{command}: steps begin");
            std::thread::sleep(Duration::from_millis(10));
        }
        let thread = thread.map_or_else(|| process.clone(), |name| thread_of(&process, name));
        let launcher = job.launcher().as_raw_nonzero().to_string();
        let mut holder = Command::new("python3");
        holder.args(["-c", HOLD, &thread, &launcher, &seconds.to_string()]).stdout(Stdio::piped());
        let mut holder = holder.spawn().map_err(|_| "there is no python3 to hold a thread by")?;
        let mut said = String::new();
        let mut lines = BufReader::new(holder.stdout.take().unwrap());
        lines.read_line(&mut said).unwrap();
        if said.trim() != "held" {
            holder.wait().unwrap();
            return Err("a thread of another process cannot be held here (ptrace)");
        }
        Ok(Held { job, holder })
    }

    /// Waits for the end of the job.
    fn end(mut self) -> Ended {
        let ended = self.job.end(LONG * 2);
        self.holder.wait().unwrap();
        assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
        ended
    }
}

/// How often a thread is held that may be in the middle of a word to the launcher.
const TRIES: usize = 4;

/// Threads that stand still while that which says that the process is alive goes on: the process notices, and is named.
#[test]
fn a_thread_that_stands_still_ends_the_job_and_is_named() {
    for (command, rank, role, thread, named) in [
        ("--transport shm", 0, "worker 0", None, "main"),
        ("--transport shm", 2, "server 0", None, "main"),
        ("--transport tcp", 1, "worker 1", Some("fabric-cq-0"), "fabric-cq-0"),
        ("--strategy dist-sgd", 3, "server 1", None, "main"),
        ("--strategy allreduce --transport tcp", 0, "worker 0", None, "main"),
    ] {
        let context = format!("{command}: {named} of rank {rank}");
        let mut ended = Vec::new();
        // if the debugger comes while it says something to the launcher, no other thread can say a word: it is mute
        let is_mute = |ended: &Ended| ended.last_line().contains("nothing was heard of it for");
        while ended.len() < TRIES && ended.last().is_none_or(is_mute) {
            match Held::start(&format!("{command} --deadline 5"), Some(rank), thread, 25) {
                Ok(held) => ended.push(held.end()),
                Err(why) => return skip(None, &why),
            }
            let (last, stderr) = (ended.last().unwrap().last_line(), &ended.last().unwrap().stderr);
            let who = format!("error: first to fail: {role} (rank {rank}, pid ");
            assert!(last.starts_with(&who), "{context}: {stderr}");
            assert!(stderr.contains("is left behind"), "{context}: {stderr}");
        }
        let (last, stderr) = (ended.last().unwrap().last_line(), &ended.last().unwrap().stderr);
        let stands = format!("its thread '{named}' stands still");
        // first is another that waits for a lock, if the debugger came while the named one held it
        let holds = format!("; its thread '{named}' has made no progress for ");
        assert!(last.contains(&stands) || last.contains(&holds), "{context}: {stderr}");
    }
}

#[test]
fn a_process_that_trains_alone_and_stands_still_ends() {
    let ended = match Held::start("--strategy local", None, None, 25) {
        Ok(held) => held.end(),
        Err(why) => return skip(None, &why),
    };
    let said = "error: the process stands still for good: its thread 'main' stands still";
    assert!(ended.last_line().starts_with(said), "{}", ended.stderr);
}

/// What makes batches may take long: a line says what is waited for, and the step deadline ends it.
#[test]
fn batches_that_do_not_come_are_told_and_end_the_job_at_the_step_deadline() {
    let command = "--transport shm --step-deadline 12";
    let held = match Held::start(command, Some(1), Some("batches"), 120) {
        Ok(held) => held,
        Err(why) => return skip(None, &why),
    };
    let ended = held.end();
    let told = "nothing moves: worker 1 (rank 1) waits for the batch of step ";
    assert!(ended.stderr.contains(told), "{}", ended.stderr);
    let last = ended.last_line();
    assert!(last.starts_with("error: first to fail: worker 1 (rank 1, pid "), "{}", ended.stderr);
    // in its own words, or in those of the launcher if the others have given up a moment before
    let own = last.contains("its batch was not made within 12 s");
    assert!(own || last.contains("it waits for the batch of step"), "{}", ended.stderr);
}

/// The thread of a process that has a name.
pub(crate) fn thread_of(process: &str, name: &str) -> String {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let named = |path: &Path| std::fs::read_to_string(path.join("comm")).unwrap().trim() == name;
    let found = threads.map(|thread| thread.unwrap().path()).find(|path| named(path)).unwrap();
    found.file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn a_tensor_of_unknown_size_that_finds_no_room_ends_the_job_and_names_the_option() {
    for strategy in ["local", "ps"] {
        let job = format!(
            "train --model seq2seq --data reverse:400 --batch 128 --steps 1 --strategy {strategy}"
        );
        let ended = Job::start(&format!("{job} --dynamic-memory 1MiB")).end(LONG);
        assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
        let last = ended.last_line();
        assert!(
            last.contains("raise --dynamic-memory (in Rust dynamic_bytes_max)"),
            "{}",
            ended.stderr
        );
    }
}

#[test]
fn any_process_killed_on_shm() {
    kill_every_role_at_every_moment("shm");
}

#[test]
fn any_process_killed_on_tcp() {
    kill_every_role_at_every_moment("tcp");
}

/// Workers of asynchronous training do not wait for each other, but no death goes unnoticed.
#[test]
fn any_process_of_an_asynchronous_job_killed() {
    for (rank, role) in ROLES.iter().enumerate() {
        let mut job = Job::start("train --async --steps 100000");
        let victim = job.members(4)[rank];
        std::thread::sleep(Duration::from_millis(700));
        send(victim, Signal::KILL);
        let ended = job.end(LIMIT);
        let who = format!("error: first to fail: {role} (rank {rank}, ");
        assert!(ended.last_line().starts_with(&who), "{}", ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    }
}

#[test]
fn any_process_stopped_on_shm() {
    stop_every_role("shm");
}

#[test]
fn any_process_stopped_on_tcp() {
    stop_every_role("tcp");
}

#[test]
fn members_end_when_their_launcher_is_killed() {
    for moment in MOMENTS_MS {
        let mut job = Job::start(&format!("train --steps 100000 --transport shm {LATE}"));
        job.members(4);
        std::thread::sleep(Duration::from_millis(moment));
        send(job.launcher(), Signal::KILL);
        // `end` fails if a member is left, and does not wait until the launcher is missed
        let ended = job.end(LIMIT);
        assert_eq!(ended.status.code(), None, "killed");
    }
}

#[test]
fn members_end_when_their_launcher_is_stopped() {
    let mut job = long_job("shm", 4);
    job.members(4);
    std::thread::sleep(Duration::from_millis(700));
    stop_for_five_seconds(job.launcher());
    check_that_the_launcher_is_named(&job.end(LIMIT));
}

/// A member that was there already and heard nothing gives its launcher up; one that was still beginning goes on with it. Which of
/// both it is, is chance.
#[test]
fn a_launcher_that_is_stopped_while_it_starts_its_members_goes_on_or_is_named() {
    for started in [1, 2, 3] {
        let mut job = Job::start("train --steps 4 --deadline 4");
        job.members(started);
        stop_for_five_seconds(job.launcher());
        let ended = job.end(LONG);
        if ended.status.code() != Some(0) {
            check_that_the_launcher_is_named(&ended);
        }
    }
}

/// Members give up a launcher that says nothing for 2.4 s if the job's deadline is 4 s.
fn stop_for_five_seconds(launcher: Pid) {
    send(launcher, Signal::STOP);
    std::thread::sleep(Duration::from_secs(5));
    send(launcher, Signal::CONT);
}

fn check_that_the_launcher_is_named(ended: &Ended) {
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.last_line().contains("the launcher itself was stopped"), "{}", ended.stderr);
}

#[test]
fn a_job_that_was_suspended_as_a_whole_goes_on() {
    let mut job = Job::start("train --steps 90 --batch 16 --deadline 4 --json");
    job.members(4);
    std::thread::sleep(Duration::from_millis(400));
    job.signal_group(Signal::STOP);
    std::thread::sleep(Duration::from_secs(5));
    job.signal_group(Signal::CONT);
    let ended = job.end(Duration::from_secs(60));
    assert_eq!(ended.json()["steps"], 90);
}

#[test]
fn ctrl_c_ends_everything_within_two_seconds() {
    for arguments in ["train --steps 100000", "train --steps 100000 --strategy local"] {
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            for moment in [150, 800] {
                let took = || {
                    let job = Job::start(arguments);
                    if moment == 800 {
                        await_heard(job.launcher(), signal);
                    }
                    std::thread::sleep(Duration::from_millis(moment));
                    // a terminal signals the whole group
                    job.signal_group(signal);
                    let signalled = Instant::now();
                    let ended = job.end(LIMIT);
                    // before it has begun anything it may not listen yet
                    let by_signal = moment == 150 && ended.status.signal() == Some(signal.as_raw());
                    // as shells have it
                    let status = 128 + signal.as_raw();
                    let is_right = ended.status.code() == Some(status) || by_signal;
                    assert!(is_right, "{arguments}: {}: {}", ended.status, ended.stderr);
                    signalled.elapsed()
                };
                // where others keep the cores busy it may take longer, but not each time
                let is_soon = (0..5).any(|_| took() <= Duration::from_secs(2));
                assert!(is_soon, "{arguments}: {signal:?} after {moment} ms");
            }
        }
    }
}

/// Ctrl-\ ends a program where it stands, and no job has it otherwise: what it is told there and then ends with it.
#[test]
fn a_quit_ends_all_at_once_and_leaves_nothing() {
    for whole in [true, false] {
        let mut job = Job::start(&format!("train --steps 100000 --transport shm {LATE}"));
        job.members(4);
        std::thread::sleep(Duration::from_millis(700));
        match whole {
            true => job.signal_group(Signal::QUIT),
            // its members see that it is gone
            false => send(job.launcher(), Signal::QUIT),
        }
        let ended = job.end(LIMIT);
        assert_eq!(ended.status.signal(), Some(Signal::QUIT.as_raw()), "{}", ended.stderr);
    }
}

/// Moments spread over the whole life of a short job, its fetching, evaluating and saving included:
/// either it was done before, with its weights whole, or it failed and left none behind.
#[test]
fn a_short_job_killed_at_any_moment_leaves_whole_weights_or_none() {
    let (mut done, mut failed) = (0, 0);
    for trial in 0..24 {
        let mut job = Job::start("train --steps 4 --batch 8 --save w.safetensors");
        let victim = job.members(4)[trial % 4];
        std::thread::sleep(Duration::from_millis(trial as u64 * 20));
        send(victim, Signal::KILL);
        let ended = job.end(LIMIT);
        let files = ended.files();
        let whole = files.iter().all(|(name, bytes)| {
            // header length, header, 4,349,962 numbers
            name == "w.safetensors" && *bytes > 4 * 4_349_962
        });
        assert!(whole, "{files:?}\n{}", ended.stderr);
        match ended.status.code() {
            Some(0) => {
                assert_eq!(files.len(), 1);
                done += 1;
            }
            code => {
                assert_eq!(code, Some(1), "{}", ended.stderr);
                assert!(
                    ended.last_line().starts_with("error: first to fail: "),
                    "{}",
                    ended.stderr
                );
                failed += 1;
            }
        }
    }
    assert!(failed > 0, "{done} were done before they were killed");
}

#[test]
fn ctrl_c_is_heard_while_nobody_reads_the_terminal() {
    // an epoch of two steps: a line of text each, and the pipe holds one page
    let job = Job::start("train --data synthetic:16 --batch 4 --steps 100000");
    job.shrink_stderr();
    std::thread::sleep(Duration::from_secs(4));
    job.signal_group(Signal::INT);
    let ended = job.end(LIMIT);
    assert_eq!(ended.status.code(), Some(130), "{}", ended.stderr);
}

/// What is lost without checkpoints, and what keeps it, is in the last line, which is the one to act on.
#[test]
fn ctrl_c_says_what_is_lost_and_what_would_have_kept_it() {
    for strategy in ["local", "ps"] {
        let job = format!("train --steps 100000 --batch 8 --strategy {strategy} --metrics m.jsonl");
        for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
            let job = Job::start(&job);
            let metrics = job.folder().join("m.jsonl");
            let begins = Instant::now() + LONG;
            while std::fs::read_to_string(&metrics).map_or(0, |text| text.lines().count()) < 3 {
                assert!(Instant::now() < begins, "{strategy}: steps begin");
                std::thread::sleep(Duration::from_millis(5));
            }
            send(job.launcher(), signal);
            let ended = job.end(LIMIT);
            assert_eq!(ended.status.code(), Some(status), "{strategy}: {}", ended.stderr);
            let last = ended.last_line();
            let lost = last.strip_prefix("error: interrupted; ");
            let lost = lost.and_then(|rest| {
                rest.strip_suffix(" steps are lost, which --checkpoint DIR would have kept")
            });
            let lost: usize = lost.unwrap_or_else(|| panic!("{last}")).parse().unwrap();
            let written = ended.lines_of("m.jsonl");
            // a step is counted before it is written, and what is told behind the signal may still be
            assert!(lost >= 3 && lost <= written + 1, "{lost} of {written}: {strategy}");
        }
    }
}
