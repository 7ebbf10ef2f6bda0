//! When has a tensor arrived? Each mode against thousands of seeded networks: two fabrics, one thread, and
//! every byte looked at as soon as its signal is there. What a mode needs of its network is shown from both
//! sides: with it no seed tears a tensor, without it some do, and the guard refuses what would.
//!
//! To see one seed again: `TENSORWIRE_SEED=1234 cargo test -p tensorwire-fabric --test fabric arrival::one_seed --
//! --nocapture`.

#![allow(clippy::print_stdout)] // the counts are for people

mod aborted;
mod guard;
mod rounds;

use std::time::Instant;

use rounds::{Plan, Seen, run};
use tensorwire_fabric::{ArrivalMode, Between, FlagOrder, SimKnobs, Within};
use tensorwire_testkit::random::Random;

/// Any network that fails nothing.
pub(super) fn any_network(random: &mut Random) -> SimKnobs {
    SimKnobs {
        within: random.of(&[Within::Ascending, Within::Random]),
        between: random.of(&[Between::Ordered, Between::Random]),
        pieces_max: random.of(&[1, 3, 16, 48]),
        delay_turns_max: random.of(&[0, 4, 30]),
        duplicate_per_mille: random.of(&[0, 100, 500]),
        late_turns_max: random.of(&[0, 4, 30]),
        signal_twice_per_mille: random.of(&[0, 100, 500]),
        fail_per_mille: 0,
        full_per_mille: random.of(&[0, 100]),
        flags: random.of(&[FlagOrder::Strict, FlagOrder::Relaxed]),
        kill_queue_pair_per_mille: 0,
        receiver_not_ready_per_mille: random.of(&[0, 100, 600]),
        retries_max: u32::MAX,
        turns_max: random.of(&[1, 8, 32]),
    }
}

/// The one network where `flag-tail` is right.
fn in_order(knobs: SimKnobs) -> SimKnobs {
    SimKnobs { within: Within::Ascending, between: Between::Ordered, ..knobs }
}

fn plan(mode: ArrivalMode, knobs: SimKnobs) -> Plan {
    Plan { mode, knobs, trust_tail: false, has_parts: true }
}

/// (i)
fn write_imm(random: &mut Random) -> Plan {
    plan(ArrivalMode::WriteImm, any_network(random))
}

/// (ii)
fn strict_flags(random: &mut Random) -> Plan {
    let knobs = SimKnobs { flags: FlagOrder::Strict, ..any_network(random) };
    plan(ArrivalMode::FlagSeparate, knobs)
}

fn relaxed_flags(random: &mut Random) -> Plan {
    let knobs = SimKnobs { flags: FlagOrder::Relaxed, ..any_network(random) };
    plan(ArrivalMode::FlagSeparate, knobs)
}

/// (iii) What has no tail goes as a flag, which has to be right as well.
fn ascending_tails(random: &mut Random) -> Plan {
    let knobs = SimKnobs { flags: FlagOrder::Strict, ..in_order(any_network(random)) };
    plan(ArrivalMode::FlagTail, knobs)
}

fn random_tails(random: &mut Random) -> Plan {
    let knobs = any_network(random);
    let knobs = SimKnobs { within: Within::Random, flags: FlagOrder::Strict, ..knobs };
    Plan { trust_tail: true, ..plan(ArrivalMode::FlagTail, knobs) }
}

fn overtaking_tails(random: &mut Random) -> Plan {
    let knobs = SimKnobs { within: Within::Ascending, ..any_network(random) };
    let knobs = SimKnobs { between: Between::Random, flags: FlagOrder::Strict, ..knobs };
    Plan { trust_tail: true, ..plan(ArrivalMode::FlagTail, knobs) }
}

/// (v) Any mode where it is right.
fn failing(random: &mut Random) -> Plan {
    let right = random.of(&[write_imm as fn(&mut Random) -> Plan, strict_flags, ascending_tails]);
    let plan = right(random);
    let fail_per_mille = random.of(&[0, 0, 200]);
    let knobs = SimKnobs {
        fail_per_mille,
        kill_queue_pair_per_mille: random.of(&[0, 30, 300]),
        receiver_not_ready_per_mille: random.of(&[0, 100, 600]),
        retries_max: random.of(&[0, 2, 7]),
        ..plan.knobs
    };
    // a memcpy that fails alone takes nothing with it, so that no signal may speak for another's bytes
    Plan { knobs, has_parts: fail_per_mille == 0, ..plan }
}

type Property = (&'static str, fn(&mut Random) -> Plan);

const RIGHT: [Property; 4] = [
    ("write-imm", write_imm),
    ("flag-separate, strict", strict_flags),
    ("flag-tail, ascending", ascending_tails),
    ("failing", failing),
];
const WRONG: [Property; 3] = [
    ("flag-separate, relaxed", relaxed_flags),
    ("flag-tail, random", random_tails),
    ("flag-tail, overtaking", overtaking_tails),
];

fn run_seed((_, plan): Property, seed: u64) -> Result<Seen, String> {
    let mut random = Random::new(seed);
    let plan = plan(&mut random);
    run(&plan, &mut random).map_err(|what| format!("{what}\n{plan:?}"))
}

pub(crate) fn report(property: &str, seed: u64, what: &str) -> String {
    format!(
        "{property}: seed {seed}: {what}\nsee it again: TENSORWIRE_SEED={seed} cargo test -p \
         tensorwire-fabric --test fabric arrival::one_seed -- --nocapture"
    )
}

/// All of `0..count`; the sum of what they showed, the seeds that tore a tensor, and the first of them.
fn run_seeds(property: Property, count: u64) -> (Seen, u64, Option<u64>) {
    let (mut sum, mut torn, mut first) = (Seen::default(), 0, None);
    let started = Instant::now();
    for seed in 0..count {
        let seen = run_seed(property, seed);
        let seen = seen.unwrap_or_else(|what| panic!("{}", report(property.0, seed, &what)));
        torn += u64::from(seen.torn > 0);
        if seen.torn > 0 {
            first.get_or_insert(seed);
        }
        sum = sum + seen;
    }
    println!("{}: {count} seeds, {torn} tear; {sum:?}; {:.1?}", property.0, started.elapsed());
    (sum, torn, first)
}

fn never_tears(property: Property, count: u64) -> Seen {
    let (sum, _, first) = run_seeds(property, count);
    if let Some(seed) = first {
        panic!("{}", report(property.0, seed, "a partial tensor was shown"));
    }
    assert!(sum.whole > 3 * count, "hardly anything was looked at");
    sum
}

#[test]
fn write_imm_and_reads_never_show_a_partial_tensor() {
    never_tears(RIGHT[0], 4000);
}

#[test]
fn flags_of_their_own_hold_exactly_when_they_are_ordered() {
    never_tears(RIGHT[1], 3000);
    let (_, torn, _) = run_seeds(WRONG[0], 500);
    assert!(torn > 100, "only {torn} seeds tear without the order");
}

#[test]
fn tails_hold_exactly_when_writes_land_in_ascending_order() {
    never_tears(RIGHT[2], 3000);
    for wrong in [WRONG[1], WRONG[2]] {
        let (_, torn, _) = run_seeds(wrong, 500);
        assert!(torn > 50, "{}: only {torn} seeds tear", wrong.0);
    }
}

#[test]
fn failures_complete_all_posts_once_and_name_the_first_cause_first() {
    let seen = never_tears(RIGHT[3], 4000);
    let rare = [seen.injected, seen.died, seen.not_ready, seen.flushed, seen.lost];
    assert!(rare.iter().all(|count| *count > 100), "hardly anything failed: {seen:?}");
}

#[test]
fn one_seed() {
    let seed = std::env::var("TENSORWIRE_SEED").map_or(0, |seed| seed.parse().unwrap());
    for property in RIGHT.into_iter().chain(WRONG) {
        let seen = run_seed(property, seed);
        let seen = seen.unwrap_or_else(|what| panic!("{}", report(property.0, seed, &what)));
        println!("seed {seed}, {}: {seen:?}", property.0);
        let is_right = RIGHT.iter().any(|(name, _)| *name == property.0);
        assert!(seen.torn == 0 || !is_right, "a partial tensor was shown");
    }
    aborted::one_seed(seed);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for property in RIGHT.into_iter().chain(WRONG) {
        for seed in 0..20 {
            assert_eq!(run_seed(property, seed), run_seed(property, seed), "{}", property.0);
        }
    }
}
