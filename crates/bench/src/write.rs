//! One buffer into another process's memory, by one one-sided write with a signal, and back an answer:
//! the fabric alone, with no graph above it. Beside it, if asked for, the same bytes as a unary gRPC call
//! over TCP between the same processes, in alternation. The launcher's side.

#[cfg_attr(not(feature = "baselines"), path = "write/calls_absent.rs")]
mod calls;
mod member;
mod pace;
mod payload;
mod receiver;
mod sender;

use serde::{Deserialize, Serialize};
use tensorwire_base::Rank;
use tensorwire_launch::{ArrivalMode, Hosts, JobSpec, Reports, Transport, VerbsOptions, launch};
use tensorwire_train::ConfigError;

use crate::error::BenchError;
use crate::machine::Machine;
use crate::versions::Versions;

use member::EndReport;
use receiver::ReceiverReport;
use sender::SenderReport;

pub use member::{WriteError, write_member};

/// The kind of job that [`write_member`] takes part in.
pub const WRITE: &str = "write";

/// The one whose memory is written.
const RECEIVER: Rank = Rank(0);
const SENDER: Rank = Rank(1);
const ENDS: usize = 2;

/// Bytes that are written and unanswered at most, if that leaves room for one write.
const IN_FLIGHT_BYTES: usize = 64 << 20;
/// Most writes unanswered: half of what a queue pair takes.
pub const WINDOW_MAX: usize = 128;

/// What to measure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WriteSpec {
    pub transport: Transport,
    /// Which NIC ([`Transport::Verbs`]).
    pub verbs: VerbsOptions,
    /// How an arrival is signalled ([`Transport::Verbs`]); none: as suits every device.
    pub arrival: Option<ArrivalMode>,
    /// Of each write: a positive multiple of 4.
    pub bytes: usize,
    /// Where the two run: the receiver on the first.
    pub hosts: Hosts,
    /// Writes that may be unanswered.
    pub window: usize,
    /// Measure unary gRPC calls of as many bytes as well.
    pub against_grpc: bool,
    /// A round is: round trips and throughput of writes, then both of calls. Noise meets all alike.
    pub rounds: usize,
    /// How many round trips, writes under way, and calls of each kind a round has; none: as many as there is time for.
    pub repetitions: Option<usize>,
    /// Round trips before all, unmeasured.
    pub warm_up: usize,
    /// How long each of them lasts, in milliseconds.
    pub least_ms: u64,
    /// How long it may last to come to a few repetitions.
    pub most_ms: u64,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct WriteResult {
    pub bench: &'static str,
    pub transport: Transport,
    /// Where one was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrival: Option<ArrivalMode>,
    pub bytes: usize,
    /// How many hosts there were.
    pub hosts: usize,
    /// Writes, or calls, that were unanswered at most when throughput was measured.
    pub window: usize,
    /// From before the write until its answer is there, one at a time; the median, and how many there were.
    pub round_trip_us: f64,
    pub p10_round_trip_us: f64,
    pub p90_round_trip_us: f64,
    pub round_trips: usize,
    /// Of the median round, and of others.
    pub bytes_per_second: f64,
    pub p10_bytes_per_second: f64,
    pub p90_bytes_per_second: f64,
    pub grpc_round_trip_us: Option<f64>,
    pub p10_grpc_round_trip_us: Option<f64>,
    pub p90_grpc_round_trip_us: Option<f64>,
    pub grpc_round_trips: Option<usize>,
    pub grpc_bytes_per_second: Option<f64>,
    pub p10_grpc_bytes_per_second: Option<f64>,
    pub p90_grpc_bytes_per_second: Option<f64>,
    /// How many times as fast a write is as a call: above 1, the write is faster.
    pub ratio_round_trip: Option<f64>,
    pub ratio_throughput: Option<f64>,
    /// The last write of every measurement was compared whole, and a call of every measurement.
    pub verified: bool,
    pub writes: u64,
    pub writes_verified: u64,
    pub grpc_calls: u64,
    pub grpc_calls_verified: u64,
    pub rounds: usize,
    /// How long a waiting process spun before it slept.
    pub spin_us: u64,
    /// Of gRPC, where calls were measured too.
    #[serde(skip_serializing_if = "Versions::is_empty")]
    pub versions: Versions,
    pub machine: Machine,
}

impl WriteSpec {
    /// Rounds and times for a figure; `quick`: fewer and shorter. Of large writes fewer than `window` are
    /// on their way.
    pub fn new(transport: Transport, bytes: usize, window: usize, quick: bool) -> WriteSpec {
        let (rounds, least_ms, most_ms) = if quick { (3, 100, 1000) } else { (5, 300, 3000) };
        WriteSpec {
            transport,
            verbs: VerbsOptions::default(),
            arrival: None,
            bytes,
            hosts: Hosts::default(),
            window: window.min((IN_FLIGHT_BYTES / bytes.max(1)).max(1)),
            against_grpc: false,
            rounds,
            repetitions: None,
            warm_up: 1,
            least_ms,
            most_ms,
        }
    }

    /// So many of each kind in all rounds together.
    pub fn with_repetitions(self, repetitions: usize) -> WriteSpec {
        let of_a_round = repetitions.div_ceil(self.rounds.max(1));
        WriteSpec { repetitions: Some(of_a_round), ..self }
    }
}

/// Measures writes of one size, between two processes. `job` says how to start them; its kind, roles, hosts and payload are
/// filled in. On one host the two listen where it listens.
///
/// # Errors
/// When the job fails: a write or a call that brought wrong data fails it.
pub fn write(spec: &WriteSpec, job: &JobSpec) -> Result<WriteResult, BenchError> {
    if spec.against_grpc && !calls::BUILT_IN {
        return Err(ConfigError::NoBaselines { found: "gRPC" }.into());
    }
    let counts = [("bytes", spec.bytes), ("rounds", spec.rounds), ("--window", spec.window)];
    if let Some((what, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
        return Err(BenchError::Zero { what });
    }
    let job = JobSpec {
        kind: WRITE.to_string(),
        roles: vec!["receiver".to_string(), "sender".to_string()],
        hosts: spec.hosts.clone(),
        verbs: (spec.transport == Transport::Verbs).then(|| spec.verbs.clone()),
        ..job.clone()
    };
    let job = job.with_payload(spec)?;
    let reports = launch::<Reports<EndReport>>(&job, &mut |_| {})?.reports;
    let Some(EndReport::Sender(sender)) = reports.get(&SENDER) else {
        return Err(BenchError::WrongEnd { expected: "sender" });
    };
    let Some(EndReport::Receiver(receiver)) = reports.get(&RECEIVER) else {
        return Err(BenchError::WrongEnd { expected: "receiver" });
    };
    Ok(summarise(spec, sender, receiver))
}

fn summarise(spec: &WriteSpec, sender: &SenderReport, receiver: &ReceiverReport) -> WriteResult {
    let (ours, grpc) = (sender.writes, sender.calls);
    let (trip, rate) = (ours.round_trip_us, ours.bytes_per_second);
    let grpc_trip = grpc.map(|grpc| grpc.round_trip_us);
    let grpc_rate = grpc.map(|grpc| grpc.bytes_per_second);
    WriteResult {
        bench: WRITE,
        transport: spec.transport,
        arrival: spec.arrival,
        bytes: spec.bytes,
        hosts: if spec.hosts.spread(ENDS) { ENDS } else { 1 },
        window: spec.window,
        round_trip_us: trip.median,
        p10_round_trip_us: trip.p10,
        p90_round_trip_us: trip.p90,
        round_trips: trip.count,
        bytes_per_second: rate.median,
        p10_bytes_per_second: rate.p10,
        p90_bytes_per_second: rate.p90,
        grpc_round_trip_us: grpc_trip.map(|trip| trip.median),
        p10_grpc_round_trip_us: grpc_trip.map(|trip| trip.p10),
        p90_grpc_round_trip_us: grpc_trip.map(|trip| trip.p90),
        grpc_round_trips: grpc_trip.map(|trip| trip.count),
        grpc_bytes_per_second: grpc_rate.map(|rate| rate.median),
        p10_grpc_bytes_per_second: grpc_rate.map(|rate| rate.p10),
        p90_grpc_bytes_per_second: grpc_rate.map(|rate| rate.p90),
        ratio_round_trip: grpc_trip.map(|theirs| theirs.median / trip.median),
        ratio_throughput: grpc_rate.map(|theirs| rate.median / theirs.median),
        // what is wrong fails the job
        verified: receiver.writes_verified > 0 && (grpc.is_none() || receiver.calls_verified > 0),
        writes: ours.count,
        writes_verified: receiver.writes_verified,
        grpc_calls: grpc.map_or(0, |grpc| grpc.count),
        grpc_calls_verified: receiver.calls_verified,
        rounds: spec.rounds,
        spin_us: receiver.spin_us,
        versions: grpc.map(|_| Versions::grpc()).unwrap_or_default(),
        machine: Machine::here(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_writes_are_fewer_at_a_time() {
        let window = |bytes| WriteSpec::new(Transport::Shm, bytes, 16, false).window;
        assert_eq!((window(4), window(4 << 20), window(16 << 20)), (16, 16, 4));
        assert_eq!((window(64 << 20), window(1 << 30)), (1, 1));
    }
}
