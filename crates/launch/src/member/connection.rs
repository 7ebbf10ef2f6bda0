//! The control connection at a member's end: it calls the launcher and proves itself; one thread tells the launcher
//! that this process is alive, another hears what it says and sees when it is gone.

use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tensorwire_base::{Clock, Deadline, Incarnation, Rank};
use tensorwire_fabric::handshake::{self, HandshakeError, Purpose};
use tensorwire_fabric::{Endpoint, Identity, PeerAddress, pulse};

use super::gate::Gate;
use super::line::Line;
use super::{Ending, Introduction, JoinError};
use crate::assignment::JobIdentity;
use crate::clock::clock_id;
use crate::control::{Blame, FromMember, Hearer, Speaker, ToMember, ends, is_timeout};
use crate::standing::{Movement, StandWatch, Whereabouts};
use crate::store_job::ControlEvents;

/// Calls the launcher, again and again if it hangs up before it has answered: it may be busy with
/// strangers. Nobody listening means that it is gone.
pub(super) fn dial(
    identity: &JobIdentity,
    rank: Rank,
    at: std::net::SocketAddr,
    deadline: Deadline,
) -> Result<(Speaker, Hearer), JoinError> {
    let me = identity.member(rank);
    let launcher = Identity { rank: Rank(u32::MAX), incarnation: identity.launcher };
    let job = &identity.credentials;
    loop {
        let patience = deadline.remaining().max(Duration::from_millis(1));
        let error = match TcpStream::connect_timeout(&at, patience) {
            Err(source) => JoinError::Unreachable { at, source },
            Ok(mut stream) => {
                let purpose = Purpose::Rendezvous;
                match handshake::dial(&mut stream, job, me, Some(launcher), purpose, deadline) {
                    Ok((_, seals)) => return Ok(ends(stream, seals)?),
                    Err(source) => JoinError::Handshake { at, source },
                }
            }
        };
        let last = match &error {
            JoinError::Handshake { source, .. } => {
                use HandshakeError::{Refused, RefusedUnproven, Rejected};
                matches!(source, Rejected(_) | Refused(_) | RefusedUnproven(_))
            }
            // it listened before it started this process, so it is gone
            JoinError::Unreachable { source, .. } => {
                source.kind() == std::io::ErrorKind::ConnectionRefused
            }
            _ => true,
        };
        if last || deadline.passed() {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What is called once when this process is to end, by whichever thread knows first.
#[derive(Clone)]
pub(super) struct LastWords(Arc<Mutex<Option<OnEnding>>>);

type OnEnding = Box<dyn FnOnce(Ending) + Send>;

impl LastWords {
    pub(super) fn new(on_ending: impl FnOnce(Ending) + Send + 'static) -> LastWords {
        LastWords(Arc::new(Mutex::new(Some(Box::new(on_ending)))))
    }

    fn say(&self, ending: Ending) {
        // taken before it is called: it may not return
        let first = self.0.lock().map(|mut words| words.take());
        if let Ok(Some(on_ending)) = first {
            on_ending(ending);
        }
    }
}

/// Ten heartbeats, at least, in the time that the launcher waits for one.
const BEATS: u32 = 10;
/// Most time between two.
const BEAT_MAX: Duration = Duration::from_secs(1);

/// What the thread needs that tells the launcher that this process is alive, and where it stands.
pub(super) struct Heart {
    pub(super) control: Arc<Line>,
    pub(super) step: Arc<AtomicU64>,
    pub(super) whereabouts: Arc<OnceLock<Arc<dyn Whereabouts>>>,
    pub(super) last_words: LastWords,
}

impl Heart {
    pub(super) fn spawn(self, liveness: Duration) -> std::io::Result<()> {
        let thread = std::thread::Builder::new().name("heartbeat".into());
        thread.spawn(move || self.beat(liveness)).map(drop)
    }

    fn beat(&self, liveness: Duration) {
        let _watched = pulse::watch_service("heartbeat");
        let mut watch: Option<StandWatch> = None;
        loop {
            std::thread::sleep((liveness / BEATS).min(BEAT_MAX));
            pulse::beat();
            if let (None, Some(whereabouts)) = (&watch, self.whereabouts.get()) {
                watch = Some(StandWatch::new(whereabouts.clone(), liveness));
            }
            let step = self.step.load(Ordering::Relaxed);
            let still = match watch.as_mut().map_or(Movement::Moves, StandWatch::look) {
                Movement::Moves => None,
                Movement::StandsStill(still) => Some(still),
                Movement::Stopped(reason) => {
                    let (error, blame) = (reason.clone(), Blame::Own);
                    // a launcher that is gone need not know
                    let _ = self.control.tell(&FromMember::Failed { step, error, blame });
                    return self.last_words.say(Ending::StandsStill { reason });
                }
            };
            // a lost launcher is noticed by the watching thread
            if self.control.tell(&FromMember::Heartbeat { step, still }).is_err() {
                return;
            }
        }
    }
}

/// Who wants to know what the launcher says.
pub(super) struct ControlReader {
    pub(super) tell: Sender<Introduction>,
    pub(super) control_events: Arc<ControlEvents>,
    pub(super) gate: Arc<Gate>,
    /// Where it is answered.
    pub(super) control: Arc<Line>,
}

impl ControlReader {
    /// Passes one word on; why the member must end, if it says so.
    fn hear(&self, message: ToMember) -> Option<Ending> {
        match message {
            // nobody asks any more once the member runs
            ToMember::Transport(transport) => {
                drop(self.tell.send(Introduction::Transport(transport)))
            }
            ToMember::Peers { endpoints } => drop(self.tell.send(Introduction::Peers(endpoints))),
            ToMember::Heartbeat { now_ns } => {
                let at_ns = Clock::now_ns();
                let (told_ns, clock) = (now_ns, clock_id());
                drop(self.control.tell(&FromMember::Clock { told_ns, at_ns, clock }));
            }
            // a launcher that is gone is noticed here next
            ToMember::Hold => {
                drop(self.control.tell(&FromMember::Held { step: self.gate.hold() }));
            }
            ToMember::LetGo => self.gate.let_go(),
            ToMember::Allow { until, behind } => self.gate.allow(until, behind),
            ToMember::EndWithLauncher => self.control.ends_with_launcher(),
            ToMember::Released { number } => self.control_events.put_released(number),
            ToMember::World { epoch, alive } => self.control_events.put_world(epoch, alive),
            ToMember::ServerReplaced { server, was, rank, incarnation, endpoint } => {
                let Ok(endpoint) = endpoint.parse::<Endpoint>() else {
                    let reason = format!("the launcher named {endpoint:?}, which is no endpoint");
                    return Some(Ending::Orphaned { reason });
                };
                let (rank, incarnation) = (Rank(rank), Incarnation(incarnation));
                let peer = PeerAddress { rank, incarnation, endpoint };
                self.control_events.put_replaced(server, Rank(was), peer);
            }
            ToMember::HeardOut => self.control.put_heard_out(),
            ToMember::Stop { reason } => return Some(Ending::Told { reason }),
        }
        None
    }
}

/// How long between two calls for another launcher.
const CALLS: Duration = Duration::from_millis(200);

/// What the thread needs that hears the launcher, and waits for another where one may come.
pub(super) struct Watch {
    pub(super) hears: ControlReader,
    pub(super) last_words: LastWords,
    pub(super) identity: JobIdentity,
    pub(super) rank: Rank,
    pub(super) at: std::net::SocketAddr,
    pub(super) liveness: Duration,
    /// How long another is waited for.
    pub(super) patience: Duration,
}

impl Watch {
    pub(super) fn spawn(self, mut hearer: Hearer) -> std::io::Result<()> {
        let watch = move || {
            // what it uses of a processor is no work of the process; the launcher may say nothing for any time
            let _watched = pulse::watch_service("launcher-watch");
            let _resting = pulse::resting();
            let ending = loop {
                match self.listen(&mut hearer) {
                    Ending::Orphaned { reason } if self.hears.control.is_lost() => {
                        self.say_alone(&reason);
                        match self.another_launcher() {
                            Ok(other) => hearer = other,
                            Err(why) => {
                                break Ending::Orphaned { reason: format!("{reason}, and {why}") };
                            }
                        }
                    }
                    ending => break ending,
                }
            };
            if self.hears.control.has_finished() {
                // it may go by itself; its work is done whoever hears of it
                self.hears.control.put_heard_out();
                std::thread::sleep(self.liveness);
            }
            self.last_words.say(ending);
        };
        std::thread::Builder::new().name("launcher-watch".into()).spawn(watch).map(drop)
    }

    /// Says for people that the job has no launcher any more: one of its members does.
    fn say_alone(&self, reason: &str) {
        if self.rank != Rank(0) {
            return tracing::info!("{reason}; waiting for another launcher");
        }
        let for_s = self.patience.as_secs_f64();
        let line = format!(
            "{reason}: the job goes on without one, for {for_s} s; its command takes it over"
        );
        // a terminal that takes nothing holds up nobody; what cannot be said is not
        let say = move || tracing::warn!("{line}");
        let _ = std::thread::Builder::new().name("says-alone".into()).spawn(say);
    }

    /// Reads what the launcher says until this member is to end or the launcher does. Silence is two time-outs in a row: after
    /// the whole job was suspended and continued, the first one means nothing.
    fn listen(&self, hearer: &mut Hearer) -> Ending {
        let mut silences = 0;
        let gone = |reason: String| Ending::Orphaned { reason };
        loop {
            match hearer.stream().peek(&mut [0]) {
                Ok(0) => return gone("the launcher hung up".to_string()),
                Ok(_) => silences = 0,
                // a read with a time-out is not restarted after the process was stopped
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) if is_timeout(&error) && silences == 0 => {
                    silences += 1;
                    continue;
                }
                Err(error) if is_timeout(&error) => {
                    return gone("nothing was heard of the launcher for too long".to_string());
                }
                Err(error) => return gone(format!("the launcher is gone ({error})")),
            }
            match hearer.hear::<ToMember>() {
                Ok(message) => {
                    if let Some(ending) = self.hears.hear(message) {
                        return ending;
                    }
                }
                Err(error) => return gone(format!("the launcher is gone ({error})")),
            }
        }
    }

    /// Calls until another launcher answers, which is told what it has to know. Once the one before is dead anybody may listen where it
    /// did: only who proves that it is of this job sends a member away.
    ///
    /// # Errors
    /// Why none takes this member over, in words.
    fn another_launcher(&self) -> Result<Hearer, String> {
        let deadline = Deadline::after(self.patience);
        let mut somebody = None;
        while !deadline.passed() {
            let patience = Deadline::after(self.liveness.min(deadline.remaining()));
            match dial(&self.identity, self.rank, self.at, patience) {
                Ok((speaker, hearer)) => {
                    let configured = configured(speaker.stream(), self.liveness).is_ok();
                    if configured && self.hears.control.go_on(speaker).is_ok() {
                        return Ok(hearer);
                    }
                }
                Err(JoinError::Handshake { source: HandshakeError::Refused(why), .. }) => {
                    return Err(format!("another does not know this process: {why}"));
                }
                Err(JoinError::Handshake { source, .. }) => somebody = Some(source),
                Err(_) => {}
            }
            std::thread::sleep(CALLS);
        }
        let for_s = self.patience.as_secs_f64();
        let none = format!("no other came in {for_s} s");
        Err(match somebody {
            Some(said) => format!("{none}; something else answers at {}: {said}", self.at),
            None => none,
        })
    }
}

/// The connection to a launcher, with the time-outs that a member needs.
pub(super) fn configured(stream: &TcpStream, liveness: Duration) -> std::io::Result<&TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(liveness))?;
    stream.set_read_timeout(Some(liveness / 2))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_whose_launcher_is_gone_gives_up_at_once() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        drop(listener);
        let patience = Deadline::after(Duration::from_secs(60));
        let error = dial(&JobIdentity::random(1), Rank(0), at, patience).unwrap_err();
        assert!(matches!(error, JoinError::Unreachable { .. }), "{error}");
        assert!(patience.remaining() > Duration::from_secs(30), "it went on calling");
    }
}
