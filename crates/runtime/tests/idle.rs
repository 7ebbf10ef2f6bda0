//! A session that waits for a tensor sleeps. Alone in its process: processor time is the process's.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "runtime/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use support::parts::{Parts, open};
use tensorwire_fabric::Backend;
use tensorwire_graph::{Hint, Op, Plan, PlanOptions, RunId};
use tensorwire_runtime::{OneSidedOptions, Opening, RunError};
use tensorwire_tensor::{DType, Dim};
use tensorwire_testkit::{cpu, mesh};

/// As processes that have a core each spin before they sleep.
const SPIN: Duration = Duration::from_micros(50);
const PATIENCE: Duration = Duration::from_secs(2);
/// Waits of which the least processor time counts: where a kernel counts it by its tick of 10 ms,
/// three ticks that found the process awake are more than the bound, however short it was awake.
const WAITS: u32 = 5;

#[test]
fn whoever_waits_for_a_tensor_that_never_comes_uses_less_than_a_hundredth_of_a_core() {
    let mut parts = Parts::new(2);
    let (here, there) = (Hint::Replica(0), Hint::Replica(1));
    for index in 0..20 {
        let dim = if index < 10 { Dim::Known(8) } else { open(index) };
        let x = parts.input(&format!("x{index}"), here, DType::F32, &[dim]);
        parts.root(&format!("y{index}"), there, Op::Relu, &[x]);
    }
    let plan = parts.plan(PlanOptions::default());
    for (name, make) in [("shm", (|| Backend::Shm) as fn() -> _), ("tcp", || Backend::Tcp)] {
        let mut shares = (0..WAITS).map(|_| share_of_a_core(name, &plan, make));
        assert!(shares.any(|share| share < 0.01), "{name}: a hundredth and more in each wait");
    }
}

/// The processor time of all threads while one waits in vain, by the time that it waits.
fn share_of_a_core(name: &str, plan: &Plan, make: fn() -> Backend) -> f64 {
    let fabrics = mesh::mesh_with(make, 3, |config| config.spin = SPIN);
    let told = OneSidedOptions::new(plan, 4, 1 << 20);
    let openings = fabrics.iter().enumerate().map(|(part, fabric)| {
        Opening::new(fabric, plan, part, told.clone(), mesh::soon()).unwrap()
    });
    let mut opened = Opening::complete_all(openings.collect(), mesh::soon()).unwrap();
    let exchange = opened.remove(1);
    let options = support::options(PATIENCE);
    let mut session = support::try_session(plan, 1, Some(exchange), options).unwrap();
    let (used, start) = (cpu::process_time(), Instant::now());
    let error = session.run(RunId(0)).unwrap_err();
    let (used, waited) = (cpu::process_time() - used, start.elapsed());
    assert!(matches!(error, RunError::Stalled { .. }), "{error}");
    println!("{name}: {used:?} of processor time in {waited:?}");
    assert!(waited >= PATIENCE, "{name}: gave up after {waited:?}");
    assert!(fabrics[1].stats().blocked_waits > 0, "{name}: it slept");
    let misses = session.counters().poll_misses;
    // once when it starts, and once more for each time that something rang
    assert!(misses <= 20 * (1 + session.counters().waits), "{name}: {misses} polls in vain");
    used.as_secs_f64() / waited.as_secs_f64()
}
