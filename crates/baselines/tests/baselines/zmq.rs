//! ZeroMQ between threads of one process, over real sockets: what is sent arrives whole and in order,
//! strangers are not heard, and nothing waits for ever.

use std::time::{Duration, Instant};

use tensorwire_base::{Deadline, Incarnation, Rank};
use tensorwire_baselines::PeerCredentials;
use tensorwire_baselines::zmq::{ZmqError, ZmqMessage, ZmqNode};
use tensorwire_fabric::Secret;

use super::carriers::credentials;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn shortly() -> Deadline {
    Deadline::after(Duration::from_millis(200))
}

fn node(rank: u32) -> ZmqNode {
    ZmqNode::bind(credentials(rank), "tcp://127.0.0.1:*").unwrap()
}

/// Ranks 0 and 1, connected.
fn pair(at: [&str; 2]) -> [ZmqNode; 2] {
    let mut zero = ZmqNode::bind(credentials(0), at[0]).unwrap();
    let mut one = ZmqNode::bind(credentials(1), at[1]).unwrap();
    zero.connect(one.identity(), one.endpoint()).unwrap();
    one.connect(zero.identity(), zero.endpoint()).unwrap();
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
        credentials(2),
        PeerCredentials { life: Incarnation(2), ..credentials(0) },
        // the life that is expected, opened once more
        credentials(0),
    ];
    for (index, credentials) in others.into_iter().enumerate() {
        let mut other = ZmqNode::bind(credentials, "tcp://127.0.0.1:*").unwrap();
        other.connect(one.identity(), one.endpoint()).unwrap();
        other.send(Rank(1), b"open up", &[b"payload"]).unwrap();
        other.close(soon()).unwrap();
        while one.stats().refused == index as u64 {
            assert!(one.wait(soon()).unwrap());
            assert!(one.try_receive().unwrap().is_none());
        }
    }
    zero.send(Rank(1), b"it is me", &[]).unwrap();
    check(&one.receive(soon()).unwrap().unwrap(), 0, b"it is me", &[]);
    assert_eq!((one.stats().refused, one.stats().turned_away), (3, 0));
}

#[test]
fn nothing_of_a_stranger_is_kept() {
    let mut one = node(1);
    let credentials = PeerCredentials { secret: Secret([8; 32]), ..credentials(0) };
    let mut stranger = ZmqNode::bind(credentials, "tcp://127.0.0.1:*").unwrap();
    one.connect(stranger.identity(), "tcp://127.0.0.1:1").unwrap();
    stranger.connect(one.identity(), one.endpoint()).unwrap();
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
    let stranger = context.socket(zmq::PUSH).unwrap();
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
    let credentials = PeerCredentials { life: reborn, ..credentials(0) };
    let mut zero = ZmqNode::bind(credentials, "tcp://127.0.0.1:*").unwrap();
    zero.connect(one.identity(), one.endpoint()).unwrap();
    one.connect(zero.identity(), zero.endpoint()).unwrap();
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
    let (mut taken, other) = (node(0), node(1));
    let error = ZmqNode::bind(credentials(1), taken.endpoint()).unwrap_err();
    assert!(matches!(error, ZmqError::Listen { .. }), "{error}");
    assert!(error.to_string().contains(taken.endpoint()), "{error}");
    for endpoint in ["", "127.0.0.1:1", "tcp://127.0.0.1", "transport-pigeon://roof"] {
        let error = taken.connect(other.identity(), endpoint).unwrap_err();
        assert!(matches!(error, ZmqError::Connect { .. }), "{endpoint}: {error}");
    }
}
