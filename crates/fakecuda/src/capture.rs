//! What streams are told while they are captured, and graphs of it. A stream takes part from the moment when it waits for
//! an event of the capture, and must be waited for in turn before the end.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tensorwire_device::sys::*;

use crate::state::Outcome;
use crate::stream::{Op, Stream};

/// Of each stream by its number, the last point of it that comes before.
pub(crate) type Clocks = HashMap<u64, u64>;

#[derive(Debug)]
pub(crate) struct Capture {
    /// The number of the stream that began it.
    origin: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order in which they were told, which is one in which they may be done.
    ops: Vec<Op>,
    streams: Vec<Weak<Stream>>,
    points: u64,
    clocks: HashMap<u64, Clocks>,
    /// The last point of each stream.
    last: Clocks,
    is_invalid: bool,
}

/// A graph that was captured.
#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) ops: Vec<Op>,
}

/// A graph that can be launched.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) ops: Vec<Op>,
    /// Held by who runs it: it runs once at a time.
    pub(crate) turn: Mutex<()>,
}

impl Capture {
    pub(crate) fn begin(stream: &Arc<Stream>) -> Arc<Capture> {
        let capture = Arc::new(Capture { origin: stream.number, state: Mutex::default() });
        capture.join(stream, Clocks::new());
        capture
    }

    /// A stream takes part, or what it is told next comes behind some points.
    pub(crate) fn join(self: &Arc<Self>, stream: &Arc<Stream>, behind: Clocks) {
        let mut state = self.state.lock();
        if stream.join(self) {
            state.streams.push(Arc::downgrade(stream));
        }
        let clocks = state.clocks.entry(stream.number).or_default();
        for (of, point) in behind {
            let known = clocks.entry(of).or_default();
            *known = point.max(*known);
        }
        state.step(stream.number);
    }

    pub(crate) fn push(&self, stream: &Stream, op: Op) -> Outcome {
        let mut state = self.state.lock();
        if state.is_invalid {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        state.ops.push(op);
        state.step(stream.number);
        Ok(())
    }

    /// Where a stream is.
    pub(crate) fn clocks(&self, stream: &Stream) -> Clocks {
        self.state.lock().clocks.get(&stream.number).cloned().unwrap_or_default()
    }

    /// Somebody did what cannot be captured.
    pub(crate) fn invalidate(&self) {
        self.state.lock().is_invalid = true;
    }

    pub(crate) fn is_invalid(&self) -> bool {
        self.state.lock().is_invalid
    }

    /// Ends it by one of its streams: all of them work as before.
    pub(crate) fn end(&self, stream: &Stream) -> Outcome<Recording> {
        if stream.number != self.origin {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let mut state = self.state.lock();
        for stream in state.streams.drain(..).filter_map(|stream| stream.upgrade()) {
            stream.leave();
        }
        if state.is_invalid {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let joined = state.clocks.get(&self.origin).cloned().unwrap_or_default();
        let is_joined = |(of, last): (&u64, &u64)| joined.get(of).is_some_and(|seen| seen >= last);
        if !state.last.iter().all(is_joined) {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
        }
        Ok(Recording { ops: std::mem::take(&mut state.ops) })
    }
}

impl State {
    /// A stream comes to a point of its own.
    fn step(&mut self, stream: u64) {
        self.points += 1;
        self.clocks.entry(stream).or_default().insert(stream, self.points);
        self.last.insert(stream, self.points);
    }
}
