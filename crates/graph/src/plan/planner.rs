//! Makes a plan in three rounds over the same graph: how each cut crosses, what guards its memory, and where every
//! tensor lies. Cuts keep their keys from round to round.

use std::collections::{HashMap, HashSet};

use super::draft::{Draft, transfer_of};
use super::{Edge, Part, Plan, PlanOptions, Reuse, ReuseRule, Run, RunSpec};
use tensorwire_base::Space;

use crate::error::GraphError;
use crate::graph::{Graph, Hint, Node, NodeId, Task};
use crate::op::{EdgeId, Op};
use crate::pass::expand::expand_where_used;
use crate::pass::memory::{MemoryNeeds, plan_memory};
use crate::pass::partition::{Cut, CutKey};
use crate::pass::reduce::{AllReduceBy, reduce_by_edges};
use crate::pass::reduce_order::in_one_order;
use crate::pass::reference::{Chooser, Transfer, WhyWrite, without_references};
use crate::pass::rings::share_among_devices;
use crate::pass::space::spread_over_spaces;
use crate::pass::verify::verify;
use crate::pass::wire::narrow_wire;

/// What a plan is made with.
pub(super) struct Planner<'a> {
    pub(super) tasks: &'a [Task],
    pub(super) options: &'a PlanOptions,
    /// Why nothing is read where it lies; none: what can be is.
    pub(super) written: Option<WhyWrite>,
}

impl Planner<'_> {
    pub(super) fn plan(&self, graph: &Graph, runs: &[RunSpec]) -> Result<Plan, GraphError> {
        let PlanOptions { devices, device_crossing, all_reduce, .. } = *self.options;
        let (graph, runs) = share_among_devices(graph, runs, self.options.among_devices)?;
        verify(&graph, "rings")?;
        let (graph, runs) = narrow_wire(&graph, &runs, self.options.wire)?;
        verify(&graph, "wire")?;
        let (graph, runs) = reduce_by_edges(&graph, &runs, all_reduce, self.options.wire)?;
        verify(&graph, "reduce")?;
        let (graph, runs) = expand_where_used(&graph, &runs)?;
        verify(&graph, "expand")?;
        let spaces = (devices, device_crossing, all_reduce);
        let (mut graph, runs) = spread_over_spaces(&graph, &runs, spaces)?;
        if let AllReduceBy::Devices { together } = all_reduce {
            graph = in_one_order(&graph, together)?;
        }
        verify(&graph, "spaces")?;
        let (graph, transfers) = self.choose(&graph, &runs)?;
        let guarded = match self.options.reuse {
            ReuseRule::Proved => self.guard(graph, &runs, transfers)?,
            ReuseRule::Trusted => Guarded { graph, runs, transfers, credits: HashMap::new() },
        };
        let draft = Draft::new(&guarded.graph, self.tasks, &guarded.runs, self.options)?;
        let unproved = draft.unproved(&guarded.runs, &guarded.transfers);
        if let (ReuseRule::Proved, Some((cut, readers))) = (self.options.reuse, unproved.first()) {
            return Err(GraphError::Invalid {
                node: draft.partition.cuts[*cut].name.clone(),
                what: format!(
                    "its memory may be overwritten under {readers:?} in spite of a credit"
                ),
            });
        }
        if self.options.reuse == ReuseRule::Proved {
            draft.check_callers(self.tasks, &guarded.runs, &guarded.transfers)?;
        }
        let trusted = unproved.iter().map(|(cut, _)| *cut).collect();
        self.finish(draft, &guarded, &trusted)
    }

    /// How each cut crosses, by key, and the graph with the waits that this takes.
    fn choose(
        &self,
        graph: &Graph,
        runs: &[RunSpec],
    ) -> Result<(Graph, HashMap<CutKey, Transfer>), GraphError> {
        let mut graph = graph.clone();
        let draft = Draft::new(&graph, self.tasks, runs, self.options)?;
        let cuts = &draft.partition.cuts;
        let shares = |cut: &Cut| self.options.shared_memory.between(cut.from, cut.to);
        let (transfers, waits) = match self.written {
            None => Chooser {
                partition: &draft.partition,
                classes: &draft.classes,
                schedules: &draft.schedules,
                looked_at: &draft.looked_at(runs, self.tasks),
                followed_by: runs.iter().map(|run| &run.followed_by[..]).collect(),
                variables_shared: self.options.variables_shared,
            }
            .choose(shares),
            Some(why) => {
                let why = |cut: &Cut| if shares(cut) { why } else { WhyWrite::Apart };
                let written = |cut: &Cut| without_references(cut, why(cut));
                (cuts.iter().map(written).collect(), Vec::new())
            }
        };
        let keys = cuts.iter().map(Cut::key);
        let transfers = keys.zip(transfers).collect();
        for (reader, writer) in waits {
            graph.control(reader, writer);
        }
        Ok((graph, transfers))
    }

    /// Adds a credit wherever the graph's own dependencies do not guard an edge's memory: a node on the
    /// sender's task that waits for the readers, in the run of these readers.
    fn guard(
        &self,
        graph: Graph,
        runs: &[RunSpec],
        transfers: HashMap<CutKey, Transfer>,
    ) -> Result<Guarded, GraphError> {
        let (mut graph, mut runs, tasks) = (graph, runs.to_vec(), self.tasks);
        let mut credits: HashMap<CutKey, Vec<String>> = HashMap::new();
        let draft = Draft::new(&graph, tasks, &runs, self.options)?;
        // one credit for all that one task reads of another's in one run
        let mut waits: Vec<((usize, usize, usize), HashSet<NodeId>)> = Vec::new();
        for (cut, readers) in draft.unproved(&runs, &transfers) {
            let Cut { from, to, .. } = draft.partition.cuts[cut];
            let names = credits.entry(draft.partition.cuts[cut].key()).or_default();
            for (run, reader) in readers {
                let reader = draft.witness(run, (to, reader))?;
                names.push(graph.node(reader).name.clone());
                match waits.iter_mut().find(|(key, _)| *key == (run, from, to)) {
                    Some((_, nodes)) => drop(nodes.insert(reader)),
                    None => waits.push(((run, from, to), HashSet::from([reader]))),
                }
            }
            names.sort();
            names.dedup();
        }
        for ((run, from, to), readers) in waits {
            let mut controls: Vec<NodeId> = readers.into_iter().collect();
            controls.sort_unstable();
            let credit = graph.push(Node {
                name: format!("credit/{}/{} to {}", runs[run].name, tasks[to], tasks[from]),
                op: Op::NoOp,
                inputs: vec![],
                controls,
                hint: Hint::Shared,
                task: Some(tasks[from]),
                facts: vec![],
                piece: None,
                space: Space::Host,
            })?;
            runs[run].roots.push(credit);
        }
        Ok(Guarded { graph, runs, transfers, credits })
    }

    fn finish(
        &self,
        draft: Draft,
        guarded: &Guarded,
        trusted: &HashSet<usize>,
    ) -> Result<Plan, GraphError> {
        let Draft { partition, order, schedules, classes, kept } = draft;
        let edges = partition.cuts.iter().enumerate().map(|(index, cut)| {
            let transfer = transfer_of(&guarded.transfers, cut);
            let reuse = match (transfer, guarded.credits.get(&cut.key())) {
                (Transfer::Signal, _) => Reuse::Empty,
                (Transfer::Dynamic, _) => Reuse::Acknowledged,
                _ if cut.bytes() == 0 => Reuse::Empty,
                (_, Some(readers)) => Reuse::Credit { readers: readers.clone() },
                _ if trusted.contains(&index) => Reuse::Trusted,
                _ => Reuse::Proved,
            };
            let Cut { name, fact, from, to, send, recv, .. } = cut.clone();
            // fits: the partitioner counted the cuts in u32
            let space = partition.graphs[to].node(recv).space;
            let id = EdgeId(index as u32);
            Edge { id, name, fact, from, to, send, recv, transfer, reuse, space }
        });
        let edges: Vec<Edge> = edges.collect();
        let runs = guarded.runs.iter().zip(&schedules).map(|(run, schedule)| {
            let mut nodes = vec![Vec::new(); self.tasks.len()];
            for &(part, node) in &schedule.order {
                nodes[part].push(node);
            }
            nodes.iter_mut().for_each(|part| part.sort_unstable());
            Run { name: run.name, nodes }
        });
        let runs = runs.collect();
        let mut memory = Vec::with_capacity(partition.graphs.len());
        for (part, graph) in partition.graphs.iter().enumerate() {
            let by_reference = |e: &&Edge| e.transfer == Transfer::Reference;
            let elsewhere = edges.iter().filter(|e| e.to == part).filter(by_reference);
            let sent = partition.cuts.iter().zip(&edges).filter(|(_, e)| e.from == part);
            memory.push(plan_memory(&MemoryNeeds {
                graph,
                classes: &classes[part],
                runs: schedules.iter().map(|schedule| schedule.of_part(part)).collect(),
                kept: &kept[part],
                elsewhere: elsewhere.map(|e| e.recv).collect(),
                read_by_peers: sent
                    .filter(|(_, e)| by_reference(e))
                    .filter_map(|(cut, _)| cut.sent)
                    .flat_map(|sent| classes[part].class(sent).members.iter().copied())
                    .collect(),
                send_from: self.options.send_from,
            })?);
        }
        let parts = self.tasks.iter().zip(partition.graphs).zip(order).zip(memory);
        let parts = parts.map(|(((task, graph), order), memory)| Part {
            task: *task,
            graph,
            order,
            memory,
        });
        let send_from = self.options.send_from;
        Ok(Plan { parts: parts.collect(), edges, runs, send_from })
    }
}

/// A graph whose edges are all guarded.
struct Guarded {
    graph: Graph,
    runs: Vec<RunSpec>,
    /// By [`Cut::key`].
    transfers: HashMap<CutKey, Transfer>,
    /// For the edges that needed a credit (by [`Cut::key`]), the readers it waits for.
    credits: HashMap<CutKey, Vec<String>>,
}
