//! Made-up machines: a folder with the files that the kernel would show.

use std::path::Path;

use tempfile::TempDir;
use tensorwire_fabric::{LinkLayer, PortState};

use super::*;

fn tree(files: &[(&str, &str)]) -> (TempDir, Tree) {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let tree = Tree::at(folder.path());
    (folder, tree)
}

#[test]
fn nothing_is_known_of_an_empty_machine_and_nothing_panics() {
    let (_folder, tree) = tree(&[]);
    let computer = tree.computer(3);
    assert_eq!((computer.cores, computer.memory_bytes, computer.container), (3, 0, None));
    assert_eq!((tree.host(), tree.kernel()), ("unknown".into(), "unknown".into()));
    assert_eq!(tree.locking(), Locking::default());
    assert_eq!(tree.library(None), LibraryFacts::default());
    assert_eq!(tree.gpu(), Gpu::default());
    assert!(tree.providers(&LibraryFacts::default()).is_empty());
    assert!(tree.devices().is_empty() && tree.device_files().is_empty());
    assert_eq!(tree.default_interface(), None);
}

#[test]
fn limits_and_capabilities() {
    let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                  Max open files            1024                 524288               files     \n\
                  Max locked memory         8388608              unlimited            bytes     \n";
    let status = |bits: &str| format!("Name:\tx\nCapEff:\t{bits}\n");
    let (_folder, one) =
        tree(&[("/proc/self/limits", limits), ("/proc/self/status", &status("0000000000004000"))]);
    assert_eq!(one.computer(1).open_files, Limit { soft: Some(1024), hard: Some(524_288) });
    let memlock = Limit { soft: Some(8 << 20), hard: None };
    assert_eq!(one.locking(), Locking { memlock, ipc_lock: true });
    let (_folder, other) = tree(&[("/proc/self/status", &status("ffffffffffffbfff"))]);
    assert!(!other.locking().ipc_lock, "every capability but this one");
}

#[test]
fn control_groups_of_both_versions_and_the_least_of_them_counts() {
    let (_folder, new) = tree(&[
        ("/proc/self/cgroup", "0::/a/b\n"),
        ("/sys/fs/cgroup/a/b/memory.max", "max"),
        ("/sys/fs/cgroup/a/memory.max", "1073741824\n"),
        ("/sys/fs/cgroup/a/b/cpu.max", "150000 100000\n"),
        ("/sys/fs/cgroup/cpu.max", "max 100000\n"),
    ]);
    let computer = new.computer(4);
    assert_eq!(computer.memory_granted_bytes, Some(1 << 30));
    assert_eq!(computer.cores_granted, Some(1.5));
    let (_folder, old) = tree(&[
        ("/proc/self/cgroup", "4:memory:/docker/c0\n1:cpu,cpuacct:/docker/c0\n"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648"),
        ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1"),
        ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"),
    ]);
    let computer = old.computer(4);
    assert_eq!((computer.memory_granted_bytes, computer.cores_granted), (Some(2 << 30), None));
    assert_eq!(computer.container.as_deref(), Some("control group of docker"));
    let (_folder, free) = tree(&[
        ("/proc/self/cgroup", "4:memory:/\n"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
    ]);
    assert_eq!(free.computer(4).memory_granted_bytes, None, "that is no limit");
    let (_folder, podman) = tree(&[("/run/.containerenv", "")]);
    assert_eq!(podman.computer(1).container.as_deref(), Some("/run/.containerenv"));
}

#[test]
fn libibverbs_its_version_and_its_providers() {
    let maps = "7f00-7f01 r--p 00000000 fe:00 1  /usr/lib/libibverbs/librxe-rdmav34.so\n\
                7f02-7f03 r--p 00000000 fe:00 2  /usr/lib/libibverbs.so.1.14.44.0\n";
    let (_folder, tree) = tree(&[
        ("/proc/self/maps", maps),
        ("/usr/lib/libibverbs/librxe-rdmav34.so", ""),
        ("/etc/libibverbs.d/rxe.driver", "driver rxe\n"),
        ("/etc/libibverbs.d/mlx5.driver", "driver mlx5\n"),
        ("/etc/libibverbs.d/README", "driver none\n"),
    ]);
    let library = tree.library(None);
    assert_eq!(library.path.as_deref(), Some("/usr/lib/libibverbs.so.1.14.44.0"));
    assert_eq!(library.version.as_deref(), Some("1.14.44.0"));
    let provider = |name: &str, library: Option<&str>| Provider {
        name: name.to_string(),
        library: library.map(str::to_string),
    };
    let rxe = provider("rxe", Some("/usr/lib/libibverbs/librxe-rdmav34.so"));
    assert_eq!(tree.providers(&library), [provider("mlx5", None), rxe]);
    let failed = tree.library(Some("no such file".into()));
    assert_eq!((failed.path, failed.error.as_deref()), (None, Some("no such file")));
}

#[test]
fn a_nic_with_what_the_kernel_knows_of_it() {
    let (_folder, tree) = tree(&[
        (
            "/proc/modules",
            "ib_uverbs 1 0 - Live 0x0\next4 2 0 - Live 0x0\nmlx5_ib 1 0 - Live 0x0\n",
        ),
        ("/dev/infiniband/uverbs0", ""),
        ("/dev/infiniband/rdma_cm", ""),
        ("/sys/class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n"),
        ("/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "eth7\n"),
        ("/sys/class/net/eth7/mtu", "4200\n"),
        ("/proc/net/route", "Iface\tDestination\tGateway\neth0\t000200C0\t0\neth1\t00000000\t1\n"),
    ]);
    assert_eq!(tree.modules(), ["ib_uverbs", "mlx5_ib"]);
    assert_eq!(tree.devices(), ["mlx5_0"]);
    let file = DeviceFile { path: "/dev/infiniband/uverbs0".into(), usable: true };
    assert_eq!(tree.device_files(), [file]);
    assert_eq!(tree.default_interface().as_deref(), Some("eth1"));
    let port = PortFacts {
        number: 1,
        state: PortState::Active,
        link: LinkLayer::Ethernet,
        rate: None,
        mtu: 4096,
        mtu_max: 4096,
        interface: None,
        interface_mtu: None,
        gids: Vec::new(),
    };
    let mut nic = NicFacts { name: "mlx5_0".into(), firmware: String::new(), ports: vec![port] };
    tree.complete(&mut nic);
    let port = &nic.ports[0];
    assert_eq!(port.rate.as_deref(), Some("100 Gb/sec (4X EDR)"));
    assert_eq!((port.interface.as_deref(), port.interface_mtu), (Some("eth7"), Some(4200)));
}

#[test]
fn gpus_and_what_gpudirect_needs() {
    let version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54  Release\nGCC version: 12\n";
    let (_folder, one) = tree(&[
        ("/proc/driver/nvidia/version", version),
        ("/proc/driver/nvidia/gpus/0000:01:00.0/information", ""),
        ("/proc/modules", "nvidia_peermem 1 0 - Live 0x0\n"),
        ("/proc/sys/kernel/osrelease", "5.12.0-1\n"),
    ]);
    let gpu = one.gpu();
    assert_eq!((gpu.devices, gpu.open_modules, gpu.peermem), (1, true, true));
    assert!(gpu.driver.as_ref().is_some_and(|name| name.starts_with("NVIDIA UNIX Open")));
    for (release, can) in
        [("5.11.9", false), ("5.12.0", true), ("6.1.0-56-amd64", true), ("odd", false)]
    {
        let (_folder, tree) = tree(&[("/proc/sys/kernel/osrelease", release)]);
        assert_eq!(tree.gpu().dmabuf_kernel, can, "{release}");
    }
}

#[test]
fn this_machine() {
    let tree = Tree::at(Path::new("/"));
    let computer = tree.computer(1);
    assert!(computer.memory_bytes > 0 && computer.open_files.soft.is_some_and(|soft| soft > 0));
    assert_ne!(tree.kernel(), "unknown");
    let shared = tree.shared_memory(None);
    assert!(shared.dev_shm_bytes >= shared.dev_shm_available_bytes);
}

#[test]
fn gpus_on_the_bus_and_how_far_nics_are() {
    let (_folder, tree) = tree(&[
        ("/sys/bus/pci/devices/0000:3b:00.0/vendor", "0x10de\n"),
        ("/sys/bus/pci/devices/0000:3b:00.0/class", "0x030200\n"),
        ("/sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n"),
        // its sound, and another maker's display
        ("/sys/bus/pci/devices/0000:3b:00.1/vendor", "0x10de\n"),
        ("/sys/bus/pci/devices/0000:3b:00.1/class", "0x040300\n"),
        ("/sys/bus/pci/devices/0000:00:02.0/vendor", "0x1002\n"),
        ("/sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n"),
        ("/sys/bus/pci/devices/0000:00:02.0/numa_node", "-1\n"),
        ("/sys/class/infiniband/mlx5_0/device/numa_node", "8\n"),
        // the numbers of nodes may have gaps
        ("/sys/devices/system/node/node1/distance", "10 40\n"),
        ("/sys/devices/system/node/node8/distance", "40 10\n"),
    ]);
    assert_eq!(tree.gpu().on_bus, ["0000:3b:00.0"]);
    assert_eq!(tree.numa_node_of_pci("0000:3b:00.0"), Some(1));
    assert_eq!(tree.numa_node_of_pci("0000:00:02.0"), None);
    assert_eq!(tree.numa_node_of_nic("mlx5_0"), Some(8));
    assert_eq!(tree.numa_distance(1, 8), Some(40));
    assert_eq!(tree.numa_distance(8, 8), Some(10));
    assert_eq!(tree.numa_distance(8, 2), None);
}
