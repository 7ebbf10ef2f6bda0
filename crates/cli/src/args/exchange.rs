//! `--exchange`.

use clap::ValueEnum;
use tensorwire_train::Exchange;

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
