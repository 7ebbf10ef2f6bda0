//! Strangers at a port of gRPC: whatever bytes they send, the messages of peers arrive, and nothing of theirs does.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use tensorwire_base::{Deadline, Rank};
use tensorwire_baselines::grpc::{GrpcStyle, GrpcTransport};
use tensorwire_baselines::{Bytes, MessageTransport};

use super::carriers::{End, Kept, credentials, end, grpc, grpc_pair};
use super::tap::Tap;

const MUTATIONS: usize = 2000;
const ATTACKERS: usize = 4;
/// Messages under way at a time.
const WINDOW: u32 = 8;

/// Kinds of HTTP/2's frames (RFC 9113).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// `tensorwire-head-bin` as HPACK codes it (RFC 7541, appendix B).
const CODED_NAME: &[u8] = b"IjA\xec\xf0k\n\xb4\xe5\x1c\x8bFj\xbf";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes(); // fits: frames here are small
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header field as HPACK has it without any table and any coding.
fn field(name: &str, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0];
    for part in [name.as_bytes(), value] {
        // fits: shorter than what takes a second byte
        bytes.push(part.len() as u8);
        bytes.extend_from_slice(part);
    }
    bytes
}

fn base64(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = bytes.chunks(3).flat_map(|part| {
        let word = part.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        let word = word << (8 * (3 - part.len()));
        (0..=part.len()).map(move |at| DIGITS[(word >> (18 - 6 * at)) as usize & 63])
    });
    digits.collect()
}

/// What a call says first, as a member's does, but for its seal.
fn call() -> Vec<u8> {
    let (length, rank, life) = (40u64.to_le_bytes(), 0u32.to_le_bytes(), 1u64.to_le_bytes());
    let head = base64(&[&length[..], &[2], &rank, &life, &[0; 8], b"z", &[6; 16]].concat());
    [
        field(":method", b"POST"),
        field(":scheme", b"http"),
        field(":path", b"/tensorwire.Exchange/Push"),
        field(":authority", b"here"),
        field("te", b"trailers"),
        field("content-type", b"application/grpc"),
        field("tensorwire-head-bin", &head),
    ]
    .concat()
}

/// A message with 40 bytes of content, behind its length.
fn message() -> Vec<u8> {
    let fields = [&b"\x0a\x28"[..], &[9; 40]].concat();
    [&[0][..], &(fields.len() as u32).to_be_bytes(), &fields].concat()
}

/// All that it says to have one message taken, in frames.
fn session() -> Vec<Vec<u8>> {
    vec![
        PREFACE.to_vec(),
        frame(SETTINGS, 0, 0, &[]),
        frame(HEADERS, END_HEADERS, 1, &call()),
        frame(DATA, END_STREAM, 1, &message()),
    ]
}

fn below(random: &mut ChaCha8Rng, end: usize) -> usize {
    random.next_u32() as usize % end
}

fn noise(random: &mut ChaCha8Rng, bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    random.fill_bytes(&mut noise);
    noise
}

/// What breaks servers of HTTP/2, one after the other.
fn known(random: &mut ChaCha8Rng) -> Vec<Vec<u8>> {
    let hello = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    let behind = |frames: Vec<u8>| [&hello[..], &frames].concat();
    let open = |stream| frame(HEADERS, END_HEADERS, stream, &call());
    let long = |kind| [&[0xff, 0xff, 0xff, kind, 0, 0, 0, 0, 1][..], &[0; 500]].concat();
    let mut all = vec![
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n".to_vec(),
        b"POST /tensorwire.Exchange/Push HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        // many calls that are taken back at once
        behind(
            (0..2000)
                .flat_map(|n| [open(2 * n + 1), frame(RESET, 0, 2 * n + 1, &[0, 0, 0, 8])].concat())
                .collect(),
        ),
        // a head that never ends
        behind(
            [
                frame(HEADERS, 0, 1, &call()),
                (0..2000).flat_map(|_| frame(CONTINUATION, 0, 1, &field("a", b"b"))).collect(),
            ]
            .concat(),
        ),
        // settings, pings and goodbyes without end
        behind((0..5000).flat_map(|_| frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 1])).collect()),
        behind((0..5000).flat_map(|_| frame(PING, 0, 0, &[0; 8])).collect()),
        behind((0..200).flat_map(|_| frame(GO_AWAY, 0, 0, &[0; 8])).collect()),
        behind(
            [0x7f, 0xff]
                .iter()
                .flat_map(|top| frame(WINDOW_UPDATE, 0, 0, &[*top, 0xff, 0xff, 0xff]))
                .collect(),
        ),
        behind(frame(SETTINGS, 0, 0, &[0, 4, 0xff, 0xff, 0xff, 0xff])),
        // fields of a table that is empty
        behind(frame(HEADERS, END_HEADERS, 1, &[0xff; 300])),
        // a message of nearly 4 GiB, of which nothing comes
        behind([open(1), frame(DATA, 0, 1, &[0, 0xff, 0xff, 0xff, 0xff])].concat()),
        behind([open(1), frame(DATA, 0, 1, &[1, 0, 0, 0, 5])].concat()),
        // calls that get no end
        behind((0..500).flat_map(|n| open(2 * n + 1)).collect()),
    ];
    all.extend((0..=255).map(|kind| behind(long(kind))));
    let lengths = (0..=40).chain([255, 256, 1000, 16_384, 65_536, 1 << 20]);
    for length in lengths {
        all.push(noise(random, length));
        all.push(behind(noise(random, length)));
    }
    all
}

/// A session without a seal, with some of its bytes changed, and the lengths of frames as they were or not.
fn mutated(random: &mut ChaCha8Rng) -> Vec<u8> {
    let mut frames = session();
    for _ in 0..1 + below(random, 3) {
        let which = below(random, frames.len());
        match below(random, 4) {
            0 => frames.rotate_right(which),
            1 => frames.push(frames[which].clone()),
            2 => drop(frames.remove(which % (frames.len() - 1) + 1)),
            _ => frames.insert(which, noise(random, 20)),
        }
        if frames.len() < 2 {
            break;
        }
    }
    let mut bytes = frames.concat();
    for _ in 0..below(random, 4) {
        let at = below(random, bytes.len());
        bytes[at] = [0, 0x7f, 0xff, random.next_u32() as u8][below(random, 4)];
    }
    bytes.truncate(bytes.len() - below(random, 3) * below(random, bytes.len()) / 4);
    bytes
}

/// Says it, and hangs up in one of several ways.
fn say(at: SocketAddr, bytes: &[u8], number: usize) -> std::io::Result<TcpStream> {
    let mut stranger = TcpStream::connect(at)?;
    stranger.set_write_timeout(Some(Duration::from_secs(5)))?;
    // it may be hung up on before all is said
    let _ = stranger.write_all(bytes);
    if number.is_multiple_of(2) {
        let _ = stranger.shutdown(Shutdown::Write);
    }
    Ok(stranger)
}

fn whatever_strangers_say(style: GrpcStyle) {
    let mut random = ChaCha8Rng::seed_from_u64(21);
    let mut sessions = known(&mut random);
    sessions.extend((0..MUTATIONS).map(|_| mutated(&mut random)));
    let ([mut zero, mut one], at) = grpc_pair(style);
    let is_over = AtomicBool::new(false);
    let (mut sent, mut taken) = (0u32, 0u32);
    std::thread::scope(|scope| {
        let attackers: Vec<_> = (0..ATTACKERS)
            .map(|first| {
                let sessions = &sessions;
                scope.spawn(move || {
                    let mut open = std::collections::VecDeque::new();
                    for (number, session) in
                        sessions.iter().enumerate().skip(first).step_by(ATTACKERS)
                    {
                        open.push_back(say(at, session, number / ATTACKERS).unwrap());
                        if open.len() > 16 {
                            open.pop_front();
                        }
                    }
                })
            })
            .collect();
        while !is_over.load(Ordering::Relaxed) || taken < sent {
            is_over.store(attackers.iter().all(|one| one.is_finished()), Ordering::Relaxed);
            while !is_over.load(Ordering::Relaxed) && sent - taken < WINDOW {
                let content = vec![sent as u8; (sent as usize * 7919) % 200_000];
                let head = [b"ours".to_vec(), sent.to_le_bytes().to_vec()].concat();
                zero.transport.send(Rank(1), &head, Bytes::from(content)).unwrap();
                sent += 1;
            }
            if taken < sent {
                let head = [b"ours".to_vec(), taken.to_le_bytes().to_vec()].concat();
                let (from, content) = one.receive(&head);
                assert_eq!(from, Rank(0));
                assert!(content.len() == (taken as usize * 7919) % 200_000);
                assert!(content.iter().all(|byte| *byte == taken as u8));
                taken += 1;
            }
        }
    });
    assert!(taken > 100, "{taken} messages beside {} strangers", sessions.len());
    one.came_nothing_else();
}

#[test]
fn whatever_strangers_say_to_the_codec_every_message_of_a_peer_arrives() {
    whatever_strangers_say(GrpcStyle::Codec);
}

#[test]
fn whatever_strangers_say_to_bare_calls_every_message_of_a_peer_arrives() {
    whatever_strangers_say(GrpcStyle::Bare);
}

/// An end that expects rank 0, and another where rank 0 is, which calls it by way of a tap.
fn tapped(style: GrpcStyle) -> ([(GrpcTransport, Arc<Kept>); 2], Tap) {
    let (mut zero, mut one) = (grpc(credentials(0), style), grpc(credentials(1), style));
    let tap = Tap::before(one.0.address());
    zero.0.expect(&[one.0.identity()]);
    one.0.expect(&[]);
    zero.0.connect(Rank(1), tap.at(), Deadline::after(Duration::from_secs(60))).unwrap();
    ([zero, one], tap)
}

/// Waits until `found`.
fn until<T>(found: impl Fn() -> Option<T>) -> T {
    let deadline = Deadline::after(Duration::from_secs(60));
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(!deadline.passed(), "it did not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Says it on a connection that stays open, until so many messages were refused in all.
fn say_in_vain(node: &GrpcTransport, bytes: &[u8], refused: u64) {
    let _stranger = say(node.address(), bytes, 1).unwrap();
    until(|| (node.refused() >= refused).then_some(()));
    assert_eq!(node.refused(), refused);
}

/// What the attacks vary is what a member of the job says; without its seal it is answered, and nothing comes of it.
#[test]
fn the_session_that_the_attacks_vary_is_a_members_and_is_taken_once() {
    for style in [GrpcStyle::Codec, GrpcStyle::Bare] {
        let (mut zero, (mut node, sink)) =
            (grpc(credentials(0), style), grpc(credentials(1), style));
        // who answers might refuse the call before all of it is said
        let tap = Tap::silent();
        zero.0.expect(&[node.identity()]);
        zero.0.connect(Rank(1), tap.at(), Deadline::after(Duration::from_secs(60))).unwrap();
        let content = vec![9; 40];
        zero.0.send(Rank(1), b"z", Bytes::from(content.clone())).unwrap();
        let is_said = |heard: &[u8]| heard.windows(40).any(|said| said == content);
        let heard = tap.until(|heard| is_said(heard).then(|| heard.to_vec()));
        node.expect(&[zero.0.identity()]);
        say_in_vain(&node, &session().concat(), 1);
        let _member = say(node.address(), &heard, 1).unwrap();
        assert_eq!(until(|| sink.take(b"z")), (Rank(0), content.clone()));
        say_in_vain(&node, &heard, 2);
        assert_eq!(sink.took(), 0);
    }
}

#[test]
fn what_was_heard_and_is_said_again_arrives_once() {
    for style in [GrpcStyle::Codec, GrpcStyle::Bare] {
        let ([zero, (mut node, sink)], tap) = tapped(style);
        node.expect(&[zero.0.identity()]);
        let mut zero = end(zero.0, zero.1);
        let mut took = 0;
        let mut arrives = |zero: &mut End, number: u8| {
            // all of them are less than a connection may say before it is answered
            zero.transport.send(Rank(1), &[b'h', number], Bytes::from(vec![number; 500])).unwrap();
            zero.until(|_| (sink.took() > took).then_some(())).unwrap();
            took += 1;
        };
        (0..20).for_each(|number| arrives(&mut zero, number));
        let heard = tap.heard();
        for times in 1..=3 {
            say_in_vain(&node, &heard, 20 * times);
            assert_eq!(sink.took(), 20);
        }
        arrives(&mut zero, 20);
        assert_eq!(sink.took(), 21);
    }
}

/// Somebody on the way changes what a peer's call says first: the peer's end says so at once, and whose it was.
#[test]
fn a_call_that_is_changed_on_the_way_is_an_error_at_once() {
    for style in [GrpcStyle::Codec, GrpcStyle::Bare] {
        let ([mut zero, (mut node, sink)], _) = tapped(style);
        node.expect(&[zero.0.identity()]);
        let is_changed = Arc::<AtomicBool>::default();
        let changed = is_changed.clone();
        let changes = Tap::changing(node.address(), move |bytes| {
            let name = bytes.windows(CODED_NAME.len()).position(|some| some == CODED_NAME);
            if let Some(at) = name {
                bytes[at + CODED_NAME.len() + 20] ^= 1;
                changed.store(true, Ordering::Relaxed);
            }
        });
        zero.0.connect(Rank(1), changes.at(), Deadline::after(Duration::from_secs(60))).unwrap();
        let mut zero = end(zero.0, zero.1);
        zero.transport.send(Rank(1), b"head", Bytes::from(vec![1; 100])).unwrap();
        let error = zero.until(|_| None::<()>).unwrap_err();
        assert_eq!(error.peer, Some(Rank(1)), "{error}");
        assert!(is_changed.load(Ordering::Relaxed));
        assert_eq!(sink.took(), 0);
    }
}

/// A member may lie as well: its word for the length is no reason to make room.
#[test]
fn what_is_larger_than_any_tensor_of_the_job_is_refused() {
    for style in [GrpcStyle::Codec, GrpcStyle::Bare] {
        let ([mut zero, mut one], _) = grpc_pair(style);
        one.takes_at_most(1000);
        zero.transport.send(Rank(1), b"small", Bytes::from(vec![1; 1000])).unwrap();
        assert_eq!(one.receive(b"small").1.len(), 1000);
        zero.transport.send(Rank(1), b"large", Bytes::from(vec![1; 5000])).unwrap();
        let error = zero.until(|_| None::<()>).unwrap_err();
        assert_eq!(error.peer, Some(Rank(1)));
        one.came_nothing_else();
    }
}
