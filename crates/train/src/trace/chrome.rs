//! Events as a file of the Trace Event Format, which ui.perfetto.dev and chrome://tracing open. Pure:
//! events in, JSON out.
//!
//! Each process has a row for its steps, one for its kernels, one for what it found and waited for, and
//! as many for its sends, for what it did in a group, and for what it asked of a store, as were under way at once: slices of one
//! row may not overlap. An arrow goes from a Send to the Recv that found its tensor.

use std::collections::HashMap;
use std::io::{self, Write};

use serde::Serialize;
use tensorwire_base::Rank;
use tensorwire_graph::{Edge, EdgeId, NodeId, Op, Part, Plan};

use super::{Did, Process, TraceEvent};

/// Rows of a process; sends have this one and the next ones, what else lasts while other things happen those behind them.
const STEPS: u32 = 1;
const KERNELS: u32 = 2;
const RECEIVES: u32 = 3;
const SENDS: u32 = 4;

/// Writes the events of all processes, by part. What makes no sense in this plan is left out.
pub(super) fn write(out: &mut impl Write, plan: &Plan, processes: &[Process]) -> io::Result<()> {
    let all = || processes.iter().flat_map(|process| &process.events);
    let zero_ns = all().map(|event| event.start_ns).min().unwrap_or_default();
    let crossings = crossings(plan, processes);
    let mut list = List { out, first: true };
    list.open()?;
    for (index, (process, part)) in processes.iter().zip(&plan.parts).enumerate() {
        let Some(pid) = process.pid else { continue };
        let view = View { plan, part, index, processes, pid, zero_ns, crossings: &crossings };
        view.write(&mut list, &process.events)?;
    }
    list.close()
}

/// A tensor on its way.
pub(super) type Crossing = (EdgeId, u64);

/// When both ends of a crossing are known: when its Send began.
fn crossings(plan: &Plan, processes: &[Process]) -> HashMap<Crossing, u64> {
    let mut sent = HashMap::new();
    let mut both = HashMap::new();
    let events = |found: fn(&Part, &TraceEvent) -> Option<Crossing>| {
        let parts = processes.iter().zip(&plan.parts);
        parts.flat_map(move |(process, part)| {
            process.events.iter().filter_map(move |e| Some((found(part, e)?, e.start_ns)))
        })
    };
    sent.extend(events(sends));
    for (crossing, _) in events(receives) {
        if let Some(&start_ns) = sent.get(&crossing) {
            both.insert(crossing, start_ns);
        }
    }
    both
}

pub(super) fn sends(part: &Part, event: &TraceEvent) -> Option<Crossing> {
    match (event.did, op(part, event)?) {
        (Did::Send { epoch, .. }, Op::Send { edge } | Op::SendDynamic { edge }) => {
            Some((*edge, epoch))
        }
        _ => None,
    }
}

pub(super) fn receives(part: &Part, event: &TraceEvent) -> Option<Crossing> {
    match (event.did, op(part, event)?) {
        (Did::Recv { epoch, .. }, Op::Recv { edge, .. } | Op::RecvDynamic { edge, .. }) => {
            Some((*edge, epoch))
        }
        _ => None,
    }
}

fn op<'a>(part: &'a Part, event: &TraceEvent) -> Option<&'a Op> {
    let (Did::Kernel { node }
    | Did::Copy { node }
    | Did::CopyAhead { node }
    | Did::Send { node, .. }
    | Did::Recv { node, .. }
    | Did::Pull { node, .. }
    | Did::Collective { node }) = event.did
    else {
        return None;
    };
    ((node as usize) < part.graph.len()).then(|| &part.graph.node(NodeId(node)).op)
}

/// True of what lasts while other things happen, of one kind.
type IsSuch = fn(Did) -> bool;

/// One process, as the file shows it.
struct View<'a> {
    plan: &'a Plan,
    part: &'a Part,
    /// Of the part.
    index: usize,
    processes: &'a [Process],
    pid: u32,
    zero_ns: u64,
    crossings: &'a HashMap<Crossing, u64>,
}

impl View<'_> {
    fn write(&self, list: &mut List<'_, impl Write>, events: &[TraceEvent]) -> io::Result<()> {
        let kinds: [(&str, IsSuch); 4] = [
            ("sends", |did| matches!(did, Did::Send { .. })),
            ("pulls", |did| matches!(did, Did::Pull { .. })),
            ("collectives", |did| matches!(did, Did::Collective { .. })),
            ("copies", |did| matches!(did, Did::Copy { .. } | Did::CopyAhead { .. })),
        ];
        let (mut rows, mut placed, mut first) = (Vec::new(), Vec::new(), SENDS);
        for (what, is_such) in kinds {
            let such = Placed::new(events, first, is_such);
            first += such.rows;
            rows.push((what, such.rows));
            placed.extend(such.events);
        }
        self.name(list, &rows)?;
        for (event, row) in placed {
            self.event(list, event, row)?;
        }
        for event in events {
            let row = match event.did {
                Did::Step => STEPS,
                Did::Kernel { .. } => KERNELS,
                Did::Recv { .. } | Did::Wait => RECEIVES,
                Did::Send { .. }
                | Did::Pull { .. }
                | Did::Collective { .. }
                | Did::Copy { .. }
                | Did::CopyAhead { .. } => continue,
            };
            self.event(list, event, row)?;
        }
        Ok(())
    }

    /// What the process and its rows are called, in which order.
    fn name(&self, list: &mut List<'_, impl Write>, placed: &[(&str, u32)]) -> io::Result<()> {
        let (pid, rank) = (self.pid, self.processes[self.index].rank);
        let mut tell = |tid, name, args| list.push(&Metadata { ph: "M", name, pid, tid, args });
        let name = format!("{} (rank {rank}, pid {pid})", self.part.task);
        tell(0, "process_name", Named::Name(name))?;
        tell(0, "process_sort_index", Named::SortIndex(u64::from(rank.0)))?;
        let fixed = [(STEPS, "steps"), (KERNELS, "kernels"), (RECEIVES, "receives and waits")];
        let fixed = fixed.into_iter().map(|(tid, name)| (tid, name.to_string()));
        let placed = placed.iter();
        let placed =
            placed.flat_map(|(what, rows)| (1..=*rows).map(move |row| format!("{what} {row}")));
        for (tid, name) in fixed.chain((SENDS..).zip(placed)) {
            tell(tid, "thread_name", Named::Name(name))?;
            tell(tid, "thread_sort_index", Named::SortIndex(u64::from(tid)))?;
        }
        Ok(())
    }

    fn event(
        &self,
        list: &mut List<'_, impl Write>,
        event: &TraceEvent,
        tid: u32,
    ) -> io::Result<()> {
        let step = event.step;
        let (cat, node) = match event.did {
            Did::Step => ("step", None),
            Did::Wait => ("wait", None),
            Did::Kernel { node } => ("kernel", Some(node)),
            Did::Copy { node } => ("copy", Some(node)),
            Did::CopyAhead { node } => ("copy ahead", Some(node)),
            Did::Send { node, .. } => ("send", Some(node)),
            Did::Recv { node, .. } => ("recv", Some(node)),
            Did::Pull { node, .. } => ("pull", Some(node)),
            Did::Collective { node } => ("collective", Some(node)),
        };
        let op = op(self.part, event);
        let name = match (cat, node, op) {
            ("step", ..) => format!("step {step}"),
            (_, None, _) => cat.to_string(),
            (_, Some(node), Some(_)) => self.part.graph.node(NodeId(node)).name.clone(),
            // from another plan
            (_, Some(_), None) => return Ok(()),
        };
        let edge = op.and_then(Op::edge).and_then(|edge| self.plan.edges.get(edge.index()));
        let bytes = match (event.did, node) {
            (Did::Collective { .. } | Did::Copy { .. } | Did::CopyAhead { .. }, Some(node)) => {
                let spot = self.part.memory.spot(NodeId(node).into());
                spot.map(|spot| spot.spec.bytes())
            }
            _ => edge.and_then(|edge| edge.bytes()),
        };
        let args = Args {
            step,
            op: op.map(Op::name),
            bytes,
            transfer: edge.map(|edge| edge.transfer.to_string()),
            peer: edge.map(|edge| self.peer(edge)),
        };
        let (pid, ts) = (self.pid, self.us(event.start_ns));
        let dur = us(event.end_ns.saturating_sub(event.start_ns));
        list.push(&Slice { ph: "X", name: &name, cat, pid, tid, ts, dur, args })?;
        self.arrow(list, event, edge, tid)
    }

    /// The end of an arrow that a crossing has here.
    fn arrow(
        &self,
        list: &mut List<'_, impl Write>,
        event: &TraceEvent,
        edge: Option<&Edge>,
        tid: u32,
    ) -> io::Result<()> {
        let (start, end) = (sends(self.part, event), receives(self.part, event));
        let Some((id, epoch)) = start.or(end) else { return Ok(()) };
        let (Some(edge), Some(&sent_ns)) = (edge, self.crossings.get(&(id, epoch))) else {
            return Ok(());
        };
        // a poll may have been asleep on its processor since before the tensor was sent, and the clocks of two hosts may differ
        let ts = self.us(event.start_ns.max(sent_ns.min(event.end_ns)));
        let (ph, bp) = if start.is_some() { ("s", None) } else { ("f", Some("e")) };
        // hexadecimal text, since JSON's numbers lose digits in viewers
        let id = format!("0x{:x}{epoch:08x}", id.0);
        let (name, pid) = (edge.name.as_str(), self.pid);
        list.push(&Arrow { ph, bp, id, name, cat: "tensor", pid, tid, ts })
    }

    fn peer(&self, edge: &Edge) -> String {
        let other = if edge.from == self.index { edge.to } else { edge.from };
        let rank = self.processes.get(other).map_or(Rank(0), |process| process.rank);
        format!("{} (rank {rank})", self.plan.parts[other].task)
    }

    fn us(&self, ns: u64) -> f64 {
        us(ns.saturating_sub(self.zero_ns))
    }
}

fn us(ns: u64) -> f64 {
    // fits: a trace is seconds long
    ns as f64 / 1e3
}

/// Rows such that no two slices of one overlap; filled in the order of starts.
#[derive(Default)]
struct Rows {
    /// By row.
    busy_until_ns: Vec<u64>,
}

/// What lasts while other such lasts, by its beginning, each in its row: the first one free from `first` on.
struct Placed<'a> {
    events: Vec<(&'a TraceEvent, u32)>,
    rows: u32,
}

impl<'a> Placed<'a> {
    fn new(events: &'a [TraceEvent], first: u32, is_such: IsSuch) -> Placed<'a> {
        let mut all: Vec<&TraceEvent> = events.iter().filter(|event| is_such(event.did)).collect();
        all.sort_by_key(|event| event.start_ns);
        let mut rows = Rows::default();
        let events = all.into_iter().map(|event| (event, first + rows.place(event))).collect();
        Placed { events, rows: rows.count() }
    }
}

impl Rows {
    fn place(&mut self, event: &TraceEvent) -> u32 {
        let free = self.busy_until_ns.iter().position(|&until| until <= event.start_ns);
        let row = free.unwrap_or(self.busy_until_ns.len());
        if free.is_none() {
            self.busy_until_ns.push(0);
        }
        self.busy_until_ns[row] = event.end_ns;
        // fits: at most one row an edge, and edges are counted by u32
        row as u32
    }

    fn count(&self) -> u32 {
        // fits: as above
        self.busy_until_ns.len() as u32
    }
}

/// The file: an object around a list with one event a line.
struct List<'a, W> {
    out: &'a mut W,
    first: bool,
}

impl<W: Write> List<'_, W> {
    fn open(&mut self) -> io::Result<()> {
        write!(self.out, r#"{{"displayTimeUnit":"ms","traceEvents":["#)
    }

    fn push(&mut self, event: &impl Serialize) -> io::Result<()> {
        let separator = if std::mem::take(&mut self.first) { "\n" } else { ",\n" };
        self.out.write_all(separator.as_bytes())?;
        Ok(serde_json::to_writer(&mut *self.out, event)?)
    }

    fn close(self) -> io::Result<()> {
        self.out.write_all(b"\n]}\n")
    }
}

#[derive(Serialize)]
struct Slice<'a> {
    ph: &'static str,
    name: &'a str,
    cat: &'static str,
    pid: u32,
    tid: u32,
    ts: f64,
    dur: f64,
    args: Args,
}

#[derive(Serialize)]
struct Args {
    step: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    op: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transfer: Option<String>,
}

#[derive(Serialize)]
struct Arrow<'a> {
    ph: &'static str,
    /// `e`: the end is bound to the slice around it, not to the next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
    id: String,
    name: &'a str,
    cat: &'static str,
    pid: u32,
    tid: u32,
    ts: f64,
}

#[derive(Serialize)]
struct Metadata {
    ph: &'static str,
    name: &'static str,
    pid: u32,
    tid: u32,
    args: Named,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Named {
    Name(String),
    SortIndex(u64),
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use tensorwire_graph::{
        Cluster, Graph, Hint, Init, Placement, PlanOptions, RunSpec, place, plan,
    };
    use tensorwire_tensor::{DType, TensorSpec};

    /// Two variables on a server, whose largest elements a worker computes.
    fn two_crossings() -> Plan {
        let mut graph = Graph::new();
        let mut roots = Vec::new();
        for name in ["a", "b"] {
            let spec = TensorSpec::new(DType::F32, &[4]).unwrap();
            let variable = graph.variable(name, spec, Init::Zeros).unwrap();
            let (name, hint) = (format!("max_{name}"), Hint::Replica(0));
            roots.push(graph.add(&name, hint, Op::ReduceMax, &[variable]).unwrap());
        }
        let cluster = Cluster::ParameterServers { workers: 1, servers: 1 };
        let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
        let run = RunSpec { name: "r", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
        plan(&placed, &cluster.tasks(), &[run], PlanOptions::default()).unwrap()
    }

    fn edges(plan: &Plan) -> [&Edge; 2] {
        ["a", "b"].map(|name| plan.edges.iter().find(|edge| edge.name == name).unwrap())
    }

    fn did(did: Did, start_ns: u64, end_ns: u64) -> TraceEvent {
        TraceEvent { step: 1, did, start_ns, end_ns }
    }

    fn send(edge: &Edge, start_ns: u64, end_ns: u64) -> TraceEvent {
        did(Did::Send { node: edge.send.0, epoch: 1 }, start_ns, end_ns)
    }

    fn recv(edge: &Edge, start_ns: u64, end_ns: u64) -> TraceEvent {
        did(Did::Recv { node: edge.recv.0, epoch: 1 }, start_ns, end_ns)
    }

    /// What is written of a worker and a server.
    fn written(plan: &Plan, worker: Vec<TraceEvent>, server: Vec<TraceEvent>) -> Vec<Value> {
        let worker = Process { rank: Rank(0), pid: Some(70), events: worker };
        let server = Process { rank: Rank(1), pid: Some(80), events: server };
        let mut text = Vec::new();
        write(&mut text, plan, &[worker, server]).unwrap();
        let file: Value = serde_json::from_slice(&text).unwrap();
        file["traceEvents"].as_array().unwrap().clone()
    }

    fn of<'a>(events: &'a [Value], ph: &str) -> Vec<&'a Value> {
        events.iter().filter(|event| event["ph"] == ph).collect()
    }

    #[test]
    fn times_are_microseconds_since_the_first_event_of_any_process() {
        let plan = two_crossings();
        let [a, _] = edges(&plan);
        let waits = did(Did::Wait, 7_000_500, 7_002_000);
        let found = written(&plan, vec![waits], vec![send(a, 7_000_000, 7_001_250)]);
        let slices = of(&found, "X");
        let times: Vec<_> = slices.iter().map(|s| (&s["ts"], &s["dur"])).collect();
        assert_eq!(times, [(&0.5.into(), &1.5.into()), (&0.0.into(), &1.25.into())]);
        assert_eq!(slices[0]["cat"], "wait");
        let args = serde_json::json!({
            "step": 1, "op": "Send", "bytes": 16, "peer": "worker 0 (rank 0)",
            "transfer": "one write"
        });
        assert_eq!(slices[1]["args"], args);
        let names: Vec<_> = of(&found, "M").iter().map(|m| m["args"]["name"].clone()).collect();
        for name in ["worker 0 (rank 0, pid 70)", "server 0 (rank 1, pid 80)", "sends 1"] {
            assert!(names.contains(&name.into()), "{names:?}");
        }
    }

    #[test]
    fn sends_under_way_at_once_have_rows_of_their_own() {
        let plan = two_crossings();
        let [a, b] = edges(&plan);
        let overlapping = vec![send(b, 40, 90), send(a, 10, 50), send(a, 50, 60)];
        let found = written(&plan, vec![], overlapping);
        let rows: Vec<_> = of(&found, "X").iter().map(|s| s["tid"].clone()).collect();
        assert_eq!(rows, [SENDS, SENDS + 1, SENDS]);
    }

    #[test]
    fn an_arrow_goes_from_a_send_to_the_recv_that_found_its_tensor() {
        let plan = two_crossings();
        let [a, b] = edges(&plan);
        // b was sent and not received; the poll that found a began before a was sent
        let found = written(&plan, vec![recv(a, 15, 35)], vec![send(a, 20, 30), send(b, 21, 40)]);
        let (starts, ends) = (of(&found, "s"), of(&found, "f"));
        assert_eq!((starts.len(), ends.len()), (1, 1));
        let (start, end) = (starts[0], ends[0]);
        assert_eq!((&start["pid"], &end["pid"]), (&80.into(), &70.into()));
        assert_eq!((&start["id"], &start["name"]), (&end["id"], &end["name"]));
        assert_eq!((&start["ts"], &end["ts"]), (&0.005.into(), &0.005.into()));
    }

    #[test]
    fn what_is_not_in_the_plan_is_left_out() {
        let plan = two_crossings();
        let [a, _] = edges(&plan);
        let foreign = vec![
            did(Did::Kernel { node: u32::MAX }, 1, 2),
            did(Did::Recv { node: 9999, epoch: 1 }, 1, 2),
            // backwards, and of a node that receives nothing here
            recv(a, 9, 3),
            send(a, 4, 2),
        ];
        let found = written(&plan, foreign.clone(), foreign);
        assert_eq!(of(&found, "X").len(), 4);
        assert!(of(&found, "X").iter().all(|slice| slice["dur"] == 0.0));
    }
}
