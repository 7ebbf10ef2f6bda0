//! Puts a checkpoint together from what the processes say of their files: once all are written it appears, and old ones go. On
//! a thread of its own, as a disk may take any time. A checkpoint that fails is a warning, and training goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::{
    CheckpointConfig, CheckpointFolder, CheckpointState, DataPosition, FileState, ShardReport,
};
use crate::best::BestEvaluation;
use crate::report::{Evaluation, LOSS, TrainReport};

/// Whoever starts a job has one. When it is dropped, what is complete is there.
#[derive(Debug)]
pub(crate) struct Keeper {
    /// None while it is being dropped.
    news: Option<Sender<News>>,
    thread: Option<JoinHandle<()>>,
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
        let (config, folder) = (config.clone(), CheckpointFolder::new(&config.path));
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
        Ok(Keeper { news: Some(news), thread: Some(thread) })
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
        if let Some(thread) = self.thread.take() {
            // it has warned of what went wrong
            let _ = thread.join();
        }
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
mod tests {
    use super::super::tests::state;
    use super::super::{FoundCheckpoint, write_shard};
    use super::*;

    fn report(folder: &CheckpointFolder, step: u64, shard: &str) -> ShardReport {
        let partial = folder.partial(step);
        std::fs::create_dir_all(&partial).unwrap();
        let written = write_shard(&partial.join(shard), &[]).unwrap();
        ShardReport { step, shard: shard.to_string(), written: Ok(written) }
    }

    #[test]
    fn evaluations_that_no_checkpoint_may_have_any_more_are_forgotten() {
        let place = tempfile::tempdir().unwrap();
        let config = CheckpointConfig::new(place.path());
        let folder = CheckpointFolder::new(place.path());
        let evaluated = Evaluated { every: Some(10), steps: 90 };
        let best = (0..=5).map(|at| (10 * at, None)).collect();
        let open = [(30, BTreeMap::new())].into();
        let (shards, job, told) = (BTreeSet::new(), state(), 0);
        let (losses, marked, last) = (BTreeMap::new(), None, None);
        let mut work = Work {
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
            is_concluded: false,
        };
        let kept = |work: &mut Work, step| {
            work.forget_before(step);
            work.best.keys().copied().collect::<Vec<u64>>()
        };
        assert_eq!(kept(&mut work, 40), [30, 40, 50], "one is open");
        work.open.clear();
        assert_eq!(kept(&mut work, 45), [40, 50]);
        assert_eq!(kept(&mut work, 90), [50]);
    }

    fn until(done: impl Fn() -> bool) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !done() {
            assert!(std::time::Instant::now() < deadline, "it waits");
            std::thread::yield_now();
        }
    }

    fn started(
        config: &CheckpointConfig,
        shards: BTreeSet<String>,
        job: CheckpointState,
        evaluated: Evaluated,
    ) -> Keeper {
        let told = job.step;
        Keeper::start(config, shards, job, told, evaluated).unwrap()
    }

    #[test]
    fn a_checkpoint_is_there_once_all_have_written_and_else_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let config = CheckpointConfig { keep: 2, ..CheckpointConfig::new(place.path()) };
        let folder = CheckpointFolder::new(place.path());
        let shards: BTreeSet<String> = ["a", "b"].map(str::to_string).into();
        let evaluated = Evaluated { every: None, steps: 50 };
        let keeper = started(&config, shards, state(), evaluated);
        for step in [10, 20, 30] {
            keeper.add(report(&folder, step, "b"));
            keeper.add(report(&folder, step, "a"));
        }
        // one has no room, one is killed
        keeper.add(report(&folder, 40, "a"));
        let written = Err("no space".to_string());
        keeper.add(ShardReport { step: 40, shard: "b".to_string(), written });
        keeper.add(report(&folder, 50, "a"));
        // of a step that there is not, whoever says so
        let reports = ["a", "b"].map(|shard| report(&folder, 51, shard));
        std::fs::remove_dir_all(folder.partial(51)).unwrap();
        reports.into_iter().for_each(|report| keeper.add(report));
        drop(keeper);
        let names = std::fs::read_dir(place.path()).unwrap().map(|e| e.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["step-00000020", "step-00000030"]);
        let found = FoundCheckpoint::at(place.path().join("step-00000030")).unwrap();
        let position = found.verified().unwrap().position;
        assert_eq!((position.epoch, position.step), (2, 8));
    }

    #[test]
    fn a_checkpoint_is_there_though_its_evaluation_is_no_number() {
        let place = tempfile::tempdir().unwrap();
        let config = CheckpointConfig { best: true, ..CheckpointConfig::new(place.path()) };
        let folder = CheckpointFolder::new(place.path());
        let evaluated = Evaluated { every: Some(10), steps: 50 };
        let keeper = started(&config, ["a".to_string()].into(), state(), evaluated);
        keeper.add(report(&folder, 10, "a"));
        let evaluation = [("loss".to_string(), f64::NAN)].into_iter().collect();
        keeper.tell(News::Evaluated(10, evaluation));
        // while the job goes on
        until(|| !folder.found().unwrap().is_empty());
    }

    /// A launcher dies, and all processes say once more to the next one what they said to it.
    #[test]
    fn a_checkpoint_that_a_launcher_died_over_is_put_together_by_the_next_one() {
        let place = tempfile::tempdir().unwrap();
        let config = CheckpointConfig { best: true, ..CheckpointConfig::new(place.path()) };
        let folder = CheckpointFolder::new(place.path());
        let evaluated = Evaluated { every: Some(10), steps: 50 };
        let shards = || ["a", "b"].map(str::to_string).into();
        let start = |job: CheckpointState| started(&config, shards(), job, evaluated);
        let loss = |loss| [("loss".to_string(), loss)].into_iter().collect::<Evaluation>();
        let first = start(CheckpointState { step: 0, best: None, ..state() });
        let said = [10, 20].map(|step| ["a", "b"].map(|shard| report(&folder, step, shard)));
        let [[a10, b10], [a20, b20]] = said;
        let say = |keeper: &Keeper, reports: &[&ShardReport]| {
            reports.iter().for_each(|report| keeper.add((*report).clone()));
        };
        first.evaluated(10, loss(1.0));
        say(&first, &[&a10, &b10]);
        first.evaluated(20, loss(2.0));
        say(&first, &[&a20]);
        until(|| steps(&folder) == [10]);
        // it is killed, and removes nothing
        std::mem::forget(first);
        let next = start(folder.newest_whole().unwrap().1);
        next.evaluated(10, loss(1.0));
        next.evaluated(20, loss(2.0));
        say(&next, &[&a10, &a20, &b10, &b20]);
        until(|| steps(&folder) == [20, 10]);
        drop(next);
        let (_, job) = folder.newest_whole().unwrap();
        let best = job.best.map(|best| (best.step, best.since));
        assert_eq!((job.test_loss, best), (Some(2.0), Some((10, 1))));
        // the newest is damaged: what it had counted, who evaluates says again, and it counts behind the one that is read
        let read = FoundCheckpoint::at(place.path().join("step-00000010")).unwrap();
        let read = read.verified().unwrap();
        let keeper = Keeper::start(&config, shards(), read, 20, evaluated).unwrap();
        keeper.evaluated(20, loss(0.5));
        say(&keeper, &[&a20, &b20]);
        say(&keeper, &["a", "b"].map(|shard| report(&folder, 30, shard)).each_ref());
        keeper.evaluated(30, loss(3.0));
        drop(keeper);
        let best = folder.newest_whole().unwrap().1.best.unwrap();
        assert_eq!((best.step, best.since), (20, 1));
    }

    #[test]
    fn what_somebody_who_is_lost_was_to_write_or_to_evaluate_is_not_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let config =
            CheckpointConfig { every: Some(10), best: true, ..CheckpointConfig::new(place.path()) };
        let folder = CheckpointFolder::new(place.path());
        let evaluated = Evaluated { every: Some(20), steps: 60 };
        let shards: BTreeSet<String> = ["a", "b"].map(str::to_string).into();
        let keeper = started(&config, shards, state(), evaluated);
        let both = |step| ["a", "b"].map(|shard| keeper.add(report(&folder, step, shard)));
        keeper.add(report(&folder, 10, "a"));
        both(20);
        both(40);
        both(50);
        let is_there = |step| folder.found().unwrap().iter().any(|found| found.step == step);
        until(|| is_there(50));
        assert!(!folder.partial(10).exists(), "there are later ones");
        assert!(!is_there(20) && !is_there(40), "their evaluations are to come");
        keeper.evaluator_is_lost();
        until(|| is_there(20) && is_there(40));
    }

    fn steps(folder: &CheckpointFolder) -> Vec<u64> {
        folder.found().unwrap().iter().map(|found| found.step).collect()
    }

    #[test]
    fn the_best_of_those_that_are_there_stays_where_a_better_one_could_not_be_written() {
        let place = tempfile::tempdir().unwrap();
        let config =
            CheckpointConfig { keep: 1, best: true, ..CheckpointConfig::new(place.path()) };
        let folder = CheckpointFolder::new(place.path());
        let evaluated = Evaluated { every: Some(10), steps: 90 };
        let marked = || {
            let best = CheckpointFolder::new(place.path().join("best"));
            best.newest_whole().unwrap().0.step
        };
        let said = |keeper: &Keeper, step, loss, is_written: bool| {
            let mut written = report(&folder, step, "a");
            if !is_written {
                written.written = Err("no space".to_string());
            }
            keeper.add(written);
            let evaluation = [("loss".to_string(), loss)].into_iter().collect();
            keeper.tell(News::Evaluated(step, evaluation));
        };
        let start = |job| started(&config, ["a".to_string()].into(), job, evaluated);
        let keeper = start(CheckpointState { step: 0, best: None, ..state() });
        said(&keeper, 10, 1.0, true);
        said(&keeper, 20, 0.5, false);
        said(&keeper, 30, 1.5, true);
        drop(keeper);
        assert_eq!((marked(), steps(&folder)), (10, vec![30, 10]));
        // a job that goes on from there knows of the better loss, whose checkpoint nobody has
        let (_, job) = folder.newest_whole().unwrap();
        assert_eq!(job.best.as_ref().map(|best| best.step), Some(20));
        let keeper = start(job);
        said(&keeper, 40, 0.9, true);
        said(&keeper, 50, 0.95, true);
        drop(keeper);
        assert_eq!((marked(), steps(&folder)), (40, vec![50, 40]));
        // and so does the next, of one that was never the best of all
        let keeper = start(folder.newest_whole().unwrap().1);
        said(&keeper, 60, 5.0, true);
        drop(keeper);
        assert_eq!((marked(), steps(&folder)), (40, vec![60, 40]));
    }

    #[test]
    fn one_before_the_last_stays_until_the_job_is_done() {
        let place = tempfile::tempdir().unwrap();
        let config = CheckpointConfig { keep: 1, ..CheckpointConfig::new(place.path()) };
        let folder = CheckpointFolder::new(place.path());
        let evaluated = Evaluated { every: None, steps: 30 };
        let run = |news: &[u64], is_done| {
            let shards = ["a".to_string()].into();
            let keeper = started(&config, shards, state(), evaluated);
            news.iter().for_each(|step| keeper.add(report(&folder, *step, "a")));
            if is_done {
                keeper.tell(News::Concluded);
            }
            drop(keeper);
            steps(&folder)
        };
        assert_eq!(run(&[10, 20, 30], false), [30, 20], "it failed behind its last step");
        assert_eq!(run(&[30], true), [30]);
    }

    #[test]
    fn the_best_one_stays_and_says_that_it_is() {
        let place = tempfile::tempdir().unwrap();
        let config =
            CheckpointConfig { keep: 1, best: true, ..CheckpointConfig::new(place.path()) };
        let folder = CheckpointFolder::new(place.path());
        let evaluated = Evaluated { every: Some(10), steps: 50 };
        let keeper = started(&config, ["a".to_string()].into(), state(), evaluated);
        for (step, loss) in [(10, 3.0), (20, 1.0), (30, 2.0), (40, 1.5)] {
            // written before it was evaluated, and after
            let written = report(&folder, step, "a");
            let evaluation = [("loss".to_string(), loss)].into_iter().collect();
            let said = [News::Written(written), News::Evaluated(step, evaluation)];
            let order = if step == 30 { [1, 0] } else { [0, 1] };
            let mut said = said.map(Some);
            order.into_iter().for_each(|at: usize| keeper.tell(said[at].take().unwrap()));
        }
        keeper.add(report(&folder, 50, "a"));
        keeper.tell(News::Concluded);
        drop(keeper);
        let found = folder.found().unwrap();
        assert_eq!(found.iter().map(|found| found.step).collect::<Vec<_>>(), [50, 20]);
        let best = CheckpointFolder::new(place.path().join("best")).found().unwrap();
        assert_eq!(best, [FoundCheckpoint { step: 20, ..found[1].clone() }]);
        let best = found[0].verified().unwrap().best.unwrap();
        assert_eq!((best.step, best.test_loss, best.since), (20, 1.0, 2));
        assert_eq!(found[1].verified().unwrap().best.unwrap().since, 0);
    }
}
