//! One tensor to a `reduce_max` in another process (Xue et al. §5.1, Figure 8): a real job of two
//! processes, a real graph, plan, session and exchange. The launcher's side: it starts the job and
//! puts the stamps of both sides together.

mod member;
mod payload;
mod program;
mod stamps;

use serde::{Deserialize, Serialize};
use tensorwire_launch::{
    ArrivalMode, Hosts, JobSpec, JobUpdate, MemberClock, Reports, Transport, VerbsOptions, launch,
};
use tensorwire_train::{ConfigError, Exchange, Quantiles};

use crate::error::BenchError;
use crate::limit::LimitKind;
use crate::machine::Machine;
use crate::versions::Versions;

use member::{EndReport, ReceiverReport, SenderReport, Traffic};
use program::{RECEIVER, SENDER};

pub use member::{TransferError, transfer_member};
pub use stamps::StampError;

/// The kind of job that [`transfer_member`] takes part in.
pub const TRANSFER: &str = "transfer";

/// Bytes that one round moves if it can, so that small tensors are measured more often.
const ROUND_BYTES: usize = 64 << 20;
const QUICK_ROUND_BYTES: usize = 16 << 20;
/// Jobs that a measurement's rounds are spread over.
const TURNS: usize = 3;
/// A sender and a receiver.
const ENDS: usize = 2;

/// What to measure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransferSpec {
    pub transport: Transport,
    /// Which NIC ([`Transport::Verbs`]).
    pub verbs: VerbsOptions,
    /// How an arrival is signalled ([`Transport::Verbs`]); none: as suits every device.
    pub arrival: Option<ArrivalMode>,
    pub exchange: Exchange,
    pub sizes: Sizes,
    /// Of the tensor: a positive multiple of 4.
    pub bytes: usize,
    /// Where the two run: the receiver on the first.
    pub hosts: Hosts,
    /// A round is: the limit, warm-up, repetitions, a check of the whole tensor. Rounds alternate
    /// limit and transfer, so that noise of the machine meets both.
    pub rounds: usize,
    /// Of each round, unmeasured.
    pub warm_up: usize,
    /// Of each round.
    pub repetitions: usize,
}

/// What the plan knows of the tensor's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sizes {
    /// All of it: static placement (Xue et al. §3.2).
    Static,
    /// Nothing but the number of dimensions: dynamic allocation (§3.3).
    Dynamic,
}

impl Sizes {
    pub fn name(self) -> &'static str {
        match self {
            Sizes::Static => "static",
            Sizes::Dynamic => "dynamic",
        }
    }
}

/// What was measured. All times in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct TransferResult {
    pub bench: &'static str,
    pub transport: Transport,
    /// Where one was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrival: Option<ArrivalMode>,
    pub exchange: Exchange,
    pub sizes: Sizes,
    pub bytes: usize,
    /// From the start of the Send to the moment in which the receiver found the tensor.
    pub transfer_ns: Quantiles,
    /// From the start of the Send to the end of the `reduce_max` on the receiver.
    pub end_to_end_ns: Quantiles,
    /// None between hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_ns: Option<Quantiles>,
    /// Speed of the transfer over speed of the limit; 1 would be the limit's. None where the tensor [stays](TransferResult::is_moved).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_limit: Option<f64>,
    /// How many hosts there were.
    pub hosts: usize,
    /// Most that times may be wrong, since the two hosts have clocks of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_error_ns: Option<u64>,
    /// Of the tensors that crossed once the first warm-up of each job was over.
    pub bytes_sent: u64,
    /// Written, read and sent by both members in that time: what crossed by reference was not moved.
    pub bytes_moved: u64,
    /// By the runtime of both members in that time.
    pub bytes_copied: u64,
    pub copies_per_byte: f64,
    /// Steps whose `reduce_max` was compared with the expected value: all of them.
    pub values_verified: u64,
    /// Times the whole received tensor was compared with the pattern.
    pub tensors_verified: u64,
    /// How long a waiting process spun before it slept.
    pub spin_us: u64,
    /// Of what it went through that is not ours.
    #[serde(skip_serializing_if = "Versions::is_empty")]
    pub versions: Versions,
    pub machine: Machine,
}

impl TransferResult {
    /// True if bytes of the tensor went to the receiver. What crosses by reference stays where it is, and has no bytes per second: only
    /// the answer of each round, a word, is moved.
    pub fn is_moved(&self) -> bool {
        is_moved(self.bytes_moved, self.tensors_verified)
    }
}

/// True if more was moved than the answers of so many rounds.
fn is_moved(bytes_moved: u64, answers: u64) -> bool {
    bytes_moved > answers * program::ANSWER_BYTES
}

/// The sizes to measure when nobody says which: from 4 KiB by fours up to 1 GiB, `quick` to 64 MiB.
pub fn transfer_sizes(quick: bool) -> Vec<usize> {
    (0..if quick { 8 } else { 10 }).map(|power| (4 << 10) << (2 * power)).collect()
}

impl TransferSpec {
    /// As many repetitions as the size allows in about a second; `quick`: fewer.
    pub fn new(
        transport: Transport,
        exchange: Exchange,
        sizes: Sizes,
        bytes: usize,
        quick: bool,
    ) -> TransferSpec {
        let (rounds, round_bytes, most) =
            if quick { (3, QUICK_ROUND_BYTES, 50) } else { (9, ROUND_BYTES, 100) };
        let repetitions = (round_bytes / bytes.max(1)).clamp(3, most);
        let (verbs, arrival) = (VerbsOptions::default(), None);
        let warm_up = 2;
        TransferSpec {
            transport,
            verbs,
            arrival,
            exchange,
            sizes,
            bytes,
            hosts: Hosts::default(),
            rounds,
            warm_up,
            repetitions,
        }
    }

    /// The same with so many repetitions in all rounds together.
    pub fn with_repetitions(self, repetitions: usize) -> TransferSpec {
        let rounds = self.rounds.min(repetitions).max(1);
        TransferSpec { rounds, repetitions: repetitions.div_ceil(rounds), ..self }
    }

    /// True if the two are on different hosts.
    fn is_spread(&self) -> bool {
        self.hosts.spread(ENDS)
    }

    /// Checks that the exchange can carry the tensor, over this transport.
    ///
    /// # Errors
    /// When it cannot, with the fix.
    pub fn check(&self) -> Result<(), ConfigError> {
        let found = self.exchange;
        if found.is_over_tcp() && !matches!(self.transport, Transport::Auto | Transport::Tcp) {
            return Err(ConfigError::ExchangeOverTcp { found });
        }
        found.check_tensor(program::PAYLOAD, self.bytes)
    }
}

/// Measures one transfer, as [`transfers`].
///
/// # Errors
/// As [`transfers`].
pub(crate) fn transfer(spec: &TransferSpec, job: &JobSpec) -> Result<TransferResult, BenchError> {
    let mut results = transfers(std::slice::from_ref(spec), job)?;
    Ok(results.pop().ok_or(StampError::None)?)
}

/// Measures transfers by turns, in new processes each time: what else the machine does meets them all, and so does which
/// core it gives to whom. `job` says how to start members; its kind, roles, hosts and payload are filled in. The stamps of
/// the two are compared: those of another host are put in this one's time first.
///
/// # Errors
/// When an exchange cannot carry so much, or a job fails: a received value or byte that is wrong fails it.
pub fn transfers(specs: &[TransferSpec], job: &JobSpec) -> Result<Vec<TransferResult>, BenchError> {
    for spec in specs {
        spec.check()?;
        let counts =
            [("bytes", spec.bytes), ("rounds", spec.rounds), ("repetitions", spec.repetitions)];
        if let Some((what, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(BenchError::Zero { what });
        }
    }
    let mut all: Vec<Vec<Turn>> = specs.iter().map(|_| Vec::new()).collect();
    for turn in 0..TURNS {
        for (spec, turns) in specs.iter().zip(&mut all) {
            // the first has what cannot be shared out
            let rounds = (spec.rounds + TURNS - 1 - turn) / TURNS;
            if rounds > 0 {
                turns.push(Turn::take(&TransferSpec { rounds, ..spec.clone() }, job)?);
            }
        }
    }
    specs.iter().zip(&all).map(|(spec, turns)| summarise(spec, turns)).collect()
}

/// What a job's members reported, in this host's time.
struct Turn {
    sender: SenderReport,
    receiver: ReceiverReport,
    clock_error_ns: Option<u64>,
}

impl Turn {
    fn take(spec: &TransferSpec, job: &JobSpec) -> Result<Turn, BenchError> {
        let job = JobSpec {
            kind: TRANSFER.to_string(),
            roles: vec!["receiver".to_string(), "sender".to_string()],
            hosts: spec.hosts.clone(),
            verbs: (spec.transport == Transport::Verbs).then(|| spec.verbs.clone()),
            ..job.clone()
        };
        let mut clocks = [SENDER, RECEIVER].map(|end| (end, MemberClock::default()));
        let mut reports = launch::<Reports<EndReport>>(&job.with_payload(spec)?, &mut |update| {
            if let JobUpdate::Clock { rank, reading } = update {
                let clock = clocks.iter_mut().find(|(end, _)| *end == rank);
                clock.into_iter().for_each(|(_, clock)| clock.add(reading));
            }
        })?
        .reports;
        let Some(EndReport::Sender(sender)) = reports.remove(&SENDER) else {
            return Err(BenchError::WrongEnd { expected: "sender" });
        };
        let Some(EndReport::Receiver(receiver)) = reports.remove(&RECEIVER) else {
            return Err(BenchError::WrongEnd { expected: "receiver" });
        };
        let mut turn = Turn { sender, receiver, clock_error_ns: None };
        let [(_, of_sender), (_, of_receiver)] = clocks;
        if !spec.hosts.is_here(SENDER) {
            let stamps = turn.sender.sent.iter_mut().map(|sent| &mut sent.start_ns);
            turn.clock_error_ns = stamps::put_in_time_of(&of_sender, stamps)?;
        }
        if !spec.hosts.is_here(RECEIVER) {
            let received = turn.receiver.received.iter_mut();
            let stamps = received.flat_map(|at| [&mut at.found_ns, &mut at.consumed_ns]);
            let error = stamps::put_in_time_of(&of_receiver, stamps)?;
            // each is known beside this host's clock, and what is between them may be wrong by both
            let sum = turn.clock_error_ns.unwrap_or(0).saturating_add(error.unwrap_or(0));
            turn.clock_error_ns = Some(sum);
        }
        // hosts of one machine may read one clock
        turn.clock_error_ns = turn.clock_error_ns.filter(|error| *error > 0);
        Ok(turn)
    }
}

fn summarise(spec: &TransferSpec, turns: &[Turn]) -> Result<TransferResult, BenchError> {
    let mut spans = Vec::new();
    for Turn { sender, receiver, clock_error_ns } in turns {
        spans.extend(stamps::join(&sender.sent, &receiver.received, clock_error_ns.unwrap_or(0))?);
    }
    // fits: durations far below 2^53
    let of = |pick: fn(&stamps::Span) -> u64| Quantiles::of(spans.iter().map(|s| pick(s) as f64));
    let none = || StampError::None;
    let transfer_ns = of(|span| span.transfer_ns).ok_or_else(none)?;
    let end_to_end_ns = of(|span| span.end_to_end_ns).ok_or_else(none)?;
    let limits_ns = turns.iter().flat_map(|turn| turn.sender.limit_ns.iter().copied());
    let limit_ns = Quantiles::of(limits_ns);
    let sum = |of: fn(&Turn) -> u64| turns.iter().map(of).sum::<u64>();
    let both = |of: fn(&Traffic) -> u64| -> u64 {
        turns.iter().map(|turn| of(&turn.sender.traffic) + of(&turn.receiver.traffic)).sum()
    };
    let bytes_moved = both(|traffic| traffic.bytes_moved);
    let bytes_sent = sum(|turn| turn.sender.traffic.steps) * spec.bytes as u64;
    let bytes_copied = both(|traffic| traffic.bytes_copied);
    let tensors_verified = sum(|turn| turn.receiver.tensors_verified);
    let held = limit_ns.filter(|_| is_moved(bytes_moved, tensors_verified));
    Ok(TransferResult {
        bench: TRANSFER,
        transport: spec.transport,
        arrival: spec.arrival,
        exchange: spec.exchange,
        sizes: spec.sizes,
        bytes: spec.bytes,
        transfer_ns,
        end_to_end_ns,
        limit: limit_of(spec),
        limit_ns,
        ratio_to_limit: held.map(|limit| limit.median / transfer_ns.median),
        hosts: if spec.is_spread() { ENDS } else { 1 },
        clock_error_ns: turns.iter().filter_map(|turn| turn.clock_error_ns).max(),
        bytes_sent,
        bytes_moved,
        bytes_copied,
        // fits: a ratio for people
        copies_per_byte: bytes_copied as f64 / bytes_sent as f64,
        values_verified: sum(|turn| turn.receiver.values_verified),
        tensors_verified,
        spin_us: turns.first().map_or(0, |turn| turn.receiver.spin_us),
        versions: Versions::of(spec.exchange),
        machine: Machine::here(),
    })
}

/// What a transfer is held against; nothing between hosts, where no process has both ends.
fn limit_of(spec: &TransferSpec) -> Option<LimitKind> {
    match spec.transport {
        _ if spec.is_spread() => None,
        Transport::Auto | Transport::Shm => Some(LimitKind::Memcpy),
        // RDMA on one host is held against what its processes would use without
        Transport::Tcp | Transport::Verbs => Some(LimitKind::LoopbackTcp),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_go_by_fours() {
        let sizes = transfer_sizes(false);
        assert_eq!((sizes[0], sizes[1], sizes[9]), (4 << 10, 16 << 10, 1 << 30));
        assert_eq!(transfer_sizes(true).last(), Some(&(64 << 20)));
    }

    #[test]
    fn what_is_asked_for_is_repeated_as_often() {
        let spec =
            TransferSpec::new(Transport::Tcp, Exchange::Write, Sizes::Static, 4 << 10, false);
        for (asked, rounds, each) in [(1, 1, 1), (9, 9, 1), (100, 9, 12)] {
            let spec = spec.clone().with_repetitions(asked);
            assert_eq!((spec.rounds, spec.repetitions), (rounds, each), "{asked}");
        }
    }

    #[test]
    fn every_size_is_repeated() {
        for bytes in transfer_sizes(false) {
            for quick in [false, true] {
                let spec =
                    TransferSpec::new(Transport::Shm, Exchange::Copy, Sizes::Static, bytes, quick);
                assert!(spec.rounds * spec.repetitions >= 9, "{spec:?}");
            }
        }
    }
}
