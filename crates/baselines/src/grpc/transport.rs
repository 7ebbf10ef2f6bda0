//! gRPC under the seam: a message is a call of `Push`. Threads of its own send and take them; the caller's
//! waits at the bell. A process that leaves calls everybody once more, with nothing: what fails from then on
//! is nothing that anybody waits for.
//!
//! A call's metadata has the content's length and the sealed head ([`HeadSeals`]), so that a call of nobody's, or one that came before,
//! is refused before its content is read. Calls overtake each other. What answers them is not sealed.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use parking_lot::Mutex;
use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::seal::Order;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::Channel;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::client::{dial, failure, unlimited};
use super::message::{Done, Tensor};
use super::server::{Answer, OwnRuntime, answer_all, limited, listen};
use super::{PUSH, bare};
use crate::seals::{HeadError, HeadSeals, SEAL_BYTES};
use crate::transport::{ContentSink, MessageError, MessageSink, MessageTransport};
use crate::{PeerCredentials, PeerIdentity, RpcError};

/// Where a call says what it is: the content's length in 8 bytes, and the head.
const HEAD: &str = "tensorwire-head-bin";

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
    at: SocketAddr,
    patience: Duration,
    /// Until it is known whose calls are taken.
    unanswered: Option<TcpIncoming>,
    peers: HashMap<Rank, (SocketAddr, Channel)>,
    shared: Arc<Shared>,
    /// What the bell had counted at the last look.
    seen: u64,
    // last: what runs in it ends first
    runtime: OwnRuntime,
}

struct Shared {
    style: GrpcStyle,
    seals: Mutex<HeadSeals>,
    sink: Arc<dyn MessageSink>,
    left: Mutex<HashSet<Rank>>,
    calls: AtomicU64,
    bytes_copied: AtomicU64,
}

impl GrpcTransport {
    /// Listens at `at` (port 0: the system chooses). A call may take as long as `patience`. What comes for `sink` waits until it
    /// is told whom to [expect](GrpcTransport::expect).
    ///
    /// # Errors
    /// When it cannot listen there, or threads cannot be started.
    pub fn bind(
        credentials: PeerCredentials,
        at: SocketAddr,
        style: GrpcStyle,
        patience: Duration,
        sink: Arc<dyn MessageSink>,
    ) -> Result<GrpcTransport, RpcError> {
        let seen = sink.bell().count();
        let shared = Arc::new(Shared {
            style,
            seals: Mutex::new(HeadSeals::new(credentials, Order::Any)),
            sink,
            left: Mutex::default(),
            calls: AtomicU64::new(0),
            bytes_copied: AtomicU64::new(0),
        });
        let runtime = OwnRuntime::start("grpc")?;
        let (at, incoming) = listen(&runtime, at)?;
        let (unanswered, peers) = (Some(incoming), HashMap::new());
        Ok(GrpcTransport { at, patience, unanswered, peers, shared, seen, runtime })
    }

    /// Where peers find it.
    pub fn address(&self) -> SocketAddr {
        self.at
    }

    /// What peers are to be told, beside the address.
    pub fn identity(&self) -> PeerIdentity {
        self.shared.seals.lock().me()
    }

    /// Messages that were refused: those of strangers, or that came before.
    pub fn refused(&self) -> u64 {
        self.shared.seals.lock().refused()
    }

    /// From now on what these peers send is taken, and of their ranks nothing else. Any of them may call as soon as it can connect, so
    /// that all are to be told of at once.
    pub fn expect(&mut self, peers: &[PeerIdentity]) {
        for peer in peers {
            self.shared.seals.lock().expect(*peer);
        }
        if let Some(incoming) = self.unanswered.take() {
            let shared = self.shared.clone();
            let answer = move |request| answer(request, shared.clone());
            // it ends with the runtime
            drop(answer_all(&self.runtime, incoming, answer, std::future::pending()));
        }
    }

    /// From now on the expected peer of this rank can be sent to at `at`.
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
        let metadata = self.shared.seal(to, head, content.len()).ok_or_else(unknown)?;
        let (shared, patience) = (self.shared.clone(), self.patience);
        shared.calls.fetch_add(1, Ordering::SeqCst);
        self.runtime.handle().spawn(async move {
            let call = shared.call(channel, metadata, content);
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
    /// What a call says first; none if nobody of that rank is expected.
    fn seal(&self, to: Rank, head: &[u8], content_bytes: usize) -> Option<MetadataMap> {
        let length = (content_bytes as u64).to_le_bytes();
        let mut said = [&length[..], &vec![0; head.len() + SEAL_BYTES]].concat();
        let is_sealed = self.seals.lock().seal(to, head, &length, &mut said[length.len()..]);
        let mut said = MetadataValue::from_bytes(&said);
        // no two are the same: a table of those that were said has no use
        said.set_sensitive(true);
        let mut metadata = MetadataMap::new();
        metadata.insert_bin(HEAD, said);
        is_sealed.then_some(metadata)
    }

    async fn call(
        &self,
        channel: Channel,
        metadata: MetadataMap,
        content: Bytes,
    ) -> Result<(), Status> {
        match self.style {
            GrpcStyle::Bare => bare::push(channel, metadata.into_headers(), content).await,
            GrpcStyle::Codec => {
                self.bytes_copied.fetch_add(content.len() as u64, Ordering::Relaxed);
                let mut grpc = unlimited(channel);
                let down = |error: tonic::transport::Error| Status::from_error(error.into());
                grpc.ready().await.map_err(down)?;
                let mut request = Request::new(Tensor { content });
                *request.metadata_mut() = metadata;
                let codec = ProstCodec::<Tensor, Done>::default();
                grpc.unary(request, PathAndQuery::from_static(PUSH), codec).await.map(drop)
            }
        }
    }

    /// Where the content of a call goes, and how long it is. Nothing of it has been read.
    fn open(&self, call: &http::Request<Body>) -> Result<(Box<dyn ContentSink>, usize), Status> {
        let metadata = MetadataMap::from_headers(call.headers().clone());
        let said = metadata.get_bin(HEAD).and_then(|said| said.to_bytes().ok());
        let mut said = Vec::from(said.unwrap_or_default());
        let (from, head, bytes) = self.read(&mut said).map_err(|why| {
            let caller = call.extensions().get::<TcpConnectInfo>();
            let caller = caller.and_then(TcpConnectInfo::remote_addr);
            let caller = caller.map_or_else(|| "a stranger".to_string(), |at| at.to_string());
            self.seals.lock().refuse(caller, why);
            Status::unauthenticated(format!("this call is of nobody in this job: {why}"))
        })?;
        // one without a head says that its caller leaves
        if head.is_empty() && bytes == 0 {
            self.left.lock().insert(from);
            return Ok((Box::new(Nowhere), 0));
        }
        let sink = self.sink.open(from, head, bytes).map_err(Status::invalid_argument)?;
        Ok((sink, bytes))
    }

    /// Whose call it is, its head, and its content's length.
    fn read<'a>(&self, said: &'a mut [u8]) -> Result<(Rank, &'a [u8], usize), HeadError> {
        let (length, sealed) = said.split_first_chunk_mut::<8>().ok_or(HeadError::NoHead)?;
        let (from, head) = self.seals.lock().open(sealed, length)?;
        // fits: usize is 64 bits wide
        Ok((from, &sealed[head], u64::from_le_bytes(*length) as usize))
    }

    fn take(
        &self,
        (mut sink, bytes): (Box<dyn ContentSink>, usize),
        Tensor { content }: &Tensor,
    ) -> Result<Response<Done>, Status> {
        if content.len() != bytes {
            return Err(Status::invalid_argument("another content than its head says"));
        }
        // to where the codec put it
        self.bytes_copied.fetch_add(content.len() as u64, Ordering::Relaxed);
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
    let (sink, bytes) = match shared.open(&request) {
        Ok(opened) => opened,
        Err(status) => return Ok(status.into_http()),
    };
    if shared.style == GrpcStyle::Bare {
        let taken = bare::take(request.into_body(), sink, bytes).await;
        return Ok(taken.unwrap_or_else(Status::into_http));
    }
    let mut sink = Some(sink);
    let push = service_fn(move |request: Request<Tensor>| {
        // a call has one message
        let twice = || Status::invalid_argument("a second message in one call");
        let taken = sink.take().ok_or_else(twice);
        let taken = taken.and_then(|sink| shared.take((sink, bytes), request.get_ref()));
        async { taken }
    });
    Ok(limited(bytes).unary(push, request).await)
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use tensorwire_base::Incarnation;
    use tensorwire_fabric::Secret;
    use tokio::runtime::Builder;

    use super::*;
    use crate::Bell;

    /// Counts what comes.
    #[derive(Default)]
    struct Counting {
        bell: Bell,
        opened: AtomicU64,
        bytes: Arc<AtomicU64>,
        done: Arc<AtomicU64>,
    }

    struct Count(Arc<AtomicU64>, Arc<AtomicU64>);

    impl MessageSink for Counting {
        fn open(&self, _: Rank, head: &[u8], _: usize) -> Result<Box<dyn ContentSink>, String> {
            assert_eq!(head, b"a head");
            self.opened.fetch_add(1, Ordering::Relaxed);
            Ok(Box::new(Count(self.bytes.clone(), self.done.clone())))
        }

        fn fail(&self, error: MessageError) {
            panic!("{error}");
        }

        fn bell(&self) -> &Bell {
            &self.bell
        }
    }

    impl ContentSink for Count {
        fn write(&mut self, bytes: &[u8]) {
            self.0.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }

        fn done(self: Box<Self>) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Counting {
        /// Opened, bytes, done.
        fn counts(&self) -> [u64; 3] {
            [&self.opened, &*self.bytes, &*self.done].map(|count| count.load(Ordering::Relaxed))
        }
    }

    fn end(rank: u32, style: GrpcStyle) -> (Arc<Shared>, Arc<Counting>) {
        let (rank, life, sink) = (Rank(rank), Incarnation(1), Arc::<Counting>::default());
        let credentials = PeerCredentials { rank, life, secret: Secret([7; 32]) };
        let shared = Shared {
            style,
            seals: Mutex::new(HeadSeals::new(credentials, Order::Any)),
            sink: sink.clone(),
            left: Mutex::default(),
            calls: AtomicU64::new(0),
            bytes_copied: AtomicU64::new(0),
        };
        (Arc::new(shared), sink)
    }

    /// A call that says this first, and has a content of `bytes` bytes.
    fn call(said: &[u8], bytes: u8) -> http::Request<Body> {
        let fields = [&[0x0a, bytes][..], &vec![9; usize::from(bytes)]].concat();
        let message = [&[0, 0, 0, 0, bytes + 2][..], &fields].concat();
        let mut metadata = MetadataMap::new();
        metadata.insert_bin(HEAD, MetadataValue::from_bytes(said));
        let mut request = http::Request::new(Body::new(Full::new(Bytes::from(message))));
        (*request.headers_mut(), *request.uri_mut()) =
            (metadata.into_headers(), http::Uri::from_static(PUSH));
        request
    }

    #[test]
    fn a_call_that_is_changed_or_comes_again_is_refused_before_its_content_is_read() {
        let runtime = Builder::new_current_thread().build().unwrap();
        for style in [GrpcStyle::Codec, GrpcStyle::Bare] {
            let ((zero, _), (one, sink)) = (end(0, style), end(1, style));
            let (me, peer) = (zero.seals.lock().me(), one.seals.lock().me());
            zero.seals.lock().expect(peer);
            one.seals.lock().expect(me);
            let said = |bytes| {
                let metadata = zero.seal(Rank(1), b"a head", bytes).unwrap();
                metadata.get_bin(HEAD).unwrap().to_bytes().unwrap().to_vec()
            };
            let answered = |said: &[u8], bytes| {
                runtime.block_on(answer(call(said, bytes), one.clone())).unwrap()
            };
            let refused = |said: &[u8]| {
                let before = sink.counts();
                let status = Status::from_header_map(answered(said, 40).headers()).unwrap();
                assert_eq!(status.code(), tonic::Code::Unauthenticated);
                assert_eq!(sink.counts(), before);
            };
            let right = said(40);
            for bit in 0..right.len() * 8 {
                let mut wrong = right.clone();
                wrong[bit / 8] ^= 1 << (bit % 8);
                refused(&wrong);
            }
            (0..right.len()).for_each(|length| refused(&right[..length]));
            answered(&right, 40);
            assert_eq!(sink.counts(), [1, 40, 1]);
            refused(&right);
            // another content beside it
            for bytes in [0, 39, 41] {
                answered(&said(40), bytes);
            }
            let [opened, _, done] = sink.counts();
            assert_eq!((opened, done), (4, 1));
            assert_eq!(one.seals.lock().refused(), right.len() as u64 * 9 + 1);
        }
    }
}
