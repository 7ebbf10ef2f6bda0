//! What the launcher knows of one member.

use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;

use super::process::{Exit, Process};
use crate::control::{Speaker, ToMember};
use crate::negotiate::Offer;
use crate::standing::Still;
use crate::takeover::ProcessName;
use crate::verdict::End;

/// Characters of what a member says that are shown.
const SAID_MAX: usize = 4000;

/// A member, from its start on.
pub(super) struct MemberState {
    pub(super) role: String,
    pub(super) process: Process,
    /// As another launcher finds it.
    pub(super) name: ProcessName,
    /// Its host, where that is not the launcher's.
    pub(super) host: Option<String>,
    pub(super) exit: Option<Exit>,
    /// When that was seen.
    pub(super) exited: Option<Instant>,
    pub(super) control: Option<Speaker>,
    /// What it was told and cannot do without: once it calls again it hears that again.
    lasting: Vec<Arc<ToMember>>,
    /// Which of its connections that is.
    pub(super) connection: u64,
    pub(super) hung_up: bool,
    pub(super) last_heard: Instant,
    pub(super) step: u64,
    pub(super) offer: Option<Offer>,
    pub(super) ready: Option<(Vec<String>, String)>,
    pub(super) report: Option<Value>,
    pub(super) end: End,
    pub(super) order: u32,
    /// It is a node of a store that stands.
    pub(super) joined: bool,
    /// It ended too early, and the job goes on without it.
    pub(super) survived: bool,
    /// It said that a signal told it to end.
    pub(super) told_to_end: bool,
    /// The last step that it has begun, and it begins no other.
    pub(super) held: Option<u64>,
    /// Where it stands, if it has not moved for some time.
    pub(super) still: Option<Still>,
    /// What it showed last.
    pub(super) progress: Option<Value>,
    /// How fast it was last.
    pub(super) figures: Option<Value>,
}

impl MemberState {
    pub(super) fn new(role: String, process: Process, host: Option<String>) -> MemberState {
        let pid = process.pid();
        MemberState {
            role,
            // one that is gone already has not begun at any time
            name: ProcessName::of(pid).unwrap_or(ProcessName { pid, started: 0 }),
            process,
            host,
            exit: None,
            exited: None,
            control: None,
            lasting: Vec::new(),
            connection: 0,
            hung_up: false,
            last_heard: Instant::now(),
            step: 0,
            offer: None,
            ready: None,
            report: None,
            end: End::None,
            order: 0,
            joined: false,
            survived: false,
            told_to_end: false,
            held: None,
            still: None,
            progress: None,
            figures: None,
        }
    }

    /// Tells it. One that cannot be told is noticed by its silence or its end, or calls again.
    pub(super) fn tell(&mut self, message: &Arc<ToMember>) {
        if message.lasts() {
            let is_older = |told: &Arc<ToMember>| message.replaces(told);
            self.lasting.retain(|told| !is_older(told));
            self.lasting.push(message.clone());
        }
        if let Some(control) = &mut self.control {
            let _ = control.say(&**message);
        }
    }

    /// Tells it over a new connection what it may not have read from the one before.
    pub(super) fn tell_again(&mut self) {
        for message in &self.lasting {
            // as above
            let _ = self.control.as_mut().map(|control| control.say(&**message));
        }
    }

    /// True if it lives and does something, as far as it has said.
    pub(super) fn moves(&self) -> bool {
        let lives = self.end == End::None && self.exit.is_none() && self.report.is_none();
        lives && self.control.is_some() && !self.hung_up && self.still.is_none()
    }

    /// It has reported and ended well.
    pub(super) fn done(&self) -> bool {
        self.report.is_some() && self.exit.is_some_and(Exit::is_good)
    }
}

/// What a member says, as it may be shown: not for ever, without what a terminal would take for a command, and each line
/// behind the first indented, so that none looks like another's.
pub(super) fn shown(said: &str) -> String {
    let mut line: String = said.chars().take(SAID_MAX).collect();
    if line.len() < said.len() {
        line.push('…');
    }
    line.replace(|c: char| c.is_control() && c != '\n', " ").replace('\n', "\n  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_member_says_commands_no_terminal_and_looks_like_nobody_else() {
        assert_eq!(shown("step 3: lost\n\u{1b}[2Jerror: x\u{7f}"), "step 3: lost\n   [2Jerror: x ");
        let long = shown(&"ä".repeat(SAID_MAX + 1));
        assert_eq!(long.chars().count(), SAID_MAX + 1);
        assert!(long.ends_with('…'));
    }
}
