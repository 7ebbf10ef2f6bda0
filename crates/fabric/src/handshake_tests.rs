//! The handshake against right and wrong others, over socket pairs.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::seal::Forged;

fn job() -> JobCredentials {
    JobCredentials { job_id: JobId(1), secret: Secret([9; 32]) }
}

fn member(rank: u32) -> Identity {
    Identity { rank: Rank(rank), incarnation: Incarnation(100 + u64::from(rank)) }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

/// Hears a hello, as the lobby does, and answers it.
fn accept(
    stream: &mut UnixStream,
    job: &JobCredentials,
    me: Identity,
    admit: impl FnOnce(&Caller) -> Result<(), HandshakeRefusal>,
    deadline: Deadline,
) -> Result<(Caller, Seals), HandshakeError> {
    let hello = receive(stream, "its hello", deadline)?;
    super::accept(stream, &hello, job, me, admit, deadline)
}

/// What a handshake came to at one end.
type Shaken<Who> = Result<(Who, Seals), HandshakeError>;

/// Rank 1 dials rank 0; each with its own view of the job and of the other.
fn shake(
    dialer: (JobCredentials, Option<Identity>),
    acceptor: (JobCredentials, Result<(), HandshakeRefusal>),
) -> (Shaken<Identity>, Shaken<Caller>) {
    let (mut near, mut far) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let accepted =
            scope.spawn(move || accept(&mut far, &acceptor.0, member(0), |_| acceptor.1, soon()));
        let purpose = Purpose::QueuePair(3);
        let dialled = dial(&mut near, &dialer.0, member(1), dialer.1, purpose, soon());
        drop(near);
        (dialled, accepted.join().unwrap())
    })
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no time-outs of sockets")]
fn members_of_a_job_find_each_other() {
    for target in [Some(member(0)), None] {
        let (dialled, accepted) = shake((job(), target), (job(), Ok(())));
        let ((found, mut near), (caller, mut far)) = (dialled.unwrap(), accepted.unwrap());
        assert_eq!(found, member(0));
        assert_eq!(caller, Caller { member: member(1), purpose: Purpose::QueuePair(3) });
        for (sealer, opener) in
            [(&mut near.sealer, &mut far.opener), (&mut far.sealer, &mut near.opener)]
        {
            let mut frame = *b"frame";
            let tag = sealer.seal(&[], &mut frame);
            opener.open(&[], &mut frame, &tag).unwrap();
            assert_eq!(frame, *b"frame");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no time-outs of sockets")]
fn every_mismatch_has_its_reason_on_both_sides() {
    let other_job = JobCredentials { job_id: JobId(2), ..job() };
    let other_secret = JobCredentials { secret: Secret([8; 32]), ..job() };
    let stale = Identity { incarnation: Incarnation(7), ..member(0) };
    let stale_life = HandshakeRefusal::StaleIncarnation;
    // who has proven itself is refused by one that does, too
    let cases = [
        (other_job, None, Ok(()), HandshakeRefusal::OtherJob, false),
        (other_secret, None, Ok(()), HandshakeRefusal::WrongSecret, false),
        (job(), Some(stale), Ok(()), HandshakeRefusal::OtherTarget, false),
        (job(), Some(member(5)), Ok(()), HandshakeRefusal::OtherTarget, false),
        (job(), None, Err(stale_life), stale_life, true),
        (job(), None, Err(HandshakeRefusal::Duplicate), HandshakeRefusal::Duplicate, true),
    ];
    for (theirs, target, admit, reason, is_proven) in cases {
        let (dialled, accepted) = shake((theirs, target), (job(), admit));
        let (found, was_proven) = match dialled {
            Err(HandshakeError::Refused(found)) => (found, true),
            Err(HandshakeError::RefusedUnproven(found)) => (found, false),
            other => panic!("{other:?}"),
        };
        assert_eq!((found, was_proven), (reason, is_proven));
        assert!(matches!(accepted, Err(HandshakeError::Rejected(found)) if found == reason));
    }
}

/// Plays the acceptor's side by hand.
fn impostor(
    answer: impl FnOnce(&mut UnixStream) + Send,
) -> Result<(Identity, Seals), HandshakeError> {
    let (mut near, mut far) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            far.read_exact(&mut [0; HELLO_BYTES]).unwrap();
            answer(&mut far);
        });
        dial(&mut near, &job(), member(1), Some(member(0)), Purpose::Control, soon())
    })
}

/// What was sealed on one connection opens on no other one, nor on its own way back.
#[test]
#[cfg_attr(miri, ignore = "Miri has no time-outs of sockets")]
fn each_connection_and_each_direction_has_its_own_key() {
    let [one, other] = [0, 1].map(|_| {
        let (dialled, accepted) = shake((job(), None), (job(), Ok(())));
        (dialled.unwrap().1, accepted.unwrap().1)
    });
    let (mut near, mut openers) = (one.0, [other.1.opener, other.0.opener]);
    let mut frame = *b"frame";
    let tag = near.sealer.seal(&[], &mut frame);
    for opener in openers.iter_mut().chain([&mut near.opener]) {
        assert_eq!(opener.open(&[], &mut frame.clone(), &tag), Err(Forged));
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no time-outs of sockets")]
fn an_acceptor_must_prove_itself_too() {
    let unproven = impostor(|far| {
        far.write_all(&Challenge { verdict: 0, member: member(0) }.encode([0; 32])).unwrap();
        far.read_exact(&mut [0; PROOF_BYTES]).unwrap();
        far.write_all(&[0; VERDICT_BYTES]).unwrap();
    });
    assert!(matches!(unproven, Err(HandshakeError::Rejected(HandshakeRefusal::WrongSecret))));
    let reflected = impostor(|far| {
        // the dialer's own proof does not pass for the acceptor's
        far.write_all(&Challenge { verdict: 0, member: member(0) }.encode([0; 32])).unwrap();
        let mut proof = [0; PROOF_BYTES];
        far.read_exact(&mut proof).unwrap();
        far.write_all(&[[0; 8].as_slice(), &proof].concat()).unwrap();
    });
    assert!(matches!(reflected, Err(HandshakeError::Rejected(HandshakeRefusal::WrongSecret))));
    let other = impostor(|far| {
        let stale = Identity { incarnation: Incarnation(7), ..member(0) };
        far.write_all(&Challenge { verdict: 0, member: stale }.encode([0; 32])).unwrap();
    });
    assert!(matches!(other, Err(HandshakeError::Rejected(HandshakeRefusal::StaleIncarnation))));
    let gone = impostor(|_| {});
    assert!(matches!(gone, Err(HandshakeError::HungUp { .. })));
}

/// Whoever has a port may say that a member is not wanted there: it is not taken for the word of one of the job.
#[test]
#[cfg_attr(miri, ignore = "Miri has no time-outs of sockets")]
fn a_refusal_of_one_that_proves_nothing_is_told_apart() {
    for code in [3, 5, 6, 7, 999u16] {
        let said = HandshakeRefusal::from_code(code).unwrap_err();
        let at_once = impostor(|far| {
            far.write_all(&Challenge { verdict: code, member: member(0) }.encode([0; 32])).unwrap();
        });
        let at_last = impostor(|far| {
            far.write_all(&Challenge { verdict: 0, member: member(0) }.encode([0; 32])).unwrap();
            far.read_exact(&mut [0; PROOF_BYTES]).unwrap();
            let mut verdict = [9; VERDICT_BYTES];
            verdict[..2].copy_from_slice(&code.to_le_bytes());
            far.write_all(&verdict).unwrap();
        });
        for told in [at_once, at_last] {
            let is_it =
                matches!(told, Err(HandshakeError::RefusedUnproven(found)) if found == said);
            assert!(is_it, "{code}: {told:?}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no time-outs of sockets")]
fn a_recorded_dialer_proves_nothing_twice() {
    // what a right dialer sent once, sent again to a new acceptor with a new nonce
    let (mut near, mut far) = UnixStream::pair().unwrap();
    let hello = Hello {
        job_id: JobId(1),
        me: member(1),
        target: None,
        purpose: Purpose::Control,
        nonce: [1; 32],
    };
    let hello = hello.encode();
    let old_challenge = Challenge { verdict: 0, member: member(0) }.encode([2; 32]);
    let old_proof = prove(&job().secret, b"dialer", &hello, &old_challenge, &[]);
    near.write_all(&hello).unwrap();
    near.write_all(&old_proof).unwrap();
    let accepted = accept(&mut far, &job(), member(0), |_| Ok(()), soon());
    assert!(matches!(accepted, Err(HandshakeError::Rejected(HandshakeRefusal::WrongSecret))));
    // and it got no proof of ours in return
    drop(far);
    let mut heard = Vec::new();
    near.read_to_end(&mut heard).unwrap();
    assert_eq!(heard[CHALLENGE_BYTES + 8..], [0; PROOF_BYTES]);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no time-outs of sockets")]
fn who_says_nothing_or_drips_is_left_at_the_deadline() {
    let (_near, mut far) = UnixStream::pair().unwrap();
    let started = Instant::now();
    let within = Deadline::after(Duration::from_millis(50));
    let silent = accept(&mut far, &job(), member(0), |_| Ok(()), within);
    assert!(matches!(silent, Err(HandshakeError::TimedOut { .. })));
    let (mut near, mut far) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // one byte at a time, for longer than the deadline, until hung up on
            for byte in MAGIC.iter().chain(&[0; 70]) {
                std::thread::sleep(Duration::from_millis(10));
                if near.write_all(&[*byte]).is_err() {
                    return;
                }
            }
        });
        let within = Deadline::after(Duration::from_millis(100));
        let dripping = accept(&mut far, &job(), member(0), |_| Ok(()), within);
        assert!(matches!(dripping, Err(HandshakeError::TimedOut { .. })), "{dripping:?}");
        drop(far);
    });
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn refusals_survive_the_wire() {
    for code in 0..=12 {
        if let Err(refusal) = HandshakeRefusal::from_code(code)
            && refusal != HandshakeRefusal::Unknown
        {
            assert_eq!(refusal.code(), code);
        }
    }
    assert_eq!(HandshakeRefusal::from_code(0), Ok(()));
    assert_eq!(HandshakeRefusal::from_code(999), Err(HandshakeRefusal::Unknown));
}

proptest! {
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no time-outs of sockets")]
    fn any_bytes_are_answered_without_a_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        right_start in 0usize..90,
    ) {
        let hello = Hello {
            job_id: JobId(1), me: member(1), target: None, purpose: Purpose::Control, nonce: [3; 32],
        };
        // some begin as a right hello does
        for (byte, right) in bytes.iter_mut().zip(&hello.encode()[..right_start.min(HELLO_BYTES)]) {
            *byte = *right;
        }
        let (mut near, mut far) = UnixStream::pair().unwrap();
        near.write_all(&bytes).unwrap();
        drop(near);
        let accepted = accept(&mut far, &job(), member(0), |_| Ok(()), soon());
        prop_assert!(accepted.is_err());
    }

    #[test]
    fn hellos_survive_the_wire(
        job_id: u64, rank: u32, incarnation: u64, index: u32, kind in 0..3, to: Option<(u32, u64)>,
    ) {
        let member = |(rank, incarnation)| {
            Identity { rank: Rank(rank), incarnation: Incarnation(incarnation) }
        };
        let purpose = match kind {
            0 => Purpose::Control,
            1 => Purpose::QueuePair(index),
            _ => Purpose::Rendezvous,
        };
        let (me, target) = (member((rank, incarnation)), to.map(member));
        let hello = Hello { job_id: JobId(job_id), me, target, purpose, nonce: [5; 32] };
        let found = Hello::decode(&hello.encode()).unwrap();
        prop_assert_eq!((found.job_id, found.me, found.target), (JobId(job_id), me, target));
        prop_assert_eq!((found.purpose, found.nonce), (purpose, [5; 32]));
    }
}

/// Fuzzers begin at what is in the tree: of an older version nothing behind the version would be reached.
#[test]
#[cfg_attr(miri, ignore = "Miri reads no files")]
fn the_corpus_of_the_fuzzer_is_of_this_version() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/fabric_handshake");
    for name in ["hello", "challenge"] {
        let bytes = std::fs::read(folder.join(name)).unwrap();
        assert!(bytes.starts_with(&MAGIC), "{name}");
        assert_eq!(le_u16(&bytes, MAGIC.len()), VERSION, "{name}");
    }
}
