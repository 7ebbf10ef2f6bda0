//! What the model says, against measurements and formulas.

use super::*;
use Algorithm::{
    Direct, Exchange, HalvingDoubling, Hierarchical, MultiRing, RecursiveDoubling, ReduceBroadcast,
    Ring, Shared,
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
    assert_eq!(choose(LinkCost { overlaps: true, ..LinkCost::LOOPBACK }, 6, 256 * MIB), MultiRing);
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
    assert_eq!(of(ReduceBroadcast, 4), [2000, 4000, 576, 288]);
    assert_eq!(of(Shared, 3), [2000, 2000, 64, 64]);
}

/// 96 bytes among 4 and 3 members who share a core: one α, β and γ at a time, of all messages together.
#[test]
fn members_that_share_cores_pay_for_all_messages_of_all() {
    let prices = [
        LinkCost { latency_ns: 1, overlaps: false, ..FREE },
        LinkCost { wire_ps_per_byte: 1, overlaps: false, ..FREE },
        LinkCost { reduce_ps_per_byte: 1, overlaps: false, ..FREE },
    ];
    let options = GroupOptions { cores: Some(1), ..GroupOptions::default() };
    let of = |algorithm, members| {
        prices.map(|link| link.all_reduce_ps(algorithm, members, 96, &options))
    };
    assert_eq!(of(Exchange, 4), [12_000, 12 * 96, 12 * 96]);
    assert_eq!(of(Direct, 4), [24_000, 6 * 96, 3 * 96]);
    assert_eq!(of(Ring, 4), [24_000, 6 * 96, 3 * 96]);
    assert_eq!(of(MultiRing, 4), [48_000, 6 * 96, 3 * 96]);
    assert_eq!(of(RecursiveDoubling, 4), [8000, 8 * 96, 8 * 96]);
    assert_eq!(of(RecursiveDoubling, 3), [4000, 4 * 96, 3 * 96]);
    assert_eq!(of(HalvingDoubling, 4), [16_000, 6 * 96, 3 * 96]);
    assert_eq!(of(HalvingDoubling, 3), [6000, 4 * 96, 2 * 96]);
    assert_eq!(of(ReduceBroadcast, 4), [6000, 6 * 96, 3 * 96]);
    // two cores do it in half the time, as many as members wait for each other alone
    let two = GroupOptions { cores: Some(2), ..options.clone() };
    assert_eq!(prices[0].all_reduce_ps(Exchange, 4, 96, &two), 6000);
    let four = GroupOptions { cores: Some(4), ..options.clone() };
    assert_eq!(prices[0].all_reduce_ps(Exchange, 4, 96, &four), 1000);
    // where others move the bytes, cores count for nothing
    let rdma = LinkCost { latency_ns: 1, ..FREE };
    assert_eq!(rdma.all_reduce_ps(Exchange, 4, 96, &options), 1000);
    for cores in [0, 1, usize::MAX] {
        let any = GroupOptions { cores: Some(cores), ..GroupOptions::default() };
        for link in ALL {
            link.choose(1 << 20, usize::MAX, &any);
        }
    }
}

#[test]
fn many_members_on_few_cores_take_the_fewest_messages() {
    let on = |cores, deterministic, members, bytes| {
        let options = GroupOptions { cores, deterministic, ..GroupOptions::default() };
        LinkCost::LOOPBACK.choose(members, bytes, &options)
    };
    for bytes in [64, 4 * KIB, 16 * KIB, 64 * KIB] {
        assert_eq!(on(Some(2), false, 8, bytes), ReduceBroadcast, "{bytes} bytes");
        assert_eq!(on(Some(2), false, 4, bytes), RecursiveDoubling, "{bytes} bytes");
        assert_eq!(on(Some(2), true, 8, bytes), ReduceBroadcast, "{bytes} bytes, in order");
        for cores in [Some(8), None] {
            assert_ne!(on(cores, false, 8, bytes), ReduceBroadcast, "{bytes} bytes");
        }
    }
    for bytes in [256 * KIB, MIB] {
        assert_eq!(on(Some(2), false, 8, bytes), HalvingDoubling, "{bytes} bytes");
    }
    // parts of more than 256 KiB keep cores busy
    for (members, bytes) in [(4, 2 * MIB), (8, 4 * MIB), (8, 256 * MIB)] {
        assert_eq!(on(Some(2), false, members, bytes), Direct, "{members} members, {bytes} bytes");
    }
    assert_eq!(on(Some(2), false, 4, MIB), HalvingDoubling);
    // one member would hold the vectors of all
    assert_eq!(on(Some(1), false, 8, 512 * KIB), ReduceBroadcast);
    for bytes in [MIB, 256 * MIB] {
        assert_ne!(on(Some(1), false, 8, bytes), ReduceBroadcast, "{bytes} bytes on one core");
    }
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
