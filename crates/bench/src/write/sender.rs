//! The end that writes and measures, and calls and measures.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorwire_base::{Clock, Deadline};
use tensorwire_fabric::{
    ArrivalSlot, Direction, LocalSlice, Memcpy, RegionDescriptor, RemoteRegion, RemoteSlice,
    Signal, Wake,
};
use tensorwire_train::Quantiles;

use super::calls::Caller;
use super::member::{End, FromReceiver, FromSender, PATIENCE, WriteError, offset};
use super::pace::Pace;
use super::{WriteSpec, payload};

/// What the sender reports.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SenderReport {
    pub(super) writes: Figures,
    /// Where calls were asked for.
    pub(super) calls: Option<Figures>,
}

/// The two figures.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Figures {
    pub(super) round_trip_us: Quantiles,
    /// By round.
    pub(super) bytes_per_second: Quantiles,
    /// Writes, or calls, that were measured.
    pub(super) count: u64,
}

/// Measures; the receiver answers.
pub(super) fn send(end: End, spec: &WriteSpec) -> Result<SenderReport, WriteError> {
    end.tell(&end.region.descriptor().to_bytes())?;
    let FromReceiver::Here { memory, grpc } = end.hear()? else {
        return Err(WriteError::Language);
    };
    let theirs = RegionDescriptor::from_bytes(&memory)?;
    let theirs = end.channel.open_region(&theirs, Deadline::after(PATIENCE))?;
    for place in &end.places {
        payload::fill(&mut place.write()?);
    }
    let mut writer = Writer { end, spec, theirs };
    let mut caller = grpc.map(|at| Caller::connect(at, spec)).transpose()?;
    // the first of everything is slow, and measures nothing
    if spec.warm_up > 0 {
        writer.round_trips(Pace::of(spec.warm_up as u64))?;
    }
    let (mut writes, mut calls) = (Samples::default(), Samples::default());
    for _ in 0..spec.rounds {
        writes.round_trips_ns.extend(writer.round_trips(pace(spec))?);
        writes.add(writer.throughput()?);
        if let Some(caller) = &mut caller {
            calls.round_trips_ns.extend(caller.round_trips()?);
            calls.add(caller.throughput()?);
        }
    }
    writer.end.tell(&FromSender::Done)?;
    let calls = caller.map(|_| calls.figures());
    Ok(SenderReport { writes: writes.figures(), calls })
}

/// Of all rounds.
#[derive(Default)]
struct Samples {
    round_trips_ns: Vec<f64>,
    bytes_per_second: Vec<f64>,
    count: u64,
}

/// One measurement of throughput.
pub(super) struct Run {
    count: u64,
    bytes_per_second: f64,
}

impl Samples {
    fn add(&mut self, run: Run) {
        self.bytes_per_second.push(run.bytes_per_second);
        self.count += run.count;
    }

    fn figures(self) -> Figures {
        let count = self.count + self.round_trips_ns.len() as u64;
        // every round has at least one of each, and there is a round
        let none = Quantiles { count: 0, p10: f64::NAN, median: f64::NAN, p90: f64::NAN };
        let of = |samples: Vec<f64>| Quantiles::of(samples).unwrap_or(none);
        let round_trips_us = self.round_trips_ns.into_iter().map(|ns| ns / 1000.0);
        Figures {
            round_trip_us: of(round_trips_us.collect()),
            bytes_per_second: of(self.bytes_per_second),
            count,
        }
    }
}

impl Run {
    pub(super) fn new(count: u64, pace: Pace, spec: &WriteSpec) -> Run {
        // fits: for people
        let seconds = pace.elapsed_ns().max(1) as f64 / 1e9;
        Run { count, bytes_per_second: count as f64 * spec.bytes as f64 / seconds }
    }
}

pub(super) fn pace(spec: &WriteSpec) -> Pace {
    match spec.repetitions {
        Some(count) => Pace::of(count as u64), // fits: usize is 64 bits wide
        None => {
            Pace::start(Duration::from_millis(spec.least_ms), Duration::from_millis(spec.most_ms))
        }
    }
}

/// Writes from its own registered memory into the receiver's.
struct Writer<'a> {
    end: End,
    spec: &'a WriteSpec,
    theirs: RemoteRegion,
}

/// The writes of one measurement, numbered from 1.
struct Course {
    arrivals: ArrivalSlot,
    answers: ArrivalSlot,
    posted: u64,
    completed: u64,
}

impl Writer<'_> {
    /// One after another: nanoseconds from before the post until the answer is there.
    fn round_trips(&mut self, pace: Pace) -> Result<Vec<f64>, WriteError> {
        let mut course = self.begin()?;
        let mut times = Vec::new();
        while pace.goes_on(course.posted) {
            self.prepare(&course)?;
            let start_ns = Clock::now_ns();
            self.post(&mut course)?;
            let last = course.posted;
            self.await_until(&mut course, last, last)?;
            // fits: durations far below 2^53
            times.push(Clock::now_ns().saturating_sub(start_ns) as f64);
        }
        self.finish(&course)?;
        Ok(times)
    }

    /// As many on their way as the window allows. A signal speaks for all writes before it, so only the
    /// last one is signalled, and the clock runs until it is answered.
    fn throughput(&mut self) -> Result<Run, WriteError> {
        let window = self.spec.window as u64;
        let mut course = self.begin()?;
        let pace = pace(self.spec);
        while pace.goes_on(course.posted) {
            if course.posted >= window {
                let oldest = course.posted + 1 - window;
                self.await_until(&mut course, oldest, 0)?;
            }
            self.prepare(&course)?;
            self.post_write(&mut course, None)?;
        }
        let last = course.posted;
        self.post_signal(&course)?;
        self.await_until(&mut course, last + 1, last)?;
        let run = Run::new(course.posted, pace, self.spec);
        self.finish(&course)?;
        Ok(run)
    }

    fn begin(&mut self) -> Result<Course, WriteError> {
        let answers = self.end.slot()?;
        self.end.tell(&FromSender::Begin { answers: answers.0 })?;
        match self.end.hear()? {
            FromReceiver::Ready { arrivals } => {
                Ok(Course { arrivals: ArrivalSlot(arrivals), answers, posted: 0, completed: 0 })
            }
            _ => Err(WriteError::Language),
        }
    }

    /// Has the receiver compare the last write.
    fn finish(&mut self, course: &Course) -> Result<(), WriteError> {
        self.end.tell(&FromSender::End { last: course.posted })?;
        match self.end.hear()? {
            FromReceiver::Verified => Ok(()),
            _ => Err(WriteError::Language),
        }
    }

    /// Stamps the next write; what was there before has been taken.
    fn prepare(&mut self, course: &Course) -> Result<(), WriteError> {
        // fits: a remainder; `Pace` ends a course long before 2^32
        let place = (course.posted % self.spec.window as u64) as usize;
        payload::stamp(&mut self.end.places[place].write()?, (course.posted + 1) as u32);
        Ok(())
    }

    fn post(&mut self, course: &mut Course) -> Result<(), WriteError> {
        let signal = Signal { slot: course.arrivals, epoch: course.posted + 1 };
        self.post_write(course, Some(signal))
    }

    fn post_write(
        &mut self,
        course: &mut Course,
        signal: Option<Signal>,
    ) -> Result<(), WriteError> {
        let offset = offset(course.posted, self.spec);
        course.posted += 1;
        self.memcpy(offset, self.spec.bytes as u64, signal, course.posted)
    }

    /// Says that all writes so far are there.
    fn post_signal(&mut self, course: &Course) -> Result<(), WriteError> {
        let signal = Signal { slot: course.arrivals, epoch: course.posted };
        self.memcpy(0, 0, Some(signal), course.posted)
    }

    fn memcpy(
        &self,
        offset: u64,
        bytes: u64,
        signal: Option<Signal>,
        token: u64,
    ) -> Result<(), WriteError> {
        Ok(self.end.channel.memcpy(Memcpy {
            local: LocalSlice { region: &self.end.region, offset },
            remote: RemoteSlice { region: &self.theirs, offset },
            bytes,
            direction: Direction::Write,
            signal,
            token,
        })?)
    }

    /// Waits until so many memcpys have completed, whose sources may be written again, and the write of
    /// that number is answered.
    fn await_until(
        &mut self,
        course: &mut Course,
        completed: u64,
        answered: u64,
    ) -> Result<(), WriteError> {
        loop {
            let ticket = self.end.fabric.ticket();
            course.completed += self.end.poll()?;
            let answers = self.end.fabric.arrived(course.answers);
            if answers >= answered && course.completed >= completed {
                return Ok(());
            }
            if let Some(fault) = self.end.fabric.fault() {
                return Err(fault.into());
            }
            if self.end.fabric.wait(ticket, Deadline::after(PATIENCE)) == Wake::TimedOut {
                return Err(WriteError::Silent);
            }
        }
    }
}
