//! Where the members of a job come in.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};

use crate::job::{JobError, JobSpec};
use crate::rendezvous::JoinedProcess;
use crate::takeover::Abandoned;

/// Where members come in.
pub(super) struct Entrance {
    pub(super) listener: TcpListener,
    pub(super) listen: SocketAddr,
    /// Where they find it.
    pub(super) at: SocketAddr,
    /// Who is there already, by rank.
    pub(super) waiting: VecDeque<Option<JoinedProcess>>,
}

impl Entrance {
    pub(super) fn open(spec: &JobSpec) -> Result<Entrance, JobError> {
        if let Some(gathering) = &spec.gathering {
            let (listener, waiting) = gathering.take_over()?;
            let at = gathering.reached_at(&waiting);
            return Ok(Entrance { listener, listen: at, at, waiting });
        }
        let front = spec.hosts.front(spec.listen, spec.roles.len())?;
        // its members call there
        let wanted = spec.abandoned.as_ref().map_or(front.listen, Abandoned::listen);
        let failed = |source| JobError::Listen { at: wanted, source };
        let listener = TcpListener::bind(wanted).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let listen = listener.local_addr().map_err(failed)?;
        let mut at = listen;
        if let Some(address) = front.reached_at {
            at.set_ip(address);
        }
        Ok(Entrance { listener, listen, at, waiting: VecDeque::new() })
    }
}
