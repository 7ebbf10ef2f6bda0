//! Reads a machine's facts out of `/proc`, `/sys`, `/dev` and `/etc` under any root, so that tests hand it a
//! made-up machine. What cannot be read is not known, and never an error. Opens no device.

use std::path::{Path, PathBuf};

use super::facts::{
    Computer, CudaFacts, DeviceFile, Gpu, LibraryFacts, Limit, Locking, NicFacts, PortFacts,
    Provider, SharedMemoryFacts,
};

/// The capability to lock memory, by its number.
const CAP_IPC_LOCK: u32 = 14;
/// Above that a limit of a control group is none.
const NO_LIMIT: u64 = 1 << 60;
/// First kernel whose verbs register dma-buf memory.
const DMABUF_KERNEL: (u32, u32) = (5, 12);
/// Modules that carry RDMA, by the starts of their names.
const MODULES: [&str; 14] = [
    "ib_",
    "rdma_",
    "iw_",
    "mlx",
    "irdma",
    "bnxt_re",
    "efa",
    "erdma",
    "hns_roce",
    "qedr",
    "siw",
    "mana_ib",
    "nvidia_peermem",
    "nv_peer_mem",
];

/// A machine's file tree.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    root: PathBuf,
}

impl Tree {
    pub(crate) fn at(root: &Path) -> Tree {
        Tree { root: root.to_path_buf() }
    }

    /// A file's text, trimmed; none where it cannot be read.
    fn text(&self, path: &str) -> Option<String> {
        let bytes = std::fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_string())
    }

    /// A folder's names, sorted; none where it cannot be read.
    fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    pub(crate) fn host(&self) -> String {
        self.text("/proc/sys/kernel/hostname").unwrap_or_else(|| "unknown".to_string())
    }

    pub(crate) fn kernel(&self) -> String {
        self.text("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_string())
    }

    pub(crate) fn computer(&self, cores: u32) -> Computer {
        Computer {
            cores,
            cores_granted: self.cores_granted(),
            memory_bytes: self.memory("MemTotal:"),
            memory_available_bytes: self.memory("MemAvailable:"),
            memory_granted_bytes: self.memory_granted(),
            container: self.container(),
            open_files: self.limit("Max open files"),
        }
    }

    pub(crate) fn locking(&self) -> Locking {
        let status = self.text("/proc/self/status").unwrap_or_default();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
        let ipc_lock = effective.is_some_and(|bits| bits & 1 << CAP_IPC_LOCK != 0);
        Locking { memlock: self.limit("Max locked memory"), ipc_lock }
    }

    pub(crate) fn shared_memory(&self, memfd_error: Option<String>) -> SharedMemoryFacts {
        let sizes = rustix::fs::statvfs(self.path("/dev/shm")).ok();
        let sizes = sizes.as_ref();
        SharedMemoryFacts {
            dev_shm_bytes: sizes.map(|sizes| sizes.f_blocks.saturating_mul(sizes.f_frsize)),
            dev_shm_available_bytes: sizes
                .map(|sizes| sizes.f_bavail.saturating_mul(sizes.f_frsize)),
            memfd_error,
        }
    }

    /// A line of `/proc/self/limits`: a name, the soft limit, the hard limit, the unit.
    fn limit(&self, name: &str) -> Limit {
        let limits = self.text("/proc/self/limits").unwrap_or_default();
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        let mut numbers = line.split_whitespace().map(|number| number.parse().ok());
        Limit { soft: numbers.next().flatten(), hard: numbers.next().flatten() }
    }

    fn memory(&self, field: &str) -> u64 {
        let text = self.text("/proc/meminfo").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(field));
        let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        kib.unwrap_or(0).saturating_mul(1024)
    }

    /// The control group of this process, by the name of its controller (version 1), or none (2), and
    /// the folders in which it may be seen: a container sees its own as the root.
    fn group_folders(&self, controller: Option<&str>) -> Vec<String> {
        let text = self.text("/proc/self/cgroup").unwrap_or_default();
        let path = text.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (names, path) = (fields.next()?, fields.next()?);
            let right = match controller {
                Some(controller) => names.split(',').any(|name| name == controller),
                None => names.is_empty(),
            };
            right.then_some(path.to_string())
        });
        let mount = match controller {
            Some(controller) => format!("/sys/fs/cgroup/{controller}"),
            None => "/sys/fs/cgroup".to_string(),
        };
        // limits of the groups above hold, too
        let mut folders = Vec::new();
        let mut at = path.unwrap_or_default();
        while let Some((above, _)) = at.rsplit_once('/') {
            folders.push(format!("{mount}{at}"));
            at = above.to_string();
        }
        folders.push(mount);
        folders
    }

    fn memory_granted(&self) -> Option<u64> {
        let old = self.group_folders(Some("memory")).into_iter();
        let old = old.map(|folder| format!("{folder}/memory.limit_in_bytes"));
        let new = self.group_folders(None).into_iter().map(|folder| format!("{folder}/memory.max"));
        let limits = old.chain(new).filter_map(|file| self.text(&file)?.parse::<u64>().ok());
        limits.filter(|&limit| limit < NO_LIMIT).min()
    }

    fn cores_granted(&self) -> Option<f64> {
        // fits: times of a scheduler, for people
        let share = |quota: &str, period: &str| {
            let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
            (quota > 0.0 && period > 0.0).then_some(quota / period)
        };
        let old = self.group_folders(Some("cpu")).into_iter().filter_map(|folder| {
            let quota = self.text(&format!("{folder}/cpu.cfs_quota_us"))?;
            share(&quota, &self.text(&format!("{folder}/cpu.cfs_period_us"))?)
        });
        let new = self.group_folders(None).into_iter().filter_map(|folder| {
            let text = self.text(&format!("{folder}/cpu.max"))?;
            let (quota, period) = text.split_once(' ')?;
            share(quota, period)
        });
        old.chain(new).reduce(f64::min)
    }

    fn container(&self) -> Option<String> {
        let files = ["/.dockerenv", "/run/.containerenv"];
        if let Some(file) = files.into_iter().find(|file| self.has(file)) {
            return Some(file.to_string());
        }
        let group = self.text("/proc/self/cgroup").unwrap_or_default();
        let names = ["kubepods", "docker", "containerd", "lxc"];
        let found = names.into_iter().find(|name| group.contains(name));
        found.map(|name| format!("control group of {name}"))
    }

    /// Without what CUDA's driver says.
    pub(crate) fn gpu(&self) -> Gpu {
        let driver = self.text("/proc/driver/nvidia/version");
        let driver = driver.and_then(|text| {
            let line = text.lines().next()?.trim_start_matches("NVRM version:").trim();
            Some(line.split_whitespace().collect::<Vec<_>>().join(" "))
        });
        let modules = self.modules();
        Gpu {
            // fits: a machine has few
            devices: self.names("/proc/driver/nvidia/gpus").len() as u32,
            open_modules: driver.as_ref().is_some_and(|name| name.contains("Open Kernel Module")),
            driver,
            peermem: modules.iter().any(|name| name == "nvidia_peermem" || name == "nv_peer_mem"),
            dmabuf_kernel: version_of(&self.kernel()).is_some_and(|found| found >= DMABUF_KERNEL),
            on_bus: self.gpus_on_bus(),
            cuda: CudaFacts::default(),
        }
    }

    /// NVIDIA's display and 3D controllers.
    fn gpus_on_bus(&self) -> Vec<String> {
        const BUS: &str = "/sys/bus/pci/devices";
        let is_gpu = |address: &String| {
            let read = |file| self.text(&format!("{BUS}/{address}/{file}")).unwrap_or_default();
            read("vendor") == "0x10de" && read("class").starts_with("0x03")
        };
        self.names(BUS).into_iter().filter(is_gpu).collect()
    }

    /// The host's memory that a device of the bus is next to.
    pub(crate) fn numa_node_of_pci(&self, address: &str) -> Option<u32> {
        self.text(&format!("/sys/bus/pci/devices/{address}/numa_node"))?.parse().ok()
    }

    pub(crate) fn numa_node_of_nic(&self, nic: &str) -> Option<u32> {
        self.text(&format!("/sys/class/infiniband/{nic}/device/numa_node"))?.parse().ok()
    }

    /// How far two of them are from each other, as the kernel counts it.
    pub(crate) fn numa_distance(&self, from: u32, to: u32) -> Option<u32> {
        let folder = "/sys/devices/system/node";
        let distances = self.text(&format!("{folder}/node{from}/distance"))?;
        // one for each node that there is, in their order
        let mut nodes: Vec<u32> = self
            .names(folder)
            .iter()
            .filter_map(|name| name.strip_prefix("node")?.parse().ok())
            .collect();
        nodes.sort_unstable();
        let at = nodes.iter().position(|node| *node == to)?;
        distances.split_whitespace().nth(at)?.parse().ok()
    }

    pub(crate) fn modules(&self) -> Vec<String> {
        let text = self.text("/proc/modules").unwrap_or_default();
        let names = text.lines().filter_map(|line| line.split_whitespace().next());
        let mut names: Vec<String> = names
            .filter(|name| MODULES.iter().any(|start| name.starts_with(start)))
            .map(str::to_string)
            .collect();
        names.sort();
        names
    }

    pub(crate) fn devices(&self) -> Vec<String> {
        self.names("/sys/class/infiniband")
    }

    pub(crate) fn device_files(&self) -> Vec<DeviceFile> {
        let names = self.names("/dev/infiniband").into_iter();
        let file = |name: String| {
            let path = format!("/dev/infiniband/{name}");
            let access = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
            let usable = rustix::fs::access(self.path(&path), access).is_ok();
            DeviceFile { path, usable }
        };
        names.filter(|name| name.starts_with("uverbs")).map(file).collect()
    }

    /// A library that this process has in memory, by the start of its file's name.
    pub(crate) fn loaded(&self, name: &str) -> Option<String> {
        let maps = self.text("/proc/self/maps")?;
        maps.lines().find_map(|line| {
            let path = line.split_whitespace().nth(5)?;
            path.rsplit('/').next()?.starts_with(name).then(|| path.to_string())
        })
    }

    /// libibverbs as this process has it in memory; `error`: why it has not.
    pub(crate) fn library(&self, error: Option<String>) -> LibraryFacts {
        let path = self.loaded("libibverbs.so");
        let version = path.as_ref().and_then(|path| {
            let (_, version) = path.rsplit_once("libibverbs.so.")?;
            Some(version.to_string())
        });
        match error {
            None => LibraryFacts { path, version, error: None },
            Some(_) => LibraryFacts { path: None, version: None, error },
        }
    }

    /// The drivers that `/etc/libibverbs.d` names, and their libraries beside libibverbs.
    pub(crate) fn providers(&self, library: &LibraryFacts) -> Vec<Provider> {
        let beside = library.path.as_ref().and_then(|path| path.rsplit_once('/'));
        let folder = beside.map(|(folder, _)| format!("{folder}/libibverbs"));
        let libraries = folder.as_ref().map(|folder| self.names(folder)).unwrap_or_default();
        let files = self.names("/etc/libibverbs.d").into_iter();
        let texts = files.filter(|name| name.ends_with(".driver"));
        let texts = texts.filter_map(|name| self.text(&format!("/etc/libibverbs.d/{name}")));
        let mut providers = Vec::new();
        for text in texts {
            let named = text.lines().filter_map(|line| line.trim().strip_prefix("driver "));
            for name in named.map(str::trim) {
                let start = format!("lib{name}-rdmav");
                let library = libraries.iter().find(|library| library.starts_with(&start));
                let library =
                    library.map(|library| format!("{}/{library}", folder.as_deref().unwrap_or("")));
                providers.push(Provider { name: name.to_string(), library });
            }
        }
        providers
    }

    /// Fills in what the kernel knows of a NIC and libibverbs does not say.
    pub(crate) fn complete(&self, nic: &mut NicFacts) {
        for port in &mut nic.ports {
            let PortFacts { number, interface, gids, .. } = port;
            let folder = format!("/sys/class/infiniband/{}/ports/{number}", nic.name);
            let of_table = || self.names(&format!("{folder}/gid_attrs/ndevs")).into_iter();
            let first = gids.iter().find_map(|gid| gid.interface.clone());
            *interface = first.or_else(|| {
                of_table().find_map(|index| self.text(&format!("{folder}/gid_attrs/ndevs/{index}")))
            });
            port.rate = self.text(&format!("{folder}/rate"));
            let mtu = port.interface.as_ref();
            let mtu = mtu.and_then(|name| self.text(&format!("/sys/class/net/{name}/mtu")));
            port.interface_mtu = mtu.and_then(|text| text.parse().ok());
        }
    }

    /// The interface of the default route; else the first that is no loopback.
    pub(crate) fn default_interface(&self) -> Option<String> {
        let routes = self.text("/proc/net/route").unwrap_or_default();
        let default = routes.lines().find_map(|line| {
            let mut fields = line.split_whitespace();
            let interface = fields.next()?;
            (fields.next()? == "00000000").then(|| interface.to_string())
        });
        default.or_else(|| self.names("/sys/class/net").into_iter().find(|name| name != "lo"))
    }
}

/// `6.1.0-56-amd64` → (6, 1).
fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests;
