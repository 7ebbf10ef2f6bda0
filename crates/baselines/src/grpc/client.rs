//! The sending end. Its runtime is the caller's own thread, so that a call wakes nobody but the server.

use std::error::Error;
use std::net::SocketAddr;

use bytes::Bytes;
use http::uri::PathAndQuery;
use tensorwire_base::Deadline;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::message::{Done, Tensor};
use super::{FRAME_BYTES, PUSH, WINDOW_BYTES};
use crate::RpcError;

/// A connection to a [`super::GrpcServer`].
#[derive(Debug)]
pub struct GrpcClient {
    at: SocketAddr,
    grpc: Grpc<Channel>,
    runtime: Runtime,
}

/// Several calls of one client at the same time. They move while somebody waits for one of them.
#[derive(Debug)]
pub struct GrpcCalls<'a> {
    client: &'a GrpcClient,
    pending: JoinSet<Result<(), RpcError>>,
}

impl GrpcClient {
    /// Connects to the server at `at`.
    ///
    /// # Errors
    /// When nobody serves there, or does not answer before the deadline.
    pub fn connect(at: SocketAddr, deadline: Deadline) -> Result<GrpcClient, RpcError> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| RpcError::Runtime { source })?;
        let grpc = unlimited(runtime.block_on(dial(at, deadline))?);
        Ok(GrpcClient { at, grpc, runtime })
    }

    /// Where the server is.
    pub fn server(&self) -> SocketAddr {
        self.at
    }

    /// Hands the server one tensor, and waits until it has taken it.
    ///
    /// # Errors
    /// When the server is gone, refuses, or has not answered before the deadline.
    pub fn push(&self, content: Bytes, deadline: Deadline) -> Result<(), RpcError> {
        self.runtime.block_on(push(self.grpc.clone(), self.at, content, deadline))
    }

    /// No calls yet.
    pub fn calls(&self) -> GrpcCalls<'_> {
        GrpcCalls { client: self, pending: JoinSet::new() }
    }
}

impl GrpcCalls<'_> {
    /// Begins to hand over a tensor.
    pub fn begin(&mut self, content: Bytes, deadline: Deadline) {
        let GrpcClient { at, grpc, runtime } = self.client;
        self.pending.spawn_on(push(grpc.clone(), *at, content, deadline), runtime.handle());
    }

    /// Calls begun, and not yet finished.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Waits for one of the calls, whichever is done first; none if none is pending.
    pub fn finish_one(&mut self) -> Option<Result<(), RpcError>> {
        let GrpcClient { at, runtime, .. } = self.client;
        let done = runtime.block_on(self.pending.join_next())?;
        let lost = |reason: String| RpcError::Lost { at: *at, reason };
        Some(done.unwrap_or_else(|error| Err(lost(error.to_string()))))
    }
}

/// A connection with large windows.
pub(super) async fn dial(at: SocketAddr, deadline: Deadline) -> Result<Channel, RpcError> {
    let unreachable = |error: &dyn Error| RpcError::Unreachable { at, reason: innermost(error) };
    let endpoint = Endpoint::from_shared(format!("http://{at}"))
        .map_err(|error| unreachable(&error))?
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES);
    match timeout(deadline.remaining(), endpoint.connect()).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(unreachable(&error)),
        Err(_) => Err(RpcError::TimedOut { doing: "connecting to an RPC server", at }),
    }
}

/// A client that sends messages of any size, and is told that they were taken.
pub(super) fn unlimited(channel: Channel) -> Grpc<Channel> {
    Grpc::new(channel).max_encoding_message_size(usize::MAX)
}

async fn push(
    mut grpc: Grpc<Channel>,
    at: SocketAddr,
    content: Bytes,
    deadline: Deadline,
) -> Result<(), RpcError> {
    let call = async {
        let lost =
            |error: tonic::transport::Error| RpcError::Lost { at, reason: innermost(&error) };
        grpc.ready().await.map_err(lost)?;
        let codec = ProstCodec::<Tensor, Done>::default();
        let request = Request::new(Tensor { content });
        let answer = grpc.unary(request, PathAndQuery::from_static(PUSH), codec).await;
        answer.map(drop).map_err(|status| failure(at, &status))
    };
    match timeout(deadline.remaining(), call).await {
        Ok(done) => done,
        Err(_) => Err(RpcError::TimedOut { doing: "waiting for the answer to a call", at }),
    }
}

/// A status that has a source was made here, of a connection that failed; any other came as an answer.
pub(super) fn failure(at: SocketAddr, status: &Status) -> RpcError {
    match status.source() {
        Some(source) => RpcError::Lost { at, reason: innermost(source) },
        None => RpcError::Refused {
            at,
            code: status.code().description(),
            message: status.message().to_string(),
        },
    }
}

/// The first cause: what is around it says only where it passed.
pub(super) fn innermost(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
