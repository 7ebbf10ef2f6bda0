//! What every fabric promises of memcpys. Each case makes its own mesh.

use tensorwire_base::Rank;
use tensorwire_fabric::{
    ArrivalError, ArrivalMode, Direction, LocalSlice, Memcpy, OpenRegionError, PostError, Posted,
    RegionDescriptor, RemoteSlice, Side,
};

use crate::mesh::{
    Route, Setup, await_arrival, close, completions, fill, fill_range, mismatch, route, soon,
};

/// Runs every case of the three suites for one backend: `fabric_suite!(|| Backend::Shm);`, where signals
/// travel as `fabric_suite!(|| Backend::Sim(..), Some(ArrivalMode::FlagTail));` says.
#[macro_export]
macro_rules! fabric_suite {
    ($setup:expr) => {
        $crate::fabric_cases!($setup, fabric:
            a_write_lands, what_is_over_at_once_has_no_completion, zero_bytes_still_signal, a_write_without_a_signal_lands,
            offsets_are_respected, the_order_of_a_queue_pair_is_kept,
            an_arrival_never_precedes_its_payload, a_read_brings_the_bytes_here,
            a_read_signals_the_owner, zero_byte_reads_still_signal,
            a_read_never_signals_before_its_source_was_taken, offsets_of_reads_are_respected,
            a_read_sees_the_writes_before_it, an_epoch_never_falls, bounds_are_refused_here,
            forged_descriptors_are_refused_there, a_region_outlives_its_handle_in_flight,
            a_freed_region_is_unknown, a_full_queue_says_so_and_recovers,
            every_queue_pair_works, writes_cross_both_ways,
            payloads_with_room_for_an_epoch_arrive, there_must_be_room_for_an_epoch,
        );
        $crate::fabric_cases!($setup, fabric_events:
            messages_go_both_ways_in_order, oversized_messages_are_refused,
            a_flood_of_messages_arrives, a_wait_wakes_on_arrival, a_wait_times_out,
            an_idle_wait_burns_no_processor, nothing_is_lost_between_ticket_and_wait,
            three_make_a_mesh, statistics_count, channels_are_checked,
            a_slot_is_raised_at_once_where_memory_is_shared,
            arrival_slots_run_out, impossible_regions_are_errors,
        );
        $crate::fabric_cases!($setup, fabric_faults:
            an_orderly_exit_is_no_fault_in_any_order, writes_before_a_close_have_landed,
            posts_after_a_close_are_refused, a_drop_without_goodbye_is_a_fault,
            it_is_known_of_each_peer_how_it_went,
            a_lost_peer_ends_what_waits_for_it, another_job_is_turned_away,
            a_wrong_secret_is_turned_away, a_stale_incarnation_is_turned_away,
            a_missing_peer_is_named, a_wait_for_a_peer_can_be_given_up,
            bad_peer_tables_are_refused, bad_configurations_are_refused,
        );
    };
}

/// One `#[test]` per case of a module of suites.
#[macro_export]
macro_rules! fabric_cases {
    ($setup:expr, $module:ident: $($case:ident),* $(,)?) => {
        $(#[test] fn $case() {
            let setup: $crate::mesh::Setup = $setup;
            if setup.can_run() {
                $crate::suite::$module::$case(setup);
            }
        })*
    };
}

const SIZES: [u64; 8] = [1, 7, 63, 64, 4096, (64 << 10) + 1, 1 << 20, 16 << 20];

pub fn a_write_lands(setup: Setup) {
    let fabrics = setup.mesh(2);
    for (epoch, bytes) in (1..).zip(SIZES) {
        let way = route(&fabrics[0], &fabrics[1], 1, 0, bytes);
        fill(&way.source, bytes);
        way.write(bytes, epoch, 90 + epoch).unwrap();
        await_arrival(&fabrics[1], way.slot, epoch);
        assert_eq!(mismatch(&way.target, 0, bytes, bytes), None, "{bytes} bytes");
        let done = completions(&fabrics[0], 1);
        assert_eq!((done[0].token, done[0].peer), (90 + epoch, Rank(1)));
        assert_eq!(done[0].result, Ok(()));
    }
    close(&fabrics);
}

pub fn what_is_over_at_once_has_no_completion(setup: Setup) {
    const LARGE: u64 = 16 << 20;
    let fabrics = setup.mesh(2);
    let way = route(&fabrics[0], &fabrics[1], 1, 0, LARGE);
    let write = |bytes: u64, epoch: u64| {
        let memcpy = way.memcpy(Direction::Write, bytes, epoch, epoch);
        (way.channel.memcpy_now(memcpy).unwrap() == Posted::Queued).then_some(epoch)
    };
    let complete_once = |queued: Vec<u64>| {
        let done = completions(&fabrics[0], queued.len());
        let mut tokens: Vec<u64> = done.iter().map(|completion| completion.token).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, queued, "each once");
    };
    for (epoch, bytes) in (1..).zip(SIZES) {
        fill(&way.source, epoch);
        let queued = write(bytes, epoch);
        await_arrival(&fabrics[1], way.slot, epoch);
        assert_eq!(mismatch(&way.target, 0, bytes, epoch), None, "{bytes} bytes");
        complete_once(queued.into_iter().collect());
    }
    // one that is behind a large one stays behind it
    fill(&way.source, 50);
    let queued = [write(LARGE, 0), write(8, 50)];
    await_arrival(&fabrics[1], way.slot, 50);
    assert_eq!(mismatch(&way.target, 0, LARGE, 50), None);
    complete_once(queued.into_iter().flatten().collect());
    close(&fabrics);
    assert_eq!(fabrics[0].poll(&mut Vec::new()), 0, "and no other");
}

pub fn zero_bytes_still_signal(setup: Setup) {
    let fabrics = setup.mesh(2);
    let way = route(&fabrics[0], &fabrics[1], 1, 0, 64);
    way.write(0, 5, 1).unwrap();
    await_arrival(&fabrics[1], way.slot, 5);
    assert_eq!(completions(&fabrics[0], 1)[0].result, Ok(()));
    // at the very end of a region, and in a region without bytes
    let end = Memcpy {
        local: LocalSlice { region: &way.source, offset: 64 },
        remote: RemoteSlice { region: &way.remote, offset: 64 },
        ..way.memcpy(Direction::Write, 0, 6, 2)
    };
    way.channel.memcpy(end).unwrap();
    await_arrival(&fabrics[1], way.slot, 6);
    let empty = route(&fabrics[0], &fabrics[1], 1, 1, 0);
    empty.write(0, 7, 3).unwrap();
    await_arrival(&fabrics[1], empty.slot, 7);
    assert_eq!(completions(&fabrics[0], 2).len(), 2);
}

pub fn a_write_without_a_signal_lands(setup: Setup) {
    let fabrics = setup.mesh(2);
    let way = route(&fabrics[0], &fabrics[1], 1, 0, 10_000);
    fill(&way.source, 3);
    way.write(10_000, 0, 1).unwrap();
    // a later signal of the same queue pair speaks for it
    way.write(0, 1, 2).unwrap();
    await_arrival(&fabrics[1], way.slot, 1);
    assert_eq!(mismatch(&way.target, 0, 10_000, 3), None);
    assert_eq!(completions(&fabrics[0], 2).len(), 2);
}

pub fn offsets_are_respected(setup: Setup) {
    let fabrics = setup.mesh(2);
    let way = route(&fabrics[0], &fabrics[1], 1, 0, 1000);
    fill(&way.target, 1);
    fill_range(&way.source, 300, 100, 2);
    let part = Memcpy {
        local: LocalSlice { region: &way.source, offset: 300 },
        remote: RemoteSlice { region: &way.remote, offset: 300 },
        ..way.memcpy(Direction::Write, 100, 1, 0)
    };
    way.channel.memcpy(part).unwrap();
    await_arrival(&fabrics[1], way.slot, 1);
    assert_eq!(mismatch(&way.target, 300, 100, 2), None, "the bytes that were written");
    assert_eq!(mismatch(&way.target, 0, 300, 1), None, "the bytes before");
    assert_eq!(mismatch(&way.target, 400, 600, 1), None, "the bytes behind");
}

pub fn the_order_of_a_queue_pair_is_kept(setup: Setup) {
    const ROUNDS: u64 = 64;
    let fabrics = setup.mesh(2);
    let way = route(&fabrics[0], &fabrics[1], 1, 0, 50_000);
    let sources: Vec<_> = (0..ROUNDS).map(|_| fabrics[0].alloc_region(50_000).unwrap()).collect();
    for (round, source) in (1..).zip(&sources) {
        fill(source, round);
        // sizes shrink: a late long write would show behind a short one
        let bytes = 50_000 - round * 500;
        let local = LocalSlice { region: source, offset: 0 };
        let memcpy = Memcpy { local, ..way.memcpy(Direction::Write, bytes, round, round) };
        way.channel.memcpy(memcpy).unwrap();
    }
    await_arrival(&fabrics[1], way.slot, ROUNDS);
    assert_eq!(mismatch(&way.target, 0, 50_000 - ROUNDS * 500, ROUNDS), None, "the last wins");
    for round in 1..ROUNDS {
        let (start, bytes) = (50_000 - (round + 1) * 500, 500);
        assert_eq!(mismatch(&way.target, start, bytes, round), None, "tail of write {round}");
    }
    let done = completions(&fabrics[0], ROUNDS as usize);
    assert!(done.iter().map(|done| done.token).eq(1..=ROUNDS), "completions in order");
}

pub fn an_arrival_never_precedes_its_payload(setup: Setup) {
    const ROUNDS: u64 = 300;
    const BYTES: u64 = 48 * 1024 + 5;
    let fabrics = setup.mesh(2);
    let forth = route(&fabrics[0], &fabrics[1], 1, 0, BYTES);
    let back = route(&fabrics[1], &fabrics[0], 0, 0, 8);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                let deadline = soon();
                while fabrics[1].arrived(forth.slot) < round {
                    // spins on the slot alone; the writer's polls move the data
                    assert!(!deadline.passed(), "round {round} never arrived");
                    std::hint::spin_loop();
                }
                assert_eq!(mismatch(&forth.target, 0, BYTES, round), None, "round {round}");
                back.write(0, round, round).unwrap();
                completions(&fabrics[1], 1);
            }
        });
        for round in 1..=ROUNDS {
            fill(&forth.source, round);
            forth.write(BYTES, round, round).unwrap();
            completions(&fabrics[0], 1);
            await_arrival(&fabrics[0], back.slot, round);
        }
    });
}

pub fn a_read_brings_the_bytes_here(setup: Setup) {
    let fabrics = setup.mesh(2);
    for bytes in SIZES {
        let way = route(&fabrics[0], &fabrics[1], 1, 2, bytes);
        fill(&way.target, bytes + 1);
        way.channel.memcpy(way.memcpy(Direction::Read, bytes, 0, bytes)).unwrap();
        let done = completions(&fabrics[0], 1);
        assert_eq!((done[0].token, &done[0].result), (bytes, &Ok(())));
        assert_eq!(mismatch(&way.source, 0, bytes, bytes + 1), None, "{bytes} bytes");
    }
}

pub fn a_read_signals_the_owner(setup: Setup) {
    let fabrics = setup.mesh(2);
    let way = route(&fabrics[0], &fabrics[1], 1, 0, 300_000);
    fill(&way.target, 8);
    way.channel.memcpy(way.memcpy(Direction::Read, 300_000, 4, 0)).unwrap();
    await_arrival(&fabrics[1], way.slot, 4);
    // the owner may write its source again, and the reader still gets what was there
    fill(&way.target, 9);
    completions(&fabrics[0], 1);
    assert_eq!(mismatch(&way.source, 0, 300_000, 8), None);
}

pub fn zero_byte_reads_still_signal(setup: Setup) {
    let fabrics = setup.mesh(2);
    let way = route(&fabrics[0], &fabrics[1], 1, 0, 64);
    fill(&way.source, 1);
    fill(&way.target, 2);
    way.channel.memcpy(way.memcpy(Direction::Read, 0, 5, 1)).unwrap();
    await_arrival(&fabrics[1], way.slot, 5);
    // at the very end of a region, and in a region without bytes
    let end = Memcpy {
        local: LocalSlice { region: &way.source, offset: 64 },
        remote: RemoteSlice { region: &way.remote, offset: 64 },
        ..way.memcpy(Direction::Read, 0, 6, 2)
    };
    way.channel.memcpy(end).unwrap();
    await_arrival(&fabrics[1], way.slot, 6);
    let empty = route(&fabrics[0], &fabrics[1], 1, 1, 0);
    empty.channel.memcpy(empty.memcpy(Direction::Read, 0, 7, 3)).unwrap();
    await_arrival(&fabrics[1], empty.slot, 7);
    assert!(completions(&fabrics[0], 3).iter().all(|done| done.result == Ok(())));
    assert_eq!(mismatch(&way.source, 0, 64, 1), None);
    assert_eq!(mismatch(&way.target, 0, 64, 2), None);
}

pub fn a_read_never_signals_before_its_source_was_taken(setup: Setup) {
    let fabrics = setup.mesh(2);
    // the second is more than one turn of a socket, and is copied by another thread over shm
    for (bytes, rounds) in [(48 * 1024 + 5, 200), (5 << 20, 4)] {
        let way = route(&fabrics[0], &fabrics[1], 1, 0, bytes);
        let ready = route(&fabrics[1], &fabrics[0], 0, 0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=rounds {
                    fill(&way.target, round);
                    ready.write(0, round, round).unwrap();
                    completions(&fabrics[1], 1);
                    let deadline = soon();
                    while fabrics[1].arrived(way.slot) < round {
                        // spins on the slot alone; the reader's polls move the data
                        assert!(!deadline.passed(), "round {round} was never taken");
                        std::hint::spin_loop();
                    }
                    // at once, and first what is likely to be taken last
                    fill_range(&way.target, bytes - 4096, 4096, u64::MAX);
                }
            });
            for round in 1..=rounds {
                await_arrival(&fabrics[0], ready.slot, round);
                way.channel.memcpy(way.memcpy(Direction::Read, bytes, round, round)).unwrap();
                assert_eq!(completions(&fabrics[0], 1)[0].result, Ok(()));
                assert_eq!(mismatch(&way.source, 0, bytes, round), None, "round {round}");
            }
        });
    }
}

pub fn offsets_of_reads_are_respected(setup: Setup) {
    let fabrics = setup.mesh(2);
    let way = route(&fabrics[0], &fabrics[1], 1, 0, 1000);
    fill(&way.source, 1);
    fill_range(&way.target, 300, 100, 2);
    let part = Memcpy {
        local: LocalSlice { region: &way.source, offset: 300 },
        remote: RemoteSlice { region: &way.remote, offset: 300 },
        ..way.memcpy(Direction::Read, 100, 0, 0)
    };
    way.channel.memcpy(part).unwrap();
    completions(&fabrics[0], 1);
    assert_eq!(mismatch(&way.source, 300, 100, 2), None, "the bytes that were read");
    assert_eq!(mismatch(&way.source, 0, 300, 1), None, "the bytes before");
    assert_eq!(mismatch(&way.source, 400, 600, 1), None, "the bytes behind");
}

pub fn a_read_sees_the_writes_before_it(setup: Setup) {
    let fabrics = setup.mesh(2);
    for bytes in [1000, 5 << 20] {
        let way = route(&fabrics[0], &fabrics[1], 1, 0, bytes);
        let back = fabrics[0].alloc_region(bytes).unwrap();
        fill(&way.source, bytes);
        way.write(bytes, 0, 1).unwrap();
        let local = LocalSlice { region: &back, offset: 0 };
        way.channel.memcpy(Memcpy { local, ..way.memcpy(Direction::Read, bytes, 0, 2) }).unwrap();
        let done = completions(&fabrics[0], 2);
        assert!(done.iter().map(|done| done.token).eq([1, 2]), "completions in order");
        assert_eq!(mismatch(&back, 0, bytes, bytes), None, "{bytes} bytes");
    }
}

pub fn an_epoch_never_falls(setup: Setup) {
    let fabrics = setup.mesh(2);
    let way = route(&fabrics[0], &fabrics[1], 1, 0, 8);
    let other = fabrics[1].alloc_arrival().unwrap();
    way.write(8, 9, 0).unwrap();
    way.write(8, 4, 1).unwrap();
    let late = Memcpy {
        signal: Some(tensorwire_fabric::Signal { slot: other, epoch: 1 }),
        ..way.memcpy(Direction::Write, 0, 1, 2)
    };
    way.channel.memcpy(late).unwrap();
    await_arrival(&fabrics[1], other, 1);
    assert_eq!(fabrics[1].arrived(way.slot), 9, "the signal of epoch 4 came later");
    completions(&fabrics[0], 3);
}

pub fn bounds_are_refused_here(setup: Setup) {
    let fabrics = setup.mesh(2);
    let way = route(&fabrics[0], &fabrics[1], 1, 0, 4096);
    let cases = [
        (0, 0, 4097),
        (4096, 0, 1),
        (0, 4096, 1),
        (1, 0, u64::MAX),
        (0, u64::MAX, 1),
        (u64::MAX, u64::MAX, u64::MAX),
        // whoever keeps sizes in 32 bits takes these for 0 and 16
        (0, 0, 1 << 32),
        ((5 << 32) + 16, 0, 16),
        (0, (5 << 32) + 16, 16),
    ];
    for (local, remote, bytes) in cases {
        let memcpy = Memcpy {
            local: LocalSlice { region: &way.source, offset: local },
            remote: RemoteSlice { region: &way.remote, offset: remote },
            ..way.memcpy(Direction::Write, bytes, 1, 0)
        };
        for direction in [Direction::Write, Direction::Read] {
            let refused = way.channel.memcpy(Memcpy { direction, ..memcpy }).unwrap_err();
            let in_local = local.checked_add(bytes).is_some_and(|end| end <= 4096);
            let wanted = if in_local { Side::Remote } else { Side::Local };
            match refused {
                PostError::OutOfBounds { side, .. } => assert_eq!(side, wanted),
                other => panic!("{local} {remote} {bytes}: {other}"),
            }
        }
    }
    assert_eq!(fabrics[1].arrived(way.slot), 0);
    assert_eq!(fabrics[0].poll(&mut Vec::new()), 0, "what was refused does not complete");
    let beyond = tensorwire_fabric::ArrivalSlot(u32::MAX);
    let signal = Some(tensorwire_fabric::Signal { slot: beyond, epoch: 1 });
    let memcpy = Memcpy { signal, ..way.memcpy(Direction::Write, 8, 0, 0) };
    let refused = way.channel.memcpy(memcpy).unwrap_err();
    assert!(matches!(refused, PostError::NoSuchSlot { .. }), "{refused}");
    assert!(fabrics.iter().all(|fabric| fabric.fault().is_none()));
}

pub fn forged_descriptors_are_refused_there(setup: Setup) {
    let fabrics = setup.mesh(2);
    let way = route(&fabrics[0], &fabrics[1], 1, 0, 4096);
    let right = way.target.descriptor();
    let forged = [
        RegionDescriptor { bytes: 4097, ..right },
        RegionDescriptor { bytes: 5 << 32, ..right },
        RegionDescriptor { bytes: u64::MAX, ..right },
        RegionDescriptor { key: right.key ^ 1, ..right },
        RegionDescriptor { key: 0, ..right },
        // a region of the asker is none of the asked
        way.source.descriptor(),
    ];
    for descriptor in forged {
        let refused = way.channel.open_region(&descriptor, soon()).unwrap_err();
        assert!(matches!(refused, OpenRegionError::Refused { peer: Rank(1), .. }), "{refused}");
    }
    // a part is not a forgery, and refusals cost nobody the connection
    let part = RegionDescriptor { bytes: 100, ..right };
    let part = way.channel.open_region(&part, soon()).unwrap();
    let remote = RemoteSlice { region: &part, offset: 0 };
    let memcpy = Memcpy { remote, ..way.memcpy(Direction::Write, 101, 1, 0) };
    assert!(matches!(way.channel.memcpy(memcpy), Err(PostError::OutOfBounds { .. })));
    way.channel.memcpy(Memcpy { bytes: 100, ..memcpy }).unwrap();
    await_arrival(&fabrics[1], way.slot, 1);
    assert!(fabrics.iter().all(|fabric| fabric.fault().is_none()));
}

pub fn a_region_outlives_its_handle_in_flight(setup: Setup) {
    const BYTES: u64 = 16 << 20;
    let fabrics = setup.mesh(2);
    let Route { channel, source, target, remote, slot } =
        route(&fabrics[0], &fabrics[1], 1, 0, BYTES);
    fill(&source, 77);
    let signal = Some(tensorwire_fabric::Signal { slot, epoch: 1 });
    let memcpy = Memcpy {
        local: LocalSlice { region: &source, offset: 0 },
        remote: RemoteSlice { region: &remote, offset: 0 },
        bytes: BYTES,
        direction: Direction::Write,
        signal,
        token: 0,
    };
    channel.memcpy(memcpy).unwrap();
    drop((source, remote));
    // memory that was freed would be given away again
    let _others: Vec<_> = (0..4).map(|_| fabrics[0].alloc_region(BYTES).unwrap()).collect();
    await_arrival(&fabrics[1], slot, 1);
    assert_eq!(mismatch(&target, 0, BYTES, 77), None);
    completions(&fabrics[0], 1);
}

pub fn a_freed_region_is_unknown(setup: Setup) {
    let fabrics = setup.mesh(2);
    let region = fabrics[1].alloc_region(64).unwrap();
    let (slab, descriptor) = (region.slab(), region.descriptor());
    drop(region);
    let channel = fabrics[0].channel(Rank(1), 0).unwrap();
    channel.open_region(&descriptor, soon()).expect("its slab keeps it alive");
    drop(slab);
    let refused = channel.open_region(&descriptor, soon()).unwrap_err();
    assert!(matches!(refused, OpenRegionError::Refused { .. }), "{refused}");
}

pub fn a_full_queue_says_so_and_recovers(setup: Setup) {
    const DEPTH: usize = 4;
    let fabrics = setup.mesh_with(2, |config| config.queue_depth = DEPTH);
    let way = route(&fabrics[0], &fabrics[1], 1, 0, 1000);
    for round in 0..3 {
        for token in 0..DEPTH as u64 {
            way.write(1000, round * 10 + token + 1, token).unwrap();
        }
        assert_eq!(way.write(1000, 99, 99), Err(PostError::Full { depth: DEPTH }));
        let other = fabrics[0].channel(Rank(1), 1).unwrap();
        other.memcpy(way.memcpy(Direction::Write, 0, 0, 50)).expect("a queue pair of its own");
        assert_eq!(completions(&fabrics[0], DEPTH + 1).len(), DEPTH + 1);
    }
    await_arrival(&fabrics[1], way.slot, 24);
    assert_eq!(fabrics[1].arrived(way.slot), 24, "what was refused was not sent");
}

pub fn every_queue_pair_works(setup: Setup) {
    let fabrics = setup.mesh_with(2, |config| {
        (config.completion_queues, config.queue_pairs_per_peer) = (2, 5);
    });
    let ways: Vec<Route> =
        (0..5).map(|pair| route(&fabrics[0], &fabrics[1], 1, pair, 100_000)).collect();
    for (seed, way) in (0..).zip(&ways) {
        fill(&way.source, seed);
        way.write(100_000, 1, seed).unwrap();
    }
    for (seed, way) in (0..).zip(&ways) {
        await_arrival(&fabrics[1], way.slot, 1);
        assert_eq!(mismatch(&way.target, 0, 100_000, seed), None, "queue pair {seed}");
    }
    completions(&fabrics[0], 5);
}

pub fn writes_cross_both_ways(setup: Setup) {
    const BYTES: u64 = 4 << 20;
    let fabrics = setup.mesh(2);
    // both directions of the same sockets, larger than any buffer on the way
    let forth = route(&fabrics[0], &fabrics[1], 1, 0, BYTES);
    let back = route(&fabrics[1], &fabrics[0], 0, 0, BYTES);
    fill(&forth.source, 1);
    fill(&back.source, 2);
    for epoch in 1..=4 {
        forth.write(BYTES, epoch, epoch).unwrap();
        back.write(BYTES, epoch, epoch).unwrap();
    }
    await_arrival(&fabrics[1], forth.slot, 4);
    await_arrival(&fabrics[0], back.slot, 4);
    assert_eq!(mismatch(&forth.target, 0, BYTES, 1), None);
    assert_eq!(mismatch(&back.target, 0, BYTES, 2), None);
    completions(&fabrics[0], 4);
    completions(&fabrics[1], 4);
}

pub fn payloads_with_room_for_an_epoch_arrive(setup: Setup) {
    const BYTES: u64 = 40_000;
    let fabrics = setup.mesh(2);
    let plain = route(&fabrics[0], &fabrics[1], 1, 0, BYTES + 8);
    let back = route(&fabrics[1], &fabrics[0], 0, 0, 0);
    // whatever lay there before is no epoch
    fill(&plain.target, u64::MAX);
    let slot = fabrics[1].alloc_tail_arrival(&plain.target, BYTES).unwrap();
    let way = Route { slot, ..plain };
    assert_eq!(fabrics[1].arrived(slot), 0);
    for round in 1..=50 {
        fill(&way.source, round);
        // small and large: only the low bytes of an epoch change, and all of them
        let epoch = round.pow(9);
        way.write(BYTES, epoch, round).unwrap();
        await_arrival(&fabrics[1], slot, epoch);
        assert_eq!(fabrics[1].arrived(slot), epoch);
        assert_eq!(mismatch(&way.target, 0, BYTES, round), None, "round {round}");
        back.write(0, round, round).unwrap();
        await_arrival(&fabrics[0], back.slot, round);
        completions(&fabrics[0], 1);
        completions(&fabrics[1], 1);
    }
    // a read has no tail, and still signals
    way.channel.memcpy(way.memcpy(Direction::Read, 8, 1 << 61, 0)).unwrap();
    await_arrival(&fabrics[1], slot, 1 << 61);
    completions(&fabrics[0], 1);
    if setup.arrival != Some(ArrivalMode::FlagTail) {
        assert_eq!(mismatch(&way.target, BYTES, 8, u64::MAX), None, "left alone");
    }
}

pub fn there_must_be_room_for_an_epoch(setup: Setup) {
    let fabrics = setup.mesh(2);
    let region = fabrics[0].alloc_region(100).unwrap();
    for end in [93, 96, 100, 4, u64::MAX - 7, u64::MAX] {
        let refused = fabrics[0].alloc_tail_arrival(&region, end).unwrap_err();
        assert_eq!(refused, ArrivalError::NoTailRoom { end, region_bytes: 100 });
    }
    fabrics[0].alloc_tail_arrival(&region, 88).unwrap();
    fabrics[0].alloc_tail_arrival(&region, 0).unwrap();
}
