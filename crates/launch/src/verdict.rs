//! Who failed first. When one process of a job ends, the others notice within milliseconds and fail
//! too; what the user needs is the first cause. Pure: what was seen in, the verdict out.

use std::fmt;

use tensorwire_base::Rank;

use crate::control::Blame;
use crate::standing::Still;

/// How a member ended, as far as the launcher saw.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum End {
    /// It is alive, or ended well.
    None,
    /// Its process ended without a word.
    Died { how: String },
    /// It said why.
    Failed { step: u64, error: String, blame: Blame },
    /// It lives, and others that wait for it have given up.
    StandsStill(Still),
    /// Nothing was heard of it for too long.
    Silent { for_s: f64 },
    /// It was to be started on another host, and nothing was ever heard of it.
    Unreached { why: String },
}

impl End {
    /// Why it ended, none while it lives.
    pub(crate) fn cause(&self) -> Option<String> {
        match self {
            End::None => None,
            End::Died { how } | End::Unreached { why: how } => Some(how.clone()),
            End::Silent { for_s } => {
                Some(format!("nothing was heard of it for {for_s:.1} s (stopped or hung)"))
            }
            End::Failed { error, .. } => Some(error.clone()),
            End::StandsStill(still) => Some(format!("it {still}, and the others wait for it")),
        }
    }

    /// The user can mend it, and nobody else for all that is known here.
    pub(crate) fn is_user_error(&self) -> bool {
        // what cannot be read once training is under way could be read before
        let reads = matches!(self, End::Failed { step: 0, blame: Blame::Unread, .. });
        reads || matches!(self, End::Failed { blame: Blame::User, .. })
    }

    /// It could not read a file.
    fn is_unread(&self) -> bool {
        matches!(self, End::Failed { blame: Blame::Unread, .. })
    }

    /// True if it came of a wait that was too long: its own, or that of the last in a chain of which each lost the next.
    pub(crate) fn is_of_a_wait(&self, ends: &[&End]) -> bool {
        let mut end = self;
        // where each has lost another, in a circle, nobody waited
        for _ in 0..=ends.len() {
            end = match end {
                End::Failed { blame: Blame::Others, .. } => return true,
                End::Failed { blame: Blame::Peer(peer), .. } => match ends.get(*peer as usize) {
                    Some(lost) => lost,
                    None => return false,
                },
                _ => return false,
            };
        }
        false
    }

    /// It said so itself, and of itself.
    pub(crate) fn is_own_word(&self) -> bool {
        matches!(self, End::Failed { blame: Blame::Own | Blame::User | Blame::Unread, .. })
    }
}

/// What the launcher knows of a member when the job fails.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) rank: Rank,
    pub(crate) role: String,
    pub(crate) pid: u32,
    /// Its host, where that is not the launcher's; `pid` is then that of what started it.
    pub(crate) host: Option<String>,
    /// The last step that it said it was in; 0: none yet.
    pub(crate) step: u64,
    pub(crate) end: End,
    /// Where it stands, if it has not moved for some time.
    pub(crate) still: Option<Still>,
    /// The job went on without it: it is the cause only if somebody could not.
    pub(crate) survived: bool,
    /// The order in which ends were noticed.
    pub(crate) order: u32,
}

/// The member whose end ended the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstFailure {
    pub rank: Rank,
    pub role: String,
    pub pid: u32,
    /// Its host, where that is not the launcher's; `pid` is then that of what started it there.
    pub host: Option<String>,
    /// The step it was in; none: before the first.
    pub step: Option<u64>,
    pub cause: String,
    /// It said so itself: it was not killed, lost or silent.
    pub is_own_word: bool,
    /// The user can mend it by another command line.
    pub user_error: bool,
    /// It could not read a file: in a job that could before, its disk is the cause.
    pub unread: bool,
    /// What the others said.
    pub remarks: Vec<Remark>,
}

/// What another member said as it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    pub rank: Rank,
    pub role: String,
    /// Its host, where that is not the launcher's.
    pub host: Option<String>,
    pub error: String,
}

/// The first cause among what was seen. An own death or error comes before silence, and silence
/// before hearsay: a member that reports the loss of a peer is not the cause but a witness.
pub(crate) fn first_failure(seen: &[Seen]) -> Option<FirstFailure> {
    // who is said to be lost and was not may only have ended because of another
    let was_lost = |peer: u32| seen.iter().any(|member| member.rank.0 == peer && member.survived);
    let weight = |member: &Seen| match &member.end {
        End::None => None,
        _ if member.survived => None,
        End::Died { .. } | End::Unreached { .. } => Some(0),
        End::Failed { blame: Blame::Own | Blame::User | Blame::Unread, .. } => Some(1),
        End::Silent { .. } | End::StandsStill(_) => Some(2),
        End::Failed { blame: Blame::Others, .. } => Some(3),
        End::Failed { blame: Blame::Peer(peer), .. } if was_lost(*peer) => Some(3),
        End::Failed { blame: Blame::Peer(_), .. } => Some(4),
    };
    let guilty = seen.iter().filter(|member| weight(member).is_some());
    let guilty = guilty.min_by_key(|member| (weight(member), member.order))?;
    let (guilty, cause) = match &guilty.end {
        End::Failed { error, blame: Blame::Peer(peer), .. } => {
            let lost = seen.iter().find(|member| member.rank.0 == *peer).unwrap_or(guilty);
            let says = || format!("lost, says {} (rank {}): {error}", guilty.role, guilty.rank);
            let known = lost.end.cause().filter(|_| lost.survived);
            (lost, known.unwrap_or_else(says))
        }
        end => (guilty, end.cause()?),
    };
    let is_own_word = guilty.end.is_own_word();
    let (user_error, unread) = (guilty.end.is_user_error(), guilty.end.is_unread());
    // a witness knows the step in which the peer was lost better than a heartbeat
    let witnesses = seen.iter().filter(|member| !member.survived);
    let witnessed = witnesses.filter_map(|member| match member.end {
        End::Failed { step, blame: Blame::Peer(_), .. } => Some(step),
        _ => None,
    });
    let step = match guilty.end {
        End::Failed { step, .. } => step,
        _ => guilty.step.max(witnessed.min().unwrap_or(0)),
    };
    let others = seen.iter().filter(|member| member.rank != guilty.rank && !member.survived);
    let stalls = |member: &Seen| matches!(member.end, End::Failed { blame: Blame::Others, .. });
    let is_stalled = seen.iter().any(stalls);
    let remarks = others.filter_map(|member| remark(member, is_stalled));
    Some(FirstFailure {
        rank: guilty.rank,
        role: guilty.role.clone(),
        pid: guilty.pid,
        host: guilty.host.clone(),
        step: (step > 0).then_some(step),
        cause,
        is_own_word,
        user_error,
        unread,
        remarks: remarks.collect(),
    })
}

/// What a member said; of one that lives, where it stands, if the job ends since nothing moves.
fn remark(member: &Seen, is_stalled: bool) -> Option<Remark> {
    let error = match &member.end {
        End::None => member.still.as_ref().filter(|_| is_stalled)?.to_string(),
        End::StandsStill(still) => still.to_string(),
        End::Died { how } | End::Unreached { why: how } => how.clone(),
        End::Failed { error, .. } => error.clone(),
        End::Silent { for_s } => format!("nothing was heard of it for {for_s:.1} s"),
    };
    let (role, host) = (member.role.clone(), member.host.clone());
    Some(Remark { rank: member.rank, role, host, error })
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = self.host.as_ref().map(|host| format!(", on {host}")).unwrap_or_default();
        write!(f, "{} (rank {}{on}): {}", self.role, self.rank, self.error)
    }
}

/// One line: who failed first, when, and why.
impl fmt::Display for FirstFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FirstFailure { rank, role, pid, cause, .. } = self;
        match &self.host {
            Some(host) => write!(f, "first to fail: {role} (rank {rank}, on {host}) ")?,
            None => write!(f, "first to fail: {role} (rank {rank}, pid {pid}) ")?,
        }
        match self.step {
            // what failed may have said the step itself, as it does where nobody stands around it
            Some(step) => {
                let said = format!("step {step}: ");
                write!(f, "at step {step}: {}", cause.strip_prefix(&said).unwrap_or(cause))
            }
            None => write!(f, "before the first step: {cause}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(rank: u32, step: u64, order: u32, end: End) -> Seen {
        let role = format!("worker {rank}");
        let (pid, host, survived) = (100 + rank, None, false);
        Seen { rank: Rank(rank), role, pid, host, step, end, still: None, survived, order }
    }

    fn witness(step: u64, of: u32) -> End {
        End::Failed { step, error: format!("lost rank {of}"), blame: Blame::Peer(of) }
    }

    fn own_error(step: u64) -> End {
        End::Failed { step, error: "bad label".into(), blame: Blame::Own }
    }

    #[test]
    fn a_killed_process_is_the_cause_and_those_that_saw_it_are_witnesses() {
        let killed = End::Died { how: "killed by signal 9 (SIGKILL)".into() };
        let all = [
            seen(0, 16, 0, witness(17, 1)),
            seen(1, 15, 1, killed),
            seen(2, 16, 2, witness(17, 1)),
        ];
        let first = first_failure(&all).unwrap();
        assert_eq!((first.rank, first.pid, first.step), (Rank(1), 101, Some(17)));
        assert_eq!(first.remarks.len(), 2);
        let text = first.to_string();
        let expected = "first to fail: worker 1 (rank 1, pid 101) at step 17: killed by signal 9";
        assert!(text.starts_with(expected) && text.lines().count() == 1, "{text}");
    }

    #[test]
    fn what_could_be_read_until_training_began_is_not_the_users_to_mend() {
        let unread = |step| End::Failed { step, error: "no disk".into(), blame: Blame::Unread };
        let judged = |step| first_failure(&[seen(0, step, 0, unread(step))]).unwrap();
        let of = |step| {
            let first = judged(step);
            (first.unread, first.is_own_word, first.user_error)
        };
        assert_eq!([of(0), of(3)], [(true, true, true), (true, true, false)]);
    }

    #[test]
    fn an_own_error_outweighs_what_others_make_of_it() {
        let all =
            [seen(0, 3, 0, witness(4, 2)), seen(1, 3, 1, End::None), seen(2, 4, 2, own_error(4))];
        let first = first_failure(&all).unwrap();
        assert_eq!((first.rank, first.step), (Rank(2), Some(4)));
        assert_eq!(first.cause, "bad label");
    }

    #[test]
    fn the_step_is_said_once() {
        let error = "step 5: node 'loss': bad label".to_string();
        let own = End::Failed { step: 5, error, blame: Blame::Own };
        let text = first_failure(&[seen(1, 5, 0, own)]).unwrap().to_string();
        assert!(text.ends_with("(rank 1, pid 101) at step 5: node 'loss': bad label"), "{text}");
    }

    #[test]
    fn a_stopped_process_is_named_though_it_said_nothing() {
        let all = [seen(0, 9, 0, End::None), seen(1, 8, 1, End::Silent { for_s: 6.0 })];
        let first = first_failure(&all).unwrap();
        assert_eq!((first.rank, first.step), (Rank(1), Some(8)));
    }

    #[test]
    fn a_host_that_was_not_reached_is_the_cause_and_named() {
        let unreached = End::Unreached { why: "nothing was heard".into() };
        let mut all = [seen(0, 0, 0, own_error(0)), seen(1, 0, 1, unreached)];
        all[1].host = Some("node1".to_string());
        let text = first_failure(&all).unwrap().to_string();
        assert!(text.contains("worker 1 (rank 1, on node1) before the first step"), "{text}");
    }

    #[test]
    fn hearsay_names_the_peer_that_was_lost() {
        let all = [seen(0, 2, 0, witness(2, 1)), seen(1, 2, 1, End::None)];
        let first = first_failure(&all).unwrap();
        assert_eq!(first.rank, Rank(1));
        assert!(first.cause.contains("says worker 0 (rank 0)"), "{}", first.cause);
    }

    #[test]
    fn one_that_the_job_survived_is_the_cause_if_another_could_not() {
        let killed = End::Died { how: "killed".into() };
        let lost = Seen { survived: true, ..seen(1, 0, 0, killed) };
        let first = first_failure(&[lost.clone(), seen(3, 0, 1, witness(0, 1))]).unwrap();
        assert_eq!((first.rank, first.cause.as_str(), first.remarks.len()), (Rank(1), "killed", 1));
        // it saw a loss long ago, and left
        let left = Seen { survived: true, ..seen(2, 3, 2, witness(3, 1)) };
        let killed = End::Died { how: "killed".into() };
        let now = [left, seen(0, 9, 0, killed), seen(1, 9, 1, witness(10, 0))];
        assert_eq!(first_failure(&now).unwrap().step, Some(10));
        let first = first_failure(&[lost.clone(), seen(3, 4, 1, own_error(4))]).unwrap();
        assert_eq!((first.rank, first.remarks.len()), (Rank(3), 0));
        assert_eq!(first_failure(&[lost]), None);
    }

    #[test]
    fn a_witness_of_one_that_was_lost_before_knows_better_than_another() {
        let killed = End::Died { how: "killed".into() };
        let lost = Seen { survived: true, ..seen(1, 0, 0, killed) };
        let lives = seen(2, 0, 0, End::None);
        let all = [seen(0, 0, 1, witness(0, 2)), lost, lives, seen(3, 0, 2, witness(0, 1))];
        let first = first_failure(&all).unwrap();
        assert_eq!((first.rank, first.cause.as_str()), (Rank(1), "killed"));
    }

    #[test]
    fn who_waits_for_too_long_is_no_cause_if_another_stands_still() {
        let stalled = |step| {
            let error = "nothing happened for 600 s while waiting for 'g' from worker 2".into();
            End::Failed { step, error, blame: Blame::Others }
        };
        let still = |waits| Still { what: "computes 'conv'".into(), waits, for_ms: 590_000 };
        let waits = Seen { still: Some(still(true)), ..seen(0, 7, 0, End::None) };
        let all = [waits, seen(1, 7, 0, stalled(7)), seen(2, 7, 1, End::StandsStill(still(false)))];
        let first = first_failure(&all).unwrap();
        assert_eq!((first.rank, first.step, first.is_own_word), (Rank(2), Some(7), false));
        assert!(first.cause.starts_with("it computes 'conv' for 590.0 s"), "{}", first.cause);
        let said: Vec<String> = first.remarks.iter().map(Remark::to_string).collect();
        assert_eq!(said[0], "worker 0 (rank 0): computes 'conv' for 590.0 s");
        assert!(said[1].contains("nothing happened for 600 s"), "{said:?}");
        // nobody stands out
        let first = first_failure(&all[..2]).unwrap();
        assert_eq!((first.rank, first.is_own_word), (Rank(1), false));
    }

    #[test]
    fn who_lost_one_that_lost_one_that_had_waited_ended_because_of_that_wait() {
        let waited = End::Failed { step: 3, error: "8 s".into(), blame: Blame::Others };
        let all = [waited, witness(3, 2), witness(3, 0), End::None];
        let is_of_a_wait = |ends: &[End]| {
            let of: Vec<&End> = ends.iter().collect();
            ends.iter().map(|end| end.is_of_a_wait(&of)).collect::<Vec<_>>()
        };
        assert_eq!(is_of_a_wait(&all), [true, true, true, false]);
        let own = [own_error(3), witness(3, 2), witness(3, 0), End::None];
        assert_eq!(is_of_a_wait(&own), [false; 4]);
        let circle = [witness(3, 1), witness(3, 2), witness(3, 0), witness(3, 9)];
        assert_eq!(is_of_a_wait(&circle), [false; 4]);
    }

    #[test]
    fn before_the_first_step_and_without_any_end() {
        let all = [seen(0, 0, 0, End::Died { how: "exited with status 1".into() })];
        assert!(first_failure(&all).unwrap().to_string().contains("before the first step"));
        assert_eq!(first_failure(&[seen(0, 5, 0, End::None)]), None);
    }
}
