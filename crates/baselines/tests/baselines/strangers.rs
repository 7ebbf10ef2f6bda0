//! Strangers at a node's port: whatever bytes they send, the node lives, and the messages of its peers arrive.
//! The node is in a child process, since ZeroMQ ends the process where something that a peer sent breaks it.

mod attacks;
mod zmtp;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use tensorwire_base::{Deadline, Incarnation, Rank};
use tensorwire_baselines::zmq::ZmqNode;
use tensorwire_baselines::{PeerIdentity, PeerToken};

use attacks::Session;

const LIFE: Incarnation = Incarnation(1);
const TOKEN: PeerToken = PeerToken([7; 32]);
/// A member of the job whom the node does not expect, far from those that it does.
const OTHER: Rank = Rank(0xA5A5_A5A5);
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

fn identity(rank: Rank) -> PeerIdentity {
    PeerIdentity { rank, life: LIFE, token: TOKEN }
}

fn node(rank: u32) -> ZmqNode {
    ZmqNode::bind(identity(Rank(rank)), "tcp://127.0.0.1:*").unwrap()
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(120))
}

fn address(node: &ZmqNode) -> &str {
    node.endpoint().strip_prefix("tcp://").unwrap()
}

#[test]
#[ignore = "started by the tests of this file"]
fn child() {
    let Ok(role) = std::env::var(CHILD) else { return };
    match role.split_once(' ').unwrap() {
        ("echoes", peer) => echoes(peer),
        ("closes", _) => closes(),
        (role, _) => panic!("no role is called {role}"),
    }
}

/// Sends back what rank 0 sends, until it says so.
#[allow(clippy::print_stdout)] // its parent reads it
fn echoes(peer: &str) {
    let mut node = node(1);
    println!("\nENDPOINT {}", address(&node));
    node.connect(Rank(0), LIFE, peer).unwrap();
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
    let sessions = attacks::all(SEED);
    for round in 0..60 {
        let node = node(1);
        let at = address(&node).to_string();
        let strangers: Vec<TcpStream> = attacks::beginnings()
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
    fn start(role: &str, peer: &str) -> Peer {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "strangers::child", "--ignored", "--nocapture"])
            .env(CHILD, format!("{role} {peer}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let told = BufReader::new(child.stdout.take().unwrap());
        Peer { child, told }
    }

    /// Where it listens.
    fn endpoint(&mut self) -> String {
        let mut lines = self.told.by_ref().lines().map_while(Result::ok);
        let told = lines.find_map(|line| line.strip_prefix("ENDPOINT ").map(str::to_string));
        told.expect("the child tells where it is")
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
    let sessions = attacks::all(SEED);
    let mut zero = node(0);
    let mut peer = Peer::start("echoes", zero.endpoint());
    let at = peer.endpoint();
    zero.connect(Rank(1), LIFE, &format!("tcp://{at}")).unwrap();
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
    let mut peer = Peer::start("closes", "");
    let status = peer.child.wait().unwrap();
    assert!(status.success(), "{status}");
}

/// What the attacks vary is what a member of the job says.
#[test]
fn the_session_that_the_attacks_vary_is_a_members() {
    let mut node = node(1);
    node.connect(OTHER, LIFE, "tcp://127.0.0.1:1").unwrap();
    let _stranger = play(&attacks::legitimate(), address(&node), Duration::from_secs(60)).unwrap();
    let message = node.receive(soon()).unwrap().unwrap();
    assert_eq!((message.from(), message.meta()), (OTHER, &b"meta"[..]));
    assert!(message.blocks().eq([&[9; 40][..]]));
}
