//! Why a call, or what it needs, came to nothing.

use std::net::SocketAddr;

/// What happened, with whom, and how to mend it.
#[derive(Debug, thiserror::Error)]
pub enum RpcError {
    #[error("cannot start the threads of an RPC server or client: {source}; see ulimit -u and -n")]
    Runtime { source: std::io::Error },
    #[error(
        "cannot serve RPC at {at}: {reason}; choose a free port of an address of this host, or port 0"
    )]
    Listen { at: SocketAddr, reason: String },
    #[error("cannot reach the RPC server at {at}: {reason}; is it up, and no firewall between?")]
    Unreachable { at: SocketAddr, reason: String },
    #[error("the RPC server at {at} is gone: {reason}; look at its log and exit status")]
    Lost { at: SocketAddr, reason: String },
    #[error(
        "the deadline passed while {doing} ({at}); is that process stopped, or the deadline too short for so many bytes?"
    )]
    TimedOut { doing: &'static str, at: SocketAddr },
    #[error(
        "the RPC server at {at} refused the call ({code}): {message}; do both run the same version?"
    )]
    Refused { at: SocketAddr, code: &'static str, message: String },
}

impl RpcError {
    /// True if the other end was lost.
    pub fn is_lost(&self) -> bool {
        matches!(self, RpcError::Lost { .. })
    }
}
