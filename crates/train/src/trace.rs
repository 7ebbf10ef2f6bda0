//! `--trace`: what every process of a job did in its first steps, and when. A member sends its events to
//! the launcher after each step; the launcher puts those of all members together. The stamps are of the
//! host's monotonic clock; those of other hosts are put in the launcher's time, as far as that is known
//! ([`MemberClock`]).

mod chrome;
mod hidden;

use std::io::{BufWriter, Write};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tensorwire_base::{Clock, Rank};
use tensorwire_graph::{NodeId, Plan};
use tensorwire_launch::{ClockReading, MemberClock};
use tensorwire_runtime::{Event, EventKind, Session};

pub use hidden::Hidden;

use crate::config::TraceConfig;
use crate::whole_file;

/// What the launcher keeps: many times what a viewer shows with ease, some tens of MiB in memory, and
/// written in the time that a job may take to end.
const EVENTS_MAX: usize = 500_000;

/// Linux counts processes up to here.
const PIDS_MAX: u32 = 1 << 22;

/// One thing that a process did, as far as its executor noticed: it finds that a tensor came, or that a
/// send is over, only between two kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceEvent {
    pub(crate) step: u64,
    pub(crate) did: Did,
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
}

/// A node is an index into the graph of the process's own part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Did {
    /// The whole step, the feeding of its samples included.
    Step,
    Kernel {
        node: u32,
    },
    /// What a device copied to or from the host's memory.
    Copy {
        node: u32,
    },
    /// Had a device copy what the next step is fed.
    CopyAhead {
        node: u32,
    },
    Send {
        node: u32,
        epoch: u64,
    },
    Recv {
        node: u32,
        epoch: u64,
    },
    /// What was asked of a store, until it was found.
    Pull {
        node: u32,
        epoch: u64,
    },
    /// What a group did with a vector.
    Collective {
        node: u32,
    },
    Wait,
}

/// A trace cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the trace to {path}: {source}; free space there or write it elsewhere")]
pub struct TraceError {
    path: PathBuf,
    source: std::io::Error,
}

impl From<&Event> for TraceEvent {
    fn from(event: &Event) -> TraceEvent {
        let Event { step, what, start_ns, end_ns } = *event;
        let did = match what {
            EventKind::Kernel(NodeId(node)) => Did::Kernel { node },
            EventKind::Copy(NodeId(node)) => Did::Copy { node },
            EventKind::CopyAhead(NodeId(node)) => Did::CopyAhead { node },
            EventKind::Send { node: NodeId(node), epoch } => Did::Send { node, epoch },
            EventKind::Recv { node: NodeId(node), epoch } => Did::Recv { node, epoch },
            EventKind::Pull { node: NodeId(node), epoch } => Did::Pull { node, epoch },
            EventKind::Collective(NodeId(node)) => Did::Collective { node },
            EventKind::Wait => Did::Wait,
        };
        TraceEvent { step, did, start_ns, end_ns }
    }
}

/// Takes what a session recorded of `step`, which began at `start_ns` and ends now.
pub(crate) fn take_step(session: &mut Session, step: u64, start_ns: u64) -> Vec<TraceEvent> {
    let whole = TraceEvent { step, did: Did::Step, start_ns, end_ns: Clock::now_ns() };
    let mut events = vec![whole];
    if let Some(timeline) = session.timeline() {
        events.extend(timeline.events().iter().map(TraceEvent::from));
        timeline.clear();
    }
    events
}

/// Puts together what the processes of a job did.
#[derive(Debug)]
pub(crate) struct Collector<'a> {
    config: &'a TraceConfig,
    plan: &'a Plan,
    /// By part.
    processes: Vec<Process>,
    /// By part: the clock of its host, if that is not the launcher's.
    clocks: Vec<Option<MemberClock>>,
    /// How many more events are kept.
    room: usize,
    /// Some were not kept, and the user knows it.
    overflowed: bool,
}

#[derive(Debug)]
struct Process {
    rank: Rank,
    /// None: it has not started.
    pid: Option<u32>,
    events: Vec<TraceEvent>,
}

/// What is said of a trace that was written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceSummary {
    /// None if nothing was recorded.
    pub hidden: Option<Hidden>,
    /// Most that the times of other hosts may be wrong, in nanoseconds; none if all processes were on the launcher's.
    pub clock_error_ns: Option<u64>,
    /// The processes on other hosts whose clocks were never read; the trace has nothing of them.
    pub unknown: Vec<Rank>,
}

impl<'a> Collector<'a> {
    pub(crate) fn new(config: &'a TraceConfig, plan: &'a Plan) -> Collector<'a> {
        let process = |rank| Process { rank: Rank(rank), pid: None, events: Vec::new() };
        // fits: tasks are counted in u32
        let processes: Vec<Process> = (0..plan.parts.len() as u32).map(process).collect();
        let clocks = vec![None; processes.len()];
        Collector { config, plan, processes, clocks, room: EVENTS_MAX, overflowed: false }
    }

    /// The process `rank` runs this part of the plan, if any. `is_here`: on the launcher's host.
    pub(crate) fn started(&mut self, part: usize, rank: Rank, pid: u32, is_here: bool) {
        // hosts count their processes alike, and viewers tell processes by that number
        let is_taken = self.processes.iter().any(|process| process.pid == Some(pid));
        let pid = if is_taken { PIDS_MAX + rank.0 } else { pid };
        if let Some(process) = self.processes.get_mut(part) {
            (process.rank, process.pid) = (rank, Some(pid));
            self.clocks[part] = (!is_here).then(MemberClock::default);
        }
    }

    /// The clock of the process that runs this part was read. Once its last step is recorded, that tells nothing more.
    pub(crate) fn read_clock(&mut self, part: usize, reading: ClockReading) {
        let events = self.processes.get(part).map_or(&[][..], |process| &process.events);
        let steps = events.iter().filter(|event| event.did == Did::Step).count();
        // fits: usize is 64 bits wide
        let is_over = self.overflowed || steps as u64 >= self.config.steps;
        if let Some(Some(clock)) = self.clocks.get_mut(part).filter(|_| !is_over) {
            clock.add(reading);
        }
    }

    pub(crate) fn add(&mut self, part: usize, events: &[TraceEvent]) {
        let taken = events.len().min(self.room);
        if taken < events.len() && !std::mem::replace(&mut self.overflowed, true) {
            tracing::warn!("the trace ends after {EVENTS_MAX} events; lower --trace-steps");
        }
        if let Some(process) = self.processes.get_mut(part) {
            process.events.extend(&events[..taken]);
            self.room -= taken;
        }
    }

    /// Writes what was collected, whole or not at all. If nothing was, what the file held before stays.
    pub(crate) fn write(mut self) -> Result<TraceSummary, TraceError> {
        let mut summary = self.set_clocks();
        if self.processes.iter().all(|process| process.events.is_empty()) {
            return Ok(summary);
        }
        let path = &self.config.path;
        let written = whole_file::write(path, |file| {
            let mut out = BufWriter::new(file);
            chrome::write(&mut out, self.plan, &self.processes)?;
            out.flush()
        });
        written.map_err(|source| TraceError { path: path.clone(), source })?;
        summary.hidden = Hidden::of(self.plan, &self.processes);
        Ok(summary)
    }

    /// Puts the times of other hosts in the launcher's.
    fn set_clocks(&mut self) -> TraceSummary {
        let mut summary = TraceSummary::default();
        for (process, clock) in self.processes.iter_mut().zip(&self.clocks) {
            let Some(clock) = clock else { continue };
            for event in &mut process.events {
                let (start, end) =
                    (clock.by_launcher(event.start_ns), clock.by_launcher(event.end_ns));
                let (Some((start_ns, error)), Some((end_ns, _))) = (start, end) else {
                    summary.unknown.push(process.rank);
                    process.events = Vec::new();
                    break;
                };
                (event.start_ns, event.end_ns) = (start_ns, end_ns.max(start_ns));
                // of one that reads the launcher's own clock there is nothing to say
                let error = Some(error).filter(|error| *error > 0);
                summary.clock_error_ns = summary.clock_error_ns.max(error);
            }
        }
        summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorwire_graph::{Cluster, Graph, PlanOptions, plan};

    #[test]
    fn what_is_collected_is_bounded_and_nothing_replaces_no_earlier_trace() {
        let folder = tempfile::tempdir().unwrap();
        let config = TraceConfig { path: folder.path().join("t.json"), steps: 1 };
        let plan =
            plan(&Graph::new(), &Cluster::Local.tasks(), &[], PlanOptions::default()).unwrap();
        let started = || {
            let mut collector = Collector::new(&config, &plan);
            collector.started(0, Rank(0), 7, true);
            collector
        };
        std::fs::write(&config.path, "precious").unwrap();
        assert_eq!(started().write().unwrap(), TraceSummary::default());
        assert_eq!(std::fs::read_to_string(&config.path).unwrap(), "precious");
        let mut collector = started();

        let event = TraceEvent { step: 1, did: Did::Step, start_ns: 1, end_ns: 2 };
        collector.room = 5;
        collector.add(0, &[event; 4]);
        // there is no such part
        collector.add(1, &[event]);
        collector.add(0, &[event; 3]);
        collector.add(0, &[event]);
        assert!(collector.overflowed);
        collector.write().unwrap();
        let written = std::fs::read(&config.path).unwrap();
        let file: serde_json::Value = serde_json::from_slice(&written).unwrap();
        let events = file["traceEvents"].as_array().unwrap();
        assert_eq!(events.iter().filter(|event| event["ph"] == "X").count(), 5);
    }

    #[test]
    fn times_of_another_host_are_put_in_the_launchers() {
        let folder = tempfile::tempdir().unwrap();
        let config = TraceConfig { path: folder.path().join("t.json"), steps: 1 };
        let cluster = Cluster::Workers { workers: 3 };
        let plan = plan(&Graph::new(), &cluster.tasks(), &[], PlanOptions::default()).unwrap();
        let mut collector = Collector::new(&config, &plan);
        collector.started(0, Rank(0), 7, true);
        collector.started(1, Rank(1), 7, false);
        collector.started(2, Rank(2), 9, false);
        let event = |start_ns, end_ns| TraceEvent { step: 1, did: Did::Step, start_ns, end_ns };
        // told at 1,000, heard at 1,400, while it read 901,200
        collector.read_clock(1, ClockReading::of(1_000, 901_200, 1_400).unwrap());
        // one of this host has no clock of its own
        collector.read_clock(0, ClockReading::of(1_000, 901_200, 1_400).unwrap());
        collector.add(0, &[event(2_000, 5_000)]);
        collector.add(1, &[event(903_000, 904_000)]);
        collector.add(2, &[event(77, 78)]);
        let summary = collector.write().unwrap();
        assert_eq!(summary.unknown, [Rank(2)]);
        // and what the clocks may drift apart in the 1,800 ns since
        assert_eq!(summary.clock_error_ns, Some(201));
        let written = std::fs::read(&config.path).unwrap();
        let file: serde_json::Value = serde_json::from_slice(&written).unwrap();
        let slices = file["traceEvents"].as_array().unwrap().iter();
        let slices: Vec<_> = slices.filter(|event| event["ph"] == "X").collect();
        let times: Vec<_> = slices.iter().map(|slice| (&slice["ts"], &slice["dur"])).collect();
        assert_eq!(times, [(&0.0.into(), &3.0.into()), (&1.0.into(), &1.0.into())]);
        assert_ne!(slices[0]["pid"], slices[1]["pid"]);
    }
}
