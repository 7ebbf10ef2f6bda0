//! What a job puts in a store: which value is called how, where it lies, how it travels and how it is updated; and what that
//! takes of memory.

use std::collections::BTreeMap;

use tensorwire_base::Rank;
use tensorwire_graph::{NARROWED_FROM, Op};
use tensorwire_kvstore::wire::{RingOptions, SHOWN_FROM};
use tensorwire_kvstore::{
    BIG_ELEMENTS, DeviceReach, Key, Partition, ServerLoad, Shard, StoreError, TransferMode,
    TransferThresholds, ValueSpec,
};
use tensorwire_launch::Transport;
use tensorwire_nn::{Compression, Program, Variable, rule_of};
use tensorwire_tensor::DType;

use crate::config::{
    Averaging, ConfigError, DeviceChoice, Exchange, StoreConfig, TrainConfig, WireType,
};
use crate::job::Prepared;
use crate::store::{Less, StoreRule, StoreRules, StoredShard};
use crate::strategy::Strategy;
use crate::topology::Topology;

/// Bytes of a slice of a large value. A link of 1 Gb/s carries one in 18 ms; what is said of each are a push, a pull and their answers.
const SLICE_BYTES: usize = 2 << 20;

impl TrainConfig {
    /// True if workers read weights where the servers have them. Where both share memory, every worker is done with one step's
    /// before the next step's are made, and no server comes from elsewhere.
    pub(in crate::job) fn shows_weights(&self) -> bool {
        let StoreConfig { elastic, snapshot, .. } = &self.store;
        self.strategy == Strategy::DistSgd
            && self.clip_norm.is_none()
            && self.wire.narrow().is_none()
            && self.exchange == Exchange::ZeroCopy
            && self.settled_transport() == Some(Transport::Shm)
            && !elastic
            && snapshot.is_none()
    }

    /// Values of more elements are split over all servers; not where they are read where they lie, in one piece.
    pub(super) fn big_elements(&self) -> usize {
        let is_whole = self.shows_weights() || self.optimizer.method.needs_whole();
        if is_whole { usize::MAX } else { BIG_ELEMENTS }
    }

    /// Bytes of a slice of what is split. Any slice may hold all of a gradient's largest elements, for which it has no room: with `top-k` a
    /// server has its share in one piece.
    pub(super) fn slice_bytes(&self) -> Option<usize> {
        match self.wire {
            WireType::TopK { .. } => None,
            WireType::F32 | WireType::Bf16 | WireType::Int8 => Some(SLICE_BYTES),
        }
    }

    /// Where values of the store lie.
    fn partition(&self) -> Partition {
        let whole = Partition::new(self.servers.max(1), self.big_elements());
        self.slice_bytes().map_or(whole, |bytes| whole.in_slices(bytes))
    }

    /// What decides how values travel between workers and servers.
    fn store_sizes(&self) -> TransferThresholds {
        if self.exchange == Exchange::Zmq {
            return TransferThresholds { direct_from: None, mapped_from: None };
        }
        let shares_memory = self.settled_transport() == Some(Transport::Shm);
        TransferThresholds {
            direct_from: Some(RingOptions::default().direct_from),
            mapped_from: shares_memory.then_some(SHOWN_FROM),
        }
    }
}

/// A variable in a store.
#[derive(Clone, Debug)]
pub struct StoreValue {
    pub name: String,
    pub key: Key,
    pub spec: ValueSpec,
    /// Where it lies: whole on one server, or some of its rows on each.
    pub shards: Vec<Shard>,
    /// How each shard is pushed and pulled.
    pub mode: TransferMode,
}

impl Prepared {
    /// What is in the store, in the order of keys.
    ///
    /// # Errors
    /// As [`Prepared::store_table`].
    pub fn store_values(&self) -> Result<Vec<StoreValue>, StoreError> {
        let partition = self.config.partition();
        let sizes = self.config.store_sizes();
        let names = self.program.weights().map(|variable| variable.name.clone());
        let value = |(name, (key, spec)): (String, (Key, ValueSpec))| {
            let shards = partition.shards(key, &spec)?;
            let least = shards.iter().map(|shard| shard.rows.len() * spec.row_bytes()).min();
            let mode = match self.config.store_reach(&self.topology, &self.program.graph) {
                Some(DeviceReach::Mapped) => TransferMode::PeerMapped,
                _ => sizes.mode(least.unwrap_or_default(), spec.columns > 1),
            };
            Ok(StoreValue { name, key, spec, shards, mode })
        };
        names.zip(values(&self.config, &self.topology, &self.program)).map(value).collect()
    }

    /// What each server of the store will hold.
    ///
    /// # Errors
    /// Never: a model has far fewer variables than there are keys.
    pub fn store_table(&self) -> Result<Vec<ServerLoad>, StoreError> {
        let partition = self.config.partition();
        Ok(partition.table(&values(&self.config, &self.topology, &self.program))?)
    }
}

/// What the servers of a store take here: weights, slots of the optimizer, and a slot for what each worker
/// pushes where it does not show it.
pub(super) fn server_bytes(program: &Program, config: &TrainConfig, topology: &Topology) -> u64 {
    if !topology.has_store() {
        return 0;
    }
    let partition = config.partition();
    let shards = values(config, topology, program).into_iter().flat_map(|(key, spec)| {
        // a key that has no place is said where the store is made
        let shards = partition.shards(key, &spec).unwrap_or_default().into_iter();
        shards.map(move |shard| (shard.server, ValueSpec { rows: shard.rows.len(), ..spec }))
    });
    // fits: servers are few
    let is_here = |server: usize| config.hosts.is_here(Rank(topology.masters() + server as u32));
    let sizes = config.store_sizes();
    let reach = config.store_reach(topology, &program.graph);
    // what comes rounded or as less a server makes f32 again, of each worker, of one shard at a time
    let mut widened: BTreeMap<usize, usize> = BTreeMap::new();
    let bytes = shards.filter(|(server, _)| is_here(*server)).map(|(server, shard)| {
        let slots = if sizes.needs_slot(&shard) { topology.groups as usize } else { 0 };
        let keeps_slots = !topology.is_replicated();
        let state = if keeps_slots { config.optimizer.slots() } else { 0 };
        // what is kept beside what travels is f32
        let is_narrow = config.wire.narrow() == Some(shard.dtype);
        let wide = match is_narrow {
            true => shard.elements().saturating_mul(DType::F32.bytes()),
            false => shard.bytes(),
        };
        let beside = wide.saturating_mul(state + usize::from(is_narrow));
        if is_narrow && reach.is_none() {
            let largest = widened.entry(server).or_default();
            *largest = wide.max(*largest);
        }
        let kept = match reach {
            Some(DeviceReach::Mapped) => 0,
            // should no NIC reach it
            Some(DeviceReach::ByNic | DeviceReach::ByHost) => shard.bytes(),
            None => shard.bytes().saturating_add(beside),
        };
        // fits: usize is 64 bits wide
        kept.saturating_add(shard.slot_bytes().saturating_mul(slots)) as u64
    });
    let kept = bytes.fold(0, u64::saturating_add);
    // fits: usize is 64 bits wide
    let all_widened = widened.into_values().fold(0, usize::saturating_add) as u64;
    kept.saturating_add(all_widened.saturating_mul(u64::from(topology.groups)))
}

/// What workers here take of the host's memory for what they push and pull, should no NIC reach their GPUs'.
pub(super) fn staged_bytes(program: &Program, config: &TrainConfig, topology: &Topology) -> u64 {
    if config.store_reach(topology, &program.graph) != Some(DeviceReach::ByNic) {
        return 0;
    }
    // fits: sizes in memory, and workers are few
    let weights: u64 = program.weights().map(|variable| variable.spec.bytes() as u64).sum();
    let masters = (0..topology.masters()).map(|worker| topology.rank_of(worker));
    let here = masters.filter(|rank| config.hosts.is_here(*rank)).count() as u64;
    weights.saturating_mul(2).saturating_mul(here)
}

/// What workers here take of the host's memory for a centre beside their weights: room for it, and for what a master pushes.
pub(super) fn centre_bytes(program: &Program, config: &TrainConfig, topology: &Topology) -> u64 {
    let reach = config.store_reach(topology, &program.graph);
    if topology.averaging.is_none() || reach == Some(DeviceReach::Mapped) {
        return 0;
    }
    // fits: sizes in memory
    let weights: u64 = program.weights().map(|variable| variable.spec.bytes() as u64).sum();
    let looks = config.evaluate_each_epoch || config.evaluate_every.is_some();
    // on a device they stand aside in what is pushed from
    let sets_aside = looks && reach.is_none();
    let here = (0..config.workers).filter(|worker| config.hosts.is_here(topology.rank_of(*worker)));
    let copies = here.map(|worker| match worker {
        // its own stand aside while it evaluates the centre
        0 if sets_aside => 3,
        worker if worker < topology.masters() => 2,
        _ => 1,
    });
    let copies = copies.sum::<u64>();
    weights.saturating_mul(copies)
}

/// A variable's key is its place in the order of declaration; its value is what travels of it.
pub(super) fn values(
    config: &TrainConfig,
    topology: &Topology,
    program: &Program,
) -> Vec<(Key, ValueSpec)> {
    let by_rows = |variable: &Variable| {
        let at = program.graph.find(&variable.name);
        program.graph.nodes().any(|(_, node)| {
            let first = node.inputs.first().map(|input| input.node);
            matches!(node.op, Op::ApplyRows { .. }) && first == at
        })
    };
    let value = |variable: &Variable| {
        let spec = &variable.spec;
        let dense = ValueSpec::dense(spec.dtype, spec.elements());
        match spec.dims() {
            // a centre is of whole values
            [rows, columns] if topology.averaging.is_none() && by_rows(variable) => {
                ValueSpec { rows: *rows, columns: *columns, ..dense }
            }
            _ if spec.dtype == DType::F32 && spec.elements() >= NARROWED_FROM => {
                ValueSpec { dtype: config.wire.narrow().unwrap_or(DType::F32), ..dense }
            }
            _ => dense,
        }
    };
    (0..).map(Key).zip(program.weights().map(value)).collect()
}

/// Refuses less of a gradient where no server could take it, or has no room for it.
pub(in crate::job) fn check_encoded(
    config: &TrainConfig,
    topology: &Topology,
    program: &Program,
) -> Result<(), ConfigError> {
    let Some(compression) = config.wire.compression().filter(|_| topology.trains_over_store())
    else {
        return Ok(());
    };
    if config.device != DeviceChoice::Cpu {
        return Err(ConfigError::WireOnDevice { wire: config.wire.name() });
    }
    let partition = config.partition();
    for (variable, (key, spec)) in program.weights().zip(values(config, topology, program)) {
        if config.wire.narrow() != Some(spec.dtype) {
            continue;
        }
        let less = match compression {
            Compression::Int8 => Less::Int8 { block: Compression::BLOCK },
            Compression::TopK { share } => {
                Less::TopK { count: Compression::chosen(share, spec.elements()) }
            }
        };
        // a key that has no place is said where the store is made
        for shard in partition.shards(key, &spec).unwrap_or_default() {
            let room = ValueSpec { rows: shard.rows.len(), ..spec }.slot_bytes();
            if less.bytes_max(shard.rows) > room {
                let (wire, variable) = (config.wire.to_string(), variable.name.clone());
                let servers = config.servers;
                return Err(ConfigError::WireTooLarge { wire, servers, variable });
            }
        }
    }
    Ok(())
}

/// Where each variable lies, or each part of one, and what is kept beside it.
pub(super) fn stored_shards(
    config: &TrainConfig,
    topology: &Topology,
    program: &Program,
) -> Result<Vec<StoredShard>, StoreError> {
    let partition = config.partition();
    let mut stored = Vec::new();
    for (index, (variable, (key, spec))) in
        program.weights().zip(values(config, topology, program)).enumerate()
    {
        let is_learned = index < program.variables.len();
        for shard in partition.shards(key, &spec)? {
            stored.push(StoredShard {
                server: shard.server,
                key: shard.key,
                variable: variable.clone(),
                spec: ValueSpec { rows: shard.rows.len(), ..spec },
                first_row: shard.rows.start,
                // what moves a centre keeps nothing
                optimizer: (is_learned && topology.averaging.is_none()).then_some(config.optimizer),
            });
        }
    }
    Ok(stored)
}

/// What each variable's update is: the optimizer's, or a moving average's.
pub(super) fn rules(config: &TrainConfig, topology: &Topology, program: &Program) -> StoreRules {
    if let Some(Averaging { alpha, .. }) = topology.averaging {
        return StoreRules::all(StoreRule::Elastic { alpha });
    }
    let masters = config.wire.narrow().is_some();
    if topology.reduces_in_store {
        return StoreRules { masters, ..StoreRules::all(StoreRule::Mean) };
    }
    let mut rules = StoreRules { masters, ..StoreRules::all(StoreRule::from(config.optimizer)) };
    for (key, variable) in (0..).zip(&program.variables) {
        let own = rule_of(config.optimizer, variable, &config.no_decay);
        if own != config.optimizer {
            rules.of_keys.insert(key, StoreRule::from(own));
        }
    }
    let averages = (0u64..).zip(program.weights()).skip(program.variables.len());
    for (key, variable) in averages {
        let at = program.graph.find(&variable.name);
        let rate = program.graph.nodes().find_map(|(_, node)| match node.op {
            Op::ApplyAverage { rate } if node.inputs.first().map(|input| input.node) == at => {
                Some(rate)
            }
            _ => None,
        });
        rules.of_keys.extend(rate.map(|rate| (key, StoreRule::Average { rate })));
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Budget, Kernels};
    use crate::job::Workload;
    use tensorwire_zoo::data::Source;
    use tensorwire_zoo::{Mlp, Shipped};

    fn prepared(transport: Transport, exchange: Exchange) -> Prepared {
        let config = TrainConfig {
            strategy: Strategy::DistSgd,
            workers: 3,
            transport,
            exchange,
            batch: 8,
            budget: Budget::Steps(1),
            kernels: Kernels::Cpu,
            ..TrainConfig::default()
        };
        let source: Source = "digits".parse().unwrap();
        let data = source.open(Mlp.samples(), 1).unwrap();
        Prepared::new(config, &Workload::new(Mlp, data)).unwrap()
    }

    #[test]
    fn servers_take_slots_for_what_is_not_shown_alone() {
        for (transport, exchange, mapped_from) in [
            (Transport::Tcp, Exchange::ZeroCopy, usize::MAX),
            #[cfg(feature = "baselines")]
            (Transport::Tcp, Exchange::Zmq, usize::MAX),
            (Transport::Shm, Exchange::ZeroCopy, SHOWN_FROM),
        ] {
            let Prepared { config, topology, program, .. } = prepared(transport, exchange);
            let sizes: Vec<usize> = program.weights().map(|v| v.spec.bytes()).collect();
            let sent: usize = sizes.iter().filter(|bytes| **bytes < mapped_from).sum();
            // weights and velocity, and the pushes of three workers
            let expected = 2 * sizes.iter().sum::<usize>() + 3 * sent;
            assert_eq!(
                server_bytes(&program, &config, &topology),
                expected as u64,
                "{transport:?} {exchange:?}"
            );
            assert!(sizes.iter().any(|bytes| *bytes >= SHOWN_FROM), "else it says nothing");
        }
    }
}
