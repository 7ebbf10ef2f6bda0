//! Where a member stands. A thread of its own looks at that all the time, tells the launcher, and ends a process that stands
//! still.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tensorwire_base::Rank;
use tensorwire_fabric::pulse::Lookout;

/// Least silence of a thread that means anything: a busy machine may give it no processor for a moment.
const STOPPED_MIN: Duration = Duration::from_secs(2);
/// Who does nothing for so long is said to stand still.
const STILL: Duration = Duration::from_secs(1);

/// What helps where it is no mistake.
const RAISE: &str = "if that may take so long, raise the step deadline (--step-deadline)";

/// Between two looks of a process that runs there is less.
const NOT_LOOKED: Duration = Duration::from_secs(5);
/// Who stands still for so long in a step is worth a line.
pub const WORTH_A_LINE: Duration = Duration::from_secs(10);
/// As long before the first step, when data are read and memory is taken.
pub(crate) const WORTH_A_LINE_BEFORE: Duration = Duration::from_secs(30);

/// When to say once more that something stands still: each time is as long after the one before as that was after the
/// beginning.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reminder {
    said: Option<Duration>,
}

impl Reminder {
    /// Returns true if it is to be said now, of what has stood still for so long.
    pub fn is_due(&mut self, silent: Duration) -> bool {
        let is_due = self.said.is_none_or(|said| silent >= said * 2);
        if is_due {
            self.said = Some(silent);
        }
        is_due
    }
}

/// What a process does at the moment, as one of its own threads sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stand {
    /// In words: `computes 'conv2'`.
    pub what: String,
    /// It waits for other members of its job.
    pub waits: bool,
    /// Longest it may stand there; none: for any time.
    pub patience: Option<Duration>,
}

/// Who knows where a process stands.
pub trait Whereabouts: std::fmt::Debug + Send + Sync {
    /// Returns a number that is another one once something was done.
    fn turns(&self) -> u64;
    /// Returns what the process does at the moment.
    fn stand(&self) -> Stand;
    /// Returns how long one of its threads that are watched may run and give no sign of progress; none: for any time.
    fn thread_patience(&self) -> Option<Duration> {
        None
    }
}

/// A process that has not moved for some time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Still {
    /// In words: `computes 'conv2'`.
    pub what: String,
    /// It waits for other members of its job.
    pub waits: bool,
    pub for_ms: u64,
}

impl Still {
    pub fn silent(&self) -> Duration {
        Duration::from_millis(self.for_ms)
    }
}

impl std::fmt::Display for Still {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} for {:.1} s", self.what, self.silent().as_secs_f64())
    }
}

/// A member that has not moved for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StillMember {
    pub rank: Rank,
    pub role: String,
    pub still: Still,
}

impl std::fmt::Display for StillMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (rank {}) {}", self.role, self.rank, self.still)
    }
}

/// Returns what there is to say of members that hold up a job, in one line.
pub fn nothing_moves(members: &[StillMember]) -> String {
    let members: Vec<String> = members.iter().map(StillMember::to_string).collect();
    format!("nothing moves: {}", members.join("; "))
}

/// What a look at this process finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Movement {
    Moves,
    StandsStill(Still),
    /// It will not move again, for this reason: it is to end.
    Stopped(String),
}

impl std::fmt::Display for Movement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Movement::Moves => write!(f, "the process moves"),
            Movement::StandsStill(still) => write!(f, "nothing moves: the process {still}"),
            Movement::Stopped(why) => write!(f, "the process stands still for good: {why}"),
        }
    }
}

/// Looks at this process.
#[derive(Debug)]
pub struct StandWatch {
    whereabouts: Arc<dyn Whereabouts>,
    lookout: Lookout,
    turns: u64,
    since: Instant,
    looked: Instant,
}

impl StandWatch {
    /// A thread that neither does anything nor uses a processor is stopped after `patience`.
    pub fn new(whereabouts: Arc<dyn Whereabouts>, patience: Duration) -> StandWatch {
        let lookout = Lookout::new(patience.max(STOPPED_MIN));
        let turns = whereabouts.turns();
        let now = Instant::now();
        StandWatch { whereabouts, lookout, turns, since: now, looked: now }
    }

    /// Looks once; to be called several times in the patience.
    pub fn look(&mut self) -> Movement {
        let turns = self.whereabouts.turns();
        let gap = std::mem::replace(&mut self.looked, Instant::now()).elapsed();
        // if nobody looked for so long the whole process was stopped
        if turns != self.turns || gap >= NOT_LOOKED {
            (self.turns, self.since) = (turns, Instant::now());
        }
        let silent = self.since.elapsed();
        let stand = self.whereabouts.stand();
        if let Some(stopped) = self.lookout.look().first() {
            // that may hold what the stopped one waits for
            let besides = self.lookout.silent_beside(&stopped.thread).map(|other| {
                let (thread, silent) = (other.thread, other.silent.as_secs_f64());
                format!("; its thread '{thread}' has made no progress for {silent:.1} s")
            });
            return Movement::Stopped(format!(
                "its thread '{}' stands still: it has done nothing and used no processor for {:.1} s; the process {}{}",
                stopped.thread,
                stopped.silent.as_secs_f64(),
                stand.what,
                besides.unwrap_or_default()
            ));
        }
        // whatever waits beats, and so does what computes between two operators
        let turning = self.lookout.silent().filter(|thread| thread.silent >= STOPPED_MIN);
        if let Some(patience) =
            stand.patience.filter(|patience| !stand.waits && silent >= *patience)
        {
            // who stands may need what another thread holds
            let besides = turning.filter(|turning| turning.thread != "main").map(|turning| {
                let (thread, silent) = (turning.thread, turning.silent.as_secs_f64());
                format!("; its thread '{thread}' has made no progress for {silent:.0} s")
            });
            return Movement::Stopped(format!(
                "it {} for {} s, and does nothing else{}; {RAISE}",
                stand.what,
                patience.as_secs(),
                besides.unwrap_or_default()
            ));
        }
        if let (Some(turning), Some(patience)) = (&turning, self.whereabouts.thread_patience())
            && turning.silent >= patience.max(STOPPED_MIN)
        {
            return Movement::Stopped(format!(
                "its thread '{}' has made no progress for {:.0} s; the process {}; {RAISE}",
                turning.thread,
                turning.silent.as_secs_f64(),
                stand.what
            ));
        }
        // what computes is silent, and said already
        let (what, waits, silent) = match turning.filter(|_| stand.waits || silent < STILL) {
            Some(turning) => {
                let what = format!(
                    "{}, and its thread '{}' makes no progress",
                    stand.what, turning.thread
                );
                (what, false, turning.silent)
            }
            None if silent < STILL => return Movement::Moves,
            None => (stand.what, stand.waits, silent),
        };
        // fits: a process does not live so long
        let for_ms = silent.as_millis() as u64;
        Movement::StandsStill(Still { what, waits, for_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use tensorwire_fabric::pulse;

    #[derive(Debug)]
    struct Place {
        turns: AtomicU64,
        waits: bool,
        patience: Option<Duration>,
        of_threads: Option<Duration>,
    }

    impl Whereabouts for Place {
        fn turns(&self) -> u64 {
            self.turns.load(Ordering::Relaxed)
        }

        fn stand(&self) -> Stand {
            Stand { what: "computes 'x'".into(), waits: self.waits, patience: self.patience }
        }

        fn thread_patience(&self) -> Option<Duration> {
            self.of_threads
        }
    }

    fn watch(waits: bool, patience: Option<u64>) -> (Arc<Place>, StandWatch) {
        let patience = patience.map(Duration::from_millis);
        let of_threads = None;
        let place = Arc::new(Place { turns: AtomicU64::new(0), waits, patience, of_threads });
        let watch = StandWatch::new(place.clone(), Duration::from_secs(60));
        (place, watch)
    }

    /// Has it be so long ago that it did something, and a moment ago that somebody looked.
    fn stands_for(watch: &mut StandWatch, silent: Duration) {
        let now = Instant::now();
        (watch.since, watch.looked) = (now - silent, now);
    }

    #[test]
    fn who_does_nothing_stands_still_until_it_moves() {
        let (place, mut watch) = watch(true, Some(1));
        // however late this thread looks
        watch.since = Instant::now() + Duration::from_secs(3600);
        assert_eq!(watch.look(), Movement::Moves);
        stands_for(&mut watch, STILL);
        let Movement::StandsStill(still) = watch.look() else { panic!("it stands still") };
        assert!(still.waits && still.silent() >= STILL);
        assert!(still.to_string().starts_with("computes 'x' for "), "{still}");
        place.turns.fetch_add(1, Ordering::Relaxed);
        assert_eq!(watch.look(), Movement::Moves);
    }

    #[test]
    fn who_waits_for_nobody_and_stands_for_too_long_is_stopped() {
        let (_, mut patient) = watch(false, None);
        let (_, mut watch) = watch(false, Some(1100));
        stands_for(&mut patient, Duration::from_millis(1100));
        stands_for(&mut watch, Duration::from_millis(1100));
        assert!(matches!(patient.look(), Movement::StandsStill(_)));
        let Movement::Stopped(why) = watch.look() else { panic!("it stood for too long") };
        assert!(why.starts_with("it computes 'x' for 1 s"), "{why}");
    }

    /// It says that it waits; a thread of it that turns in a loop says something else.
    #[test]
    fn who_waits_and_has_a_thread_that_turns_in_a_loop_waits_for_nobody_and_is_stopped() {
        let of_threads = Some(Duration::from_secs(20));
        let place = Place { turns: AtomicU64::new(0), waits: true, patience: None, of_threads };
        let mut watch = StandWatch::new(Arc::new(place), Duration::from_secs(60));
        let (_, mut of_one_that_stands) = self::watch(false, Some(1100));
        let end = Arc::new(AtomicBool::new(false));
        let turns = {
            let end = end.clone();
            std::thread::spawn(move || {
                let _watched = pulse::watch_service("turns");
                while !end.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let (mut waited, begin) = (true, Instant::now());
        let why = loop {
            match watch.look() {
                Movement::Moves => {}
                Movement::StandsStill(still) => waited &= still.waits,
                Movement::Stopped(why) => break why,
            }
            assert!(begin.elapsed() < Duration::from_secs(120), "it is never stopped");
            of_one_that_stands.since = Instant::now();
            assert!(!matches!(of_one_that_stands.look(), Movement::Stopped(_)));
            std::thread::sleep(Duration::from_millis(50));
        };
        stands_for(&mut of_one_that_stands, Duration::from_millis(1100));
        let Movement::Stopped(needs) = of_one_that_stands.look() else {
            panic!("it stood too long")
        };
        let both =
            ["it computes 'x' for 1 s, and does", "; its thread 'turns' has made no progress"];
        assert!(both.iter().all(|said| needs.contains(said)), "{needs}");
        end.store(true, Ordering::Relaxed);
        turns.join().unwrap();
        assert!(!waited, "it was taken for one that waits");
        assert!(why.starts_with("its thread 'turns' has made no progress for "), "{why}");
        assert!(begin.elapsed() >= Duration::from_secs(20), "{why}");
    }
}
