//! A job under test: how it is started, how it ends, and whether that is what was promised.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::files;
use super::moment::Hurt;
use super::{Fault, FaultCell, FaultRunner, Heal, HostLink, Phase, Promise, Victim};
use crate::machine::{in_order_of_start, on_path, processes, processes_of, send};

pub(super) const STEPS: usize = 80;
/// Steps between two checkpoints, or snapshots.
const EVERY: usize = 10;
pub(super) const METRICS: &str = "metrics.jsonl";
/// The folder of checkpoints, or snapshots.
pub(super) const CHECKPOINTS: &str = "ck";
pub(super) const SNAPSHOT: &str = "store";
/// What fills a disk.
pub(super) const FILLER: &str = "filler";
/// What was on a small disk, once it is gone.
pub(super) const FROM_DISK: &str = "from-disk";
pub(super) const SHELL: &str = "rsh.sh";
/// Where launchers write what others need.
pub(super) const RUNTIME: &str = "run";
/// What tells all of a job's processes of it, and is of no other job.
pub(super) const RUNTIME_VARIABLE: &str = "XDG_RUNTIME_DIR";
pub(super) const OUTPUT: [&str; 2] = ["out", "err"];
/// After a fault, a job that goes on may take so long to make all of its steps again, beside what it may take to notice: thirty times as
/// long as on an idle machine, so that only one that waits for what never comes takes longer.
const ANEW: Duration = Duration::from_secs(60);
/// A launcher waits so long for a process that it started to run its program, which one that is stopped at once may not have done; and
/// that process so long to be told what it is, by a launcher that may be stopped before it has told it.
const START: Duration = Duration::from_secs(60);

/// It waits so long for one that it started on another host to call it.
const LOGIN: Duration = Duration::from_secs(20);

/// A job that runs.
pub(super) struct Running {
    runner: FaultRunner,
    child: Child,
    /// The launcher that the processes had first, and that which they have.
    launchers: Vec<u32>,
    words: Vec<String>,
    folder: tempfile::TempDir,
    members: usize,
}

/// What is left of one.
pub(super) struct Ended {
    /// None: it did not end by itself.
    status: Option<ExitStatus>,
    stdout: String,
    stderr: String,
    /// From the fault to the end of the last process.
    took: Duration,
    /// Processes that did not give up a launcher that was stopped.
    outlived: Vec<u32>,
    left: Vec<u32>,
    damage: Option<String>,
    litter: Vec<String>,
    /// After a fault all is to be over within this long, where the job does not go on.
    limit: Duration,
}

/// The hash of the weights of a job that nobody hurts: that of its strategy, whatever its bytes travel over.
///
/// # Errors
/// What the job said where it is not done.
pub(super) fn undisturbed(runner: &FaultRunner, cell: &FaultCell) -> Result<String, String> {
    static KNOWN: Mutex<Option<HashMap<&'static str, String>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap();
    let known = known.get_or_insert_default();
    if let Some(hash) = known.get(cell.strategy) {
        return Ok(hash.clone());
    }
    let usual = FaultCell { transport: "shm", exchange: "zero-copy", ..cell.clone() };
    let usual =
        FaultCell { heals: Heal::Nothing, fault: Fault::Kill, role: Victim::Launcher, ..usual };
    let ended = Running::start(runner, &usual, None)?.end(&usual, Instant::now(), super::LIMIT);
    let hash = ended.hash().ok_or_else(|| ended.stderr.clone())?;
    known.insert(cell.strategy, hash.clone());
    Ok(hash)
}

impl Running {
    /// Starts the job of a cell in a folder of its own.
    pub(super) fn start(
        runner: &FaultRunner,
        cell: &FaultCell,
        link: Option<&HostLink>,
    ) -> Result<Running, String> {
        let folder = tempfile::tempdir().unwrap();
        let mut words: Vec<String> =
            arguments(cell, runner.deadline).split(' ').map(str::to_string).collect();
        if let Some(link) = link {
            let script = folder.path().join(SHELL);
            std::fs::write(&script, link.shell()).unwrap();
            words.extend(link.arguments(&script, cell.is_on_unequal_hosts()));
        }
        let command = match cell.fault {
            Fault::FullDisk => on_a_small_disk(&runner.program, cell)?,
            _ => Command::new(&runner.program),
        };
        let child = spawn(command, &words, folder.path())?;
        let (runner, members, launchers) = (runner.clone(), cell.members(), vec![child.id()]);
        Ok(Running { runner, child, launchers, words, folder, members })
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn launcher(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(super) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// The process of a rank, once all are there.
    pub(super) fn member(&self, rank: usize) -> Option<Pid> {
        let launcher = self.child.id();
        let members = processes()
            .into_iter()
            .filter(|process| process.parent == launcher && process.state != 'Z')
            // one that is stopped before it has become a member holds up whoever starts it
            .filter(|process| is_member(process.pid))
            .map(|process| process.pid);
        let members = in_order_of_start(members);
        let all = members.len() == self.members;
        members.get(rank).filter(|_| all).and_then(|pid| Pid::from_raw(*pid as i32))
    }

    /// Leaves no room on a small disk, which only the job's processes see.
    pub(super) fn fill_disk(&self) {
        let disk = Path::new("/proc").join(self.child.id().to_string()).join("root");
        let disk = disk.join(self.folder().strip_prefix("/").unwrap()).join(CHECKPOINTS);
        // nobody reads it, and it is no name of what a job keeps
        let Ok(mut filler) = File::create(disk.join(FILLER)) else { return };
        while filler.write_all(&[0; 4096]).is_ok() {}
    }

    /// Processes of the job beside its launcher.
    fn others(&self) -> Vec<u32> {
        let is_other = |process: &crate::machine::Process| {
            self.launchers.contains(&process.group)
                && !self.launchers.contains(&process.pid)
                && process.state != 'Z'
        };
        let of_group = processes().into_iter().filter(is_other).map(|process| process.pid);
        // those that outlive a launcher are in no group of it
        let of_job = members_of(self.folder());
        let mut others: Vec<u32> = of_group.chain(of_job).collect();
        others.sort_unstable();
        others.dedup();
        others
    }

    /// Waits so long, or until it has ended.
    pub(super) fn wait(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while !self.has_ended() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for the end of the job, at most `limit` from `since` on, and takes it away.
    pub(super) fn end(mut self, cell: &FaultCell, since: Instant, limit: Duration) -> Ended {
        let mut outlived = Vec::new();
        let is_waited_for = cell.heals == Heal::Takeover;
        if is_waited_for && cell.fault == Fault::Stop {
            // for longer than its processes do with a launcher that says nothing
            std::thread::sleep(self.runner.deadline * 3 / 2);
            send(self.launcher(), Signal::CONT);
        } else if is_waited_for && cell.fault == Fault::Kill {
            let _ = self.child.wait();
            let command = Command::new(&self.runner.program);
            self.child = spawn(command, &self.words, self.folder()).unwrap();
            self.launchers.push(self.child.id());
        } else if (cell.role, cell.fault) == (Victim::Launcher, Fault::Stop) {
            // its processes give it up; then it learns of it
            let patience = self.runner.deadline * 2 + cell.untold();
            while !self.others().is_empty() && since.elapsed() < patience {
                std::thread::sleep(Duration::from_millis(10));
            }
            outlived = self.others();
            send(self.launcher(), Signal::CONT);
        }
        while !self.has_ended() && since.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(3));
        }
        // those of a launcher that is killed end by themselves
        let follow = match self.has_ended() {
            true => Instant::now() + self.runner.deadline * 2,
            false => Instant::now(),
        };
        while !self.others().is_empty() && Instant::now() < follow {
            std::thread::sleep(Duration::from_millis(3));
        }
        let took = since.elapsed();
        let left = self.others();
        let status = self.child.try_wait().unwrap();
        for launcher in self.launchers.iter().filter_map(|pid| Pid::from_raw(*pid as i32)) {
            let _ = kill_process_group(launcher, Signal::KILL);
        }
        for pid in left.iter().filter_map(|pid| Pid::from_raw(*pid as i32)) {
            send(pid, Signal::KILL);
        }
        let _ = self.child.wait();
        let read = |name| std::fs::read(self.folder().join(name)).unwrap_or_default();
        let [stdout, stderr] = OUTPUT.map(|name| String::from_utf8_lossy(&read(name)).into_owned());
        let litter = files::litter(self.folder(), cell);
        let damage = files::damage(&self.runner.program, self.folder());
        // where logging in takes long a process of another host is waited for
        let is_login = cell.is_on_unequal_hosts() && cell.is_early() && cell.fault == Fault::Stop;
        let login = if is_login { LOGIN } else { Duration::ZERO };
        let limit = self.runner.deadline * 2 + login + cell.untold();
        Ended { status, stdout, stderr, took, outlived, left, damage, litter, limit }
    }
}

impl FaultCell {
    /// For how long a process may wait to be told what it is, by a launcher that is stopped.
    fn untold(&self) -> Duration {
        let is_stopped = (self.role, self.fault) == (Victim::Launcher, Fault::Stop);
        if is_stopped && self.is_early() { START } else { Duration::ZERO }
    }
}

impl Ended {
    pub(super) fn is_done(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    pub(super) fn last_line(&self) -> &str {
        self.stderr.lines().last().unwrap_or_default()
    }

    pub(super) fn seconds(&self) -> f64 {
        self.took.as_secs_f64()
    }

    fn summary(&self) -> Option<serde_json::Value> {
        summary_of(&self.stdout)
    }

    /// Of the weights of a job that is done.
    fn hash(&self) -> Option<String> {
        hash_of(&self.summary().filter(|_| self.is_done())?)
    }

    /// True if the job was not hurt after all, as far as it says itself: nobody started it again or took it over, nobody was replaced
    /// or left, no disk was full.
    fn was_not_hurt(&self, cell: &FaultCell) -> bool {
        let counted = |name| self.summary().and_then(|summary| summary[name].as_u64());
        match (cell.fault, cell.heals) {
            (Fault::FullDisk, Heal::Snapshot) => !self.stderr.contains("no snapshot of server "),
            (Fault::FullDisk, _) => !self.stderr.contains("no checkpoint of step "),
            // nobody makes a step as long as its link is slow
            (Fault::SlowLink, _) => cell.phase != Phase::End && self.took < self.limit / 2,
            // it may be over for who is hurt
            _ if cell.phase == Phase::End => false,
            (_, Heal::Restarts) => counted("restarts") == Some(0),
            (_, Heal::Resizing) => counted("resizes") == Some(0),
            // who has not met the others yet begins anew
            _ if matches!(cell.phase, Phase::Start | Phase::Meeting) => false,
            (Fault::Kill, Heal::Takeover) => !self.stderr.contains("go on with this launcher"),
            (Fault::Kill | Fault::Stop, Heal::Snapshot) if !cell.is_worker() => {
                counted("servers_replaced") == Some(0)
            }
            (Fault::Kill | Fault::Stop, Heal::Elastic) if cell.is_worker() => {
                counted("workers_finished") == counted("workers")
            }
            _ => false,
        }
    }

    /// Within how long a job is done that goes on after its fault.
    fn limit_of_one_that_goes_on(&self, cell: &FaultCell) -> Duration {
        let is_stopped = (cell.phase, cell.fault) == (Phase::Start, Fault::Stop);
        self.limit + ANEW + if is_stopped { START } else { Duration::ZERO }
    }

    /// What was promised and is not so. `hurt`: who was, if it came to that.
    pub(super) fn complaint(
        &self,
        cell: &FaultCell,
        hurt: Option<&Hurt>,
        undisturbed: Option<&str>,
    ) -> Option<String> {
        let Some(status) = self.status else { return Some(format!("it hangs: {}", self.stderr)) };
        if !self.left.is_empty() {
            return Some(format!("processes are left: {:?}: {}", self.left, self.stderr));
        }
        // ZeroMQ's bindings panic where there is no memory for a message
        let is_of_zmq = (cell.fault, cell.exchange) == (Fault::OutOfMemory, "zmq");
        if !self.outlived.is_empty() {
            let outlived = &self.outlived;
            return Some(format!("{outlived:?} do not give the launcher up: {}", self.stderr));
        }
        if self.stderr.contains("panicked") && !is_of_zmq {
            return Some(self.stderr.clone());
        }
        if let Some(damage) = &self.damage {
            return Some(format!("a file is damaged: {damage}"));
        }
        if !self.litter.is_empty() {
            return Some(format!("files are left: {:?}", self.litter));
        }
        let wrong = |what: &str| Some(format!("{what} ({status}): {}", self.stderr));
        let Some(hurt) = hurt else {
            return if self.is_done() { None } else { wrong("it fails, and nobody was hurt") };
        };
        let last = self.last_line();
        let failed = status.code() == Some(1);
        // who gets no more memory may do without for a while, and who writes no file until it is to
        let may_go_on = matches!(cell.fault, Fault::OutOfMemory | Fault::FullDisk);
        let in_time = may_go_on || self.took <= self.limit;
        // who is told to end stays for the step that all may end behind, and the job may be done by then
        let stays = cell.fault == Fault::Term;
        // at the end it may be over for the job already
        let may_be_done = cell.phase == Phase::End || stays;
        match cell.promise() {
            Promise::Done if !self.is_done() => wrong("it is not done"),
            Promise::SameBits if self.hash().as_deref() != undisturbed => {
                wrong("it does not end with the same weights")
            }
            Promise::Done | Promise::SameBits if !stays && self.was_not_hurt(cell) => {
                wrong("it does not say that it was hurt")
            }
            Promise::Done | Promise::SameBits
                if self.took > self.limit_of_one_that_goes_on(cell) =>
            {
                wrong("it goes on, and takes too long")
            }
            Promise::Done | Promise::SameBits => None,
            Promise::Named if self.is_done() && !may_be_done => wrong("it is done"),
            Promise::Named | Promise::DoneOrNamed if self.is_done() => None,
            Promise::Named | Promise::DoneOrNamed => {
                let name = hurt.name.as_deref().unwrap_or_default();
                match last.contains(name) {
                    _ if !failed => wrong("it does not end with exit status 1"),
                    false => wrong(&format!("it does not name '{name}'")),
                    true if in_time => None,
                    true => wrong("it takes too long"),
                }
            }
            // while its launcher stood still the job may have come to its end
            Promise::Itself if self.is_done() && (may_be_done || cell.fault == Fault::Stop) => None,
            Promise::Itself if !in_time => wrong("it takes too long"),
            Promise::Itself => {
                let signal = status.signal() == Some(Signal::TERM.as_raw());
                let early = signal && cell.phase == Phase::Start;
                let says = ["interrupted", "the launcher itself was stopped"];
                // as shells have it
                let failed = failed || status.code() == Some(128 + Signal::TERM.as_raw());
                match early || failed && says.iter().any(|says| last.contains(says)) {
                    true => None,
                    false => wrong("it does not say why it ends"),
                }
            }
            Promise::Gone if in_time || self.is_done() => None,
            Promise::Gone => wrong("its processes take too long"),
        }
    }
}

fn arguments(cell: &FaultCell, deadline: Duration) -> String {
    let FaultCell { transport, exchange, .. } = cell;
    let exchange = match *exchange {
        "zero-copy" => String::new(),
        other => format!(" --exchange {other}"),
    };
    let kept = match cell.heals {
        Heal::Snapshot => format!("--snapshot {CHECKPOINTS}/{SNAPSHOT} --snapshot-every {EVERY}"),
        _ => format!("--checkpoint {CHECKPOINTS} --checkpoint-every {EVERY} --keep 100"),
    };
    let heals = match cell.heals {
        Heal::Restarts => " --restarts 3",
        Heal::Elastic => " --elastic",
        Heal::Takeover => " --launcher-patience 60 --resume auto",
        Heal::Nothing | Heal::Snapshot | Heal::Resizing => "",
    };
    let evaluated = if cell.phase == Phase::Evaluation { " --val-every 1" } else { "" };
    format!(
        "train --no-detect --json --model sentence-embedding --batch 4 --threads 1 --steps {STEPS} --metrics {METRICS} \
         --deadline {} --transport {transport}{exchange} {} {kept}{heals}{evaluated}",
        deadline.as_secs(),
        cell.strategy_options(),
    )
}

/// Starts a job's launcher in a group of its own. What it and one before it say follow each other.
pub(super) fn spawn(
    mut command: Command,
    words: &[String],
    folder: &Path,
) -> Result<Child, String> {
    let open = |name| File::options().create(true).append(true).open(folder.join(name)).unwrap();
    let [out, err] = OUTPUT.map(open);
    let runtime = folder.join(RUNTIME);
    for folder in [&runtime, &folder.join(CHECKPOINTS)] {
        std::fs::create_dir_all(folder).unwrap();
    }
    command
        .args(words)
        .current_dir(folder)
        .env(RUNTIME_VARIABLE, runtime)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .process_group(0)
        .spawn()
        .map_err(|error| error.to_string())
}

/// A command that runs the program where the folder of checkpoints has too little room, and copies what was written there: for no
/// checkpoint or for two, for no snapshot or for as long as nobody fills it ([`Running::fill_disk`]).
fn on_a_small_disk(program: &Path, cell: &FaultCell) -> Result<Command, String> {
    let size = match (cell.phase, cell.heals) {
        (Phase::FirstStep, Heal::Snapshot) => "100k",
        (Phase::FirstStep, _) => "400k",
        (..) => "5m",
    };
    let script = format!(
        "mount -t tmpfs -o size={size} tmpfs {CHECKPOINTS} && \"$0\" \"$@\"; is=$?; cp -r {CHECKPOINTS} {FROM_DISK}; exit $is"
    );
    let unshare = on_path("unshare").ok_or("there is no unshare here")?;
    let trial = ["-m", "mount", "-t", "tmpfs", "tmpfs", "/tmp"];
    let tried = Command::new(&unshare).args(trial).output().map_err(|error| error.to_string())?;
    if !tried.status.success() {
        let why = String::from_utf8_lossy(&tried.stderr);
        return Err(format!("no small disk can be mounted here: {}", why.trim()));
    }
    let mut command = Command::new(unshare);
    command.args(["-m", "sh", "-c", &script]).arg(program);
    Ok(command)
}

/// The members of the job in a folder, whoever's children they are.
pub(super) fn members_of(folder: &Path) -> Vec<u32> {
    let runtime = format!("{RUNTIME_VARIABLE}={}", folder.join(RUNTIME).display());
    let all = processes_of(&runtime).into_iter().map(|pid| pid.as_raw_nonzero().get() as u32);
    all.filter(|pid| is_member(*pid)).collect()
}

/// True if a process runs the program as a member, here or in the place of what starts it on another host.
pub(super) fn is_member(pid: u32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let has = |word: &str| line.windows(word.len()).any(|part| part == word.as_bytes());
    has("member")
}

/// The summary in what a job printed that is done.
pub(super) fn summary_of(stdout: &str) -> Option<serde_json::Value> {
    serde_json::from_str(stdout.lines().last()?).ok()
}

/// The hash of the weights in a summary.
pub(super) fn hash_of(summary: &serde_json::Value) -> Option<String> {
    summary["weights_sha256"].as_str().map(str::to_string)
}
