//! Why a message over ZeroMQ did not go or come.

use tensorwire_base::Rank;

/// What happened, with whom, and how to mend it.
#[derive(Debug, thiserror::Error)]
pub enum ZmqError {
    #[error(
        "cannot set up a ZeroMQ socket: {source}; see ulimit -n, and that peers are fewer than 1000"
    )]
    Setup { source: ::zmq::Error },
    #[error("the thread that lets peers in cannot be started: {source}; see ulimit -u")]
    Thread { source: std::io::Error },
    #[error(
        "cannot listen at {at}: {source}; use tcp://ADDRESS:* with an address of this host, or ipc://FILE in a folder that can be written"
    )]
    Listen { at: String, source: ::zmq::Error },
    #[error(
        "cannot connect to rank {rank} at '{endpoint}': {source}; it must be what that rank's node says it listens at"
    )]
    Connect { rank: Rank, endpoint: String, source: ::zmq::Error },
    #[error("rank {rank} is not connected; connect it before sending")]
    NoPeer { rank: Rank },
    #[error("cannot send to rank {rank}: {source}; is this process out of memory?")]
    Send { rank: Rank, source: ::zmq::Error },
    #[error("cannot receive: {source}; is this process out of memory or files?")]
    Receive { source: ::zmq::Error },
}
