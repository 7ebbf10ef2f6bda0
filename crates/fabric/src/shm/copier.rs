//! Threads that copy large payloads, so that the poster goes on and two peers are written at the same
//! time. One thread per completion queue; queue pairs are spread over them round-robin. Such a copy is the one-sided
//! write or read itself, from one process's memory to another's: there is no other, and it does not count among the
//! runtime's own copies.

use std::collections::VecDeque;
use std::sync::Arc;

use tensorwire_base::sync::thread::{Builder, JoinHandle};
use tensorwire_base::sync::{Condvar, Mutex};

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
            let builder = Builder::new().name("shm-copier".into());
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
                    None => {
                        self.changed.wait_for(&mut queue, pulse::BEAT);
                    }
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
#[cfg(loom)]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use tensorwire_base::sync::{model, thread};

    use super::*;

    /// What a job writes without a lock: loom panics where another thread does at the same time, or reads it before.
    #[derive(Default)]
    struct Done(UnsafeCell<u32>);

    // SAFETY: loom, not the compiler, is to say who touches it at the same time.
    unsafe impl Sync for Done {}
    // SAFETY: a number.
    unsafe impl Send for Done {}

    impl Done {
        /// A job that is right if it is the one after `before` others.
        fn job(self: &Arc<Done>, before: u32) -> Job {
            let done = self.clone();
            Box::new(move || {
                // SAFETY: loom ends the model before two threads are here.
                let count =
                    done.0.with_mut(|count| unsafe { std::ptr::replace(count, before + 1) });
                assert_eq!(count, before, "a job was done twice, or out of order");
            })
        }

        fn count(&self) -> u32 {
            // SAFETY: as in `job`.
            self.0.with(|count| unsafe { *count })
        }
    }

    #[test]
    fn a_drop_ends_a_copier_that_has_nothing_to_do() {
        model(None, || drop(Copiers::start(1).unwrap()));
    }

    #[test]
    fn jobs_of_a_lane_are_done_once_in_their_order_before_a_drop_is_over() {
        model(None, || {
            let (copiers, done) = (Copiers::start(1).unwrap(), Arc::new(Done::default()));
            (0..2).for_each(|before| copiers.push(0, done.job(before)));
            drop(copiers);
            assert_eq!(done.count(), 2);
        });
    }

    #[test]
    fn jobs_of_two_posters_are_done_although_both_leave() {
        model(None, || {
            let copiers = Arc::new(Copiers::start(1).unwrap());
            let done = [(); 2].map(|()| Arc::new(Done::default()));
            let (theirs, also) = (copiers.clone(), done[1].clone());
            let poster = thread::spawn(move || theirs.push(0, also.job(0)));
            copiers.push(0, done[0].job(0));
            drop(copiers);
            poster.join().unwrap();
            assert_eq!(done.map(|done| done.count()), [1, 1]);
        });
    }

    #[test]
    fn two_copiers_work_for_their_own_lanes_and_both_end() {
        model(None, || {
            let copiers = Copiers::start(2).unwrap();
            let done = [(); 2].map(|()| Arc::new(Done::default()));
            done.iter().enumerate().for_each(|(lane, done)| copiers.push(lane, done.job(0)));
            drop(copiers);
            assert_eq!(done.map(|done| done.count()), [1, 1]);
        });
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
