//! The receiving end: a listener and a small runtime of its own.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tensorwire_base::Deadline;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::message::{Done, Tensor};
use super::{FRAME_BYTES, PUSH, WINDOW_BYTES};
use crate::RpcError;

/// Threads that serve: one has the sockets while the other has a tensor.
const THREADS: usize = 2;
/// Most bytes of a message beside its content: a key and a length.
const BESIDE_CONTENT_BYTES_MAX: usize = 1 + 10;
/// What a thread has for its calls.
const STACK_BYTES: usize = 2 << 20;
/// How long threads that are still at work are waited for when a server is dropped.
const LAST_TURN: Duration = Duration::from_secs(1);

/// Takes tensors until it is stopped or dropped.
#[derive(Debug)]
pub struct GrpcServer {
    at: SocketAddr,
    stop: oneshot::Sender<()>,
    serving: Serving,
    runtime: OwnRuntime,
}

/// A runtime that may be dropped anywhere, and never keeps its owner waiting for long.
#[derive(Debug)]
pub(super) struct OwnRuntime(Option<Runtime>);

type Serving = JoinHandle<Result<(), tonic::transport::Error>>;

/// An HTTP answer, whatever came of the call.
pub(super) type Answer = Result<http::Response<Body>, Infallible>;

type OnTensor = Arc<dyn Fn(&[u8]) + Send + Sync>;

impl GrpcServer {
    /// Listens at `at` (port 0: the system chooses) and hands each tensor, of at most `bytes_max` bytes, to `on_tensor`, several
    /// at the same time if several come. A call is answered when that returns; it must not wait for other calls.
    ///
    /// # Errors
    /// When it cannot listen there, or threads cannot be started.
    pub fn start(
        at: SocketAddr,
        bytes_max: usize,
        on_tensor: impl Fn(&[u8]) + Send + Sync + 'static,
    ) -> Result<GrpcServer, RpcError> {
        let runtime = OwnRuntime::start("grpc-server")?;
        let (stop, stopped) = oneshot::channel::<()>();
        let on_tensor: OnTensor = Arc::new(on_tensor);
        let answer = move |request| serve(request, bytes_max, on_tensor.clone());
        let (at, incoming) = listen(&runtime, at)?;
        let serving = answer_all(&runtime, incoming, answer, async {
            // a server that was dropped stops too
            let _ = stopped.await;
        });
        Ok(GrpcServer { at, stop, serving, runtime })
    }

    /// Where clients find it.
    pub fn address(&self) -> SocketAddr {
        self.at
    }

    /// Takes no new connections, and waits until the calls under way are answered and the clients have
    /// hung up. Whatever is left at the deadline is cut off.
    ///
    /// # Errors
    /// When something was cut off.
    pub fn stop(self, deadline: Deadline) -> Result<(), RpcError> {
        let GrpcServer { at, stop, serving, runtime } = self;
        // nobody listens where serving has ended already
        let _ = stop.send(());
        let ended = async { tokio::time::timeout(deadline.remaining(), serving).await };
        let cut_off = |reason: String| RpcError::Listen { at, reason };
        match runtime.handle().block_on(ended) {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(cut_off(error.to_string())),
            Ok(Err(error)) => Err(cut_off(error.to_string())),
            Err(_) => Err(RpcError::TimedOut { doing: "waiting for RPC clients to hang up", at }),
        }
    }
}

/// Listens at `at` (port 0: the system chooses). Who calls waits until he is answered.
pub(super) fn listen(
    runtime: &OwnRuntime,
    at: SocketAddr,
) -> Result<(SocketAddr, TcpIncoming), RpcError> {
    let handle = runtime.handle();
    let refused = |error: std::io::Error| RpcError::Listen { at, reason: error.to_string() };
    let incoming = {
        let _inside = handle.enter();
        TcpIncoming::bind(at).map_err(refused)?
    };
    let incoming = incoming.with_nodelay(Some(true));
    Ok((incoming.local_addr().map_err(refused)?, incoming))
}

/// Answers every request until `stopped`.
pub(super) fn answer_all<A: Future<Output = Answer> + Send + 'static>(
    runtime: &OwnRuntime,
    incoming: TcpIncoming,
    answer: impl Fn(http::Request<Body>) -> A + Clone + Send + Sync + 'static,
    stopped: impl Future<Output = ()> + Send + 'static,
) -> Serving {
    let serving = Server::builder()
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .serve_with_incoming_shutdown(service_fn(answer), incoming, stopped);
    runtime.handle().spawn(serving)
}

impl OwnRuntime {
    /// A few threads of this name.
    pub(super) fn start(name: &'static str) -> Result<OwnRuntime, RpcError> {
        OwnRuntime::with_stacks(name, STACK_BYTES)
    }

    fn with_stacks(name: &'static str, bytes: usize) -> Result<OwnRuntime, RpcError> {
        let build = || {
            try_threads(name, bytes)?;
            Builder::new_multi_thread()
                .worker_threads(THREADS)
                .thread_name(name)
                .thread_stack_size(bytes)
                .enable_all()
                .build()
        };
        let runtime = build().map_err(|source| RpcError::Runtime { source })?;
        Ok(OwnRuntime(Some(runtime)))
    }

    pub(super) fn handle(&self) -> tokio::runtime::Handle {
        // taken out by `drop` alone
        self.0.as_ref().expect("a runtime until it is dropped").handle().clone()
    }
}

/// Has as many threads as a runtime starts, for a moment: where the system gives no thread, this fails, and the runtime panics. Their
/// stacks are kept for those of the runtime.
fn try_threads(name: &str, stack_bytes: usize) -> std::io::Result<()> {
    let gate = Arc::new(Mutex::new(()));
    // whoever holds it keeps them from ending
    let closed = gate.lock();
    let threads: std::io::Result<Vec<std::thread::JoinHandle<()>>> = (0..THREADS)
        .map(|_| {
            let gate = gate.clone();
            let thread = std::thread::Builder::new().name(name.to_string()).stack_size(stack_bytes);
            thread.spawn(move || drop(gate.lock()))
        })
        .collect();
    drop(closed);
    for thread in threads? {
        // it has nothing to panic over
        let _ = thread.join();
    }
    Ok(())
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_timeout(LAST_TURN);
        }
    }
}

/// Answers one HTTP request.
async fn serve(request: http::Request<Body>, bytes_max: usize, on_tensor: OnTensor) -> Answer {
    if request.uri().path() != PUSH {
        return Ok(Status::unimplemented("there is Push, and nothing else").into_http());
    }
    let push = service_fn(move |request: Request<Tensor>| {
        on_tensor(&request.get_ref().content);
        async { Ok::<_, Status>(Response::new(Done {})) }
    });
    Ok(limited(bytes_max).unary(push, request).await)
}

/// The server's codec, for contents of at most so many bytes: what is longer is refused by its length alone, before there is
/// memory for it.
pub(super) fn limited(content_bytes_max: usize) -> Grpc<ProstCodec<Done, Tensor>> {
    let most = content_bytes_max.saturating_add(BESIDE_CONTENT_BYTES_MAX);
    Grpc::new(ProstCodec::default()).max_decoding_message_size(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_gets_no_thread_is_an_error() {
        // more than there are addresses
        let refused = OwnRuntime::with_stacks("grpc", 1 << 52).map(drop);
        assert!(matches!(refused, Err(RpcError::Runtime { .. })), "{refused:?}");
        assert!(OwnRuntime::start("grpc").is_ok());
    }
}
