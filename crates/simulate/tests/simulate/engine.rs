//! The engine against closed forms: flows that share a port, what is conserved, what never gets slower.

use proptest::prelude::*;
use tensorwire_simulate::engine::{Activity, Engine, ResourceId};

fn flow(bytes: f64, tail_s: f64, uses: &[(ResourceId, f64)]) -> Activity {
    Activity { amount: bytes, tail_s, uses: uses.to_vec(), ..Activity::nothing() }
}

fn close(found: f64, wanted: f64) {
    assert!((found - wanted).abs() <= 1e-9 * wanted.abs().max(1e-9), "{found}, not {wanted}");
}

#[test]
fn one_flow_takes_its_latency_and_its_bytes_over_the_bandwidth() {
    let mut engine = Engine::default();
    let port = engine.resource(1e9);
    let only = engine.add(Activity { head_s: 1e-6, ..flow(5e6, 2e-6, &[(port, 1.0)]) });
    let course = engine.run();
    close(course.end_s(only), 1e-6 + 5e-3 + 2e-6);
    close(course.used(port), 5e6);
}

#[test]
fn flows_into_one_server_share_its_port() {
    let mut engine = Engine::default();
    let server = engine.resource(1e9);
    let flows: Vec<_> = (0..7)
        .map(|_| {
            let worker = engine.resource(1e9);
            engine.add(flow(1e6, 0.0, &[(worker, 1.0), (server, 1.0)]))
        })
        .collect();
    let course = engine.run();
    flows.iter().for_each(|flow| close(course.end_s(*flow), 7e-3));
    // one that stands for seven is the same
    let mut engine = Engine::default();
    let (worker, server) = (engine.resource(1e9), engine.resource(1e9));
    let all = engine.add(flow(1e6, 0.0, &[(worker, 1.0), (server, 7.0)]));
    close(engine.run().end_s(all), 7e-3);
}

#[test]
fn what_one_cannot_take_the_others_get() {
    let mut engine = Engine::default();
    let (shared, narrow) = (engine.resource(10.0), engine.resource(2.0));
    let slow = engine.add(flow(4.0, 0.0, &[(shared, 1.0), (narrow, 1.0)]));
    let fast = engine.add(flow(16.0, 0.0, &[(shared, 1.0)]));
    let bounded = engine.add(Activity { rate_max: 1.0, ..flow(1.0, 0.0, &[(shared, 1.0)]) });
    let course = engine.run();
    close(course.end_s(slow), 2.0);
    close(course.end_s(bounded), 1.0);
    // 7 in the first second, 8 in the second, and the last one alone
    close(course.end_s(fast), 2.1);
}

#[test]
fn a_queue_does_one_after_another_and_tails_overlap() {
    let mut engine = Engine::default();
    let (port, queue) = (engine.resource(1.0), engine.queue());
    let message =
        || Activity { head_s: 0.5, queue: Some(queue), ..flow(1.0, 10.0, &[(port, 1.0)]) };
    let (first, second) = (engine.add(message()), engine.add(message()));
    let course = engine.run();
    close(course.end_s(first), 11.5);
    close(course.end_s(second), 13.0);
}

/// A few flows over a few links: links of each, and bytes.
fn some_flows() -> impl Strategy<Value = Vec<(Vec<usize>, f64)>> {
    let links = proptest::collection::btree_set(0..4usize, 1..4);
    let flow = (links, 1.0..1000.0f64);
    let flow = flow.prop_map(|(links, bytes)| (links.into_iter().collect(), bytes));
    proptest::collection::vec(flow, 1..12)
}

fn run(flows: &[(Vec<usize>, f64)], bandwidths: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let mut engine = Engine::default();
    let links: Vec<ResourceId> = bandwidths.iter().map(|b| engine.resource(*b)).collect();
    let added: Vec<_> = flows
        .iter()
        .map(|(over, bytes)| {
            let uses: Vec<_> = over.iter().map(|link| (links[*link], 1.0)).collect();
            engine.add(flow(*bytes, 1e-3, &uses))
        })
        .collect();
    let course = engine.run();
    let ends = added.iter().map(|id| course.end_s(*id)).collect();
    (ends, links.iter().map(|link| course.used(*link)).collect())
}

proptest! {
    #[test]
    fn bytes_are_conserved_and_no_link_carries_more_than_it_can(
        flows in some_flows(), bandwidths in proptest::collection::vec(1.0..100.0f64, 4),
    ) {
        let (ends, used) = run(&flows, &bandwidths);
        let last = ends.iter().copied().fold(0.0, f64::max);
        for (link, used) in used.iter().enumerate() {
            let sent: f64 =
                flows.iter().filter(|(over, _)| over.contains(&link)).map(|(_, b)| b).sum();
            prop_assert!((used - sent).abs() <= 1e-6 * sent.max(1.0), "{used} of {sent}");
            prop_assert!(*used <= bandwidths[link] * last * (1.0 + 1e-9));
        }
        for ((over, bytes), end) in flows.iter().zip(&ends) {
            let best = over.iter().map(|link| bandwidths[*link]).fold(f64::INFINITY, f64::min);
            prop_assert!(*end >= bytes / best);
        }
    }

    #[test]
    fn twice_the_bandwidth_takes_half_the_time(
        flows in some_flows(), bandwidths in proptest::collection::vec(1.0..100.0f64, 4),
    ) {
        let twice: Vec<f64> = bandwidths.iter().map(|b| 2.0 * b).collect();
        let (slow, fast) = (run(&flows, &bandwidths).0, run(&flows, &twice).0);
        for (slow, fast) in slow.iter().zip(fast) {
            prop_assert!((fast - 1e-3 - (slow - 1e-3) / 2.0).abs() <= 1e-6 * slow);
        }
    }

    #[test]
    fn the_same_again_is_the_same(
        flows in some_flows(), bandwidths in proptest::collection::vec(1.0..100.0f64, 4),
    ) {
        prop_assert_eq!(run(&flows, &bandwidths), run(&flows, &bandwidths));
    }
}

#[test]
fn the_way_to_an_end_is_of_what_each_waited_for_last() {
    let mut engine = Engine::default();
    let queue = engine.queue();
    let work = |seconds: f64| Activity { amount: seconds, rate_max: 1.0, ..Activity::nothing() };
    let (short, long) = (engine.add(work(1.0)), engine.add(work(2.0)));
    // both are ready at 2, and go one behind the other
    let queued = |seconds| Activity { queue: Some(queue), tail_s: 5.0, ..work(seconds) };
    let (first, second) = (engine.add(queued(3.0)), engine.add(queued(4.0)));
    for then in [first, second] {
        engine.order(short, then);
        engine.order(long, then);
    }
    let course = engine.run();
    let way: Vec<_> =
        course.way_to(second).iter().map(|span| (span.activity, span.from_s, span.to_s)).collect();
    // what has left the queue frees it before others know
    assert_eq!(way, [(second, 5.0, 14.0), (first, 2.0, 5.0), (long, 0.0, 2.0)]);
}
