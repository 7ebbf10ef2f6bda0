//! Strangers at a node's port: whatever bytes they send, the node lives, and the messages of its peers arrive.
//! The node is in a child process, since ZeroMQ ends the process where something that a peer sent breaks it.

mod attacks;
mod zmtp;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use tensorwire_base::{Deadline, Rank};
use tensorwire_baselines::PeerIdentity;
use tensorwire_baselines::zmq::ZmqNode;

use super::carriers::credentials;
use super::tap::Tap;
use attacks::Session;

/// A member of the job whom the node does not expect, far from those that it does.
const OTHER: u32 = 0xA5A5_A5A5;
/// Tells a child what to do: its role, and where its peer is.
const CHILD: &str = "TENSORWIRE_STRANGERS_CHILD";
const SEED: u64 = 20;
const ATTACKERS: usize = 4;
/// A node that has something to say to a stranger says it within this.
const ANSWER_WITHIN: Duration = Duration::from_millis(5);
/// Connections that an attacker leaves open behind it.
const LEFT_OPEN: usize = 16;
/// Messages under way at a time.
const WINDOW: u32 = 8;

fn node(rank: u32) -> ZmqNode {
    ZmqNode::bind(credentials(rank), "tcp://127.0.0.1:*").unwrap()
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(120))
}

fn address(node: &ZmqNode) -> &str {
    node.endpoint().strip_prefix("tcp://").unwrap()
}

/// The end of a peer that is told as words.
fn peer(rank: u32, nonce: &str) -> PeerIdentity {
    let (rank, life) = (Rank(rank), credentials(rank).life);
    PeerIdentity { rank, life, nonce: nonce.parse().unwrap() }
}

/// What `tap` heard of a member that sends one message: greeting, password, who it is, and that message.
fn session(tap: &Tap) -> Session {
    tap.until(|heard| {
        let (greeting, rest) = heard.split_at_checked(64)?;
        let behind_hello = zmtp::behind_frame(rest)?;
        let message = zmtp::behind_frame(behind_hello)?;
        let mut left = message;
        while left.first()? & zmtp::MORE != 0 {
            left = zmtp::behind_frame(left)?;
        }
        zmtp::behind_frame(left)?;
        let (hello, initiate) = (&rest[..rest.len() - behind_hello.len()], behind_hello);
        let initiate = &initiate[..initiate.len() - message.len()];
        Some([greeting, hello, initiate, message].map(<[u8]>::to_vec).to_vec())
    })
}

/// What a member says to have one message taken by `receiver`, who does not expect it; and which end it is.
fn overhear(sender: u32, receiver: PeerIdentity, at: &str) -> (PeerIdentity, Session) {
    let (mut sender, tap) = (node(sender), Tap::before(at.parse().unwrap()));
    sender.connect(receiver, &format!("tcp://{}", tap.at())).unwrap();
    sender.send(receiver.rank, b"meta", &[&[9; 40]]).unwrap();
    (sender.identity(), session(&tap))
}

#[test]
#[ignore = "started by the tests of this file"]
fn child() {
    let Ok(role) = std::env::var(CHILD) else { return };
    match role.split(' ').collect::<Vec<&str>>()[..] {
        ["echoes", at, nonce] => echoes(at, nonce),
        ["closes"] => closes(),
        _ => panic!("there is no role {role}"),
    }
}

/// Sends back what rank 0 sends, until it says so.
#[allow(clippy::print_stdout)] // its parent reads it
fn echoes(at: &str, nonce: &str) {
    let mut node = node(1);
    println!("\nENDPOINT {} {}", address(&node), node.identity().nonce);
    node.connect(peer(0, nonce), at).unwrap();
    loop {
        let message = node.receive(soon()).unwrap().unwrap();
        let blocks: Vec<&[u8]> = message.blocks().collect();
        node.send(message.from(), message.meta(), &blocks).unwrap();
        if message.meta() == b"last" {
            return node.close(soon()).unwrap();
        }
    }
}

/// Leaves again and again while strangers are in the middle of a word, and others come.
fn closes() {
    for round in 0..60 {
        let node = node(1);
        let at = address(&node).to_string();
        let (_, whole) = overhear(OTHER, node.identity(), &at);
        let sessions = attacks::all(SEED, &whole);
        let strangers: Vec<TcpStream> = attacks::beginnings(&whole)
            .iter()
            .map(|begun| play(begun, &at, ANSWER_WITHIN).unwrap())
            .collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for stranger in strangers.iter().cycle().take(strangers.len() * 40) {
                    // it may be gone
                    let _ = (&mut &*stranger).write_all(&[b'x'; 97]);
                }
            });
            scope.spawn(|| {
                let later = sessions.iter().cycle().skip(round as usize * 50);
                later.map_while(|session| play(session, &at, ANSWER_WITHIN).ok()).count()
            });
            std::thread::sleep(Duration::from_millis(round % 4));
            node.close(Deadline::after(Duration::ZERO)).unwrap();
        });
    }
}

/// A child that is killed at the latest when the test ends.
struct Peer {
    child: Child,
    /// What it says; it cannot end well where nobody listens.
    told: BufReader<ChildStdout>,
}

impl Peer {
    fn start(role: &str) -> Peer {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "strangers::child", "--ignored", "--nocapture"])
            .env(CHILD, role)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let told = BufReader::new(child.stdout.take().unwrap());
        Peer { child, told }
    }

    /// Where it listens, and which end it is.
    fn endpoint(&mut self) -> (String, PeerIdentity) {
        let mut lines = self.told.by_ref().lines().map_while(Result::ok);
        let told = lines.find_map(|line| line.strip_prefix("ENDPOINT ").map(str::to_string));
        let told = told.expect("the child tells where it is");
        let (at, nonce) = told.split_once(' ').unwrap();
        (at.to_string(), peer(1, nonce))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says each part of a session once the one before was answered, or was not within `patience`; fails where nobody
/// listens.
fn play(session: &Session, at: &str, patience: Duration) -> std::io::Result<TcpStream> {
    let mut stranger = TcpStream::connect(at)?;
    stranger.set_nodelay(true)?;
    stranger.set_read_timeout(Some(patience))?;
    let answers = attacks::ANSWERS.into_iter().chain(std::iter::repeat(0));
    for (part, mut expected) in session.iter().zip(answers) {
        // a node that has heard enough hangs up, and does not answer what it does not understand
        if stranger.write_all(part).is_err() {
            break;
        }
        while expected > 0 {
            match stranger.read(&mut [0; 64][..expected]) {
                Ok(0) | Err(_) => break,
                Ok(bytes) => expected -= bytes,
            }
        }
    }
    Ok(stranger)
}

/// Plays every `ATTACKERS`th session; half of the connections are cut, the others left open for a while.
fn attack(sessions: &[Session], first: usize, at: &str) {
    let mut open = std::collections::VecDeque::new();
    for (number, session) in sessions.iter().skip(first).step_by(ATTACKERS).enumerate() {
        let Ok(stranger) = play(session, at, ANSWER_WITHIN) else { return };
        if number % 2 == 0 {
            let _ = stranger.shutdown(Shutdown::Write);
        } else {
            open.push_back(stranger);
        }
        if open.len() > LEFT_OPEN {
            open.pop_front();
        }
    }
}

#[test]
fn whatever_strangers_say_every_message_of_a_peer_arrives() {
    let mut zero = node(0);
    let role = format!("echoes {} {}", zero.endpoint(), zero.identity().nonce);
    let mut peer = Peer::start(&role);
    let (at, one) = peer.endpoint();
    let (_, whole) = overhear(OTHER, one, &at);
    let sessions = attacks::all(SEED, &whole);
    zero.connect(one, &format!("tcp://{at}")).unwrap();
    let block: Vec<u8> = (0..200_000_u32).map(|at| (at * 31 + at / 4096) as u8).collect();
    let block_of = |number: u32| &block[..(number as usize * 7919) % block.len()];
    let (mut sent, mut taken) = (0_u32, 0_u32);
    std::thread::scope(|scope| {
        let attackers: Vec<_> = (0..ATTACKERS)
            .map(|first| {
                scope.spawn({
                    let (sessions, at) = (&sessions, &at);
                    move || attack(sessions, first, at)
                })
            })
            .collect();
        loop {
            let is_over = attackers.iter().all(|attacker| attacker.is_finished());
            if is_over && sent == taken {
                break;
            }
            while !is_over && sent - taken < WINDOW {
                zero.send(Rank(1), &sent.to_le_bytes(), &[block_of(sent)]).unwrap();
                sent += 1;
            }
            let message = zero.receive(Deadline::after(Duration::from_secs(20))).unwrap();
            let message = message.expect("the node sends back what it gets");
            assert_eq!(message.meta(), taken.to_le_bytes());
            assert!(message.blocks().eq([block_of(taken)]), "message {taken}");
            taken += 1;
        }
    });
    zero.send(Rank(1), b"last", &[]).unwrap();
    assert_eq!(zero.receive(soon()).unwrap().unwrap().meta(), b"last");
    let status = peer.child.wait().unwrap();
    assert!(status.success(), "{status}");
    assert!(taken > 100, "{taken} messages beside {} sessions", sessions.len());
}

#[test]
fn a_node_may_leave_while_strangers_are_in_the_middle_of_a_word() {
    let mut peer = Peer::start("closes");
    let status = peer.child.wait().unwrap();
    assert!(status.success(), "{status}");
}

/// Says all that was heard on a connection of its own, and keeps it open.
fn say_again(session: &Session, node: &ZmqNode) -> TcpStream {
    play(session, address(node), Duration::from_secs(60)).unwrap()
}

/// Until so many messages were refused; none was taken.
fn refuses(node: &mut ZmqNode, count: u64) {
    while node.stats().refused < count {
        assert!(node.wait(soon()).unwrap(), "{:?}", node.stats());
        assert!(node.try_receive().unwrap().is_none());
    }
    assert_eq!(node.stats().refused, count);
}

/// What the attacks vary is what a member of the job says.
#[test]
fn the_session_that_the_attacks_vary_is_a_members_and_is_taken_once() {
    let mut node = node(1);
    let (other, whole) = overhear(OTHER, node.identity(), address(&node));
    refuses(&mut node, 1);
    node.connect(other, "tcp://127.0.0.1:1").unwrap();
    // one bit of its head changed on the way, and its block one byte shorter
    let head = whole[3].len() - 41;
    for (number, at) in [head, head + 1, head + 20, head + 21, head + 40].into_iter().enumerate() {
        let mut changed = whole.clone();
        changed[3][at] ^= 1;
        let _stranger = say_again(&changed, &node);
        refuses(&mut node, number as u64 + 2);
    }
    let mut shorter = whole.clone();
    shorter[3].remove(2);
    shorter[3][1] -= 1;
    let _stranger = say_again(&shorter, &node);
    refuses(&mut node, 7);
    let _stranger = say_again(&whole, &node);
    let message = node.receive(soon()).unwrap().unwrap();
    assert_eq!((message.from(), message.meta()), (Rank(OTHER), &b"meta"[..]));
    assert!(message.blocks().eq([&[9; 40][..]]));
    let _stranger = say_again(&whole, &node);
    refuses(&mut node, 8);
}

#[test]
fn what_was_heard_and_is_said_again_arrives_once() {
    let (mut zero, mut one) = (node(0), node(1));
    let tap = Tap::before(address(&one).parse().unwrap());
    zero.connect(one.identity(), &format!("tcp://{}", tap.at())).unwrap();
    one.connect(zero.identity(), zero.endpoint()).unwrap();
    for number in 0..20_u32 {
        zero.send(Rank(1), &number.to_le_bytes(), &[&[number as u8; 1000]]).unwrap();
        assert_eq!(one.receive(soon()).unwrap().unwrap().meta(), number.to_le_bytes());
    }
    let session = session(&tap);
    let _strangers = [1, 2, 3].map(|times| {
        let stranger = say_again(&session, &one);
        refuses(&mut one, 20 * times);
        stranger
    });
    // the peer was not cut off
    zero.send(Rank(1), b"next", &[]).unwrap();
    assert_eq!(one.receive(soon()).unwrap().unwrap().meta(), b"next");
    assert_eq!(one.stats().turned_away, 0);
}

/// The password crosses in clear.
#[test]
fn who_heard_the_password_is_no_peer() {
    let (mut zero, mut one) = (node(0), node(1));
    zero.connect(one.identity(), one.endpoint()).unwrap();
    let (_, whole) = overhear(0, one.identity(), address(&one));
    refuses(&mut one, 1);
    one.connect(zero.identity(), zero.endpoint()).unwrap();
    let context = zmq::Context::new();
    let stranger = context.socket(zmq::PUSH).unwrap();
    stranger.set_linger(0).unwrap();
    stranger.set_plain_username(Some("anybody")).unwrap();
    let password = &whole[1][whole[1].len() - 64..];
    stranger.set_plain_password(Some(std::str::from_utf8(password).unwrap())).unwrap();
    stranger.connect(one.endpoint()).unwrap();
    // behind a block of 40 bytes, and two headers of frames
    let heard = &whole[3][2 + 40 + 2..];
    let long = vec![7; 1 << 20];
    let noise: [&[&[u8]]; 7] = [
        &[b""],
        &[b"noise"],
        &[&long],
        &[&long, b"", &long],
        // a head of the same life that is opened elsewhere, with its own block, another, and none
        &[&[9; 40], heard],
        &[&[8; 40], heard],
        &[heard],
    ];
    for (number, frames) in noise.into_iter().enumerate() {
        stranger.send_multipart(frames, 0).unwrap();
        refuses(&mut one, number as u64 + 2);
        zero.send(Rank(1), b"ours", &[&[number as u8]]).unwrap();
        let message = one.receive(soon()).unwrap().unwrap();
        assert_eq!((message.from(), message.meta()), (Rank(0), &b"ours"[..]));
        assert!(message.blocks().eq([&[number as u8][..]]));
    }
}
