//! What a fabric is told when it is opened, and the plain data that peers learn of each other. Knows
//! no socket and no memory.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use tensorwire_base::{Incarnation, JobId, Rank};

use crate::arrival::ArrivalMode;
use crate::neighbours::HostId;
use crate::sim::SimNetwork;
use crate::verbs::VerbsOptions;

/// One life of one process of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    pub rank: Rank,
    /// Tells a process from one that had its rank before.
    pub incarnation: Incarnation,
}

/// What every process of a job knows, and no stranger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobCredentials {
    pub job_id: JobId,
    pub secret: Secret,
}

/// The job's shared secret. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

/// The transport; chosen once, in [`crate::Fabric::open`].
#[derive(Clone, Debug)]
pub enum Backend {
    /// Several fabrics in one process, with a seeded, adversarial network between them.
    Sim(SimNetwork),
    /// Processes of one host: peers write into each other's mapped memory.
    Shm,
    /// Processes of any hosts: the receiver reads from the socket straight into the region.
    Tcp,
    /// Processes of hosts with an RDMA NIC: reliable connected queue pairs of libibverbs.
    Verbs(VerbsOptions),
}

/// The paper's `CreateRdmaDevice(num_cqs, num_qps_per_peer, local_endpoint)`, and what a job adds.
#[derive(Clone, Debug)]
pub struct FabricConfig {
    /// Who this process is.
    pub me: Identity,
    pub job: JobCredentials,
    /// The address to listen on (tcp, verbs). Port 0: the system chooses. Peers must be able to reach the address.
    pub endpoint: SocketAddr,
    /// Threads that progress and poll completions (tcp, verbs).
    pub completion_queues: usize,
    /// The same in all processes of a job.
    pub queue_pairs_per_peer: usize,
    /// Most memcpys of one queue pair that are posted and not yet polled.
    pub queue_depth: usize,
    /// Size of this process's arrival table, 8 bytes a slot.
    pub arrival_slots: usize,
    /// The time that a wait spins before it blocks. On tcp a wait receives what comes meanwhile, where no other process rings the doorbell.
    pub spin: Duration,
    /// The arrival mode of this process's signals (verbs, sim). None: `write-imm`. shm and tcp have no other.
    pub arrival: Option<ArrivalMode>,
    /// Payload is encrypted on its way (tcp). What is said beside it always is. The same in all processes of a job.
    pub encrypt: bool,
    /// The host of this process (tcp, verbs): peers that name the same one are reached through shared memory. None: all
    /// are reached by the backend. All processes of a job name one, or none does.
    pub host: Option<HostId>,
    /// How long a silent host is believed to be alive, if that is longer than it takes to be sure (tcp, verbs).
    pub liveness: Duration,
    /// For tests: take `flag-tail` although the device does not promise that writes land in order.
    pub trust_tail: bool,
}

impl FabricConfig {
    /// Returns the defaults: loopback, 4 completion queues, 4 queue pairs a peer, 256 memcpys deep, 16 Ki
    /// arrival slots, 20 µs of spinning, nothing encrypted but what is said beside the data.
    pub fn new(me: Identity, job: JobCredentials) -> FabricConfig {
        FabricConfig {
            me,
            job,
            endpoint: SocketAddr::from(([127, 0, 0, 1], 0)),
            completion_queues: 4,
            queue_pairs_per_peer: 4,
            queue_depth: 256,
            arrival_slots: 16 << 10,
            spin: Duration::from_micros(20),
            arrival: None,
            encrypt: false,
            host: None,
            liveness: Duration::ZERO,
            trust_tail: false,
        }
    }
}

/// The address of a fabric, which a peer needs to connect. Travels as text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// In this process, through the `SimNetwork` that both were opened with.
    Sim,
    /// An abstract Unix socket of this host; it leaves no file.
    Shm(String),
    /// A listening TCP socket.
    Tcp(SocketAddr),
    /// A listening TCP socket, over which queue pairs are introduced to each other.
    Verbs(SocketAddr),
    /// One of several ways: those on this host use the abstract Unix socket of that name, all others what is far.
    Near { host: HostId, name: String, far: Box<Endpoint> },
}

impl Endpoint {
    /// Where processes of other hosts call it. One that is alone on its host knows no other way, and need not.
    pub(crate) fn far(&self) -> &Endpoint {
        match self {
            Endpoint::Near { far, .. } => far,
            only => only,
        }
    }
}

/// A peer to connect to: who must answer, and at which address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    pub rank: Rank,
    pub incarnation: Incarnation,
    pub endpoint: Endpoint,
}

/// The error of a text that is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no endpoint; expected sim, shm:NAME, tcp:ADDRESS:PORT, verbs:ADDRESS:PORT or near:HOST:NAME+ and one of the last two"
)]
pub struct EndpointError {
    pub text: String,
}

impl PeerAddress {
    /// Returns who must answer.
    pub fn member(&self) -> Identity {
        Identity { rank: self.rank, incarnation: self.incarnation }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Sim => f.write_str("sim"),
            Endpoint::Shm(name) => write!(f, "shm:{name}"),
            Endpoint::Tcp(address) => write!(f, "tcp:{address}"),
            Endpoint::Verbs(address) => write!(f, "verbs:{address}"),
            Endpoint::Near { host, name, far } => write!(f, "near:{host}:{name}+{far}"),
        }
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Endpoint, EndpointError> {
        let wrong = || EndpointError { text: text.into() };
        match text.split_once(':') {
            None if text == "sim" => Ok(Endpoint::Sim),
            Some(("shm", name)) if !name.is_empty() && name.len() < 100 => {
                Ok(Endpoint::Shm(name.into()))
            }
            Some(("tcp", address)) => address.parse().map(Endpoint::Tcp).map_err(|_| wrong()),
            Some(("verbs", address)) => address.parse().map(Endpoint::Verbs).map_err(|_| wrong()),
            Some(("near", both)) => Endpoint::near(both).ok_or_else(wrong),
            _ => Err(wrong()),
        }
    }
}

impl Endpoint {
    /// Reads `HOST:NAME+FAR`.
    fn near(both: &str) -> Option<Endpoint> {
        let (near, far) = both.split_once('+')?;
        let (host, name) = near.split_once(':')?;
        let far: Endpoint = far.parse().ok()?;
        let is_far = matches!(far, Endpoint::Tcp(_) | Endpoint::Verbs(_));
        let is_name = !name.is_empty() && name.len() < 100;
        let host = host.parse().ok().filter(|_| is_far && is_name)?;
        Some(Endpoint::Near { host, name: name.into(), far: Box::new(far) })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (incarnation {})", self.rank, self.incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_travel_as_text() {
        for text in [
            "sim",
            "shm:tensorwire-0123",
            "tcp:127.0.0.1:80",
            "tcp:[::1]:9",
            "verbs:10.9.0.1:4000",
            "near:00000000000000ab:tensorwire-1+tcp:1.2.3.4:5",
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "shm:",
            "tcp:nowhere",
            "udp:1.2.3.4:5",
            "sim:1",
            "near:1:+tcp:1.2.3.4:5",
            "near:1:a",
            "near:1:a+shm:b",
            "near:1:a+near:1:a+tcp:1.2.3.4:5",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_secret_is_never_printed() {
        let job = JobCredentials { job_id: JobId(7), secret: Secret([0xab; 32]) };
        assert!(!format!("{job:?}").contains("171"));
    }
}
