//! The failure matrix: every kind of job × who is hurt × when × how, as data ([`FaultCell::all`]), and one runner for all of it
//! ([`FaultRunner`]). Real processes of the program under test, real signals, real limits, and a link between two network namespaces
//! that is cut, or slow. What a cell promises is said beside it ([`FaultCell::promise`]); what the runner saw is an [`FaultOutcome`].

mod cell;
mod files;
mod job;
mod kills;
mod link;
mod moment;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

pub use cell::{Fault, FaultCell, Heal, Phase, Promise, Victim};
use job::{Running, undisturbed};
pub use kills::{Killed, Kills};
pub use link::HostLink;
use moment::Moment;

/// How long a job may take that nothing ends.
const LIMIT: Duration = Duration::from_secs(180);
/// What a cell is tried again for: the job was done before the fault came.
const TRIES: u64 = 3;

/// What became of a cell. Serialized, it is a line that `tensorwire report` shows.
#[derive(Clone, Debug, Serialize)]
pub struct FaultOutcome {
    bench: &'static str,
    #[serde(flatten)]
    pub cell: FaultCell,
    /// In one word: survived, ended, spared (it was done before it was hurt), skipped.
    pub outcome: &'static str,
    /// From the fault to the end of the last process.
    pub seconds: f64,
    /// What the job said last.
    pub cause: String,
    /// What was promised and is not so.
    pub complaint: Option<String>,
}

impl FaultOutcome {
    fn of(cell: &FaultCell, outcome: &'static str, seconds: f64, cause: &str) -> FaultOutcome {
        let (cell, cause) = (cell.clone(), cause.to_string());
        FaultOutcome { bench: "faults", cell, outcome, seconds, cause, complaint: None }
    }
}

/// What runs cells.
#[derive(Clone, Debug)]
pub struct FaultRunner {
    /// The program under test.
    pub program: PathBuf,
    /// Within which a job is to end whose process dies or stops (`--deadline`); as much again is granted to a busy machine.
    pub deadline: Duration,
    /// Decides the moments within the phases.
    pub seed: u64,
}

impl FaultRunner {
    /// Runs a cell: starts its job, hurts it, and holds what it leaves against what is promised.
    pub fn run(&self, cell: &FaultCell) -> FaultOutcome {
        let undisturbed = match cell.promise() {
            Promise::SameBits => match undisturbed(self, cell) {
                Ok(hash) => Some(hash),
                Err(why) => {
                    let complaint = Some(format!("the job that nobody hurts fails: {why}"));
                    return FaultOutcome { complaint, ..FaultOutcome::of(cell, "ended", 0.0, "") };
                }
            },
            _ => None,
        };
        let mut tries = 0;
        loop {
            tries += 1;
            let outcome = self.run_once(cell, self.seed + tries, undisturbed.as_deref());
            let outcome =
                outcome.unwrap_or_else(|why| FaultOutcome::of(cell, "skipped", 0.0, &why));
            let is_told = outcome.outcome != "spared" || outcome.complaint.is_some();
            // at the end some are done in time, and that is a part of the cell
            if is_told || tries == TRIES || cell.phase == Phase::End {
                return outcome;
            }
        }
    }

    /// Fails where this machine has not what the cell takes.
    fn run_once(
        &self,
        cell: &FaultCell,
        seed: u64,
        undisturbed: Option<&str>,
    ) -> Result<FaultOutcome, String> {
        let has_hosts = cell.fault.is_of_link() || cell.is_on_unequal_hosts();
        let link = has_hosts.then(HostLink::make).transpose()?;
        let mut job = Running::start(self, cell, link.as_ref())?;
        let hurt = Moment { cell, seed }.hurt(&mut job, link.as_ref())?;
        let since = Instant::now();
        let is_slow = cell.fault == Fault::SlowLink && hurt.is_some();
        if let Some(link) = link.as_ref().filter(|_| is_slow) {
            // for longer than a process may say nothing
            job.wait(self.deadline * 3 / 2);
            link.make_fast()?;
        }
        let ended = job.end(cell, since, LIMIT);
        let last = ended.last_line().to_string();
        let outcome = match (ended.is_done(), hurt.is_some()) {
            (true, false) => "spared",
            (true, true) => "survived",
            (false, _) => "ended",
        };
        let complaint = ended.complaint(cell, hurt.as_ref(), undisturbed);
        Ok(FaultOutcome { complaint, ..FaultOutcome::of(cell, outcome, ended.seconds(), &last) })
    }
}
