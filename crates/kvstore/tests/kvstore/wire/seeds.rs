//! Over a network that orders, repeats and delays as its seed says: nothing is mapped before it is whole.

use tensorwire_base::Rank;
use tensorwire_fabric::{ArrivalMode, Backend, Between, SimKnobs, SimNetwork};
use tensorwire_kvstore::wire::{Outgoing, Rings, SendStatus, Wire};
use tensorwire_testkit::mesh::{connect, open, soon};
use tensorwire_testkit::random::Random;

use super::suite::rounds_of_values;
use super::support::{self, SMALL, briefly, receive, send};

const SEEDS: u64 = 300;

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

fn pair(seed: u64, knobs: SimKnobs, mode: ArrivalMode) -> Vec<Rings> {
    let backend = Backend::Sim(SimNetwork::new(seed, knobs));
    let fabrics = open(&backend, 2, |config| config.arrival = Some(mode));
    connect(&fabrics);
    let [one, other] = [0, 1].map(|at| fabrics[at].clone());
    support::open(vec![(one, vec![Rank(1)]), (other, vec![Rank(0)])], SMALL)
}

#[test]
fn values_are_whole_on_every_seed() {
    for seed in 0..SEEDS {
        let mode = [ArrivalMode::WriteImm, ArrivalMode::FlagSeparate][seed as usize % 2];
        let mut wires = pair(seed, adversarial(), mode);
        rounds_of_values(&mut wires, 4, 1000 + seed as usize);
    }
}

/// Sends numbered messages through rings that wrap many times.
fn messages_come_whole(wires: &mut [Rings], seed: u64) {
    const COUNT: u32 = 60;
    let mut random = Random::new(seed);
    let (mut sent, mut found) = (0, 0);
    let deadline = soon();
    while found < COUNT {
        assert!(!deadline.passed(), "seed {seed}: {sent} sent, {found} found");
        let block = vec![sent as u8; 1 + (sent as usize * 997) % 9000];
        if sent < COUNT
            && send(&mut wires[0], 1, &sent.to_le_bytes(), &[&block]) == SendStatus::Started
        {
            sent += 1;
        }
        if sent == COUNT || random.happens(40) {
            wires[0].flush().unwrap();
        }
        wires[1].observe();
        let came = receive(&mut wires[1]);
        for came in &came {
            assert_eq!(came.meta, found.to_le_bytes());
            assert_eq!(came.blocks[0].len(), 1 + (found as usize * 997) % 9000);
            assert!(came.blocks[0].iter().all(|byte| *byte == found as u8), "seed {seed}");
            found += 1;
        }
        if came.is_empty() && random.happens(50) {
            wires[1].wait(briefly());
        }
    }
}

#[test]
fn messages_come_whole_on_every_seed() {
    for seed in 0..SEEDS {
        let mode = [ArrivalMode::FlagSeparate, ArrivalMode::WriteImm][seed as usize % 2];
        messages_come_whole(&mut pair(seed, adversarial(), mode), seed);
    }
}

#[test]
fn a_queue_that_is_full_for_no_reason_holds_nothing_up_for_good() {
    for seed in 0..30 {
        let knobs = SimKnobs { full_per_mille: 600, ..SimKnobs::default() };
        messages_come_whole(&mut pair(seed, knobs, ArrivalMode::WriteImm), seed);
    }
}

#[test]
fn a_failed_write_loses_the_peer_and_shows_nothing_torn() {
    let mut losses = 0;
    for seed in 0..100 {
        let knobs = SimKnobs { fail_per_mille: 200, ..SimKnobs::default() };
        let mut wires = pair(seed, knobs, ArrivalMode::WriteImm);
        let (mut lost, mut sent, deadline) = (Vec::new(), 0_u8, soon());
        while lost.is_empty() && sent < 20 {
            assert!(!deadline.passed());
            let message = Outgoing { meta: &[sent], blocks: &[&[sent; 500]], direct: &[] };
            sent += u8::from(wires[0].send(Rank(1), &message).is_ok());
            wires[0].flush().unwrap();
            wires[0].observe();
            receive(&mut wires[0]);
            wires[0].lost(&mut lost);
            wires[0].wait(briefly());
        }
        losses += lost.len();
        for (rank, reason) in lost {
            assert_eq!(rank, Rank(1));
            assert!(reason.contains("failed this memcpy"), "{reason}");
        }
    }
    assert!(losses > 50, "one write in five fails: {losses}");
}
