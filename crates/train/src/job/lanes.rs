//! Who runs which part of the plan with whom. Synchronous: one plan over all members. Asynchronous: the
//! plan is that of one worker and the servers; each worker runs it at its own pace, and a server runs its
//! part once for each worker, all over the same variables.

use tensorwire_base::Rank;
use tensorwire_graph::Cluster;
use tensorwire_nn::Program;
use tensorwire_runtime::{RunError, Session, run_lanes};

use crate::config::{Seat, Strategy, TrainConfig};
use crate::open_part::Lanes;

impl TrainConfig {
    /// The cluster that is planned for.
    pub(super) fn cluster(&self) -> Cluster {
        let (workers, servers) = (self.replicas(), self.servers);
        match self.strategy {
            Strategy::Local => Cluster::Local,
            Strategy::Ps => Cluster::ParameterServers { workers, servers },
            _ if self.has_own_weights() => Cluster::Workers { workers },
            // what the servers of the graph would do, those of the store do
            _ => Cluster::ParameterServers { workers, servers: 1 },
        }
    }

    /// Replicas in the graph.
    pub(super) fn replicas(&self) -> u32 {
        if self.is_of_one() { 1 } else { self.workers }
    }

    /// Is the plan that of one worker, which each of them runs? In an elastic job anyone may have to
    /// evaluate in the end.
    pub(super) fn is_of_one(&self) -> bool {
        let of_store = self.strategy.is_asynchronous_store() && !self.is_grouped();
        self.asynchronous || of_store || self.store.elastic
    }

    /// What each member is, by rank.
    pub(super) fn roles(&self) -> Vec<String> {
        // replicas of one process have a role each
        let count = self.workers.saturating_add(self.servers_started());
        let role = |rank| match self.seat(Rank(rank)) {
            Seat::Worker(worker) => format!("worker {worker}"),
            Seat::Server(server) => format!("server {server}"),
        };
        (0..count).map(role).collect()
    }

    pub(super) fn lanes(&self, rank: Rank) -> Lanes {
        let servers = self.workers..self.workers + self.servers;
        if !self.asynchronous {
            let all = (0..servers.end).map(Rank).collect();
            return Lanes { part: rank.index(), ranks: vec![all] };
        }
        let lane = |worker: u32| [worker].into_iter().chain(servers.clone()).map(Rank).collect();
        if rank.0 < self.workers {
            Lanes { part: 0, ranks: vec![lane(rank.0)] }
        } else {
            // part 0 is the worker
            let part = 1 + (rank.0 - self.workers) as usize;
            Lanes { part, ranks: (0..self.workers).map(lane).collect() }
        }
    }
}

/// A server's part of asynchronous training: `steps` of each worker, in whatever order their gradients
/// come. `begin` is told of the furthest worker's steps.
pub(super) fn serve(
    lanes: &mut [Session],
    steps: u64,
    begin: &mut dyn FnMut(u64),
) -> Result<(), RunError> {
    let mut begun = vec![0; lanes.len()];
    let mut furthest = 0;
    run_lanes(lanes, &mut |lane| {
        if begun[lane] == steps {
            return None;
        }
        begun[lane] += 1;
        if begun[lane] > furthest {
            furthest = begun[lane];
            begin(furthest);
        }
        Some(Program::TRAIN)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(asynchronous: bool) -> TrainConfig {
        let config = serde_json::json!({
            "model": "mlp", "data": "digits", "strategy": "ps", "workers": 2, "servers": 3,
            "asynchronous": asynchronous, "transport": "auto", "exchange": "zero-copy", "batch": 8,
            "verbs": {"nic": null, "gid": null}, "arrival": null, "hosts": tensorwire_launch::Hosts::default(),
            "schedule": {"steps": 1}, "optimizer": "sgd", "rate": 0.1, "momentum": 0.0, "dtype": "f32",
            "seed": 1,
            "threads": null, "kernels": "auto", "load": null, "save": null, "trace": null,
            "listen": "127.0.0.1:0", "deadline_ms": 10000,
        });
        serde_json::from_value(config).unwrap()
    }

    #[test]
    fn synchronous_members_share_one_plan() {
        let all: Vec<Rank> = (0..5).map(Rank).collect();
        let lanes = config(false).lanes(Rank(3));
        assert_eq!((lanes.part, lanes.ranks), (3, vec![all]));
        assert_eq!(config(false).replicas(), 2);
    }

    #[test]
    fn asynchronous_workers_meet_every_server_in_a_lane_of_their_own() {
        let lane = |worker: u32| [worker, 2, 3, 4].map(Rank).to_vec();
        let worker = config(true).lanes(Rank(1));
        assert_eq!((worker.part, worker.ranks), (0, vec![lane(1)]));
        let server = config(true).lanes(Rank(4));
        assert_eq!((server.part, server.ranks), (3, vec![lane(0), lane(1)]));
        assert_eq!(config(true).replicas(), 1);
        assert_eq!(config(true).roles()[4], "server 2");
    }
}
