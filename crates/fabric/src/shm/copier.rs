//! Threads that copy large payloads, so that the poster goes on and two peers are written at the same
//! time. One thread per completion queue; queue pairs are spread over them round-robin. Such a copy is the one-sided
//! write or read itself, from one process's memory to another's: there is no other, and it does not count among the
//! runtime's own copies.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::pulse;

/// One posted memcpy, ready to be done.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// The threads. Dropping them finishes what is queued.
#[derive(Debug)]
pub(super) struct Copiers {
    copiers: Vec<Copier>,
}

#[derive(Debug)]
struct Copier {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// Bounded by the credits of the queue pairs that post here.
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    stopping: bool,
}

impl Copiers {
    pub(super) fn start(count: usize) -> std::io::Result<Copiers> {
        let start = |_| {
            let shared: Arc<Shared> = Arc::default();
            let theirs = shared.clone();
            let builder = std::thread::Builder::new().name("shm-copier".into());
            let thread = Some(builder.spawn(move || theirs.work())?);
            Ok(Copier { shared, thread })
        };
        Ok(Copiers { copiers: (0..count).map(start).collect::<std::io::Result<_>>()? })
    }

    /// Queues a job; those of equal `lane` are done one after another, in this order.
    pub(super) fn push(&self, lane: usize, job: Job) {
        let shared = &self.copiers[lane % self.copiers.len()].shared;
        shared.queue.lock().jobs.push_back(job);
        shared.changed.notify_one();
    }
}

impl Shared {
    fn work(&self) {
        let _watched = pulse::watch_service("shm-copier");
        loop {
            let mut queue = self.queue.lock();
            let job = loop {
                match queue.jobs.pop_front() {
                    Some(job) => break job,
                    None if queue.stopping => return,
                    None => drop(self.changed.wait_for(&mut queue, pulse::BEAT)),
                }
                pulse::beat();
            };
            drop(queue);
            job();
        }
    }
}

impl Drop for Copiers {
    fn drop(&mut self) {
        for copier in &self.copiers {
            copier.shared.queue.lock().stopping = true;
            copier.shared.changed.notify_one();
        }
        for copier in &mut self.copiers {
            let ended = copier.thread.take().map(JoinHandle::join);
            debug_assert!(ended.is_none_or(|ended| ended.is_ok()), "a copier panicked");
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("jobs", &self.queue.lock().jobs.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn jobs_of_a_lane_keep_their_order_and_a_drop_finishes_them() {
        let copiers = Copiers::start(3).unwrap();
        let next: Arc<Vec<AtomicUsize>> = Arc::new((0..7).map(|_| AtomicUsize::new(0)).collect());
        for turn in 0..500 {
            for lane in 0..7 {
                let next = next.clone();
                copiers.push(
                    lane,
                    Box::new(move || {
                        assert_eq!(next[lane].fetch_add(1, Ordering::SeqCst), turn);
                    }),
                );
            }
        }
        drop(copiers);
        assert!(next.iter().all(|count| count.load(Ordering::SeqCst) == 500));
    }
}
