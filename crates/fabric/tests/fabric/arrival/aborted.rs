//! Writes of an aborted step: they land when everybody has gone on to the next step, and what they raised is
//! raised once more, late. None of it may look like the next step's tensor.

use tensorwire_fabric::{
    ArrivalMode, Backend, Direction, Fabric, FlagOrder, Memcpy, SimKnobs, SimNetwork, Within,
};
use tensorwire_memory::{Arena, Place};
use tensorwire_testkit::mesh::{Route, connect, fill_range, mismatch, open, route};

use super::rounds::epoch;
use super::{Random, any_network, report};

const BYTES: u64 = 256;
const STEPS: u64 = 6;

/// What a seed showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Tensors of the steps that were not aborted.
    whole: u64,
    /// Writes of aborted steps that signalled when their step was over.
    late: u64,
    /// Times that an epoch in memory had fallen behind what had arrived.
    fell: u64,
}

struct Run {
    network: SimNetwork,
    fabrics: Vec<Fabric>,
    /// The same slot and buffer over two queue pairs.
    ways: [Route; 2],
    arrived: u64,
    seen: Seen,
}

fn run(mode: ArrivalMode, seed: u64) -> Result<Seen, String> {
    let mut random = Random::new(seed);
    let knobs = SimKnobs {
        signal_twice_per_mille: 900,
        late_turns_max: 60,
        flags: FlagOrder::Strict,
        full_per_mille: 0,
        turns_max: 1,
        ..any_network(&mut random)
    };
    let knobs = match mode {
        ArrivalMode::FlagTail => super::in_order(knobs),
        _ => SimKnobs { within: Within::Random, ..knobs },
    };
    let network = SimNetwork::new(random.draw(), knobs);
    let fabrics = open(&Backend::Sim(network.clone()), 2, |config| {
        config.arrival = Some(mode);
        (config.queue_pairs_per_peer, config.completion_queues) = (2, 1);
        config.arrival_slots = 8;
    });
    connect(&fabrics);
    let first = route(&fabrics[0], &fabrics[1], 1, 0, BYTES + 8);
    let slot = fabrics[1].alloc_tail_arrival(&first.target, BYTES).unwrap();
    let second = route(&fabrics[0], &fabrics[1], 1, 1, BYTES + 8);
    let first = Route { slot, ..first };
    let second =
        Route { slot, target: first.target.clone(), remote: first.remote.clone(), ..second };
    let (ways, arrived, seen) = ([first, second], 0, Seen::default());
    let mut run = Run { network, fabrics, ways, arrived, seen };
    for step in 1..=STEPS {
        match random.below(2) {
            0 => run.abort(step, random.below(2))?,
            _ => run.write(step, random.below(2))?,
        }
    }
    while run.network.advance() {
        run.look(STEPS)?;
    }
    Ok(run.seen)
}

impl Run {
    fn post(&self, step: u64, queue_pair: usize) {
        let way = &self.ways[queue_pair];
        fill_range(&way.source, 0, BYTES, step);
        let memcpy: Memcpy<'_> = way.memcpy(Direction::Write, BYTES, epoch(step), step);
        way.channel.memcpy(memcpy).unwrap();
    }

    /// A write of a step that nobody is in any more: the receiver waits for the next one already.
    fn abort(&mut self, step: u64, queue_pair: usize) -> Result<(), String> {
        self.post(step, queue_pair);
        self.until_completed(step)?;
        self.seen.late += u64::from(self.arrived == epoch(step));
        Ok(())
    }

    /// A write of the step that everybody is in.
    fn write(&mut self, step: u64, queue_pair: usize) -> Result<(), String> {
        self.post(step, queue_pair);
        self.until_completed(step)?;
        while self.arrived < epoch(step) {
            if !self.network.advance() {
                return Err(format!("step {step} never arrived"));
            }
            self.step_arrived(step)?;
        }
        self.seen.whole += 1;
        Ok(())
    }

    fn until_completed(&mut self, step: u64) -> Result<(), String> {
        let mut done = Vec::new();
        while done.is_empty() {
            self.fabrics[0].poll(&mut done);
            self.step_arrived(step)?;
        }
        match done[..] {
            [ref done] if done.token == step && done.result.is_ok() => Ok(()),
            _ => Err(format!("step {step} completed as {done:?}")),
        }
    }

    /// Looks, and at the tensor when it is there.
    fn step_arrived(&mut self, step: u64) -> Result<(), String> {
        let before = self.arrived;
        self.look(step)?;
        if before == self.arrived || self.arrived < epoch(step) {
            return Ok(());
        }
        match mismatch(&self.ways[0].target, 0, BYTES, step) {
            Some(at) => Err(format!("byte {at} of step {step} is not there")),
            None => Ok(()),
        }
    }

    /// What has arrived never falls and never is of a step to come.
    fn look(&mut self, step: u64) -> Result<(), String> {
        let arrived = self.fabrics[1].arrived(self.ways[0].slot);
        if arrived < self.arrived || arrived > epoch(step) {
            let before = self.arrived;
            return Err(format!("{arrived:#x} arrived after {before:#x} in step {step}"));
        }
        self.arrived = arrived;
        let in_memory = self.epoch_in_memory();
        self.seen.fell += u64::from(0 < in_memory && in_memory < arrived);
        Ok(())
    }

    /// The word behind the payload; 0 in the modes that leave it alone.
    fn epoch_in_memory(&self) -> u64 {
        let place = Place { offset: BYTES as usize, bytes: 8 };
        let arena = Arena::new(&self.ways[0].target.slab(), &[place]).unwrap();
        let buffer = arena.into_buffers().remove(0);
        let bytes = buffer.read().unwrap();
        u64::from_ne_bytes(bytes[..8].try_into().unwrap())
    }
}

const MODES: [ArrivalMode; 3] =
    [ArrivalMode::WriteImm, ArrivalMode::FlagSeparate, ArrivalMode::FlagTail];

#[test]
fn a_late_write_of_an_aborted_step_never_looks_like_this_steps() {
    for mode in MODES {
        let mut sum = Seen::default();
        for seed in 0..1000 {
            let name = format!("aborted steps, {mode}");
            let seen =
                run(mode, seed).unwrap_or_else(|what| panic!("{}", report(&name, seed, &what)));
            sum.whole += seen.whole;
            sum.late += seen.late;
            sum.fell += seen.fell;
        }
        println!("aborted steps, {mode}: 1000 seeds; {sum:?}");
        assert!(sum.whole > 2000 && sum.late > 2000, "{sum:?}");
        assert_eq!(sum.fell > 100, mode == ArrivalMode::FlagTail, "old epochs come again: {sum:?}");
    }
}

pub(crate) fn one_seed(seed: u64) {
    for mode in MODES {
        let seen = run(mode, seed);
        println!("seed {seed}, aborted steps, {mode}: {seen:?}");
        seen.unwrap();
    }
}
