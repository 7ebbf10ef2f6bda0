//! How a tensor crosses, and what each way cannot do.

use serde::{Deserialize, Serialize};
use tensorwire_graph::{Placement, Plan, PlanOptions, SendFrom, SharedMemory};

use super::{ConfigError, DeviceChoice, TrainConfig, Transport};
use crate::messages;
use crate::topology::Weights;

/// Bytes above which a variable is split over servers that share memory with their workers.
const SPLIT_ABOVE_SHARED: usize = 64 << 20;

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

/// Which of the tensors that wait for the same way goes first (`--send-order`). The bits are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SendOrder {
    /// That of the layer which the next step computes first (P3, Jayarajan et al. 2019; ByteScheduler, Peng et al. 2019).
    #[default]
    Priority,
    /// That which was made first: to compare with.
    Ready,
}

impl SendOrder {
    /// As `--send-order` spells it.
    pub fn name(self) -> &'static str {
        match self {
            SendOrder::Priority => "priority",
            SendOrder::Ready => "ready",
        }
    }
}

impl TrainConfig {
    /// Refuses an order of sends where nothing waits for its turn.
    pub(super) fn check_send_order(&self) -> Result<(), ConfigError> {
        let topology = self.topology();
        let has_servers = topology.weights == Weights::Servers || topology.trains_over_store();
        let is_ordered = match topology.is_grouped() {
            // what GPUs reduce comes in the order in which they are told
            true => !matches!(self.device, DeviceChoice::Cuda { .. }),
            false => has_servers,
        };
        if self.send_order != SendOrder::default() && !is_ordered {
            let used_by = "jobs with servers that update weights, and for groups of workers whose host reduces gradients";
            return Err(ConfigError::Unused { option: "--send-order", used_by });
        }
        Ok(())
    }

    /// Which server gets which variable. Where all processes share memory, rows of a variable are written though the
    /// whole would be read where it lies: only a large one is worth it there.
    pub fn placement(&self) -> Placement {
        let options = self.exchange.plan_options(self.transport, &self.host_numbers());
        match self.placement {
            Placement::Balanced { split_above: None }
                if options.shared_memory == SharedMemory::Used =>
            {
                Placement::Balanced { split_above: Some(SPLIT_ABOVE_SHARED) }
            }
            placement => placement,
        }
    }
}

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

    /// Checks that it is built in.
    ///
    /// # Errors
    /// When it is a baseline, and this build has none.
    pub fn check_built_in(self) -> Result<(), ConfigError> {
        match self.is_by_message() && !messages::BUILT_IN {
            true => Err(ConfigError::NoBaselines { found: self.name() }),
            false => Ok(()),
        }
    }

    /// Checks that it can carry a tensor.
    ///
    /// # Errors
    /// When it cannot, with what can.
    pub fn check_tensor(self, name: &str, bytes: usize) -> Result<(), ConfigError> {
        let refusal = messages::refusal(self, name, bytes);
        refusal.map_or(Ok(()), |what| Err(ConfigError::TensorLimit(what)))
    }

    /// Checks that it can carry every tensor of a plan whose size is known.
    pub(crate) fn check_plan(self, plan: &Plan) -> Result<(), ConfigError> {
        let mut known = plan.edges.iter().filter_map(|edge| Some((&edge.name, edge.bytes()?)));
        known.try_for_each(|(name, bytes)| self.check_tensor(name, bytes))
    }

    /// What it means for the plan. `hosts`: by task, the number of its host.
    pub fn plan_options(self, transport: Transport, hosts: &[u32]) -> PlanOptions {
        let spread = hosts.iter().any(|host| Some(host) != hosts.first());
        let shared_memory = match (self, transport.settled(spread, false)) {
            (_, Some(Transport::Tcp | Transport::Verbs)) => SharedMemory::None,
            (Exchange::ZeroCopy, Some(_)) => SharedMemory::Used,
            (_, Some(_)) => SharedMemory::Unused,
            // whatever members of several hosts agree on, those of one share memory
            (Exchange::ZeroCopy, None) => SharedMemory::UsedOnHosts(hosts.into()),
            (_, None) => SharedMemory::None,
        };
        let send_from = match self {
            Exchange::Copy => SendFrom::Staging,
            _ => SendFrom::Origin,
        };
        PlanOptions { send_from, shared_memory, ..PlanOptions::default() }
    }
}

#[cfg(all(test, not(feature = "baselines")))]
mod tests {
    use super::*;

    #[test]
    fn a_baseline_that_is_not_built_in_is_refused_with_how_to_have_it() {
        for exchange in Exchange::ALL {
            match exchange.check_built_in() {
                Ok(()) => assert!(!exchange.is_by_message()),
                Err(error) => assert!(error.to_string().contains("--features baselines")),
            }
        }
    }
}

#[cfg(test)]
mod of_devices {
    use super::*;
    use crate::config::{DeviceChoice, tests};
    use crate::strategy::Strategy;
    use tensorwire_fabric::ArrivalMode;

    /// Where a NIC may come to carry tensors, their arrivals may be polled: those of GPUs go by pinned memory then, whatever the
    /// strategy. Elsewhere there is nothing to poll, which is said before anything is started.
    #[test]
    fn flags_are_taken_where_there_may_be_a_nic_and_refused_elsewhere() {
        let device = DeviceChoice::Cuda { ordinal: None };
        let hosts: tensorwire_launch::Hosts = "192.0.2.1,192.0.2.2".parse().unwrap();
        let listen = Some(([127, 0, 0, 1], 0).into());
        for strategy in Strategy::ALL.into_iter().filter(|one| *one != Strategy::Local) {
            for mode in [ArrivalMode::FlagSeparate, ArrivalMode::FlagTail, ArrivalMode::WriteImm] {
                let of = |transport| TrainConfig {
                    strategy,
                    device,
                    transport,
                    arrival: Some(mode),
                    ..tests::config()
                };
                for transport in [Transport::Shm, Transport::Tcp, Transport::Auto] {
                    let refused = of(transport).check().unwrap_err();
                    assert_eq!(
                        refused.to_string(),
                        ConfigError::VerbsOption { option: "--arrival" }.to_string(),
                        "{strategy:?} {transport:?}"
                    );
                }
                let spread = of(Transport::Auto);
                for config in
                    [of(Transport::Verbs), TrainConfig { hosts: hosts.clone(), listen, ..spread }]
                {
                    config.check().unwrap_or_else(|error| panic!("{strategy:?} {mode}: {error}"));
                }
            }
        }
    }
}
