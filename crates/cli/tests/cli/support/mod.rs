//! Starts the real binary with real processes, and looks at what it leaves behind. Every job runs in a
//! process group and an empty folder of its own, so that a leftover is its own and nobody else's.

pub(crate) mod terminal;

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use tensorwire_testkit::machine::{Process, in_order_of_start, processes};
pub(crate) use tensorwire_testkit::machine::{on_path, send};

/// What a launcher leaves that ended by itself gets so long to end.
const FOLLOW: Duration = Duration::from_secs(5);
/// And what one leaves that was killed: a member that is not past `exec` then ends once it is run.
const FOLLOW_KILLED: Duration = Duration::from_secs(20);
/// With this option members miss a launcher that says nothing later than that: those that end before have seen its end.
pub(crate) const LATE: &str = "--deadline 60";

/// A job under test.
pub(crate) struct Job {
    child: Child,
    folder: tempfile::TempDir,
    group: Group,
}

/// The processes of a job, which go with a test that fails: others are not to share the machine with them.
struct Group(Pid);

impl Drop for Group {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // it may have ended
            let _ = kill_process_group(self.0, Signal::KILL);
        }
    }
}

/// What a job left when it ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
    folder: tempfile::TempDir,
}

impl Job {
    /// Starts `tensorwire` with these arguments, separated by blanks.
    pub(crate) fn start(arguments: &str) -> Job {
        Job::start_with(arguments.split_whitespace())
    }

    /// Starts `tensorwire` with these arguments, which may hold blanks.
    pub(crate) fn start_with<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Job {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
        command.args(arguments);
        Job::start_command(command)
    }

    /// Starts any command.
    pub(crate) fn start_command(mut command: Command) -> Job {
        let folder = tempfile::tempdir().unwrap();
        let child = command
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let group = Group(Pid::from_child(&child));
        Job { child, folder, group }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn launcher(&self) -> Pid {
        self.group.0
    }

    /// The members, in the order in which they were started, which is that of their ranks; waits
    /// until there are `count`.
    pub(crate) fn members(&mut self, count: usize) -> Vec<Pid> {
        let start = Instant::now();
        loop {
            let members = children(self.launcher());
            if members.len() >= count {
                return members;
            }
            if self.child.try_wait().unwrap().is_some() || start.elapsed().as_secs() > 20 {
                let _ = kill_process_group(self.launcher(), Signal::KILL);
                panic!("no {count} members");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The member that was started last, if there is one.
    pub(crate) fn newest_member(&self) -> Option<Pid> {
        children(self.launcher()).pop()
    }

    /// Makes the pipe behind standard error as small as pipes get.
    pub(crate) fn shrink_stderr(&self) {
        let pipe = self.child.stderr.as_ref().unwrap();
        rustix::pipe::fcntl_setpipe_size(pipe, 4096).unwrap();
    }

    /// Signals every process of the job at once, as a terminal does on Ctrl-C.
    pub(crate) fn signal_group(&self, signal: Signal) {
        kill_process_group(self.launcher(), signal).unwrap();
    }

    /// Waits for the job to end by itself; it is killed and the test fails if it takes longer than
    /// `limit`. Checks that nothing of it is left.
    pub(crate) fn end(mut self, limit: Duration) -> Ended {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break Some(status);
            }
            if start.elapsed() > limit {
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let took = start.elapsed();
        let is_killed = status.is_some_and(|status| status.signal().is_some());
        let left = self.wait_for_group(if is_killed { FOLLOW_KILLED } else { FOLLOW });
        if status.is_none() || !left.is_empty() {
            let _ = kill_process_group(self.launcher(), Signal::KILL);
        }
        let Output { stdout, stderr, .. } = self.child.wait_with_output().unwrap();
        let (stdout, stderr) = (text(stdout), text(stderr));
        let status = status.unwrap_or_else(|| panic!("still running after {took:?}:\n{stderr}"));
        assert!(left.is_empty(), "processes are left: {left:?}\n{stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        let files: Vec<_> = std::fs::read_dir("/dev/shm").unwrap().flatten().collect();
        let ours = |name: &std::ffi::OsStr| name.to_string_lossy().contains("tensorwire");
        assert!(!files.iter().any(|file| ours(&file.file_name())), "{files:?}");
        Ended { status, stdout, stderr, took, folder: self.folder }
    }

    /// What is left of the job's processes after its launcher ended; they get some time to follow.
    fn wait_for_group(&self, follow: Duration) -> Vec<u32> {
        let start = Instant::now();
        loop {
            let group = self.child.id();
            let left: Vec<u32> = processes()
                .into_iter()
                .filter(|p| p.group == group && p.pid != group && p.state != 'Z')
                .map(|p| p.pid)
                .collect();
            if left.is_empty() || start.elapsed() > follow {
                return left;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Ended {
    pub(crate) fn last_line(&self) -> &str {
        self.stderr.lines().last().unwrap_or_default()
    }

    /// Lines of a file that the job wrote in its folder; 0 if there is none.
    pub(crate) fn lines_of(&self, name: &str) -> usize {
        std::fs::read_to_string(self.folder.path().join(name))
            .map_or(0, |text| text.lines().count())
    }

    /// What a file holds that the job wrote in its folder.
    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.folder.path().join(name)).unwrap()
    }

    /// Names and sizes of all files in the job's folder.
    pub(crate) fn files(&self) -> Vec<(String, u64)> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap().flatten();
        entries
            .map(|e| (e.file_name().to_string_lossy().into(), e.metadata().unwrap().len()))
            .collect()
    }

    /// The object that `--json` ends with.
    pub(crate) fn json(&self) -> serde_json::Value {
        assert!(self.status.success(), "{}", self.stderr);
        serde_json::from_str(self.stdout.lines().last().unwrap_or_default()).unwrap()
    }
}

/// The processes that `parent` started, in that order.
pub(crate) fn children(parent: Pid) -> Vec<Pid> {
    let parent = parent.as_raw_nonzero().get() as u32;
    let of_parent = processes().into_iter().filter(|p| p.parent == parent).map(|p| p.pid);
    in_order_of_start(of_parent).into_iter().filter_map(|pid| Pid::from_raw(pid as i32)).collect()
}

/// Waits until a job has written something of this name.
pub(crate) fn await_file(job: &Job, name: &str) {
    let path = job.folder().join(name);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !path.metadata().is_ok_and(|file| file.len() > 0) {
        assert!(Instant::now() < deadline, "no {name}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until a process hears a signal, which would end it without a word before.
pub(crate) fn await_heard(process: Pid, signal: Signal) {
    let path = format!("/proc/{}/status", process.as_raw_nonzero());
    let hears = || {
        let status = std::fs::read_to_string(&path).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
        let caught = u64::from_str_radix(caught.trim(), 16).ok()?;
        Some(caught >> (signal.as_raw() - 1) & 1 == 1)
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while hears() != Some(true) {
        assert!(Instant::now() < deadline, "it does not hear {signal:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until no thread of a process that was sent SIGSTOP runs any more.
pub(crate) fn wait_until_stopped(process: Pid) {
    let start = Instant::now();
    // proc(5): the state is behind the name, which is in brackets
    let is_stopped = |thread: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(thread.unwrap().path().join("stat"));
        stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T")))
    };
    let threads = format!("/proc/{}/task", process.as_raw_nonzero());
    while !std::fs::read_dir(&threads).unwrap().all(is_stopped) {
        assert!(start.elapsed().as_secs() < 120, "{threads}: not all are stopped");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

/// The process that `variables` of the environment name, of the command `word` of this program in this folder;
/// waits for it.
pub(crate) fn process_with(folder: &Path, word: &str, variables: &str) -> Pid {
    let start = Instant::now();
    loop {
        let found = processes().into_iter().find(|process| {
            let read = |name: &str| std::fs::read(format!("/proc/{}/{name}", process.pid));
            let is_one_of = |bytes: Vec<u8>, wanted: &str| {
                bytes.split(|byte| *byte == 0).any(|one| one == wanted.as_bytes())
            };
            let here = std::fs::read_link(format!("/proc/{}/cwd", process.pid));
            here.is_ok_and(|at| at == folder)
                && read("cmdline").is_ok_and(|line| {
                    line.starts_with(env!("CARGO_BIN_EXE_tensorwire").as_bytes())
                        && is_one_of(line, word)
                })
                && read("environ").is_ok_and(|environment| is_one_of(environment, variables))
        });
        if let Some(pid) = found.and_then(|process| Pid::from_raw(process.pid as i32)) {
            return pid;
        }
        assert!(start.elapsed().as_secs() < 120, "no process with {variables}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Processes in this folder, however they came there.
pub(crate) fn processes_in(folder: &Path) -> Vec<u32> {
    let here = |process: &Process| {
        std::fs::read_link(format!("/proc/{}/cwd", process.pid)).is_ok_and(|at| at == folder)
    };
    let found = processes().into_iter().filter(|process| process.state != 'Z' && here(process));
    found.map(|process| process.pid).collect()
}
