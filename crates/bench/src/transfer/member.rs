//! The two ends of a transfer, each a member of the job: the sender changes its tensor before every
//! step and measures the machine's limit between rounds; the receiver verifies. All of it happens
//! outside of the measured spans.

use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};
use tensorwire_base::{Deadline, Rank};
use tensorwire_graph::{GraphError, NodeId, Plan};
use tensorwire_launch::{Blame, JoinError, Member};
use tensorwire_runtime::{Event, RunError, SessionError};
use tensorwire_train::{OpenPart, PartError, PartOptions, open_part};

use super::program::{self, ANSWER, LOOK, MAXIMUM, MOVE, PAYLOAD, RECEIVED, RECEIVER, SENDER};
use super::stamps::{Received, Sent};
use super::{TransferSpec, limit_of, payload};
use crate::limit::{Limit, LimitKind, Loopback};
use crate::machine::cores;

/// How long a wait spins before it sleeps: both members have a core.
const SPIN: Duration = Duration::from_micros(200);
/// Longest that a run may wait for the other member, which may be measuring the limit.
const STEP_DEADLINE: Duration = Duration::from_secs(60);

/// Steps that a report, which is one message to the launcher, has room for.
const REPORTED_MAX: u64 = 32 << 10;

/// What a dynamic arena may take beyond two tensors, in bytes: it grows in pieces.
const DYNAMIC_SLACK: usize = 1 << 20;

/// Why an end of a transfer gave up.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error(transparent)]
    Part(#[from] PartError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("measuring the machine's limit: {0}")]
    Limit(std::io::Error),
    #[error("{steps} steps are more than can be told apart (at most {most}); repeat less often")]
    TooManySteps { steps: u64, most: u64 },
    #[error(
        "step {step}: the receiver's reduce_max is {found}, the sender's tensor has {expected}: wrong data"
    )]
    WrongMaximum { step: u64, found: f32, expected: f32 },
    #[error("step {step}: element {index} of the received tensor is not what was sent: wrong data")]
    WrongElement { step: u64, index: usize },
    #[error("the plan or the timeline has no '{what}': a defect of this program")]
    Missing { what: &'static str },
    #[error("telling the launcher: {0}")]
    Control(#[from] std::io::Error),
    #[error("there is no part for rank {rank}")]
    NoPart { rank: Rank },
}

/// What one member moved through the fabric and what its runtime copied, once warm.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Traffic {
    pub(super) steps: u64,
    pub(super) bytes_moved: u64,
    pub(super) bytes_copied: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SenderReport {
    pub(super) sent: Vec<Sent>,
    pub(super) limit_ns: Vec<f64>,
    pub(super) traffic: Traffic,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ReceiverReport {
    pub(super) received: Vec<Received>,
    pub(super) values_verified: u64,
    pub(super) tensors_verified: u64,
    pub(super) spin_us: u64,
    pub(super) traffic: Traffic,
}

/// What an end reports.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum EndReport {
    Sender(SenderReport),
    Receiver(ReceiverReport),
}

/// One end of a transfer, from its assignment to its report.
///
/// # Errors
/// When anything fails or wrong data arrived; the launcher has been told then.
pub fn transfer_member(member: &Member) -> Result<(), TransferError> {
    let done = take_part(member);
    if let Err(error) = &done {
        member.fail(&error.to_string(), Blame::of(false, error.lost_peer()));
    }
    done
}

impl TransferError {
    /// The peer whose loss made this, if that was the cause.
    fn lost_peer(&self) -> Option<Rank> {
        match self {
            TransferError::Part(error) => error.lost_peer(),
            TransferError::Run(error) => error.lost_peer(),
            _ => None,
        }
    }
}

fn take_part(member: &Member) -> Result<(), TransferError> {
    let spec: TransferSpec = member.payload()?;
    // fits: counts of repetitions
    let steps = spec.rounds as u64 * (spec.warm_up + spec.repetitions) as u64;
    let most = payload::STEPS_MAX.min(REPORTED_MAX);
    if steps > most {
        return Err(TransferError::TooManySteps { steps, most });
    }
    let plan = program::transfer_plan(&spec)?;
    let spin = if member.members_here() > cores() { Duration::ZERO } else { SPIN };
    let options = PartOptions {
        transport: spec.transport,
        exchange: spec.exchange,
        verbs: spec.verbs.clone(),
        arrival: spec.arrival,
        encrypt: false,
        spin,
        kernels: tensorwire_train::KernelChoice::Auto,
        // the sender waits while the receiver computes
        threads: cores(),
        step_deadline: STEP_DEADLINE,
        timeline: true,
        // the sender's tensor, or the receiver's, and one to come
        dynamic_bytes_max: spec.bytes.saturating_mul(2).saturating_add(DYNAMIC_SLACK),
        device: None,
        devices_apart: false,
    };
    let part = open_part(member, &plan, options)?;
    let mut end = End { member, spec, spin, part, step: 0, cold: Traffic::default() };
    let report = match member.rank() {
        SENDER => EndReport::Sender(end.send(&plan)?),
        RECEIVER => EndReport::Receiver(end.receive(&plan)?),
        rank => return Err(TransferError::NoPart { rank }),
    };
    end.part.close(Deadline::after(member.setup_patience()))?;
    Ok(member.finish(report)?)
}

struct End<'a> {
    member: &'a Member,
    spec: TransferSpec,
    /// Zero where both ends do not have a core each.
    spin: Duration,
    part: OpenPart,
    /// Runs of [`MOVE`] begun.
    step: u64,
    /// What had been moved and copied when the first warm-up was over, where the first steps copy what others do not.
    cold: Traffic,
}

impl End<'_> {
    /// Has this thread stay on a core of its own: the system puts two that wait for each other on one core now and then, and each message
    /// costs a change of threads then. Threads that were begun before, which move and compute, stay free. Where it may not be, it is left.
    fn stay_on_a_core(&self) {
        let all = sched_getaffinity(None).ok().filter(|_| self.spin > Duration::ZERO);
        let cores = |all: &CpuSet| {
            let mut cores = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core));
            cores.nth(self.member.rank().index())
        };
        if let Some(core) = all.as_ref().and_then(cores) {
            let mut own = CpuSet::new();
            own.set(core);
            let _ = sched_setaffinity(None, &own);
        }
    }

    fn send(&mut self, plan: &Plan) -> Result<SenderReport, TransferError> {
        let missing = TransferError::Missing { what: PAYLOAD };
        let send = program::payload_edge(plan).ok_or(missing)?.send;
        let spec = self.spec.clone();
        self.renew_payload()?;
        let shared = self.part.alloc_buffer(spec.bytes)?;
        let mut target = shared.write().expect("nobody else has the fresh buffer");
        let mut limit = match limit_of(&spec) {
            None => None,
            Some(LimitKind::Memcpy) => Some(Limit::Memcpy { target: &mut target }),
            Some(LimitKind::LoopbackTcp) => {
                let loopback = Loopback::open(spec.bytes).map_err(TransferError::Limit)?;
                Some(Limit::LoopbackTcp(loopback))
            }
        };
        // the limit has a thread of its own, too
        self.stay_on_a_core();
        let (mut sent, mut limit_ns) = (Vec::new(), Vec::new());
        for _ in 0..spec.rounds {
            if let Some(limit) = &mut limit {
                self.measure_limit(limit, &mut limit_ns)?;
            }
            for repetition in 0..spec.warm_up + spec.repetitions {
                self.step += 1;
                // what was sent from unregistered memory once is allocated where it can be sent from
                if self.step == 2 {
                    self.renew_payload()?;
                }
                self.with_payload(payload::advance)?;
                self.run_move()?;
                if repetition >= spec.warm_up {
                    let Event { start_ns, .. } = self.event(send, PAYLOAD)?;
                    sent.push(Sent { step: self.step, start_ns });
                }
            }
            self.part.session.run(LOOK)?;
            self.part.session.run(ANSWER)?;
        }
        Ok(SenderReport { sent, limit_ns, traffic: self.traffic() })
    }

    fn receive(&mut self, plan: &Plan) -> Result<ReceiverReport, TransferError> {
        let missing = TransferError::Missing { what: PAYLOAD };
        let edge = program::payload_edge(plan).ok_or(missing)?;
        let maximum = self.part.session.node(MAXIMUM)?;
        let spec = self.spec.clone();
        self.stay_on_a_core();
        let (mut received, mut tensors_verified) = (Vec::new(), 0);
        for _ in 0..spec.rounds {
            for repetition in 0..spec.warm_up + spec.repetitions {
                self.step += 1;
                self.run_move()?;
                self.verify_maximum(maximum)?;
                if repetition >= spec.warm_up {
                    let found_ns = self.event(edge.recv, PAYLOAD)?.end_ns;
                    let consumed_ns = self.event(maximum, MAXIMUM)?.end_ns;
                    received.push(Received { step: self.step, found_ns, consumed_ns });
                }
            }
            self.part.session.run(LOOK)?;
            // the sender waits for the answer before it writes again
            let received = self.part.session.node(RECEIVED)?;
            let (_, bytes) = self.part.session.read(received.into())?;
            let wrong = payload::first_difference(bytemuck::cast_slice(&bytes), self.step);
            if let Some(index) = wrong {
                return Err(TransferError::WrongElement { step: self.step, index });
            }
            drop(bytes);
            tensors_verified += 1;
            self.part.session.run(ANSWER)?;
        }
        Ok(ReceiverReport {
            received,
            values_verified: self.step,
            tensors_verified,
            // fits: microseconds
            spin_us: self.spin.as_micros() as u64,
            traffic: self.traffic(),
        })
    }

    /// Times the limit as often as a round times the transfer, after as much warm-up.
    fn measure_limit(
        &self,
        limit: &mut Limit<'_>,
        times: &mut Vec<f64>,
    ) -> Result<(), TransferError> {
        let (_, source) = self.part.session.read(self.part.session.node(PAYLOAD)?.into())?;
        for repetition in 0..self.spec.warm_up + self.spec.repetitions {
            let time = limit.measure(&source).map_err(TransferError::Limit)?;
            if repetition >= self.spec.warm_up {
                times.push(time);
            }
        }
        Ok(())
    }

    /// Gives the tensor memory, and the pattern of the step before the next.
    fn renew_payload(&mut self) -> Result<(), TransferError> {
        let (step, elements) = (self.step, self.spec.bytes / 4);
        let session = &mut self.part.session;
        let (_, mut bytes) = session.feed(session.node(PAYLOAD)?.into(), &[elements])?;
        let tensor: &mut [f32] = bytemuck::cast_slice_mut(&mut bytes);
        payload::fill(tensor);
        if step > 1 {
            payload::advance(tensor, step - 1);
        }
        Ok(())
    }

    fn with_payload(&self, change: impl FnOnce(&mut [f32], u64)) -> Result<(), TransferError> {
        let session = &self.part.session;
        let (_, mut bytes) = session.write(session.node(PAYLOAD)?.into())?;
        change(bytemuck::cast_slice_mut(&mut bytes), self.step);
        Ok(())
    }

    fn run_move(&mut self) -> Result<(), TransferError> {
        let round = self.spec.warm_up + self.spec.repetitions;
        // the launcher that hears it takes one of two cores
        if (self.step - 1).is_multiple_of(round as u64) {
            self.member.begin_step(self.step)?;
        }
        if let Some(timeline) = self.part.session.timeline() {
            timeline.clear();
        }
        self.part.session.run(MOVE)?;
        // fits: a count of repetitions
        if self.step == self.spec.warm_up as u64 {
            self.cold = match self.spec.exchange.is_by_message() {
                // messages are copied as they come, and the next may have come: they count from the first
                true => Traffic {
                    bytes_copied: self.part.session.copies().bytes(),
                    ..Traffic::default()
                },
                false => self.traffic(),
            };
        }
        Ok(())
    }

    fn verify_maximum(&self, maximum: NodeId) -> Result<(), TransferError> {
        let (_, bytes) = self.part.session.read(maximum.into())?;
        let values: &[f32] = bytemuck::cast_slice(&bytes);
        // a scalar has one element
        let (step, found, expected) = (self.step, values[0], payload::maximum(self.step));
        if found.to_bits() == expected.to_bits() {
            Ok(())
        } else {
            Err(TransferError::WrongMaximum { step, found, expected })
        }
    }

    /// When a node ran in the last run.
    fn event(&mut self, node: NodeId, what: &'static str) -> Result<Event, TransferError> {
        let timeline = self.part.session.timeline().ok_or(TransferError::Missing { what })?;
        let found = timeline.events().iter().find(|event| event.what.node() == Some(node));
        found.copied().ok_or(TransferError::Missing { what })
    }

    fn traffic(&self) -> Traffic {
        Traffic {
            steps: self.step - self.cold.steps,
            bytes_moved: self.part.bytes_moved() - self.cold.bytes_moved,
            bytes_copied: self.part.bytes_copied() - self.cold.bytes_copied,
        }
    }
}
