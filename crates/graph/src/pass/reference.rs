//! Transfer by reference: where both ends share memory, the receiver reads the sender's tensor where it
//! lies, and what crosses is the news that it is there. The tensor must then stay as it is until its
//! last reader is done. In later runs that is a matter of reuse like any other (`pass/reuse.rs`); in
//! the same run, whoever changes a sent variable waits for its readers at the other end, or the tensor
//! is written after all.

use std::collections::{HashMap, HashSet};

use crate::graph::{Graph, NodeId};
use crate::op::Op;
use crate::pass::in_place::Classes;
use crate::pass::partition::{Cut, Partition};
use crate::pass::schedule::{At, Schedule};

/// Smallest tensor that is worth it, in bytes: below a page, one write costs less than making the
/// sender wait for its reader.
const REFERENCE_BYTES_MIN: usize = 4096;

/// How an edge's tensor gets to its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Only the news that a node is done.
    Signal,
    /// One one-sided write into the receiver's buffer (Xue et al. §3.2).
    Write(WhyWrite),
    /// The receiver reads it where the sender keeps it; the news alone crosses.
    Reference,
    /// Its size is known when it exists: announced, then read by the receiver (§3.3).
    Dynamic,
}

/// Why a tensor is written though it might have stayed where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyWrite {
    /// The ends do not share memory.
    Apart,
    /// They do, and were told to write all the same.
    Told,
    /// Waiting for readers would close a circle somewhere in the graph.
    Circle,
    /// It is smaller than a page.
    Small,
    /// Nodes outside of the plan change the variable, at any time.
    ManyWriters,
    /// The receiver sends it on, and can send only what is its own.
    SentOn,
    /// Other devices of the receiver copy it from the one that it comes to.
    GivenOn,
    /// Its sender only has it by reference.
    Borrowed,
    /// A reader comes after the update of the variable, or not in all its runs: it cannot be waited for.
    LateReader,
    /// A later run takes what was received as given, though the sender may have changed it since.
    Given,
    /// It lies where its sender found room for it when it ran.
    Unplaced,
    /// The receiver has it behind others, as rows of one tensor.
    Joined,
}

/// What a decision is made of.
pub(crate) struct Chooser<'a> {
    pub(crate) partition: &'a Partition,
    /// By part.
    pub(crate) classes: &'a [Classes],
    /// By run.
    pub(crate) schedules: &'a [Schedule],
    /// By run: the nodes whose outputs a caller may look at when it is over.
    pub(crate) looked_at: &'a [HashSet<At>],
    /// For each run, those that may come next.
    pub(crate) followed_by: Vec<&'a [usize]>,
    /// Others than this plan's nodes change the variables, and nobody knows when.
    pub(crate) variables_shared: bool,
}

impl Chooser<'_> {
    /// How each cut's tensor crosses, by reference only where both ends share memory, and who must wait for it: pairs
    /// (reader, writer) of the whole graph.
    pub(crate) fn choose(
        &self,
        shares_memory: impl Fn(&Cut) -> bool,
    ) -> (Vec<Transfer>, Vec<(NodeId, NodeId)>) {
        let back = |moved: &HashMap<NodeId, NodeId>| moved.iter().map(|(a, b)| (*b, *a)).collect();
        let whole: Vec<HashMap<NodeId, NodeId>> = self.partition.moved.iter().map(back).collect();
        let nodes = |schedule: &Schedule| schedule.order.iter().copied().collect::<HashSet<At>>();
        let members: Vec<HashSet<At>> = self.schedules.iter().map(nodes).collect();
        let mut ancestors = HashMap::new();
        let mut all_waits = Vec::new();
        let transfers = self.partition.cuts.iter().map(|cut| {
            if !shares_memory(cut) {
                return without_references(cut, WhyWrite::Apart);
            }
            let transfer = without_references(cut, WhyWrite::Small);
            if transfer != Transfer::Write(WhyWrite::Small) || cut.bytes() < REFERENCE_BYTES_MIN {
                return transfer;
            }
            match self.waits_of(cut, &whole, &members, &mut ancestors) {
                Ok(waits) => {
                    all_waits.extend(waits);
                    Transfer::Reference
                }
                Err(why) => Transfer::Write(why),
            }
        });
        (transfers.collect(), all_waits)
    }

    fn waits_of(
        &self,
        cut: &Cut,
        whole: &[HashMap<NodeId, NodeId>],
        members: &[HashSet<At>],
        ancestors: &mut HashMap<(usize, At), HashSet<At>>,
    ) -> Result<Vec<(NodeId, NodeId)>, WhyWrite> {
        let (sender, receiver) = (&self.partition.graphs[cut.from], &self.partition.graphs[cut.to]);
        let class = cut.sent.map(|sent| self.classes[cut.from].class(sent));
        let class = class.ok_or(WhyWrite::Small)?;
        let readers = readers(self.partition, &self.classes[cut.to], cut);
        if readers.iter().any(|id| receiver.node(*id).op.is_send()) {
            return Err(WhyWrite::SentOn);
        }
        let is_on_device = receiver.node(cut.recv).space.is_device();
        let gives = |id: &NodeId| matches!(receiver.node(*id).op, Op::CopyTo { space } if space.is_device());
        if is_on_device && readers.iter().any(gives) {
            return Err(WhyWrite::GivenOn);
        }
        if sender.fact(class.root()).spec().is_none() {
            return Err(WhyWrite::Unplaced);
        }
        if self.classes[cut.to].is_joined(cut.recv.into()) {
            return Err(WhyWrite::Joined);
        }
        if self.may_be_stale(cut, &readers, members) {
            return Err(WhyWrite::Given);
        }
        match sender.node(class.root().node).op {
            ref op if op.is_recv() => return Err(WhyWrite::Borrowed),
            Op::Variable { .. } if self.variables_shared => return Err(WhyWrite::ManyWriters),
            Op::Variable { .. } => {}
            // whoever computes it does so before it is sent
            _ => return Ok(Vec::new()),
        }
        let there = &self.classes[cut.to].class(cut.recv.into()).members;
        let mut waits = Vec::new();
        for writer in self.classes[cut.from].writers(sender, class) {
            let write = (cut.from, writer);
            let runs = || members.iter().enumerate().filter(|(_, run)| run.contains(&write));
            for (index, run) in runs() {
                // what a caller looks at after the run cannot change in it
                let looked_at = &self.looked_at[index];
                if there.iter().any(|output| looked_at.contains(&(cut.to, output.node))) {
                    return Err(WhyWrite::LateReader);
                }
                let done = ancestors.entry((index, write));
                let done = done.or_insert_with(|| self.schedules[index].ancestors(write));
                let mut here = readers.clone();
                here.retain(|reader| run.contains(&(cut.to, *reader)));
                for reader in last(receiver, here) {
                    if done.contains(&(cut.to, reader)) {
                        continue;
                    }
                    // to wait for it is to need it, in every run
                    if !runs().all(|(_, run)| run.contains(&(cut.to, reader))) {
                        return Err(WhyWrite::LateReader);
                    }
                    let pair = (whole[cut.to].get(&reader), whole[cut.from].get(&writer));
                    let (Some(&reader), Some(&writer)) = pair else {
                        return Err(WhyWrite::LateReader);
                    };
                    // what a node waits for is earlier in the graph
                    if reader >= writer {
                        return Err(WhyWrite::LateReader);
                    }
                    waits.push((reader, writer));
                }
            }
        }
        Ok(waits)
    }
}

impl Chooser<'_> {
    /// True if some run may read a cut's tensor without having received it anew after the sender changed it.
    fn may_be_stale(&self, cut: &Cut, readers: &[NodeId], members: &[HashSet<At>]) -> bool {
        let Some(sent) = cut.sent else { return false };
        let graph = &self.partition.graphs[cut.from];
        let class = self.classes[cut.from].class(sent);
        let is_variable = matches!(graph.node(class.root().node).op, Op::Variable { .. });
        let mut writers = self.classes[cut.from].writers(graph, class);
        writers.extend(class.members.iter().map(|output| output.node).filter(|_| !is_variable));
        let receives = |run: usize| members[run].contains(&(cut.to, cut.recv));
        // what computes a tensor does so before it is sent, what updates a variable after
        let changes = |run: usize| {
            let writes = writers.iter().any(|writer| members[run].contains(&(cut.from, *writer)));
            writes && (is_variable || !receives(run))
        };
        let mut seen = vec![false; members.len()];
        let changing = (0..members.len()).filter(|run| changes(*run));
        let mut open: Vec<usize> =
            changing.flat_map(|run| self.followed_by[run].iter().copied()).collect();
        while let Some(run) = open.pop() {
            if receives(run) || std::mem::replace(&mut seen[run], true) {
                continue;
            }
            if readers.iter().any(|reader| members[run].contains(&(cut.to, *reader))) {
                return true;
            }
            open.extend(self.followed_by[run]);
        }
        false
    }
}

/// How a cut crosses when nothing is read where it lies.
pub(crate) fn without_references(cut: &Cut, why: WhyWrite) -> Transfer {
    match cut.sent {
        None => Transfer::Signal,
        Some(_) if cut.fact.spec().is_none() => Transfer::Dynamic,
        Some(_) => Transfer::Write(why),
    }
}

/// The nodes at the receiver that use a cut's tensor or a view of it.
pub(crate) fn readers(partition: &Partition, classes: &Classes, cut: &Cut) -> Vec<NodeId> {
    let graph = &partition.graphs[cut.to];
    if graph.node(cut.recv).facts.is_empty() {
        return Vec::new();
    }
    let members = &classes.class(cut.recv.into()).members;
    let reads = |id: &NodeId| graph.node(*id).inputs.iter().any(|input| members.contains(input));
    graph.ids().filter(reads).collect()
}

/// Those of `nodes` that no other of them follows.
fn last(graph: &Graph, nodes: Vec<NodeId>) -> Vec<NodeId> {
    let mut before: HashSet<NodeId> = HashSet::new();
    let mut open = nodes.clone();
    while let Some(id) = open.pop() {
        for earlier in graph.predecessors(id) {
            if before.insert(earlier) {
                open.push(earlier);
            }
        }
    }
    nodes.into_iter().filter(|id| !before.contains(id)).collect()
}
