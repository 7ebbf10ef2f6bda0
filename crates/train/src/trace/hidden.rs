//! What of communication passed while kernels ran, from what the processes of a job recorded.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use tensorwire_graph::{Job, Plan};

use super::chrome::{Crossing, receives, sends};
use super::{Did, Process};

/// What a worker's step had of communication, as the mean over workers and traced steps; in nanoseconds. A tensor is under way
/// from the beginning of its Send to the moment when the receiver's executor finds it, which it does between two kernels. Servers of
/// a store record nothing: a value is under way from when it is asked for, so that their reduction counts as its way, and a push
/// until it is answered, or all of it has left.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hidden {
    pub step_ns: f64,
    /// The executor had nothing to compute and waited.
    pub waited_ns: f64,
    /// Some tensor was under way to the worker or from it, or its group reduced one.
    pub under_way_ns: f64,
    /// A kernel of the worker's ran meanwhile.
    pub hidden_ns: f64,
}

/// A time from and to.
type Span = (u64, u64);

impl Hidden {
    /// Returns what the processes recorded, by part of the plan; none if no worker recorded a step.
    pub(super) fn of(plan: &Plan, processes: &[Process]) -> Option<Hidden> {
        let mut sent: HashMap<Crossing, (u64, usize)> = HashMap::new();
        let parts = || processes.iter().zip(&plan.parts).enumerate();
        for (index, (process, part)) in parts() {
            for event in &process.events {
                if let Some(crossing) = sends(part, event) {
                    sent.insert(crossing, (event.start_ns, index));
                }
            }
        }
        let mut under_way: Vec<Vec<Span>> = vec![Vec::new(); processes.len()];
        for (index, (process, part)) in parts() {
            for event in &process.events {
                let is_its_own = match (event.did, sends(part, event)) {
                    (Did::Collective { .. } | Did::Pull { .. }, _) => true,
                    (_, Some((edge, _))) => {
                        let to =
                            plan.edges.get(edge.index()).and_then(|edge| processes.get(edge.to));
                        to.is_some_and(|to| to.events.is_empty())
                    }
                    _ => false,
                };
                if is_its_own {
                    under_way[index].push((event.start_ns, event.end_ns));
                }
                let found = receives(part, event).and_then(|crossing| sent.get(&crossing));
                if let Some(&(start_ns, from)) = found {
                    under_way[index].push((start_ns, event.end_ns));
                    under_way[from].push((start_ns, event.end_ns));
                }
            }
        }
        let mut sum = Hidden { step_ns: 0.0, waited_ns: 0.0, under_way_ns: 0.0, hidden_ns: 0.0 };
        let mut steps = 0.0;
        let workers = parts().filter(|(_, (_, part))| part.task.job == Job::Worker);
        for (index, (process, _)) in workers {
            let spans = |is_such: fn(Did) -> bool| {
                let such = process.events.iter().filter(move |event| is_such(event.did));
                such.map(|event| (event.start_ns, event.end_ns))
            };
            let under_way = joined(std::mem::take(&mut under_way[index]));
            let is_kernel = |did| matches!(did, Did::Kernel { .. } | Did::Copy { .. });
            let kernels = joined(spans(is_kernel).collect());
            steps += spans(|did| did == Did::Step).count() as f64;
            sum.step_ns += length(spans(|did| did == Did::Step));
            sum.waited_ns += length(spans(|did| did == Did::Wait));
            sum.under_way_ns += length(under_way.iter().copied());
            sum.hidden_ns += length(common(&under_way, &kernels).into_iter());
        }
        let mean = |sum: f64| sum / steps;
        (steps > 0.0).then(|| Hidden {
            step_ns: mean(sum.step_ns),
            waited_ns: mean(sum.waited_ns),
            under_way_ns: mean(sum.under_way_ns),
            hidden_ns: mean(sum.hidden_ns),
        })
    }

    /// Returns the share of communication that passed while kernels ran; none if nothing was under way.
    pub fn share(&self) -> Option<f64> {
        (self.under_way_ns > 0.0).then(|| self.hidden_ns / self.under_way_ns)
    }
}

/// The same times without those that are there twice, in order.
fn joined(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut out: Vec<Span> = Vec::with_capacity(spans.len());
    for (start, end) in spans {
        match out.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => out.push((start, end)),
        }
    }
    out
}

/// What two lists of times that are in order and apart have in common.
fn common(some: &[Span], others: &[Span]) -> Vec<Span> {
    let (mut out, mut at) = (Vec::new(), 0);
    for &(start, end) in some {
        while others.get(at).is_some_and(|other| other.1 <= start) {
            at += 1;
        }
        let within = others[at..].iter().take_while(|other| other.0 < end);
        out.extend(within.map(|other| (other.0.max(start), other.1.min(end))));
    }
    out
}

fn length(spans: impl Iterator<Item = Span>) -> f64 {
    // fits: a trace is seconds long
    spans.map(|(start, end)| end.saturating_sub(start)).sum::<u64>() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceEvent;
    use tensorwire_base::Rank;
    use tensorwire_graph::{
        Cluster, Graph, Hint, Init, Op, Placement, PlanOptions, RunSpec, place, plan,
    };
    use tensorwire_tensor::{DType, TensorSpec};

    #[test]
    fn times_are_counted_once_and_only_where_both_are() {
        let all = joined(vec![(5, 9), (0, 2), (8, 12), (1, 2), (20, 21)]);
        assert_eq!(all, [(0, 2), (5, 12), (20, 21)]);
        let found = common(&all, &[(1, 6), (7, 8), (11, 20)]);
        assert_eq!(found, [(1, 2), (5, 6), (7, 8), (11, 12)]);
        assert_eq!(length(found.into_iter()), 4.0);
        assert_eq!(common(&[], &[(1, 2)]), []);
    }

    /// A variable of a server's, whose largest element a worker computes.
    fn one_crossing() -> Plan {
        let mut graph = Graph::new();
        let spec = TensorSpec::new(DType::F32, &[4]).unwrap();
        let variable = graph.variable("a", spec, Init::Zeros).unwrap();
        let roots = vec![graph.add("max", Hint::Replica(0), Op::ReduceMax, &[variable]).unwrap()];
        let cluster = Cluster::ParameterServers { workers: 1, servers: 1 };
        let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
        let run = RunSpec { name: "r", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
        plan(&placed, &cluster.tasks(), &[run], PlanOptions::default()).unwrap()
    }

    #[test]
    fn a_tensor_is_under_way_from_its_send_until_it_is_found() {
        let plan = one_crossing();
        let edge = &plan.edges[0];
        let did = |step, did, start_ns, end_ns| TraceEvent { step, did, start_ns, end_ns };
        let mut worker = Vec::new();
        let mut server = Vec::new();
        for step in 1..=2 {
            let at = step * 1000;
            let (node, epoch) = (edge.send.0, step);
            server.push(did(step, Did::Step, at, at + 500));
            server.push(did(step, Did::Send { node, epoch }, at + 100, at + 110));
            let node = edge.recv.0;
            worker.push(did(step, Did::Step, at, at + 400));
            worker.push(did(step, Did::Kernel { node: 0 }, at + 50, at + 130));
            worker.push(did(step, Did::Wait, at + 130, at + 190));
            worker.push(did(step, Did::Recv { node, epoch }, at + 190, at + 200));
        }
        // a Send that nobody found, and a kernel while nothing was under way
        server.push(did(2, Did::Send { node: edge.send.0, epoch: 9 }, 2300, 2310));
        worker.push(did(2, Did::Kernel { node: 0 }, 2300, 2400));
        let process = |rank, events| Process { rank: Rank(rank), pid: Some(7), events };
        let hidden = Hidden::of(&plan, &[process(0, worker), process(1, server)]).unwrap();
        let expected =
            Hidden { step_ns: 400.0, waited_ns: 60.0, under_way_ns: 100.0, hidden_ns: 30.0 };
        assert_eq!(hidden, expected);
        assert_eq!(hidden.share(), Some(0.3));
        assert_eq!(Hidden::of(&plan, &[]), None);
    }

    /// Servers of a store record nothing.
    #[test]
    fn what_is_asked_of_a_store_is_under_way_until_it_is_found() {
        let plan = one_crossing();
        let node = plan.edges[0].recv.0;
        let did = |did, start_ns, end_ns| TraceEvent { step: 1, did, start_ns, end_ns };
        let worker = vec![
            did(Did::Step, 0, 400),
            did(Did::Kernel { node: 0 }, 50, 130),
            did(Did::Pull { node, epoch: 1 }, 100, 200),
            did(Did::Recv { node, epoch: 1 }, 190, 200),
        ];
        let process = |rank, events| Process { rank: Rank(rank), pid: Some(7), events };
        let hidden = Hidden::of(&plan, &[process(0, worker), process(1, Vec::new())]).unwrap();
        assert_eq!((hidden.under_way_ns, hidden.hidden_ns), (100.0, 30.0));
    }

    /// A gradient that a worker pushes to a server which records nothing, as a store's.
    #[test]
    fn a_push_to_a_store_is_under_way_until_it_is_over() {
        let mut graph = Graph::new();
        let spec = TensorSpec::new(DType::F32, &[4]).unwrap();
        let variable = graph.variable("a", spec, Init::Zeros).unwrap();
        let made = graph.add("made", Hint::Replica(0), Op::Relu, &[variable]).unwrap();
        let roots = vec![
            graph.add("max", Hint::With(variable.node), Op::ReduceMax, &[made.into()]).unwrap(),
        ];
        let cluster = Cluster::ParameterServers { workers: 1, servers: 1 };
        let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
        let run = RunSpec { name: "r", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
        let plan = plan(&placed, &cluster.tasks(), &[run], PlanOptions::default()).unwrap();
        let pushed = plan.edges.iter().find(|edge| edge.from == 0).unwrap();
        let did = |did, start_ns, end_ns| TraceEvent { step: 1, did, start_ns, end_ns };
        let events = vec![
            did(Did::Step, 0, 400),
            did(Did::Send { node: pushed.send.0, epoch: 1 }, 100, 250),
            did(Did::Kernel { node: 0 }, 200, 300),
        ];
        let worker = Process { rank: Rank(0), pid: Some(7), events };
        let server = |events| Process { rank: Rank(1), pid: Some(8), events };
        let of_store = Hidden::of(&plan, &[worker, server(Vec::new())]).unwrap();
        assert_eq!((of_store.under_way_ns, of_store.hidden_ns), (150.0, 50.0));
    }
}
