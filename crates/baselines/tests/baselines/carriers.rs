//! One suite over every transport: what is sent arrives whole at the sink, its memory is let go of, and who
//! leaves in good order is no loss. Real sockets and real fabrics.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tensorwire_base::{Deadline, Incarnation, Rank};
use tensorwire_baselines::grpc::{GrpcStyle, GrpcTransport};
use tensorwire_baselines::ring::{CONTENT_BYTES_MAX, RingTransport};
use tensorwire_baselines::zmq::{ZmqNode, ZmqTransport};
use tensorwire_baselines::{
    Bell, Bytes, ContentSink, MessageError, MessageSink, MessageTransport, PeerCredentials,
    RpcError,
};
use tensorwire_fabric::{Backend, Fabric, Secret, SimKnobs, SimNetwork};
use tensorwire_testkit::mesh;

const LIFE: Incarnation = Incarnation(1);

/// The largest content here: a ring has more than one of its own.
const CONTENT_MAX: usize = CONTENT_BYTES_MAX + (1 << 20);

/// Keeps what comes.
#[derive(Default)]
pub(super) struct Kept {
    bell: Bell,
    state: Arc<Mutex<State>>,
    /// How many bytes less than [`CONTENT_MAX`] it takes.
    less: AtomicUsize,
}

#[derive(Default)]
pub(super) struct State {
    /// By head.
    came: BTreeMap<Vec<u8>, (Rank, Vec<u8>)>,
    failed: Option<MessageError>,
}

struct Keep {
    sink: Arc<Mutex<State>>,
    from: Rank,
    head: Vec<u8>,
    content: Vec<u8>,
    bytes: usize,
}

impl MessageSink for Kept {
    fn open(&self, from: Rank, head: &[u8], bytes: usize) -> Result<Box<dyn ContentSink>, String> {
        if head == b"unwanted" || bytes > CONTENT_MAX - self.less.load(Ordering::Relaxed) {
            return Err("nobody wants it".to_string());
        }
        let (sink, head, content) = (self.state.clone(), head.to_vec(), Vec::new());
        Ok(Box::new(Keep { sink, from, head, content, bytes }))
    }

    fn fail(&self, error: MessageError) {
        self.state.lock().unwrap().failed.get_or_insert(error);
        self.bell.ring();
    }

    fn bell(&self) -> &Bell {
        &self.bell
    }
}

impl Kept {
    /// What came with this head, if it did.
    pub(super) fn take(&self, head: &[u8]) -> Option<(Rank, Vec<u8>)> {
        self.state.lock().unwrap().came.remove(head)
    }

    /// How many messages came that nobody has taken yet.
    pub(super) fn took(&self) -> usize {
        self.state.lock().unwrap().came.len()
    }
}

impl ContentSink for Keep {
    fn write(&mut self, bytes: &[u8]) {
        self.content.extend_from_slice(bytes);
    }

    fn done(self: Box<Self>) {
        let Keep { sink, from, head, content, bytes } = *self;
        assert_eq!(content.len(), bytes);
        assert!(sink.lock().unwrap().came.insert(head, (from, content)).is_none(), "twice");
    }
}

/// A process's end.
pub(super) struct End {
    pub(super) transport: Box<dyn MessageTransport>,
    pub(super) sink: Arc<Kept>,
}

impl End {
    /// Looks and waits until `seen` of what has come.
    pub(super) fn until<T>(
        &mut self,
        seen: impl Fn(&mut State) -> Option<T>,
    ) -> Result<T, MessageError> {
        let deadline = soon();
        while !deadline.passed() {
            self.transport.observe()?;
            let mut state = self.sink.state.lock().unwrap();
            if let Some(failed) = state.failed.take() {
                return Err(failed);
            }
            if let Some(found) = seen(&mut state) {
                return Ok(found);
            }
            drop(state);
            // what a sink keeps rings no bell
            self.transport.wait(Deadline::after(Duration::from_millis(5)))?;
        }
        panic!("it did not come");
    }

    pub(super) fn receive(&mut self, head: &[u8]) -> (Rank, Vec<u8>) {
        self.until(|state| state.came.remove(head)).unwrap()
    }

    /// Takes no content of more bytes.
    pub(super) fn takes_at_most(&self, bytes: usize) {
        self.sink.less.store(CONTENT_MAX - bytes, Ordering::Relaxed);
    }

    /// Nothing came but what was received, and nothing failed.
    pub(super) fn came_nothing_else(&self) {
        let state = self.sink.state.lock().unwrap();
        assert!(state.came.is_empty() && state.failed.is_none());
    }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

pub(super) fn credentials(rank: u32) -> PeerCredentials {
    PeerCredentials { rank: Rank(rank), life: LIFE, secret: Secret([7; 32]) }
}

pub(super) fn end(transport: impl MessageTransport + 'static, sink: Arc<Kept>) -> End {
    End { transport: Box::new(transport), sink }
}

pub(super) fn grpc(credentials: PeerCredentials, style: GrpcStyle) -> (GrpcTransport, Arc<Kept>) {
    let sink = Arc::<Kept>::default();
    let patience = Duration::from_secs(60);
    (GrpcTransport::bind(credentials, anywhere(), style, patience, sink.clone()).unwrap(), sink)
}

/// Two ends, and where the second one listens.
pub(super) fn grpc_pair(style: GrpcStyle) -> ([End; 2], SocketAddr) {
    let ((mut zero, desk_0), (mut one, desk_1)) =
        (grpc(credentials(0), style), grpc(credentials(1), style));
    zero.expect(&[one.identity()]);
    one.expect(&[zero.identity()]);
    zero.connect(Rank(1), one.address(), soon()).unwrap();
    one.connect(Rank(0), zero.address(), soon()).unwrap();
    let at = one.address();
    ([end(zero, desk_0), end(one, desk_1)], at)
}

fn zmq_pair() -> [End; 2] {
    let node = |rank| ZmqNode::bind(credentials(rank), "tcp://127.0.0.1:*").unwrap();
    let (mut zero, mut one) = (node(0), node(1));
    zero.connect(one.identity(), one.endpoint()).unwrap();
    one.connect(zero.identity(), zero.endpoint()).unwrap();
    [zero, one].map(|node| {
        let sink = Arc::<Kept>::default();
        end(ZmqTransport::new(node, sink.clone()), sink)
    })
}

fn ring_pair(backend: fn() -> Backend) -> [End; 2] {
    let fabrics: [Fabric; 2] = mesh::mesh(backend, 2).try_into().unwrap();
    let [zero, one] = fabrics;
    let open = |fabric: Fabric, peer: u32| {
        let sink = Arc::<Kept>::default();
        let transport = RingTransport::open(fabric, &[Rank(peer)], sink.clone(), soon()).unwrap();
        let tender = transport.tender();
        // it ends with the transport
        std::thread::spawn(move || tender.tend());
        end(transport, sink)
    };
    std::thread::scope(|scope| {
        let zero = scope.spawn(|| open(zero, 1));
        let one = open(one, 0);
        [zero.join().unwrap(), one]
    })
}

/// Whose pieces of writes land in any order, late.
fn sim() -> Backend {
    Backend::Sim(SimNetwork::new(11, SimKnobs::default()))
}

/// Two ends that are connected.
type MakePair = fn() -> [End; 2];

fn pairs() -> Vec<(&'static str, MakePair)> {
    vec![
        ("grpc", || grpc_pair(GrpcStyle::Codec).0),
        ("grpc, bare", || grpc_pair(GrpcStyle::Bare).0),
        ("zmq", zmq_pair),
        ("ring, shm", || ring_pair(|| Backend::Shm)),
        ("ring, tcp", || ring_pair(|| Backend::Tcp)),
        ("ring, sim", || ring_pair(sim)),
    ]
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + at / 4096) as u8).collect()
}

/// Counts the contents that were let go of.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn messages_of_every_size_arrive_whole_and_are_let_go_of() {
    for (name, pair) in pairs() {
        let [mut zero, mut one] = pair();
        let gone = Arc::<AtomicUsize>::default();
        // around a fragment, a frame, a ring; several rounds of it
        let slot = 256 << 10;
        let sizes = [0, 1, slot - 65, slot - 16, slot + 1, 1 << 20, (4 << 20) + 3, 21 << 20];
        for (index, bytes) in sizes.into_iter().enumerate() {
            let head = [b'h', index as u8];
            let content = Bytes::from_owner(Counted(pattern(bytes), gone.clone()));
            zero.transport.send(Rank(1), &head, content).unwrap();
            let (from, content) = one.receive(&head);
            assert!(from == Rank(0) && content == pattern(bytes), "{name}: {bytes} bytes");
            zero.until(|_| (gone.load(Ordering::SeqCst) == index + 1).then_some(())).unwrap();
        }
    }
}

#[test]
fn both_send_at_once_more_than_a_ring_holds() {
    for (name, pair) in pairs() {
        let mut ends = pair();
        for (rank, end) in ends.iter_mut().enumerate() {
            for index in 0..40u8 {
                let content = Bytes::from(vec![index; 300_000]);
                end.transport.send(Rank(1 - rank as u32), &[b'h', index], content).unwrap();
            }
        }
        std::thread::scope(|scope| {
            for end in &mut ends {
                scope.spawn(|| {
                    for index in 0..40 {
                        let (_, content) = end.receive(&[b'h', index]);
                        assert!(content == vec![index; 300_000], "{name}: message {index}");
                    }
                });
            }
        });
    }
}

#[test]
fn who_leaves_in_good_order_is_no_loss() {
    for (name, pair) in pairs() {
        let [mut zero, mut one] = pair();
        zero.transport.send(Rank(1), b"last", Bytes::from(pattern(3 << 20))).unwrap();
        // one's end has to take it meanwhile
        std::thread::scope(|scope| {
            scope.spawn(|| {
                zero.transport.close(soon()).unwrap();
                drop(zero);
            });
            assert!(one.receive(b"last").1 == pattern(3 << 20), "{name}");
        });
        // such as a credit for somebody who will not write again
        for _ in 0..3 {
            one.transport.send(Rank(0), b"late", Bytes::new()).unwrap();
            one.transport.observe().unwrap();
        }
        one.transport.close(Deadline::after(Duration::from_secs(10))).unwrap();
        assert_eq!(one.sink.state.lock().unwrap().failed, None, "{name}");
    }
}

#[test]
fn a_message_that_the_desk_refuses_is_an_error_of_one_end() {
    for (name, pair) in pairs() {
        let [mut zero, mut one] = pair();
        zero.transport.send(Rank(1), b"unwanted", Bytes::from(vec![1; 100])).unwrap();
        let deadline = soon();
        let error = loop {
            let failures = [&mut zero, &mut one].map(|end| {
                let looked = end.transport.observe().err();
                looked.or_else(|| end.sink.state.lock().unwrap().failed.take())
            });
            if let Some(error) = failures.into_iter().flatten().next() {
                break error;
            }
            assert!(!deadline.passed(), "{name}");
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(error.what.contains("nobody wants it") && error.peer.is_some(), "{name}: {error}");
    }
}

#[test]
fn an_unknown_peer_is_said() {
    for (name, pair) in pairs() {
        let [mut zero, _one] = pair();
        let error = zero.transport.send(Rank(9), b"head", Bytes::new()).unwrap_err();
        assert!(error.what.contains('9'), "{name}: {error}");
    }
}

#[test]
fn a_grpc_peer_that_dies_or_that_nobody_knows_is_an_error() {
    for style in [GrpcStyle::Codec, GrpcStyle::Bare] {
        let ([mut zero, one], _) = grpc_pair(style);
        drop(one);
        zero.transport.send(Rank(1), b"head", Bytes::from(vec![1; 100])).unwrap();
        let error = zero.until(|_| None::<()>).unwrap_err();
        assert!(error.peer == Some(Rank(1)) && error.what.contains("gone"), "{error}");

        let stranger = PeerCredentials { secret: Secret([8; 32]), ..credentials(0) };
        let ((mut stranger, sink), (mut one, heard)) =
            (grpc(stranger, style), grpc(credentials(1), style));
        one.expect(&[stranger.identity()]);
        stranger.expect(&[one.identity()]);
        stranger.connect(Rank(1), one.address(), soon()).unwrap();
        let mut stranger = end(stranger, sink);
        stranger.transport.send(Rank(1), b"head", Bytes::new()).unwrap();
        let error = stranger.until(|_| None::<()>).unwrap_err();
        assert!(error.what.contains("nobody in this job"), "{error}");
        assert!(heard.state.lock().unwrap().came.is_empty());
        assert_eq!(one.refused(), 1);
    }
}

/// Who is told of a peer first calls it at once, and may come before it was told.
#[test]
fn a_grpc_peer_may_call_before_it_is_expected() {
    for style in [GrpcStyle::Codec, GrpcStyle::Bare] {
        let ((mut zero, sink_0), (mut one, sink_1)) =
            (grpc(credentials(0), style), grpc(credentials(1), style));
        zero.expect(&[one.identity()]);
        zero.connect(Rank(1), one.address(), soon()).unwrap();
        let expected = zero.identity();
        let mut zero = end(zero, sink_0);
        zero.transport.send(Rank(1), b"early", Bytes::from(pattern(100_000))).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        one.expect(&[expected]);
        let mut one = end(one, sink_1);
        assert!(one.receive(b"early").1 == pattern(100_000));
        zero.came_nothing_else();
    }
}

#[test]
fn a_message_of_more_than_a_ring_takes_is_refused_at_once() {
    let [mut zero, _one] = ring_pair(|| Backend::Shm);
    let content = Bytes::from(vec![0; CONTENT_BYTES_MAX + 1]);
    let error = zero.transport.send(Rank(1), b"head", content).unwrap_err();
    assert!(error.what.contains("more than a message has"), "{error}");
}

#[test]
fn a_ring_s_peer_that_is_lost_is_an_error() {
    let [mut zero, one] = ring_pair(|| Backend::Tcp);
    drop(one);
    let error = zero.until(|_| None::<()>).unwrap_err();
    assert_eq!(error.peer, Some(Rank(1)), "{error}");
}

#[test]
fn a_port_that_is_taken_is_said() {
    let (one, _) = grpc(credentials(0), GrpcStyle::Bare);
    let sink = Arc::<Kept>::default();
    let again =
        GrpcTransport::bind(credentials(1), one.address(), GrpcStyle::Bare, Duration::ZERO, sink);
    assert!(matches!(again, Err(RpcError::Listen { .. })));
}
