//! The protocol under simulation: one seed makes a job of a scheduler, workers and servers, a network that
//! loses, repeats, delays and forges, and deaths at any event; values are symbols of what was folded into
//! them. Whatever happens, no push is lost or doubled, no version is torn or half done, no barrier opens
//! early or twice, no call is done twice, and every job ends.
//!
//! To see one seed again: `TENSORWIRE_SEED=1234 cargo test -p tensorwire-kvstore --test kvstore simulation::one_seed
//! -- --nocapture`.

mod job;
mod network;
mod plan;
mod server;
mod value;
mod worker;

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use self::job::Job;
use self::network::Seen;
use self::plan::Fault;

fn run_seed(seed: u64, fault: Fault) -> Result<Seen, String> {
    Job::new(seed, fault).run().map_err(|what| {
        format!(
            "seed {seed}: {what}\nsee it again: TENSORWIRE_SEED={seed} cargo test -p \
             tensorwire-kvstore --test kvstore simulation::one_seed -- --nocapture"
        )
    })
}

#[test]
fn one_seed() {
    let seed = std::env::var("TENSORWIRE_SEED").map_or(0, |seed| seed.parse().unwrap());
    let seen = run_seed(seed, Fault::None).unwrap_or_else(|what| panic!("{what}"));
    println!("seed {seed}: {seen:?}");
    assert!(seen.messages > 0);
}

#[test]
fn ten_thousand_seeds() {
    const SEEDS: u64 = 10_000;
    let next = AtomicU64::new(0);
    let (total, failures) = (Mutex::new(Seen::default()), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let seed @ 0..SEEDS = next.fetch_add(1, Ordering::Relaxed) {
                    match run_seed(seed, Fault::None) {
                        Ok(seen) => total.lock().unwrap().add(seen),
                        Err(what) => failures.lock().unwrap().push((seed, what)),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    if let Some((_, first)) = failures.iter().min() {
        panic!("{} of {SEEDS} seeds fail; {first}", failures.len());
    }
    let mut total = total.into_inner().unwrap();
    for (name, count) in total.counts() {
        println!("{name:>22} {count:>9}");
        // the generator still makes what this is about
        let least = if name == "stuck" { 0 } else { SEEDS / 100 };
        assert!(*count >= least, "{name} only {count} times");
    }
    assert!(total.finished > SEEDS / 2, "{} jobs finish", total.finished);
    assert!(total.stuck < SEEDS / 100, "{} jobs lost their first values", total.stuck);
}

#[test]
fn a_seed_determines_everything() {
    let traces = || -> Vec<u64> {
        (0..200).map(|seed| run_seed(seed, Fault::None).map_or(0, |seen| seen.trace)).collect()
    };
    let first = traces();
    assert_eq!(first, traces());
    assert_eq!(first.iter().collect::<HashSet<_>>().len(), 200, "and no two are alike");
}

/// Each check fails where what it checks is broken: in how many of 1000 seeds, and with which words.
#[test]
fn what_is_broken_is_caught() {
    let faults = [
        (Fault::CountsRepeatedPushes, "is due"),
        (Fault::RepeatsCalls, "is done twice"),
        (Fault::RepeatsDirectAnswers, "is written over what worker"),
        (Fault::IgnoresReaders, "changed while it was being sent"),
        (Fault::FoldsAlone, "lacks a worker"),
        (Fault::IgnoresDelay, "rounds, Some("),
        (Fault::PromisesSnapshots, "Unfit"),
        (Fault::MixesSnapshots, "is due"),
        (Fault::LiesAtBarriers, "opens and rank"),
        (Fault::NeverResends, "does not end"),
        (Fault::SkipsReplay, "was refused"),
        (Fault::AdmitsFormerLives, "which is no live worker"),
    ];
    for (fault, words) in faults {
        let failures: Vec<(u64, String)> =
            (0..1000).filter_map(|seed| Some((seed, run_seed(seed, fault).err()?))).collect();
        let told = failures.iter().filter(|(_, what)| what.contains(words)).count();
        println!("{fault:?}: {} of 1000 seeds fail, {told} with '{words}'", failures.len());
        assert!(told >= 5, "{fault:?}: {:?}", failures.first());
        let (seed, what) = &failures[0];
        assert_eq!(run_seed(*seed, fault).err().as_ref(), Some(what), "a failure is repeatable");
    }
}
