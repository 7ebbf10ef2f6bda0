//! A job whose number of workers may change between two steps: it ends behind a step, which is kept, and is launched with
//! others. A step takes as many samples as ever: where there are fewer workers, each makes several batches for it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tensorwire_launch::{Hosts, JobControl, host_answers};
use tensorwire_nn::{Data, Model};

use crate::checkpoint::CheckpointConfig;
use crate::config::{ConfigError, TrainConfig};
use crate::job::{Prepared, Supply};
use crate::rates::RateFunction;
use crate::run::JobFailure;

/// How often a host that was lost is looked for.
const LOOKS_FOR_HOSTS: Duration = Duration::from_secs(20);
/// How long one may take to answer.
const HOST_PATIENCE: Duration = Duration::from_secs(10);
/// How often the thread that looks for hosts looks whether it is to end.
const LOOKS: Duration = Duration::from_millis(200);

impl TrainConfig {
    /// Returns the numbers of workers that the job may have, the largest first: parts of [`TrainConfig::workers`], so that a
    /// step takes as many samples, and not fewer than [`TrainConfig::fewest_workers`].
    pub(crate) fn sizes(&self) -> Vec<u32> {
        let fewest = self.fewest_workers.unwrap_or(self.workers).max(1);
        let sizes = (fewest..=self.workers).rev().filter(|size| self.workers.is_multiple_of(*size));
        sizes.filter(|size| self.of_size(*size, self.hosts.clone()).check().is_ok()).collect()
    }

    /// The same job of so many workers on these hosts, that goes on from its own checkpoints.
    fn of_size(&self, workers: u32, hosts: Hosts) -> TrainConfig {
        // fits: workers are few
        let accumulate = self.accumulate * (self.workers / workers) as usize;
        let (fewest_workers, trace) = (None, None);
        let resume = Some(CheckpointConfig::AUTO.into());
        TrainConfig { workers, accumulate, hosts, fewest_workers, trace, resume, ..self.clone() }
    }
}

/// A job whose number of workers may change, over all that it is launched as.
#[derive(Debug)]
pub(crate) struct Resizing<'a> {
    /// Of all workers.
    whole: &'a Prepared,
    shared: Arc<Shared>,
}

/// What the launcher, whoever asks and the thread that looks for hosts know alike.
#[derive(Debug)]
struct Shared {
    sizes: Vec<u32>,
    hosts: Hosts,
    state: Mutex<State>,
    is_over: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// Workers that it has.
    size: u32,
    /// Most that it is to have, as asked for, and as those that died leave.
    most: u32,
    lost: BTreeSet<String>,
    /// Why it is to end behind a step and to go on in another way.
    why: Option<String>,
    is_looking: bool,
}

impl<'a> Resizing<'a> {
    /// Of a job that was prepared with all its workers; none if their number is fixed.
    pub(crate) fn of(whole: &'a Prepared) -> Option<Resizing<'a>> {
        let config = &whole.config;
        config.fewest_workers?;
        let state = State { size: config.workers, most: config.workers, ..State::default() };
        let shared = Shared {
            sizes: config.sizes(),
            hosts: config.hosts.clone(),
            state: Mutex::new(state),
            is_over: AtomicBool::new(false),
        };
        Some(Resizing { whole, shared: Arc::new(shared) })
    }

    /// What the launcher asks, and is asked.
    pub(crate) fn control(&self) -> Arc<dyn JobControl> {
        self.shared.clone()
    }

    /// Has the job pause for as many workers as an earlier launcher of it was asked for, if there is room.
    pub(crate) fn goes_on_with(&self, workers: u32) {
        self.shared.with(|state| {
            state.most = workers;
            state.why = Some(asked_for(workers));
        });
    }

    /// Returns why the job has ended behind a step, if it is to go on in another way.
    pub(crate) fn paused(&self) -> Option<String> {
        self.shared.with(|state| state.why.take())
    }

    /// Notes that the host of who failed first is lost, if it does not answer any more; returns why the job has other workers
    /// then.
    pub(crate) fn lost_host(&self, failure: &JobFailure) -> Option<String> {
        let host = failure.first()?.host.clone()?;
        if host_answers(&self.shared.hosts, &host, HOST_PATIENCE) {
            return None;
        }
        let left = self.shared.with(|state| {
            state.lost.insert(host.clone());
            let fits = self.shared.fits(state);
            if fits.is_none() {
                // it can only be started again with it
                state.lost.remove(&host);
            }
            fits
        })?;
        self.shared.look_for_hosts();
        Some(format!("{failure}; {host} does not answer, and {} on without it", go(left)))
    }

    /// Takes the next smaller number of workers, or as many, where none of them failed; returns why the job goes on. None if there
    /// is no smaller one.
    pub(crate) fn without(&self, failure: &JobFailure) -> Option<String> {
        if failure.first().is_none() {
            return Some(format!("{failure}; the job goes on"));
        }
        let left = self.shared.with(|state| {
            let smaller = self.shared.sizes.iter().copied().find(|size| *size < state.size)?;
            state.most = smaller;
            self.shared.fits(state)
        })?;
        Some(format!("{failure}; {} on", go(left)))
    }

    /// The job as it goes on.
    ///
    /// # Errors
    /// When it cannot.
    pub(crate) fn resized(&self, supply: &dyn Supply) -> Result<Prepared, ConfigError> {
        let (size, lost) = self.shared.with(|state| {
            // what was taken from it before leaves one
            let size = self.shared.fits(state).unwrap_or(state.size);
            state.size = size;
            state.why = None;
            (size, state.lost.iter().cloned().collect::<Vec<_>>())
        });
        let hosts = self.shared.hosts.without(&lost).unwrap_or_default();
        let supply = Same { supply, data: &self.whole.data };
        let config = self.whole.config.of_size(size, hosts);
        let prepared = Prepared::new(config.clone(), &supply)?;
        match (&prepared.resumed, &self.whole.config.resume) {
            // nothing is kept yet: it begins where it began
            (None, Some(given)) if !self.whole.config.resumes_own() => {
                Prepared::new(TrainConfig { resume: Some(given.clone()), ..config }, &supply)
            }
            _ => Ok(prepared),
        }
    }
}

impl Drop for Resizing<'_> {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }
}

/// Why it goes on with so many.
fn asked_for(workers: u32) -> String {
    format!("asked for: {} on", go(workers))
}

/// `4 workers go`.
fn go(workers: u32) -> String {
    if workers == 1 { "1 worker goes".to_string() } else { format!("{workers} workers go") }
}

impl Shared {
    fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The largest number of workers that there may be, and is room for.
    fn fits(&self, state: &State) -> Option<u32> {
        let lost: Vec<String> = state.lost.iter().cloned().collect();
        let slots = self.hosts.without(&lost)?.slots();
        let (all, whole) = (u64::from(self.hosts.slots()), u64::from(*self.sizes.first()?));
        let room = |size: &&u32| u64::from(**size) * all <= whole * u64::from(slots);
        self.sizes.iter().filter(room).find(|size| **size <= state.most).copied()
    }

    /// Has a thread look for the hosts that are lost, if none does.
    fn look_for_hosts(self: &Arc<Shared>) {
        if self.with(|state| std::mem::replace(&mut state.is_looking, true)) {
            return;
        }
        let shared = self.clone();
        let look = move || {
            let mut waited = Duration::ZERO;
            while !shared.is_over.load(Ordering::Relaxed) {
                std::thread::sleep(LOOKS);
                waited += LOOKS;
                if waited >= LOOKS_FOR_HOSTS {
                    waited = Duration::ZERO;
                    shared.find_hosts();
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("hosts".into()).spawn(look) {
            tracing::warn!("nobody looks for the hosts that were lost: no thread ({error})");
        }
    }

    fn find_hosts(&self) {
        let lost = self.with(|state| state.lost.clone());
        for host in lost {
            if host_answers(&self.hosts, &host, HOST_PATIENCE) {
                self.with(|state| {
                    state.lost.remove(&host);
                    let fits = self.fits(state);
                    if let Some(size) = fits.filter(|size| *size != state.size) {
                        state.why = Some(format!("{host} answers again: {} on", go(size)));
                    }
                });
            }
        }
    }
}

impl JobControl for Shared {
    fn scale(&self, workers: u32) -> Result<String, String> {
        if !self.sizes.contains(&workers) {
            let sizes: Vec<String> = self.sizes.iter().map(u32::to_string).collect();
            let sizes = sizes.join(", ");
            return Err(format!(
                "{workers} workers it cannot have, but as many as one of {sizes}, which share the work of all alike"
            ));
        }
        self.with(|state| {
            let before = std::mem::replace(&mut state.most, workers);
            match self.fits(state) {
                Some(size) if size == workers && size == state.size && state.why.is_none() => {
                    Ok(format!("it has {size} workers"))
                }
                Some(size) if size == workers => {
                    state.why = Some(asked_for(size));
                    Ok(format!("{} on behind the present step", go(size)))
                }
                _ => {
                    state.most = before;
                    let lost: Vec<String> = state.lost.iter().cloned().collect();
                    Err(format!(
                        "there is no room for {workers} workers without {}",
                        lost.join(", ")
                    ))
                }
            }
        })
    }

    fn pauses_for(&self) -> Option<u32> {
        self.with(|state| state.why.as_ref().map(|_| self.fits(state).unwrap_or(state.size)))
    }
}

/// What was there before, of data that need not be read once more.
struct Same<'a> {
    supply: &'a dyn Supply,
    data: &'a Data,
}

impl Supply for Same<'_> {
    fn model(&self, config: &TrainConfig) -> Result<Arc<dyn Model>, ConfigError> {
        self.supply.model(config)
    }

    fn data(&self, _: &TrainConfig) -> Result<Data, ConfigError> {
        Ok(self.data.clone())
    }

    fn rates(&self) -> Option<RateFunction> {
        self.supply.rates()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;

    fn shared(workers: u32, fewest: u32, hosts: &str) -> Shared {
        let hosts: Hosts = hosts.parse().unwrap();
        let checkpoint = Some(CheckpointConfig::new("c"));
        let config =
            TrainConfig { workers, fewest_workers: Some(fewest), hosts, checkpoint, ..config() };
        let state = State { size: workers, most: workers, ..State::default() };
        let (sizes, hosts) = (config.sizes(), config.hosts);
        Shared { sizes, hosts, state: Mutex::new(state), is_over: AtomicBool::new(false) }
    }

    #[test]
    fn sizes_are_parts_of_the_whole() {
        assert_eq!(shared(8, 2, "localhost").sizes, [8, 4, 2]);
        assert_eq!(shared(6, 1, "localhost").sizes, [6, 3, 2, 1]);
        assert_eq!(shared(7, 3, "localhost").sizes, [7]);
        let checkpoint = Some(CheckpointConfig::new("c"));
        let fixed = TrainConfig { workers: 8, checkpoint, ..config() };
        assert_eq!(fixed.sizes(), [8]);
        let half = fixed.of_size(4, fixed.hosts.clone());
        assert_eq!((half.workers, half.accumulate), (4, 2));
    }

    #[test]
    fn fewer_hosts_have_room_for_fewer_workers() {
        let shared = shared(8, 2, "localhost,there,far:2");
        let fits = |lost: &[&str], most| {
            let lost = lost.iter().map(|name| name.to_string()).collect();
            shared.fits(&State { size: 8, most, lost, ..State::default() })
        };
        assert_eq!(fits(&[], 8), Some(8));
        assert_eq!(fits(&["there"], 8), Some(4));
        assert_eq!(fits(&["far"], 8), Some(4));
        assert_eq!(fits(&["far", "there"], 8), Some(2));
        assert_eq!(fits(&[], 2), Some(2));
        assert_eq!(fits(&["localhost", "far", "there"], 8), None);
    }

    #[test]
    fn what_is_asked_for_is_done_or_refused_in_words() {
        let shared = shared(8, 2, "localhost,there");
        assert_eq!(shared.pauses_for(), None);
        assert_eq!(shared.scale(8).unwrap(), "it has 8 workers");
        assert!(shared.scale(3).unwrap_err().contains("one of 8, 4, 2"));
        assert_eq!(shared.scale(2).unwrap(), "2 workers go on behind the present step");
        assert_eq!(shared.pauses_for(), Some(2));
        assert_eq!(shared.scale(8).unwrap(), "8 workers go on behind the present step");
        shared.with(|state| state.lost.insert("there".into()));
        assert!(shared.scale(8).unwrap_err().ends_with("without there"));
    }
}
