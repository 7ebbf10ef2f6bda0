//! gRPC under the seam: a message is a call of `Push`. Threads of its own send and take them; the caller's
//! waits at the bell. A process that leaves calls everybody once more, with nothing: what fails from then on
//! is nothing that anybody waits for.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::uri::PathAndQuery;
use parking_lot::Mutex;
use tensorwire_base::{Deadline, Rank};
use tokio::time::timeout;
use tonic::body::Body;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::client::{dial, failure, unlimited};
use super::message::{Done, Tensor};
use super::server::{Answer, OwnRuntime, listen};
use super::{PUSH, bare, server};
use crate::transport::{ContentSink, MessageError, MessageSink, MessageTransport};
use crate::{PeerIdentity, RpcError};

/// Where a call says whom it is of.
const IDENTITY: &str = "tensorwire-identity-bin";

/// Who puts a message together and takes it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrpcStyle {
    /// tonic and prost, as everybody does.
    Codec,
    /// We: a content is not copied on its way to the socket, and from it once.
    Bare,
}

/// A [`MessageTransport`] over gRPC.
pub struct GrpcTransport {
    identity: PeerIdentity,
    at: SocketAddr,
    patience: Duration,
    peers: HashMap<Rank, (SocketAddr, Channel)>,
    shared: Arc<Shared>,
    /// What the bell had counted at the last look.
    seen: u64,
    // last: what runs in it ends first
    runtime: OwnRuntime,
}

struct Shared {
    style: GrpcStyle,
    identity: PeerIdentity,
    sink: Arc<dyn MessageSink>,
    left: Mutex<HashSet<Rank>>,
    calls: AtomicU64,
    bytes_copied: AtomicU64,
}

impl GrpcTransport {
    /// Listens at `at` (port 0: the system chooses), and hands to `sink` what comes from whoever has the
    /// identity's token. A call may take as long as `patience`.
    ///
    /// # Errors
    /// When it cannot listen there, or threads cannot be started.
    pub fn bind(
        identity: PeerIdentity,
        at: SocketAddr,
        style: GrpcStyle,
        patience: Duration,
        sink: Arc<dyn MessageSink>,
    ) -> Result<GrpcTransport, RpcError> {
        let seen = sink.bell().count();
        let shared = Arc::new(Shared {
            style,
            identity,
            sink,
            left: Mutex::default(),
            calls: AtomicU64::new(0),
            bytes_copied: AtomicU64::new(0),
        });
        let runtime = OwnRuntime::start("grpc")?;
        let answering = shared.clone();
        let answer = move |request| answer(request, answering.clone());
        let (at, _) = listen(&runtime, at, answer, std::future::pending())?;
        Ok(GrpcTransport { identity, at, patience, peers: HashMap::new(), shared, seen, runtime })
    }

    /// Where peers find it.
    pub fn address(&self) -> SocketAddr {
        self.at
    }

    /// From now on `rank` can be sent to at `at`.
    ///
    /// # Errors
    /// When nobody serves there, or does not answer before the deadline.
    pub fn connect(
        &mut self,
        rank: Rank,
        at: SocketAddr,
        deadline: Deadline,
    ) -> Result<(), RpcError> {
        let channel = self.runtime.handle().block_on(dial(at, deadline))?;
        self.peers.insert(rank, (at, channel));
        Ok(())
    }

    fn begin(&self, to: Rank, head: &[u8], content: Bytes) -> Result<(), MessageError> {
        let unknown = || MessageError::with(to, "it is not connected");
        let (at, channel) = self.peers.get(&to).ok_or_else(unknown)?.clone();
        let (shared, patience) = (self.shared.clone(), self.patience);
        let (head, identity) = (Bytes::copy_from_slice(head), self.identity);
        shared.calls.fetch_add(1, Ordering::SeqCst);
        self.runtime.handle().spawn(async move {
            let call = shared.call(channel, identity, head, content);
            let error = match timeout(patience, call).await {
                Ok(Ok(())) => None,
                Ok(Err(status)) => Some(failure(at, &status)),
                Err(_) => {
                    Some(RpcError::TimedOut { doing: "waiting for the answer to a call", at })
                }
            };
            if let Some(error) = error.filter(|_| !shared.left.lock().contains(&to)) {
                shared.sink.fail(MessageError::with(to, error));
            }
            shared.calls.fetch_sub(1, Ordering::SeqCst);
            shared.sink.bell().ring();
        });
        Ok(())
    }

    fn finish_calls(&self, deadline: Deadline) -> Result<(), MessageError> {
        let bell = self.shared.sink.bell();
        loop {
            let seen = bell.count();
            let calls = self.shared.calls.load(Ordering::SeqCst);
            if calls == 0 {
                return Ok(());
            }
            if deadline.passed() {
                let what = format!("{calls} calls of gRPC are not answered; is a peer stopped?");
                return Err(MessageError { peer: None, what });
            }
            bell.wait(seen, deadline);
        }
    }
}

impl MessageTransport for GrpcTransport {
    fn send(&mut self, to: Rank, head: &[u8], content: Bytes) -> Result<(), MessageError> {
        if self.shared.left.lock().contains(&to) {
            return Ok(());
        }
        self.begin(to, head, content)
    }

    fn observe(&mut self) -> Result<(), MessageError> {
        self.seen = self.shared.sink.bell().count();
        Ok(())
    }

    fn wait(&mut self, deadline: Deadline) -> Result<(), MessageError> {
        self.shared.sink.bell().wait(self.seen, deadline);
        Ok(())
    }

    fn bytes_copied(&self) -> u64 {
        self.shared.bytes_copied.load(Ordering::Relaxed)
    }

    fn close(&mut self, deadline: Deadline) -> Result<(), MessageError> {
        self.finish_calls(deadline)?;
        for peer in self.peers.keys() {
            if !self.shared.left.lock().contains(peer) {
                self.begin(*peer, &[], Bytes::new())?;
            }
        }
        self.finish_calls(deadline)
    }
}

impl std::fmt::Debug for GrpcTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrpcTransport").field("at", &self.at).finish_non_exhaustive()
    }
}

impl Shared {
    async fn call(
        &self,
        channel: Channel,
        identity: PeerIdentity,
        head: Bytes,
        content: Bytes,
    ) -> Result<(), Status> {
        let mut metadata = MetadataMap::new();
        metadata.insert_bin(IDENTITY, MetadataValue::from_bytes(&identity.to_bytes()));
        match self.style {
            GrpcStyle::Bare => bare::push(channel, metadata.into_headers(), &head, content).await,
            GrpcStyle::Codec => {
                self.bytes_copied.fetch_add(content.len() as u64, Ordering::Relaxed);
                let mut grpc = unlimited(channel);
                let down = |error: tonic::transport::Error| Status::from_error(error.into());
                grpc.ready().await.map_err(down)?;
                let mut request = Request::new(Tensor { content, head });
                *request.metadata_mut() = metadata;
                let codec = ProstCodec::<Tensor, Done>::default();
                grpc.unary(request, PathAndQuery::from_static(PUSH), codec).await.map(drop)
            }
        }
    }

    /// Whose call it is.
    fn caller(&self, headers: &HeaderMap) -> Result<Rank, Status> {
        let metadata = MetadataMap::from_headers(headers.clone());
        let said = metadata.get_bin(IDENTITY).and_then(|said| said.to_bytes().ok());
        let known = said.and_then(|said| self.identity.token.verify(&said));
        let stranger = || Status::unauthenticated("this call is of nobody in this job");
        known.map(|(rank, _)| rank).ok_or_else(stranger)
    }

    /// Where a call's content goes. One without a head says that its caller leaves.
    fn open(&self, from: Rank, head: &[u8], bytes: usize) -> Result<Box<dyn ContentSink>, String> {
        if head.is_empty() {
            self.left.lock().insert(from);
            return Ok(Box::new(Nowhere));
        }
        self.sink.open(from, head, bytes)
    }

    fn take(&self, from: Rank, message: &Tensor) -> Result<Response<Done>, Status> {
        let Tensor { content, head } = message;
        // to where the codec put it
        self.bytes_copied.fetch_add(content.len() as u64, Ordering::Relaxed);
        let sink = self.open(from, head, content.len());
        let mut sink = sink.map_err(Status::invalid_argument)?;
        sink.write(content);
        sink.done();
        Ok(Response::new(Done {}))
    }
}

/// Nothing comes, and goes nowhere.
struct Nowhere;

impl ContentSink for Nowhere {
    fn write(&mut self, _bytes: &[u8]) {}

    fn done(self: Box<Self>) {}
}

async fn answer(request: http::Request<Body>, shared: Arc<Shared>) -> Answer {
    if request.uri().path() != PUSH {
        return Ok(Status::unimplemented("there is Push, and nothing else").into_http());
    }
    let from = match shared.caller(request.headers()) {
        Ok(from) => from,
        Err(status) => return Ok(status.into_http()),
    };
    if shared.style == GrpcStyle::Bare {
        let open = |head: &[u8], bytes: usize| shared.open(from, head, bytes);
        let taken = bare::take(request.into_body(), open).await;
        return Ok(taken.unwrap_or_else(Status::into_http));
    }
    let most = shared.sink.content_bytes_max();
    let push = service_fn(move |request: Request<Tensor>| {
        let taken = shared.take(from, request.get_ref());
        async { taken }
    });
    Ok(server::limited(most).unary(push, request).await)
}
