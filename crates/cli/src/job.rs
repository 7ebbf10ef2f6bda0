//! What every command that starts processes does alike: how its members are started.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tensorwire::program;
use tensorwire_launch::{Hosts, JobSpec};

use super::Failure;

pub(crate) use tensorwire::program::{end_at_once_while, interrupt};

/// A job on this machine whose members are this program. The first Ctrl-C ends it in good order; the second one
/// does not wait: members end when they see their launcher gone.
pub(crate) fn job_spec(
    listen: Option<SocketAddr>,
    liveness_ms: u64,
    kind: &str,
    roles: Vec<String>,
    payload: serde_json::Value,
) -> Result<JobSpec, Failure> {
    job_spec_until(program::interrupt()?, listen, liveness_ms, kind, roles, payload)
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
        marks_members: false,
        verbs: None,
        listen,
        store: None,
        liveness: Duration::from_millis(liveness_ms),
        interrupt,
    })
}

impl From<program::ProgramError> for Failure {
    fn from(error: program::ProgramError) -> Failure {
        Failure::other(error)
    }
}
