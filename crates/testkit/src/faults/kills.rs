//! One job whose processes are killed again and again, each time once it makes steps: as often as is asked for, and it ends as a job that
//! nobody disturbed, and has said each time that it went on.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use super::job::{
    METRICS, OUTPUT, RUNTIME, RUNTIME_VARIABLE, hash_of, members_of, spawn, summary_of,
};
use crate::machine::send;
use crate::random::Random;

/// Longer than that no step is waited for.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long behind a step, at most; the moment is drawn.
const WITHIN_MS: usize = 100;
/// How the launcher says that all of a job's processes have been started again.
const RESTARTED: &str = "; restart ";
/// How it says that they have been with half of the workers.
const FEWER: &str = "; 2 workers go on, from step ";
/// How one says that it took over from another.
const TAKEN_OVER: &str = "the job's processes go on with this launcher, in step ";
/// How far the accuracy of an elastic job may be from that of an undisturbed one. Seeds differ by 0.011.
const ACCURACY: f64 = 0.015;
/// The workers of an elastic job.
const WORKERS: &str = "4";

/// Who is killed, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Killed {
    /// Workers and servers, by chance; all are started again from the last checkpoint. The bits are those of an undisturbed job.
    Members,
    /// The same; half of the workers go on, until all are asked for again. The sums of a step are in another order then, and the accuracy
    /// is that of an undisturbed job.
    Elastic,
    /// The launcher; the same command takes its job over. The bits are those of an undisturbed job.
    Launcher,
}

impl Killed {
    /// How many steps a job needs to be killed so often, and, where its accuracy counts, to have one that hardly changes any more.
    #[must_use]
    pub fn steps(self, count: usize) -> usize {
        match self {
            Killed::Members => 60 * count,
            Killed::Elastic => (60 * count).max(1800),
            Killed::Launcher => 125 * count,
        }
    }
}

/// What is to be done to one job.
#[derive(Clone, Debug)]
pub struct Kills {
    /// The program under test.
    pub program: PathBuf,
    /// How the job's strategy is asked for: `--strategy ps`.
    pub strategy: String,
    pub killed: Killed,
    /// How often.
    pub count: usize,
    /// How many steps the job makes: enough to be killed so often.
    pub steps: usize,
    /// Decides who is killed, and when.
    pub seed: u64,
}

/// A job that is being killed.
struct Job<'a> {
    kills: &'a Kills,
    child: Child,
    folder: tempfile::TempDir,
}

impl Kills {
    /// Runs the job, and tells `on_kill` of each kill in a line. Returns how it ended, beside an undisturbed one.
    ///
    /// # Errors
    /// What is not as promised, with all that the job said.
    pub fn run(&self, mut on_kill: impl FnMut(&str)) -> Result<String, String> {
        let (undisturbed, _) = Job::start(self)?.end()?;
        let mut job = Job::start(self)?;
        let done = self.kill_all(&mut job, &mut on_kill);
        if let Err(what) = done {
            return Err(format!("{what}: {}", job.said()));
        }
        let (done, said) = job.end()?;
        let line = match self.killed {
            Killed::Members => RESTARTED,
            Killed::Elastic => FEWER,
            Killed::Launcher => TAKEN_OVER,
        };
        let lines = said.lines().filter(|said| said.contains(line)).count();
        if lines != self.count {
            return Err(format!("{} kills, and {lines} lines of them: {said}", self.count));
        }
        self.beside(&done, &undisturbed).map_err(|what| format!("{what}: {said}"))
    }

    /// Says what is the same of two jobs' summaries.
    fn beside(&self, done: &Value, undisturbed: &Value) -> Result<String, String> {
        if self.killed == Killed::Elastic {
            let of = |summary: &Value| summary["test_accuracy"].as_f64().ok_or("no accuracy");
            let (accuracy, other) = (of(done)?, of(undisturbed)?);
            let what = format!("an accuracy of {accuracy}, an undisturbed job's is {other}");
            return if (accuracy - other).abs() <= ACCURACY { Ok(what) } else { Err(what) };
        }
        let hash = hash_of(done).ok_or("no weights")?;
        let other = hash_of(undisturbed).ok_or("no weights")?;
        match hash == other {
            true => Ok(format!("the weights of an undisturbed job, {hash}")),
            false => Err(format!("{hash} where nobody disturbed is {other}")),
        }
    }

    fn kill_all(&self, job: &mut Job<'_>, on_kill: &mut dyn FnMut(&str)) -> Result<(), String> {
        let mut random = Random::new(self.seed);
        let mut before = HashSet::new();
        for number in 1..=self.count {
            let (members, step) = job.makes_steps(&before)?;
            std::thread::sleep(Duration::from_millis(random.below(WITHIN_MS) as u64));
            let victim = match self.killed {
                Killed::Members | Killed::Elastic => members[random.below(members.len())],
                Killed::Launcher => job.child.id(),
            };
            send(Pid::from_raw(victim as i32).ok_or("no process")?, Signal::KILL);
            on_kill(&format!(
                "kill {number} of {}: process {victim}, after step {step}",
                self.count
            ));
            match self.killed {
                Killed::Members => before = members.into_iter().collect(),
                Killed::Elastic => {
                    let (fewer, _) = job.makes_steps(&members.into_iter().collect())?;
                    job.scale()?;
                    before = fewer.into_iter().collect();
                }
                Killed::Launcher => job.take_over()?,
            }
        }
        Ok(())
    }

    fn words(&self) -> Vec<String> {
        let heals = match self.killed {
            Killed::Members => format!("--restarts {}", 2 * self.count),
            Killed::Elastic => format!("--workers 2..{WORKERS}"),
            Killed::Launcher => "--launcher-patience 60 --resume auto".to_string(),
        };
        // the first has an accuracy, the other's steps are shorter
        let model = match self.killed {
            Killed::Elastic => "cifar --lr 0.01",
            Killed::Members | Killed::Launcher => "sentence-embedding",
        };
        let words = format!(
            "train --no-detect --json --model {model} --batch 4 --threads 1 --steps {} --metrics {METRICS} \
             --checkpoint ck --checkpoint-every 10 {heals} {}",
            self.steps, self.strategy
        );
        words.split_whitespace().map(str::to_string).collect()
    }
}

impl<'a> Job<'a> {
    fn start(kills: &'a Kills) -> Result<Job<'a>, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let child = spawn(Command::new(&kills.program), &kills.words(), folder.path())?;
        Ok(Job { kills, child, folder })
    }

    /// Starts another launcher for the processes of one that was killed.
    fn take_over(&mut self) -> Result<(), String> {
        let _ = self.child.wait();
        let command = Command::new(&self.kills.program);
        self.child = spawn(command, &self.kills.words(), self.folder.path())?;
        Ok(())
    }

    /// Asks for all workers again.
    fn scale(&self) -> Result<(), String> {
        let name = self.child.id().to_string();
        let mut command = Command::new(&self.kills.program);
        command.env(RUNTIME_VARIABLE, self.folder.path().join(RUNTIME));
        let asked = command.args(["scale", &name, WORKERS, "--timeout", "0"]).output();
        let asked = asked.map_err(|error| error.to_string())?;
        match asked.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&asked.stderr).into_owned()),
        }
    }

    /// Waits until there are members, none of them of `before`, and they have made a step; returns them, and the step.
    fn makes_steps(&mut self, before: &HashSet<u32>) -> Result<(Vec<u32>, u64), String> {
        let start = Instant::now();
        let mut least: Option<u64> = None;
        while start.elapsed() < PATIENCE {
            if self.child.try_wait().is_ok_and(|status| status.is_some()) {
                return Err("the job has ended before it was killed so often".to_string());
            }
            let members = self.members();
            let is_new = !members.is_empty() && members.iter().all(|pid| !before.contains(pid));
            if is_new {
                // where it begins again its file has fewer steps first
                let step = last_step(&self.folder.path().join(METRICS));
                match least {
                    Some(first) if step > first => return Ok((members, step)),
                    _ => least = Some(step),
                }
            }
            std::thread::sleep(Duration::from_millis(3));
        }
        Err("no step is made".to_string())
    }

    fn members(&self) -> Vec<u32> {
        members_of(self.folder.path())
    }

    /// Waits for its end; returns its summary, and what it said.
    fn end(mut self) -> Result<(Value, String), String> {
        let start = Instant::now();
        // as long as a step is made now and then
        let mut seen = (0, start);
        while self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let step = last_step(&self.folder.path().join(METRICS));
            if step != seen.0 {
                seen = (step, Instant::now());
            }
            if seen.1.elapsed() > PATIENCE {
                return Err(format!("it hangs behind step {step}: {}", self.said()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let said = self.said();
        let left = self.members();
        if !left.is_empty() {
            return Err(format!("processes are left: {left:?}: {said}"));
        }
        let out = std::fs::read_to_string(self.folder.path().join(OUTPUT[0])).unwrap_or_default();
        let summary = summary_of(&out).ok_or_else(|| format!("it is not done: {said}"))?;
        Ok((summary, said))
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.folder.path().join(OUTPUT[1])).unwrap_or_default()
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // those that outlive a launcher are in no group of it
        for pid in self.members().into_iter().filter_map(|pid| Pid::from_raw(pid as i32)) {
            send(pid, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// The step of the last whole line of a job's metrics; 0 where there is none.
fn last_step(path: &Path) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    // the last may be cut, and others are of no step
    let step = |line| serde_json::from_str::<Value>(line).ok()?["step"].as_u64();
    text.lines().rev().find_map(step).unwrap_or_default()
}
