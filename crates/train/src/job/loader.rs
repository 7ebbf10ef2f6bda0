//! Makes the batches of the next step while the present one runs: a thread of its own, one step ahead, or several where
//! samples take long to make, as many steps ahead. Which thread makes a batch decides nothing of what it holds.

use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tensorwire_base::Deadline;
use tensorwire_fabric::pulse;
use tensorwire_nn::{BatchSource, Batches, HostBatch, TestBatches};

use super::TrainError;

/// Longest that threads are waited for that make a batch which nobody wants any more.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often they are looked at.
const LOOKS: Duration = Duration::from_micros(500);

/// Most threads: each holds the batches of a step.
const THREADS_MAX: usize = 16;

/// Batches in the order of the steps, or of a test. When it is dropped, its threads end.
pub(super) struct Loader<T> {
    /// The threads in the order of their first steps: of n threads, each makes every n-th step.
    makers: Vec<Maker<T>>,
    /// The steps that were taken.
    taken: usize,
}

/// A thread that makes what is fed in some of the steps.
struct Maker<T> {
    /// None while it is being dropped.
    made: Option<Receiver<tensorwire_nn::Result<T>>>,
    thread: Option<JoinHandle<()>>,
}

impl Loader<Vec<HostBatch>> {
    /// Makes the batches of `workers`, or of their devices, in this order and `each` of every one, for each of these steps, the first of which may
    /// be any; data that are costly on at most so many threads.
    ///
    /// # Errors
    /// When the system has no thread to give.
    pub(super) fn start(
        batches: &Batches,
        workers: &Range<usize>,
        steps: Range<u64>,
        each: u64,
        threads: usize,
    ) -> Result<Loader<Vec<HostBatch>>, TrainError> {
        Loader::over(steps, used(&**batches.source(), threads), || {
            let (mut batches, workers) = (batches.clone(), workers.clone());
            move |step| {
                let numbers = |worker| (step * each..(step + 1) * each).map(move |at| (at, worker));
                let all = workers.clone().flat_map(numbers);
                all.map(|(at, worker)| batches.batch(at, worker)).collect()
            }
        })
    }
}

impl Loader<HostBatch> {
    /// Makes all batches of a test, as [`Loader::start`].
    ///
    /// # Errors
    /// As there.
    pub(super) fn test(
        batches: &TestBatches,
        threads: usize,
    ) -> Result<Loader<HostBatch>, TrainError> {
        // fits: counted in memory
        Loader::over(0..batches.len() as u64, used(&**batches.source(), threads), || {
            let batches = batches.clone();
            move |index| batches.batch(index as usize)
        })
    }
}

/// Threads that are used of those that there are.
fn used(source: &dyn BatchSource, threads: usize) -> usize {
    if source.is_costly() { threads.clamp(1, THREADS_MAX) } else { 1 }
}

/// Why there is no batch.
#[derive(Debug, thiserror::Error)]
pub enum NoBatch {
    #[error("the thread that makes batches is gone")]
    Gone,
    #[error(
        "its batch was not made within {waited_s} s: what makes it stands still, or takes longer than the step deadline; \
         raise that (--step-deadline) if it may"
    )]
    Late { waited_s: u64 },
}

impl<T: Send + 'static> Loader<T> {
    /// Gives each thread what `maker` returns, which makes any step.
    fn over<M>(
        steps: Range<u64>,
        threads: usize,
        maker: impl Fn() -> M,
    ) -> Result<Loader<T>, TrainError>
    where
        M: FnMut(u64) -> tensorwire_nn::Result<T> + Send + 'static,
    {
        let mut makers = Vec::with_capacity(threads);
        for thread in 0..threads {
            let own = steps.clone().skip(thread).step_by(threads);
            makers.push(Maker::start(own, maker())?);
        }
        Ok(Loader { makers, taken: 0 })
    }

    /// Returns the next step's.
    ///
    /// # Errors
    /// When its thread is gone, or has not made it within `patience`.
    pub(super) fn next(&mut self, patience: Duration) -> Result<tensorwire_nn::Result<T>, NoBatch> {
        let maker = &self.makers[self.taken % self.makers.len()];
        self.taken += 1;
        let made = maker.made.as_ref().ok_or(NoBatch::Gone)?;
        let made = pulse::in_beats(Deadline::after(patience), |slice| made.recv_timeout(slice));
        made.map_err(|error| match error {
            RecvTimeoutError::Disconnected => NoBatch::Gone,
            RecvTimeoutError::Timeout => {
                // it may never end, nor what waits for the same: nobody waits for any
                self.makers.iter_mut().for_each(|maker| maker.thread = None);
                NoBatch::Late { waited_s: patience.as_secs() }
            }
        })
    }
}

impl<T: Send + 'static> Loader<T> {
    /// Returns the next step's if it is made already.
    pub(super) fn ready(&mut self) -> Option<tensorwire_nn::Result<T>> {
        let maker = &self.makers[self.taken % self.makers.len()];
        let made = maker.made.as_ref()?.try_recv().ok()?;
        self.taken += 1;
        Some(made)
    }
}

impl<T: Send + 'static> Maker<T> {
    fn start(
        steps: impl Iterator<Item = u64> + Send + 'static,
        mut make: impl FnMut(u64) -> tensorwire_nn::Result<T> + Send + 'static,
    ) -> Result<Maker<T>, TrainError> {
        // nothing is kept between: the next is begun when the one before is taken
        let (sender, receiver) = sync_channel(0);
        let make = move || {
            for step in steps {
                let made = make(step);
                let failed = made.is_err();
                if sender.send(made).is_err() || failed {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("batches".into()).spawn(make);
        let thread = thread.map_err(TrainError::Loader)?;
        Ok(Maker { made: Some(receiver), thread: Some(thread) })
    }
}

impl<T> Drop for Loader<T> {
    fn drop(&mut self) {
        // the threads' next sends fail; all are told before one is waited for
        self.makers.iter_mut().for_each(|maker| maker.made = None);
        let deadline = Deadline::after(PATIENCE);
        for thread in self.makers.iter_mut().filter_map(|maker| maker.thread.take()) {
            // a user's code may never come back: then it is left behind
            while !thread.is_finished() && !deadline.passed() {
                pulse::beat();
                std::thread::sleep(LOOKS);
            }
            if thread.is_finished() {
                // its panic, if any, was printed and ended the batches
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorwire_nn::{DType, Data, Dataset, Description, Result, Sample};

    const SOON: Duration = Duration::from_secs(60);

    /// Sample i of epoch e is (i, e).
    struct Slow;

    impl Dataset for Slow {
        fn describe(&self) -> Description {
            Description::new().input("input", DType::I64, &[2])
        }

        fn len(&self) -> usize {
            7
        }

        fn get(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
            let epoch = sample.epoch() as i64;
            sample.set("input", &[index as i64, epoch])
        }

        fn varies(&self) -> bool {
            true
        }

        fn is_costly(&self) -> bool {
            true
        }
    }

    fn fed(first: u64, threads: usize) -> Vec<Vec<HostBatch>> {
        let batches = Batches::new(Data::from(Slow).train, 2, 1, 3).unwrap();
        let mut loader = Loader::start(&batches, &(0..2), first..11, 1, threads).unwrap();
        (first..11).map(|_| loader.next(SOON).unwrap().unwrap()).collect()
    }

    #[test]
    fn any_number_of_threads_from_any_step_feeds_the_same() {
        let whole = fed(0, 1);
        assert_eq!(whole.len(), 11);
        for (first, threads) in [(0, 2), (0, 16), (4, 1), (5, 3), (10, 4)] {
            assert_eq!(fed(first, threads), whole[first as usize..], "from {first} on {threads}");
        }
    }

    #[test]
    fn a_test_comes_in_its_order() {
        let batches = TestBatches::new(Data::from(Slow).train, 2).unwrap();
        let mut loader = Loader::test(&batches, 3).unwrap();
        for index in 0..4 {
            assert_eq!(loader.next(SOON).unwrap().unwrap(), batches.batch(index).unwrap());
        }
        assert!(matches!(loader.next(SOON), Err(NoBatch::Gone)));
    }

    #[test]
    fn one_that_makes_nothing_is_late_and_is_left_behind() {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let held = std::sync::Arc::new(std::sync::Mutex::new(held));
        let mut loader: Loader<()> = Loader::over(0..4, 2, || {
            let held = held.clone();
            move |_| {
                let _ = held.lock().unwrap().recv();
                Ok(())
            }
        })
        .unwrap();
        let late = loader.next(Duration::from_millis(20));
        assert!(matches!(late, Err(NoBatch::Late { waited_s: 0 })));
        drop(loader);
        drop(hold);
    }

    #[test]
    fn a_thread_that_never_comes_back_is_left_behind_by_whoever_gives_up_for_another_reason() {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let held = std::sync::Mutex::new(Some(held));
        let loader: Loader<()> = Loader::over(0..4, 1, || {
            let held = held.lock().unwrap().take();
            move |_| {
                let _ = held.as_ref().map(Receiver::recv);
                Ok(())
            }
        })
        .unwrap();
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(loader);
            let _ = done.send(());
        });
        is_done.recv_timeout(SOON).unwrap();
        drop(hold);
    }

    #[test]
    fn dropped_before_its_end_it_ends() {
        let batches = Batches::new(Data::from(Slow).train, 1, 1, 3).unwrap();
        let mut loader = Loader::start(&batches, &(0..1), 0..u64::MAX, 1, 3).unwrap();
        loader.next(SOON).unwrap().unwrap();
        drop(loader);
        let mut short = Loader::start(&batches, &(0..1), 2..3, 1, 3).unwrap();
        short.next(SOON).unwrap().unwrap();
        assert!(matches!(short.next(SOON), Err(NoBatch::Gone)));
    }
}
