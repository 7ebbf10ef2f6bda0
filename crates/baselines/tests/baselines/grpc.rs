//! gRPC between two ends of one process: what is sent arrives whole, and nothing waits for ever.

use std::net::{SocketAddr, TcpListener};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tensorwire_base::Deadline;
use tensorwire_baselines::grpc::{GrpcClient, GrpcServer};
use tensorwire_baselines::{Bytes, RpcError};

/// The largest tensor that servers here take.
const MOST: usize = 64 << 20;

/// A server that passes on what it was given.
fn server() -> (GrpcServer, Receiver<Vec<u8>>) {
    let (tell, told) = channel();
    let server =
        GrpcServer::start(anywhere(), MOST, move |tensor| tell.send(tensor.to_vec()).unwrap());
    (server.unwrap(), told)
}

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + at / 4096) as u8).collect()
}

#[test]
fn tensors_of_every_size_arrive_whole() {
    let (server, told) = server();
    let client = GrpcClient::connect(server.address(), soon()).unwrap();
    // around the limits of frames, windows and messages that HTTP/2 and tonic have where nothing is set
    for bytes in [0, 1, 16_383, 16_385, 65_536, 4 << 20, (4 << 20) + 1, 64 << 20] {
        let sent = pattern(bytes);
        client.push(Bytes::from(sent.clone()), soon()).unwrap();
        assert!(told.recv().unwrap() == sent, "{bytes} bytes");
    }
    drop(client);
    server.stop(soon()).unwrap();
}

/// Its length alone is enough to refuse it, and the next one is taken.
#[test]
fn what_is_larger_than_any_tensor_is_refused() {
    let (server, told) = server();
    let client = GrpcClient::connect(server.address(), soon()).unwrap();
    let error = client.push(Bytes::from(vec![0; MOST + 2000]), soon()).unwrap_err();
    assert!(matches!(error, RpcError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("too large"), "{error}");
    client.push(Bytes::from_static(b"x"), soon()).unwrap();
    assert_eq!(told.recv().unwrap(), b"x");
}

#[test]
fn calls_go_at_the_same_time_and_each_is_answered() {
    let (server, told) = server();
    let client = GrpcClient::connect(server.address(), soon()).unwrap();
    let mut calls = client.calls();
    assert!(calls.finish_one().is_none());
    for call in 0..16 {
        calls.begin(Bytes::from(vec![call; 100_000]), soon());
    }
    assert_eq!(calls.pending(), 16);
    while let Some(done) = calls.finish_one() {
        done.unwrap();
    }
    let mut firsts: Vec<u8> = told.try_iter().map(|tensor| tensor[0]).collect();
    firsts.sort_unstable();
    assert_eq!(firsts, (0..16).collect::<Vec<u8>>());
}

#[test]
fn a_server_that_is_gone_is_an_error_at_once() {
    let (server, _told) = server();
    let client = GrpcClient::connect(server.address(), soon()).unwrap();
    client.push(Bytes::from_static(b"x"), soon()).unwrap();
    drop(server);
    let begun = Instant::now();
    let error = client.push(Bytes::from_static(b"y"), soon()).unwrap_err();
    assert!(matches!(error, RpcError::Lost { .. }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{error}");
}

#[test]
fn a_server_that_ends_in_the_middle_of_a_call_is_an_error_at_once() {
    let (begun, is_begun) = channel();
    let (release, is_released) = channel::<()>();
    let is_released = Mutex::new(is_released);
    let server = GrpcServer::start(anywhere(), MOST, move |_| {
        begun.send(()).unwrap();
        // until the client has its error
        let _ = is_released.lock().unwrap().recv();
    });
    let server = server.unwrap();
    let client = GrpcClient::connect(server.address(), soon()).unwrap();
    let stopper = std::thread::spawn(move || {
        is_begun.recv().unwrap();
        drop(server);
    });
    let error = client.push(Bytes::from_static(b"x"), soon()).unwrap_err();
    assert!(matches!(error, RpcError::Lost { .. }), "{error}");
    drop(release);
    stopper.join().unwrap();
}

#[test]
fn nobody_there_is_said_at_once() {
    let free = TcpListener::bind(anywhere()).unwrap();
    let at = free.local_addr().unwrap();
    drop(free);
    let error = GrpcClient::connect(at, soon()).unwrap_err();
    assert!(matches!(error, RpcError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn a_deadline_ends_a_call_that_nobody_answers() {
    // a peer that takes the connection and never says a word
    let silent = TcpListener::bind(anywhere()).unwrap();
    let client = GrpcClient::connect(silent.local_addr().unwrap(), soon());
    // HTTP/2 clients do not wait for the server's first words
    let client = client.unwrap();
    let deadline = Deadline::after(Duration::from_millis(100));
    let error = client.push(Bytes::from_static(b"x"), deadline).unwrap_err();
    assert!(matches!(error, RpcError::TimedOut { .. }), "{error}");
}

#[test]
fn a_port_that_is_taken_is_said_with_its_address() {
    let (server, _told) = server();
    let error = GrpcServer::start(server.address(), MOST, |_| {}).unwrap_err();
    assert!(matches!(error, RpcError::Listen { .. }), "{error}");
    assert!(error.to_string().contains(&server.address().to_string()), "{error}");
}

#[test]
fn a_server_waits_for_its_calls_and_not_for_ever() {
    let (server, told) = server();
    let client = GrpcClient::connect(server.address(), soon()).unwrap();
    client.push(Bytes::from_static(b"x"), soon()).unwrap();
    assert_eq!(told.recv().unwrap(), b"x");
    // the client stays, and nobody drives it
    let error = server.stop(Deadline::after(Duration::from_millis(100))).unwrap_err();
    assert!(matches!(error, RpcError::TimedOut { .. }), "{error}");
}
