//! What an all-reduce takes by each algorithm, in a model of the way between two members, and so which one is taken where
//! nothing was measured. Pure: members, bytes and a few numbers in, an algorithm out, the same at all members.
//!
//! A message of m bytes takes α + m·β, and reducing m bytes of an addend m·γ (Thakur, Rabenseifner and Gropp,
//! *Optimization of Collective Communication Operations in MPICH*, 2005, §3). Whoever sends or awaits several messages at
//! a time pays α once and o for each further one (Culler et al., *LogP*, 1993). With n members, a vector of L bytes, k
//! rings, and h the largest power of two that is at most n:
//!
//! | algorithm | α and o | β | γ |
//! |---|---|---|---|
//! | `shared` | 2(α + (n−2)·o) | (n−1)/n·L | (n−1)/n·L |
//! | `exchange` | α + (n−2)·o | (n−1)·L | (n−1)·L |
//! | `direct` | 2(α + (n−2)·o), for each window of segments unless cores move the bytes | 2(n−1)/n·L | (n−1)/n·L |
//! | `ring` | 2(n−1)·α | 2(n−1)/n·L | (n−1)/n·L |
//! | `multi-ring` | 2(n−1)·(α + (k−1)·o) | 2(n−1)/n·L | (n−1)/n·L, over k where cores do not move the bytes |
//! | `recursive-doubling` | log₂ h·α, and 2α where h < n | log₂ h·L, and 2L | log₂ h·L, and L |
//! | `halving-doubling` | 2·log₂ h·α | 2(h−1)/h·L | (h−1)/h·L |
//! | … where h < n, also | 2α | 2L | L |
//! | `reduce-broadcast` | 2(α + (n−2)·o) | 2(n−1)·L | (n−1)·L |
//! | `hierarchical` | 2α of each kind of way | within a host L + (k−1)·L/m, between 2(h−1)/h·L | (k−1)·L/m + (h−1)/h·L/m |
//!
//! In the last row h is the number of hosts, k members are on the fullest of them and m on the emptiest. Its lanes go in segments.
//! Where cores do not move the bytes between hosts, the wire carries some segments while cores move and reduce others: what counts is the
//! longer of both, and of the shorter what is done before the first segment leaves (3 segments of 8 or more). Where several members share a
//! host, β of the others counts for all of them whose bytes leave it at a time.
//!
//! Where cores move the bytes and members share c cores ([`GroupOptions::cores`]), all that all members do takes at least (M·α + B·β +
//! R·γ)/c, of M messages, B bytes in all of them, and R bytes to reduce: of eight members on two cores, `reduce-broadcast` (14 messages) took 0.8 of
//! what `recursive-doubling` (24) did at 4 KiB and 0.6 of `halving-doubling` (48) at 64 KiB, of six as long, of four 1.4 times as long.
//!
//! Two members take what was measured (`bench allreduce`, one machine of two cores, shm and TCP over loopback): `exchange`
//! below [`LinkCost::pair_exchange_below`], then `shared`, or `direct`. γ = 0.1 ns, and α of shared memory and of
//! loopback, are what puts the model's crossing for two members there; the α of networks, o and β are assumed, and were
//! not measured; but for o of loopback, where a core that sends several messages has to do all of what each takes: of eight
//! members on two cores, 4 KiB, `exchange` took 1.6 times what `recursive-doubling` did. Where cores move the bytes, they move
//! other segments while the answer to one is on its way: of four members over loopback on two cores, at 4 and 16 MiB, `direct` was
//! faster than `halving-doubling` in five of six measurements (by 4 to 48 %), on a machine that had other work. Of members' parts of more
//! than 256 KiB the bytes of the latter count for a tenth more there: of parts of 512 KiB `direct` took 0.7 of what `halving-doubling`
//! did (eight members, 4 MiB) and 0.65 (four, 2 MiB), of parts of 256 KiB as long (two cores of an Intel Xeon, medians of 60). Of shorter
//! ones there is little else to move: of eight members, 1 MiB, `direct` took 1.6 times what `halving-doubling` did (medians of three and six).
//!
//! From three members on, the model chooses. Until it did, what two members take was taken by any number: no ring, and no
//! `halving-doubling`, was ever chosen, and RDMA was given what suits loopback.

use serde::{Deserialize, Serialize};

use crate::group::GroupOptions;
use crate::schedule::{Algorithm, hierarchical};

/// Parts of more keep a core busy that moves them, while the answer to another is on its way.
const BUSY_BYTES: usize = 256 << 10;

/// What a message costs between two members. Of links that differ, the slowest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCost {
    /// α: from the start of a write to the moment in which its receiver goes on.
    pub latency_ns: u64,
    /// o: what each further message costs whoever sends or awaits several at a time.
    pub message_ns: u64,
    /// β: a byte that is moved.
    pub wire_ps_per_byte: u64,
    /// γ: a byte of an addend.
    pub reduce_ps_per_byte: u64,
    /// Members read and write each other's memory.
    pub shares_memory: bool,
    /// The members' cores have nothing to do with moving bytes: of several rings, one reduces while another is on the wire.
    pub overlaps: bool,
    /// Of two members: vectors of fewer bytes are exchanged.
    pub pair_exchange_below: usize,
}

impl LinkCost {
    /// Members of one host that read and write each other's memory: 10 GB/s a core.
    pub const SHARED_MEMORY: LinkCost = LinkCost {
        latency_ns: 3_300,
        message_ns: 300,
        wire_ps_per_byte: 100,
        reduce_ps_per_byte: 100,
        shares_memory: true,
        overlaps: false,
        pair_exchange_below: 32 << 10,
    };

    /// TCP between processes of one host, whose cores do all the work: 4 GB/s.
    pub const LOOPBACK: LinkCost = LinkCost {
        latency_ns: 13_100,
        message_ns: 8_000,
        wire_ps_per_byte: 250,
        reduce_ps_per_byte: 100,
        shares_memory: false,
        overlaps: false,
        pair_exchange_below: 256 << 10,
    };

    /// TCP between hosts, by Ethernet of 25 Gb/s.
    pub const TCP: LinkCost = LinkCost {
        latency_ns: 30_000,
        message_ns: 3_000,
        wire_ps_per_byte: 320,
        reduce_ps_per_byte: 100,
        shares_memory: false,
        overlaps: true,
        pair_exchange_below: 256 << 10,
    };

    /// RDMA of 100 Gb/s.
    pub const RDMA: LinkCost = LinkCost {
        latency_ns: 2_000,
        message_ns: 300,
        wire_ps_per_byte: 80,
        reduce_ps_per_byte: 100,
        shares_memory: false,
        overlaps: true,
        pair_exchange_below: 256 << 10,
    };

    /// The same with what was measured: α in nanoseconds, β in picoseconds. Two members exchange what takes less so than in two
    /// rounds: as long as a second half to reduce costs less than a second α.
    pub(crate) fn measured(self, [latency_ns, wire_ps_per_byte]: [u64; 2]) -> LinkCost {
        let (latency_ns, wire_ps_per_byte) = (latency_ns.max(1), wire_ps_per_byte.max(1));
        let saved_ps = 2000 * u128::from(latency_ns);
        let bytes = saved_ps / u128::from(self.reduce_ps_per_byte.max(1));
        // fits: it is clamped
        let pair_exchange_below = bytes.clamp(4 << 10, 16 << 20) as usize;
        LinkCost { latency_ns, wire_ps_per_byte, pair_exchange_below, ..self }
    }

    /// The algorithm by which a vector of so many bytes is reduced soonest among so many members.
    pub fn choose(&self, members: usize, bytes: usize, options: &GroupOptions) -> Algorithm {
        match members {
            0 | 1 => Algorithm::Direct,
            2 if bytes < self.pair_exchange_below => Algorithm::Exchange,
            2 if self.shares_memory => Algorithm::Shared,
            2 => Algorithm::Direct,
            _ => {
                let can = |of: &Algorithm| can_choose(*of, bytes, self.shares_memory, options);
                let time = |of: &Algorithm| self.all_reduce_ps(*of, members, bytes, options);
                let soonest = Algorithm::ALL.into_iter().filter(can).min_by_key(time);
                soonest.unwrap_or(Algorithm::Direct)
            }
        }
    }

    /// The same where this is the way between hosts, and members of one host share memory. `hosts`: by member, its host.
    /// What leaves a host at a time shares its link.
    pub fn choose_on_hosts(
        &self,
        hosts: &[usize],
        bytes: usize,
        options: &GroupOptions,
    ) -> Algorithm {
        let crowd = Crowd::of(hosts);
        if crowd.hosts < 2 || crowd.most < 2 {
            return self.choose(hosts.len(), bytes, options);
        }
        let time = |of: &Algorithm| match of {
            Algorithm::Hierarchical => self.hierarchical_ps(&crowd, bytes, options),
            of => {
                let (streams, of_members) = crowd.leaving(*of);
                // fits: members of a job; a price may be anything that somebody measured
                let of_all = self.wire_ps_per_byte.saturating_mul(streams as u64);
                let wire_ps_per_byte = of_all / of_members as u64;
                let link = LinkCost { wire_ps_per_byte, ..*self };
                link.all_reduce_ps(*of, hosts.len(), bytes, options)
            }
        };
        let can = Algorithm::ALL.into_iter().filter(|of| can_choose(*of, bytes, false, options));
        can.min_by_key(time).unwrap_or(Algorithm::Direct)
    }

    /// What a hierarchical all-reduce takes: two rounds within a host, two between hosts, in lanes whose owners share the
    /// link of their host. Cores that do not move what is between hosts move and reduce some segments meanwhile.
    fn hierarchical_ps(&self, crowd: &Crowd, bytes: usize, options: &GroupOptions) -> u128 {
        let near = LinkCost::SHARED_MEMORY;
        let (most, hosts) = (crowd.most as u128, crowd.hosts as u128);
        let lane_bytes = bytes.div_ceil(crowd.least);
        let (bytes, lane) = (bytes as u128, lane_bytes as u128);
        let round = |link: &LinkCost, others: u128| {
            2000 * (link.latency_ns as u128 + (others - 1) * link.message_ns as u128)
        };
        let rounds = round(&near, most - 1).saturating_add(round(self, hosts - 1));
        let within = (bytes + (most - 1) * lane) * near.wire_ps_per_byte as u128
            + (most - 1) * lane * near.reduce_ps_per_byte as u128;
        let reduced = ((hosts - 1) * lane / hosts).saturating_mul(self.reduce_ps_per_byte as u128);
        let cores = within.saturating_add(reduced);
        let moved = 2 * (hosts - 1) * bytes / hosts;
        let wire = moved.saturating_mul(self.wire_ps_per_byte as u128);
        let (alone, segments) = match self.overlaps {
            true => hierarchical::before_the_first(lane_bytes, options.segment_bytes),
            false => (1, 1),
        };
        // fits: saturated prices of bytes are far from the end, and 3 segments are few
        let shorter = (wire.min(cores) / segments as u128).saturating_mul(alone as u128);
        rounds.saturating_add(wire.max(cores)).saturating_add(shorter)
    }

    /// What an all-reduce among two or more members takes, in picoseconds.
    pub fn all_reduce_ps(
        &self,
        algorithm: Algorithm,
        members: usize,
        bytes: usize,
        options: &GroupOptions,
    ) -> u128 {
        let n = members.max(2);
        let waits = self.waits_ps(algorithm, n, bytes, options);
        let moves = !(self.overlaps || self.shares_memory);
        match options.cores.filter(|cores| moves && *cores < n) {
            Some(cores) => {
                waits.max(self.work_ps(algorithm, n, bytes, options) / cores.max(1) as u128)
            }
            None => waits,
        }
    }

    /// What the cores of all members do in it together, where they move the bytes.
    fn work_ps(
        &self,
        algorithm: Algorithm,
        n: usize,
        bytes: usize,
        options: &GroupOptions,
    ) -> u128 {
        let half = 1_usize << n.ilog2();
        let (rounds, extra) = (n.ilog2() as usize, n - half);
        // messages, and vectors that are sent and reduced
        let (messages, sent, reduced) = match algorithm {
            Algorithm::Shared | Algorithm::Hierarchical => return 0,
            Algorithm::Exchange => (n * (n - 1), n * (n - 1), n * (n - 1)),
            Algorithm::Direct | Algorithm::Ring => (2 * n * (n - 1), 2 * (n - 1), n - 1),
            Algorithm::MultiRing => (options.rings() * 2 * n * (n - 1), 2 * (n - 1), n - 1),
            Algorithm::RecursiveDoubling => {
                let (sent, reduced) = (half * rounds + 2 * extra, half * rounds + extra);
                (sent, sent, reduced)
            }
            Algorithm::HalvingDoubling => {
                (2 * half * rounds + 2 * extra, 2 * (half - 1 + extra), half - 1 + extra)
            }
            Algorithm::ReduceBroadcast => (2 * (n - 1), 2 * (n - 1), n - 1),
        };
        let of = |count: usize, price: u128| price.saturating_mul(count as u128);
        let waits = algorithm == Algorithm::HalvingDoubling && self.is_idle_between(n, bytes);
        let (bytes, alpha) = (bytes as u128, 1000 * u128::from(self.latency_ns));
        let wire = bytes.saturating_mul(self.wire_ps_per_byte.into());
        of(messages, alpha)
            .saturating_add(of(sent, if waits { wire.saturating_add(wire / 10) } else { wire }))
            .saturating_add(of(reduced, bytes.saturating_mul(self.reduce_ps_per_byte.into())))
    }

    /// True if cores wait in each round of `halving-doubling`, where the parts of `direct` are long enough to keep them busy.
    fn is_idle_between(&self, n: usize, bytes: usize) -> bool {
        !self.overlaps && bytes.div_ceil(n) > BUSY_BYTES
    }

    /// What its rounds take one after the other.
    fn waits_ps(
        &self,
        algorithm: Algorithm,
        n: usize,
        bytes: usize,
        options: &GroupOptions,
    ) -> u128 {
        let shared = |parts: usize, of: usize| (parts as u128 * bytes as u128).div_ceil(of as u128);
        let cost = |rounds: usize, messages: usize, moved: u128, reduced: u128| {
            // fits: counts and prices have at most 64 bits; so above. A file may have any price
            let round =
                1000 * (self.latency_ns as u128 + messages as u128 * self.message_ns as u128);
            (rounds as u128)
                .saturating_mul(round)
                .saturating_add(moved.saturating_mul(self.wire_ps_per_byte as u128))
                .saturating_add(reduced.saturating_mul(self.reduce_ps_per_byte as u128))
        };
        let most = shared(n - 1, n);
        match algorithm {
            Algorithm::Shared => cost(2, n - 2, most, most),
            Algorithm::Exchange => cost(1, n - 2, shared(n - 1, 1), shared(n - 1, 1)),
            Algorithm::Direct => {
                let window = options.segment(n).max(1).saturating_mul(options.window(n));
                let windows = bytes.div_ceil(n).div_ceil(window).max(1);
                let waits = if self.overlaps { windows } else { 1 };
                cost(2 * waits, n - 2, 2 * most, most)
            }
            Algorithm::Ring => cost(2 * (n - 1), 0, 2 * most, most),
            Algorithm::MultiRing => {
                let rings = options.rings();
                let seen = if self.overlaps { rings as u128 } else { 1 };
                cost(2 * (n - 1), rings - 1, 2 * most, most.div_ceil(seen))
            }
            Algorithm::ReduceBroadcast => cost(2, n - 2, shared(2 * (n - 1), 1), shared(n - 1, 1)),
            // nobody shares a host
            Algorithm::Hierarchical => u128::MAX,
            Algorithm::RecursiveDoubling => {
                let rounds = n.ilog2() as usize;
                let sent = shared(rounds, 1);
                let pairs =
                    if n.is_power_of_two() { 0 } else { cost(2, 0, shared(2, 1), shared(1, 1)) };
                cost(rounds, 0, sent, sent).saturating_add(pairs)
            }
            Algorithm::HalvingDoubling => {
                let rounds = n.ilog2();
                let half = 1_usize << rounds;
                let halves = shared(half - 1, half);
                let waits = self.is_idle_between(n, bytes);
                let counted = |bytes: u128| if waits { bytes + bytes / 10 } else { bytes };
                let between = cost(2 * rounds as usize, 0, counted(2 * halves), counted(halves));
                let pairs = if half < n { cost(2, 0, shared(2, 1), shared(1, 1)) } else { 0 };
                between.saturating_add(pairs)
            }
        }
    }
}

/// True if a group that shares memory, or does not, may do it so.
fn can_choose(
    algorithm: Algorithm,
    bytes: usize,
    shares_memory: bool,
    options: &GroupOptions,
) -> bool {
    match algorithm {
        Algorithm::Shared => shares_memory,
        // it has no way in the order of members
        Algorithm::RecursiveDoubling => !options.deterministic,
        // all members' vectors land at one
        Algorithm::ReduceBroadcast => bytes <= options.segment_bytes,
        _ => true,
    }
}

/// Who shares a host with how many.
struct Crowd<'a> {
    by_member: &'a [usize],
    hosts: usize,
    /// Members on the host that has the fewest, and on the one that has the most.
    least: usize,
    most: usize,
}

impl Crowd<'_> {
    fn of(by_member: &[usize]) -> Crowd<'_> {
        let mut counts = std::collections::HashMap::new();
        by_member.iter().for_each(|host| *counts.entry(host).or_insert(0) += 1);
        let (least, most) = (counts.values().min(), counts.values().max());
        let (least, most) = (least.copied().unwrap_or(1), most.copied().unwrap_or(1));
        Crowd { by_member, hosts: counts.len(), least, most }
    }

    /// How many members' bytes leave the fullest host at a time, as a fraction: of so many, those of so many do.
    fn leaving(&self, algorithm: Algorithm) -> (usize, usize) {
        let size = self.by_member.len();
        match algorithm {
            Algorithm::Ring | Algorithm::MultiRing => {
                let next = |at: usize| self.by_member[(at + 1) % size];
                let ends = (0..size).filter(|at| self.by_member[*at] != next(*at));
                let mut leaving = std::collections::HashMap::new();
                ends.for_each(|at| *leaving.entry(self.by_member[at]).or_insert(0) += 1);
                (leaving.into_values().max().unwrap_or(1), 1)
            }
            Algorithm::RecursiveDoubling | Algorithm::HalvingDoubling => (self.most, 1),
            // to each other member alike
            _ => (self.most * (size - self.most), size - 1),
        }
    }
}

#[cfg(test)]
mod tests;
