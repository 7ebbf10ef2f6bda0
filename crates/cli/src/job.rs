//! What every command that starts processes does alike: how its members are started, and what Ctrl-C
//! means.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use tensorwire_launch::{Hosts, JobSpec};

use super::Failure;

/// A job on this machine whose members are this program. The first Ctrl-C ends it in good order; the second one
/// does not wait: members end when they see their launcher gone.
pub(crate) fn job_spec(
    listen: Option<SocketAddr>,
    liveness_ms: u64,
    kind: &str,
    roles: Vec<String>,
    payload: serde_json::Value,
) -> Result<JobSpec, Failure> {
    job_spec_until(interrupt()?, listen, liveness_ms, kind, roles, payload)
}

/// The same, ended by `interrupt`.
pub(crate) fn job_spec_until(
    interrupt: Arc<AtomicBool>,
    listen: Option<SocketAddr>,
    liveness_ms: u64,
    kind: &str,
    roles: Vec<String>,
    payload: serde_json::Value,
) -> Result<JobSpec, Failure> {
    Ok(JobSpec {
        program: std::env::current_exe().map_err(Failure::other)?,
        arguments: vec!["member".to_string()],
        kind: kind.to_string(),
        roles,
        payload,
        hosts: Hosts::default(),
        gathering: None,
        run_with_parent: vec!["run-with-parent".to_string(), "--".to_string()],
        verbs: None,
        listen,
        store: None,
        liveness: Duration::from_millis(liveness_ms),
        interrupt,
    })
}

/// Set by the first Ctrl-C; the second one ends this process at once.
pub(crate) fn interrupt() -> Result<Arc<AtomicBool>, Failure> {
    let interrupt = Arc::new(AtomicBool::new(false));
    end_at_once_while(&interrupt)?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, interrupt.clone()).map_err(Failure::other)?;
    }
    Ok(interrupt)
}

/// Set by Ctrl-C, and when whoever started this process tells it to end, which they may say twice: what ended the
/// job is to be said first. They end it by force soon.
pub(crate) fn told_to_end() -> Result<Arc<AtomicBool>, Failure> {
    let told = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, told.clone()).map_err(Failure::other)?;
    }
    Ok(told)
}

/// Ctrl-C ends this process at once, with status 1, whenever `condition` is true: there is nothing to
/// clean up then.
pub(crate) fn end_at_once_while(condition: &Arc<AtomicBool>) -> Result<(), Failure> {
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, condition.clone())
            .map_err(Failure::other)?;
    }
    Ok(())
}
