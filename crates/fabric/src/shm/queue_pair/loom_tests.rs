//! Queue pairs to a peer in every order of their threads' steps: posters, a copier, and what tells of the peer's loss.

use std::time::Duration;

use tensorwire_base::sync::{model, thread};
use tensorwire_base::{Incarnation, JobId};
use tensorwire_memory::CutMark;

use super::*;
use crate::api::{ArrivalSlot, Signal};
use crate::common::Gone;
use crate::config::{Endpoint, FabricConfig, Identity, JobCredentials, PeerAddress, Secret};
use crate::error::FaultCause;
use crate::region::{Access, Exposure, Region, RegionDescriptor, RemoteRegion};

const DEPTH: usize = 4;
/// Bytes that a copier copies, and bytes that the poster may.
const LARGE: u64 = COPIER_BYTES_MIN;
const SMALL: u64 = 8;

/// One queue pair to one peer, with one copier; and memory at both ends.
struct Ends {
    pairs: QueuePairs,
    source: Region,
    target: RemoteRegion,
}

impl Ends {
    fn open() -> Arc<Ends> {
        let of = |rank| Identity { rank: Rank(rank), incarnation: Incarnation(1) };
        let job = JobCredentials { job_id: JobId(1), secret: Secret([1; 32]) };
        let config = FabricConfig {
            queue_pairs_per_peer: 1,
            queue_depth: DEPTH,
            arrival_slots: 1,
            spin: Duration::ZERO,
            ..FabricConfig::new(of(0), job)
        };
        let memory = |bytes| Mapping::private(bytes).unwrap();
        let board = || Board::create(Arc::new(memory(Board::bytes(1))), 1);
        let core = Core::new(config, board());
        let Identity { rank, incarnation } = of(1);
        let peer = Peer::new(&PeerAddress { rank, incarnation, endpoint: Endpoint::Sim });
        let source = core.regions().enter(memory(2 * COPIER_BYTES_MIN), Exposure::default());
        for (at, value) in [(0, LARGE), (COPIER_BYTES_MIN, SMALL)] {
            source.memory().mapping().word(at).store(value, Ordering::Relaxed);
        }
        let access = Access::Mapped(memory(COPIER_BYTES_MIN), Arc::new(CutMark::default()));
        let descriptor = RegionDescriptor { key: 1, bytes: COPIER_BYTES_MIN };
        let target = RemoteRegion::new(rank, descriptor, access);
        let copiers = Arc::new(Copiers::start(1).unwrap());
        Arc::new(Ends { pairs: QueuePairs::new(core, peer, board(), copiers), source, target })
    }

    /// Writes so many bytes to the target's start, of which the first word is their number; the epoch is the token.
    fn work(&self, token: u64, bytes: u64) -> Work {
        Work {
            local: self.source.memory().clone(),
            local_offset: if bytes == LARGE { 0 } else { COPIER_BYTES_MIN },
            remote: self.target.clone(),
            remote_offset: 0,
            bytes,
            direction: Direction::Write,
            signal: Some(Signal { slot: ArrivalSlot(0), epoch: token }),
            token,
        }
    }

    /// The token, if it was accepted: what is refused has a peer that is gone.
    fn post(&self, token: u64, bytes: u64) -> Option<u64> {
        match self.pairs.post(0, self.work(token, bytes)) {
            Ok(()) => Some(token),
            Err(PostError::PeerLost { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Sleeps until these completed, each once and rightly, and nothing else did.
    fn await_completions(&self, mut tokens: Vec<u64>) {
        let (core, mut completions) = (&self.pairs.core, Vec::new());
        loop {
            let ticket = core.board().ticket();
            core.completions().drain(&mut completions);
            if completions.len() >= tokens.len() {
                break;
            }
            core.wait(ticket, Deadline::after(Duration::from_secs(1 << 20)));
        }
        assert!(completions.iter().all(|completion| completion.result.is_ok()));
        let mut completed: Vec<u64> = completions.iter().map(|done| done.token).collect();
        completed.sort_unstable();
        tokens.sort_unstable();
        assert_eq!(completed, tokens);
    }

    /// Nothing comes after the last completion, and every credit is back.
    fn is_at_rest(self: Arc<Ends>) {
        let Ends { pairs, .. } = Arc::into_inner(self).expect("the posters are done");
        let QueuePairs { core, copiers, pairs, .. } = pairs;
        drop(copiers);
        assert_eq!(core.completions().drain(&mut Vec::new()), 0, "completed twice");
        assert!((0..DEPTH).all(|_| pairs[0].credits.take().is_ok()), "a credit was lost");
    }

    fn arrived(&self) -> u64 {
        self.pairs.board.epoch(0)
    }

    /// The target's first word, which every write overwrites.
    fn word(&self) -> u64 {
        self.target.mapping().unwrap().word(0).load(Ordering::Acquire)
    }
}

#[test]
fn two_posters_of_one_queue_pair_get_each_completion_once() {
    model(Some(2), || {
        let ends = Ends::open();
        let other = ends.clone();
        let poster = thread::spawn(move || other.post(1, SMALL).unwrap());
        let mine = ends.post(2, LARGE).unwrap();
        ends.await_completions(vec![mine, poster.join().unwrap()]);
        assert_eq!(ends.arrived(), 2);
        ends.is_at_rest();
    });
}

#[test]
fn a_completion_comes_after_the_bytes_and_the_signal() {
    model(Some(3), || {
        let ends = Ends::open();
        ends.post(1, LARGE).unwrap();
        ends.await_completions(vec![1]);
        assert_eq!((ends.word(), ends.arrived()), (LARGE, 1));
        ends.is_at_rest();
    });
}

#[test]
fn a_small_memcpy_never_overtakes_a_large_one() {
    model(Some(3), || {
        let ends = Ends::open();
        let mut completing = vec![ends.post(1, LARGE).unwrap()];
        match ends.pairs.post_now(0, ends.work(2, SMALL)).unwrap() {
            Posted::Done => assert_eq!((ends.word(), ends.arrived()), (SMALL, 2)),
            Posted::Queued => completing.push(2),
        }
        ends.await_completions(completing);
        assert_eq!(ends.word(), SMALL, "the large one was copied last");
        ends.is_at_rest();
    });
}

#[test]
fn a_post_that_meets_the_loss_of_the_peer_is_refused_or_completes_once() {
    model(Some(3), || {
        let ends = Ends::open();
        let other = ends.clone();
        let loser = thread::spawn(move || {
            let cause = FaultCause::Died { detail: String::new() };
            assert!(other.pairs.core.peer_gone(&other.pairs.peer, Gone::Lost(cause)));
        });
        let posted = [ends.post(1, LARGE), ends.post(2, SMALL)];
        ends.await_completions(posted.into_iter().flatten().collect());
        loser.join().unwrap();
        assert_eq!(ends.post(3, SMALL), None, "the peer is gone");
        ends.is_at_rest();
    });
}
