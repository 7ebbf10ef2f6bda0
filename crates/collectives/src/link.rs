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
//! | `hierarchical` | 2α of each kind of way | within a host L + (k−1)·L/m, between 2(h−1)/h·L | (k−1)·L/m + (h−1)/h·L/m |
//!
//! In the last row h is the number of hosts, k members are on the fullest of them and m on the emptiest. Its lanes go in segments.
//! Where cores do not move the bytes between hosts, the wire carries some segments while cores move and reduce others: what counts is the
//! longer of both, and of the shorter what is done before the first segment leaves (3 segments of 8 or more). Where several members share a
//! host, β of the others counts for all of them whose bytes leave it at a time.
//!
//! Two members take what was measured (`bench allreduce`, one machine of two cores, shm and TCP over loopback): `exchange`
//! below [`LinkCost::pair_exchange_below`], then `shared`, or `direct`. γ = 0.1 ns, and α of shared memory and of
//! loopback, are what puts the model's crossing for two members there; the α of networks, o and β are assumed, and were
//! not measured; but for o of loopback, where a core that sends several messages has to do all of what each takes: of eight
//! members on two cores, 4 KiB, `exchange` took 1.6 times what `recursive-doubling` did. Where cores move the bytes, they move
//! other segments while the answer to one is on its way: of four members over loopback on two cores, at 4 and 16 MiB, `direct` was
//! faster than `halving-doubling` in five of six measurements (by 4 to 48 %), on a machine that had other work. Of parts of several
//! segments the bytes of the latter count for a tenth more there. Of one segment there is nothing else to move: of eight members,
//! 1 MiB, `direct` took 1.6 times what `halving-doubling` did (medians of three and six).
//!
//! From three members on, the model chooses. Until it did, what two members take was taken by any number: no ring, and no
//! `halving-doubling`, was ever chosen, and RDMA was given what suits loopback.

use serde::{Deserialize, Serialize};

use crate::group::GroupOptions;
use crate::schedule::{Algorithm, hierarchical};

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
                let can = |of: &Algorithm| can_choose(*of, self.shares_memory, options);
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
        let can = Algorithm::ALL.into_iter().filter(|of| can_choose(*of, false, options));
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
                let window = options.segment_bytes.max(1).saturating_mul(options.window(n));
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
                // cores wait in each round, where the parts of `direct` are several segments that keep them busy
                let waits = !self.overlaps && bytes.div_ceil(n) > options.segment_bytes;
                let counted = |bytes: u128| if waits { bytes + bytes / 10 } else { bytes };
                let between = cost(2 * rounds as usize, 0, counted(2 * halves), counted(halves));
                let pairs = if half < n { cost(2, 0, shared(2, 1), shared(1, 1)) } else { 0 };
                between.saturating_add(pairs)
            }
        }
    }
}

/// True if a group that shares memory, or does not, may do it so.
fn can_choose(algorithm: Algorithm, shares_memory: bool, options: &GroupOptions) -> bool {
    match algorithm {
        Algorithm::Shared => shares_memory,
        // it has no way in the order of members
        Algorithm::RecursiveDoubling => !options.deterministic,
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
mod tests {
    use super::*;
    use Algorithm::{
        Direct, Exchange, HalvingDoubling, Hierarchical, MultiRing, RecursiveDoubling, Ring, Shared,
    };

    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;
    const ALL: [LinkCost; 4] =
        [LinkCost::SHARED_MEMORY, LinkCost::LOOPBACK, LinkCost::TCP, LinkCost::RDMA];

    /// A link of which nothing costs anything.
    const FREE: LinkCost = LinkCost {
        latency_ns: 0,
        message_ns: 0,
        wire_ps_per_byte: 0,
        reduce_ps_per_byte: 0,
        ..LinkCost::TCP
    };

    fn choose(link: LinkCost, members: usize, bytes: usize) -> Algorithm {
        link.choose(members, bytes, &GroupOptions::default())
    }

    #[test]
    fn two_members_take_what_was_measured() {
        for link in ALL {
            let (bound, large) = match link.shares_memory {
                true => (32 * KIB, Shared),
                false => (256 * KIB, Direct),
            };
            for bytes in [0, 4, bound / 2, bound - 1] {
                assert_eq!(choose(link, 2, bytes), Exchange, "{link:?}, {bytes} bytes");
            }
            for bytes in [bound, bound + 1, 64 * MIB, 1 << 40] {
                assert_eq!(choose(link, 2, bytes), large, "{link:?}, {bytes} bytes");
            }
        }
    }

    #[test]
    fn the_model_of_two_members_is_what_was_measured() {
        let options = GroupOptions::default();
        for (link, other) in [(LinkCost::SHARED_MEMORY, Shared), (LinkCost::LOOPBACK, Direct)] {
            let is_exchanged = |bytes: usize| {
                let time = |algorithm| link.all_reduce_ps(algorithm, 2, bytes, &options);
                time(Exchange) < time(other)
            };
            assert!(is_exchanged(link.pair_exchange_below * 9 / 10), "{link:?}");
            assert!(!is_exchanged(link.pair_exchange_below * 11 / 10), "{link:?}");
        }
    }

    #[test]
    fn what_was_measured_takes_the_place_of_what_was_assumed() {
        let LinkCost { latency_ns, wire_ps_per_byte, .. } = LinkCost::LOOPBACK;
        let again = LinkCost::LOOPBACK.measured([latency_ns, wire_ps_per_byte]);
        assert_eq!(again, LinkCost { pair_exchange_below: 262_000, ..LinkCost::LOOPBACK });
        // 1 Gb/s: what crosses is all that counts
        let slow = LinkCost::TCP.measured([100_000, 8000]);
        assert_eq!((slow.latency_ns, slow.wire_ps_per_byte), (100_000, 8000));
        assert_eq!(choose(slow, 6, 64 * MIB), MultiRing);
        for hostile in [[0, 0], [u64::MAX, u64::MAX]] {
            let link = LinkCost::TCP.measured(hostile);
            for members in [2, 3, 1 << 20] {
                choose(link, members, usize::MAX);
            }
            link.choose_on_hosts(&[0, 0, 2], usize::MAX, &GroupOptions::default());
        }
    }

    #[test]
    fn short_vectors_take_the_fewest_rounds() {
        for link in ALL {
            for members in [3, 4, 7, 8, 16] {
                let is_busy = link == LinkCost::LOOPBACK && members > 3;
                let expected = if is_busy { RecursiveDoubling } else { Exchange };
                assert_eq!(choose(link, members, 64), expected, "{link:?}, {members} members");
            }
        }
        let in_order = GroupOptions { deterministic: true, ..GroupOptions::default() };
        assert_eq!(LinkCost::LOOPBACK.choose(8, 64, &in_order), Exchange, "it has no way in order");
        // so many messages take longer than rounds
        assert_eq!(choose(LinkCost::RDMA, 128, 64), RecursiveDoubling);
    }

    #[test]
    fn long_vectors_of_many_take_the_fewest_bytes() {
        for members in [8, 16, 64] {
            // rounds count little, and half of the reduction is hidden
            assert_eq!(choose(LinkCost::RDMA, members, 256 * MIB), MultiRing);
            assert_eq!(choose(LinkCost::TCP, members, 256 * MIB), MultiRing);
        }
        // cores have no time to hide; of many members, there are too many messages
        for (members, bytes, algorithm) in [
            (3, 256 * MIB, Direct),
            (4, 256 * MIB, Direct),
            (8, 256 * MIB, Direct),
            (8, 256 * KIB, HalvingDoubling),
            (8, MIB, HalvingDoubling),
            (4, 4 * MIB, Direct),
            (64, MIB, HalvingDoubling),
        ] {
            let chosen = choose(LinkCost::LOOPBACK, members, bytes);
            assert_eq!(chosen, algorithm, "{members} members, {bytes} bytes");
        }
        // no power of two: halving would send the vector twice more
        assert_eq!(
            choose(LinkCost { overlaps: true, ..LinkCost::LOOPBACK }, 6, 256 * MIB),
            MultiRing
        );
        let one = GroupOptions { rings: 1, ..GroupOptions::default() };
        assert_eq!(LinkCost::RDMA.choose(6, 256 * MIB, &one), Ring);
        for members in [3, 4, 64] {
            assert_eq!(choose(LinkCost::SHARED_MEMORY, members, 256 * MIB), Shared);
        }
    }

    #[test]
    fn between_rounds_and_bytes_there_is_direct_for_few_and_halving_for_many() {
        assert_eq!(choose(LinkCost::RDMA, 4, 64 * KIB), Direct);
        assert_eq!(choose(LinkCost::RDMA, 64, 64 * KIB), HalvingDoubling);
    }

    #[test]
    fn formulas_are_those_of_the_papers() {
        // one α, β and γ at a time; 64 bytes among 4, and among 3 where halving pairs two up
        let prices = [
            LinkCost { latency_ns: 1, ..FREE },
            LinkCost { message_ns: 1, ..FREE },
            LinkCost { wire_ps_per_byte: 1, ..FREE },
            LinkCost { reduce_ps_per_byte: 1, ..FREE },
        ];
        let options = GroupOptions::default();
        let of = |algorithm, members| {
            prices.map(|link| link.all_reduce_ps(algorithm, members, 96, &options))
        };
        assert_eq!(of(Exchange, 4), [1000, 2000, 288, 288]);
        assert_eq!(of(Direct, 4), [2000, 4000, 144, 72]);
        assert_eq!(of(Ring, 4), [6000, 0, 144, 72]);
        assert_eq!(of(MultiRing, 4), [6000, 6000, 144, 36]);
        assert_eq!(of(RecursiveDoubling, 4), [2000, 0, 192, 192]);
        assert_eq!(of(RecursiveDoubling, 3), [3000, 0, 96 + 192, 96 + 96]);
        assert_eq!(of(HalvingDoubling, 4), [4000, 0, 144, 72]);
        assert_eq!(of(HalvingDoubling, 3), [4000, 0, 96 + 192, 48 + 96]);
        assert_eq!(of(Shared, 3), [2000, 2000, 64, 64]);
    }

    #[test]
    fn members_that_share_hosts_send_once_what_crosses() {
        let options = GroupOptions::default();
        let choose =
            |link: LinkCost, hosts: &[usize], bytes| link.choose_on_hosts(hosts, bytes, &options);
        // 1 Gb/s, and as Ethernet is assumed to be where nothing was measured
        let slow = LinkCost { wire_ps_per_byte: 8000, ..LinkCost::TCP };
        let pairs = [0, 0, 2, 2];
        for link in [slow, LinkCost::TCP] {
            for hosts in
                [&[0, 0, 0, 0, 4, 4, 4, 4][..], &pairs, &[0, 1, 0, 1], &[0, 0, 0, 3, 3], &[0, 0, 2]]
            {
                for bytes in [MIB, 8 * MIB, 64 * MIB, 256 * MIB] {
                    let chosen = choose(link, hosts, bytes);
                    assert_eq!(chosen, Hierarchical, "{link:?}, {hosts:?}, {bytes} bytes");
                }
                assert_eq!(choose(slow, hosts, 64 * KIB), Hierarchical, "{hosts:?}");
                assert_eq!(choose(link, hosts, 64), Exchange, "{hosts:?}");
            }
        }
        // a wire as fast as memory: what a host's cores do beside it takes longer than what a ring sends more
        assert_eq!(choose(LinkCost::RDMA, &pairs, 256 * MIB), MultiRing);
        for (hosts, bytes) in [(&[0, 1, 2, 3][..], 64 * MIB), (&[0; 4], 64)] {
            assert_eq!(choose(slow, hosts, bytes), slow.choose(hosts.len(), bytes, &options));
        }
    }

    /// Two hosts of two members each, 96 bytes: beside what is within a host, two rounds, the vector once, half of a lane.
    #[test]
    fn between_hosts_the_price_is_that_of_owners() {
        let crowd = Crowd::of(&[0, 0, 2, 2]);
        let options = GroupOptions::default();
        let within = FREE.hierarchical_ps(&crowd, 96, &options);
        let between = |link: LinkCost| link.hierarchical_ps(&crowd, 96, &options) - within;
        assert_eq!(between(LinkCost { latency_ns: 1, ..FREE }), 2000);
        assert_eq!(between(LinkCost { wire_ps_per_byte: 1, ..FREE }), 96);
        assert_eq!(between(LinkCost { reduce_ps_per_byte: 1, ..FREE }), 24);
        let near = LinkCost::SHARED_MEMORY;
        let moved = (96 + 48) * near.wire_ps_per_byte + 48 * near.reduce_ps_per_byte;
        assert_eq!(within, u128::from(2000 * near.latency_ns + moved));
    }

    /// Of a vector in many segments the wire carries all but what is moved before the first leaves; cores that carry it themselves
    /// do one after the other.
    #[test]
    fn of_a_long_vector_the_longer_of_wire_and_cores_counts() {
        let options = GroupOptions::default();
        let crowd = Crowd::of(&[0, 0, 2, 2]);
        let of = |wire_ps_per_byte, overlaps, bytes| {
            let link = LinkCost { wire_ps_per_byte, overlaps, ..FREE };
            link.hierarchical_ps(&crowd, bytes, &options)
        };
        // lanes of 32 segments and of 8
        for (bytes, segments) in [(32 * MIB, 32), (MIB, 8)] {
            let wire = 8000 * bytes as u128;
            let cores = of(0, true, bytes);
            assert_eq!(of(8000, false, bytes), wire + cores);
            let begins = 2000 * u128::from(LinkCost::SHARED_MEMORY.latency_ns);
            let beside = (cores - begins) / segments * 3;
            assert_eq!(of(8000, true, bytes), begins + wire + beside, "{bytes} bytes");
        }
    }

    #[test]
    fn what_leaves_a_host_shares_its_link() {
        let (blocks, turns) = ([0, 0, 0, 3, 3, 3], [0, 1, 0, 1, 0, 1]);
        let leaving = |hosts: &[usize], of| Crowd::of(hosts).leaving(of);
        assert_eq!((leaving(&blocks, Ring), leaving(&turns, Ring)), ((1, 1), (3, 1)));
        assert_eq!((leaving(&blocks, Direct), leaving(&turns, Direct)), ((9, 5), (9, 5)));
    }

    #[test]
    fn a_huge_vector_overflows_nothing() {
        for link in ALL {
            choose(link, 1 << 20, usize::MAX);
            link.choose_on_hosts(&[0, 0, 2], usize::MAX, &GroupOptions::default());
        }
    }
}
