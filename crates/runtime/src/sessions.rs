//! Asynchronous training (Xue et al. §5): a server has one session for each worker, and all change the same
//! variables. One thread gives them turns, so that an update is never torn; what one session is sending another waits to
//! change.

use tensorwire_base::Deadline;
use tensorwire_fabric::pulse;
use tensorwire_graph::{NodeId, Op, Part, RunId};

use crate::error::RunError;
use crate::executor::Advance;
use crate::one_sided::OneSided;
use crate::session::Session;
use crate::storage::Storage;

/// Makes the variables of `part`, and views of them, the same memory in all sessions: the first one's.
pub fn share_variables(part: &Part, sessions: &mut [(OneSided, Storage)]) {
    if let Some(((exchange, _), rest)) = sessions.split_first_mut() {
        rest.iter_mut().for_each(|(other, _)| other.send_from_too(exchange));
    }
    share_memory(part, sessions.iter_mut().map(|(_, storage)| storage));
}

/// As [`share_variables`], where whatever is sent may lie anywhere.
pub fn share_memory<'a>(part: &Part, mut sessions: impl Iterator<Item = &'a mut Storage>) {
    let Some(first) = sessions.next() else { return };
    let mut shared: Vec<NodeId> = Vec::new();
    for (id, node) in part.graph.nodes() {
        let mut inputs = node.inputs.iter();
        let is_view = node.op.is_view() && inputs.any(|input| shared.contains(&input.node));
        if is_view || matches!(node.op, Op::Variable { .. }) {
            shared.push(id);
        }
    }
    for other in sessions {
        for &output in &shared {
            if let Some(tensor) = first.tensor(output.into()) {
                other.set(output.into(), tensor.clone());
            }
        }
    }
}

/// Runs all sessions of this process until `next` has no run for any: it is asked for a session's next run
/// whenever the session, which it may set up for that, has none.
///
/// # Errors
/// When a session fails.
pub fn run_sessions(
    sessions: &mut [Session],
    next: &mut dyn FnMut(usize, &mut Session) -> Option<RunId>,
) -> Result<(), RunError> {
    let _awake = pulse::awake();
    let mut is_running = vec![false; sessions.len()];
    loop {
        let mut progress = false;
        for (index, session) in sessions.iter_mut().enumerate() {
            if !is_running[index] {
                let Some(run) = next(index, session) else { continue };
                session.start(run);
                is_running[index] = true;
            }
            loop {
                match session.advance()? {
                    Advance::Progress => progress = true,
                    Advance::Blocked => break,
                    Advance::Finished => {
                        (is_running[index], progress) = (false, true);
                        break;
                    }
                }
            }
        }
        if progress {
            continue;
        }
        let mut waiting: Vec<&mut Session> = sessions
            .iter_mut()
            .zip(&is_running)
            .filter(|(_, is)| **is)
            .map(|(session, _)| session)
            .collect();
        let mut until: Option<Deadline> = None;
        for session in &mut waiting {
            let patience = session.patience()?;
            until = Some(until.map_or(patience, |until| until.min(patience)));
        }
        // the first session took note of the moment before any other looked for news
        match (waiting.first_mut(), until) {
            (Some(first), Some(until)) => first.wait_until(until)?,
            _ => return Ok(()),
        }
    }
}
