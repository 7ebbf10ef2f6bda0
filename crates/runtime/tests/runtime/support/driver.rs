//! One thread that drives all sessions of a job, in an order that a seed chooses: no other thread, no
//! clock, so that the seed determines everything.

use tensorwire_graph::RunId;
use tensorwire_runtime::{Advance, Session};

use super::random::{Random, fold};

/// Rounds in a row in which nothing could be done and nothing was in flight, before a tensor counts as
/// lost: queues that are full by chance have room long before.
const IDLE_ROUNDS_MAX: usize = 500;

/// What the sessions do, and what is checked.
pub(crate) trait Life {
    /// Prepares a session for a step; none: it has done them all.
    fn begin(&mut self, part: usize, step: usize, session: &mut Session) -> Option<RunId>;

    /// Looks at what a step left.
    fn end(&mut self, part: usize, step: usize, session: &Session) -> Result<(), String>;
}

#[derive(Clone, Copy, Default)]
struct Progress {
    step: usize,
    is_running: bool,
    is_over: bool,
    /// It has nothing to do until the network moves.
    is_blocked: bool,
}

/// Drives the sessions until all lives are over. Returns a hash of all that happened, in its order.
/// `network` moves what is in flight, and says whether anything was; `burst_max` is how many turns a
/// session gets in a row at most.
pub(crate) fn drive(
    sessions: &mut [Session],
    network: &mut dyn FnMut() -> bool,
    random: &mut Random,
    burst_max: usize,
    life: &mut impl Life,
) -> Result<u64, String> {
    let mut all = vec![Progress::default(); sessions.len()];
    let (mut trace, mut idle_rounds) = (0, 0);
    while all.iter().any(|progress| !progress.is_over) {
        let able = |part: &usize| !all[*part].is_over && !all[*part].is_blocked;
        let awake: Vec<usize> = (0..all.len()).filter(able).collect();
        if awake.is_empty() {
            idle_rounds = if network() { 0 } else { idle_rounds + 1 };
            if idle_rounds > IDLE_ROUNDS_MAX {
                return Err(lost(sessions, &all));
            }
            all.iter_mut().for_each(|progress| progress.is_blocked = false);
            continue;
        }
        let part = random.of(&awake);
        for _ in 0..=random.below(burst_max) {
            let outcome = turn(part, &mut sessions[part], &mut all[part], life)?;
            trace = fold(trace, (part as u64) << 8 | outcome);
            if all[part].is_blocked || all[part].is_over {
                break;
            }
            idle_rounds = 0;
        }
        // bytes also land while nobody looks
        if random.happens(20) {
            network();
        }
    }
    for session in sessions.iter() {
        let counters = session.counters();
        trace = fold(fold(trace, counters.polls), counters.poll_misses << 32 | counters.kernels);
    }
    Ok(trace)
}

fn turn(
    part: usize,
    session: &mut Session,
    progress: &mut Progress,
    life: &mut impl Life,
) -> Result<u64, String> {
    if !progress.is_running {
        match life.begin(part, progress.step, session) {
            Some(run) => session.start(run),
            None => {
                progress.is_over = true;
                return Ok(0);
            }
        }
        progress.is_running = true;
    }
    let advanced = session.advance();
    match advanced.map_err(|error| format!("part {part}, step {}: {error}", progress.step))? {
        Advance::Progress => Ok(1),
        Advance::Blocked => {
            progress.is_blocked = true;
            Ok(2)
        }
        Advance::Finished => {
            let ended = life.end(part, progress.step, session);
            ended.map_err(|what| format!("part {part}, step {}: {what}", progress.step))?;
            progress.is_running = false;
            progress.step += 1;
            Ok(3)
        }
    }
}

fn lost(sessions: &mut [Session], all: &[Progress]) -> String {
    let running = sessions.iter_mut().zip(all).enumerate().filter(|(_, (_, p))| p.is_running);
    let waits = running.map(|(part, (session, progress))| {
        // a wait in vain says what is missing
        let missing = session.wait().map_or_else(|error| error.to_string(), |()| String::new());
        format!("part {part} in step {}: {missing}", progress.step)
    });
    format!("lost, nothing moves any more: {}", waits.collect::<Vec<_>>().join("; "))
}
