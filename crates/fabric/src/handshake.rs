//! Who may talk to whom: a mutual challenge–response over any stream, before anything else is read
//! from it. Both sides prove that they know the job's secret (HMAC-SHA256 over both hellos and both
//! nonces), and each states which life of which rank it is. From the same they make the keys that seal what follows
//! on this connection. Does not know regions; the launcher's rendezvous uses it as well.
//!
//! ```text
//! dialer                                             acceptor
//!   Hello   magic, version, purpose, job, me, target, nonce  ->   checks all of it
//!           <-  Challenge   magic, version, verdict so far, me, nonce
//!   Proof   HMAC("dialer", Hello, Challenge)                 ->   verifies, then admits or refuses
//!           <-  Verdict     verdict, HMAC("acceptor", Hello, Challenge, verdict)
//! ```
//!
//! Every frame has a fixed size, every read a deadline. A stranger learns nothing before its proof
//! but which life of which rank this is, whether it named the right job, and a nonce.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use hmac::{Hmac, Mac};
use sha2::Sha256;
use tensorwire_base::{Deadline, Incarnation, JobId, Rank};

use crate::config::{Identity, JobCredentials, Secret};
use crate::seal::{Opener, Sealer, Seals};

const MAGIC: [u8; 8] = *b"twfabric";
const VERSION: u16 = 4;
/// What a dialer says first.
pub const HELLO_BYTES: usize = 88;
const CHALLENGE_BYTES: usize = 56;
const PROOF_BYTES: usize = 32;
const VERDICT_BYTES: usize = 8 + PROOF_BYTES;

/// A stream whose reads and writes can be bounded in time.
pub trait TimedStream: Read + Write {
    /// Bounds each following read and write; never zero.
    fn set_timeout(&self, timeout: Duration) -> std::io::Result<()>;
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Messages, region requests, goodbyes.
    Control,
    /// Data of that queue pair.
    QueuePair(u32),
    /// The same, with its payload encrypted.
    Encrypted(u32),
    /// The launcher's exchange of addresses, before there is a fabric.
    Rendezvous,
}

/// Who dialled, as proven, and its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub member: Identity,
    pub purpose: Purpose,
}

/// The reason for which one side turned the other away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeRefusal {
    #[error("it does not speak this protocol; something else dialled this port")]
    NotOurProtocol,
    #[error("it speaks another version of the protocol; run one version everywhere")]
    Version,
    #[error("it belongs to another job")]
    OtherJob,
    #[error("it looks for another process: its peer table is stale")]
    OtherTarget,
    #[error("it does not know the job's secret")]
    WrongSecret,
    #[error("its rank is not expected here")]
    UnexpectedRank,
    #[error(
        "it is not the incarnation that is expected: a leftover of an earlier life, or a restart"
    )]
    StaleIncarnation,
    #[error("there is such a connection already")]
    Duplicate,
    #[error(
        "this kind of connection is not served here; does one of both encrypt, and the other not?"
    )]
    Purpose,
    #[error("it gave a reason that this version does not know")]
    Unknown,
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error("the other side said nothing in time (waiting for {step}); is it stopped?")]
    TimedOut { step: &'static str },
    #[error("the other side hung up (waiting for {step}); did it die, or is it no fabric?")]
    HungUp { step: &'static str },
    #[error("the connection failed (waiting for {step}): {source}")]
    Io { step: &'static str, source: std::io::Error },
    /// We turned the other side away.
    #[error("turned away: {0}")]
    Rejected(HandshakeRefusal),
    /// The other side, which has proven that it is of this job, turned us away, and says this of us.
    #[error("the other side turned us away and says of us: {0}")]
    Refused(HandshakeRefusal),
    /// The same by whoever answered, who has proven nothing: anybody may say it who has the port.
    #[error(
        "whoever answered turned us away and says of us: {0}; it did not prove that it is of this job"
    )]
    RefusedUnproven(HandshakeRefusal),
}

/// Introduces `me` to whoever accepts. `target`: who must answer; None for anyone of the job. Returns who did, and what
/// seals the frames that follow.
pub fn dial(
    stream: &mut impl TimedStream,
    job: &JobCredentials,
    me: Identity,
    target: Option<Identity>,
    purpose: Purpose,
    deadline: Deadline,
) -> Result<(Identity, Seals), HandshakeError> {
    let hello = Hello { job_id: job.job_id, me, target, purpose, nonce: random_nonce() }.encode();
    send(stream, &hello, "our hello", deadline)?;
    let challenge: [u8; CHALLENGE_BYTES] = receive(stream, "its challenge", deadline)?;
    let Challenge { verdict, member } = Challenge::decode(&challenge)?;
    HandshakeRefusal::from_code(verdict).map_err(HandshakeError::RefusedUnproven)?;
    if target.is_some_and(|target| target != member) {
        return Err(HandshakeError::Rejected(HandshakeRefusal::StaleIncarnation));
    }
    send(stream, &prove(&job.secret, b"dialer", &hello, &challenge, &[]), "our proof", deadline)?;
    let verdict: [u8; VERDICT_BYTES] = receive(stream, "its verdict", deadline)?;
    let (code, proof) = verdict.split_at(8);
    let said = HandshakeRefusal::from_code(le_u16(code, 0));
    match (verify(&job.secret, b"acceptor", &hello, &challenge, code, proof), said) {
        (Ok(()), said) => said.map_err(HandshakeError::Refused)?,
        (Err(_), Err(refusal)) => return Err(HandshakeError::RefusedUnproven(refusal)),
        (Err(unproven), Ok(())) => return Err(unproven),
    }
    let [dialer, acceptor] = session_keys(&job.secret, &hello, &challenge);
    Ok((member, Seals { sealer: Sealer::new(&dialer), opener: Opener::new(&acceptor) }))
}

/// Refuses what was said so far, if no hello begins so.
pub(crate) fn check_magic(said: &[u8]) -> Result<(), HandshakeRefusal> {
    match said.iter().zip(&MAGIC).all(|(said, wanted)| said == wanted) {
        true => Ok(()),
        false => Err(HandshakeRefusal::NotOurProtocol),
    }
}

/// Why nobody of this job says such a hello, or not to `me`, and what is answered.
pub(crate) fn refusal(
    hello: &[u8; HELLO_BYTES],
    job_id: JobId,
    me: Identity,
) -> Option<(HandshakeRefusal, [u8; CHALLENGE_BYTES])> {
    let checked = Hello::decode(hello).and_then(|found| found.check(job_id, me));
    let refusal = checked.err()?;
    Some((refusal, Challenge { verdict: refusal.code(), member: me }.encode(random_nonce())))
}

/// Answers a dialer that has said `hello`. `admit` has the last word on a caller that has proven itself. Returns who it is, and what seals the
/// frames that follow.
pub fn accept(
    stream: &mut impl TimedStream,
    hello: &[u8; HELLO_BYTES],
    job: &JobCredentials,
    me: Identity,
    admit: impl FnOnce(&Caller) -> Result<(), HandshakeRefusal>,
    deadline: Deadline,
) -> Result<(Caller, Seals), HandshakeError> {
    let checked = Hello::decode(hello).and_then(|found| found.check(job.job_id, me));
    let verdict = checked.as_ref().err().map_or(0, |refusal| refusal.code());
    let challenge = Challenge { verdict, member: me }.encode(random_nonce());
    send(stream, &challenge, "our challenge", deadline)?;
    let caller = checked.map_err(HandshakeError::Rejected)?;
    let proof: [u8; PROOF_BYTES] = receive(stream, "its proof", deadline)?;
    let verified = verify(&job.secret, b"dialer", hello, &challenge, &[], &proof);
    let admitted = match verified {
        Ok(()) => admit(&caller),
        Err(_) => Err(HandshakeRefusal::WrongSecret),
    };
    let code =
        [admitted.err().map_or(0, HandshakeRefusal::code), 0, 0, 0].map(u16::to_le_bytes).concat();
    // who did not prove itself gets no proof of ours to learn from
    let proof = match verified {
        Ok(()) => prove(&job.secret, b"acceptor", hello, &challenge, &code),
        Err(_) => [0; PROOF_BYTES],
    };
    send(stream, &[code.as_slice(), &proof].concat(), "our verdict", deadline)?;
    admitted.map_err(HandshakeError::Rejected)?;
    let [dialer, acceptor] = session_keys(&job.secret, hello, &challenge);
    Ok((caller, Seals { sealer: Sealer::new(&acceptor), opener: Opener::new(&dialer) }))
}

/// Random from the system: for keys, nonces and ids that nobody must guess.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            // every kernel that has memfd has getrandom, and it cannot fail once booted
            Err(error) => panic!("the system gives no random bytes: {error}"),
        }
    }
    bytes
}

pub(crate) fn random_u64() -> u64 {
    u64::from_le_bytes(random_bytes())
}

fn random_nonce() -> [u8; 32] {
    random_bytes()
}

struct Hello {
    job_id: JobId,
    me: Identity,
    target: Option<Identity>,
    purpose: Purpose,
    nonce: [u8; 32],
}

struct Challenge {
    verdict: u16,
    member: Identity,
}

impl Hello {
    fn encode(&self) -> [u8; HELLO_BYTES] {
        let (kind, index) = match self.purpose {
            Purpose::Control => (1u16, 0),
            Purpose::QueuePair(index) => (2, index),
            Purpose::Rendezvous => (3, 0),
            Purpose::Encrypted(index) => (4, index),
        };
        let target = self.target.unwrap_or(Identity { rank: Rank(0), incarnation: Incarnation(0) });
        let mut wire = [0; HELLO_BYTES];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            wire[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&MAGIC);
        put(&VERSION.to_le_bytes());
        put(&kind.to_le_bytes());
        put(&index.to_le_bytes());
        put(&self.job_id.0.to_le_bytes());
        put(&self.me.rank.0.to_le_bytes());
        put(&u32::from(self.target.is_some()).to_le_bytes());
        put(&self.me.incarnation.0.to_le_bytes());
        put(&target.rank.0.to_le_bytes());
        put(&[0; 4]);
        put(&target.incarnation.0.to_le_bytes());
        put(&self.nonce);
        wire
    }

    fn decode(wire: &[u8; HELLO_BYTES]) -> Result<Hello, HandshakeRefusal> {
        if wire[..8] != MAGIC {
            return Err(HandshakeRefusal::NotOurProtocol);
        }
        if le_u16(wire, 8) != VERSION {
            return Err(HandshakeRefusal::Version);
        }
        let purpose = match le_u16(wire, 10) {
            1 => Purpose::Control,
            2 => Purpose::QueuePair(le_u32(wire, 12)),
            3 => Purpose::Rendezvous,
            4 => Purpose::Encrypted(le_u32(wire, 12)),
            _ => return Err(HandshakeRefusal::Purpose),
        };
        let member = |rank, incarnation| Identity {
            rank: Rank(le_u32(wire, rank)),
            incarnation: Incarnation(le_u64(wire, incarnation)),
        };
        Ok(Hello {
            job_id: JobId(le_u64(wire, 16)),
            me: member(24, 32),
            target: (le_u32(wire, 28) != 0).then(|| member(40, 48)),
            purpose,
            nonce: std::array::from_fn(|i| wire[56 + i]),
        })
    }

    fn check(&self, job_id: JobId, me: Identity) -> Result<Caller, HandshakeRefusal> {
        if self.job_id != job_id {
            return Err(HandshakeRefusal::OtherJob);
        }
        if self.target.is_some_and(|target| target != me) {
            return Err(HandshakeRefusal::OtherTarget);
        }
        Ok(Caller { member: self.me, purpose: self.purpose })
    }
}

impl Challenge {
    fn encode(&self, nonce: [u8; 32]) -> [u8; CHALLENGE_BYTES] {
        let mut wire = [0; CHALLENGE_BYTES];
        wire[..8].copy_from_slice(&MAGIC);
        wire[8..10].copy_from_slice(&VERSION.to_le_bytes());
        wire[10..12].copy_from_slice(&self.verdict.to_le_bytes());
        wire[12..16].copy_from_slice(&self.member.rank.0.to_le_bytes());
        wire[16..24].copy_from_slice(&self.member.incarnation.0.to_le_bytes());
        wire[24..].copy_from_slice(&nonce);
        wire
    }

    fn decode(wire: &[u8; CHALLENGE_BYTES]) -> Result<Challenge, HandshakeError> {
        if wire[..8] != MAGIC {
            return Err(HandshakeError::Rejected(HandshakeRefusal::NotOurProtocol));
        }
        if le_u16(wire, 8) != VERSION {
            return Err(HandshakeError::Rejected(HandshakeRefusal::Version));
        }
        let (rank, incarnation) = (Rank(le_u32(wire, 12)), Incarnation(le_u64(wire, 16)));
        Ok(Challenge { verdict: le_u16(wire, 10), member: Identity { rank, incarnation } })
    }
}

impl HandshakeRefusal {
    fn code(self) -> u16 {
        match self {
            HandshakeRefusal::NotOurProtocol => 1,
            HandshakeRefusal::Version => 2,
            HandshakeRefusal::OtherJob => 3,
            HandshakeRefusal::OtherTarget => 4,
            HandshakeRefusal::WrongSecret => 5,
            HandshakeRefusal::UnexpectedRank => 6,
            HandshakeRefusal::StaleIncarnation => 7,
            HandshakeRefusal::Duplicate => 8,
            HandshakeRefusal::Purpose => 9,
            HandshakeRefusal::Unknown => u16::MAX,
        }
    }

    fn from_code(code: u16) -> Result<(), HandshakeRefusal> {
        Err(match code {
            0 => return Ok(()),
            1 => HandshakeRefusal::NotOurProtocol,
            2 => HandshakeRefusal::Version,
            3 => HandshakeRefusal::OtherJob,
            4 => HandshakeRefusal::OtherTarget,
            5 => HandshakeRefusal::WrongSecret,
            6 => HandshakeRefusal::UnexpectedRank,
            7 => HandshakeRefusal::StaleIncarnation,
            8 => HandshakeRefusal::Duplicate,
            9 => HandshakeRefusal::Purpose,
            _ => HandshakeRefusal::Unknown,
        })
    }
}

/// The label keeps one side's proof from serving as the other's; the nonces keep it from serving twice.
fn mac(secret: &Secret, parts: [&[u8]; 4]) -> Hmac<Sha256> {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(&secret.0).expect("HMAC takes a key of any length");
    // all parts but the label have fixed sizes, and the labels differ: no two splits collide
    parts.iter().for_each(|part| mac.update(part));
    mac
}

fn prove(
    secret: &Secret,
    label: &[u8],
    hello: &[u8],
    challenge: &[u8],
    code: &[u8],
) -> [u8; PROOF_BYTES] {
    mac(secret, [label, hello, challenge, code]).finalize().into_bytes().into()
}

/// The keys of what the dialer sends, and of what the acceptor sends. Both nonces are in them: no two connections have the
/// same.
fn session_keys(secret: &Secret, hello: &[u8], challenge: &[u8]) -> [[u8; 32]; 2] {
    [&b"sealed by the dialer"[..], b"sealed by the acceptor"]
        .map(|label| prove(secret, label, hello, challenge, &[]))
}

/// In constant time.
fn verify(
    secret: &Secret,
    label: &[u8],
    hello: &[u8],
    challenge: &[u8],
    code: &[u8],
    proof: &[u8],
) -> Result<(), HandshakeError> {
    mac(secret, [label, hello, challenge, code])
        .verify_slice(proof)
        .map_err(|_| HandshakeError::Rejected(HandshakeRefusal::WrongSecret))
}

fn receive<const N: usize>(
    stream: &mut impl TimedStream,
    step: &'static str,
    deadline: Deadline,
) -> Result<[u8; N], HandshakeError> {
    let (mut bytes, mut have) = ([0; N], 0);
    while have < N {
        bound(stream, step, deadline)?;
        match stream.read(&mut bytes[have..]) {
            Ok(0) => return Err(HandshakeError::HungUp { step }),
            Ok(count) => have += count,
            Err(error) => retry(error, step)?,
        }
    }
    Ok(bytes)
}

fn send(
    stream: &mut impl TimedStream,
    mut bytes: &[u8],
    step: &'static str,
    deadline: Deadline,
) -> Result<(), HandshakeError> {
    while !bytes.is_empty() {
        bound(stream, step, deadline)?;
        match stream.write(bytes) {
            Ok(0) => return Err(HandshakeError::HungUp { step }),
            Ok(count) => bytes = &bytes[count..],
            Err(error) => retry(error, step)?,
        }
    }
    Ok(())
}

/// Gives the next read or write what is left of the deadline.
fn bound(
    stream: &impl TimedStream,
    step: &'static str,
    deadline: Deadline,
) -> Result<(), HandshakeError> {
    let remaining = deadline.remaining();
    if remaining.is_zero() {
        return Err(HandshakeError::TimedOut { step });
    }
    // under a microsecond the system would take the timeout for none
    let timeout = remaining.max(Duration::from_millis(1));
    stream.set_timeout(timeout).map_err(|source| HandshakeError::Io { step, source })
}

fn retry(error: std::io::Error, step: &'static str) -> Result<(), HandshakeError> {
    match error.kind() {
        // a timeout: the caller's loop looks at the deadline
        ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut => Ok(()),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => {
            Err(HandshakeError::HungUp { step })
        }
        _ => Err(HandshakeError::Io { step, source: error }),
    }
}

fn le_u16(wire: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(std::array::from_fn(|i| wire[at + i]))
}

fn le_u32(wire: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| wire[at + i]))
}

fn le_u64(wire: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| wire[at + i]))
}

impl TimedStream for TcpStream {
    fn set_timeout(&self, timeout: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

impl TimedStream for UnixStream {
    fn set_timeout(&self, timeout: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

#[path = "handshake_fuzz.rs"]
mod fuzz;

#[doc(hidden)]
pub use fuzz::fuzz_handshake;

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
