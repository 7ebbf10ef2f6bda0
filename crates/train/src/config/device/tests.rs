//! What is said of GPUs in a configuration, and what plans make of it.

use super::*;
use crate::config::tests;

#[test]
fn a_device_is_what_it_prints() {
    for text in ["cpu", "cuda", "cuda:3", "auto"] {
        let choice: DeviceChoice = text.parse().unwrap();
        assert_eq!(choice.to_string(), text);
    }
    for wrong in ["", "cuda:", "cuda:-1", "cuda:x", "tpu"] {
        wrong.parse::<DeviceChoice>().unwrap_err();
    }
}

#[test]
fn tensors_cross_by_the_host_where_that_is_asked_for() {
    let config = TrainConfig::default();
    let options = config.exchange.plan_options(tensorwire_launch::Transport::Shm, &[]);
    let of = |choice: DeviceChoice, by_way_of_host| {
        let config = TrainConfig { by_way_of_host, ..config.clone() };
        let options =
            choice.plan_options(options.clone(), &config.topology(), (&config, &Graph::new()));
        (options.devices, options.device_crossing)
    };
    let cuda = DeviceChoice::Cuda { ordinal: None };
    assert_eq!(of(cuda, false), (DeviceTasks::All, DeviceCrossing::Direct));
    assert_eq!(of(cuda, true), (DeviceTasks::Workers, DeviceCrossing::ByHost));
    assert_eq!(of(DeviceChoice::Cpu, true), (options.devices, options.device_crossing));
}

/// What groups reduce, and parts of one graph, is on devices everywhere; what is mapped alone depends on who reaches whom.
#[test]
fn tensors_of_devices_are_mapped_where_all_reach_each_other_and_written_else() {
    let device = DeviceChoice::Cuda { ordinal: None };
    let spread: tensorwire_launch::Hosts = "192.0.2.1,192.0.2.2".parse().unwrap();
    let of = |strategy| TrainConfig { strategy, workers: 4, device, ..tests::config() };
    let planned = |config: &TrainConfig| {
        let hosts = config.host_numbers();
        let options = config.exchange.plan_options(config.transport, &hosts);
        device.plan_options(options, &config.topology(), (config, &Graph::new()))
    };
    for strategy in [Strategy::Ps, Strategy::AllReduce, Strategy::MpiSgd, Strategy::MpiEsgd] {
        let mapped = planned(&of(strategy));
        assert_eq!(mapped.device_crossing, DeviceCrossing::Direct, "{strategy:?}");
        assert!(matches!(mapped.shared_memory, SharedMemory::Used), "{strategy:?}");
        let (by_edges, devices) = (mapped.all_reduce, mapped.devices);
        assert_eq!(devices, DeviceTasks::All, "{strategy:?}");
        assert_eq!(by_edges == AllReduceBy::Group, strategy == Strategy::Ps, "{strategy:?}");
        for config in [
            TrainConfig { transport: Transport::Tcp, ..of(strategy) },
            TrainConfig { transport: Transport::Verbs, ..of(strategy) },
            TrainConfig { transport: Transport::Tcp, hosts: spread.clone(), ..of(strategy) },
            TrainConfig { hosts: spread.clone(), devices_apart: true, ..of(strategy) },
            TrainConfig { devices_apart: true, ..of(strategy) },
        ] {
            let written = planned(&config);
            assert_eq!(written.device_crossing, DeviceCrossing::Direct, "{config:?}");
            assert_eq!(written.all_reduce, by_edges, "{config:?}");
            // nothing of a device is read where it lies
            let shared = written.shared_memory;
            assert!(matches!(shared, SharedMemory::None | SharedMemory::Unused), "{config:?}");
            // a store's servers take what the host gives, but for verbs
            let takes = strategy == Strategy::MpiSgd && config.transport != Transport::Verbs;
            assert_eq!(written.devices == DeviceTasks::Workers, takes, "{config:?}");
        }
    }
}

/// Of several hosts that `auto` joins, whose numbers are those of their first ranks.
#[test]
fn tensors_of_devices_are_mapped_within_each_host_where_auto_joins_several() {
    let device = DeviceChoice::Cuda { ordinal: None };
    let hosts: tensorwire_launch::Hosts = "192.0.2.1,192.0.2.2".parse().unwrap();
    for (strategy, on) in [
        // workers, then servers
        (Strategy::Ps, &[0, 1, 0, 1, 0, 1][..]),
        (Strategy::AllReduce, &[0, 1, 0, 1, u32::MAX]),
        // one group: its first, then servers, then its others; what stands for the store is nowhere
        (Strategy::MpiSgd, &[0, 1, 0, 1, u32::MAX]),
    ] {
        let config =
            TrainConfig { strategy, workers: 4, device, hosts: hosts.clone(), ..tests::config() };
        let options = config.exchange.plan_options(config.transport, &config.host_numbers());
        let about = (&config, &Graph::new());
        let planned = device.plan_options(options, &config.topology(), about);
        assert_eq!(planned.shared_memory, SharedMemory::UsedOnHosts(on.into()), "{strategy:?}");
        assert_eq!(planned.device_crossing, DeviceCrossing::Direct, "{strategy:?}");
    }
}

#[test]
fn a_store_lies_on_gpus_where_nothing_needs_the_host_and_is_mapped_where_workers_reach_them() {
    let (strategy, device) = (Strategy::DistSgd, DeviceChoice::Cuda { ordinal: None });
    let transport = Transport::Shm;
    let config = || TrainConfig { strategy, device, transport, ..tests::config() };
    let program = Graph::new();
    let reach = |config: &TrainConfig| config.store_reach(&config.topology(), &program);
    let of = |strategy| TrainConfig { strategy, workers: 4, ..config() };
    for config in [
        config(),
        of(Strategy::DistAsgd),
        of(Strategy::DistEsgd),
        of(Strategy::MpiSgd),
        of(Strategy::MpiAsgd),
        TrainConfig { clip_norm: Some(1.0), ..config() },
    ] {
        assert_eq!(reach(&config), Some(DeviceReach::Mapped));
    }
    for strategy in [Strategy::DistSgd, Strategy::DistEsgd, Strategy::MpiSgd] {
        for (config, said) in [
            (TrainConfig { transport: Transport::Tcp, ..of(strategy) }, "share no memory"),
            (TrainConfig { devices_apart: true, ..of(strategy) }, "do not reach"),
            (
                TrainConfig {
                    transport: Transport::Verbs,
                    wire: super::super::WireType::Bf16,
                    ..of(strategy)
                },
                "travel rounded",
            ),
        ] {
            assert_eq!(reach(&config), Some(DeviceReach::ByHost));
            let why = config.store_is_staged(&config.topology(), &program).unwrap();
            assert!(why.contains(said), "{why}: {said}");
        }
    }
    let by_host = TrainConfig { by_way_of_host: true, ..config() };
    assert_eq!(reach(&by_host), None);
    assert!(by_host.store_by_host().unwrap().contains("by way of it"));
    for strategy in [Strategy::DistSgd, Strategy::MpiSgd, Strategy::DistEsgd] {
        let by_nic = TrainConfig { transport: Transport::Verbs, ..of(strategy) };
        assert_eq!(reach(&by_nic), Some(DeviceReach::ByNic));
    }
    assert_eq!(reach(&TrainConfig { device: DeviceChoice::Cpu, ..config() }), None);
}

/// A server of `ps` has as many GPUs as a worker, or one.
#[test]
fn gpus_of_servers_come_behind_those_of_workers_or_beside_them() {
    let (strategy, device) = (Strategy::Ps, DeviceChoice::Cuda { ordinal: None });
    let (workers, servers, devices_per_worker) = (2, 2, 2);
    let config = tests::config();
    let config = TrainConfig { strategy, device, workers, servers, devices_per_worker, ..config };
    let of = |count, devices| {
        [0, 1, 2, 3].map(|rank| ordinals(&config, count, Rank(rank), devices).unwrap())
    };
    assert_eq!(of(8, 2), [[0, 1], [2, 3], [4, 5], [6, 7]]);
    assert_eq!(of(4, 2), [[0, 1], [2, 3], [0, 1], [2, 3]]);
    assert_eq!(of(5, 1)[2..], [[4], [0]]);
}
