//! The plan: what every process of a job does, as data. Made by each process on its own from the same
//! graph, and the same everywhere.

use std::collections::{HashMap, HashSet};

use tensorwire_tensor::Fact;

use crate::error::GraphError;
use crate::graph::{Graph, Hint, Node, NodeId, Task};
use crate::op::{EdgeId, Op};
use crate::pass::in_place::Classes;
use crate::pass::memory::{MemoryNeeds, MemoryPlan, SendFrom, plan_memory};
use crate::pass::order::write_after_read;
use crate::pass::partition::{Cut, Partition, partition};
use crate::pass::reference::{
    Chooser, Transfer, WhyWrite, readers as readers_of, without_references,
};
use crate::pass::reuse::TaskSets;
use crate::pass::schedule::{At, Schedule, schedule};
use crate::pass::sequence::in_sequence;
use crate::pass::verify::verify;

/// A subset of the graph that is run at once, by name: training, fetching the weights, evaluating.
#[derive(Clone, Debug)]
pub struct RunSpec {
    pub name: &'static str,
    /// Nodes that must be computed.
    pub roots: Vec<NodeId>,
    /// Where the roots' outputs must be; none: where they are computed.
    pub fetch_to: Option<Task>,
    /// Nodes whose values an earlier run has left in place, here and where it sent them.
    pub given: Vec<NodeId>,
    /// Runs (indices) that may come next in a process's life.
    pub followed_by: Vec<usize>,
}

/// Index of a run in [`Plan::runs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunId(pub usize);

/// One run, cut along the tasks.
#[derive(Clone, Debug)]
pub struct Run {
    pub name: &'static str,
    /// For each part, the nodes it runs, ascending.
    pub nodes: Vec<Vec<NodeId>>,
}

/// How an edge's memory is kept from being overwritten while it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// The graph's own dependencies order the next write behind the last read.
    Proved,
    /// They do not, for the named readers: a credit (a control edge back) was added.
    Credit { readers: Vec<String> },
    /// The receiver says when it has read the tensor; until then the sender keeps it.
    Acknowledged,
    /// Nothing was proved and nothing added: [`ReuseRule::Trusted`].
    Trusted,
    /// Nothing to overwrite: no bytes cross.
    Empty,
}

/// What is done where the graph's own dependencies do not guard an edge's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReuseRule {
    /// A credit is added.
    #[default]
    Proved,
    /// Nothing: the paper's argument (§4) is taken on trust. Reads torn data where it does not hold;
    /// kept to show that it does.
    Trusted,
}

/// Whether a tensor can be read where its sender keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedMemory {
    /// The parts share no memory.
    #[default]
    None,
    /// All parts do, and no use is to be made of it.
    Unused,
    /// All parts do.
    Used,
}

/// What a plan may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanOptions {
    pub send_from: SendFrom,
    pub shared_memory: SharedMemory,
    /// Variables are changed by others than this plan's nodes, at any time: the lanes of asynchronous
    /// training.
    pub variables_shared: bool,
    pub reuse: ReuseRule,
}

/// An edge between two parts.
#[derive(Clone, Debug)]
pub struct Edge {
    pub id: EdgeId,
    /// The tensor's name: that of the node that makes it; `^name` for a control.
    pub name: String,
    pub fact: Fact,
    /// Part (index into [`Plan::parts`]) and node that send and receive.
    pub from: usize,
    pub to: usize,
    pub send: NodeId,
    pub recv: NodeId,
    pub transfer: Transfer,
    pub reuse: Reuse,
}

/// What one task computes, and where it keeps it.
#[derive(Clone, Debug)]
pub struct Part {
    pub task: Task,
    pub graph: Graph,
    /// Pairs (first, then) that hold in every run that has both.
    pub order: Vec<(NodeId, NodeId)>,
    pub memory: MemoryPlan,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub parts: Vec<Part>,
    pub edges: Vec<Edge>,
    pub runs: Vec<Run>,
    pub send_from: SendFrom,
}

/// What crosses in one run, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that are written into receivers' buffers.
    pub written: u64,
    /// Bytes that are read where their sender keeps them.
    pub by_reference: u64,
    /// Tensors whose size is known when they exist.
    pub dynamic: usize,
    /// Sends, those of no bytes included.
    pub sends: usize,
}

impl Edge {
    /// The tensor's bytes, none where they are known only when it exists.
    pub fn bytes(&self) -> Option<usize> {
        // the plan checked every static size
        self.fact.spec().and_then(Result::ok).map(|spec| spec.bytes())
    }
}

impl Plan {
    /// What crosses in one run.
    pub fn traffic(&self, run: RunId) -> Traffic {
        let mut sum = Traffic::default();
        for edge in &self.edges {
            if self.runs[run.0].nodes[edge.from].binary_search(&edge.send).is_err() {
                continue;
            }
            sum.sends += 1;
            // fits: the sums are of sizes that are each allocated here
            let bytes = edge.bytes().unwrap_or_default() as u64;
            match edge.transfer {
                Transfer::Write(_) => sum.written += bytes,
                Transfer::Reference => sum.by_reference += bytes,
                Transfer::Dynamic => sum.dynamic += 1,
                Transfer::Signal => {}
            }
        }
        sum
    }
}

/// Plans a placed graph over `tasks`.
///
/// # Errors
/// When a size does not fit an address space, or nodes wait for each other in a circle.
pub fn plan(
    graph: &Graph,
    tasks: &[Task],
    runs: &[RunSpec],
    options: PlanOptions,
) -> Result<Plan, GraphError> {
    verify(graph, "place")?;
    let with = |written: Option<WhyWrite>| Planner { tasks, options, written }.plan(graph, runs);
    let PlanOptions { send_from, shared_memory, .. } = options;
    match (shared_memory, send_from) {
        (SharedMemory::None, _) => with(Some(WhyWrite::Apart)),
        (SharedMemory::Unused, _) | (_, SendFrom::Staging) => with(Some(WhyWrite::Told)),
        (SharedMemory::Used, SendFrom::Origin) => match with(None) {
            // waiting for readers at the other end may close a circle that writing does not
            Err(GraphError::Cycle { .. }) => with(Some(WhyWrite::Circle)),
            planned => planned,
        },
    }
}

struct Planner<'a> {
    tasks: &'a [Task],
    options: PlanOptions,
    /// Why nothing is read where it lies; none: what can be is.
    written: Option<WhyWrite>,
}

impl Planner<'_> {
    fn plan(&self, graph: &Graph, runs: &[RunSpec]) -> Result<Plan, GraphError> {
        let (graph, transfers) = self.choose(graph, runs)?;
        let guarded = match self.options.reuse {
            ReuseRule::Proved => self.guard(graph, runs, transfers)?,
            ReuseRule::Trusted => {
                Guarded { graph, runs: runs.to_vec(), transfers, credits: HashMap::new() }
            }
        };
        let draft = Draft::new(&guarded.graph, self.tasks, &guarded.runs)?;
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
            draft.check_callers(self.tasks, &guarded)?;
        }
        let trusted = unproved.iter().map(|(cut, _)| *cut).collect();
        self.finish(draft, &guarded, &trusted)
    }

    /// How each cut crosses, by [`edge_key`], and the graph with the waits that this takes.
    fn choose(
        &self,
        graph: &Graph,
        runs: &[RunSpec],
    ) -> Result<(Graph, HashMap<String, Transfer>), GraphError> {
        let mut graph = graph.clone();
        let draft = Draft::new(&graph, self.tasks, runs)?;
        let cuts = &draft.partition.cuts;
        let (transfers, waits) = match self.written {
            None => Chooser {
                partition: &draft.partition,
                classes: &draft.classes,
                schedules: &draft.schedules,
                looked_at: &draft.looked_at(runs, self.tasks),
                followed_by: runs.iter().map(|run| &run.followed_by[..]).collect(),
                variables_shared: self.options.variables_shared,
            }
            .choose(),
            Some(why) => {
                let written = |cut: &Cut| without_references(cut, why);
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
        transfers: HashMap<String, Transfer>,
    ) -> Result<Guarded, GraphError> {
        let (mut graph, mut runs, tasks) = (graph, runs.to_vec(), self.tasks);
        let mut credits: HashMap<String, Vec<String>> = HashMap::new();
        let draft = Draft::new(&graph, tasks, &runs)?;
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
            let transfer = guarded.transfer(cut);
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
            Edge { id: EdgeId(index as u32), name, fact, from, to, send, recv, transfer, reuse }
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
    transfers: HashMap<String, Transfer>,
    /// For the edges that needed a credit (by [`Cut::key`]), the readers it waits for.
    credits: HashMap<String, Vec<String>>,
}

impl Guarded {
    fn transfer(&self, cut: &Cut) -> Transfer {
        transfer_of(&self.transfers, cut)
    }
}

/// What was decided for a cut; the cuts of waits and credits came after the decision.
fn transfer_of(transfers: &HashMap<String, Transfer>, cut: &Cut) -> Transfer {
    transfers.get(&cut.key()).copied().unwrap_or(Transfer::Signal)
}

impl Cut {
    /// What names a cut though the graph around it changes.
    fn key(&self) -> String {
        format!("{} {} {}", self.name, self.from, self.to)
    }
}

/// A partition with the nodes of each run, before its memory is planned.
struct Draft {
    partition: Partition,
    order: Vec<Vec<(NodeId, NodeId)>>,
    schedules: Vec<Schedule>,
    classes: Vec<Classes>,
    /// By part: nodes whose outputs must be there after a run.
    kept: Vec<HashSet<NodeId>>,
}

impl Draft {
    fn new(graph: &Graph, tasks: &[Task], runs: &[RunSpec]) -> Result<Draft, GraphError> {
        let partition = partition(graph, tasks)?;
        for part in &partition.graphs {
            verify(part, "partition")?;
        }
        let mut order: Vec<_> = partition.graphs.iter().map(write_after_read).collect();
        let all = |order: &[Vec<(NodeId, NodeId)>]| -> Result<Vec<Schedule>, GraphError> {
            runs.iter().map(|run| schedule(graph, &partition, order, tasks, run)).collect()
        };
        let sequences = in_sequence(&partition.graphs, tasks, &order, &all(&order)?);
        for (order, sequence) in order.iter_mut().zip(sequences) {
            order.extend(sequence);
        }
        let schedules = all(&order)?;
        let named = || runs.iter().flat_map(|run| run.roots.iter().chain(&run.given));
        let kept = partition.moved.iter().map(|moved| {
            let here = named().filter_map(|id| moved.get(id).copied());
            here.collect::<HashSet<NodeId>>()
        });
        let mut kept: Vec<HashSet<NodeId>> = kept.collect();
        for run in runs {
            for cut in &partition.cuts {
                let is_fetched =
                    run.roots.contains(&cut.source) && run.fetch_to == Some(tasks[cut.to]);
                if cut.sent.is_some() && (is_fetched || run.given.contains(&cut.source)) {
                    kept[cut.to].insert(cut.recv);
                }
            }
        }
        let classes = partition.graphs.iter().zip(&kept);
        let classes = classes.map(|(graph, kept)| Classes::new(graph, kept)).collect();
        Ok(Draft { order, schedules, partition, classes, kept })
    }

    /// By run: its nodes.
    fn members(&self) -> Vec<HashSet<At>> {
        self.schedules.iter().map(|s| s.order.iter().copied().collect()).collect()
    }

    /// Cuts whose memory may be overwritten under a reader: (cut, [(run, reader)]).
    fn unproved(
        &self,
        runs: &[RunSpec],
        transfers: &HashMap<String, Transfer>,
    ) -> Vec<(usize, Vec<(usize, NodeId)>)> {
        let sizes: Vec<usize> = self.partition.graphs.iter().map(Graph::len).collect();
        let sets = |of: fn(&Schedule, &[usize]) -> TaskSets| -> Vec<TaskSets> {
            self.schedules.iter().map(|schedule| of(schedule, &sizes)).collect()
        };
        let (after, before) = (sets(TaskSets::of_descendants), sets(TaskSets::of_ancestors));
        let members = self.members();
        let later_runs = later_runs(runs);
        let mut found = Vec::new();
        for (index, cut) in self.partition.cuts.iter().enumerate() {
            let (writers, is_fed) = self.writers(cut, transfer_of(transfers, cut));
            if writers.is_empty() && !is_fed {
                continue;
            }
            let mut readers = Vec::new();
            let users = readers_of(&self.partition, &self.classes[cut.to], cut);
            for (read_run, later) in &later_runs {
                for &reader in &users {
                    let at = (cut.to, reader);
                    if !members[*read_run].contains(&at) {
                        continue;
                    }
                    let is_torn = |&(write_run, writer): &(usize, NodeId)| {
                        let write = (cut.from, writer);
                        members[write_run].contains(&write)
                            && !after[*read_run].meet(at, &before[write_run], write)
                    };
                    let mut writes =
                        later.iter().flat_map(|run| writers.iter().map(|writer| (*run, *writer)));
                    // the caller may write as soon as the sender's own run is over
                    let is_exposed = is_fed && !after[*read_run].touches(at, cut.from);
                    if is_exposed || writes.any(|write| is_torn(&write)) {
                        readers.push((*read_run, reader));
                    }
                }
            }
            if !readers.is_empty() {
                found.push((index, readers));
            }
        }
        found
    }

    /// Who overwrites a cut's memory: nodes of the sender's part; and does its caller, between runs?
    fn writers(&self, cut: &Cut, transfer: Transfer) -> (Vec<NodeId>, bool) {
        let graph = &self.partition.graphs[cut.from];
        match (transfer, cut.sent) {
            (Transfer::Write(_), _) if cut.bytes() > 0 => (vec![cut.send], false),
            (Transfer::Reference, Some(sent)) => {
                let class = self.classes[cut.from].class(sent);
                let is_input = matches!(graph.node(class.root().node).op, Op::Input { .. });
                (self.classes[cut.from].writers(graph, class), is_input)
            }
            _ => (Vec::new(), false),
        }
    }

    /// By run: the nodes whose outputs a caller may look at when it is over, where it may.
    fn looked_at(&self, runs: &[RunSpec], tasks: &[Task]) -> Vec<HashSet<At>> {
        let of_run = |run: &RunSpec| {
            let mut nodes = HashSet::new();
            for (part, moved) in self.partition.moved.iter().enumerate() {
                let here = run.roots.iter().filter_map(|root| moved.get(root));
                nodes.extend(here.map(|node| (part, *node)));
            }
            let fetched = self.partition.cuts.iter().filter(|cut| {
                run.fetch_to == Some(tasks[cut.to]) && run.roots.contains(&cut.source)
            });
            nodes.extend(fetched.map(|cut| (cut.to, cut.recv)));
            nodes
        };
        runs.iter().map(of_run).collect()
    }

    /// What a run leaves for the receiver's caller to read must stay until the caller has begun another
    /// run: no later run may overwrite it before the receiver has taken part in that run, or in one
    /// between.
    fn check_callers(&self, tasks: &[Task], guarded: &Guarded) -> Result<(), GraphError> {
        let runs = &guarded.runs;
        let sizes: Vec<usize> = self.partition.graphs.iter().map(Graph::len).collect();
        let before = |schedule| TaskSets::of_ancestors(schedule, &sizes);
        let before: Vec<TaskSets> = self.schedules.iter().map(before).collect();
        let (members, looked_at) = (self.members(), self.looked_at(runs, tasks));
        for cut in &self.partition.cuts {
            let (writers, is_fed) = self.writers(cut, guarded.transfer(cut));
            // the caller at the sender feeds an input before each run that takes it, whatever the input's
            // node waits for then
            let fed = cut.sent.filter(|_| is_fed);
            let fed = fed.map(|sent| self.classes[cut.from].class(sent).root().node);
            if writers.is_empty() && fed.is_none() {
                continue;
            }
            let class = self.classes[cut.to].class(cut.recv.into());
            for (read_run, run) in runs.iter().enumerate() {
                let there = &looked_at[read_run];
                if !class.members.iter().any(|output| there.contains(&(cut.to, output.node))) {
                    continue;
                }
                let mut seen = vec![false; runs.len()];
                let mut open = run.followed_by.clone();
                while let Some(later) = open.pop() {
                    if std::mem::replace(&mut seen[later], true) {
                        continue;
                    }
                    let touches = |node: NodeId| before[later].touches((cut.from, node), cut.to);
                    let is_there = |node: NodeId| members[later].contains(&(cut.from, node));
                    let overwrites = |writer: &NodeId| is_there(*writer) && !touches(*writer);
                    if writers.iter().any(overwrites) || fed.is_some_and(is_there) {
                        let (from, to) = (tasks[cut.from], tasks[cut.to]);
                        return Err(GraphError::Invalid {
                            node: cut.name.clone(),
                            what: format!(
                                "{to} may still read it after run '{}' when {from} overwrites it in \
                                 run '{}'; put a run between in which {from} waits for {to}",
                                runs[read_run].name, runs[later].name
                            ),
                        });
                    }
                    let sender = members[later].iter().filter(|(part, _)| *part == cut.from);
                    if !sender.into_iter().any(|(_, node)| touches(*node)) {
                        open.extend(&runs[later].followed_by);
                    }
                }
            }
        }
        Ok(())
    }

    /// A node of the whole graph that, in a run, is done only when a reader is: the one that the reader was
    /// made of, or for a Send one that uses what it sent.
    fn witness(&self, run: usize, (part, reader): At) -> Result<NodeId, GraphError> {
        let whole = |part: usize, node: NodeId| {
            let moved = self.partition.moved[part].iter().find(|(_, to)| **to == node);
            moved.map(|(whole, _)| *whole)
        };
        let sent = || {
            let is_sender = |cut: &&Cut| (cut.from, cut.send) == (part, reader);
            let cut = self.partition.cuts.iter().find(is_sender)?;
            let nodes = self.schedules[run].of_part(cut.to).into_iter();
            let mut users = nodes.filter(|(_, before)| before.contains(&cut.recv));
            users.find_map(|(user, _)| whole(cut.to, user))
        };
        whole(part, reader).or_else(sent).ok_or_else(|| GraphError::Invalid {
            node: self.partition.graphs[part].node(reader).name.clone(),
            what: "nothing that comes after it tells when its tensor may be overwritten"
                .to_string(),
        })
    }
}

/// For each run, the runs that may come after it, directly or later.
fn later_runs(runs: &[RunSpec]) -> Vec<(usize, Vec<usize>)> {
    let reach = |from: usize| {
        let mut seen = vec![false; runs.len()];
        let mut open = runs[from].followed_by.clone();
        while let Some(run) = open.pop() {
            if !std::mem::replace(&mut seen[run], true) {
                open.extend(&runs[run].followed_by);
            }
        }
        (0..runs.len()).filter(|&run| seen[run]).collect()
    };
    (0..runs.len()).map(|run| (run, reach(run))).collect()
}
