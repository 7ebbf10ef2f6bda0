//! ZeroMQ between threads of one process, over real sockets: what is sent arrives whole and in order,
//! strangers are not heard, and nothing waits for ever.

use std::time::{Duration, Instant};

use tensorwire_base::{Deadline, Incarnation, Rank};
use tensorwire_baselines::zmq::{ZmqError, ZmqMessage, ZmqNode};
use tensorwire_baselines::{PeerIdentity, PeerToken};

const LIFE: Incarnation = Incarnation(1);
const TOKEN: PeerToken = PeerToken([7; 32]);

fn identity(rank: u32) -> PeerIdentity {
    PeerIdentity { rank: Rank(rank), life: LIFE, token: TOKEN }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn shortly() -> Deadline {
    Deadline::after(Duration::from_millis(200))
}

fn node(rank: u32) -> ZmqNode {
    ZmqNode::bind(identity(rank), "tcp://127.0.0.1:*").unwrap()
}

/// Ranks 0 and 1, connected.
fn pair(at: [&str; 2]) -> [ZmqNode; 2] {
    let mut zero = ZmqNode::bind(identity(0), at[0]).unwrap();
    let mut one = ZmqNode::bind(identity(1), at[1]).unwrap();
    zero.connect(Rank(1), LIFE, one.endpoint()).unwrap();
    one.connect(Rank(0), LIFE, zero.endpoint()).unwrap();
    [zero, one]
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + at / 4096) as u8).collect()
}

fn check(message: &ZmqMessage, from: u32, meta: &[u8], blocks: &[&[u8]]) {
    assert_eq!((message.from(), message.meta()), (Rank(from), meta));
    let found: Vec<&[u8]> = message.blocks().collect();
    assert!(found == blocks, "{} blocks", found.len());
}

/// One end sends, the other answers with the same.
fn messages_come_back(at: [&str; 2]) {
    let [mut zero, mut one] = pair(at);
    let echo = std::thread::spawn(move || {
        loop {
            let message = one.receive(soon()).unwrap().unwrap();
            let blocks: Vec<&[u8]> = message.blocks().collect();
            one.send(message.from(), message.meta(), &blocks).unwrap();
            if message.meta() == b"last" {
                one.close(soon()).unwrap();
                return;
            }
        }
    });
    let large = pattern((32 << 20) + 1);
    let blocks: [&[&[u8]]; 6] =
        [&[], &[b""], &[b"one"], &[b"", b"two", b""], &[&large[..100_000]; 3], &[&large, b"x"]];
    for blocks in blocks {
        zero.send(Rank(1), b"meta", blocks).unwrap();
        check(&zero.receive(soon()).unwrap().unwrap(), 1, b"meta", blocks);
    }
    zero.send(Rank(1), b"last", &[]).unwrap();
    check(&zero.receive(soon()).unwrap().unwrap(), 1, b"last", &[]);
    echo.join().unwrap();
    let stats = zero.stats();
    assert_eq!((stats.messages, stats.frames, stats.refused), (7, 7 + 10, 0));
    assert_eq!(stats.bytes_copied, 7 * 4 + 3 + 3 + 300_000 + (32 << 20) + 1 + 1);
}

#[test]
fn messages_of_every_form_come_back_over_tcp() {
    messages_come_back(["tcp://127.0.0.1:*"; 2]);
}

#[test]
fn messages_of_every_form_come_back_over_local_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let at = ["0", "1"].map(|name| format!("ipc://{}", folder.path().join(name).display()));
    messages_come_back([&at[0], &at[1]]);
}

#[test]
fn messages_of_one_peer_keep_their_order_and_all_arrive() {
    let [mut zero, mut one] = pair(["tcp://127.0.0.1:*"; 2]);
    // more than ZeroMQ's own limit of 1000, before anybody takes one
    for number in 0..5000_u32 {
        zero.send(Rank(1), &number.to_le_bytes(), &[&pattern(number as usize % 50)]).unwrap();
    }
    for number in 0..5000_u32 {
        let message = one.receive(soon()).unwrap().unwrap();
        check(&message, 0, &number.to_le_bytes(), &[&pattern(number as usize % 50)]);
    }
}

#[test]
fn what_was_sent_is_handed_over_before_a_node_closes() {
    let [mut zero, mut one] = pair(["tcp://127.0.0.1:*"; 2]);
    let block = pattern(8 << 20);
    let closing = std::thread::spawn(move || {
        zero.send(Rank(1), b"bye", &[&pattern(8 << 20)]).unwrap();
        zero.close(soon()).unwrap();
    });
    check(&one.receive(soon()).unwrap().unwrap(), 0, b"bye", &[&block]);
    closing.join().unwrap();
}

#[test]
fn who_is_not_expected_is_not_heard() {
    let [mut zero, mut one] = pair(["tcp://127.0.0.1:*"; 2]);
    let others = [
        PeerIdentity { rank: Rank(2), ..identity(0) },
        PeerIdentity { life: Incarnation(2), ..identity(0) },
    ];
    for (index, identity) in others.into_iter().enumerate() {
        let mut other = ZmqNode::bind(identity, "tcp://127.0.0.1:*").unwrap();
        other.connect(Rank(1), LIFE, one.endpoint()).unwrap();
        other.send(Rank(1), b"open up", &[b"payload"]).unwrap();
        other.close(soon()).unwrap();
        while one.stats().refused == index as u64 {
            assert!(one.wait(soon()).unwrap());
            assert!(one.try_receive().unwrap().is_none());
        }
    }
    zero.send(Rank(1), b"it is me", &[]).unwrap();
    check(&one.receive(soon()).unwrap().unwrap(), 0, b"it is me", &[]);
    assert_eq!((one.stats().refused, one.stats().turned_away), (2, 0));
}

#[test]
fn nothing_of_a_stranger_is_kept() {
    let mut one = node(1);
    one.connect(Rank(0), LIFE, "tcp://127.0.0.1:1").unwrap();
    let identity = PeerIdentity { token: PeerToken([8; 32]), ..identity(0) };
    let mut stranger = ZmqNode::bind(identity, "tcp://127.0.0.1:*").unwrap();
    stranger.connect(Rank(1), LIFE, one.endpoint()).unwrap();
    // it fails where it was turned away before
    let _ = stranger.send(Rank(1), b"open up", &[&pattern(1 << 20)]);
    let patience = soon();
    while one.stats().turned_away == 0 {
        assert!(!patience.passed());
        assert!(!one.wait(Deadline::after(Duration::from_millis(1))).unwrap());
    }
    assert!(!one.wait(shortly()).unwrap());
    assert_eq!(one.stats().refused, 0);
}

#[test]
fn who_has_no_password_is_not_heard() {
    let node = node(0);
    let context = zmq::Context::new();
    let stranger = context.socket(zmq::DEALER).unwrap();
    stranger.set_linger(0).unwrap();
    stranger.connect(node.endpoint()).unwrap();
    stranger.send("hello", 0).unwrap();
    assert!(!node.wait(shortly()).unwrap());
}

#[test]
fn a_new_life_takes_the_place_of_the_old_one() {
    let [zero, mut one] = pair(["tcp://127.0.0.1:*"; 2]);
    drop(zero);
    // goes nowhere
    one.send(Rank(0), b"are you there", &[]).unwrap();
    let reborn = Incarnation(2);
    let identity = PeerIdentity { life: reborn, ..identity(0) };
    let mut zero = ZmqNode::bind(identity, "tcp://127.0.0.1:*").unwrap();
    zero.connect(Rank(1), LIFE, one.endpoint()).unwrap();
    one.connect(Rank(0), reborn, zero.endpoint()).unwrap();
    one.send(Rank(0), b"welcome back", &[]).unwrap();
    check(&zero.receive(soon()).unwrap().unwrap(), 1, b"welcome back", &[]);
    zero.send(Rank(1), b"thanks", &[]).unwrap();
    check(&one.receive(soon()).unwrap().unwrap(), 0, b"thanks", &[]);
}

#[test]
fn a_peer_that_is_gone_holds_nobody_up() {
    let [mut zero, one] = pair(["tcp://127.0.0.1:*"; 2]);
    drop(one);
    let begun = Instant::now();
    for _ in 0..100 {
        zero.send(Rank(1), b"hello", &[&pattern(1 << 20)]).unwrap();
    }
    assert!(zero.receive(shortly()).unwrap().is_none());
    zero.disconnect(Rank(1));
    let error = zero.send(Rank(1), b"hello", &[]).unwrap_err();
    assert!(matches!(error, ZmqError::NoPeer { rank: Rank(1) }), "{error}");
    zero.close(shortly()).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[test]
fn a_close_with_nobody_there_ends_at_its_deadline() {
    let [mut zero, one] = pair(["tcp://127.0.0.1:*"; 2]);
    drop(one);
    zero.send(Rank(1), b"hello", &[]).unwrap();
    let begun = Instant::now();
    zero.close(shortly()).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[test]
fn a_wait_ends_at_its_deadline_and_not_before() {
    let node = node(0);
    let begun = Instant::now();
    assert!(!node.wait(shortly()).unwrap());
    assert!(begun.elapsed() >= Duration::from_millis(199), "{:?}", begun.elapsed());
}

#[test]
fn what_cannot_be_bound_or_connected_is_said() {
    let mut taken = node(0);
    let error = ZmqNode::bind(identity(1), taken.endpoint()).unwrap_err();
    assert!(matches!(error, ZmqError::Listen { .. }), "{error}");
    assert!(error.to_string().contains(taken.endpoint()), "{error}");
    for endpoint in ["", "127.0.0.1:1", "tcp://127.0.0.1", "transport-pigeon://roof"] {
        let error = taken.connect(Rank(1), LIFE, endpoint).unwrap_err();
        assert!(matches!(error, ZmqError::Connect { .. }), "{endpoint}: {error}");
    }
}
