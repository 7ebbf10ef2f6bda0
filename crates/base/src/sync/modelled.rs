//! Loom's types behind the names and signatures of those that they stand for, and the call that tries a model.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Runs `body` once for each order of steps of its threads that can make a difference, and says how many those were.
/// With `preemptions`, only orders in which a thread is interrupted at most so many times, elsewhere than where it waits.
///
/// # Panics
/// As `body` does in any order; if all its threads wait, for ever; and if one leaves memory of [`loom::sync::Arc`].
pub fn model(preemptions: Option<usize>, body: impl Fn() + Send + Sync + 'static) {
    let (begin, orders) = (Instant::now(), std::sync::Arc::new(AtomicUsize::new(0)));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions.or(builder.preemption_bound);
    let counted = orders.clone();
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        body();
    });
    let (orders, seconds) = (orders.load(Ordering::Relaxed), begin.elapsed().as_secs_f64());
    let thread = std::thread::current();
    eprintln!("loom: {}: {orders} orders in {seconds:.1} s", thread.name().unwrap_or("a model"));
}

loom::lazy_static! {
    static ref OUTSIDE: loom::sync::atomic::AtomicUsize = Default::default();
}

/// A step on what all threads share and loom does not know of, as a socket or mapped memory: loom tries it before and after
/// every other such step.
pub fn step_outside() {
    OUTSIDE.fetch_add(1, Ordering::AcqRel);
}

/// As std's.
#[derive(Debug, Default)]
pub struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    is_set: loom::sync::atomic::AtomicBool,
}

/// As parking_lot's: there is no poison.
#[derive(Debug, Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

/// None only while its thread waits for a [`Condvar`].
#[derive(Debug)]
pub struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

/// As parking_lot's.
#[derive(Debug, Default)]
pub struct Condvar(loom::sync::Condvar);

impl<T> OnceLock<T> {
    pub fn new() -> OnceLock<T> {
        let is_set = loom::sync::atomic::AtomicBool::new(false);
        OnceLock { value: std::sync::OnceLock::new(), is_set }
    }

    pub fn get(&self) -> Option<&T> {
        self.is_set.load(Ordering::Acquire).then(|| self.value.get()).flatten()
    }

    /// # Errors
    /// The value, if there is one.
    pub fn set(&self, value: T) -> Result<(), T> {
        self.value.set(value)?;
        self.is_set.store(true, Ordering::Release);
        Ok(())
    }
}

impl<T> Mutex<T> {
    pub fn new(value: T) -> Mutex<T> {
        Mutex(loom::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().expect("loom poisons nothing")))
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        Some(MutexGuard(Some(self.0.try_lock().ok()?)))
    }
}

impl Condvar {
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.0.take().expect("whoever waits holds the lock");
        guard.0 = Some(self.0.wait(held).expect("loom poisons nothing"));
    }

    /// As [`Condvar::wait`]: time does not pass in a model.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: std::time::Duration) {
        self.wait(guard);
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

impl<T> std::ops::Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("nobody looks while its thread waits")
    }
}

impl<T> std::ops::DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("nobody looks while its thread waits")
    }
}

/// Loom takes a sequentially consistent access for an acquire or release, and a fence for what it is.
pub mod atomic {
    use loom::sync::atomic::fence;
    pub use loom::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

    /// An access that is sequentially consistent has the fence with which processors that lack such accesses make them:
    /// before a load, and behind what writes.
    #[derive(Debug, Default)]
    pub struct AtomicU32(loom::sync::atomic::AtomicU32);

    impl AtomicU32 {
        pub fn new(value: u32) -> AtomicU32 {
            AtomicU32(loom::sync::atomic::AtomicU32::new(value))
        }

        pub fn load(&self, order: Ordering) -> u32 {
            fence_of(order);
            self.0.load(order)
        }

        pub fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
            let before = self.0.fetch_add(value, order);
            fence_of(order);
            before
        }

        pub fn fetch_sub(&self, value: u32, order: Ordering) -> u32 {
            let before = self.0.fetch_sub(value, order);
            fence_of(order);
            before
        }
    }

    fn fence_of(order: Ordering) {
        if order == Ordering::SeqCst {
            fence(order);
        }
    }
}
