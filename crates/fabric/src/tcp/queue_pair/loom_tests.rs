//! A queue pair over a pair of real sockets in every order of its threads' steps: posters, its poller, and what tells of
//! the peer's loss. The peer is this test: it says nothing, answers in part, or takes its time.

use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType};
use tensorwire_base::sync::{model, step_outside, thread};
use tensorwire_base::{Incarnation, JobId, Rank};

use super::super::progress::{Owner, PeerTable, give_up};
use super::*;
use crate::board::Board;
use crate::common::{Gone, Peer};
use crate::config::{Endpoint, FabricConfig, Identity, JobCredentials, PeerAddress, Secret};
use crate::control::Requests;
use crate::error::FaultCause;
use crate::mapping::Mapping;
use crate::region::{Access, Exposure, Region, RegionDescriptor, RemoteRegion};
use crate::seal::Opener;

const DEPTH: usize = 4;
const BYTES: u64 = 16 << 10;

/// This end of a connection with its poller's epoll, and the peer's sockets.
struct Ends {
    core: Arc<Core>,
    queue_pair: Arc<QueuePair>,
    owner: Owner,
    epoll: Arc<OwnedFd>,
    memory: Region,
    theirs: OwnedFd,
    /// Of the control connection, on which nobody says anything.
    _control: OwnedFd,
}

/// What to post: a token, how many bytes, and where to.
type Post = (u64, u64, Direction);

fn sockets(to_us: u8) -> (Connection, OwnedFd) {
    let (family, kind, flags) = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC);
    let (socket, theirs) = rustix::net::socketpair(family, kind, flags, None).unwrap();
    let seals = Seals { sealer: Sealer::new(&[0; 32]), opener: Opener::new(&[to_us; 32]) };
    (Connection { socket, seals }, theirs)
}

impl Ends {
    fn open() -> Arc<Ends> {
        let of = |rank| Identity { rank: Rank(rank), incarnation: Incarnation(1) };
        let job = JobCredentials { job_id: JobId(1), secret: Secret([1; 32]) };
        let config = FabricConfig {
            queue_depth: DEPTH,
            arrival_slots: 1,
            spin: Duration::ZERO,
            ..FabricConfig::new(of(0), job)
        };
        let board = Mapping::private(Board::bytes(1)).unwrap();
        let core = Core::new(config, Board::create(Arc::new(board), 1));
        let Identity { rank, incarnation } = of(1);
        let peer = Peer::new(&PeerAddress { rank, incarnation, endpoint: Endpoint::Sim });
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        let ((control, _control), (data, theirs)) = (sockets(1), sockets(2));
        let link = Arc::new(Link::new(core.clone(), peer, control, epoll.clone()));
        let (poller, suspicion) = ((epoll.clone(), 0), Suspicion::unheard());
        let queue_pair = QueuePair::new(core.clone(), link, data, poller, 1, suspicion);
        let queue_pair = Arc::new(queue_pair);
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, &queue_pair.socket, data, QueuePair::events(false)).unwrap();
        let peers = Arc::new(PeerTable::default());
        peers.write().insert(rank, vec![queue_pair.clone()]);
        let owner = Owner::new(core.clone(), peers);
        let memory = core.regions().enter(Mapping::private(BYTES).unwrap(), Exposure::default());
        Arc::new(Ends { core, queue_pair, owner, epoll, memory, theirs, _control })
    }

    /// Posts one after the other; the tokens of those that were accepted. The others have a peer that is gone.
    fn post(&self, posts: &[Post]) -> Vec<u64> {
        let accepted = posts.iter().filter(|(token, bytes, direction)| {
            let descriptor = RegionDescriptor { key: 1, bytes: BYTES };
            let work = Work {
                local: self.memory.memory().clone(),
                local_offset: 0,
                remote: RemoteRegion::new(Rank(1), descriptor, Access::Asked),
                remote_offset: 0,
                bytes: *bytes,
                direction: *direction,
                signal: None,
                token: *token,
            };
            let posted = self.queue_pair.post(work, false);
            assert!(matches!(posted, Ok(()) | Err(PostError::PeerLost { .. })), "{posted:?}");
            posted.is_ok()
        });
        accepted.map(|(token, ..)| *token).collect()
    }

    /// What the control thread does once it knows.
    fn lose(&self) {
        let peer = &self.queue_pair.link.peer;
        let cause = FaultCause::Died { detail: String::new() };
        self.core.peer_gone(peer, Gone::Lost(cause));
        step_outside();
        self.owner.ended(peer);
    }

    /// What the peer's process does when it ends.
    fn hang_up(&self) {
        step_outside();
        rustix::net::shutdown(&self.theirs, Shutdown::Both).unwrap();
    }

    /// What the poller does with a connection that is over.
    fn poll_to_the_end(&self) {
        let turns = (0..8).map(|_| self.queue_pair.receive_turn(true));
        let broken = turns.filter_map(Result::err).next().expect("the connection is over");
        give_up(&self.core, &self.queue_pair, broken);
    }

    /// The peer answers a read with `bytes` of which `sent` come.
    fn answer(&self, request: u64, bytes: u64, sent: usize) {
        let header = Header { request, bytes, ..Header::bare(Kind::ReadResponse) };
        let mut answer = header.seal(&mut Sealer::new(&[2; 32])).to_vec();
        answer.resize(answer.len() + sent, 7);
        let taken = rustix::net::send(&self.theirs, &answer, SendFlags::empty());
        assert_eq!(taken, Ok(answer.len()));
    }

    /// The completions by token: those of `accepted`, each once, with every credit back.
    fn completed_once(&self, mut accepted: Vec<u64>) -> Vec<Completion> {
        let mut completions = Vec::new();
        self.core.completions().drain(&mut completions);
        completions.sort_by_key(|completion| completion.token);
        accepted.sort_unstable();
        assert_eq!(completions.iter().map(|done| done.token).collect::<Vec<_>>(), accepted);
        let credits = &self.queue_pair.credits;
        assert!((0..DEPTH).all(|_| credits.take().is_ok()), "a credit was lost");
        (0..DEPTH).for_each(|_| credits.give_back());
        completions
    }

    /// True if the socket has room and the poller is told so.
    fn poller_is_to_send(&self) -> bool {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(1);
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let spare = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(&self.epoll, spare, Some(&now)).unwrap();
        events.iter().any(|event| { event.flags }.contains(epoll::EventFlags::OUT))
    }

    /// The peer takes at most so many bytes; how many there were.
    fn take(&self, bytes: usize) -> usize {
        step_outside();
        let mut taken = vec![0; bytes];
        let received = rustix::net::recv(&self.theirs, &mut taken[..], RecvFlags::DONTWAIT);
        received.map_or(0, |(count, _)| count)
    }
}

const SMALL_WRITE: Post = (0, 8, Direction::Write);
const SMALL_READ: Post = (1, 8, Direction::Read);
const OTHER_READ: Post = (2, 8, Direction::Read);

/// Two posters, while `end` ends the connection and the poller finds out.
fn posts_meet(end: fn(&Ends)) {
    model(None, move || {
        let ends = Ends::open();
        let (first, second) = (ends.clone(), ends.clone());
        let poster = thread::spawn(move || first.post(&[SMALL_WRITE, SMALL_READ]));
        let poller = thread::spawn(move || {
            end(&second);
            second.poll_to_the_end();
        });
        let mut accepted = ends.post(&[OTHER_READ]);
        accepted.extend(poster.join().unwrap());
        poller.join().unwrap();
        let completions = ends.completed_once(accepted);
        let unanswered = |done: &&Completion| done.token != SMALL_WRITE.0;
        assert!(completions.iter().filter(unanswered).all(|done| done.result.is_err()));
        assert!(ends.post(&[SMALL_WRITE]).is_empty(), "the connection is over");
    });
}

#[test]
fn a_post_that_meets_the_loss_of_the_peer_is_refused_or_completes_once() {
    posts_meet(Ends::lose);
}

#[test]
fn a_post_that_meets_the_end_of_its_socket_is_refused_or_completes_once() {
    posts_meet(Ends::hang_up);
}

/// A read of 8 bytes of which so many come before the end, while another thread posts.
fn answer_meets_the_end(sent: usize) {
    model(None, move || {
        let ends = Ends::open();
        let mut accepted = ends.post(&[SMALL_READ]);
        ends.answer(0, 8, sent);
        let other = ends.clone();
        let poller = thread::spawn(move || {
            other.hang_up();
            other.poll_to_the_end();
        });
        accepted.extend(ends.post(&[SMALL_WRITE, OTHER_READ]));
        poller.join().unwrap();
        let completions = ends.completed_once(accepted);
        let read = completions.iter().find(|done| done.token == SMALL_READ.0).unwrap();
        assert_eq!(read.result.is_ok(), sent == 8);
    });
}

#[test]
fn a_read_that_was_answered_before_the_end_completes_once() {
    answer_meets_the_end(8);
}

#[test]
fn a_read_that_was_answered_in_part_fails_once() {
    answer_meets_the_end(3);
}

#[test]
fn what_the_socket_does_not_take_is_sent_once_it_has_room() {
    model(None, || {
        let ends = Ends::open();
        rustix::net::sockopt::set_socket_send_buffer_size(&ends.queue_pair.socket, 1).unwrap();
        let (first, second) = (ends.clone(), ends.clone());
        let poster = thread::spawn(move || first.post(&[(1, 8, Direction::Write)]));
        let poller = thread::spawn(move || {
            let taken = second.take(4096);
            second.queue_pair.send_turn(false).unwrap();
            taken
        });
        let mut accepted = ends.post(&[(0, BYTES, Direction::Write)]);
        accepted.extend(poster.join().unwrap());
        let mut taken = poller.join().unwrap();
        loop {
            taken += ends.take(1 << 20);
            if !ends.poller_is_to_send() {
                break;
            }
            ends.queue_pair.send_turn(true).unwrap();
        }
        assert_eq!(taken as u64, 2 * HEADER_BYTES as u64 + BYTES + 8);
        assert!(ends.completed_once(accepted).iter().all(|done| done.result.is_ok()));
    });
}
