//! The lobby, over socket pairs: who is heard, who goes, and how much is said of it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use tensorwire_base::{Deadline, Incarnation, Rank};

use super::*;
use crate::config::{JobCredentials, Secret};
use crate::handshake::{HandshakeError, Purpose};

const SOON: Duration = Duration::from_secs(20);

fn member(rank: u32) -> Identity {
    Identity { rank: Rank(rank), incarnation: Incarnation(1) }
}

fn lobby(patience: Duration) -> Lobby<UnixStream> {
    Lobby::new(JobId(1), member(0), patience)
}

/// Somebody in the lobby.
fn enter(lobby: &mut Lobby<UnixStream>, from: usize) -> UnixStream {
    let (near, far) = UnixStream::pair().unwrap();
    assert!(lobby.enter(far, from.to_string()).unwrap().is_none());
    near
}

/// A member of a job calls; what is said to it then.
fn dial(near: UnixStream, job: u64) -> std::thread::JoinHandle<Result<(), HandshakeError>> {
    std::thread::spawn(move || {
        let (mut near, job_id) = (near, JobId(job));
        let job = JobCredentials { job_id, secret: Secret([9; 32]) };
        let (purpose, soon) = (Purpose::Control, Deadline::after(SOON));
        handshake::dial(&mut near, &job, member(1), None, purpose, soon).map(drop)
    })
}

/// Looks until something comes of it.
fn turn(lobby: &mut Lobby<UnixStream>) -> Turn<UnixStream> {
    let deadline = Deadline::after(SOON);
    loop {
        let turn = lobby.turn(usize::MAX);
        if !turn.ready.is_empty() || !turn.strangers.is_empty() {
            return turn;
        }
        assert!(!deadline.passed(), "nothing came of it");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no epoll")]
fn a_member_is_heard_among_those_who_say_nothing() {
    let mut lobby = lobby(SOON);
    let silent: Vec<UnixStream> = (0..20).map(|from| enter(&mut lobby, from)).collect();
    let dialled = dial(enter(&mut lobby, 20), 1);
    let Turn { mut ready, strangers } = turn(&mut lobby);
    assert!(strangers.is_empty(), "{strangers:?}");
    let mut caller = ready.pop().unwrap();
    assert_eq!((caller.from.as_str(), ready.len()), ("20", 0));
    let job = JobCredentials { job_id: JobId(1), secret: Secret([9; 32]) };
    let (stream, soon) = (&mut caller.stream, Deadline::after(SOON));
    let admit = |_: &handshake::Caller| Ok(());
    handshake::accept(stream, &caller.hello, &job, member(0), admit, soon).unwrap();
    dialled.join().unwrap().unwrap();
    drop(silent);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no epoll")]
fn strangers_go_at_once_each_with_its_reason() {
    let why = |say: &[u8]| {
        let mut lobby = lobby(SOON);
        let mut near = enter(&mut lobby, 7);
        near.write_all(say).unwrap();
        near.shutdown(std::net::Shutdown::Write).unwrap();
        let Stranger { from, why } = turn(&mut lobby).strangers.pop().unwrap();
        assert_eq!(from, "7");
        // it learns nothing of the job
        drop(lobby);
        let mut heard = Vec::new();
        // it may be reset, with what it said unread
        let _ = near.read_to_end(&mut heard);
        assert!(heard.is_empty(), "{heard:?}");
        why
    };
    let protocol = |why| matches!(why, StrangerError::Refused(HandshakeRefusal::NotOurProtocol));
    // shorter than a hello: only the magic can tell
    assert!(protocol(why(b"GET / HTTP/1.1\r\n\r\n")));
    assert!(protocol(why(&[0xee; 500])));
    assert!(protocol(why(b"x")));
    assert!(matches!(why(b""), StrangerError::HungUp));
    assert!(matches!(why(b"twfabric"), StrangerError::HungUp));
    let mut lobby = lobby(SOON);
    let dialled = dial(enter(&mut lobby, 3), 2);
    let Stranger { why, .. } = turn(&mut lobby).strangers.pop().unwrap();
    let other = HandshakeRefusal::OtherJob;
    assert!(matches!(why, StrangerError::Refused(found) if found == other));
    let told = dialled.join().unwrap();
    let is_told = matches!(told, Err(HandshakeError::RefusedUnproven(found)) if found == other);
    assert!(is_told, "{told:?}");
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no epoll")]
fn who_says_nothing_goes_when_the_time_is_over_or_others_need_the_place() {
    let mut brief = lobby(Duration::from_millis(20));
    let _near = enter(&mut brief, 0);
    assert!(matches!(
        turn(&mut brief).strangers[..],
        [Stranger { why: StrangerError::Silent(_), .. }]
    ));
    assert!(brief.next_look().is_none());
    let mut lobby = lobby(SOON);
    let silent: Vec<UnixStream> = (0..PLACES).map(|from| enter(&mut lobby, from)).collect();
    let (_near, far) = UnixStream::pair().unwrap();
    let gone = lobby.enter(far, "late".into()).unwrap().unwrap();
    assert_eq!(gone.from, "0", "the oldest goes");
    assert!(matches!(gone.why, StrangerError::Crowded));
    assert!((&silent[0]).read(&mut [0]).is_ok_and(|count| count == 0), "it is hung up on");
    assert_eq!(lobby.streams().count(), PLACES);
}

/// Whoever knows the job's number and no secret can fill the slots of those who prove themselves, but not keep them.
#[test]
#[cfg_attr(miri, ignore = "Miri has no epoll")]
fn of_too_many_unproven_ones_the_oldest_is_hung_up_on() {
    let (handshakes, mut ends) = (Handshakes::default(), Vec::new());
    let (tell, told) = std::sync::mpsc::channel();
    for number in 0..=HANDSHAKES_MAX {
        let (near, stream) = UnixStream::pair().unwrap();
        let caller = Caller { stream, from: number.to_string(), hello: [0; HELLO_BYTES] };
        let tell = tell.clone();
        let run = move |mut caller: Caller<UnixStream>, unproven: Unproven| {
            if number == 1 {
                unproven.proven();
                let _ = caller.stream.read(&mut [0]);
            } else {
                let _ = caller.stream.read(&mut [0]);
                let _ = tell.send(number);
            }
        };
        handshakes.begin(caller, run).unwrap();
        ends.push(near);
        while number == 1 && handshakes.0.lock().going_on.len() == 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // however long it took to begin them all
    let later = Instant::now() + Duration::from_secs(3600);
    handshakes.0.lock().going_on.iter_mut().for_each(|(_, begun, _)| *begun = later);
    assert_eq!(handshakes.room(), 0, "nobody has taken long");
    // the one that has proven itself made room for the last
    assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
    handshakes.0.lock().going_on[0].1 = Instant::now() - GRACE;
    assert_eq!(handshakes.room(), 1);
    let (near, stream) = UnixStream::pair().unwrap();
    let caller = Caller { stream, from: "one more".into(), hello: [0; HELLO_BYTES] };
    handshakes.begin(caller, |mut caller, _| drop(caller.stream.read(&mut [0]))).unwrap();
    assert_eq!(told.recv_timeout(SOON), Ok(0));
    assert!((&ends[0]).read(&mut [0]).is_ok_and(|count| count == 0));
    drop((ends, near));
}

/// More members than can prove themselves at once wait for their turn, and none of them is hung up on.
#[test]
#[cfg_attr(miri, ignore = "Miri has no epoll")]
fn who_has_said_hello_waits_for_a_slot() {
    let mut lobby = lobby(SOON);
    let dialled: Vec<_> = (0..3).map(|from| dial(enter(&mut lobby, from), 1)).collect();
    let mut ready = Vec::new();
    while ready.len() < 3 {
        let turn = lobby.turn(1);
        assert!(turn.ready.len() <= 1 && turn.strangers.is_empty());
        ready.extend(turn.ready);
    }
    let mut from: Vec<String> = ready.iter().map(|caller| caller.from.clone()).collect();
    from.sort();
    assert_eq!(from, ["0", "1", "2"]);
    drop(ready);
    dialled.into_iter().for_each(|dialled| drop(dialled.join().unwrap()));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no epoll")]
fn of_a_crowd_a_few_lines_are_said_and_then_a_number() {
    let mut log = StrangerLog::default();
    let said = (0..1000).filter_map(|n| log.line(|| n.to_string())).count();
    assert_eq!(said, LINES_MAX as usize);
    log.since -= WINDOW;
    let more = 1000 - LINES_MAX;
    assert_eq!(log.line(|| "next".into()), Some(format!("next (and {more} others before it)")));
    assert_eq!(log.line(|| "next".into()), Some("next".to_string()));
}
