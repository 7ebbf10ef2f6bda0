//! A group over a fabric: vectors are bound once, which exchanges addresses; an operation then is writes and
//! signals alone, as its schedule says.

mod bind;
mod board;
mod cache;
mod mail;
mod measure;
mod placed;
mod reduce;
mod run;
mod through;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::{ArrivalSlot, Channel, Completion, Fabric, Ticket as Moment, Wake};
use tensorwire_fabric::{Region, RemoteRegion};
use tensorwire_memory::{Arena, Buffer, Copies, Place, Slab, Window};

use crate::error::GroupError;
use crate::link::LinkCost;
use crate::ports::{CollectiveCall, Collectives, GroupStats, Handle, Reducer, VectorId};
use crate::schedule::Algorithm;
use crate::table::Table;
use bind::Purpose;
pub(crate) use bind::fuzz_binds;
use board::Board;
pub use board::{NOTICE_BYTES, NOTICES};
use cache::ScheduleCache;
use mail::Mailbox;
use placed::Home;
pub use placed::MemorySpot;
use run::{Elsewhere, Running, UNNEEDED};
pub use through::Outside;

/// Bytes of the vector that barriers use, whose content does not matter.
const BARRIER_BYTES: usize = 64;

/// Members of a group in which a message to each is soon sent.
const FEW: usize = 4;

/// Reduces nothing: of a barrier only the messages count.
#[derive(Debug)]
struct Nothing;

impl Reducer for Nothing {
    fn element_bytes(&self) -> usize {
        1
    }

    fn reduce(&self, _: &[&[u8]], _: &mut [u8], _: Option<usize>) {}

    fn reduce_into(&self, _: &mut [u8], _: &[u8], _: Option<usize>) {}
}

/// What a group is told; the same at all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupOptions {
    /// For all vectors; none: by the table.
    pub algorithm: Option<Algorithm>,
    /// What was measured; where it has no row, or is none, [`LinkCost::choose`] chooses.
    pub table: Option<Table>,
    /// The way between members that share no memory; of others it is [`LinkCost::SHARED_MEMORY`].
    pub link: LinkCost,
    /// Every reduction is in the order of members, so that all algorithms have the same bits.
    pub deterministic: bool,
    /// Bytes that are sent at a time, at most, so that what has come is reduced while the rest is on the wire; one element at
    /// least.
    pub segment_bytes: usize,
    /// So many bytes of all members together land before the first of them is reduced, at most, but a segment of each
    /// at least: what is in flight is to stay in the caches of those that share them.
    pub in_flight_bytes: usize,
    /// Of [`Algorithm::MultiRing`], from 1 to 4: others count as the nearest.
    pub rings: usize,
    /// Of several operations under way those go first whose vectors were bound first: while about so many bytes are posted and not
    /// over, the others post nothing but what is small. None: each goes as far as it can, those that were started first first.
    pub posted_bytes_max: Option<usize>,
    /// Cores that the members, all on one host, have together; None: they are on several, or nobody knows. Members may see
    /// different numbers: the least counts.
    pub cores: Option<usize>,
}

/// Shorter segments cost more messages than they save.
const SEGMENT_BYTES_LEAST: usize = 128 << 10;

impl GroupOptions {
    /// The rings that there are.
    pub(crate) fn rings(&self) -> usize {
        self.rings.clamp(1, MAX_SEQUENCES)
    }

    /// Bytes of a segment in a group of `size`. Where cores move the bytes and many send at a time it is a power of two, 128 KiB at
    /// least, of which one from each is about what is to be in flight, so that all of them are in the caches when they are
    /// reduced. Of eight members on two cores, over loopback, an all-reduce of 4 to 64 MiB in segments of 128 KiB took 0.89 of
    /// what it did in segments of 512 KiB.
    pub fn segment(&self, size: usize) -> usize {
        if self.link.overlaps {
            return self.segment_bytes;
        }
        let of_each = self.in_flight_bytes / size.saturating_sub(1).max(1);
        self.segment_bytes.min((1 << of_each.max(1).ilog2()).max(SEGMENT_BYTES_LEAST))
    }

    /// Segments of a member that land before the first of them is reduced, in a group of `size`.
    pub fn window(&self, size: usize) -> usize {
        let of_all = self.segment(size).saturating_mul(size.saturating_sub(1));
        (self.in_flight_bytes / of_all.max(1)).max(1)
    }
}

impl Default for GroupOptions {
    fn default() -> GroupOptions {
        GroupOptions {
            algorithm: None,
            table: None,
            link: LinkCost::TCP,
            deterministic: false,
            segment_bytes: 512 << 10,
            in_flight_bytes: 1 << 20,
            rings: 2,
            posted_bytes_max: None,
            cores: None,
        }
    }
}

/// Processes that reduce, broadcast and gather vectors by one-sided writes; see [`Collectives`].
#[derive(Debug)]
pub struct Group {
    fabric: Fabric,
    options: GroupOptions,
    me: usize,
    /// By member.
    ranks: Vec<Rank>,
    /// By member, its host: the number of its first member. Until the first vector is bound, each is on a host of its own.
    hosts: Vec<usize>,
    /// By member, the queue pairs; none of this one.
    channels: Vec<Vec<Channel>>,
    /// Memory of this one, by the address of its first byte.
    regions: HashMap<usize, Region>,
    opened: Vec<Opened>,
    /// Where in `opened` a member's region is, by its key.
    opened_at: HashMap<(usize, u64), usize>,
    vectors: Vec<Vector>,
    /// Where addends land; each vector has a place in one.
    landings: Vec<Window>,
    landing_regions: Vec<Region>,
    running: Vec<Running>,
    /// Once it is opened.
    mailbox: Option<Mailbox>,
    board: Option<Board>,
    /// Operations started so far.
    started: u64,
    /// What members said and nobody asked for yet.
    inbox: Vec<VecDeque<Vec<u8>>>,
    /// Binds so far, which messages are numbered by.
    binds: u32,
    moment: Moment,
    /// Kept for its memory.
    completions: Vec<Completion>,
    /// A block of a reduction.
    scratch: Window,
    bytes_sent: u64,
    bytes_over_wire: u64,
    copies: Copies,
}

/// What a group waits for, to be waited for by who does not hold the group.
#[derive(Clone, Debug)]
pub struct Watch {
    fabric: Fabric,
}

impl Watch {
    /// Returns the present moment: take it before [`Collectives::progress`].
    pub fn now(&self) -> Moment {
        self.fabric.ticket()
    }

    /// Waits until something may have moved since a moment, or until the deadline.
    pub fn wait(&self, moment: Moment, deadline: Deadline) {
        let _: Wake = self.fabric.wait(moment, deadline);
    }
}

/// A region of another member.
#[derive(Debug)]
struct Opened {
    region: RemoteRegion,
    /// Its memory, where it is mapped here.
    window: Option<Window>,
}

/// A vector that all members have bound.
#[derive(Debug)]
struct Vector {
    buffer: Buffer,
    /// For all of it; see [`Group::algorithm_of`].
    algorithm: Algorithm,
    region: Region,
    landing: Option<Landing>,
    /// By member; none of this one.
    remotes: Vec<Option<Remote>>,
    /// By counter and member: signals sent, and signals awaited.
    sent: Vec<Vec<u64>>,
    awaited: Vec<Vec<u64>>,
    /// Operations so far.
    epoch: u64,
    /// Where it lies, while an operation is under way on other memory.
    home: Option<Home>,
    others: Others,
    busy: bool,
    schedules: ScheduleCache,
}

/// What whoever is done with a vector's last operation knows of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    /// Nothing: what is written to them may meet what they have not left.
    Unknown,
    /// All have begun it, and so are done with the one before. What landed in its half of the room they may still need.
    Begun,
    /// All have begun it, and need nothing more of what landed.
    Settled,
    /// They will say that they need nothing more of it: that is to be awaited.
    Leaving,
}

/// Where addends of a vector land here.
#[derive(Clone, Copy, Debug)]
struct Landing {
    /// In [`Group::landings`].
    window: usize,
    /// Bytes from its start.
    offset: usize,
    bytes: usize,
}

/// What is known of a member's end of a vector.
#[derive(Debug)]
struct Remote {
    /// In [`Group::opened`].
    vector: usize,
    offset: u64,
    landing: Option<(usize, u64)>,
    /// By counter: what it looks at for our signals, and what we look at for its.
    theirs: Vec<ArrivalSlot>,
    ours: Vec<ArrivalSlot>,
}

impl Group {
    /// Opens a group of the processes `ranks`, of which this is the one at index `me`. All of them call this; the
    /// fabric is connected to them, and the group takes its completions and messages for itself.
    ///
    /// # Errors
    /// When a member is lost, of another mind, or does not come before the deadline.
    pub fn open(
        fabric: Fabric,
        ranks: &[Rank],
        me: usize,
        options: GroupOptions,
        deadline: Deadline,
    ) -> Result<Group, GroupError> {
        let mut channels = Vec::new();
        for (member, rank) in ranks.iter().enumerate() {
            let mut to = Vec::new();
            if member != me {
                let pairs = (0..).map_while(|pair| fabric.channel(*rank, pair).ok());
                to.extend(pairs.take(COUNTERS));
                if to.is_empty() {
                    return Err(GroupError::Failed(format!(
                        "the fabric is not connected to rank {rank}; connect it to all members first"
                    )));
                }
            }
            channels.push(to);
        }
        let moment = fabric.ticket();
        let scratch = Slab::anonymous(reduce::BLOCK_BYTES).map_err(|error| failed(&error))?;
        let mut group = Group {
            fabric,
            me,
            ranks: ranks.to_vec(),
            hosts: (0..ranks.len()).collect(),
            channels,
            regions: HashMap::new(),
            opened: Vec::new(),
            opened_at: HashMap::new(),
            vectors: Vec::new(),
            landings: Vec::new(),
            landing_regions: Vec::new(),
            running: Vec::new(),
            mailbox: None,
            board: None,
            started: 0,
            inbox: ranks.iter().map(|_| VecDeque::new()).collect(),
            binds: 0,
            moment,
            completions: Vec::new(),
            scratch: Window::new(&scratch).map_err(|error| failed(&error))?,
            bytes_sent: 0,
            bytes_over_wire: 0,
            copies: Copies::default(),
            options: GroupOptions {
                algorithm: Some(Algorithm::RecursiveDoubling),
                deterministic: false,
                ..options.clone()
            },
        };
        // the first vector is the barrier's; with it members say who shares memory, which the others ask
        let slab = group.alloc(BARRIER_BYTES)?;
        let place = Place { offset: 0, bytes: 0 };
        let arena = Arena::new(&slab, &[place]).map_err(|error| failed(&error))?;
        group.bind(&arena.into_buffers(), deadline)?;
        group.options = GroupOptions { cores: group.options.cores, ..options };
        Ok(group)
    }

    /// Can this process read and write what every other member lets it?
    pub fn shares_memory(&self) -> bool {
        self.hosts.iter().all(|host| *host == self.hosts[0])
    }

    /// On how many hosts members are, where some share memory and some do not.
    fn shared_hosts(&self) -> Option<usize> {
        let is_first = |member: &usize| self.hosts[*member] == *member;
        let hosts = (0..self.size()).filter(is_first).count();
        (2..self.size()).contains(&hosts).then_some(hosts)
    }

    /// By member, its host: members that have the same number share memory.
    pub fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    /// What a vector of so many bytes is reduced by.
    pub fn algorithm(&self, bytes: usize) -> Algorithm {
        let GroupOptions { algorithm, table, link, .. } = &self.options;
        let hosts = self.shared_hosts();
        let of = |table: &Table| table.choose(self.size(), hosts, bytes);
        let measured = || table.as_ref().and_then(of);
        let modelled = || match self.shares_memory() {
            true => LinkCost::SHARED_MEMORY.choose(self.size(), bytes, &self.options),
            false => link.choose_on_hosts(&self.hosts, bytes, &self.options),
        };
        match algorithm.or_else(measured).unwrap_or_else(modelled) {
            // what it is where nobody shares a host with somebody, or all do, or in the order of members
            Algorithm::Hierarchical if self.options.deterministic || hosts.is_none() => {
                Algorithm::Direct
            }
            algorithm => algorithm,
        }
    }

    /// What the first bytes of a vector are reduced by: what suits so many, where the vector was given what that takes.
    fn algorithm_of(&self, vector: &Vector, bytes: usize) -> Algorithm {
        if bytes == vector.buffer.bytes() && vector.home.is_none() {
            return vector.algorithm;
        }
        let suits = self.algorithm(bytes);
        let room = vector.landing.map_or(0, |landing| landing.bytes);
        let fits = self.landing_bytes_max(suits, bytes) <= room
            && self.counters(suits) <= self.counters(vector.algorithm)
            && (suits != Algorithm::Shared || self.shares_memory());
        match (fits, vector.home.is_some()) {
            (true, _) => suits,
            (false, false) => vector.algorithm,
            // longer than the vector, which has room for this one at any length
            (false, true) if self.shares_memory() => Algorithm::Shared,
            (false, true) => Algorithm::Direct,
        }
    }

    /// Takes the completions there are.
    fn land(&mut self) -> Result<(), GroupError> {
        self.fabric.poll(&mut self.completions);
        let mut first = Ok(());
        for completion in self.completions.drain(..) {
            if let Err(error) = completion.result {
                if completion.token == UNNEEDED {
                    // who has left needs it no more; whether it should not have, is asked of what is awaited
                    continue;
                }
                // its operation is never over: the write stays in flight
                let member = self.ranks.iter().position(|rank| *rank == completion.peer);
                let (rank, reason) = (completion.peer, error.to_string());
                let lost = GroupError::Lost { member: member.unwrap_or(0), rank, reason };
                first = first.and(Err(lost));
                continue;
            }
            let mut running = self.running.iter_mut();
            if let Some(of) = running.find(|running| running.handle.0 == completion.token) {
                of.in_flight -= 1;
            }
        }
        first
    }

    /// A member that something is awaited of, and that is gone.
    fn check_awaited(&self) -> Result<(), GroupError> {
        for member in self.running.iter().flat_map(Running::awaits) {
            self.check(member)?;
        }
        let (members, is_of_any) = self.mail_awaits();
        for member in members {
            self.check(member)?;
        }
        if is_of_any {
            // as long as anybody is left, he may send it
            let others = || (0..self.size()).filter(|member| *member != self.me);
            let is_left = |member: &usize| self.fabric.gone(self.ranks[*member]).is_none();
            others()
                .find(is_left)
                .or_else(|| others().next())
                .map_or(Ok(()), |at| self.check(at))?;
        }
        Ok(())
    }

    fn next_handle(&mut self) -> Handle {
        let handle = Handle(self.started);
        self.started += 1;
        handle
    }

    /// Moves operations and mail as far as they go; true if anything has moved.
    fn advance(&mut self) -> Result<bool, GroupError> {
        Ok(self.run()? | self.carry_mail()? | self.post_notices()?)
    }

    /// The moments of this group's fabric, to wait for news of without the group.
    pub fn watch(&self) -> Watch {
        Watch { fabric: self.fabric.clone() }
    }

    /// Fails if a member is gone, with the first that went: others may have followed it.
    pub(crate) fn check(&self, member: usize) -> Result<(), GroupError> {
        let rank = self.ranks[member];
        if let Some(fault) = self.fabric.fault()
            && let Some(first) = self.ranks.iter().position(|rank| *rank == fault.rank)
        {
            return Err(self.lost(first, fault.cause.to_string()));
        }
        match self.fabric.gone(rank) {
            None => Ok(()),
            Some(gone) => Err(self.lost(member, gone.to_string())),
        }
    }
}

/// Sequences that may go side by side.
const MAX_SEQUENCES: usize = 4;
/// Of each sequence.
const TAGS: usize = 2;
/// What counts writes, and is signalled.
const COUNTERS: usize = MAX_SEQUENCES * TAGS;

impl Collectives for Group {
    fn size(&self) -> usize {
        self.ranks.len()
    }

    fn me(&self) -> usize {
        self.me
    }

    fn alloc(&mut self, bytes: usize) -> Result<Slab, GroupError> {
        // fits: usize is 64 bits wide
        let region = self.fabric.alloc_region(bytes as u64).map_err(|error| failed(&error))?;
        let slab = region.slab();
        self.regions.insert(slab.address(), region);
        Ok(slab)
    }

    fn bind(
        &mut self,
        vectors: &[Buffer],
        deadline: Deadline,
    ) -> Result<Vec<VectorId>, GroupError> {
        self.introduce(vectors, Purpose::Operations, deadline)
    }

    fn vector_bytes(&self, vector: VectorId) -> Result<usize, GroupError> {
        Ok(self.vector(vector)?.buffer.bytes())
    }

    fn start_part(
        &mut self,
        vector: VectorId,
        bytes: usize,
        call: CollectiveCall,
    ) -> Result<Handle, GroupError> {
        let handle = self.begin(vector, bytes, call, Elsewhere::No)?;
        self.progress()?;
        Ok(handle)
    }

    fn progress(&mut self) -> Result<bool, GroupError> {
        self.land()?;
        let moved = self.advance()?;
        if !moved && let Err(lost) = self.check_awaited() {
            // whoever leaves in good order has written all before: what came since we looked counts
            self.land()?;
            return if self.advance()? { Ok(true) } else { Err(lost) };
        }
        Ok(moved)
    }

    fn is_done(&mut self, handle: Handle) -> bool {
        !self.running.iter().any(|running| running.handle == handle) && !self.has_mail(handle)
    }

    fn observe(&mut self) {
        self.moment = self.fabric.ticket();
    }

    fn wait_for_news(&mut self, deadline: Deadline) {
        let _: Wake = self.fabric.wait(self.moment, deadline);
    }

    fn waiting_for(&self) -> String {
        let (mut awaited, is_of_any) = self.mail_awaits();
        if is_of_any {
            awaited.extend((0..self.size()).filter(|member| *member != self.me));
        }
        awaited.extend(self.running.iter().flat_map(Running::awaits));
        awaited.sort_unstable();
        awaited.dedup();
        let names =
            awaited.iter().map(|member| format!("member {member} (rank {})", self.ranks[*member]));
        let names: Vec<String> = names.collect();
        if names.is_empty() { "this process's own writes".to_string() } else { names.join(", ") }
    }

    fn barrier(&mut self, deadline: Deadline) -> Result<(), GroupError> {
        let call = match self.shares_memory() || self.size() < FEW {
            true => CollectiveCall::AllGather { element_bytes: 1 },
            // fewer messages
            false => CollectiveCall::AllReduce(Arc::new(Nothing)),
        };
        // the barrier's vector is the first
        let handle = self.start(VectorId(0), call)?;
        self.wait(handle, deadline)
    }

    fn stats(&self) -> GroupStats {
        GroupStats {
            operations: self.started,
            bytes_sent: self.bytes_sent,
            bytes_over_wire: self.bytes_over_wire,
            registered_bytes: self.regions.values().map(Region::bytes).sum(),
            copies: self.copies,
        }
    }

    fn close(&mut self, deadline: Deadline) -> Result<(), GroupError> {
        self.fabric.close(deadline).map_err(|error| failed(&error))
    }
}

fn failed(error: &dyn std::fmt::Display) -> GroupError {
    GroupError::Failed(error.to_string())
}
