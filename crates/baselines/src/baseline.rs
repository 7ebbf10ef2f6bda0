//! The ways of sending messages that there are, and what each cannot carry.

use tensorwire_base::human_bytes;

/// A way of sending tensors as messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// Calls of gRPC over TCP, by tonic and prost: gRPC.TCP of Xue et al.
    GrpcTcp,
    /// The same calls, without the codec's copies.
    GrpcTcpTuned,
    /// Messages over private rings on the fabric: gRPC.RDMA of Xue et al.
    GrpcRdma,
    /// Messages over ZeroMQ, as ps-lite sends them.
    Zmq,
}

/// What a message has beside its tensor is less.
const MESSAGE_SLACK: usize = 4 << 10;

impl Baseline {
    /// As `--exchange` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Baseline::GrpcTcp => "grpc-tcp",
            Baseline::GrpcTcpTuned => "grpc-tcp-tuned",
            Baseline::GrpcRdma => "grpc-rdma",
            Baseline::Zmq => "zmq",
        }
    }

    /// Returns why it cannot carry the tensor `name` of `bytes` bytes, and what can; none if it can.
    pub fn refusal(self, name: &str, bytes: usize) -> Option<String> {
        let (bytes_max, why) = match self {
            Baseline::GrpcTcp => {
                ((2 << 30) - MESSAGE_SLACK, "a message of protobuf has less than 2 GiB")
            }
            Baseline::GrpcTcpTuned => {
                ((4 << 30) - MESSAGE_SLACK, "a message of gRPC has less than 4 GiB")
            }
            Baseline::GrpcRdma => (
                crate::ring::CONTENT_BYTES_MAX,
                "its receiver takes messages of at most 1 GiB by construction",
            ),
            Baseline::Zmq => return None,
        };
        // fits: usize is 64 bits wide
        let found = human_bytes(bytes as u64);
        (bytes > bytes_max).then(|| {
            format!(
                "'{name}' has {found}, which --exchange {} cannot carry: {why}; give --exchange zero-copy",
                self.name()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Baseline; 4] =
        [Baseline::GrpcTcp, Baseline::GrpcTcpTuned, Baseline::GrpcRdma, Baseline::Zmq];

    #[test]
    fn limits_are_said_with_the_cure() {
        for (baseline, limit) in [
            (Baseline::GrpcTcp, 2usize << 30),
            (Baseline::GrpcTcpTuned, 4 << 30),
            (Baseline::GrpcRdma, (1 << 30) + 1),
        ] {
            let said = baseline.refusal("w", limit).unwrap();
            assert!(said.contains(baseline.name()) && said.contains("GiB"), "{said}");
            assert!(said.contains("give --exchange zero-copy"), "{said}");
        }
        for baseline in ALL {
            assert!(baseline.refusal("w", 1 << 30).is_none(), "{baseline:?}");
        }
        assert!(Baseline::Zmq.refusal("w", usize::MAX).is_none());
    }
}
