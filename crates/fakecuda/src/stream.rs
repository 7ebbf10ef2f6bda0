//! Streams: each a thread that does what its queue says, one thing after the other, after a sleep where the seed says so.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};
use tensorwire_device::sys::*;

use crate::capture::{Capture, Exec};
use crate::event::Event;
use crate::kernels::Launching;
use crate::random::Random;
use crate::state::{Context, Fake, Outcome};
use crate::work;

/// One thing that a stream is told.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// From one address to another: of GPUs, or pinned.
    Copy {
        from: u64,
        to: u64,
        bytes: usize,
    },
    /// Bytes of the host that are not pinned, as they were when the stream was told.
    Staged {
        from: Arc<[u8]>,
        to: u64,
    },
    /// To memory of the host that is not pinned, whose owner waits.
    Unstaged {
        from: u64,
        to: usize,
        bytes: usize,
    },
    /// `count` times a value of `width` bytes.
    Fill {
        to: u64,
        count: usize,
        value: u32,
        width: usize,
    },
    Launch(Arc<Launching>),
    WaitEvent {
        event: Arc<Event>,
        record: u64,
    },
    Record {
        event: Arc<Event>,
        record: u64,
    },
    WaitValue {
        address: u64,
        value: u32,
        condition: u32,
    },
    WriteValue {
        address: u64,
        value: u32,
    },
    Graph(Arc<Exec>),
    Library(Arc<LibraryCall>),
}

/// What a library of CUDA's does on a stream, with memory that is looked up when it does.
pub(crate) struct LibraryCall {
    pub(crate) name: &'static str,
    /// Addresses and bytes.
    pub(crate) operands: Vec<(u64, usize)>,
    pub(crate) work: LibraryWork,
}

/// Is given where the operands lie.
pub(crate) type LibraryWork = Box<dyn Fn(&[*mut u8]) + Send + Sync>;

impl LibraryCall {
    pub(crate) fn new(
        name: &'static str,
        operands: Vec<(u64, usize)>,
        work: impl Fn(&[*mut u8]) + Send + Sync + 'static,
    ) -> LibraryCall {
        LibraryCall { name, operands, work: Box::new(work) }
    }
}

impl std::fmt::Debug for LibraryCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) context: Arc<Context>,
    /// Counted over the process.
    pub(crate) number: u64,
    queue: Mutex<Queue>,
    news: Condvar,
    is_ended: AtomicBool,
    capture: Mutex<Option<Arc<Capture>>>,
}

#[derive(Debug, Default)]
struct Queue {
    ops: VecDeque<Op>,
    is_working: bool,
}

impl Stream {
    /// Makes a stream and its thread.
    pub(crate) fn start(fake: &'static Fake, context: Arc<Context>) -> Outcome<Arc<Stream>> {
        let (seed, number) = {
            let mut seeds = fake.seeds.lock();
            seeds.1 += 1;
            *seeds
        };
        let stream = Arc::new(Stream {
            context,
            number,
            queue: Mutex::default(),
            news: Condvar::new(),
            is_ended: AtomicBool::new(false),
            capture: Mutex::default(),
        });
        let (worker, mut random) = (stream.clone(), Random::new(seed, number));
        let thread = std::thread::Builder::new().name(format!("fake-stream-{number}"));
        let spawned = thread.spawn(move || worker.work(fake, &mut random));
        spawned.map(|_| stream).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Tells it something, to be done or to be captured.
    pub(crate) fn tell(&self, op: Op) -> Outcome {
        if let Some(capture) = self.capture() {
            return capture.push(self, op);
        }
        self.queue.lock().ops.push_back(op);
        self.news.notify_all();
        Ok(())
    }

    /// True if nothing is left to do.
    pub(crate) fn is_idle(&self) -> bool {
        let queue = self.queue.lock();
        queue.ops.is_empty() && !queue.is_working
    }

    /// Waits until nothing is left to do, or something failed.
    pub(crate) fn wait_idle(&self) -> Outcome {
        let mut queue = self.queue.lock();
        while !queue.ops.is_empty() || queue.is_working {
            self.news.wait(&mut queue);
        }
        drop(queue);
        self.context.check()
    }

    /// Nobody tells it anything any more. It does what is left, and waits for nothing.
    pub(crate) fn end(&self) {
        self.is_ended.store(true, Ordering::Relaxed);
        drop(self.queue.lock());
        self.news.notify_all();
    }

    /// True while it makes sense to wait.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.is_ended.load(Ordering::Relaxed) && self.context.check().is_ok()
    }

    pub(crate) fn capture(&self) -> Option<Arc<Capture>> {
        self.capture.lock().clone()
    }

    /// Takes part in a capture; false if it does already.
    pub(crate) fn join(&self, capture: &Arc<Capture>) -> bool {
        let mut own = self.capture.lock();
        let is_new = own.is_none();
        if is_new {
            *own = Some(capture.clone());
        }
        is_new
    }

    pub(crate) fn leave(&self) {
        *self.capture.lock() = None;
    }

    fn work(&self, fake: &Fake, random: &mut Random) {
        let mut queue = self.queue.lock();
        loop {
            let Some(op) = queue.ops.pop_front() else {
                if self.is_ended.load(Ordering::Relaxed) {
                    return;
                }
                self.news.wait(&mut queue);
                continue;
            };
            queue.is_working = true;
            drop(queue);
            // after a failure nothing is done any more
            let done = self.context.check().and_then(|()| work::run(fake, self, &op, random));
            drop(op);
            let is_ended = self.is_ended.load(Ordering::Relaxed);
            if let Err(status) = done
                && !is_ended
            {
                self.context.fail(status);
            }
            queue = self.queue.lock();
            if done.is_err() && is_ended {
                queue.ops.clear();
            }
            queue.is_working = false;
            self.news.notify_all();
        }
    }
}
