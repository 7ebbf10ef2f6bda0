//! A graph cut along its tasks, with the nodes of each run in order: what may be overwritten under whom, before
//! anything has a place.

use std::collections::{HashMap, HashSet};

use super::{PlanOptions, RunSpec};
use crate::error::GraphError;
use crate::graph::{Graph, NodeId, Task};
use crate::op::Op;
use crate::pass::in_place::{Classes, check_joins};
use crate::pass::order::write_after_read;
use crate::pass::partition::{Cut, CutKey, Partition, partition};
use crate::pass::reference::{Transfer, readers as readers_of};
use crate::pass::reuse::TaskSets;
use crate::pass::schedule::{At, Schedule, schedule};
use crate::pass::sequence::in_sequence;
use crate::pass::verify::verify;

/// A partition with the nodes of each run, before its memory is planned.
pub(super) struct Draft {
    pub(super) partition: Partition,
    pub(super) order: Vec<Vec<(NodeId, NodeId)>>,
    pub(super) schedules: Vec<Schedule>,
    pub(super) classes: Vec<Classes>,
    /// By part: nodes whose outputs must be there after a run.
    pub(super) kept: Vec<HashSet<NodeId>>,
}

impl Draft {
    pub(super) fn new(
        graph: &Graph,
        tasks: &[Task],
        runs: &[RunSpec],
        options: &PlanOptions,
    ) -> Result<Draft, GraphError> {
        let fetches = runs.iter().filter_map(|run| run.fetch_to.map(|to| (run, to)));
        let fetched = fetches.flat_map(|(run, to)| run.roots.iter().map(move |root| (*root, to)));
        let partition = partition(graph, tasks, fetched, options.relaying_hosts())?;
        for part in &partition.graphs {
            verify(part, "partition")?;
            check_joins(part)?;
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
                    run.roots.contains(&cut.source()) && run.fetch_to == Some(tasks[cut.to]);
                if cut.sent.is_some() && (is_fetched || run.given.contains(&cut.source())) {
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
    pub(super) fn unproved(
        &self,
        runs: &[RunSpec],
        transfers: &HashMap<CutKey, Transfer>,
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
    pub(super) fn looked_at(&self, runs: &[RunSpec], tasks: &[Task]) -> Vec<HashSet<At>> {
        let of_run = |run: &RunSpec| {
            let mut nodes = HashSet::new();
            for (part, moved) in self.partition.moved.iter().enumerate() {
                let here = run.roots.iter().filter_map(|root| moved.get(root));
                nodes.extend(here.map(|node| (part, *node)));
            }
            let fetched = self.partition.cuts.iter().filter(|cut| {
                run.fetch_to == Some(tasks[cut.to]) && run.roots.contains(&cut.source())
            });
            nodes.extend(fetched.map(|cut| (cut.to, cut.recv)));
            nodes
        };
        runs.iter().map(of_run).collect()
    }

    /// What a run leaves for the receiver's caller to read must stay until the caller has begun another
    /// run: no later run may overwrite it before the receiver has taken part in that run, or in one
    /// between.
    pub(super) fn check_callers(
        &self,
        tasks: &[Task],
        runs: &[RunSpec],
        transfers: &HashMap<CutKey, Transfer>,
    ) -> Result<(), GraphError> {
        let sizes: Vec<usize> = self.partition.graphs.iter().map(Graph::len).collect();
        let before = |schedule| TaskSets::of_ancestors(schedule, &sizes);
        let before: Vec<TaskSets> = self.schedules.iter().map(before).collect();
        let (members, looked_at) = (self.members(), self.looked_at(runs, tasks));
        for cut in &self.partition.cuts {
            let (writers, is_fed) = self.writers(cut, transfer_of(transfers, cut));
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
    pub(super) fn witness(&self, run: usize, (part, reader): At) -> Result<NodeId, GraphError> {
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

/// What was decided for a cut; the cuts of waits and credits came after the decision.
pub(super) fn transfer_of(transfers: &HashMap<CutKey, Transfer>, cut: &Cut) -> Transfer {
    transfers.get(&cut.key()).copied().unwrap_or(Transfer::Signal)
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
