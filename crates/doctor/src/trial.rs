//! A trial of one transport: writes both ways from a few bytes to many packets, a read, the time of a round
//! trip and the speed of large writes. Ends at the first thing that fails, and keeps what went well before.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::{Backend, Fabric, FabricConfig, PeerAddress, VerbsOptions};

use super::pair::{BYTES_MAX, End, PairError};
use tensorwire_launch::JobIdentity;
use tensorwire_launch::Transport;

/// A few bytes fit the smallest packet (256 bytes); then one full packet of the largest MTU, and many.
const SIZES: [u64; 4] = [8, 4 << 10, 64 << 10, BYTES_MAX];
/// How long a trial may take in all.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
const ROUND_TRIPS: u64 = 100;
/// Unmeasured, before the rest.
const WARM_UP: usize = 10;
/// How long a measurement of speed should take.
const STREAM: Duration = Duration::from_millis(300);
const STREAM_WRITES_MAX: u32 = 64;

/// What was tried over one transport.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    pub transport: Transport,
    /// NIC, GID, MTU and how signals travel, with the reasons.
    pub choices: Vec<String>,
    /// In the order in which they were tried.
    pub writes: Vec<Moved>,
    pub read: Option<Moved>,
    /// The median, of a write of 8 bytes there and one back.
    pub round_trip_us: Option<f64>,
    /// Of writes of 1 MiB.
    pub bytes_per_second: Option<f64>,
    /// What ended the trial.
    pub failure: Option<String>,
}

/// One write or read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    pub bytes: u64,
    /// From this end to the other.
    pub outward: bool,
    /// None: every byte was right.
    pub error: Option<String>,
}

impl Trial {
    pub(super) fn new(transport: Transport) -> Trial {
        Trial {
            transport,
            choices: Vec::new(),
            writes: Vec::new(),
            read: None,
            round_trip_us: None,
            bytes_per_second: None,
            failure: None,
        }
    }

    pub(super) fn failed(transport: Transport, failure: String) -> Trial {
        Trial { failure: Some(failure), ..Trial::new(transport) }
    }

    /// Both directions of every size, the read, and the measurements went well.
    pub fn passed(&self) -> bool {
        self.failure.is_none()
    }

    /// The first write that failed after smaller ones had arrived, and the largest that did.
    pub fn large_ones_fail(&self) -> Option<(u64, u64)> {
        let failed = self.writes.iter().find(|write| write.error.is_some())?;
        let arrived = self.writes.iter().filter(|write| write.error.is_none());
        let largest = arrived.map(|write| write.bytes).max()?;
        (failed.bytes > largest).then_some((largest, failed.bytes))
    }

    /// Drives the other end through everything.
    fn drive(&mut self, end: &mut End) -> Result<(), PairError> {
        let mut took = Duration::ZERO;
        for bytes in SIZES {
            for outward in [true, false] {
                let written = match outward {
                    true => end.write(bytes).map(|time| took = time),
                    false => end.be_written(bytes),
                };
                let error = written.as_ref().err().map(ToString::to_string);
                self.writes.push(Moved { bytes, outward, error });
                written?;
            }
        }
        let read = end.read(BYTES_MAX);
        let error = read.as_ref().err().map(ToString::to_string);
        self.read = Some(Moved { bytes: BYTES_MAX, outward: false, error });
        read?;
        let mut times = end.round_trips(ROUND_TRIPS)?.split_off(WARM_UP);
        times.sort_unstable();
        self.round_trip_us = Some(times[times.len() / 2].as_secs_f64() * 1e6);
        // fits: a few
        let count = STREAM.as_nanos() / took.as_nanos().max(1);
        let count = count.clamp(4, u128::from(STREAM_WRITES_MAX)) as u64;
        let seconds = end.stream(BYTES_MAX, count)?.as_secs_f64();
        // fits: a speed for people
        self.bytes_per_second = Some((count * BYTES_MAX) as f64 / seconds);
        Ok(())
    }
}

/// Tries a transport over a fabric that is connected to `peer`, which runs [`serve`].
pub(super) fn drive(transport: Transport, fabric: Fabric, peer: Rank, deadline: Deadline) -> Trial {
    let mut trial = Trial { choices: fabric.choices(), ..Trial::new(transport) };
    let done = End::new(fabric, peer, deadline).and_then(|mut end| {
        let done = trial.drive(&mut end);
        end.dismiss();
        done
    });
    trial.failure = done.err().map(|error| error.to_string());
    trial
}

/// The other end of a trial.
pub(super) fn serve(fabric: Fabric, peer: Rank, deadline: Deadline) -> Result<(), PairError> {
    End::new(fabric, peer, deadline)?.serve()
}

/// Tries a transport between two fabrics of this process.
pub(super) fn in_this_process(transport: Transport, options: &VerbsOptions) -> Trial {
    let deadline = Deadline::after(PATIENCE);
    let job = JobIdentity::random(2);
    match both_ends(transport, options, &job, deadline) {
        Ok(trial) => trial,
        Err(error) => Trial::failed(transport, error.to_string()),
    }
}

fn both_ends(
    transport: Transport,
    options: &VerbsOptions,
    job: &JobIdentity,
    deadline: Deadline,
) -> Result<Trial, PairError> {
    let open = |rank| {
        let backend = match transport {
            Transport::Auto | Transport::Shm => Backend::Shm,
            Transport::Tcp => Backend::Tcp,
            Transport::Verbs => Backend::Verbs(options.clone()),
        };
        let mut config = FabricConfig::new(job.member(rank), job.credentials.clone());
        (config.completion_queues, config.queue_pairs_per_peer) = (1, 1);
        Fabric::open(backend, config)
    };
    let (here, there) = (open(Rank(0))?, open(Rank(1))?);
    let address = |fabric: &Fabric, rank| {
        let incarnation = job.member(rank).incarnation;
        PeerAddress { rank, incarnation, endpoint: fabric.endpoint() }
    };
    let (at_here, at_there) = (address(&here, Rank(0)), address(&there, Rank(1)));
    std::thread::scope(|scope| {
        let other = move || -> Result<(), PairError> {
            there.connect(&[at_here], deadline)?;
            serve(there, Rank(0), deadline)
        };
        let other = std::thread::Builder::new().name("doctor".into()).spawn_scoped(scope, other);
        // its own troubles are told to this end, or seen by it
        let _other = other.map_err(PairError::Thread)?;
        here.connect(&[at_there], deadline)?;
        Ok(drive(transport, here, Rank(1), deadline))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_and_tcp_pass_here() {
        for transport in [Transport::Shm, Transport::Tcp] {
            let trial = in_this_process(transport, &VerbsOptions::default());
            assert!(trial.passed(), "{trial:?}");
            assert_eq!(trial.writes.len(), 2 * SIZES.len());
            assert!(trial.writes.iter().all(|write| write.error.is_none()));
            assert!(trial.round_trip_us.is_some_and(|us| us > 0.0));
            assert!(trial.bytes_per_second.is_some_and(|speed| speed > 0.0));
            assert_eq!(trial.large_ones_fail(), None);
        }
    }

    #[test]
    fn what_cannot_be_opened_is_a_failure_with_its_mend() {
        let options = VerbsOptions { nics: vec!["nonesuch".into()], ..VerbsOptions::default() };
        let failure = in_this_process(Transport::Verbs, &options).failure.unwrap();
        assert!(failure.contains("RDMA cannot be used here"), "{failure}");
    }

    #[test]
    fn small_writes_that_arrive_are_told_from_large_ones_that_do_not() {
        let moved = |bytes, error: Option<&str>| Moved {
            bytes,
            outward: true,
            error: error.map(str::to_string),
        };
        let mut trial = Trial::new(Transport::Verbs);
        trial.writes = vec![moved(8, None), moved(4096, Some("retries"))];
        assert_eq!(trial.large_ones_fail(), Some((8, 4096)));
        trial.writes = vec![moved(8, Some("retries"))];
        assert_eq!(trial.large_ones_fail(), None, "nothing arrived");
        trial.writes = vec![moved(8, None), moved(8, Some("retries"))];
        assert_eq!(trial.large_ones_fail(), None, "one direction");
    }
}
