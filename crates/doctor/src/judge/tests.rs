//! Made-up machines and trials, and what the judge must say of them.

use super::super::facts::*;
use super::super::peer::{Difference, PeerExamined};
use super::super::trial::{Moved, Trial};
use super::*;
use tensorwire_fabric::LinkLayer;
use tensorwire_launch::Obstacle;
use tensorwire_launch::Transport;

/// Nothing is wrong with it, and there is no RDMA.
pub(super) fn plain() -> Facts {
    let free = Limit { soft: Some(1 << 20), hard: Some(1 << 20) };
    Facts {
        version: "1.0".into(),
        host: "node0".into(),
        kernel: "6.1.0".into(),
        computer: Computer {
            cores: 4,
            memory_bytes: 8 << 30,
            memory_available_bytes: 6 << 30,
            open_files: free,
            ..Computer::default()
        },
        shared_memory: SharedMemoryFacts::default(),
        locking: Locking {
            memlock: Limit { soft: Some(8 << 20), hard: Some(8 << 20) },
            ipc_lock: false,
        },
        rdma: Rdma {
            library: LibraryFacts {
                path: Some("/lib/libibverbs.so.1.14".into()),
                ..LibraryFacts::default()
            },
            obstacle: Some(Obstacle {
                reason: "there is no RDMA NIC".into(),
                mend: "buy one".into(),
            }),
            default_interface: Some("eth7".into()),
            ..Rdma::default()
        },
        gpu: Gpu::default(),
        auto: Auto { one_host: Transport::Shm, several_hosts: Transport::Tcp, why: String::new() },
    }
}

/// With a NIC that works and may lock all memory.
pub(super) fn with_nic() -> Facts {
    let mut facts = plain();
    let gid = |index, kind, address: &str, picked| GidFacts {
        index,
        kind,
        address: address.parse().unwrap(),
        interface: Some("eth7".into()),
        picked,
    };
    let port = PortFacts {
        number: 1,
        state: PortState::Active,
        link: LinkLayer::Ethernet,
        rate: Some("100 Gb/sec".into()),
        mtu: 4096,
        mtu_max: 4096,
        interface: Some("eth7".into()),
        interface_mtu: Some(9000),
        gids: vec![
            gid(0, GidKind::RoceV1, "fe80::1", false),
            gid(3, GidKind::RoceV2, "10.0.0.1", true),
        ],
    };
    let pick =
        Pick { nic: "mlx5_0".into(), port: 1, gid_index: 3, why: "mlx5_0 port 1: routable".into() };
    let file = DeviceFile { path: "/dev/infiniband/uverbs0".into(), usable: true };
    facts.rdma = Rdma {
        devices: vec!["mlx5_0".into()],
        files: vec![file],
        nics: vec![NicFacts { name: "mlx5_0".into(), firmware: "1".into(), ports: vec![port] }],
        pick: Some(pick),
        obstacle: None,
        ..facts.rdma
    };
    facts.locking.ipc_lock = true;
    facts
}

/// The finding of that name: there must be one.
pub(super) fn found<'a>(findings: &'a [Finding], id: &str) -> &'a Finding {
    let mut of = findings.iter().filter(|finding| finding.id == id);
    let first = of.next().unwrap_or_else(|| panic!("no {id} in {findings:?}"));
    assert!(of.next().is_none(), "{id} twice in {findings:?}");
    first
}

pub(super) fn mend<'a>(findings: &'a [Finding], id: &str) -> &'a str {
    found(findings, id).mend.as_deref().unwrap()
}

#[test]
fn a_machine_without_rdma_is_told_so_and_trains() {
    let findings = machine(&plain(), false);
    assert_eq!(worst(&findings), Severity::Note, "{findings:?}");
    let soft = "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth7";
    assert_eq!(mend(&findings, "rdma-no-nic"), soft);
    let mut boxed = plain();
    boxed.computer.container = Some("/.dockerenv".into());
    let docker = machine(&boxed, false);
    assert!(mend(&docker, "rdma-no-nic").starts_with("docker run --device=/dev/infiniband"));
    assert!(mend(&docker, "rdma-no-nic").ends_with(soft));
    boxed.rdma.library.error = Some("no such file".into());
    assert!(mend(&machine(&boxed, false), "rdma-library").contains("apt-get install rdma-core"));
    assert_eq!(findings.len(), 1, "memlock matters with a NIC alone: {findings:?}");
    // whoever names a NIC wants it
    assert_eq!(worst(&machine(&plain(), true)), Severity::Error);
}

#[test]
fn a_machine_in_order_has_nothing_to_mend() {
    let findings = machine(&with_nic(), false);
    assert_eq!(worst(&findings), Severity::Ok, "{findings:?}");
    assert!(findings.iter().all(|finding| finding.mend.is_none()));
    assert_eq!(found(&findings, "rdma").what, "mlx5_0 port 1: routable");
}

#[test]
fn what_is_in_the_way_of_rdma_is_named_from_the_bottom_up() {
    let obstacle = Obstacle { reason: "it is broken".into(), mend: "mend it".into() };
    let mut facts = with_nic();
    facts.rdma.obstacle = Some(obstacle);
    let of = |facts: &Facts, id: &str| {
        let findings = machine(facts, false);
        assert_eq!(worst(&findings), Severity::Warning, "{findings:?}");
        mend(&findings, id).to_string()
    };
    assert_eq!(of(&facts, "rdma-unusable"), "mend it");
    facts.rdma.nics[0].ports[0].state = PortState::Down;
    assert_eq!(of(&facts, "rdma-port-down"), "ip link set dev eth7 up");
    facts.rdma.nics.clear();
    assert_eq!(of(&facts, "rdma-provider"), "apt-get install ibverbs-providers");
    facts.rdma.files[0].usable = false;
    assert_eq!(of(&facts, "rdma-permission"), "sudo chmod a+rw /dev/infiniband/uverbs0");
    facts.rdma.files.clear();
    assert_eq!(of(&facts, "rdma-no-file"), "modprobe ib_uverbs");
    facts.computer.container = Some("/.dockerenv".into());
    assert!(of(&facts, "rdma-no-file").contains("--device=/dev/infiniband"));
    facts.rdma.library.error = Some("no such file".into());
    assert!(of(&facts, "rdma-library").contains("apt-get install rdma-core"));
}

#[test]
fn a_limit_on_locked_memory_matters_with_a_nic_and_without_the_capability() {
    let mut facts = with_nic();
    facts.locking.ipc_lock = false;
    assert!(mend(&machine(&facts, false), "memlock").contains("/etc/security/limits.d/"));
    facts.locking.memlock.hard = None;
    assert_eq!(mend(&machine(&facts, false), "memlock"), "ulimit -l unlimited");
    facts.computer.container = Some("/.dockerenv".into());
    let mends = mend(&machine(&facts, false), "memlock").to_string();
    assert!(mends.contains("--ulimit memlock=-1") && mends.contains("LimitMEMLOCK"), "{mends}");
    facts.locking.memlock.soft = None;
    assert_eq!(worst(&machine(&facts, false)), Severity::Ok);
}

#[test]
fn ports_and_gids_that_could_be_better() {
    let mut facts = with_nic();
    let port = &mut facts.rdma.nics[0].ports[0];
    (port.mtu, port.interface_mtu) = (1024, Some(1500));
    port.gids[1].address = "fe80::2".parse().unwrap();
    let findings = machine(&facts, false);
    assert_eq!(mend(&findings, "rdma-mtu"), "ip link set dev eth7 mtu 4200");
    assert_eq!(mend(&findings, "rdma-gid-link-local"), "ip addr add ADDRESS/24 dev eth7");
    facts.rdma.nics[0].ports[0].gids[1].kind = GidKind::RoceV1;
    found(&machine(&facts, false), "rdma-gid-v1");
}

#[test]
fn what_a_container_leaves() {
    let mut facts = plain();
    facts.computer.memory_granted_bytes = Some(1 << 30);
    facts.computer.cores_granted = Some(0.5);
    facts.computer.open_files = Limit { soft: Some(256), hard: Some(4096) };
    assert!(
        machine(&facts, false).iter().all(|finding| finding.id != "open-files"),
        "it raises it"
    );
    facts.computer.open_files.hard = Some(256);
    facts.shared_memory.memfd_error = Some("function not implemented".into());
    let findings = machine(&facts, false);
    assert!(found(&findings, "memory-granted").what.contains("1 GiB of 8 GiB"), "{findings:?}");
    assert!(found(&findings, "cores-granted").what.contains("0.5 of 4"));
    assert!(mend(&findings, "open-files").contains("nofile 65536"));
    assert_eq!(found(&findings, "no-shared-memory").severity, Severity::Error);
}

#[test]
fn gpudirect_is_asked_for_where_there_is_a_gpu_and_a_nic() {
    let mut facts = with_nic();
    facts.gpu = Gpu { devices: 1, driver: Some("NVIDIA 550".into()), ..Gpu::default() };
    assert_eq!(mend(&machine(&facts, false), "gpudirect"), "modprobe nvidia-peermem");
    facts.gpu.peermem = true;
    assert_eq!(worst(&machine(&facts, false)), Severity::Ok);
    facts.gpu = Gpu { dmabuf_kernel: true, open_modules: true, peermem: false, ..facts.gpu };
    assert_eq!(facts.gpu.direct(), Some("dma-buf"));
}

fn passed(transport: Transport) -> Trial {
    let (round_trip_us, bytes_per_second) = (Some(2.5), Some(3e9));
    Trial { round_trip_us, bytes_per_second, ..Trial::new(transport) }
}

#[test]
fn a_trial_that_passes_says_how_fast_it_was() {
    let finding = trial(&passed(Transport::Tcp), &plain(), Some("node1")).unwrap();
    assert_eq!((finding.severity, finding.id), (Severity::Ok, "tcp"));
    assert!(finding.what.contains("to node1 and back"), "{finding}");
    assert!(finding.what.contains("2.8 GiB/s"), "{finding}");
}

#[test]
fn large_writes_that_fail_where_small_ones_arrive_are_an_mtu() {
    let moved =
        |bytes, error: Option<&str>| Moved { bytes, outward: true, error: error.map(Into::into) };
    let mut failed = Trial::failed(Transport::Verbs, "retries exceeded".into());
    failed.writes = vec![moved(8, None), moved(4096, Some("retries exceeded"))];
    let finding = trial(&failed, &with_nic(), Some("node1")).unwrap();
    assert_eq!((finding.severity, finding.id), (Severity::Error, "verbs-mtu"));
    assert!(finding.what.contains("writes of 8 B arrive and those of 4 KiB do not"), "{finding}");
    let mend = finding.mend.unwrap();
    assert!(mend.starts_with("ip link set dev eth7 mtu 1500 on both hosts"), "{mend}");
    assert!(mend.ends_with("ping -M do -c 3 -s 8972 node1"), "{mend}");

    failed.writes = vec![moved(8, Some("retries exceeded"))];
    let finding = trial(&failed, &with_nic(), Some("node1")).unwrap();
    assert_eq!(finding.id, "verbs-fails");
    assert!(finding.mend.unwrap().contains("--dport 4791"));
}

#[test]
fn a_transport_that_fails_here_is_an_error() {
    for transport in [Transport::Shm, Transport::Tcp, Transport::Verbs] {
        let failed = Trial::failed(transport, "no".into());
        let finding = trial(&failed, &with_nic(), None).unwrap();
        assert_eq!(finding.severity, Severity::Error);
        assert!(finding.mend.is_some() && finding.id.ends_with("-fails"), "{finding:?}");
    }
}

#[test]
fn verbs_that_cannot_be_opened_for_want_of_locked_memory_are_mended_by_more_of_it() {
    let mut facts = with_nic();
    facts.locking =
        Locking { memlock: Limit { soft: Some(64 << 10), hard: None }, ipc_lock: false };
    let failed = Trial::failed(Transport::Verbs, "Cannot allocate memory".into());
    let finding = trial(&failed, &facts, None).unwrap();
    assert_eq!(finding.mend.as_deref(), Some("ulimit -l unlimited"));
    assert!(!trial(&failed, &with_nic(), None).unwrap().mend.unwrap().contains("ulimit"));
}

#[test]
fn another_hosts_troubles_carry_its_name() {
    let difference = |what, here: &str, there: &str| Difference {
        what,
        here: here.to_string(),
        there: there.to_string(),
    };
    let examined = PeerExamined {
        host: "node1".into(),
        facts: Some(plain()),
        differences: vec![
            difference("version", "1.0", "0.9"),
            difference("mtu", "4096", "1024"),
            difference("gid", "RoCE v2", "RoCE v1"),
            difference("link", "Ethernet", "none"),
        ],
        trials: vec![passed(Transport::Tcp)],
    };
    let findings = peer(&with_nic(), &examined);
    assert_eq!(found(&findings, "rdma-no-nic").host.as_deref(), Some("node1"));
    assert!(found(&findings, "rdma-no-nic").to_string().starts_with("node1: "));
    assert_eq!(found(&findings, "versions-differ").severity, Severity::Error);
    assert!(found(&findings, "mtus-differ").what.contains("4096 here, 1024 on node1"));
    found(&findings, "gids-differ");
    assert!(!findings.iter().any(|finding| finding.id == "links-differ"), "one has none");
}
