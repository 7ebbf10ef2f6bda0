//! Making vectors known: each member tells each other where they lie, where addends land, and what it looks at.

use serde::{Deserialize, Serialize};
use tensorwire_base::Deadline;
use tensorwire_fabric::{
    ArrivalSlot, OpenRegionError, Region, RegionDescriptor, SendMessageError, Wake,
};
use tensorwire_memory::{Buffer, Window};

use super::cache::ScheduleCache;
use super::{
    COUNTERS, Group, GroupOptions, Landing, MAX_SEQUENCES, Opened, Others, Remote, TAGS, Vector,
    failed,
};
use crate::error::GroupError;
use crate::link::LinkCost;
use crate::ports::{Collectives, VectorId};
use crate::schedule::{Algorithm, doubling, hierarchical};
use crate::table::Table;

/// Addends land at places of their own cache lines.
pub(super) const ALIGN: usize = 64;

/// What memory is bound for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Operations,
    /// Of operations on other memory of any length, too.
    Lanes,
    /// Nothing is reduced, and nothing lands elsewhere.
    Mail,
}

/// What one member tells another at a bind.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    bind: u32,
    deterministic: bool,
    segment_bytes: usize,
    in_flight_bytes: usize,
    rings: usize,
    choice: Choice,
    cores: Option<usize>,
    /// The first member with whom it shares memory, which may be itself.
    host: usize,
    /// Key and bytes of the regions that the vectors and the landing are in.
    regions: Vec<(u64, u64)>,
    vectors: Vec<ToldVector>,
}

/// What algorithms are chosen by.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Choice {
    algorithm: Option<Algorithm>,
    table: Option<Table>,
    link: LinkCost,
    shares_memory: bool,
    /// None at the first bind, at which it is agreed on.
    cores: Option<usize>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ToldVector {
    bytes: usize,
    algorithm: Algorithm,
    /// In [`Told::regions`], and from this byte on.
    region: usize,
    offset: u64,
    landing: Option<(usize, u64)>,
    /// That the other is to signal, by counter.
    slots: Vec<u32>,
}

/// A vector of this member, before the others are known.
struct Mine {
    algorithm: Algorithm,
    region: Region,
    landing: Option<Landing>,
    /// By member and counter.
    slots: Vec<Vec<ArrivalSlot>>,
}

impl Group {
    pub(super) fn introduce(
        &mut self,
        vectors: &[Buffer],
        purpose: Purpose,
        deadline: Deadline,
    ) -> Result<Vec<VectorId>, GroupError> {
        let bind = self.binds;
        self.binds += 1;
        let mine = self.prepare(vectors, purpose)?;
        let others = || (0..self.size()).filter(|member| *member != self.me);
        for member in others() {
            self.tell(member, &self.told(bind, vectors, &mine, member), deadline)?;
        }
        let ours = self.told(bind, vectors, &mine, self.me);
        let mut heard: Vec<Option<Told>> = (0..self.size()).map(|_| None).collect();
        for member in others().collect::<Vec<_>>() {
            let told = self.hear(member, bind, deadline)?;
            self.compare(member, &told, &ours)?;
            self.hosts[member] = told.host;
            // from then on all have the same, by which they choose algorithms
            if bind == 0 {
                let least = [self.options.cores, told.cores].into_iter().flatten().min();
                self.options.cores = least;
            }
            self.open_regions(member, &told, deadline)?;
            heard[member] = Some(told);
        }
        self.hosts[self.me] = self.host();
        // fits: vectors of a model; so below
        let first = self.vectors.len() as u32;
        for (index, (buffer, mine)) in vectors.iter().zip(mine).enumerate() {
            let remote = |(member, told): (usize, &Option<Told>)| {
                let told = told.as_ref()?;
                let vector = &told.vectors[index];
                let opened = |region: usize| self.opened_at[&(member, told.regions[region].0)];
                Some(Remote {
                    vector: opened(vector.region),
                    offset: vector.offset,
                    landing: vector.landing.map(|(region, offset)| (opened(region), offset)),
                    theirs: vector.slots.iter().map(|slot| ArrivalSlot(*slot)).collect(),
                    ours: mine.slots[member].clone(),
                })
            };
            let remotes = heard.iter().enumerate().map(remote).collect();
            let counts = vec![vec![0; self.size()]; COUNTERS];
            self.vectors.push(Vector {
                buffer: buffer.clone(),
                algorithm: mine.algorithm,
                region: mine.region,
                landing: mine.landing,
                remotes,
                sent: counts.clone(),
                awaited: counts,
                epoch: 0,
                home: None,
                others: Others::Settled,
                busy: false,
                schedules: ScheduleCache::default(),
            });
        }
        Ok((first..self.vectors.len() as u32).map(VectorId).collect())
    }

    /// Memory for addends, and slots.
    fn prepare(&mut self, vectors: &[Buffer], purpose: Purpose) -> Result<Vec<Mine>, GroupError> {
        let size = self.size();
        let (mut mine, mut landing_bytes) = (Vec::new(), 0);
        for (index, buffer) in vectors.iter().enumerate() {
            let region = self.regions.get(&buffer.slab().address()).cloned();
            let region = region.ok_or_else(|| GroupError::Vector {
                // fits: vectors of a model
                vector: (self.vectors.len() + index) as u32,
                what:
                    "it lies in memory that the group did not give; take it from Collectives::alloc"
                        .to_string(),
            })?;
            let algorithm = match purpose {
                Purpose::Operations | Purpose::Lanes => self.algorithm(buffer.bytes()),
                Purpose::Mail => Algorithm::Direct,
            };
            if algorithm == Algorithm::Shared && !self.shares_memory() {
                return Err(GroupError::Failed(
                    "the algorithm `shared` is for members that share memory; take another, or shm"
                        .to_string(),
                ));
            }
            let bytes = match purpose {
                Purpose::Operations => self.landing_room(algorithm, buffer.bytes()),
                Purpose::Lanes => {
                    let of_lane = self.landing_room(algorithm, buffer.bytes());
                    of_lane.max(self.landing_room_of_any())
                }
                Purpose::Mail => 0,
            };
            let (window, offset) = (self.landings.len(), landing_bytes);
            landing_bytes += bytes.next_multiple_of(ALIGN);
            let mut slots = Vec::new();
            for member in 0..size {
                let counters = if member == self.me { 0 } else { self.counters(algorithm) };
                let alloc = |_| self.fabric.alloc_arrival().map_err(|error| failed(&error));
                slots.push((0..counters).map(alloc).collect::<Result<Vec<_>, _>>()?);
            }
            let landing = (bytes > 0).then_some(Landing { window, offset, bytes });
            mine.push(Mine { algorithm, region, landing, slots });
        }
        if landing_bytes > 0 {
            let slab = self.alloc(landing_bytes)?;
            self.landings.push(Window::new(&slab).map_err(|error| failed(&error))?);
            self.landing_regions.push(self.regions[&slab.address()].clone());
        }
        Ok(mine)
    }

    /// The first member with whom this one shares memory, which may be itself.
    fn host(&self) -> usize {
        let is_near = |member: &usize| self.fabric.shares_memory(self.ranks[*member]);
        (0..self.me).find(is_near).unwrap_or(self.me)
    }

    /// What `member` is to know.
    fn told(&self, bind: u32, vectors: &[Buffer], mine: &[Mine], member: usize) -> Told {
        let mut regions: Vec<(u64, u64)> = Vec::new();
        let mut region = |descriptor: RegionDescriptor| {
            let named = descriptor.to_words();
            regions.iter().position(|known| *known == named).unwrap_or_else(|| {
                regions.push(named);
                regions.len() - 1
            })
        };
        let mut told = Vec::new();
        for (buffer, mine) in vectors.iter().zip(mine) {
            let landing = mine.landing.map(|landing| {
                let descriptor = self.landing_regions[landing.window].descriptor();
                // fits: an offset into memory; so below
                (region(descriptor), landing.offset as u64)
            });
            told.push(ToldVector {
                bytes: buffer.bytes(),
                algorithm: mine.algorithm,
                region: region(mine.region.descriptor()),
                offset: buffer.place().offset as u64,
                landing,
                slots: mine.slots[member].iter().map(|slot| slot.0).collect(),
            });
        }
        let GroupOptions { algorithm, table, link, deterministic, .. } = &self.options;
        let (algorithm, link, shares_memory) = (*algorithm, *link, self.shares_memory());
        Told {
            bind,
            deterministic: *deterministic,
            segment_bytes: self.options.segment_bytes,
            in_flight_bytes: self.options.in_flight_bytes,
            rings: self.options.rings,
            choice: Choice {
                algorithm,
                table: table.clone(),
                link,
                shares_memory,
                cores: self.options.cores.filter(|_| bind > 0),
            },
            cores: self.options.cores,
            host: self.host(),
            regions,
            vectors: told,
        }
    }

    fn tell(&self, member: usize, told: &Told, deadline: Deadline) -> Result<(), GroupError> {
        let body = postcard::to_stdvec(told).map_err(|error| failed(&error))?;
        let sent = self.channels[member][0].send_message(&body, deadline);
        sent.map_err(|error| match error {
            SendMessageError::PeerLost { cause, .. } => self.lost(member, cause),
            error => failed(&error),
        })
    }

    /// What a member said of this bind; what others say meanwhile is kept.
    fn hear(&mut self, member: usize, bind: u32, deadline: Deadline) -> Result<Told, GroupError> {
        let rank = self.ranks[member];
        loop {
            let moment = self.fabric.ticket();
            let gone = self.fabric.gone(rank);
            while let Some(message) = self.fabric.try_receive_message() {
                if let Some(from) = self.ranks.iter().position(|rank| *rank == message.from) {
                    self.inbox[from].push_back(message.body);
                }
            }
            if let Some(body) = self.inbox[member].pop_front() {
                let told: Told = postcard::from_bytes(&body).map_err(|_| self.garbled(member))?;
                // of a bind that failed here before this member was heard
                if told.bind < bind {
                    continue;
                }
                return if told.bind == bind { Ok(told) } else { Err(self.garbled(member)) };
            }
            if let Some(gone) = gone {
                // who went first is the cause
                self.check(member)?;
                return Err(self.lost(member, gone.to_string()));
            }
            if deadline.passed() || self.fabric.wait(moment, deadline) == Wake::TimedOut {
                let waiting_for = format!("what member {member} (rank {rank}) binds");
                return Err(GroupError::TimedOut { waiting_for });
            }
        }
    }

    /// Everything that schedules are made from is the same, and what is named is there.
    fn compare(&self, member: usize, theirs: &Told, ours: &Told) -> Result<(), GroupError> {
        let common = |told: &Told| {
            let vector = |v: &ToldVector| (v.bytes, v.algorithm.name());
            let vectors: Vec<_> = told.vectors.iter().map(vector).collect();
            (vectors, told.deterministic, (told.segment_bytes, told.in_flight_bytes), told.rings)
        };
        let is_sound = |vector: &ToldVector| {
            let landing_bytes = self.landing_room(vector.algorithm, vector.bytes);
            let holds = |region: usize, offset: u64, bytes: usize| {
                let end = offset.checked_add(bytes as u64);
                let region = theirs.regions.get(region).zip(end);
                // fits: ALIGN is small
                offset.is_multiple_of(ALIGN as u64) && region.is_some_and(|(at, end)| end <= at.1)
            };
            vector.slots.len() == self.counters(vector.algorithm)
                && holds(vector.region, vector.offset, vector.bytes)
                && vector
                    .landing
                    .is_none_or(|(region, offset)| holds(region, offset, landing_bytes))
        };
        let rank = self.ranks[member];
        if common(theirs) == common(ours) && theirs.choice != ours.choice {
            // of vectors that go the same way as a whole, parts would not
            let text = |told: &Told| format!("vectors of algorithms by {:?}", told.choice);
            return Err(GroupError::Differs {
                member,
                rank,
                theirs: text(theirs),
                ours: text(ours),
            });
        }
        if common(theirs) == common(ours) {
            // equal from here on: what a sound vector is follows from what both know
            return match theirs.vectors.iter().all(is_sound) {
                true => Ok(()),
                false => Err(self.garbled(member)),
            };
        }
        let text = |told: &Told| {
            let (vectors, deterministic, segment, rings) = common(told);
            let order = if deterministic { ", reduced in order" } else { "" };
            let (segment, in_flight) = segment;
            format!(
                "{vectors:?} in segments of {segment} bytes, {in_flight} in flight, and {rings} rings{order}"
            )
        };
        Err(GroupError::Differs { member, rank, theirs: text(theirs), ours: text(ours) })
    }

    fn open_regions(
        &mut self,
        member: usize,
        told: &Told,
        deadline: Deadline,
    ) -> Result<(), GroupError> {
        for named in &told.regions {
            self.open_region(member, *named, deadline)?;
        }
        Ok(())
    }

    /// Opens a region of a member by its key and bytes, once; returns where it is in [`Group::opened`].
    pub(super) fn open_region(
        &mut self,
        member: usize,
        (key, bytes): (u64, u64),
        deadline: Deadline,
    ) -> Result<usize, GroupError> {
        if let Some(opened) = self.opened_at.get(&(member, key)) {
            return Ok(*opened);
        }
        let descriptor = RegionDescriptor { key, bytes };
        let opened = self.channels[member][0].open_region(&descriptor, deadline);
        let region = opened.map_err(|error| match error {
            OpenRegionError::PeerLost { cause, .. } => self.lost(member, cause),
            // it told of the region a moment ago: it ends
            OpenRegionError::Refused { .. } => self.lost(member, error.to_string()),
            error => failed(&error),
        })?;
        // the loans of all openings of a region are one: nobody else in this process has cut it
        let window = region.slab().and_then(|slab| Window::new(&slab).ok());
        let at = self.opened.len();
        self.opened_at.insert((member, key), at);
        self.opened.push(Opened { region, window });
        Ok(at)
    }

    fn garbled(&self, member: usize) -> GroupError {
        let rank = self.ranks[member];
        GroupError::Failed(format!(
            "member {member} (rank {rank}) binds in another order or form; do all run the same version?"
        ))
    }

    /// What a vector's sequences are signalled by, at most.
    pub(super) fn counters(&self, algorithm: Algorithm) -> usize {
        match algorithm {
            Algorithm::MultiRing => TAGS * self.options.rings(),
            _ => TAGS,
        }
    }

    pub(super) fn lost(&self, member: usize, reason: String) -> GroupError {
        GroupError::Lost { member, rank: self.ranks[member], reason }
    }

    /// Bytes in which addends of a vector land, and of its first ones where they are as short as those that are exchanged.
    fn landing_room(&self, algorithm: Algorithm, bytes: usize) -> usize {
        let max = |algorithm, bytes| self.landing_bytes_max(algorithm, bytes);
        match algorithm {
            _ if self.size() == 1 => 0,
            // nothing lands of a whole one
            Algorithm::Shared => {
                let lengths = std::iter::successors(Some(ALIGN), |bytes| bytes.checked_mul(2));
                let short = lengths.take_while(|short| *short < bytes);
                let exchanged = short.filter(|short| self.algorithm(*short) == Algorithm::Exchange);
                let longest = exchanged.max().map(|short| (2 * short).min(bytes));
                longest.map_or(0, |bytes| max(Algorithm::Exchange, bytes))
            }
            _ => max(algorithm, bytes),
        }
    }

    /// Bytes in which addends of a vector of any length land, reduced directly or where members share memory.
    fn landing_room_of_any(&self) -> usize {
        match self.size() {
            1 => 0,
            _ if self.shares_memory() => 0,
            _ => self.landing_bytes_max(Algorithm::Direct, usize::MAX / 2),
        }
    }

    /// What the operations of an algorithm need at most, with elements of any size.
    pub(super) fn landing_bytes_max(&self, algorithm: Algorithm, bytes: usize) -> usize {
        let size = self.size();
        let segment_bytes = self.options.segment(size);
        // pieces and their slices are rounded up to elements, of 8 bytes at most
        let spare = 8 * (size + 1) * (MAX_SEQUENCES + 1) + 8 * usize::BITS as usize;
        // the last of a piece's segments has a whole place, however short it is
        let piece = bytes / size + 16;
        let segment = segment_bytes.max(8).min(piece);
        let direct =
            (size - 1) * self.options.window(size).saturating_mul(segment).min(piece + segment);
        match algorithm {
            Algorithm::Shared => 0,
            // of two operations; what it has no way for is done directly
            Algorithm::Exchange => direct.max(2 * (size - 1) * bytes) + spare,
            Algorithm::Direct => direct + spare,
            Algorithm::Ring | Algorithm::MultiRing => bytes + spare,
            // of two operations
            Algorithm::RecursiveDoubling => {
                direct.max(2 * doubling::landings(size) * bytes) + spare
            }
            Algorithm::HalvingDoubling => 2 * bytes + spare,
            // at one member, but all are to find the same
            Algorithm::ReduceBroadcast => direct.max((size - 1) * bytes) + spare,
            // no segment is longer than what is sent at a time, nor than the vector; what it has no way for is done directly
            Algorithm::Hierarchical => {
                let segment = segment_bytes.max(8).min(bytes + 16);
                let places = (size - 1).saturating_mul(hierarchical::SLOTS);
                direct.max(places.saturating_mul(segment)) + spare
            }
        }
    }
}

/// Any bytes as what a member tells at a bind: [`crate::fuzz`].
pub(crate) fn fuzz_binds(bytes: &[u8]) {
    let Ok(told) = postcard::from_bytes::<Told>(bytes) else { return };
    let wire = postcard::to_stdvec(&told).expect("what was read is written");
    let again: Told = postcard::from_bytes(&wire).expect("what was written is read");
    assert_eq!(format!("{again:?}"), format!("{told:?}"));
}
