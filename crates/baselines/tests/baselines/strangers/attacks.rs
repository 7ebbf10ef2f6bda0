//! What strangers say: noise, every version's greeting with noise behind it, and a member's session with every kind
//! of fault in it. The same for one seed.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::zmtp::{
    COMMAND, MORE, SIGNATURE, claim, command, frame, greeting, properties, property, short,
};

/// What is said before each answer.
pub(super) type Session = Vec<Vec<u8>>;

/// Bytes that each part of a member's session is answered with: a greeting, WELCOME, READY.
pub(super) const ANSWERS: [usize; 3] = [64, 10, 28];
const MUTATIONS: usize = 2000;

/// Every session, in an order of no meaning. `whole` is what a member said.
pub(super) fn all(seed: u64, whole: &Session) -> Vec<Session> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut sessions = Vec::new();
    noise(&mut random, &mut sessions);
    old_versions(&mut random, &mut sessions);
    mechanisms(whole, &mut sessions);
    greetings_and_noise(&mut random, &mut sessions);
    handshakes(whole, &mut sessions);
    commands_and_lengths(whole, &mut sessions);
    cuts(whole, &mut sessions);
    sessions.extend((0..MUTATIONS).map(|_| mutated(whole, &mut random)));
    for last in (1..sessions.len()).rev() {
        sessions.swap(last, below(&mut random, last + 1));
    }
    sessions
}

/// How a connection may begin, in each version: what comes next is for the node to wait for.
pub(super) fn beginnings(whole: &Session) -> Vec<Session> {
    let ready = command(b"READY", &properties(b"PUSH", b""));
    let mut beginnings = vec![
        vec![b"hello".to_vec()],
        vec![[&SIGNATURE[..], &[0, 5]].concat()],
        vec![[&SIGNATURE[..], &[1, 5]].concat()],
        vec![[&SIGNATURE[..], &[1, 5, 0, 100]].concat()],
        vec![greeting(0, b"NULL")],
        vec![greeting(0, b"NULL"), ready],
    ];
    beginnings.extend((1..=whole.len()).map(|known| whole[..known].to_vec()));
    beginnings
}

fn hello(password: &[u8]) -> Vec<u8> {
    command(b"HELLO", &[short(b"tensorwire"), short(password)].concat())
}

/// What a member said in its second part, HELLO, behind the user's name.
fn password(whole: &Session) -> &[u8] {
    &whole[1][whole[1].len() - 64..]
}

/// Somebody's.
const ROUTING_ID: [u8; 45] = [0xA5; 45];

fn below(random: &mut ChaCha8Rng, end: usize) -> usize {
    random.next_u32() as usize % end
}

fn bytes(random: &mut ChaCha8Rng, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    random.fill_bytes(&mut bytes);
    bytes
}

fn noise(random: &mut ChaCha8Rng, sessions: &mut Vec<Session>) {
    let lengths =
        (0..=80).chain([100, 255, 256, 257, 1000, 4096, 8191, 8192, 8193, 65536, 1 << 20]);
    for length in lengths {
        sessions.push(vec![bytes(random, length)]);
        sessions.push(vec![vec![[0, 1, 0x7f, 0xff][length % 4]; length]]);
        sessions.push(vec![b"hello".to_vec(), bytes(random, length)]);
    }
}

/// ZMTP 1 without a version and with one, and ZMTP 2: a routing id, then messages.
fn old_versions(random: &mut ChaCha8Rng, sessions: &mut Vec<Session>) {
    for length in [0, 1, 5, 45, 103, 254, 255, 256, 70_000] {
        for flags in [0, MORE, 0xff] {
            let id = bytes(random, length);
            let old = |bytes: &[u8]| match u8::try_from(bytes.len() + 1) {
                Ok(count @ 0..=0xfe) => [&[count, flags], bytes].concat(),
                _ => {
                    [&[0xff], &(bytes.len() as u64 + 1).to_be_bytes()[..], &[flags], bytes].concat()
                }
            };
            sessions.push(vec![old(&id), old(b"meta"), old(b"block")]);
            sessions.push(vec![[old(&id), old(b"meta"), old(&id)].concat()]);
            for version in [0, 1] {
                let greeting = [&SIGNATURE[..], &[version, 5]].concat();
                let message = |flags| match version {
                    0 => old(&id),
                    _ => frame(flags, &id),
                };
                sessions.push(vec![greeting.clone(), message(flags), message(flags ^ MORE)]);
                sessions.push(vec![[greeting.clone(), message(COMMAND), message(0)].concat()]);
                sessions.push(vec![greeting, frame(COMMAND, &id), frame(flags, b"meta")]);
            }
        }
    }
}

fn greetings_and_noise(random: &mut ChaCha8Rng, sessions: &mut Vec<Session>) {
    for version in [0, 1, 2, 3, 4, 9, 0x7f, 0xff] {
        for minor in [0, 1, 5, 0xff] {
            for length in [1, 2, 9, 10, 64, 255, 1000, 10_000] {
                let mut greeting = greeting(minor, [&b"PLAIN"[..], b"NULL"][length % 2]);
                greeting[10] = version;
                let noise = bytes(random, length);
                sessions.push(vec![[&greeting[..], &noise].concat()]);
                sessions.push(vec![greeting, noise]);
            }
        }
    }
}

fn mechanisms(whole: &Session, sessions: &mut Vec<Session>) {
    let ready = command(b"READY", &properties(b"PUSH", &ROUTING_ID));
    for mechanism in [&b""[..], b"NULL", b"CURVE", b"GSSAPI", b"PLAIN2", b"plain", &[0xff; 20]] {
        for minor in [0, 1] {
            let greeting = greeting(minor, mechanism);
            sessions.push(vec![greeting.clone(), ready.clone(), frame(0, b"message")]);
            sessions.push(vec![greeting, hello(password(whole)), ready.clone()]);
        }
    }
    let mut server = greeting(0, b"PLAIN");
    server[32] = 1;
    sessions.push(vec![server, command(b"WELCOME", b""), ready]);
}

/// Passwords, and properties behind NULL's and PLAIN's handshakes.
fn handshakes(whole: &Session, sessions: &mut Vec<Session>) {
    let (plain, null) = (greeting(0, b"PLAIN"), greeting(0, b"NULL"));
    let id = ROUTING_ID;
    let hellos = [
        hello(b""),
        hello(&[0; 255]),
        hello(&password(whole)[1..]),
        command(b"HELLO", b""),
        command(b"HELLO", &[200, 1]),
        command(b"HELLO", &[0, 200]),
        command(b"HELLO", &[short(b""), short(b""), short(b"")].concat()),
        command(b"HELLO", &vec![1; 100_000]),
        command(b"INITIATE", &properties(b"PUSH", &id)),
        command(b"READY", &properties(b"PUSH", &id)),
        command(b"WELCOME", b""),
        command(b"ERROR", &short(b"400")),
        frame(0, b"\x05HELLO\x00\x00"),
        [hello(password(whole)), hello(password(whole))].concat(),
        [hello(b"wrong"), hello(password(whole))].concat(),
    ];
    for hello in hellos {
        let initiate = command(b"INITIATE", &properties(b"PUSH", &id));
        sessions.push(vec![plain.clone(), hello, initiate, frame(0, b"message")]);
    }
    let mut bodies = vec![
        vec![],
        vec![0],
        vec![0xff],
        vec![0xff; 300],
        vec![0; 5000],
        property(b"Identity", &id),
        property(b"Socket-Type", b"PUSH"),
        [&short(b"Identity"), &[0xff; 4][..]].concat(),
        [&short(b"Identity"), &[0x7f, 0xff, 0xff, 0xff][..], &id].concat(),
        [&short(b"Identity"), &[0, 0][..]].concat(),
        [property(&[b'n'; 255], &[0; 255]), properties(b"PUSH", &id)].concat(),
        [properties(b"PUSH", &id), properties(b"PUSH", b"twice")].concat(),
        [properties(b"PUSH", &id), b"x".to_vec()].concat(),
        [properties(b"PUSH", &id), property(b"", b"").repeat(1000)].concat(),
    ];
    for socket_type in
        [&b""[..], b"DEALER", b"ROUTER", b"REQ", b"PUB", b"STREAM", b"push", &[0xff; 300]]
    {
        bodies.push(properties(socket_type, &id));
    }
    for length in [0, 1, 2, 254, 255, 256, 70_000] {
        for first in [0, 1, 0xff] {
            bodies.push(properties(b"PUSH", &vec![first; length]));
        }
    }
    let [_, hello, _, message] = <[Vec<u8>; 4]>::try_from(whole.clone()).unwrap();
    for body in bodies {
        let ready = command(b"READY", &body);
        sessions.push(vec![[&null[..], &ready].concat(), message.clone()]);
        sessions.push(vec![null.clone(), ready.clone(), ready, message.clone()]);
        let initiate = command(b"INITIATE", &body);
        sessions.push(vec![plain.clone(), hello.clone(), initiate, message.clone()]);
    }
}

/// Commands of every form and frames of every length, before the handshake, in it and after it.
fn commands_and_lengths(whole: &Session, sessions: &mut Vec<Session>) {
    let mut words = vec![
        frame(COMMAND, b""),
        frame(COMMAND | MORE, b""),
        frame(COMMAND, &[0xff]),
        frame(COMMAND, &[0; 40]),
        command(b"PING", b""),
        command(b"PING", &[0, 1]),
        command(b"PING", &[0, 0, 1, 2, 3]),
        command(b"PING", &[0xff; 5000]),
        command(b"PONG", b""),
        command(b"SUBSCRIBE", b"topic"),
        command(b"CANCEL", b"topic"),
        command(b"ERROR", b""),
        command(b"ERROR", &[200]),
        command(&[b'c'; 255], &[1; 100_000]),
        [frame(MORE, b"meta"), command(b"PING", &[0, 1]), frame(0, b"block")].concat(),
        [frame(MORE, b"meta"), command(b"SUBSCRIBE", b"topic"), frame(0, b"block")].concat(),
        frame(MORE, b"").repeat(5000),
        frame(0xf8, b"reserved"),
    ];
    for bits in [8, 16, 31, 32, 33, 36, 40, 47, 62, 63] {
        for length in [(1 << bits) - 1, 1 << bits, u64::MAX - (1 << bits) + 1] {
            words.push(claim(0, length, &[3; 100]));
            words.push(claim(COMMAND | MORE, length, b"\x05HELLO"));
        }
    }
    for word in words {
        for known in 0..=whole.len() {
            let mut session = whole[..known].to_vec();
            session.push(word.clone());
            session.extend_from_slice(&whole[known..]);
            sessions.push(session);
        }
    }
}

/// A member's session that ends after each byte of it.
fn cuts(whole: &Session, sessions: &mut Vec<Session>) {
    for (at, part) in whole.iter().enumerate() {
        for length in 0..part.len() {
            let mut session = whole[..at].to_vec();
            session.push(part[..length].to_vec());
            sessions.push(session);
        }
    }
}

/// A member's session with one to three faults.
fn mutated(whole: &Session, random: &mut ChaCha8Rng) -> Session {
    let mut session = whole.clone();
    for _ in 0..=below(random, 3) {
        let (one, other) = (below(random, session.len()), below(random, session.len()));
        let part = &mut session[one];
        let at = below(random, part.len() + 1);
        let to = at + below(random, part.len() - at + 1);
        match below(random, 8) {
            0 => part.truncate(at),
            1 => drop(part.drain(at..to)),
            2 => {
                let length = 1 + below(random, 300);
                drop(part.splice(at..at, bytes(random, length)));
            }
            3 => {
                let again = part[at..to].to_vec();
                drop(part.splice(to..to, again));
            }
            4 => session.swap(one, other),
            5 => {
                let again = part.clone();
                session.insert(other, again);
            }
            kind => {
                if let Some(byte) = part.get_mut(at) {
                    let all = random.next_u32() as u8;
                    *byte ^= if kind == 6 { 1 << (all % 8) } else { all };
                }
            }
        }
    }
    session
}
