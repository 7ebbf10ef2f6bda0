//! What is asked of a job whose number of workers may change, what happens to it, and what follows from both.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tensorwire_base::number_of;
use tensorwire_launch::{Hosts, JobControl, Resize, Scaled, host_answers};

use crate::awaiting::{HOST_PATIENCE, LOOKS_FOR_HOSTS};
use crate::config::TrainConfig;

/// How long a job has fewer workers after one died, and at most, where they die again and again.
const STEADY: Duration = Duration::from_secs(10 * 60);
const STEADY_MAX: Duration = Duration::from_secs(2 * 60 * 60);
/// How often the thread that looks for hosts and for better times looks whether it is to end.
const LOOKS: Duration = Duration::from_millis(200);

/// Where the processes of a job run, and where they find its launcher.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) hosts: Hosts,
    pub(super) listen: Option<SocketAddr>,
}

/// What the launcher, whoever asks and the thread that looks for hosts know alike.
#[derive(Debug)]
pub(super) struct Shared {
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
    /// Most that it is to have for now: as many as were asked for, or fewer since some died.
    most: u32,
    /// As many as were asked for.
    asked: u32,
    /// As many as were asked for before that, until it is launched so.
    asked_before: Option<u32>,
    /// When as many as were asked for are tried again, and how long that takes the next time.
    grows: Option<Instant>,
    steady: Duration,
    /// Where it runs: there is room for all workers.
    place: Place,
    /// Hosts of it that do not answer.
    lost: BTreeSet<String>,
    /// Hosts of it on which it was launched.
    used: Hosts,
    /// Where it is to go.
    moves: Option<Place>,
    /// What it was, until a step is made elsewhere, or with more workers.
    before: Option<Before>,
    /// Why it is to end behind a step and to go on in another way.
    why: Option<String>,
    is_watched: bool,
}

/// What a job was.
#[derive(Clone, Debug)]
struct Before {
    place: Place,
    lost: BTreeSet<String>,
    size: u32,
    asked: u32,
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
pub(super) fn go(workers: u32) -> String {
    if workers == 1 { "1 worker goes".to_string() } else { format!("{workers} workers go") }
}

impl State {
    /// Hosts that answer, as far as is known; none: there are none.
    fn hosts_left(&self) -> Option<Hosts> {
        let lost: Vec<String> = self.lost.iter().cloned().collect();
        self.place.hosts.without(&lost)
    }

    /// As many as were asked for are tried again in a while, and in twice as long the next time.
    fn grows_later(&mut self, now: Instant) {
        self.grows = Some(now + self.steady);
        self.steady = (2 * self.steady).min(STEADY_MAX);
    }

    /// The same, as is asked for.
    fn asked_for(&self, wanted: &Resize) -> State {
        let workers = wanted.workers;
        let moves = match &wanted.hosts {
            Some(hosts) => {
                let listen = wanted.listen.or(self.place.listen);
                let place = Place { hosts: hosts.clone(), listen };
                // it may run on some of them alone
                let is_there = place == self.place && self.used == place.hosts;
                (!is_there).then_some(place)
            }
            None => self.moves.clone(),
        };
        let asked_before = self.asked_before.or(Some(self.asked));
        let asked = State { asked_before, grows: None, moves, ..self.clone() };
        State { most: workers, asked: workers, ..asked }
    }
}

impl Shared {
    /// Of a job that begins with all its workers.
    pub(super) fn of(config: TrainConfig) -> Shared {
        let (size, place) = (config.workers, config.place());
        let state = State {
            size,
            most: size,
            asked: size,
            asked_before: None,
            grows: None,
            steady: STEADY,
            used: place.hosts.clone(),
            place,
            lost: BTreeSet::new(),
            moves: None,
            before: None,
            why: None,
            is_watched: false,
        };
        let is_over = AtomicBool::new(false);
        Shared { sizes: config.sizes(), config, state: Mutex::new(state), is_over }
    }

    /// Nobody looks for anything any more.
    pub(super) fn is_over(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The largest number of workers that there may be, and is room for.
    fn fits(&self, state: &State) -> Option<u32> {
        let (all, left) = match &state.moves {
            // none of them is lost
            Some(place) => (place.hosts.slots(), place.hosts.slots()),
            None => (state.place.hosts.slots(), state.hosts_left()?.slots()),
        };
        let (all, left, whole) = (u64::from(all), u64::from(left), u64::from(*self.sizes.first()?));
        let room = |size: &&u32| u64::from(**size) * all <= whole * left;
        self.sizes.iter().filter(room).find(|size| **size <= state.most).copied()
    }

    /// The job runs so, as an earlier launcher left it: what it has counts as asked for, unless that was asked for something else.
    /// True if it has lost hosts.
    pub(super) fn runs_as(&self, config: &TrainConfig) -> bool {
        let (began, left) = (self.config.place(), config.hosts.others());
        let others = self.config.hosts.others().into_iter();
        let lost: Vec<String> =
            others.filter(|name| !left.contains(name)).map(str::to_string).collect();
        // who has more workers than those hosts have room for was asked to go there
        let has_room = u64::from(config.workers) * u64::from(began.hosts.slots())
            <= u64::from(self.config.workers) * u64::from(config.hosts.slots());
        let is_left = began.hosts.without(&lost).as_ref() == Some(&config.hosts)
            && config.listen == began.listen
            && has_room;
        self.with(|state| {
            (state.size, state.used) = (config.workers, config.hosts.clone());
            (state.place, state.lost) = match is_left {
                true => (began, lost.into_iter().collect()),
                false => (config.place(), BTreeSet::new()),
            };
            if state.why.is_none() {
                (state.most, state.asked) = (state.size, state.size);
            }
            let is_there = state.moves.as_ref().is_none_or(|place| *place == state.place);
            if is_there && self.fits(state) == Some(state.size) {
                (state.why, state.moves, state.asked_before) = (None, None, None);
            }
            !state.lost.is_empty()
        })
    }

    /// Has the job pause for what an earlier launcher of it was asked for.
    pub(super) fn goes_on_with(&self, wanted: &Resize) {
        self.with(|state| {
            *state = State { why: Some(asked_for(wanted)), ..state.asked_for(wanted) };
        });
    }

    /// Why the job has ended behind a step, if it is to go on in another way.
    pub(super) fn paused(&self) -> Option<String> {
        self.with(|state| state.why.take())
    }

    /// The job is launched: with so many workers, there.
    pub(super) fn launched(&self) -> (u32, Place) {
        self.with(|state| {
            // what was taken from it before leaves one
            let size = self.fits(state).unwrap_or(state.size);
            let was = std::mem::replace(&mut state.size, size);
            state.why = None;
            let asked = state.asked_before.take().unwrap_or(state.asked);
            let (place, lost) = (state.place.clone(), state.lost.clone());
            let before = Before { place, lost, size: was, asked };
            let moves = state.moves.take();
            // fewer workers in the same place have what they need
            if moves.is_some() || size > was {
                state.before.get_or_insert(before);
            }
            if let Some(place) = moves {
                (state.place, state.lost) = (place, BTreeSet::new());
            }
            state.used = state.hosts_left().unwrap_or_default();
            (size, Place { hosts: state.used.clone(), ..state.place.clone() })
        })
    }

    /// A step was made as it was launched.
    pub(super) fn made_a_step(&self) {
        self.with(|state| state.before = None);
    }

    /// Notes that a host does not answer any more, if there is room without it; returns how many workers there are then. None: it can
    /// only go on with it.
    pub(super) fn lost(&self, host: &str) -> Option<u32> {
        self.with(|state| {
            state.lost.insert(host.to_string());
            let left = self.fits(state);
            if left.is_none() {
                state.lost.remove(host);
            }
            left
        })
    }

    /// Has the job go back to what it was, if no step was made since; returns why. What was asked for meanwhile is done.
    pub(super) fn goes_back(&self, error: &dyn Display) -> Option<String> {
        self.with(|state| {
            let Before { place, lost, size, asked } = state.before.take()?;
            (state.size, state.place, state.lost) = (size, place, lost);
            if let Some(why) = state.why.take() {
                return Some(format!("{error}; {why}"));
            }
            (state.most, state.asked) = (size, asked);
            if size < asked {
                state.grows_later(Instant::now());
            }
            Some(format!("{error}; {} on as before", go(size)))
        })
    }

    /// Takes the next smaller number of workers, as one died `now`; returns how many there are. None if there is no smaller one.
    pub(super) fn shrink(&self, now: Instant) -> Option<u32> {
        self.with(|state| {
            state.most = self.sizes.iter().copied().find(|size| *size < state.size)?;
            state.grows_later(now);
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
                let why = || format!("nothing has died for a while: {} on", go(size));
                state.why.get_or_insert_with(why);
            }
        });
    }

    /// Has a thread look for the hosts that are lost, and for better times, if none does.
    pub(super) fn watch(self: &Arc<Shared>) {
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
            let is_over = || self.is_over.load(Ordering::Relaxed);
            if host_answers(&hosts, &host, HOST_PATIENCE, is_over) {
                self.with(|state| {
                    let was_lost = state.lost.remove(&host);
                    let fits = self.fits(state);
                    if let Some(size) = fits.filter(|size| was_lost && *size != state.size) {
                        let why = || format!("{host} answers again: {} on", go(size));
                        state.why.get_or_insert_with(why);
                    }
                });
            }
        }
    }
}

impl JobControl for Shared {
    fn scale(&self, wanted: &Resize) -> Result<Scaled, String> {
        let workers = wanted.workers;
        if !self.sizes.contains(&workers) {
            let sizes: Vec<String> = self.sizes.iter().map(u32::to_string).collect();
            let sizes = sizes.join(", ");
            return Err(format!(
                "it cannot have {workers} workers; give one of {sizes}, so that each worker makes as many of a step's batches"
            ));
        }
        self.with(|state| {
            let next = state.asked_for(wanted);
            let place = next.moves.as_ref().unwrap_or(&next.place);
            let config = self.config.of_size(workers, place.clone());
            config.check().map_err(|error| error.to_string())?;
            let is_there = workers == state.size && next.moves.is_none() && state.why.is_none();
            match self.fits(&next) {
                Some(size) if size == workers && is_there => {
                    *state = State { asked_before: None, ..next };
                    Ok(Scaled { said: format!("it has {}", number_of(size as usize, "worker")), changes: false })
                }
                Some(size) if size == workers => {
                    *state = State { why: Some(asked_for(wanted)), ..next };
                    let on = wanted.hosts.as_ref().map(|hosts| format!(", on {hosts}"));
                    let on = on.unwrap_or_default();
                    let said = format!("{} on behind the present step{on}", go(size));
                    Ok(Scaled { said, changes: true })
                }
                _ => {
                    let lost: Vec<String> = next.lost.iter().cloned().collect();
                    let lost = lost.join(", ");
                    Err(match next.hosts_left() {
                        Some(left) => format!(
                            "there is no room for {workers} workers without {lost}, which does not answer; if what is left has room, say so: \
                             --hosts {left}"
                        ),
                        None => format!("{lost} does not answer, and there is no other host"),
                    })
                }
            }
        })
    }

    fn pauses_for(&self) -> Option<Resize> {
        self.with(|state| {
            state.why.as_ref()?;
            let workers = self.fits(state).unwrap_or(state.size);
            let place = state.moves.as_ref().unwrap_or(&state.place);
            // another launcher begins where this one did, or where its members are
            let began = self.config.place();
            let is_other = *place != began || state.place != began;
            let hosts = is_other.then(|| place.hosts.clone());
            Some(Resize { workers, hosts, listen: place.listen.filter(|_| is_other) })
        })
    }
}

#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;
