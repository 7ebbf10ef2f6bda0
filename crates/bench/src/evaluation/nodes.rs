//! ResNet-50 by nodes, measured and simulated (Mamidala et al., figure 15).

use std::fmt;

use serde::Serialize;
use tensorwire_simulate::Network;
use tensorwire_train::TrainConfig;

use super::Runner;
use super::training::Throughput;
use crate::error::BenchError;
use crate::machine::Machine;
use crate::simulate::{Compute, SimulateSpec, simulate};

/// How gradients are all-reduced, as the paper calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodesDesign {
    /// MPI_Allreduce: whatever suits a group.
    Reg,
    /// Theirs: several rings.
    Ring,
}

/// A point of the figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodesOf {
    pub nodes: u32,
    pub design: NodesDesign,
    /// A worker's batch stays as it is; else it halves where the nodes double, from two on.
    pub is_weak: bool,
}

impl NodesOf {
    /// Samples of a worker, who has `of_two` at two nodes.
    pub(super) fn batch(self, of_two: usize) -> usize {
        // fits: nodes are few
        let times = if self.is_weak { 1 } else { (self.nodes / 2).max(1) as usize };
        (of_two / times).max(1)
    }

    fn scaling(self) -> &'static str {
        if self.is_weak { "weak" } else { "strong" }
    }
}

impl fmt::Display for NodesOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let design = match self.design {
            NodesDesign::Reg => "reg",
            NodesDesign::Ring => "ring",
        };
        write!(f, "{} nodes {design} {}", self.nodes, self.scaling())
    }
}

/// What it takes on a cluster.
#[derive(Clone, Debug)]
pub struct SimulatedNodes {
    pub spec: SimulateSpec,
    pub cluster: Network,
    /// A step of one worker alone.
    pub compute_s: f64,
    pub of: NodesOf,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct MeasuredNodes {
    #[serde(flatten)]
    job: Throughput,
    nodes: u32,
    design: NodesDesign,
    scaling: &'static str,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct NodesEstimate {
    bench: &'static str,
    /// None of it was measured.
    cluster: String,
    model: String,
    nodes: u32,
    workers: u32,
    batch: usize,
    design: NodesDesign,
    scaling: &'static str,
    step_s: f64,
    compute_s: f64,
    /// Of all workers.
    samples_per_second: f64,
    bottleneck: String,
    machine: Machine,
}

impl SimulatedNodes {
    pub(super) fn estimate(&self) -> Result<NodesEstimate, BenchError> {
        let SimulatedNodes { spec, cluster, compute_s, of } = self;
        let compute = Compute::Given { alone_s: *compute_s, crowded_s: None };
        let result = simulate(spec, cluster, compute)?;
        let step_s = result.estimate.step_s;
        // fits: batches are small
        let samples = f64::from(spec.workers) * spec.batch as f64;
        Ok(NodesEstimate {
            bench: "nodes",
            cluster: result.cluster,
            model: result.model,
            nodes: of.nodes,
            workers: spec.workers,
            batch: spec.batch,
            design: of.design,
            scaling: of.scaling(),
            step_s,
            compute_s: result.estimate.compute_s,
            samples_per_second: samples / step_s,
            bottleneck: result.estimate.bottleneck,
            machine: result.machine,
        })
    }
}

impl Runner<'_> {
    /// A worker here stands for a node.
    pub(super) fn nodes(
        &mut self,
        config: &TrainConfig,
        of: NodesOf,
    ) -> Result<MeasuredNodes, BenchError> {
        let job = self.throughput(config)?.of_kind("nodes");
        let (nodes, design, scaling) = (of.nodes, of.design, of.scaling());
        Ok(MeasuredNodes { job, nodes, design, scaling })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_halves_with_strong_scaling_alone() {
        let of = |nodes, is_weak| NodesOf { nodes, design: NodesDesign::Ring, is_weak }.batch(128);
        assert_eq!([2, 4, 8].map(|nodes| of(nodes, true)), [128; 3]);
        assert_eq!([2, 4, 8].map(|nodes| of(nodes, false)), [128, 64, 32]);
        let least = NodesOf { nodes: 8, design: NodesDesign::Reg, is_weak: false }.batch(2);
        assert_eq!(least, 1);
    }
}
