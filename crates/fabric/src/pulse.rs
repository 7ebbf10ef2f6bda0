//! Signs of life of the threads without which a process stands still. A watched thread beats at least every [`BEAT`], also
//! when there is nothing to do. One that neither beats nor uses a processor is stopped: it waits for a lock that nobody gives
//! back, for a disk, or a debugger holds it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorwire_base::Deadline;

/// A watched thread waits no longer than this at a time.
pub const BEAT: Duration = Duration::from_millis(250);

/// Silence after which a look at what the thread uses begins.
const SUSPICIOUS: Duration = Duration::from_millis(600);

/// Ticks of the system's clock that a thread uses and that mean that it runs.
const TICKS_ALIVE: u64 = 2;

static LIVES: Mutex<Vec<Weak<Life>>> = Mutex::new(Vec::new());

thread_local! {
    static HERE: RefCell<Option<Arc<Life>>> = const { RefCell::new(None) };
}

#[derive(Debug)]
struct Life {
    name: String,
    thread: i32,
    /// It computes nothing itself that others wait for: what it uses of a processor is its own.
    serves: bool,
    beats: AtomicU64,
    is_resting: AtomicBool,
}

/// A thread is watched until this is dropped, in that thread.
#[derive(Debug)]
pub struct WatchedThread(PhantomData<*const ()>);

/// Watches this thread, which serves the others of its process in a loop.
pub fn watch_service(name: impl Into<String>) -> WatchedThread {
    watch(name.into(), true)
}

/// Watches this thread, which does the process's work, wherever it says that it is [`awake`]. The threads that nobody
/// watches may work for it.
pub fn watch_worker(name: impl Into<String>) -> WatchedThread {
    watch(name.into(), false)
}

fn watch(name: String, serves: bool) -> WatchedThread {
    let life = Arc::new(Life {
        name,
        thread: rustix::thread::gettid().as_raw_nonzero().get(),
        serves,
        beats: AtomicU64::new(0),
        is_resting: AtomicBool::new(!serves),
    });
    let mut lives = LIVES.lock();
    lives.retain(|life| life.strong_count() > 0);
    lives.push(Arc::downgrade(&life));
    HERE.set(Some(life));
    WatchedThread(PhantomData)
}

impl Drop for WatchedThread {
    fn drop(&mut self) {
        let _ = HERE.try_with(|here| here.take());
    }
}

/// Says that this thread runs, if it is watched.
pub fn beat() {
    let _ = HERE.try_with(|here| {
        if let Some(life) = &*here.borrow() {
            let beats = life.beats.load(Ordering::Relaxed);
            life.beats.store(beats.wrapping_add(1), Ordering::Relaxed);
        }
    });
}

/// Until it is dropped, a thread is watched, or is not. Then it is as before.
#[derive(Debug)]
pub struct Mood {
    life: Option<Arc<Life>>,
    was_resting: bool,
    here: PhantomData<*const ()>,
}

/// This thread beats from now on.
pub fn awake() -> Mood {
    Mood::set(false)
}

/// This thread does something that may take any time, and need not beat: it waits for a disk, or runs a user's code.
pub fn resting() -> Mood {
    Mood::set(true)
}

/// Returns what `doing` does, which may take any time.
pub fn rest<T>(doing: impl FnOnce() -> T) -> T {
    let _resting = resting();
    doing()
}

/// Receives from a channel until the deadline, and beats meanwhile.
///
/// # Errors
/// As of the last time that `receive` was called, with the longest that it may take.
pub fn in_beats<T>(
    deadline: Deadline,
    mut receive: impl FnMut(Duration) -> Result<T, RecvTimeoutError>,
) -> Result<T, RecvTimeoutError> {
    loop {
        beat();
        match receive(deadline.remaining().min(BEAT)) {
            Err(RecvTimeoutError::Timeout) if !deadline.passed() => {}
            received => return received,
        }
    }
}

impl Mood {
    fn set(is_resting: bool) -> Mood {
        beat();
        let life = HERE.try_with(|here| here.borrow().clone()).ok().flatten();
        let was_resting =
            life.as_ref().is_some_and(|life| life.is_resting.swap(is_resting, Ordering::Relaxed));
        Mood { life, was_resting, here: PhantomData }
    }
}

impl Drop for Mood {
    fn drop(&mut self) {
        beat();
        if let Some(life) = &self.life {
            life.is_resting.store(self.was_resting, Ordering::Relaxed);
        }
    }
}

/// A thread that does not beat: it is stopped, computes, or turns in a loop for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silent {
    pub thread: String,
    /// Since it last beat; of one that is stopped, since it was last seen to run.
    pub silent: Duration,
}

/// Looks at all watched threads of this process, again and again.
#[derive(Debug)]
pub struct Lookout {
    patience: Duration,
    last_look: Instant,
    /// By address of the life, which is kept here so that no other comes to lie there.
    seen: HashMap<usize, Seen>,
}

#[derive(Debug)]
struct Seen {
    life: Weak<Life>,
    beats: u64,
    /// Since its last beat or rest, however it runs.
    beaten: Instant,
    /// Since then, or since it was last seen to run.
    since: Instant,
    /// What it had used when it became suspicious.
    used: Option<u64>,
}

impl Lookout {
    /// A thread is stopped when it is silent for `patience`.
    pub fn new(patience: Duration) -> Lookout {
        Lookout { patience, last_look: Instant::now(), seen: HashMap::new() }
    }

    /// Returns the threads that are stopped, but no worker while a service is silent, too. To be called several times within the
    /// patience.
    pub fn look(&mut self) -> Vec<Silent> {
        let now = Instant::now();
        let gap = now.duration_since(self.last_look);
        self.last_look = now;
        if gap >= self.patience / 2 {
            // the watching thread did not run itself: silence meant nothing
            self.seen.clear();
        }
        let lives: Vec<Arc<Life>> = LIVES.lock().iter().filter_map(Weak::upgrade).collect();
        self.seen.retain(|_, seen| seen.life.strong_count() > 0);
        let services: Vec<i32> =
            lives.iter().filter(|life| life.serves).map(|life| life.thread).collect();
        let mut judged: Vec<(bool, Silent)> = Vec::new();
        for life in &lives {
            judged.extend(self.judge(life, &services, now).map(|stopped| (life.serves, stopped)));
        }
        // that may hold what the worker waits for, whether it runs or not, and is named once the patience is over for it
        if self.silences().any(|(serves, _)| serves) {
            judged.retain(|(serves, _)| *serves);
        }
        judged.into_iter().map(|(_, stopped)| stopped).collect()
    }

    /// Returns the thread that was silent for the longest at the last look, whether or not it runs; no worker while a service
    /// is silent, too.
    pub fn silent(&self) -> Option<Silent> {
        let longest = self.silences().max_by_key(|(serves, silent)| (*serves, silent.silent));
        longest.map(|(_, silent)| silent)
    }

    /// Returns the thread that was silent for the longest at the last look beside this one, whether or not it runs.
    pub fn silent_beside(&self, thread: &str) -> Option<Silent> {
        let others =
            self.silences().map(|(_, silent)| silent).filter(|other| other.thread != thread);
        others.max_by_key(|other| other.silent)
    }

    /// The threads that were silent at the last look, and whether they serve.
    fn silences(&self) -> impl Iterator<Item = (bool, Silent)> {
        self.seen.values().filter_map(|seen| {
            let (life, silent) =
                (seen.life.upgrade()?, self.last_look.saturating_duration_since(seen.beaten));
            let named = || (life.serves, Silent { thread: life.name.clone(), silent });
            (silent >= SUSPICIOUS).then(named)
        })
    }

    fn judge(&mut self, life: &Arc<Life>, services: &[i32], now: Instant) -> Option<Silent> {
        let key = Arc::as_ptr(life) as usize;
        let beats = life.beats.load(Ordering::Relaxed);
        let since =
            |beaten| Seen { life: Arc::downgrade(life), beats, beaten, since: now, used: None };
        let seen = self.seen.entry(key).or_insert_with(|| since(now));
        if seen.beats != beats || life.is_resting.load(Ordering::Relaxed) {
            *seen = since(now);
            return None;
        }
        let silent = now.duration_since(seen.since);
        if silent < SUSPICIOUS {
            return None;
        }
        let used = match life.serves {
            true => ticks(life.thread),
            false => ticks_of_others(services),
        };
        // where the system does not say, nothing is known
        let Some(used) = used else {
            *seen = since(seen.beaten);
            return None;
        };
        // a thread that ended takes what it used with it
        let before = seen.used.get_or_insert(used);
        *before = used.min(*before);
        if used >= *before + TICKS_ALIVE {
            *seen = since(seen.beaten);
            return None;
        }
        (silent >= self.patience).then(|| Silent { thread: life.name.clone(), silent })
    }
}

/// What a thread of this process has used of the processors, in ticks; of one that waits for a processor, more than any that
/// is stopped.
fn ticks(thread: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    // behind the name, which may hold anything: state is the first, user and system time the 12th and 13th
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let runs = fields.next()? == "R";
    let mut fields = fields.skip(10);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()? + if runs { TICKS_ALIVE } else { 0 })
}

/// What all threads but these have used.
fn ticks_of_others(services: &[i32]) -> Option<u64> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    let threads = threads.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // one may end meanwhile
    Some(threads.filter(|thread| !services.contains(thread)).filter_map(ticks).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const PATIENCE: Duration = Duration::from_secs(3);

    /// Looks as a process does, for twice the patience or until one of these threads is stopped; other tests' are not looked at.
    fn stopped(names: &[&str]) -> Option<Silent> {
        let mut lookout = Lookout::new(PATIENCE);
        let until = Instant::now() + PATIENCE * 2;
        while Instant::now() < until {
            let mut stopped = lookout.look();
            stopped.retain(|stopped| names.contains(&stopped.thread.as_str()));
            if let Some(stopped) = stopped.pop() {
                return Some(stopped);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        None
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no /proc")]
    fn a_thread_that_waits_for_ever_is_stopped() {
        let (hold, held) = channel::<()>();
        let waiting = std::thread::spawn(move || {
            let _watched = watch_service("waits");
            beat();
            let _ = held.recv();
        });
        assert!(stopped(&["waits"]).unwrap().silent >= PATIENCE);
        drop(hold);
        waiting.join().unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no /proc")]
    fn one_that_beats_computes_rests_or_has_ended_is_not() {
        let end = Arc::new(AtomicBool::new(false));
        let run = |name: &'static str, turn: fn()| {
            let end = end.clone();
            std::thread::spawn(move || {
                let _watched = watch_service(name);
                while !end.load(Ordering::Relaxed) {
                    turn();
                }
            })
        };
        let beats = run("beats", || {
            beat();
            std::thread::sleep(BEAT);
        });
        let computes = run("computes", std::hint::spin_loop);
        let rests = run("rests", || {
            let _resting = resting();
            std::thread::sleep(PATIENCE * 2);
        });
        std::thread::spawn(|| drop(watch_service("ended"))).join().unwrap();
        assert_eq!(stopped(&["beats", "computes", "rests", "ended"]), None);
        end.store(true, Ordering::Relaxed);
        for thread in [beats, computes, rests] {
            thread.join().unwrap();
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no /proc")]
    fn one_that_turns_in_a_loop_is_not_stopped_and_is_silent() {
        let end = Arc::new(AtomicBool::new(false));
        let spins = {
            let end = end.clone();
            std::thread::spawn(move || {
                let _watched = watch_service("spins");
                while !end.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let mut lookout = Lookout::new(PATIENCE);
        let of_spins = |lookout: &Lookout| {
            let mut all = lookout.silences().map(|(_, silent)| silent);
            all.find(|silent| silent.thread == "spins").map(|silent| silent.silent)
        };
        let until = Instant::now() + PATIENCE * 20;
        while of_spins(&lookout).is_none_or(|silent| silent < PATIENCE) {
            assert!(Instant::now() < until, "{lookout:?}");
            let stopped = lookout.look();
            assert!(stopped.iter().all(|stopped| stopped.thread != "spins"), "{stopped:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(lookout.silent().unwrap().silent >= PATIENCE);
        end.store(true, Ordering::Relaxed);
        spins.join().unwrap();
    }

    /// It may hold the lock that the worker waits for.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no /proc")]
    fn a_service_that_turns_in_a_loop_is_named_and_not_who_waits_for_it() {
        let now = Instant::now() - PATIENCE * 2;
        let life = |name: &str, serves| {
            let life = Life {
                name: name.to_string(),
                // of no thread: it has used nothing
                thread: i32::MAX,
                serves,
                beats: AtomicU64::new(0),
                is_resting: AtomicBool::new(false),
            };
            Arc::new(life)
        };
        let (turns, waits) = (life("turns", true), life("waits", false));
        let mut lookout = Lookout::new(PATIENCE);
        for (life, beaten) in [(&turns, now), (&waits, now - PATIENCE)] {
            let seen =
                Seen { life: Arc::downgrade(life), beats: 0, beaten, since: now, used: None };
            lookout.seen.insert(Arc::as_ptr(life) as usize, seen);
        }
        assert_eq!(lookout.silent().unwrap().thread, "turns");
        drop(turns);
        assert_eq!(lookout.silent().unwrap().thread, "waits");
    }

    #[test]
    fn a_worker_rests_until_it_is_awake_and_then_as_before() {
        let watched = watch_worker("works");
        let is_resting = || {
            let life = HERE.with(|here| here.borrow().clone());
            life.map(|life| life.is_resting.load(Ordering::Relaxed))
        };
        assert_eq!(is_resting(), Some(true));
        {
            let _awake = awake();
            assert_eq!(is_resting(), Some(false));
            let _resting = resting();
            assert_eq!(is_resting(), Some(true));
        }
        assert_eq!(is_resting(), Some(true));
        drop(watched);
        assert_eq!(is_resting(), None);
        beat();
    }
}
