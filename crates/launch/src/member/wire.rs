//! How a member's bytes travel: the transport is agreed on, a fabric is opened over it and connected with the peers
//! that the launcher introduces.

use std::time::Duration;

use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::Identity;
use tensorwire_fabric::{
    ArrivalMode, Backend, ConnectError, Endpoint, Fabric, FabricConfig, HostId, OpenFabricError,
    PeerAddress, VerbsOptions, verbs_usable,
};

use super::{Introduction, Member, MemberError};
use crate::control::FromMember;
use crate::negotiate::Offer;
use crate::transport::Transport;

/// Queue pairs to each peer. Xue et al. §5 use as many, and spread edges over them; over TCP edges go over one.
pub const QUEUE_PAIRS: usize = 4;

/// How long a replacement tries to reach one worker before it tries the next: some may not expect it yet.
const ONE_TRY: Duration = Duration::from_secs(1);
/// How long it waits before it tries them all again.
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// How a member's bytes travel.
#[derive(Clone, Debug)]
pub struct WireOptions {
    pub transport: Transport,
    /// Which NIC, if it comes to verbs.
    pub verbs: VerbsOptions,
    pub arrival: Option<ArrivalMode>,
    /// What leaves this host is encrypted: over TCP, and where that is open, over nothing else.
    pub encrypt: bool,
    /// How long a wait spins before it blocks: none where processes share cores.
    pub spin: Duration,
    /// To each peer.
    pub queue_pairs: usize,
    pub peers: Peers,
}

/// With whom a member connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peers {
    /// Everybody.
    All,
    /// The ranks below `workers` with the others, and nobody with his like (ps-lite's workers and servers).
    Across { workers: u32 },
    /// These, each of whom names this one; may be nobody.
    These(Vec<Rank>),
}

impl Peers {
    fn connects(&self, rank: Rank, other: Rank) -> bool {
        rank != other
            && match self {
                Peers::All => true,
                Peers::Across { workers } => (rank.0 < *workers) != (other.0 < *workers),
                Peers::These(ranks) => ranks.contains(&other),
            }
    }
}

impl Member {
    /// Opens a fabric over the transport that `options` name, or that is agreed on, and connects it to the
    /// other members, or to those that `options` want. `plan_digest` must be the same everywhere: the launcher compares.
    ///
    /// # Errors
    /// When this host cannot use the transport, or a peer cannot be reached in time.
    pub fn connect(&self, options: &WireOptions, plan_digest: &str) -> Result<Fabric, MemberError> {
        let [fabric] = self.connect_all([options], plan_digest)?;
        Ok(fabric)
    }

    /// As [`Member::connect`], several fabrics at once, each with peers of its own. All members open as many, in
    /// the same order, and all over the transport of the first.
    ///
    /// # Errors
    /// As [`Member::connect`].
    pub fn connect_all<const N: usize>(
        &self,
        options: [&WireOptions; N],
        plan_digest: &str,
    ) -> Result<[Fabric; N], MemberError> {
        let (fabrics, _) = self.connect_telling(options, plan_digest, None)?;
        Ok(fabrics)
    }

    /// As [`Member::connect_all`]; besides, each member tells all others `word` over the sealed control connections, and hears
    /// theirs, by rank. Who tells nothing hears nothing.
    ///
    /// # Errors
    /// As [`Member::connect`].
    pub fn connect_telling<const N: usize>(
        &self,
        options: [&WireOptions; N],
        plan_digest: &str,
        word: Option<String>,
    ) -> Result<([Fabric; N], Vec<Option<String>>), MemberError> {
        let transport = match options.first() {
            Some(first) => self.transport(first)?,
            None => Transport::Auto,
        };
        let mut fabrics = Vec::with_capacity(N);
        for options in options {
            fabrics.push(self.open_fabric(options, transport)?);
        }
        // behind where the fabrics are found
        let tells = word.is_some();
        let endpoints = fabrics.iter().map(|fabric| fabric.endpoint().to_string()).chain(word);
        let endpoints = endpoints.collect();
        let endpoints = self.introduce(endpoints, plan_digest)?;
        // all listen: nobody reads anything any more
        let deadline = Deadline::after(self.liveness() * 4);
        for (index, (fabric, options)) in fabrics.iter().zip(options).enumerate() {
            let peers = self.peers(&endpoints, index, &options.peers)?;
            match self.store() {
                Some(store) if store.replaces().is_some() => {
                    self.call_workers(fabric, peers, deadline)?;
                }
                _ => fabric.connect(&peers, deadline)?,
            }
        }
        if self.store().is_some_and(|store| store.replaces().is_none()) {
            self.tell(&FromMember::Connected)?;
        }
        let told = |endpoints: Option<Vec<String>>| endpoints?.into_iter().nth(N).filter(|_| tells);
        let words = endpoints.into_iter().map(told).collect();
        let fabrics = fabrics.try_into().unwrap_or_else(|_| unreachable!("as many as options"));
        Ok((fabrics, words))
    }

    fn open_fabric(
        &self,
        options: &WireOptions,
        transport: Transport,
    ) -> Result<Fabric, MemberError> {
        let me = self.identity.member(self.rank());
        let mut config = FabricConfig::new(me, self.identity.credentials.clone());
        config.spin = options.spin;
        config.encrypt = options.encrypt;
        config.queue_pairs_per_peer = options.queue_pairs;
        // fits: a job has far fewer than 2^32 members
        let ranks = (0..self.world() as u32).map(Rank);
        let peers = ranks.filter(|rank| options.peers.connects(self.rank(), *rank)).count();
        // each has a thread: no more than there can be completions for
        let most = match transport {
            // they take turns with what comes of a peer
            Transport::Tcp => {
                peers.min(std::thread::available_parallelism().map_or(1, usize::from))
            }
            _ => options.queue_pairs * peers,
        };
        config.completion_queues = config.completion_queues.min(most).max(1);
        config.endpoint = self.reached_at;
        config.liveness = self.liveness();
        // one that is alone on its host has nobody to share it with
        let near = options.transport == Transport::Auto
            && (2..self.world()).contains(&self.members_here());
        config.host = near.then(|| HostId::here(&self.assignment.host.to_string()));
        let backend = match transport {
            Transport::Auto | Transport::Shm => Backend::Shm,
            Transport::Tcp => Backend::Tcp,
            Transport::Verbs => {
                config.arrival = options.arrival;
                Backend::Verbs(self.verbs(options))
            }
        };
        Fabric::open(backend, config).map_err(|error| match error {
            OpenFabricError::Verbs(unusable) => MemberError::Verbs(unusable),
            error => MemberError::Open(error),
        })
    }

    /// Whom a member's fabric of this number connects with, and where they are.
    fn peers(
        &self,
        endpoints: &[Option<Vec<String>>],
        index: usize,
        wanted: &Peers,
    ) -> Result<Vec<PeerAddress>, MemberError> {
        let mut peers = Vec::new();
        for (rank, endpoints) in (0u32..).map(Rank).zip(endpoints) {
            if let Some(endpoints) =
                endpoints.as_ref().filter(|_| wanted.connects(self.rank(), rank))
            {
                let Identity { incarnation, .. } = self.identity.member(rank);
                let endpoint = endpoints.get(index).cloned().unwrap_or_default();
                let parsed: Result<Endpoint, _> = endpoint.parse();
                let endpoint = parsed.map_err(|_| MemberError::BadEndpoint { rank, endpoint })?;
                peers.push(PeerAddress { rank, incarnation, endpoint });
            }
        }
        Ok(peers)
    }

    /// The transport, as it was given or is agreed on.
    fn transport(&self, options: &WireOptions) -> Result<Transport, MemberError> {
        let spread = self.members_here() < self.world();
        match options.transport.settled(spread, options.encrypt) {
            Some(transport) => Ok(transport),
            None => self.negotiate(&self.verbs(options)),
        }
    }

    /// Processes of a host take NICs in turn.
    fn verbs(&self, options: &WireOptions) -> VerbsOptions {
        let between_hosts = options.transport == Transport::Auto;
        let turn = self.assignment.members_before;
        VerbsOptions { turn, between_hosts, ..options.verbs.clone() }
    }

    /// Says whether this host can use RDMA, and hears what all will take.
    fn negotiate(&self, options: &VerbsOptions) -> Result<Transport, MemberError> {
        let verbs = verbs_usable(options, Some(self.reached_at.ip())).map_err(Into::into);
        self.tell(&FromMember::Offer(Offer { verbs }))?;
        match self.told.recv_timeout(self.others_patience()) {
            Ok(Introduction::Transport(transport)) => Ok(transport),
            _ => {
                let waited_s = self.others_patience().as_secs();
                Err(MemberError::NoTransport { waited_s })
            }
        }
    }

    /// Connects a server that comes later to the workers, each when it is ready for it. A worker that dies
    /// meanwhile is not waited for.
    fn call_workers(
        &self,
        fabric: &Fabric,
        mut workers: Vec<PeerAddress>,
        deadline: Deadline,
    ) -> Result<(), ConnectError> {
        loop {
            let mut failed = None;
            workers.retain(|worker| {
                let one_try = deadline.min(Deadline::after(ONE_TRY));
                let connected = self.control_events.lives(worker.rank.0)
                    && match fabric.connect(std::slice::from_ref(worker), one_try) {
                        Ok(()) => true,
                        Err(error) => {
                            failed = Some(error);
                            false
                        }
                    };
                !connected && self.control_events.lives(worker.rank.0)
            });
            match failed.filter(|_| !workers.is_empty()) {
                None => return Ok(()),
                Some(error) if deadline.passed() => return Err(error),
                Some(_) => std::thread::sleep(TRY_AGAIN.min(deadline.remaining())),
            }
        }
    }
}
