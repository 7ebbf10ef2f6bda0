//! How a tensor crosses, and what each way cannot do.

use serde::{Deserialize, Serialize};
use tensorwire_base::human_bytes;
use tensorwire_graph::{Plan, PlanOptions, SendFrom, SharedMemory};

use super::{ConfigError, Transport};

/// How a tensor crosses (`--exchange`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exchange {
    /// By reference where both ends share memory and the plan proves it safe; else one one-sided write
    /// from where the tensor was made.
    ZeroCopy,
    /// One write for every tensor, shared memory or not, as between hosts (Xue et al.'s RDMA.zerocp).
    Write,
    /// A copy into registered memory first, then the write: their RDMA.cp, to compare with.
    Copy,
    /// Calls of gRPC over TCP, by tonic and prost: their gRPC.TCP.
    GrpcTcp,
    /// The same calls, without the codec's copies.
    GrpcTcpTuned,
    /// Messages over private rings on the fabric: their gRPC.RDMA.
    GrpcRdma,
    /// Messages over ZeroMQ, as ps-lite sends them.
    Zmq,
}

/// The largest tensor that a way can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorLimit {
    exchange: Exchange,
    pub bytes_max: usize,
    why: &'static str,
}

/// What a message has beside its tensor is less.
const MESSAGE_SLACK: usize = 4 << 10;

impl Exchange {
    pub const ALL: [Exchange; 7] = [
        Exchange::ZeroCopy,
        Exchange::Write,
        Exchange::Copy,
        Exchange::GrpcTcp,
        Exchange::GrpcTcpTuned,
        Exchange::GrpcRdma,
        Exchange::Zmq,
    ];

    /// As `--exchange` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Exchange::ZeroCopy => "zero-copy",
            Exchange::Write => "write",
            Exchange::Copy => "copy",
            Exchange::GrpcTcp => "grpc-tcp",
            Exchange::GrpcTcpTuned => "grpc-tcp-tuned",
            Exchange::GrpcRdma => "grpc-rdma",
            Exchange::Zmq => "zmq",
        }
    }

    /// Does it go over TCP connections of its own, and never over a fabric?
    pub fn is_over_tcp(self) -> bool {
        matches!(self, Exchange::GrpcTcp | Exchange::GrpcTcpTuned | Exchange::Zmq)
    }

    /// Do tensors cross as messages?
    pub fn is_by_message(self) -> bool {
        self.is_over_tcp() || self == Exchange::GrpcRdma
    }

    /// The largest tensor that it can carry, if there is one.
    pub fn limit(self) -> Option<TensorLimit> {
        let (bytes_max, why) = match self {
            Exchange::GrpcTcp => {
                ((2 << 30) - MESSAGE_SLACK, "a message of protobuf has less than 2 GiB")
            }
            Exchange::GrpcTcpTuned => {
                ((4 << 30) - MESSAGE_SLACK, "a message of gRPC has less than 4 GiB")
            }
            Exchange::GrpcRdma => (
                tensorwire_rpc::ring::CONTENT_BYTES_MAX,
                "its receiver takes messages of at most 1 GiB, as TensorFlow's does",
            ),
            Exchange::ZeroCopy | Exchange::Write | Exchange::Copy | Exchange::Zmq => return None,
        };
        Some(TensorLimit { exchange: self, bytes_max, why })
    }

    /// Checks that it can carry a tensor.
    ///
    /// # Errors
    /// When it cannot, with what can.
    pub fn check_tensor(self, name: &str, bytes: usize) -> Result<(), ConfigError> {
        let exceeded = self.limit().and_then(|limit| limit.exceeded(name, bytes));
        exceeded.map_or(Ok(()), |what| Err(ConfigError::TensorLimit(what)))
    }

    /// Checks that it can carry every tensor of a plan whose size is known.
    pub(crate) fn check_plan(self, plan: &Plan) -> Result<(), ConfigError> {
        let mut known = plan.edges.iter().filter_map(|edge| Some((&edge.name, edge.bytes()?)));
        known.try_for_each(|(name, bytes)| self.check_tensor(name, bytes))
    }

    /// What it means for the plan. `spread`: the members are on several hosts.
    pub fn plan_options(self, transport: Transport, spread: bool) -> PlanOptions {
        let shared_memory = match (self, transport.settled(spread)) {
            // what members of several hosts will agree on is neither here nor there
            (_, None | Some(Transport::Tcp | Transport::Verbs)) => SharedMemory::None,
            (Exchange::ZeroCopy, _) => SharedMemory::Used,
            _ => SharedMemory::Unused,
        };
        let send_from = match self {
            Exchange::Copy => SendFrom::Staging,
            _ => SendFrom::Origin,
        };
        PlanOptions { send_from, shared_memory, ..PlanOptions::default() }
    }
}

impl TensorLimit {
    /// What to say of a tensor that is too large.
    pub(crate) fn exceeded(&self, name: &str, bytes: usize) -> Option<String> {
        let TensorLimit { exchange, bytes_max, why } = *self;
        // fits: usize is 64 bits wide
        let found = human_bytes(bytes as u64);
        (bytes > bytes_max).then(|| {
            format!(
                "'{name}' has {found}, which --exchange {} cannot carry: {why}; give --exchange zero-copy",
                exchange.name()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_said_with_the_cure() {
        for (exchange, limit) in [
            (Exchange::GrpcTcp, 2usize << 30),
            (Exchange::GrpcTcpTuned, 4 << 30),
            (Exchange::GrpcRdma, (1 << 30) + 1),
        ] {
            let error = exchange.check_tensor("w", limit).unwrap_err().to_string();
            assert!(error.contains(exchange.name()) && error.contains("GiB"), "{error}");
            assert!(error.contains("give --exchange zero-copy"), "{error}");
        }
        for exchange in Exchange::ALL {
            assert!(exchange.check_tensor("w", 1 << 30).is_ok(), "{exchange:?}");
        }
        assert!(Exchange::Zmq.check_tensor("w", usize::MAX).is_ok());
    }
}
