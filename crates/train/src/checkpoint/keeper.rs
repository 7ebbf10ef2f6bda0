//! Puts a checkpoint together from what the processes say of their files: once all are written it appears, and old ones go. On
//! a thread of its own, as a disk may take any time. A checkpoint that fails is a warning, and training goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tensorwire_launch::{Reminder, WORTH_A_LINE};

use super::{
    CheckpointConfig, CheckpointFolder, CheckpointState, DataPosition, FileState, ShardReport,
};
use crate::best::BestEvaluation;
use crate::report::{Evaluation, LOSS, TrainReport};

/// How often one that is dropped looks whether its thread has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Whoever starts a job has one. When it is dropped, what is complete is there.
#[derive(Debug)]
pub(crate) struct Keeper {
    /// None while it is being dropped.
    news: Option<Sender<News>>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
}

/// What it is told.
enum News {
    Written(ShardReport),
    Evaluated(u64, Evaluation),
    /// Who evaluates is lost.
    EvaluatorLost,
    /// The job is done.
    Concluded,
}

/// After which steps there is an evaluation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evaluated {
    pub(crate) every: Option<u64>,
    /// Of the job: after the last there is one, too.
    pub(crate) steps: u64,
}

impl Evaluated {
    fn has(self, step: u64) -> bool {
        self.every.is_some_and(|every| step == self.steps || step.is_multiple_of(every))
    }
}

/// What the thread knows.
struct Work {
    config: CheckpointConfig,
    folder: CheckpointFolder,
    /// The files that make a checkpoint.
    shards: BTreeSet<String>,
    /// Of a checkpoint without files.
    job: CheckpointState,
    /// Up to this step all is said of checkpoints that were due.
    told: u64,
    evaluated: Evaluated,
    /// What was said, by step.
    open: BTreeMap<u64, BTreeMap<String, Result<FileState, String>>>,
    /// The best evaluation so far, after each that there was; none where no loss was a number.
    best: BTreeMap<u64, Option<BestEvaluation>>,
    /// The loss after a step, of those whose checkpoint is not there yet.
    losses: BTreeMap<u64, f64>,
    /// The checkpoint with the smallest loss of those that are there.
    marked: Option<(u64, f64)>,
    /// The last one that appeared, and whether the job is done.
    last: Option<u64>,
    is_concluded: bool,
}

impl Keeper {
    /// One for a job that is `job` at the step that it goes on from, whose checkpoints have these files; an earlier keeper has been
    /// told of all up to `told`.
    ///
    /// # Errors
    /// When the system has no thread to give.
    pub(crate) fn start(
        config: &CheckpointConfig,
        shards: BTreeSet<String>,
        job: CheckpointState,
        told: u64,
        evaluated: Evaluated,
    ) -> std::io::Result<Keeper> {
        let (news, inbox) = channel();
        let path = config.path.clone();
        let (config, folder) = (config.clone(), CheckpointFolder::new(&path));
        let best = [(0, job.best.clone())].into();
        let open = BTreeMap::new();
        let marked = marked(&folder, &job);
        let (losses, last, is_concluded) = (BTreeMap::new(), None, false);
        let work = Work {
            config,
            folder,
            shards,
            job,
            told,
            evaluated,
            open,
            best,
            losses,
            marked,
            last,
            is_concluded,
        };
        let thread = std::thread::Builder::new().name("keeper".into()).spawn(|| work.run(inbox))?;
        Ok(Keeper { news: Some(news), thread: Some(thread), path })
    }

    /// A process said this of its file.
    pub(crate) fn add(&self, report: ShardReport) {
        self.tell(News::Written(report));
    }

    /// A process said what it found behind a step.
    pub(crate) fn evaluated(&self, step: u64, evaluation: Evaluation) {
        self.tell(News::Evaluated(step, evaluation));
    }

    /// The job is done, and was evaluated behind its last step.
    pub(crate) fn concluded(&self, report: &TrainReport) {
        if let Some(loss) = report.test_loss {
            let evaluation = [(LOSS.to_string(), loss)].into_iter().collect();
            self.evaluated(report.steps, evaluation);
        }
        self.tell(News::Concluded);
    }

    /// There will be no other evaluation: nothing is to wait for one.
    pub(crate) fn evaluator_is_lost(&self) {
        self.tell(News::EvaluatorLost);
    }

    fn tell(&self, news: News) {
        if let Some(keeper) = &self.news {
            // it ends with this alone
            let _ = keeper.send(news);
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.news = None;
        let Some(thread) = self.thread.take() else { return };
        let (since, mut reminder) = (Instant::now(), Reminder::default());
        while !thread.is_finished() {
            let silent = since.elapsed();
            if silent >= WORTH_A_LINE && reminder.is_due(silent) {
                let (path, seconds) = (self.path.display(), silent.as_secs());
                tracing::warn!(
                    "{path}: the disk has not taken all checkpoints for {seconds} s, and the job waits for it"
                );
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        // it has warned of what went wrong
        let _ = thread.join();
    }
}

impl Work {
    fn run(mut self, inbox: Receiver<News>) {
        for news in inbox {
            let step = match news {
                News::Written(ShardReport { step, .. }) if self.is_over(self.told, step) => {
                    continue;
                }
                News::Written(ShardReport { step, shard, written }) => {
                    if !self.shards.contains(&shard) || step > self.evaluated.steps {
                        tracing::warn!(
                            "{shard} of step {step} is none of a checkpoint's files here"
                        );
                        continue;
                    }
                    self.open.entry(step).or_default().insert(shard, written);
                    step
                }
                News::Evaluated(step, _) if step > self.evaluated.steps => {
                    tracing::warn!("an evaluation of step {step} is none of this job's");
                    continue;
                }
                // the last one of a job that ends early comes twice
                News::Evaluated(step, _) if self.has_heard(step) => step,
                News::Evaluated(step, evaluation) => {
                    let before = self.best_at(u64::MAX).cloned();
                    self.best.insert(step, BestEvaluation::with(before, step, &evaluation));
                    let loss = evaluation.loss().filter(|loss| loss.is_finite());
                    self.losses.extend(loss.map(|loss| (step, loss)));
                    step
                }
                News::Concluded => {
                    self.is_concluded = true;
                    continue;
                }
                News::EvaluatorLost => {
                    self.evaluated.every = None;
                    self.complete_all();
                    continue;
                }
            };
            if !self.evaluated.has(step) || self.best.contains_key(&step) {
                self.complete(step);
            }
        }
        // ended while it was evaluated
        self.complete_all();
        for step in self.open.keys() {
            tracing::warn!(
                "no checkpoint of step {step}: not every process has said that its file is written"
            );
        }
        if self.is_concluded
            && let Some(last) = self.last
        {
            self.prune(last);
        }
        // a process ended before it had written its own
        self.folder.remove_partial();
    }

    /// True if the checkpoint of a step is there, or was given up, as all is said up to `told`: processes say again to a launcher
    /// what they said to one that died, or before a connection broke.
    fn is_over(&self, told: u64, step: u64) -> bool {
        step <= told && !self.folder.partial(step).exists()
    }

    /// True of an evaluation that counts already: they come in order.
    fn has_heard(&self, step: u64) -> bool {
        let last = self.best.keys().next_back();
        last.is_some_and(|last| step <= *last) || self.is_over(self.job.step, step)
    }

    fn complete_all(&mut self) {
        let steps: Vec<u64> = self.open.keys().copied().collect();
        steps.into_iter().for_each(|step| self.complete(step));
    }

    /// Has a checkpoint appear if all have written it.
    fn complete(&mut self, step: u64) {
        if self.open.get(&step).is_none_or(|said| said.len() < self.shards.len()) {
            return;
        }
        self.tell_missing(step);
        let said = self.open.remove(&step).unwrap_or_default();
        let files: Result<BTreeMap<String, FileState>, String> =
            said.into_iter().map(|(shard, written)| Ok((shard, written?))).collect();
        let published = files.and_then(|files| self.publish(step, files));
        if let Err(why) = published {
            tracing::warn!(
                "no checkpoint of step {step}: {why}; training goes on, and the last good one stays"
            );
            // also of the files of others that were written
            let _ = std::fs::remove_dir_all(self.folder.partial(step));
            return;
        }
        tracing::info!("checkpoint of step {step} written to {}", self.folder.path().display());
        let loss = self.losses.remove(&step);
        self.forget_before(step);
        if let Some(loss) = loss
            && self.marked.is_none_or(|(_, least)| loss < least)
        {
            self.marked = Some((step, loss));
        }
        self.last = self.last.max(Some(step));
        self.prune(step);
    }

    /// Marks the best, and removes what is older than the newest, up to this step. Behind the last step one more stays until the
    /// job is done: what fails in its end goes on from there.
    fn prune(&self, step: u64) {
        let best = self.marked.filter(|_| self.config.best).map(|(best, _)| best);
        let marked = best.map_or(Ok(()), |best| self.folder.mark_best(best));
        let is_at_end = step >= self.evaluated.steps && !self.is_concluded;
        let keep = self.config.keep.saturating_add(u64::from(is_at_end));
        if let Err(error) = marked.and_then(|()| self.folder.prune(step, keep, best)) {
            let path = self.folder.path().display();
            tracing::warn!("cannot remove old checkpoints from {path}: {error}");
        }
    }

    /// Warns of checkpoints that were due before `step`, which is complete, and which somebody writes no more.
    fn tell_missing(&mut self, step: u64) {
        let per_epoch = self.job.position.steps_per_epoch;
        let is_due = |step: &u64| {
            let is_best = self.config.best && self.evaluated.has(*step);
            self.config.is_due(*step, per_epoch, self.evaluated.steps) || is_best
        };
        let due: Vec<u64> = (self.told + 1..step).filter(is_due).collect();
        for missing in due {
            // complete: its evaluation is awaited
            if self.open.get(&missing).is_some_and(|said| said.len() == self.shards.len()) {
                continue;
            }
            tracing::warn!(
                "no checkpoint of step {missing}: a process was lost meanwhile; training goes on"
            );
            self.open.remove(&missing);
            let _ = std::fs::remove_dir_all(self.folder.partial(missing));
        }
        self.told = self.told.max(step);
    }

    /// Drops what was best before the last evaluation that a checkpoint from `step` on, or one that is open, may have.
    fn forget_before(&mut self, step: u64) {
        let first = self.open.keys().next().map_or(step, |open| step.min(*open));
        if let Some(last) = self.best.range(..=first).next_back().map(|(at, _)| *at) {
            self.best = self.best.split_off(&last);
        }
        self.losses = self.losses.split_off(&first);
    }

    /// The best evaluation as it was after `step`.
    fn best_at(&self, step: u64) -> Option<&BestEvaluation> {
        self.best.range(..=step).next_back().and_then(|(_, best)| best.as_ref())
    }

    fn publish(&self, step: u64, files: BTreeMap<String, FileState>) -> Result<(), String> {
        let per_epoch = self.job.position.steps_per_epoch.max(1);
        let position = DataPosition {
            epoch: step / per_epoch,
            step: step % per_epoch,
            steps_per_epoch: per_epoch,
        };
        let best = self.best_at(step).cloned();
        let test_loss = self.losses.get(&step).copied();
        let state = CheckpointState { step, position, files, best, test_loss, ..self.job.clone() };
        let published = self.folder.publish(&state);
        published.map(drop).map_err(|error| format!("{}: {error}", self.folder.path().display()))
    }
}

/// The best checkpoint that a job finds in its folder: of what it goes on from, or by the name that an earlier one gave it.
fn marked(folder: &CheckpointFolder, job: &CheckpointState) -> Option<(u64, f64)> {
    let before = job.best.as_ref().filter(|best| folder.has(best.step));
    let before = before.map(|best| (best.step, best.test_loss));
    // a later one is of a job that came further
    let by_name = folder.best().filter(|(step, _)| *step <= job.step);
    [before, by_name].into_iter().flatten().min_by(|one, other| one.1.total_cmp(&other.1))
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
