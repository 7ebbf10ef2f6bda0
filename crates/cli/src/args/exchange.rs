//! `--exchange`, and which transfers a list of them is.

use clap::ValueEnum;
use tensorwire_bench::Sizes;
use tensorwire_launch::Transport;
use tensorwire_train::Exchange;

use super::{KindArg, TransferArgs};

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum ExchangeArg {
    /// No byte is copied; on one host, none is moved that need not be
    ZeroCopy,
    /// One write for every tensor, as between hosts
    Write,
    /// A copy into registered memory first, to compare with
    Copy,
    /// Calls of gRPC over TCP, to compare with (ps)
    GrpcTcp,
    /// The same calls without the codec's copies (ps)
    GrpcTcpTuned,
    /// Messages over private rings on the transport, as gRPC over RDMA, to compare with (ps)
    GrpcRdma,
    /// Messages over ZeroMQ, as ps-lite sends them, to compare with (ps, dist-sgd, dist-asgd, dist-esgd)
    Zmq,
}

impl TransferArgs {
    /// What to measure over these transports, in order. What goes over TCP of its own is measured with tcp
    /// alone, where that is among them.
    pub(crate) fn ways(&self, transports: &[Transport]) -> Vec<(Transport, Exchange, Sizes)> {
        let mut ways = Vec::new();
        for &transport in transports {
            for &exchange in &self.exchange {
                let way = Exchange::from(exchange);
                let is_elsewhere = way.is_over_tcp()
                    && transport != Transport::Tcp
                    && transports.contains(&Transport::Tcp);
                let kinds = self.kind.iter().filter(|kind| !self.measures_twice(exchange, **kind));
                let kinds = kinds.filter(|_| !is_elsewhere);
                ways.extend(kinds.map(|kind| (transport, way, Sizes::from(*kind))));
            }
        }
        ways
    }

    /// A dynamic tensor is announced and read, whether others are written or stay where they are.
    fn measures_twice(&self, exchange: ExchangeArg, kind: KindArg) -> bool {
        let also = self.exchange.contains(&ExchangeArg::ZeroCopy);
        (exchange, kind) == (ExchangeArg::Write, KindArg::Dynamic) && also
    }
}

impl From<ExchangeArg> for Exchange {
    fn from(arg: ExchangeArg) -> Exchange {
        match arg {
            ExchangeArg::ZeroCopy => Exchange::ZeroCopy,
            ExchangeArg::Write => Exchange::Write,
            ExchangeArg::Copy => Exchange::Copy,
            ExchangeArg::GrpcTcp => Exchange::GrpcTcp,
            ExchangeArg::GrpcTcpTuned => Exchange::GrpcTcpTuned,
            ExchangeArg::GrpcRdma => Exchange::GrpcRdma,
            ExchangeArg::Zmq => Exchange::Zmq,
        }
    }
}
