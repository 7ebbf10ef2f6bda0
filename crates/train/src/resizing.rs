//! A job whose number of workers, and whose hosts, may change between two steps: it ends behind a step, which is kept, and is
//! launched with others. A step takes as many samples as ever: where there are fewer workers, each makes several batches for it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tensorwire_launch::{Hosts, JobControl, Resize, host_answers};
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
/// How long a job has fewer workers after one died, and at most, where they die again and again.
const STEADY: Duration = Duration::from_secs(10 * 60);
const STEADY_MAX: Duration = Duration::from_secs(2 * 60 * 60);
/// How often the thread that looks for hosts and for better times looks whether it is to end.
const LOOKS: Duration = Duration::from_millis(200);

impl TrainConfig {
    /// Returns the numbers of workers that the job may have, the largest first: parts of [`TrainConfig::workers`], so that a
    /// step takes as many samples, and not fewer than [`TrainConfig::fewest_workers`].
    pub(crate) fn sizes(&self) -> Vec<u32> {
        let fewest = self.fewest_workers.unwrap_or(self.workers).max(1);
        let sizes = (fewest..=self.workers).rev().filter(|size| self.workers.is_multiple_of(*size));
        sizes.filter(|size| self.of_size(*size, self.place()).check().is_ok()).collect()
    }

    /// The same job of so many workers there, that goes on from its own checkpoints.
    fn of_size(&self, workers: u32, place: Place) -> TrainConfig {
        // fits: workers are few
        let accumulate = self.accumulate * (self.workers / workers) as usize;
        let (fewest_workers, trace) = (None, None);
        let resume = Some(CheckpointConfig::AUTO.into());
        let Place { hosts, listen } = place;
        let changed = TrainConfig { workers, accumulate, hosts, listen, ..self.clone() };
        TrainConfig { fewest_workers, trace, resume, ..changed }
    }

    fn place(&self) -> Place {
        Place { hosts: self.hosts.clone(), listen: self.listen }
    }
}

/// A job whose number of workers may change, over all that it is launched as.
#[derive(Debug)]
pub(crate) struct Resizing<'a> {
    /// Of all workers.
    whole: &'a Prepared,
    shared: Arc<Shared>,
}

/// Where the processes of a job run, and where they find its launcher.
#[derive(Clone, Debug, PartialEq)]
struct Place {
    hosts: Hosts,
    listen: Option<SocketAddr>,
}

/// What the launcher, whoever asks and the thread that looks for hosts know alike.
#[derive(Debug)]
struct Shared {
    /// Of all workers.
    config: TrainConfig,
    sizes: Vec<u32>,
    state: Mutex<State>,
    is_over: AtomicBool,
}

#[derive(Clone, Debug)]
struct State {
    /// Workers that it has.
    size: u32,
    /// Most that it is to have, as asked for, and for now as those that died leave.
    most: u32,
    asked: u32,
    /// When it is to have as many as were asked for again, and how long that takes the next time.
    grows: Option<Instant>,
    steady: Duration,
    /// There is room for all workers.
    place: Place,
    /// Hosts of it that do not answer.
    lost: BTreeSet<String>,
    /// Why it is to end behind a step and to go on in another way.
    why: Option<String>,
    is_watched: bool,
}

impl<'a> Resizing<'a> {
    /// Of a job that was prepared with all its workers; none if their number is fixed.
    pub(crate) fn of(whole: &'a Prepared) -> Option<Resizing<'a>> {
        whole.config.fewest_workers?;
        Some(Resizing { whole, shared: Arc::new(Shared::of(whole.config.clone())) })
    }

    /// What the launcher asks, and is asked.
    pub(crate) fn control(&self) -> Arc<dyn JobControl> {
        self.shared.clone()
    }

    /// Has the job pause for what an earlier launcher of it was asked for, if there is room.
    pub(crate) fn goes_on_with(&self, wanted: &Resize) {
        self.shared.with(|state| {
            *state = State { why: Some(asked_for(wanted)), ..state.asked_for(wanted) };
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
        let hosts = self.shared.with(|state| state.place.hosts.clone());
        if host_answers(&hosts, &host, HOST_PATIENCE) {
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
        self.shared.watch();
        Some(format!("{failure}; {host} does not answer, and {} on without it", go(left)))
    }

    /// Takes the next smaller number of workers for a time, or as many, where none of them failed; returns why the job goes on. None
    /// if there is no smaller one.
    pub(crate) fn without(&self, failure: &JobFailure) -> Option<String> {
        if failure.first().is_none() {
            return Some(format!("{failure}; the job goes on"));
        }
        let left = self.shared.shrink(Instant::now())?;
        self.shared.watch();
        Some(format!("{failure}; {} on", go(left)))
    }

    /// The job as it goes on.
    ///
    /// # Errors
    /// When it cannot.
    pub(crate) fn resized(&self, supply: &dyn Supply) -> Result<Prepared, ConfigError> {
        let (size, place) = self.shared.with(|state| {
            // what was taken from it before leaves one
            let size = self.shared.fits(state).unwrap_or(state.size);
            state.size = size;
            state.why = None;
            let hosts = state.hosts_left().unwrap_or_default();
            (size, Place { hosts, ..state.place.clone() })
        });
        let supply = Same { supply, data: &self.whole.data };
        let config = self.whole.config.of_size(size, place);
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

/// Why it goes on so.
fn asked_for(wanted: &Resize) -> String {
    let go = go(wanted.workers);
    match &wanted.hosts {
        Some(hosts) => format!("asked for: {go} on, on {hosts}"),
        None => format!("asked for: {go} on"),
    }
}

/// `4 workers go`.
fn go(workers: u32) -> String {
    if workers == 1 { "1 worker goes".to_string() } else { format!("{workers} workers go") }
}

impl State {
    /// Hosts that answer, as far as is known; none: there are none.
    fn hosts_left(&self) -> Option<Hosts> {
        let lost: Vec<String> = self.lost.iter().cloned().collect();
        self.place.hosts.without(&lost)
    }

    /// The same, as is asked for. Of hosts that are named anew none is lost.
    fn asked_for(&self, wanted: &Resize) -> State {
        let workers = wanted.workers;
        let asked = State { most: workers, asked: workers, grows: None, ..self.clone() };
        match &wanted.hosts {
            Some(hosts) => {
                let listen = wanted.listen.or(self.place.listen);
                let place = Place { hosts: hosts.clone(), listen };
                State { place, lost: BTreeSet::new(), ..asked }
            }
            None => asked,
        }
    }
}

impl Shared {
    /// Of a job that begins with all its workers.
    fn of(config: TrainConfig) -> Shared {
        let (size, place) = (config.workers, config.place());
        let state = State {
            size,
            most: size,
            asked: size,
            grows: None,
            steady: STEADY,
            place,
            lost: BTreeSet::new(),
            why: None,
            is_watched: false,
        };
        let is_over = AtomicBool::new(false);
        Shared { sizes: config.sizes(), config, state: Mutex::new(state), is_over }
    }

    fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The largest number of workers that there may be, and is room for.
    fn fits(&self, state: &State) -> Option<u32> {
        let slots = state.hosts_left()?.slots();
        let (all, whole) = (u64::from(state.place.hosts.slots()), u64::from(*self.sizes.first()?));
        let room = |size: &&u32| u64::from(**size) * all <= whole * u64::from(slots);
        self.sizes.iter().filter(room).find(|size| **size <= state.most).copied()
    }

    /// Takes the next smaller number of workers, as one died `now`; returns how many there are. None if there is no smaller one.
    fn shrink(&self, now: Instant) -> Option<u32> {
        self.with(|state| {
            state.most = self.sizes.iter().copied().find(|size| *size < state.size)?;
            state.grows = Some(now + state.steady);
            state.steady = (2 * state.steady).min(STEADY_MAX);
            self.fits(state)
        })
    }

    /// Has as many workers as were asked for once none has died for long enough.
    fn grow(&self, now: Instant) {
        self.with(|state| {
            if state.grows.take_if(|at| *at <= now).is_none() {
                return;
            }
            state.most = state.asked;
            if let Some(size) = self.fits(state).filter(|size| *size > state.size) {
                state.why = Some(format!("nothing has died for a while: {} on", go(size)));
            }
        });
    }

    /// Has a thread look for the hosts that are lost, and for better times, if none does.
    fn watch(self: &Arc<Shared>) {
        if self.with(|state| std::mem::replace(&mut state.is_watched, true)) {
            return;
        }
        let shared = self.clone();
        let look = move || {
            let mut waited = Duration::ZERO;
            while !shared.is_over.load(Ordering::Relaxed) {
                std::thread::sleep(LOOKS);
                shared.grow(Instant::now());
                waited += LOOKS;
                if waited >= LOOKS_FOR_HOSTS {
                    waited = Duration::ZERO;
                    shared.find_hosts();
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("resizing".into()).spawn(look) {
            tracing::warn!("the job stays as small as it is: no thread ({error})");
        }
    }

    fn find_hosts(&self) {
        let (hosts, lost) = self.with(|state| (state.place.hosts.clone(), state.lost.clone()));
        for host in lost {
            if host_answers(&hosts, &host, HOST_PATIENCE) {
                self.with(|state| {
                    let was_lost = state.lost.remove(&host);
                    let fits = self.fits(state);
                    if let Some(size) = fits.filter(|size| was_lost && *size != state.size) {
                        state.why = Some(format!("{host} answers again: {} on", go(size)));
                    }
                });
            }
        }
    }
}

impl JobControl for Shared {
    fn scale(&self, wanted: &Resize) -> Result<String, String> {
        let workers = wanted.workers;
        if !self.sizes.contains(&workers) {
            let sizes: Vec<String> = self.sizes.iter().map(u32::to_string).collect();
            let sizes = sizes.join(", ");
            return Err(format!(
                "{workers} workers it cannot have, but as many as one of {sizes}, which share the work of all alike"
            ));
        }
        self.with(|state| {
            let next = state.asked_for(wanted);
            if wanted.hosts.is_some() {
                let config = self.config.of_size(workers, next.place.clone());
                config.check().map_err(|error| error.to_string())?;
            }
            let is_there =
                (next.size, &next.place) == (workers, &state.place) && state.why.is_none();
            match self.fits(&next) {
                Some(size) if size == workers && is_there => {
                    state.most = workers;
                    Ok(format!("it has {size} workers"))
                }
                Some(size) if size == workers => {
                    *state = State { why: Some(asked_for(wanted)), ..next };
                    let on = wanted.hosts.as_ref().map(|hosts| format!(", on {hosts}"));
                    let on = on.unwrap_or_default();
                    Ok(format!("{} on behind the present step{on}", go(size)))
                }
                _ => {
                    let lost: Vec<String> = next.lost.iter().cloned().collect();
                    Err(format!(
                        "there is no room for {workers} workers without {}",
                        lost.join(", ")
                    ))
                }
            }
        })
    }

    fn pauses_for(&self) -> Option<Resize> {
        self.with(|state| {
            state.why.as_ref()?;
            let workers = self.fits(state).unwrap_or(state.size);
            let Place { hosts, listen } = &state.place;
            // another launcher begins where this one did
            let hosts = (*hosts != self.config.hosts).then(|| hosts.clone());
            let listen = hosts.as_ref().and(*listen);
            Some(Resize { workers, hosts, listen })
        })
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
        Shared::of(config)
    }

    fn to(workers: u32) -> Resize {
        Resize { workers, hosts: None, listen: None }
    }

    fn on(workers: u32, hosts: &str) -> Resize {
        Resize { hosts: Some(hosts.parse().unwrap()), ..to(workers) }
    }

    #[test]
    fn sizes_are_parts_of_the_whole() {
        assert_eq!(shared(8, 2, "localhost").sizes, [8, 4, 2]);
        assert_eq!(shared(6, 1, "localhost").sizes, [6, 3, 2, 1]);
        assert_eq!(shared(7, 3, "localhost").sizes, [7]);
        let checkpoint = Some(CheckpointConfig::new("c"));
        let fixed = TrainConfig { workers: 8, checkpoint, ..config() };
        assert_eq!(fixed.sizes(), [8]);
        let half = fixed.of_size(4, fixed.place());
        assert_eq!((half.workers, half.accumulate), (4, 2));
    }

    #[test]
    fn fewer_hosts_have_room_for_fewer_workers() {
        let shared = shared(8, 2, "localhost,there,far:2");
        let fits = |lost: &[&str], most| {
            let lost = lost.iter().map(|name| name.to_string()).collect();
            shared.fits(&State { most, lost, ..shared.with(|state| state.clone()) })
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
        assert_eq!(shared.scale(&to(8)).unwrap(), "it has 8 workers");
        assert!(shared.scale(&to(3)).unwrap_err().contains("one of 8, 4, 2"));
        assert_eq!(shared.scale(&to(2)).unwrap(), "2 workers go on behind the present step");
        assert_eq!(shared.pauses_for(), Some(to(2)));
        assert_eq!(shared.scale(&to(8)).unwrap(), "8 workers go on behind the present step");
        shared.with(|state| state.lost.insert("there".into()));
        assert!(shared.scale(&to(8)).unwrap_err().ends_with("without there"));
        assert_eq!(shared.pauses_for(), Some(to(4)), "as before, where there is room");
    }

    #[test]
    fn where_workers_died_as_many_as_were_asked_for_are_tried_again_ever_later() {
        let shared = shared(8, 2, "localhost");
        let begun = Instant::now();
        assert_eq!(shared.shrink(begun), Some(4));
        let resized = |size| shared.with(|state| (state.size = size, state.why.take()).1);
        assert_eq!(resized(4), None);
        shared.grow(begun + STEADY - LOOKS);
        assert_eq!(resized(4), None);
        shared.grow(begun + STEADY);
        assert_eq!(shared.pauses_for(), Some(to(8)));
        assert_eq!(resized(8).unwrap(), "nothing has died for a while: 8 workers go on");
        // it is tried once; then twice as long passes, up to a bound
        shared.grow(begun + 2 * STEADY);
        assert_eq!(resized(8), None);
        assert_eq!(
            (shared.shrink(begun), resized(4), shared.shrink(begun)),
            (Some(4), None, Some(2))
        );
        shared.with(|state| assert_eq!(state.grows, Some(begun + 4 * STEADY)));
        (0..9).for_each(|_| {
            shared.shrink(begun);
        });
        shared.with(|state| assert_eq!(state.steady, STEADY_MAX));
        // who asks for a number has that one
        shared.scale(&to(2)).unwrap();
        shared.grow(begun + 9 * STEADY_MAX);
        assert_eq!(shared.pauses_for(), Some(to(2)));
    }

    #[test]
    fn other_hosts_may_take_the_place_of_those_that_it_has() {
        let shared = shared(8, 2, "localhost,there");
        shared.with(|state| state.lost.insert("there".into()));
        let moved = on(8, "localhost,new:3");
        let said = shared.scale(&moved).unwrap();
        assert_eq!(said, "8 workers go on behind the present step, on localhost,new:3");
        assert_eq!(shared.pauses_for(), Some(moved.clone()));
        let state = shared.with(|state| state.clone());
        assert_eq!(state.why.as_deref(), Some("asked for: 8 workers go on, on localhost,new:3"));
        // what was lost is none of them
        assert!(state.lost.is_empty() && shared.fits(&state) == Some(8));
        // of the new ones, each has its part
        shared.with(|state| state.lost.insert("new".into()));
        assert_eq!(shared.with(|state| shared.fits(state)), Some(2));
        // it is there, and a number alone leaves them
        shared.with(|state| (state.lost.clear(), state.why.take()));
        assert_eq!(shared.scale(&moved).unwrap(), "it has 8 workers");
        shared.scale(&to(4)).unwrap();
        assert_eq!(shared.pauses_for(), Some(on(4, "localhost,new:3")));
        // the launcher listens where it did, or where it is said to
        let at: SocketAddr = "127.0.0.1:7000".parse().unwrap();
        shared.scale(&Resize { listen: Some(at), ..on(8, "else") }).unwrap();
        shared.scale(&on(8, "localhost,else")).unwrap();
        assert_eq!(shared.pauses_for().unwrap().listen, Some(at));
    }
}
