//! Operations on the first bytes of a vector: any lengths and calls, one behind the other on the same memory.

use std::sync::Arc;
use std::thread;

use tensorwire_base::Rank;
use tensorwire_collectives::{
    Algorithm, CollectiveCall, Collectives, Group, GroupError, GroupOptions, LinkCost, Row, Table,
};
use tensorwire_fabric::Fabric;
use tensorwire_testkit::mesh::soon;

use crate::support::{
    Mean, SHM, TCP, any_order, every_call, fill, fitting, vectors, verify, with_group,
};

const CAPACITY: usize = 20_001;

/// By length, every algorithm: those who switch meet what another one left.
fn by_length(shares: bool) -> Table {
    let last = if shares { Algorithm::Shared } else { Algorithm::Direct };
    let row = |from, algorithm| Row { world: 2, hosts: None, from_bytes: 4 * from, algorithm };
    let rows = vec![
        row(0, Algorithm::Exchange),
        row(900, Algorithm::Direct),
        row(2500, Algorithm::HalvingDoubling),
        row(4000, Algorithm::Exchange),
        row(6000, last),
        row(9000, Algorithm::Ring),
        row(13_000, Algorithm::MultiRing),
        row(CAPACITY, Algorithm::HalvingDoubling),
    ];
    Table { rows }
}

/// Numbers below `bound`, the same at all members.
fn draw(state: &mut u64, bound: usize) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    // fits: a remainder
    (*state % bound as u64) as usize
}

/// Mostly all-reduces, which do not meet: of lengths near those at which another algorithm is taken, and of any.
fn lengths_and_calls(group: &mut Group, rounds: usize) {
    let (me, size) = (group.me(), group.size());
    let buffers = vectors(group, &[CAPACITY]);
    let vector = group.bind(&buffers, soon()).unwrap()[0];
    assert_eq!(group.vector_bytes(vector).unwrap(), 4 * CAPACITY);
    let calls = every_call(size);
    let lens = [0, 1, 5, 899, 900, 1800, 2500, 3999, 4000, 5999, 6000, 9000, 13_000, CAPACITY];
    let mut state = 88_172_645_463_325_252;
    for step in 0..rounds {
        let len = match draw(&mut state, 4) {
            0 => draw(&mut state, CAPACITY + 1),
            _ => lens[draw(&mut state, lens.len())],
        };
        let at = draw(&mut state, 3 * calls.len());
        let reduced = CollectiveCall::AllReduce(Arc::new(Mean));
        let call = calls.get(at).unwrap_or(&reduced);
        let len = fitting(len, call, size);
        fill(&buffers[0], me, step % 50);
        let handle = group.start_part(vector, 4 * len, call.clone()).unwrap();
        group.wait(handle, soon()).unwrap();
        verify(&buffers[0], len, call, (me, size), step % 50);
    }
}

fn all_lengths(make: impl Fn(u32) -> Vec<Fabric>, sizes: &[u32], shares: bool, rounds: usize) {
    let ways = Algorithm::ALL.into_iter().filter(|a| shares || *a != Algorithm::Shared);
    for algorithm in ways.map(Some).chain([None]) {
        for &size in sizes {
            let options = GroupOptions {
                algorithm,
                table: Some(by_length(shares)),
                segment_bytes: 4096,
                ..GroupOptions::default()
            };
            with_group(make(size), &options, |group| lengths_and_calls(group, rounds));
        }
    }
}

#[test]
fn any_lengths_follow_each_other_over_shared_memory() {
    all_lengths(|size| SHM.mesh(size), &[1, 2, 3, 4], true, 40);
}

#[test]
fn any_lengths_follow_each_other_over_tcp() {
    all_lengths(|size| TCP.mesh(size), &[2, 3], false, 40);
}

#[test]
fn any_lengths_follow_each_other_where_bytes_and_writes_land_in_any_order() {
    for seed in 0..3 {
        all_lengths(|size| any_order(seed, size), &[3], false, 40);
    }
}

/// What a member sends says by what it was reduced: all of it where vectors are exchanged, nothing where they are shared.
#[test]
fn the_algorithm_is_that_of_the_operation_and_not_of_the_vector() {
    let (short, long) = (1000, 1 << 20);
    for size in [2, 3] {
        with_group(SHM.mesh(size), &GroupOptions::default(), |group| {
            let buffers = vectors(group, &[long]);
            let vector = group.bind(&buffers, soon()).unwrap()[0];
            assert_eq!(group.algorithm(4 * short), Algorithm::Exchange);
            assert_eq!(group.algorithm(4 * long), Algorithm::Shared);
            let sent = |group: &mut Group, len: usize| {
                let before = group.stats().bytes_sent;
                let call = CollectiveCall::AllReduce(Arc::new(Mean));
                let handle = group.start_part(vector, 4 * len, call).unwrap();
                group.wait(handle, soon()).unwrap();
                group.stats().bytes_sent - before
            };
            let to_all = u64::from(size - 1) * 4 * short as u64;
            assert_eq!(sent(group, short), to_all);
            assert_eq!(sent(group, long), 0);
            assert_eq!(sent(group, short), to_all);
        });
    }
}

#[test]
fn a_part_that_is_longer_than_the_vector_or_no_whole_elements_is_refused() {
    with_group(SHM.mesh(2), &GroupOptions::default(), |group| {
        let buffers = vectors(group, &[100]);
        let vector = group.bind(&buffers, soon()).unwrap()[0];
        let mut refused = |bytes: usize| {
            let call = CollectiveCall::AllReduce(Arc::new(Mean));
            let error = group.start_part(vector, bytes, call).unwrap_err();
            assert!(matches!(error, GroupError::Vector { .. }), "{error:?}");
            error.to_string()
        };
        let long = refused(404);
        assert!(long.contains("400 bytes") && long.contains("404"), "{long}");
        let torn = refused(6);
        assert!(torn.contains("no whole elements of 4"), "{torn}");
    });
}

/// Vectors that go the same way as a whole are not enough: parts of them are chosen for by each member.
#[test]
fn members_that_choose_by_other_costs_hear_of_it() {
    let ranks: Vec<Rank> = (0..2).map(Rank).collect();
    thread::scope(|scope| {
        for (me, fabric) in SHM.mesh(2).into_iter().enumerate() {
            let ranks = &ranks;
            scope.spawn(move || {
                let link = if me == 0 { LinkCost::TCP } else { LinkCost::RDMA };
                let options = GroupOptions { link, ..GroupOptions::default() };
                let error = Group::open(fabric, ranks, me, options, soon()).unwrap_err();
                assert!(matches!(error, GroupError::Differs { .. }), "{error:?}");
                assert!(error.to_string().contains("latency_ns: 30000"), "{error}");
            });
        }
    });
}
