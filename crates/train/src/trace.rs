//! `--trace`: what every process of a job did in its first steps, and when. A member sends its events to
//! the launcher after each step; the launcher puts those of all members together. The stamps are of the
//! host's monotonic clock, so that they can be compared: a job that is traced has all its
//! members on the launcher's host.

mod chrome;

use std::io::{BufWriter, Write};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tensorwire_base::{Clock, Rank};
use tensorwire_graph::{NodeId, Plan};
use tensorwire_runtime::{Event, EventKind, Session};

use crate::config::TraceConfig;
use crate::whole_file;

/// What the launcher keeps: many times what a viewer shows with ease, some tens of MiB in memory, and
/// written in the time that a job may take to end.
const EVENTS_MAX: usize = 500_000;

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
    Send {
        node: u32,
        epoch: u64,
    },
    Recv {
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
            EventKind::Send { node: NodeId(node), epoch } => Did::Send { node, epoch },
            EventKind::Recv { node: NodeId(node), epoch } => Did::Recv { node, epoch },
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

impl<'a> Collector<'a> {
    pub(crate) fn new(config: &'a TraceConfig, plan: &'a Plan) -> Collector<'a> {
        let process = |rank| Process { rank: Rank(rank), pid: None, events: Vec::new() };
        // fits: tasks are counted in u32
        let processes = (0..plan.parts.len() as u32).map(process).collect();
        Collector { config, plan, processes, room: EVENTS_MAX, overflowed: false }
    }

    /// The process `rank` runs this part of the plan, if any.
    pub(crate) fn started(&mut self, part: usize, rank: Rank, pid: u32) {
        if let Some(process) = self.processes.get_mut(part) {
            (process.rank, process.pid) = (rank, Some(pid));
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
    pub(crate) fn write(&self) -> Result<(), TraceError> {
        let path = &self.config.path;
        if self.processes.iter().all(|process| process.events.is_empty()) {
            return Ok(());
        }
        let written = whole_file::write(path, |file| {
            let mut out = BufWriter::new(file);
            chrome::write(&mut out, self.plan, &self.processes)?;
            out.flush()
        });
        written.map_err(|source| TraceError { path: path.clone(), source })
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
        let mut collector = Collector::new(&config, &plan);
        collector.started(0, Rank(0), 7);
        std::fs::write(&config.path, "precious").unwrap();
        collector.write().unwrap();
        assert_eq!(std::fs::read_to_string(&config.path).unwrap(), "precious");

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
}
