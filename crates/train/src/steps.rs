//! What the workers of a job say of their steps, put together: a step is finished once every worker that lives has
//! finished it. Shows nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tensorwire_base::Rank;
use tensorwire_launch::JobUpdate;

use crate::job::Prepared;
use crate::rates::Rates;
use crate::report::{Evaluation, Polling, Progress};
use crate::run::TrainUpdate;

/// A step that every live worker has finished. Serialized, it is a line of `--metrics`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FinishedStep {
    /// From 1.
    pub step: u64,
    /// When this was said: seconds since 1970, as the launcher's clock goes.
    pub time: f64,
    /// How many workers' losses it is of: those that a job has at that time.
    pub workers: u32,
    /// The epoch that it is in, from 1.
    pub epoch: u64,
    /// The mean of the workers' losses, added in the order of workers.
    pub loss: f32,
    /// The optimizer's rate in this step.
    pub rate: f64,
    /// Of the whole job, from its first step until this one was finished.
    pub samples_per_second: f64,
    /// How the workers waited for tensors in this step, all together.
    #[serde(flatten)]
    pub polling: PollingFigures,
    /// Of the weights after this step, if they were evaluated.
    #[serde(flatten)]
    pub evaluation: Option<StepEvaluation>,
}

impl FinishedStep {
    /// A line for people, of a job of so many steps.
    pub fn line(&self, steps: u64) -> String {
        let FinishedStep { step, epoch, loss, samples_per_second, evaluation, .. } = self;
        let named = evaluation.iter().flat_map(StepEvaluation::named);
        let found: String =
            named.map(|(name, value)| format!(", {} {value:.4}", name.replace('_', " "))).collect();
        format!(
            "epoch {epoch}: step {step}/{steps}, loss {loss:.4}, {samples_per_second:.0} samples/s{found}"
        )
    }
}

/// An [`Evaluation`] between two steps, under the names that a [`crate::Summary`] has for the one in the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StepEvaluation {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test_accuracy: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test_loss: Option<f64>,
    /// What else the model measures.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
}

impl From<&Evaluation> for StepEvaluation {
    fn from(found: &Evaluation) -> StepEvaluation {
        let (test_accuracy, test_loss) = (found.accuracy(), found.loss());
        StepEvaluation { test_accuracy, test_loss, metrics: found.others() }
    }
}

impl StepEvaluation {
    /// All that was measured, by name.
    pub fn named(&self) -> impl Iterator<Item = (&str, f64)> {
        let known = [("test_loss", self.test_loss), ("test_accuracy", self.test_accuracy)];
        let known = known.into_iter().filter_map(|(name, value)| Some((name, value?)));
        known.chain(self.metrics.iter().map(|(name, value)| (name.as_str(), *value)))
    }
}

/// [`Polling`] in microseconds, as it is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PollingFigures {
    /// Times a tensor was asked for.
    pub polls: u64,
    /// Times it was not there yet.
    pub poll_misses: u64,
    /// Times a worker blocked.
    pub waits: u64,
    /// Time lost in polls that found nothing.
    pub poll_us: f64,
    /// Time lost in waits.
    pub wait_us: f64,
}

impl From<Polling> for PollingFigures {
    fn from(polling: Polling) -> PollingFigures {
        let Polling { polls, poll_misses, waits, poll_ns, wait_ns, .. } = polling;
        // fits: times of a job, shown to a person
        let [poll_us, wait_us] = [poll_ns, wait_ns].map(|ns| ns as f64 / 1e3);
        PollingFigures { polls, poll_misses, waits, poll_us, wait_us }
    }
}

/// Puts together what the workers say of their steps, who need not be in the same one.
#[derive(Debug)]
pub struct StepAggregator {
    /// Which worker a member is.
    workers: BTreeMap<Rank, usize>,
    steps_per_epoch: u64,
    /// The optimizer's own rate, and what it is multiplied by in each step.
    rate: f64,
    rates: Rates,
    /// Samples that a worker takes in a step, and all that were taken.
    batch: u64,
    samples: u64,
    /// When the first step began: what came before was set-up.
    begun: Instant,
    /// What was said of the steps that some worker has not finished, by step, by worker.
    open: BTreeMap<u64, OpenStep>,
    /// The first of them.
    first: u64,
    /// Behind which step the job began, or began again.
    began: u64,
    /// The last step that was told: a job that is started again makes some once more.
    told: u64,
    /// Samples of steps that were made before this launcher took the job over.
    unseen: u64,
    /// By worker: it is not waited for any more.
    lost: Vec<bool>,
    /// By worker: the last step that it said anything of. What it has left out before was said to a launcher that died.
    last: Vec<u64>,
}

/// Steps that may be open: an asynchronous job whose slowest worker is further behind tells the first without it.
const OPEN_MAX: usize = 10_000;

/// What was said of a step.
#[derive(Clone, Debug)]
struct OpenStep {
    /// By worker.
    losses: Vec<Option<f32>>,
    polling: Polling,
    evaluation: Option<StepEvaluation>,
}

impl StepAggregator {
    /// For a job of which nothing has been said yet.
    pub fn new(prepared: &Prepared) -> StepAggregator {
        // fits: members are few
        let ranks = (0..prepared.roles().len() as u32).map(Rank);
        let workers = ranks.filter_map(|rank| Some((rank, prepared.worker(rank)? as usize)));
        // fits: a batch is in memory
        let batch = (prepared.config.batch * prepared.config.accumulate) as u64
            * u64::from(prepared.config.devices_per_worker);
        // fits: workers are few
        let count = prepared.config.workers as usize;
        let first = prepared.steps_done() + 1;
        let all = StepAggregator::of(workers.collect(), count, batch, prepared.steps_per_epoch());
        let (rate, rates) = (prepared.config.optimizer.rate, prepared.rates.clone());
        StepAggregator { first, began: first - 1, rate, rates, ..all }
    }

    fn of(
        workers: BTreeMap<Rank, usize>,
        count: usize,
        batch: u64,
        steps_per_epoch: u64,
    ) -> StepAggregator {
        StepAggregator {
            workers,
            steps_per_epoch: steps_per_epoch.max(1),
            rate: 1.0,
            rates: Rates::default(),
            batch,
            samples: 0,
            begun: Instant::now(),
            open: BTreeMap::new(),
            first: 1,
            began: 0,
            told: 0,
            unseen: 0,
            lost: vec![false; count],
            last: vec![0; count],
        }
    }

    /// The first step begins now.
    pub fn begin(&mut self) {
        self.begun = Instant::now();
    }

    /// Takes in what was said; [`StepAggregator::take`] has the steps that are finished by it.
    pub fn update(&mut self, update: &TrainUpdate) {
        match update {
            JobUpdate::Introduced => self.begin(),
            JobUpdate::Progress { rank, value, .. } => {
                if let Some(&worker) = self.workers.get(rank) {
                    self.add(worker, value);
                }
            }
            JobUpdate::Shrunk { rank, .. } => {
                let lost = self.workers.get(rank).and_then(|worker| self.lost.get_mut(*worker));
                lost.into_iter().for_each(|lost| *lost = true);
            }
            JobUpdate::TakenOver { step, told } => {
                let (began, workers) = (self.began, self.lost.len() as u64);
                self.begin_behind(*told);
                self.lost.fill(false);
                self.last.fill(0);
                // what comes of the steps up to there was made before
                self.began = *step;
                self.unseen = step.saturating_sub(began) * self.batch * workers;
                self.begin();
            }
            JobUpdate::Restarting { step, .. } | JobUpdate::NotTakenOver { step, .. } => {
                self.begin_behind(*step);
                self.lost.fill(false);
                self.last.fill(0);
            }
            JobUpdate::WasResized { workers, .. } => self.goes_on_with(workers),
            JobUpdate::Resizing { step, workers, .. } => {
                self.goes_on_with(workers);
                self.begin_behind(*step);
            }
            _ => {}
        }
    }

    /// Says which worker each member is from now on; a step has as many samples as before.
    fn goes_on_with(&mut self, workers: &[Option<u32>]) {
        let by_rank = (0..).map(Rank).zip(workers);
        self.workers =
            by_rank.filter_map(|(rank, worker)| Some((rank, (*worker)? as usize))).collect();
        // fits: workers are few
        let before = self.lost.len() as u64;
        let count = self.workers.values().max().map_or(1, |last| last + 1);
        self.batch = self.batch * before / count as u64;
        (self.lost, self.last) = (vec![false; count], vec![0; count]);
    }

    fn begin_behind(&mut self, step: u64) {
        (self.first, self.began) = (step + 1, step);
        (self.samples, self.unseen) = (0, 0);
        self.open.clear();
    }

    fn add(&mut self, worker: usize, progress: &Progress) {
        let Some(last) = self.last.get_mut(worker) else { return };
        let is_new = progress.step > *last && progress.step > self.began;
        *last = progress.step.max(*last);
        if is_new {
            self.samples += self.batch;
        }
        // what was told without it
        if progress.step < self.first {
            return;
        }
        // a worker is at most one step ahead of another where the servers wait for all; else any number
        let workers = self.lost.len();
        let (polling, evaluation) = (Polling::default(), None);
        let none = || OpenStep { losses: vec![None; workers], polling, evaluation };
        let step = self.open.entry(progress.step).or_insert_with(none);
        if let Some(place) = step.losses.get_mut(worker).filter(|place| place.is_none()) {
            *place = Some(progress.loss);
            step.polling = step.polling + progress.polling;
            step.evaluation = step.evaluation.take().or_else(|| evaluation_of(progress));
        }
    }

    /// The next step that all have done who are not lost; each once, also of a job that was started again.
    pub fn take(&mut self) -> Option<FinishedStep> {
        loop {
            let step = self.next()?;
            if step.step > self.told {
                self.told = step.step;
                return Some(step);
            }
        }
    }

    fn next(&mut self) -> Option<FinishedStep> {
        // nobody says anything more of the steps before the first that is open
        let open = *self.open.first_key_value()?.0;
        let is_behind = |worker: usize, step: u64| self.last[worker] < step && !self.lost[worker];
        if open > self.first && !(0..self.lost.len()).any(|worker| is_behind(worker, open)) {
            self.first = open;
        }
        let is_full = self.open.len() > OPEN_MAX;
        if is_full {
            self.first = open;
        }
        let OpenStep { losses, .. } = self.open.get(&self.first)?;
        let mut waited = losses.iter().enumerate().filter(|(_, said)| said.is_none());
        if !is_full && waited.any(|(worker, _)| is_behind(worker, self.first)) {
            return None;
        }
        let count = losses.iter().flatten().count();
        // in their order; fits: workers are few
        let loss = losses.iter().flatten().sum::<f32>() / count as f32;
        let OpenStep { polling, evaluation, .. } = self.open.remove(&self.first)?;
        // fits: workers are few
        Some(self.finished(self.first, (loss, count as u32), polling, evaluation))
    }

    /// A step of a process that trains alone, for all workers.
    pub fn all_did(&mut self, progress: &Progress) -> FinishedStep {
        // fits: workers are few
        self.samples += self.batch * self.lost.len() as u64;
        let evaluation = evaluation_of(progress);
        let said = (progress.loss, self.lost.len() as u32);
        self.finished(progress.step, said, progress.polling, evaluation)
    }

    fn finished(
        &mut self,
        step: u64,
        (loss, workers): (f32, u32),
        polling: Polling,
        evaluation: Option<StepEvaluation>,
    ) -> FinishedStep {
        self.first = step + 1;
        // a clock before 1970 says nothing
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        FinishedStep {
            step,
            time: time.as_secs_f64(),
            workers,
            epoch: step.div_ceil(self.steps_per_epoch),
            loss,
            rate: self.rate * self.rates.factor(step),
            samples_per_second: rate(self.samples, self.begun.elapsed()),
            polling: polling.into(),
            evaluation,
        }
    }

    /// Samples that all workers together have taken since the job began, or began again.
    pub fn samples(&self) -> u64 {
        self.unseen + self.samples
    }
}

/// What a worker that evaluated after a step found.
fn evaluation_of(progress: &Progress) -> Option<StepEvaluation> {
    progress.evaluation().map(StepEvaluation::from)
}

/// Samples a second.
fn rate(samples: u64, elapsed: Duration) -> f64 {
    // fits: shown to a person
    samples as f64 / elapsed.as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of `workers` workers that are the members of rank 0, 2, 4, … with 8 samples a step and 2 steps an epoch.
    fn aggregator(workers: u32) -> StepAggregator {
        let ranks = (0..workers).map(|worker| (Rank(2 * worker), worker as usize));
        StepAggregator::of(ranks.collect(), workers as usize, 8, 2)
    }

    fn says(worker: u32, step: u64, loss: f32) -> TrainUpdate {
        let polling = Polling { polls: 10, wait_ns: 1500, ..Polling::default() };
        let value = Progress { step, loss, polling, epoch: None };
        JobUpdate::Progress { rank: Rank(2 * worker), step, value }
    }

    fn loses(worker: u32) -> TrainUpdate {
        JobUpdate::Shrunk { rank: Rank(2 * worker), why: "killed".to_string(), left: 1 }
    }

    #[test]
    fn a_step_is_finished_when_all_workers_have_finished_it_whoever_was_ahead() {
        let mut steps = aggregator(2);
        for step in 1..=3 {
            steps.update(&says(1, step, 1.0));
            assert_eq!(steps.take(), None);
        }
        steps.update(&says(0, 1, 2.0));
        let first = steps.take().unwrap();
        assert_eq!((first.step, first.epoch, first.loss), (1, 1, 1.5));
        assert_eq!((first.polling.polls, first.polling.wait_us), (20, 3.0));
        assert_eq!(steps.take(), None);
        steps.update(&says(0, 2, 4.0));
        steps.update(&says(0, 3, 5.0));
        let rest: Vec<_> = std::iter::from_fn(|| steps.take()).collect();
        let rest: Vec<_> = rest.iter().map(|step| (step.step, step.epoch, step.loss)).collect();
        assert_eq!(rest, [(2, 1, 2.5), (3, 2, 3.0)]);
        assert_eq!(steps.samples(), 6 * 8);
    }

    #[test]
    fn losses_are_added_in_the_order_of_workers_whoever_spoke_first() {
        // in f32 the order shows: 1e8 - 1e8 + 3 is 3, and 3 - 1e8 + 1e8 is 0
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let mut steps = aggregator(3);
            for worker in order {
                steps.update(&says(worker, 1, [1e8, -1e8, 3.0][worker as usize]));
            }
            assert_eq!(steps.take().map(|step| step.loss), Some(1.0));
        }
    }

    #[test]
    fn a_lost_worker_is_not_waited_for_and_what_it_said_counts() {
        let mut steps = aggregator(2);
        steps.update(&says(1, 1, 3.0));
        steps.update(&says(0, 1, 1.0));
        steps.update(&says(0, 2, 5.0));
        assert_eq!(steps.take().map(|step| step.loss), Some(2.0));
        assert_eq!(steps.take(), None);
        steps.update(&loses(1));
        let next = steps.take().map(|step| (step.step, step.loss, step.workers));
        assert_eq!(next, Some((2, 5.0, 1)), "of who is left");
        assert_eq!(steps.take(), None);
    }

    #[test]
    fn a_job_that_is_started_again_tells_each_step_once_and_counts_anew() {
        let mut steps = aggregator(2);
        let both = |steps: &mut StepAggregator, step| {
            [0, 1].into_iter().for_each(|worker| steps.update(&says(worker, step, 1.0)));
        };
        (1..=3).for_each(|step| both(&mut steps, step));
        steps.update(&loses(1));
        steps.update(&says(0, 4, 1.0));
        let taken = |steps: &mut StepAggregator| -> Vec<u64> {
            std::iter::from_fn(|| steps.take()).map(|step| step.step).collect()
        };
        assert_eq!(taken(&mut steps), [1, 2, 3, 4]);
        let why = "killed".to_string();
        let pause = Duration::ZERO;
        steps.update(&JobUpdate::Restarting { why, step: 2, restart: 1, most: 3, pause });
        (3..=6).for_each(|step| steps.update(&says(0, step, 1.0)));
        assert_eq!(taken(&mut steps), [0; 0], "worker 1 is there again");
        (3..=6).for_each(|step| steps.update(&says(1, step, 1.0)));
        assert_eq!(taken(&mut steps), [5, 6]);
        assert_eq!(steps.samples(), 4 * 2 * 8);
    }

    #[test]
    fn a_worker_that_is_far_behind_holds_up_no_more_than_so_many_steps() {
        let mut steps = aggregator(2);
        let most = OPEN_MAX as u64;
        let mut told = Vec::new();
        for step in 1..=most + 3 {
            steps.update(&says(0, step, 1.0));
            told.extend(std::iter::from_fn(|| steps.take()).map(|told| (told.step, told.loss)));
        }
        assert_eq!(told, [(1, 1.0), (2, 1.0), (3, 1.0)]);
        // its samples count, as does what it says of steps that are open
        assert_eq!(steps.samples(), (most + 3) * 8);
        (1..=4).for_each(|step| steps.update(&says(1, step, 3.0)));
        assert_eq!(steps.samples(), (most + 3 + 4) * 8);
        let next = steps.take().unwrap();
        assert_eq!((next.step, next.loss, next.polling.polls), (4, 2.0, 20));
        assert_eq!(steps.take(), None);
    }

    #[test]
    fn what_was_said_to_a_launcher_that_died_is_not_waited_for() {
        let taken = |steps: &mut StepAggregator| -> Vec<u64> {
            std::iter::from_fn(|| steps.take()).map(|finished| finished.step).collect()
        };
        let mut steps = aggregator(2);
        steps.update(&JobUpdate::TakenOver { step: 12, told: 8 });
        steps.update(&says(0, 9, 1.0));
        assert_eq!(taken(&mut steps), [0; 0], "worker 1 may say it yet");
        // it has said 9 and 10 to another
        steps.update(&says(1, 11, 1.0));
        assert_eq!(taken(&mut steps), [9]);
        steps.update(&says(0, 12, 1.0));
        assert_eq!(taken(&mut steps), [11]);
        steps.update(&says(1, 12, 1.0));
        assert_eq!(taken(&mut steps), [12]);
        // those were made under the other one: they are of the job, and not of this launcher's time
        assert_eq!((steps.samples(), steps.samples), (12 * 2 * 8, 0));
        steps.update(&says(0, 13, 1.0));
        assert_eq!((steps.samples(), steps.samples), (25 * 8, 8));
    }

    #[test]
    fn who_takes_a_resized_job_over_waits_for_the_workers_that_it_has() {
        let mut steps = aggregator(2);
        let (roles, workers) = (vec!["worker 0".to_string()], vec![Some(0)]);
        steps.update(&JobUpdate::WasResized { roles, workers });
        steps.update(&JobUpdate::TakenOver { step: 12, told: 12 });
        steps.update(&says(0, 13, 1.0));
        assert_eq!(steps.take().map(|finished| finished.step), Some(13));
        // it makes two batches for a step
        assert_eq!((steps.samples(), steps.samples), (13 * 16, 16));
    }

    #[test]
    fn a_step_that_only_a_lost_worker_did_is_finished() {
        let mut steps = aggregator(1);
        steps.update(&says(0, 1, 3.0));
        steps.update(&loses(0));
        assert_eq!(steps.take().map(|step| step.loss), Some(3.0));
        // nobody says what comes then
        assert_eq!(steps.take(), None);
    }

    #[test]
    fn what_is_said_again_or_by_no_worker_counts_once_or_not() {
        let mut steps = aggregator(1);
        let server = JobUpdate::Progress {
            rank: Rank(1),
            step: 1,
            value: Progress { step: 1, loss: 9.0, polling: Polling::default(), epoch: None },
        };
        steps.update(&server);
        assert_eq!(steps.take(), None);
        steps.update(&says(0, 1, 1.0));
        steps.update(&says(0, 1, 2.0));
        assert_eq!(steps.take().map(|step| step.loss), Some(1.0));
        // the step before the first that is open
        steps.update(&says(0, 1, 2.0));
        assert_eq!((steps.take(), steps.samples()), (None, 8));
    }

    #[test]
    fn one_process_does_the_steps_of_all_workers() {
        let mut steps = aggregator(3);
        let did = Progress { step: 1, loss: 2.0, polling: Polling::default(), epoch: None };
        let first = steps.all_did(&did);
        assert_eq!((first.step, first.epoch, first.loss), (1, 1, 2.0));
        assert_eq!(steps.samples(), 24);
        assert_eq!(rate(24, Duration::from_millis(500)), 48.0);
    }

    #[test]
    fn a_line_for_people_has_what_was_evaluated() {
        let mut steps = aggregator(1);
        steps.update(&says(0, 1, 0.5));
        let evaluation = StepEvaluation { test_accuracy: Some(0.875), ..Default::default() };
        let found = FinishedStep { samples_per_second: 31.6, ..steps.take().unwrap() };
        assert_eq!(found.line(9), "epoch 1: step 1/9, loss 0.5000, 32 samples/s");
        let found = FinishedStep { evaluation: Some(evaluation), ..found };
        assert!(found.line(9).ends_with(", 32 samples/s, test accuracy 0.8750"), "{found:?}");
    }

    #[test]
    fn a_line_of_metrics_has_its_keys() {
        let mut steps = aggregator(1);
        steps.update(&says(0, 1, 0.5));
        let line = serde_json::to_value(steps.take()).unwrap();
        let keys: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected = [
            "step",
            "time",
            "workers",
            "epoch",
            "loss",
            "rate",
            "samples_per_second",
            "polls",
            "poll_misses",
            "waits",
            "poll_us",
            "wait_us",
        ];
        expected.sort_unstable();
        assert_eq!(keys, expected);
        assert_eq!(
            (&line["step"], &line["loss"], &line["wait_us"]),
            (&1.into(), &0.5.into(), &1.5.into())
        );
    }
}
