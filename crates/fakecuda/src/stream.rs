//! Streams: each a thread that does what its queue says, one thing after the other, after a sleep where the seed says so.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tensorwire_base::Deadline;
use tensorwire_device::sys::*;

use crate::capture::{Capture, Exec};
use crate::event::Event;
use crate::kernels::Launching;
use crate::nccl::Collective;
use crate::random::Random;
use crate::state::{Context, Fake, Outcome, say};
use crate::work;

/// How often whoever launches a graph that has no room looks again.
const LOOK: Duration = Duration::from_millis(1);

/// So long whoever asks waits for a stream that does nothing, where a driver would for good.
const PATIENCE: Duration = Duration::from_secs(60);

/// One thing that a stream is told.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// From one address to another: of GPUs, or pinned.
    Copy {
        from: u64,
        to: u64,
        bytes: usize,
    },
    /// From memory of one GPU to memory of another, each by its ordinal.
    CopyBetween {
        from: (u64, usize),
        to: (u64, usize),
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
    /// Together with other processes.
    Collective(Arc<Collective>),
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
    /// How much it has done of a graph that it is doing.
    done_of_graph: AtomicU64,
    is_ended: AtomicBool,
    capture: Mutex<Option<Arc<Capture>>>,
}

#[derive(Debug, Default)]
struct Queue {
    ops: VecDeque<Told>,
    /// What it is doing.
    working: Option<Told>,
}

/// What a stream was told, and when: numbers are counted over all streams.
#[derive(Clone, Debug)]
struct Told {
    number: u64,
    op: Arc<Op>,
}

/// What was told so far, all streams together.
static TOLD: AtomicU64 = AtomicU64::new(0);

impl Queue {
    /// How many things wait in it.
    fn weight(&self, is_counted: bool) -> usize {
        let weights = self.ops.iter().map(|told| match &*told.op {
            Op::Graph(exec) if is_counted => exec.ops.len(),
            _ => 1,
        });
        weights.sum()
    }

    fn left_of_graph(&self, done: &AtomicU64) -> usize {
        match self.working.as_ref().map(|told| &*told.op) {
            // fits: it counts what is in memory
            Some(Op::Graph(exec)) => {
                exec.ops.len().saturating_sub(done.load(Ordering::Relaxed) as usize)
            }
            _ => 0,
        }
    }
}

impl Op {
    /// True if it may write to some of these bytes. What a kernel does to what it is given the address of, nobody knows.
    fn may_write(&self, from: u64, bytes: usize) -> bool {
        let range = from..from + bytes as u64;
        let meets = |to: u64, length: usize| to < range.end && range.start < to + length as u64;
        match self {
            Op::Copy { to, bytes, .. } => meets(*to, *bytes),
            Op::CopyBetween { to: (to, _), bytes, .. } => meets(*to, *bytes),
            Op::Staged { from, to } => meets(*to, from.len()),
            Op::Fill { to, count, width, .. } => meets(*to, count * width),
            Op::Launch(launching) => {
                launching.arguments.words.iter().any(|word| range.contains(word))
            }
            Op::WriteValue { address, .. } => meets(*address, 4),
            Op::Collective(collective) => {
                let (to, bytes) = collective.writes();
                meets(to, bytes)
            }
            Op::Library(call) => call.operands.iter().any(|(to, bytes)| meets(*to, *bytes)),
            Op::Graph(exec) => exec.ops.iter().any(|op| op.may_write(from, bytes)),
            Op::Unstaged { .. }
            | Op::WaitEvent { .. }
            | Op::Record { .. }
            | Op::WaitValue { .. } => false,
        }
    }
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
            done_of_graph: AtomicU64::new(0),
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
        // how it is told comes behind what NICs have written before
        if let Ok(fake) = Fake::get() {
            fake.show_remote_writes(self.context.ordinal);
        }
        let mut queue = self.queue.lock();
        let faults = Fake::get().map(|fake| fake.config.faults.clone()).unwrap_or_default();
        let (room, is_counted) = (faults.queue, faults.counted);
        self.comes_to(&mut queue, room, |queue| (queue.weight(is_counted) as u64) < room)?;
        let number = TOLD.fetch_add(1, Ordering::Relaxed) + 1;
        let is_graph = matches!(op, Op::Graph(_));
        queue.ops.push_back(Told { number, op: Arc::new(op) });
        self.news.notify_all();
        if is_graph && is_counted {
            let left =
                |queue: &Queue| queue.weight(true) + queue.left_of_graph(&self.done_of_graph);
            self.comes_to(&mut queue, room, |queue| left(queue) as u64 <= room)?;
        }
        Ok(())
    }

    /// Waits until the queue is so; without a limit, for nothing.
    fn comes_to(
        &self,
        queue: &mut MutexGuard<'_, Queue>,
        room: u64,
        is_so: impl Fn(&Queue) -> bool,
    ) -> Outcome {
        let late = Deadline::after(PATIENCE);
        while room > 0 && !is_so(queue) {
            if late.passed() {
                say(&format!("stream {} has {room} things to do, and does none", self.number));
                self.context.fail(CUDA_ERROR_LAUNCH_TIMEOUT);
                return Err(CUDA_ERROR_LAUNCH_TIMEOUT);
            }
            // within a graph there is no news
            self.news.wait_for(queue, LOOK);
        }
        Ok(())
    }

    /// Takes note of how much is done of a graph.
    pub(crate) fn has_done_of_graph(&self, count: usize) {
        self.done_of_graph.store(count as u64, Ordering::Relaxed);
    }

    /// True if nothing is left to do.
    pub(crate) fn is_idle(&self) -> bool {
        let queue = self.queue.lock();
        queue.ops.is_empty() && queue.working.is_none()
    }

    /// Waits until nothing is left to do; false if nothing is done for too long.
    pub(crate) fn comes_to_rest(&self) -> bool {
        let mut queue = self.queue.lock();
        let is_idle = |queue: &Queue| queue.ops.is_empty() && queue.working.is_none();
        while !is_idle(&queue) {
            if self.news.wait_for(&mut queue, PATIENCE).timed_out() {
                return is_idle(&queue);
            }
        }
        true
    }

    /// Waits until nothing is left to do, or something failed.
    pub(crate) fn wait_idle(&self) -> Outcome {
        let mut queue = self.queue.lock();
        while !queue.ops.is_empty() || queue.working.is_some() {
            self.news.wait(&mut queue);
        }
        drop(queue);
        self.context.check()
    }

    /// The number of what it is doing, if it is told.
    pub(crate) fn number_of_work(&self) -> Option<u64> {
        self.queue.lock().working.as_ref().map(|told| told.number)
    }

    /// True if it was told something before `number` that it has not done, and that may write to these bytes.
    pub(crate) fn may_yet_write(&self, number: u64, from: u64, bytes: usize) -> bool {
        let queue = self.queue.lock();
        let told = queue.working.iter().chain(&queue.ops);
        told.filter(|told| told.number < number).any(|told| told.op.may_write(from, bytes))
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
            let Some(told) = queue.ops.pop_front() else {
                if self.is_ended.load(Ordering::Relaxed) {
                    return;
                }
                self.news.wait(&mut queue);
                continue;
            };
            let op = told.op.clone();
            self.has_done_of_graph(0);
            queue.working = Some(told);
            drop(queue);
            // there is room for another
            self.news.notify_all();
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
            queue.working = None;
            self.news.notify_all();
        }
    }
}
