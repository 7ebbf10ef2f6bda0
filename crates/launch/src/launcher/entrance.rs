//! Where the members of a job come in.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::time::Duration;

use tensorwire_base::Deadline;

use crate::job::{JobError, JobSpec};
use crate::rendezvous::JoinedProcess;
use crate::takeover::Abandoned;

/// How long a launcher that takes a job over waits for the port that its members call.
const PORT_PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

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
        // its launcher is dead, and somebody may have had the port since
        let patience = spec.abandoned.as_ref().map_or(Duration::ZERO, |_| PORT_PATIENCE);
        let go_on = || !spec.interrupt.load(Ordering::Relaxed);
        let listener = bind_within(wanted, Deadline::after(patience), &go_on).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let listen = listener.local_addr().map_err(failed)?;
        let mut at = listen;
        if let Some(address) = front.reached_at {
            at.set_ip(address);
        }
        Ok(Entrance { listener, listen, at, waiting: VecDeque::new() })
    }
}

fn bind_within(
    at: SocketAddr,
    deadline: Deadline,
    go_on: &dyn Fn() -> bool,
) -> std::io::Result<TcpListener> {
    loop {
        match TcpListener::bind(at) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && !deadline.passed() && go_on() => {
                std::thread::sleep(LOOK_AGAIN);
            }
            bound => return bound,
        }
    }
}
