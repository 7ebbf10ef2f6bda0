//! Groups over real fabrics and the simulated one: every call, algorithm, size and length against its closed form.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tensorwire_base::{Deadline, Rank};
use tensorwire_collectives::{
    Algorithm, CollectiveCall, Collectives, Group, GroupError, GroupOptions, LinkCost, Reducer,
};
use tensorwire_fabric::Fabric;
use tensorwire_memory::CopyPurpose;
use tensorwire_testkit::mesh::{Setup, soon};

use crate::support::{
    Mean, Plainly, SHM, TCP, any_order, every_call, fill, fitting, vectors, verify, with_group,
    write,
};

fn all_calls(make: impl Fn(u32) -> Vec<Fabric>, sizes: &[u32], shares: bool) {
    let algorithms = Algorithm::ALL.into_iter().map(Some).chain([None]);
    for algorithm in algorithms.filter(|a| shares || *a != Some(Algorithm::Shared)) {
        for &size in sizes {
            for deterministic in [false, true] {
                let options = GroupOptions {
                    algorithm,
                    deterministic,
                    segment_bytes: 4096,
                    // the first bound first, or the first started
                    posted_bytes_max: deterministic.then_some(8192),
                    ..GroupOptions::default()
                };
                with_group(make(size), &options, |group| {
                    // 4500: the last of a piece's segments is short, and so is its place
                    let buffers = vectors(group, &[0, 1, 7, 1000, 4500, 4500, 20_001]);
                    let ids = group.bind(&buffers, soon()).unwrap();
                    for (step, call) in every_call(size as usize).into_iter().enumerate() {
                        // all at once, and the last first at some members
                        let mut order: Vec<usize> = (0..ids.len()).collect();
                        if group.me() % 2 == 1 {
                            order.reverse();
                        }
                        let mut handles = Vec::new();
                        for at in order {
                            fill(&buffers[at], group.me(), step);
                            let len = fitting(buffers[at].bytes() / 4, &call, group.size());
                            handles.push(group.start_part(ids[at], 4 * len, call.clone()).unwrap());
                        }
                        for handle in handles {
                            group.wait(handle, soon()).unwrap();
                        }
                        for buffer in &buffers {
                            let members = (group.me(), group.size());
                            let len = fitting(buffer.bytes() / 4, &call, group.size());
                            verify(buffer, len, &call, members, step);
                        }
                    }
                });
            }
        }
    }
}

#[test]
fn every_call_and_algorithm_over_shared_memory() {
    all_calls(|size| SHM.mesh(size), &[1, 2, 3, 4], true);
}

#[test]
fn every_call_and_algorithm_over_tcp() {
    all_calls(|size| TCP.mesh(size), &[2, 3, 4], false);
}

#[test]
fn every_call_and_algorithm_where_bytes_and_writes_land_in_any_order() {
    for seed in 0..5 {
        all_calls(|size| any_order(seed, size), &[3], false);
    }
}

/// Of the members that share a host, each has the other's memory; hosts in blocks, in turns, and of unlike size.
#[test]
fn every_call_and_algorithm_over_hosts_that_members_share() {
    let on = |host| Setup { host: Some(host), ..TCP };
    all_calls(|size| on(|rank| rank / 2).mesh(size), &[3, 4], false);
    all_calls(|size| on(|rank| rank % 2).mesh(size), &[5], false);
}

#[test]
fn members_that_share_hosts_have_the_same_bits_and_know_who_is_where() {
    for (host, wanted) in [
        ((|rank| rank / 3) as fn(u32) -> u32, [0, 0, 0, 3, 3]),
        (|rank| rank % 2, [0, 1, 0, 1, 0]),
        (|rank| u32::from(rank == 2), [0, 0, 2, 0, 0]),
    ] {
        let bits = std::sync::Mutex::new(vec![Vec::new(); 5]);
        // 1 Gb/s
        let link = LinkCost { wire_ps_per_byte: 8000, ..LinkCost::TCP };
        let options = GroupOptions { segment_bytes: 4096, link, ..GroupOptions::default() };
        with_group(Setup { host: Some(host), ..TCP }.mesh(5), &options, |group| {
            assert_eq!((group.hosts(), group.shares_memory()), (&wanted[..], false));
            let buffers = vectors(group, &[300_000, 8]);
            assert_eq!(group.algorithm(buffers[0].bytes()), Algorithm::Hierarchical);
            assert_eq!(group.algorithm(buffers[1].bytes()), Algorithm::Exchange);
            let ids = group.bind(&buffers[..1], soon()).unwrap();
            let me = group.me();
            for step in 0..3 {
                let number = |i: usize| {
                    ((i * 7919 + me * 104_729 + step) % 1000) as f32 * 10f32.powi((i % 9) as i32)
                };
                write(&mut buffers[0].write().unwrap(), (0..).map(number));
                let handle =
                    group.start(ids[0], CollectiveCall::AllReduce(Arc::new(Mean))).unwrap();
                group.wait(handle, soon()).unwrap();
            }
            bits.lock().unwrap()[me] = buffers[0].read().unwrap().to_vec();
        });
        let bits = bits.into_inner().unwrap();
        assert!(bits.iter().all(|other| *other == bits[0]), "members differ: {wanted:?}");
    }
}

/// The same bits whatever the algorithm, segments, rings and fabric: reduces in the order of members.
#[test]
fn deterministic_reductions_have_the_same_bits() {
    let run_by = |reducer: Arc<dyn Reducer>, setup: Setup, options: GroupOptions| {
        let bits = std::sync::Mutex::new(vec![Vec::new(); 4]);
        with_group(setup.mesh(4), &options, |group| {
            let buffers = vectors(group, &[5000]);
            let ids = group.bind(&buffers, soon()).unwrap();
            let me = group.me();
            // numbers of very different size: another order has other bits
            let number = |i: usize| {
                ((i * 7919 + me * 104_729) % 1000) as f32
                    * 10f32.powi((i % 9) as i32 - 4 + me as i32)
            };
            write(&mut buffers[0].write().unwrap(), (0..).map(number));
            let call = CollectiveCall::AllReduce(reducer.clone());
            let handle = group.start(ids[0], call).unwrap();
            group.wait(handle, soon()).unwrap();
            bits.lock().unwrap()[me] = buffers[0].read().unwrap().to_vec();
        });
        let bits = bits.into_inner().unwrap();
        assert!(bits.iter().all(|other| *other == bits[0]), "members differ");
        bits[0].clone()
    };
    let run = |setup: Setup, options| run_by(Arc::new(Mean), setup, options);
    let base = GroupOptions { deterministic: true, ..GroupOptions::default() };
    let first = run(SHM, GroupOptions { algorithm: Some(Algorithm::Shared), ..base.clone() });
    for algorithm in Algorithm::ALL {
        for (segment_bytes, rings) in [(64, 3), (1 << 20, 1)] {
            let options =
                GroupOptions { algorithm: Some(algorithm), segment_bytes, rings, ..base.clone() };
            assert_eq!(run(SHM, options.clone()), first, "{options:?}");
            let around_own = run_by(Arc::new(Plainly(Mean)), SHM, options.clone());
            assert_eq!(around_own, first, "{options:?} around a member's own");
            if algorithm != Algorithm::Shared {
                assert_eq!(run(TCP, options.clone()), first, "{options:?} over tcp");
            }
        }
    }
    let unordered = GroupOptions { algorithm: Some(Algorithm::Ring), ..GroupOptions::default() };
    assert_ne!(run(SHM, unordered), first, "these numbers cannot tell an order from another");
}

/// Where three or more addends meet, their result is put together in a cache and copied to its place: a piece of the
/// vector at its owner, all of it where each has all. Two addends are put together in place, and any number that round
/// after each.
#[test]
fn what_a_member_copies_of_a_reduction_is_counted() {
    const LEN: usize = 3000;
    let vector = 4 * LEN as u64;
    let by = |reducer: &Arc<dyn Reducer>, setup: Setup, size: u32, algorithm, deterministic| {
        let options =
            GroupOptions { algorithm: Some(algorithm), deterministic, ..GroupOptions::default() };
        let copied = std::sync::Mutex::new(vec![0; size as usize]);
        with_group(setup.mesh(size), &options, |group| {
            let buffers = vectors(group, &[LEN]);
            let ids = group.bind(&buffers, soon()).unwrap();
            fill(&buffers[0], group.me(), 0);
            let before = group.stats().copies;
            let handle = group.start(ids[0], CollectiveCall::AllReduce(reducer.clone())).unwrap();
            group.wait(handle, soon()).unwrap();
            let reduced = group.stats().copies;
            let handle = group.start(ids[0], CollectiveCall::Broadcast { root: 0 }).unwrap();
            group.wait(handle, soon()).unwrap();
            assert_eq!(
                group.stats().copies,
                reduced,
                "what goes from place to place is not copied"
            );
            let bytes = reduced.of(CopyPurpose::Reduction) - before.of(CopyPurpose::Reduction);
            assert_eq!(reduced.bytes() - before.bytes(), bytes);
            copied.lock().unwrap()[group.me()] = bytes;
        });
        copied.into_inner().unwrap()
    };
    let mean: Arc<dyn Reducer> = Arc::new(Mean);
    let copied =
        |setup, size, algorithm, deterministic| by(&mean, setup, size, algorithm, deterministic);
    // what rounds after each addend goes around the member's own
    let plain: Arc<dyn Reducer> = Arc::new(Plainly(Mean));
    for algorithm in [Algorithm::Exchange, Algorithm::Direct, Algorithm::Shared] {
        assert_eq!(by(&plain, SHM, 4, algorithm, true), [0; 4], "{algorithm:?}");
    }
    for setup in [SHM, TCP] {
        for deterministic in [false, true] {
            let of = |size, algorithm| copied(setup, size, algorithm, deterministic);
            assert_eq!(of(1, Algorithm::Direct), [vector], "the vector's only addend is set aside");
            for algorithm in [Algorithm::Exchange, Algorithm::Direct, Algorithm::Ring] {
                assert_eq!(of(2, algorithm), [0; 2], "{algorithm:?}");
            }
            assert_eq!(of(3, Algorithm::Exchange), [vector; 3]);
            assert_eq!(of(3, Algorithm::Direct), [vector / 3; 3]);
        }
        assert_eq!(copied(setup, 3, Algorithm::Ring, false), [0; 3]);
    }
    assert_eq!(copied(SHM, 2, Algorithm::Shared, false), [0; 2]);
    assert_eq!(copied(SHM, 3, Algorithm::Shared, false), [vector / 3; 3]);
}

/// Of an all-to-all, what a member sends to itself; the others' comes where it is to be.
#[test]
fn what_a_member_sends_to_itself_is_copied_and_counted() {
    for setup in [SHM, TCP] {
        with_group(setup.mesh(3), &GroupOptions::default(), |group| {
            let buffers = vectors(group, &[6 * 5000]);
            let ids = group.bind(&buffers, soon()).unwrap();
            let before = group.stats().copies;
            let call = CollectiveCall::AllToAll { element_bytes: 4 };
            let handle = group.start(ids[0], call).unwrap();
            group.wait(handle, soon()).unwrap();
            let copied = group.stats().copies;
            assert_eq!(copied.bytes() - before.bytes(), 4 * 5000);
            let staged = copied.of(CopyPurpose::Staging) - before.of(CopyPurpose::Staging);
            assert_eq!(staged, 4 * 5000);
        });
    }
}

#[test]
fn a_lost_member_is_named() {
    for setup in [SHM, TCP] {
        let fabrics = setup.mesh(3);
        let ranks: Vec<Rank> = (0..3).map(Rank).collect();
        // whoever knows stays until the other knows too: his leaving is no cause
        let both_know = std::sync::Barrier::new(2);
        thread::scope(|scope| {
            for (me, fabric) in fabrics.into_iter().enumerate() {
                let (ranks, both_know) = (&ranks, &both_know);
                scope.spawn(move || {
                    let options = GroupOptions::default();
                    let mut group = Group::open(fabric, ranks, me, options, soon()).unwrap();
                    let buffers = vectors(&mut group, &[100_000]);
                    let ids = group.bind(&buffers, soon()).unwrap();
                    group.barrier(soon()).unwrap();
                    if me == 1 {
                        // leaves without a word
                        return;
                    }
                    let handle = group.start(ids[0], CollectiveCall::AllReduce(Arc::new(Mean)));
                    let error = handle.and_then(|handle| group.wait(handle, soon())).unwrap_err();
                    both_know.wait();
                    assert!(matches!(error, GroupError::Lost { member: 1, .. }), "{error}");
                });
            }
        });
    }
}

#[test]
fn who_does_not_come_is_named_at_the_deadline() {
    with_group(SHM.mesh(2), &GroupOptions::default(), |group| {
        let buffers = vectors(group, &[10, 10]);
        let ids = group.bind(&buffers, soon()).unwrap();
        if group.me() == 0 {
            let handle = group.start(ids[0], CollectiveCall::Broadcast { root: 1 }).unwrap();
            let short = Deadline::after(Duration::from_millis(30));
            let error = group.wait(handle, short).unwrap_err();
            assert!(error.to_string().contains("member 1 (rank 1)"), "{error}");
            let again =
                group.start(ids[0], CollectiveCall::AllGather { element_bytes: 4 }).unwrap_err();
            assert!(again.to_string().contains("under way"), "{again}");
            group.barrier(soon()).unwrap();
            group.wait(handle, soon()).unwrap();
        } else {
            group.barrier(soon()).unwrap();
            let handle = group.start(ids[0], CollectiveCall::Broadcast { root: 1 }).unwrap();
            group.wait(handle, soon()).unwrap();
        }
        let lent = buffers[1].read().unwrap();
        let refused =
            group.start(ids[1], CollectiveCall::AllGather { element_bytes: 4 }).unwrap_err();
        assert!(refused.to_string().contains("lent"), "{refused}");
        drop(lent);
        let nobody = group.start(ids[1], CollectiveCall::Broadcast { root: 2 }).unwrap_err();
        assert!(nobody.to_string().contains("no root 2"), "{nobody}");
        for call in [
            CollectiveCall::Gather { root: 2, element_bytes: 4 },
            CollectiveCall::Scatter { root: 2, element_bytes: 4 },
        ] {
            let nobody = group.start(ids[1], call).unwrap_err();
            assert!(nobody.to_string().contains("no root 2"), "{nobody}");
        }
        // 10 elements, and not 8
        let halves = group.start(ids[1], CollectiveCall::AllToAll { element_bytes: 4 });
        let halves = halves.unwrap_err();
        assert!(halves.to_string().contains("no two halves of 2 equal parts"), "{halves}");
    });
}

#[test]
fn members_that_bind_other_lengths_hear_of_it() {
    with_group(SHM.mesh(2), &GroupOptions::default(), |group| {
        let me = group.me();
        let buffers = vectors(group, &[10 + me]);
        let error = group.bind(&buffers, soon()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("(40, ") && text.contains("(44, "), "{text}");
    });
}

/// The vector that was bound first is started last, at both of two members that one thread moves in turns, on a network that a seed
/// makes. Returns what a member has sent of the other vector when the first one is done.
fn sent_behind_the_first(seed: u64, posted_bytes_max: Option<usize>) -> u64 {
    let len = 1 << 19;
    let options = GroupOptions {
        algorithm: Some(Algorithm::Direct),
        segment_bytes: 64 << 10,
        posted_bytes_max,
        ..GroupOptions::default()
    };
    let open = |(me, fabric)| {
        let mut group =
            Group::open(fabric, &[Rank(0), Rank(1)], me, options.clone(), soon()).unwrap();
        let buffers = vectors(&mut group, &[len, len]);
        buffers.iter().for_each(|buffer| fill(buffer, me, 0));
        let ids = group.bind(&buffers, soon()).unwrap();
        group.barrier(soon()).unwrap();
        (group, ids, buffers)
    };
    let mut members: Vec<_> = thread::scope(|scope| {
        let fabrics = any_order(seed, 2).into_iter().enumerate();
        let opening: Vec<_> = fabrics.map(|of| scope.spawn(move || open(of))).collect();
        opening.into_iter().map(|opening| opening.join().unwrap()).collect()
    });
    let mean = || CollectiveCall::AllReduce(Arc::new(Mean));
    let before = members[0].0.stats().bytes_sent;
    let mut handles = Vec::new();
    for at in [1, 0] {
        for (group, ids, _) in &mut members {
            handles.push(group.start(ids[at], mean()).unwrap());
        }
    }
    let mut move_until_done = |handle| {
        while !members[0].0.is_done(handle) {
            for (group, ..) in &mut members {
                group.progress().unwrap();
            }
        }
        members[0].0.stats().bytes_sent - before
    };
    // each sends half of a vector to be reduced, and the result of the other half
    let of_one = 4 * len as u64;
    let behind = move_until_done(handles[2]) - of_one;
    assert_eq!(move_until_done(handles[0]), 2 * of_one);
    while !(members[1].0.is_done(handles[1]) && members[1].0.is_done(handles[3])) {
        for (group, ..) in &mut members {
            group.progress().unwrap();
        }
    }
    for (me, (_, _, buffers)) in members.iter().enumerate() {
        buffers.iter().for_each(|buffer| verify(buffer, len, &mean(), (me, 2), 0));
    }
    behind
}

#[test]
fn what_was_bound_first_goes_first_though_it_is_started_last() {
    for seed in 0..3 {
        let [as_started, in_order] =
            [None, Some(128 << 10)].map(|most| sent_behind_the_first(seed, most));
        assert!(in_order <= as_started / 2, "{in_order} bytes, or {as_started} as started");
    }
}
