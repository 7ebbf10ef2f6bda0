//! What a member says to its launcher. Where another launcher may come, what it has to know is said to that one, too.

use std::collections::VecDeque;
use std::mem::{Discriminant, discriminant};
use std::net::Shutdown;

use parking_lot::{Condvar, Mutex};
use tensorwire_base::Deadline;

use crate::control::{FromMember, Speaker};

/// What is recorded and shown while there is no launcher is kept, and what was recorded and lasts, up to so many words; older ones
/// are lost.
const KEPT_MAX: usize = 10_000;

#[derive(Debug)]
pub(super) struct Line {
    state: Mutex<LineState>,
    changed: Condvar,
}

#[derive(Debug)]
struct LineState {
    /// None: the launcher is gone, and another may come.
    speaker: Option<Speaker>,
    /// Another launcher may come.
    outlives: bool,
    /// The last word was said.
    finished: bool,
    /// A launcher has heard it.
    heard_out: bool,
    /// What it has to know, the newest of each kind.
    known: Vec<FromMember>,
    /// What nobody was there to hear, and what lasts.
    kept: VecDeque<FromMember>,
}

impl Line {
    /// To a launcher; `outlives` it, if another may come.
    pub(super) fn new(speaker: Speaker, outlives: bool) -> Line {
        let (known, kept) = (Vec::new(), VecDeque::new());
        let (speaker, finished, heard_out) = (Some(speaker), false, false);
        let state = LineState { speaker, outlives, finished, heard_out, known, kept };
        Line { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Tells the launcher, or the one that comes.
    ///
    /// # Errors
    /// When it is gone, and no other may come.
    pub(super) fn tell(&self, message: &FromMember) -> std::io::Result<()> {
        let mut state = self.state.lock();
        state.finished |= matches!(message, FromMember::Finished { .. });
        if state.outlives {
            state.note(message);
        }
        let said = match &mut state.speaker {
            Some(speaker) => speaker.say_all(message),
            None => Err(std::io::ErrorKind::NotConnected.into()),
        };
        match said {
            Err(_) if state.outlives => {
                // whoever listens there sees that it has ended
                if let Some(speaker) = state.speaker.take() {
                    let _ = speaker.stream().shutdown(Shutdown::Both);
                }
                state.miss(message);
                Ok(())
            }
            said => said,
        }
    }

    /// Waits until a launcher has heard the last word, at most until `answer`, or until `other` where one may come and none is
    /// there. Whoever goes before may lose it: what a process has sent is thrown away if something comes for it once it is gone.
    pub(super) fn await_heard(&self, answer: Deadline, other: Deadline) {
        let mut state = self.state.lock();
        while !state.heard_out {
            let nobody = state.outlives && state.speaker.is_none();
            let deadline = if nobody { other } else { answer };
            if deadline.passed() {
                break;
            }
            self.changed.wait_for(&mut state, deadline.remaining());
        }
    }

    /// A launcher has heard the last word, or there is none any more that could.
    pub(super) fn put_heard_out(&self) {
        self.state.lock().heard_out = true;
        self.changed.notify_all();
    }

    /// True if the last word was said.
    pub(super) fn has_finished(&self) -> bool {
        self.state.lock().finished
    }

    /// True if another launcher may come; there is none until then.
    pub(super) fn is_lost(&self) -> bool {
        let mut state = self.state.lock();
        if state.outlives {
            state.speaker = None;
        }
        state.outlives
    }

    /// Goes on with another launcher, which is told all that it has to know.
    ///
    /// # Errors
    /// When it is gone, too.
    pub(super) fn go_on(&self, mut speaker: Speaker) -> std::io::Result<()> {
        let mut state = self.state.lock();
        for message in state.known.iter().chain(&state.kept) {
            speaker.say_all(message)?;
        }
        state.kept.retain(lasts);
        state.speaker = Some(speaker);
        self.changed.notify_all();
        Ok(())
    }

    /// No other launcher comes any more.
    pub(super) fn ends_with_launcher(&self) {
        self.state.lock().outlives = false;
        self.changed.notify_all();
    }

    /// Says nothing more.
    pub(super) fn close(&self) -> std::io::Result<()> {
        let mut state = self.state.lock();
        state.outlives = false;
        match &state.speaker {
            Some(speaker) => speaker.stream().shutdown(Shutdown::Write),
            None => Ok(()),
        }
    }
}

/// True for what each launcher is told once more.
fn lasts(message: &FromMember) -> bool {
    matches!(message, FromMember::Records { lasts: true, .. })
}

impl LineState {
    fn note(&mut self, message: &FromMember) {
        let is_lasting = match message {
            FromMember::Offer(_)
            | FromMember::Ready { .. }
            | FromMember::Connected
            | FromMember::EnterBarrier { .. }
            | FromMember::Heartbeat { .. }
            | FromMember::Allow { .. }
            | FromMember::ToldToEnd
            | FromMember::Finished { .. } => true,
            // what this launcher asked for, what is kept below or soon said again, and what ends this process
            FromMember::Held { .. }
            | FromMember::Clock { .. }
            | FromMember::Progress { .. }
            | FromMember::Figures { .. }
            | FromMember::Says { .. }
            | FromMember::Records { .. }
            | FromMember::AskedToEnd
            | FromMember::Failed { .. } => false,
        };
        let kind: Discriminant<FromMember> = discriminant(message);
        let known = self.known.iter_mut().find(|known| discriminant(*known) == kind);
        match (is_lasting, known) {
            (false, _) => {}
            (true, Some(known)) => *known = message.clone(),
            (true, None) => self.known.push(message.clone()),
        }
        if lasts(message) {
            self.keep(message);
        }
    }

    /// Nobody was there to hear it.
    fn miss(&mut self, message: &FromMember) {
        let is_kept = matches!(message, FromMember::Records { .. } | FromMember::Progress { .. });
        if is_kept && !lasts(message) {
            self.keep(message);
        }
    }

    fn keep(&mut self, message: &FromMember) {
        if self.kept.len() == KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(message.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::control::tests::connection;
    use crate::control::{Behind, Hearer};

    const HOUR: Duration = Duration::from_secs(3600);

    fn soon() -> Deadline {
        Deadline::after(Duration::from_millis(20))
    }

    #[test]
    fn another_launcher_hears_what_it_has_to_know_and_what_nobody_heard() {
        let (speaker, _first) = connection();
        let line = Line::new(speaker, true);
        let heartbeat = |step| FromMember::Heartbeat { step, still: None };
        let allow = |until| FromMember::Allow { until, behind: Behind::Unknown };
        let records = |n: u32| FromMember::Records { values: vec![n.into()], lasts: false };
        let lasting = |n: u32| FromMember::Records { values: vec![n.into()], lasts: true };
        for message in [FromMember::Connected, heartbeat(1), lasting(6), allow(5), records(1)] {
            line.tell(&message).unwrap();
        }
        assert!(line.is_lost());
        let alone = [heartbeat(7), allow(9), records(2), lasting(8), FromMember::Held { step: 7 }];
        for message in alone {
            line.tell(&message).unwrap();
        }
        line.await_heard(Deadline::after(HOUR), soon());
        let (speaker, mut hearer) = connection();
        line.go_on(speaker).unwrap();
        line.await_heard(soon(), Deadline::after(HOUR));
        line.tell(&heartbeat(8)).unwrap();
        let hears = |hearer: &mut Hearer, expected: &[FromMember]| {
            for message in expected {
                let heard: FromMember = hearer.hear().unwrap();
                assert_eq!(format!("{heard:?}"), format!("{message:?}"));
            }
        };
        let known = |step| [FromMember::Connected, heartbeat(step), allow(9)];
        hears(&mut hearer, &known(7));
        hears(&mut hearer, &[lasting(6), records(2), lasting(8), heartbeat(8)]);
        // and so does the one behind that
        assert!(line.is_lost());
        let (speaker, mut hearer) = connection();
        line.go_on(speaker).unwrap();
        hears(&mut hearer, &known(8));
        hears(&mut hearer, &[lasting(6), lasting(8)]);
    }

    #[test]
    fn where_no_other_comes_a_launcher_that_is_gone_is_an_error() {
        let (speaker, hearer) = connection();
        let line = Line::new(speaker, true);
        line.ends_with_launcher();
        drop(hearer);
        let deadline = Deadline::after(Duration::from_secs(20));
        while line.tell(&FromMember::Connected).is_ok() {
            assert!(!deadline.passed());
        }
        assert!(!line.is_lost());
        line.await_heard(soon(), Deadline::after(HOUR));
    }

    #[test]
    fn whoever_has_said_its_last_word_waits_until_it_is_heard() {
        let (speaker, _hearer) = connection();
        let line = std::sync::Arc::new(Line::new(speaker, false));
        assert!(!line.has_finished());
        line.tell(&FromMember::Finished { report: 7.into() }).unwrap();
        assert!(line.has_finished());
        let other = line.clone();
        let waits = std::thread::spawn(move || other.await_heard(Deadline::after(HOUR), soon()));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished());
        line.put_heard_out();
        waits.join().unwrap();
    }
}
