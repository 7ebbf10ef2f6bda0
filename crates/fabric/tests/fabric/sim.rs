//! The suite in the simulated network, in its gentle and its adversarial setting, and what only a
//! simulation can do: the same run from the same seed, failures on demand, a kill without a process.

use tensorwire_base::Rank;
use tensorwire_fabric::{
    ArrivalMode, Backend, Between, CompletionError, Direction, Fabric, FabricConfig, FaultCause,
    LocalSlice, Memcpy, PostError, RemoteSlice, SimKnobs, SimNetwork, Within,
};
use tensorwire_testkit::mesh::{
    Setup, completions, connect, fill, job, member, mismatch, route, wait_until,
};

tensorwire_testkit::fabric_suite!(Setup::new(|| {
    Backend::Sim(SimNetwork::new(7, SimKnobs::default()))
}));

mod flag_separate {
    use super::{ArrivalMode, Backend, Setup, SimKnobs, SimNetwork};

    tensorwire_testkit::fabric_suite!(Setup {
        arrival: Some(ArrivalMode::FlagSeparate),
        ..Setup::new(|| Backend::Sim(SimNetwork::new(8, SimKnobs::default())))
    });
}

mod flag_tail {
    use super::{ArrivalMode, Backend, Setup, SimKnobs, SimNetwork, Within};

    // the one order in which the device may be trusted with it
    tensorwire_testkit::fabric_suite!(Setup {
        arrival: Some(ArrivalMode::FlagTail),
        ..Setup::new(|| {
            let knobs = SimKnobs { within: Within::Ascending, ..SimKnobs::default() };
            Backend::Sim(SimNetwork::new(9, knobs))
        })
    });
}

/// Everything at once that a network may do without breaking a promise.
fn adversarial() -> SimKnobs {
    SimKnobs {
        between: Between::Random,
        pieces_max: 16,
        delay_turns_max: 20,
        duplicate_per_mille: 300,
        late_turns_max: 20,
        signal_twice_per_mille: 300,
        ..SimKnobs::default()
    }
}

mod reordered {
    use super::{Backend, Setup, SimNetwork, adversarial};

    // all but the order of overlapping writes, which such a network does not keep
    tensorwire_testkit::fabric_cases!(Setup::new(|| Backend::Sim(SimNetwork::new(11, adversarial()))), fabric:
        a_write_lands, zero_bytes_still_signal, a_write_without_a_signal_lands,
        an_arrival_never_precedes_its_payload, a_read_brings_the_bytes_here,
        a_read_signals_the_owner, zero_byte_reads_still_signal,
        a_read_never_signals_before_its_source_was_taken, offsets_of_reads_are_respected,
        a_region_outlives_its_handle_in_flight,
        a_full_queue_says_so_and_recovers, every_queue_pair_works, writes_cross_both_ways,
    );
    tensorwire_testkit::fabric_cases!(Setup::new(|| Backend::Sim(SimNetwork::new(12, adversarial()))), fabric_events:
        nothing_is_lost_between_ticket_and_wait, three_make_a_mesh,
    );
}

fn pair(network: &SimNetwork) -> [Fabric; 2] {
    pair_by(network, ArrivalMode::WriteImm)
}

/// Where nobody asks whether `flag-tail` is right.
fn pair_by(network: &SimNetwork, mode: ArrivalMode) -> [Fabric; 2] {
    let fabrics = [0, 1].map(|rank| {
        let mut config = FabricConfig::new(member(rank), job());
        (config.arrival, config.trust_tail) = (Some(mode), true);
        Fabric::open(Backend::Sim(network.clone()), config).unwrap()
    });
    connect(&fabrics);
    fabrics
}

#[test]
fn a_peers_memory_is_not_mapped_here() {
    let fabrics = pair(&SimNetwork::new(1, SimKnobs::default()));
    assert!(route(&fabrics[0], &fabrics[1], 1, 0, 64).remote.slab().is_none());
}

/// One thread: 12 writes on three queue pairs; after each poll, what has arrived and completed.
fn history(seed: u64, knobs: SimKnobs) -> Vec<(Vec<u64>, Vec<u64>)> {
    let fabrics = pair(&SimNetwork::new(seed, knobs));
    let ways: Vec<_> = (0..3).map(|pair| route(&fabrics[0], &fabrics[1], 1, pair, 5000)).collect();
    for token in 0..12 {
        ways[token as usize % 3].write(5000, token + 1, token).unwrap();
    }
    let mut history = Vec::new();
    let mut tokens: Vec<u64> = Vec::new();
    while tokens.len() < 12 {
        let mut done = Vec::new();
        fabrics[1].poll(&mut Vec::new());
        fabrics[0].poll(&mut done);
        tokens.extend(done.iter().map(|done| done.token));
        let arrived = ways.iter().map(|way| fabrics[1].arrived(way.slot)).collect();
        history.push((arrived, tokens.clone()));
    }
    history
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    assert_eq!(history(5, adversarial()), history(5, adversarial()));
    let different =
        (6..16).filter(|seed| history(*seed, adversarial()) != history(5, adversarial()));
    assert!(different.count() >= 9);
}

/// Whether some poll shows a later byte of a write landed, and an earlier one not.
fn lands_out_of_order(knobs: SimKnobs) -> bool {
    let mut found = false;
    for seed in 0..20 {
        let fabrics = pair(&SimNetwork::new(seed, knobs));
        let way = route(&fabrics[0], &fabrics[1], 1, 0, 1 << 16);
        fill(&way.source, seed);
        for epoch in 1..=8 {
            way.write(1 << 16, epoch, 0).unwrap();
        }
        while fabrics[1].arrived(way.slot) == 0 {
            fabrics[0].poll(&mut Vec::new());
            let first = mismatch(&way.target, 0, 64, seed).is_none();
            let last = mismatch(&way.target, (1 << 16) - 64, 64, seed).is_none();
            found |= last && !first;
        }
        assert_eq!(mismatch(&way.target, 0, 1 << 16, seed), None, "the signal came too early");
    }
    found
}

#[test]
fn the_order_of_placement_is_as_the_knobs_say() {
    let ascending =
        SimKnobs { within: Within::Ascending, between: Between::Ordered, ..SimKnobs::default() };
    assert!(!lands_out_of_order(ascending));
    assert!(lands_out_of_order(SimKnobs::default()), "a tail byte would lie here");
    assert!(lands_out_of_order(adversarial()));
}

#[test]
fn overlapping_writes_may_land_in_either_order_only_between_random() {
    let late_writes = |knobs| {
        (0..30)
            .filter(|seed| {
                let fabrics = pair(&SimNetwork::new(*seed, knobs));
                let way = route(&fabrics[0], &fabrics[1], 1, 0, 4096);
                let other = fabrics[0].alloc_region(4096).unwrap();
                fill(&way.source, 1);
                fill(&other, 2);
                way.write(4096, 1, 1).unwrap();
                let local = LocalSlice { region: &other, offset: 0 };
                let second = Memcpy { local, ..way.memcpy(Direction::Write, 4096, 2, 2) };
                way.channel.memcpy(second).unwrap();
                completions(&fabrics[0], 2);
                mismatch(&way.target, 0, 4096, 2).is_some()
            })
            .count()
    };
    assert_eq!(late_writes(SimKnobs::default()), 0);
    assert!(late_writes(adversarial()) > 0);
}

#[test]
fn nothing_lands_for_a_memcpy_that_has_completed() {
    for mode in [ArrivalMode::WriteImm, ArrivalMode::FlagSeparate, ArrivalMode::FlagTail] {
        let fabrics = pair_by(&SimNetwork::new(3, adversarial()), mode);
        let mut ways = [0, 1].map(|pair| route(&fabrics[0], &fabrics[1], 1, pair, 4104));
        ways[0].slot = fabrics[1].alloc_tail_arrival(&ways[0].target, 4096).unwrap();
        for round in 1..200 {
            fill(&ways[0].source, round);
            ways[0].write(4096, round, 0).unwrap();
            completions(&fabrics[0], 1);
            // the source is ours again; what the network does now must not read it
            fill(&ways[0].source, u64::MAX);
            ways[1].write(4096, round, 0).unwrap();
            completions(&fabrics[0], 1);
            assert_eq!(mismatch(&ways[0].target, 0, 4096, round), None, "{mode}");
        }
    }
}

#[test]
fn queue_pairs_never_hide_each_others_epochs() {
    for mode in [ArrivalMode::WriteImm, ArrivalMode::FlagSeparate] {
        for (seed, epochs) in (0..50).flat_map(|seed| [(seed, [5, 4]), (seed, [4, 5])]) {
            let network = SimNetwork::new(seed, adversarial());
            let fabrics = pair_by(&network, mode);
            let mut ways = [0, 1].map(|pair| route(&fabrics[0], &fabrics[1], 1, pair, 64));
            ways[1].slot = ways[0].slot;
            for (way, epoch) in ways.iter().zip(epochs) {
                way.write(64, epoch, epoch).unwrap();
            }
            // nobody looks meanwhile
            while network.advance() {}
            assert_eq!(fabrics[1].arrived(ways[0].slot), 5, "{mode}, seed {seed}");
        }
    }
}

/// Three writes of one queue pair, for each of 100 seeds: for how many a completion was behind its signal,
/// and for how many something rang when all was over.
fn late_news(knobs: SimKnobs) -> (usize, usize) {
    let (mut late, mut twice) = (0, 0);
    for seed in 0..100 {
        let network = SimNetwork::new(seed, knobs);
        let fabrics = pair(&network);
        let way = route(&fabrics[0], &fabrics[1], 1, 0, 64);
        for epoch in 1..=3 {
            way.write(64, epoch, epoch).unwrap();
        }
        let mut done = Vec::new();
        let mut is_late = false;
        while done.len() < 3 {
            network.advance();
            fabrics[0].poll(&mut done);
            is_late |= fabrics[1].arrived(way.slot) > done.len() as u64;
        }
        assert_eq!(done.iter().map(|done| done.token).collect::<Vec<_>>(), [1, 2, 3], "in order");
        let ticket = fabrics[1].ticket();
        while network.advance() {}
        late += usize::from(is_late);
        twice += usize::from(fabrics[1].ticket() != ticket);
        assert_eq!(fabrics[1].arrived(way.slot), 3, "a signal that comes again changes nothing");
    }
    (late, twice)
}

#[test]
fn completions_come_late_and_signals_twice_on_demand() {
    let prompt = SimKnobs { late_turns_max: 0, signal_twice_per_mille: 0, ..adversarial() };
    assert_eq!(late_news(prompt), (0, 0));
    let (late, twice) = late_news(SimKnobs { signal_twice_per_mille: 900, ..adversarial() });
    assert!(late > 50 && twice > 0, "{late} late, {twice} twice");
}

#[test]
fn failures_and_full_queues_come_on_demand() {
    let knobs = SimKnobs { fail_per_mille: 300, full_per_mille: 300, ..SimKnobs::default() };
    let fabrics = pair(&SimNetwork::new(9, knobs));
    let way = route(&fabrics[0], &fabrics[1], 1, 0, 100);
    let (mut posted, mut full) = (0, 0);
    while posted < 200 {
        match way.write(100, posted + 1, posted) {
            Ok(()) => posted += 1,
            Err(PostError::Full { .. }) => full += 1,
            Err(other) => panic!("{other}"),
        }
    }
    let done = completions(&fabrics[0], 200);
    let failed = done.iter().filter(|done| done.result == Err(CompletionError::Injected)).count();
    assert!((20..150).contains(&failed) && full > 20, "{failed} failed, {full} full");
    let succeeded = done.iter().filter(|done| done.result.is_ok()).map(|done| done.token + 1);
    assert_eq!(fabrics[1].arrived(way.slot), succeeded.max().unwrap(), "failures do not signal");
    assert!(fabrics.iter().all(|fabric| fabric.fault().is_none()));
}

#[test]
fn a_killed_rank_is_lost_to_all_and_none_to_itself() {
    let network = SimNetwork::new(2, SimKnobs::default());
    let fabrics: Vec<Fabric> = (0..3)
        .map(|rank| {
            let config = FabricConfig::new(member(rank), job());
            Fabric::open(Backend::Sim(network.clone()), config).unwrap()
        })
        .collect();
    connect(&fabrics);
    let to_killed = route(&fabrics[0], &fabrics[1], 1, 0, 1 << 16);
    let from_killed = route(&fabrics[1], &fabrics[0], 0, 0, 1 << 16);
    for token in 0..5 {
        to_killed.write(1 << 16, 1, token).unwrap();
        from_killed.write(1 << 16, 1, token).unwrap();
    }
    network.kill(Rank(1));
    for fabric in [&fabrics[0], &fabrics[2]] {
        wait_until(fabric, "the fault", || fabric.fault().is_some());
        let fault = fabric.fault().unwrap();
        assert_eq!(fault.rank, Rank(1));
        assert!(matches!(fault.cause, FaultCause::Died { .. }), "{fault}");
    }
    let done = completions(&fabrics[0], 5);
    assert!(done.iter().all(|done| done.result.is_err()));
    assert_eq!(fabrics[0].arrived(from_killed.slot), 0, "what it had in flight went with it");
    for way in [&to_killed, &from_killed] {
        assert!(matches!(way.write(8, 2, 9), Err(PostError::PeerLost { .. })));
    }
    let alive = route(&fabrics[2], &fabrics[0], 0, 0, 100);
    let remote = RemoteSlice { region: &alive.remote, offset: 0 };
    let memcpy = Memcpy { remote, ..alive.memcpy(Direction::Write, 100, 1, 0) };
    alive.channel.memcpy(memcpy).unwrap();
    wait_until(&fabrics[0], "an arrival", || fabrics[0].arrived(alive.slot) == 1);
}
