//! Calls of gRPC where the baselines are left out of the build: there are none, and whoever asks is refused before.

use std::net::SocketAddr;

use tensorwire_base::Deadline;

use super::WriteSpec;
use super::member::WriteError;
use super::sender::Run;

/// This build has no gRPC.
pub(super) const BUILT_IN: bool = false;

/// Never made.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("this program was built without gRPC")]
    Absent,
}

impl CallError {
    /// True if the other end was lost.
    pub(super) fn is_lost(&self) -> bool {
        false
    }
}

/// Never made.
pub(super) enum Server {}

impl Server {
    pub(super) fn start(_at: SocketAddr, _bytes: usize) -> Result<Server, WriteError> {
        Err(CallError::Absent.into())
    }

    pub(super) fn address(&self) -> SocketAddr {
        match *self {}
    }

    pub(super) fn stop(self, _deadline: Deadline) -> Result<u64, WriteError> {
        match self {}
    }
}

/// Never made.
pub(super) enum Caller {}

impl Caller {
    pub(super) fn connect(_at: SocketAddr, _spec: &WriteSpec) -> Result<Caller, WriteError> {
        Err(CallError::Absent.into())
    }

    pub(super) fn round_trips(&mut self) -> Result<Vec<f64>, WriteError> {
        match *self {}
    }

    pub(super) fn throughput(&mut self) -> Result<Run, WriteError> {
        match *self {}
    }
}
