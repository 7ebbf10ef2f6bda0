//! Exchanges by message: the baselines, where they are built in.

use tensorwire_base::Deadline;
use tensorwire_baselines::Baseline;
use tensorwire_baselines::messages::{self, MessageOptions};
use tensorwire_graph::Plan;
use tensorwire_launch::Member;
use tensorwire_runtime::Ports;

use crate::config::Exchange as Crossing;
use crate::open_part::{Opened, PartOptions, SessionRanks, digest};

pub(crate) use tensorwire_baselines::messages::{MessageEnd, OpenMessagesError};

/// This build has the baselines.
pub(crate) const BUILT_IN: bool = true;

fn baseline(exchange: Crossing) -> Option<Baseline> {
    match exchange {
        Crossing::GrpcTcp => Some(Baseline::GrpcTcp),
        Crossing::GrpcTcpTuned => Some(Baseline::GrpcTcpTuned),
        Crossing::GrpcRdma => Some(Baseline::GrpcRdma),
        Crossing::Zmq => Some(Baseline::Zmq),
        Crossing::ZeroCopy | Crossing::Write | Crossing::Copy => None,
    }
}

/// Returns why an exchange cannot carry a tensor; none if it can.
pub(crate) fn refusal(exchange: Crossing, name: &str, bytes: usize) -> Option<String> {
    baseline(exchange)?.refusal(name, bytes)
}

/// Opens the exchanges of a member's sessions; none if tensors do not cross as messages.
pub(crate) fn open(
    member: &Member,
    plan: &Plan,
    sessions: &SessionRanks,
    options: &PartOptions,
) -> Result<Option<(Opened, MessageEnd)>, OpenMessagesError> {
    let Some(baseline) = baseline(options.exchange) else { return Ok(None) };
    let message_options = MessageOptions {
        baseline,
        wire: options.wire(),
        step_deadline: options.step_deadline,
        dynamic_bytes_max: options.dynamic_bytes_max,
        digest: digest(plan),
    };
    let (opened, end) =
        messages::open(member, plan, sessions.part, &sessions.ranks, &message_options)?;
    let ports = opened.into_iter().map(|(exchange, storage)| (Ports::from(exchange), storage));
    Ok(Some((ports.collect(), end)))
}

/// Leaves with everything sent.
pub(crate) fn close(end: &MessageEnd, deadline: Deadline) -> Result<(), OpenMessagesError> {
    Ok(end.close(deadline)?)
}
