//! What is known of a machine, as plain data: what `--json` shows and what members tell each other. Fields
//! are added, never renamed. Knows not where it was read, and judges nothing.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use tensorwire_fabric::{GidKind, LinkLayer, PortState};

use super::Obstacle;
use tensorwire_launch::Transport;

/// One machine, as one process of tensorwire sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Of tensorwire.
    pub version: String,
    /// The machine's own name.
    pub host: String,
    pub kernel: String,
    pub computer: Computer,
    pub shared_memory: SharedMemoryFacts,
    pub locking: Locking,
    pub rdma: Rdma,
    pub gpu: Gpu,
    pub auto: Auto,
}

/// Cores, memory, and what a container leaves of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Computer {
    /// That this process may use.
    pub cores: u32,
    /// Cores' worth of time that a control group grants; none: all.
    pub cores_granted: Option<f64>,
    pub memory_bytes: u64,
    pub memory_available_bytes: u64,
    /// What a control group grants; none: all.
    pub memory_granted_bytes: Option<u64>,
    /// What says that this is a container.
    pub container: Option<String>,
    pub open_files: Limit,
}

/// A limit of the system on this process; none: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    pub soft: Option<u64>,
    pub hard: Option<u64>,
}

/// Memory that processes of one host share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedMemoryFacts {
    /// Of `/dev/shm`, which tensorwire does not use, and other programs do.
    pub dev_shm_bytes: Option<u64>,
    pub dev_shm_available_bytes: Option<u64>,
    /// Why anonymous shared memory, which tensorwire uses, cannot be made.
    pub memfd_error: Option<String>,
}

/// What registering memory with a NIC needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locking {
    /// Bytes that this process may lock in memory.
    pub memlock: Limit,
    /// The capability that lifts the limit.
    pub ipc_lock: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rdma {
    pub library: LibraryFacts,
    pub providers: Vec<Provider>,
    /// The kernel's modules for RDMA that are loaded.
    pub modules: Vec<String>,
    /// Devices that the kernel has, by name.
    pub devices: Vec<String>,
    /// Files through which programs reach them.
    pub files: Vec<DeviceFile>,
    /// What libibverbs could open.
    pub nics: Vec<NicFacts>,
    /// What a job would take.
    pub pick: Option<Pick>,
    /// Why a job cannot use RDMA here.
    pub obstacle: Option<Obstacle>,
    /// The interface towards the default route.
    pub default_interface: Option<String>,
}

/// libibverbs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryFacts {
    /// None where it cannot be loaded.
    pub path: Option<String>,
    pub version: Option<String>,
    pub error: Option<String>,
}

/// A driver that libibverbs is told of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provider {
    pub name: String,
    /// None where its library is not there.
    pub library: Option<String>,
}

/// A file of `/dev/infiniband`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFile {
    pub path: String,
    /// This process may read and write it.
    pub usable: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicFacts {
    pub name: String,
    pub firmware: String,
    pub ports: Vec<PortFacts>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortFacts {
    pub number: u8,
    pub state: PortState,
    pub link: LinkLayer,
    /// As the kernel says it.
    pub rate: Option<String>,
    pub mtu: u32,
    pub mtu_max: u32,
    /// The network interface whose addresses are in the GID table.
    pub interface: Option<String>,
    pub interface_mtu: Option<u32>,
    pub gids: Vec<GidFacts>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GidFacts {
    pub index: u32,
    pub kind: GidKind,
    pub address: IpAddr,
    pub interface: Option<String>,
    /// A job would take it.
    pub picked: bool,
}

/// A NIC, a port and a GID, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pick {
    pub nic: String,
    pub port: u8,
    pub gid_index: u32,
    pub why: String,
}

/// GPUs, and what GPUDirect would need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    pub devices: u32,
    /// NVIDIA's driver, by its own name; none where there is none.
    pub driver: Option<String>,
    /// Its open kernel modules, which dma-buf needs.
    pub open_modules: bool,
    pub peermem: bool,
    /// The kernel is 5.12 or newer.
    pub dmabuf_kernel: bool,
    /// Where the bus has GPUs of NVIDIA's, with a driver or without.
    #[serde(default)]
    pub on_bus: Vec<String>,
    #[serde(default)]
    pub cuda: CudaFacts,
}

/// What CUDA's driver says, and which of CUDA's libraries there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaFacts {
    /// The version of CUDA that the driver has; none where it cannot be used.
    pub version: Option<String>,
    /// The driver's library that was loaded.
    pub library: Option<String>,
    /// Why it cannot be used.
    pub obstacle: Option<Obstacle>,
    /// The user named the driver's library, so that it must be there.
    pub asked: bool,
    pub gpus: Vec<GpuFacts>,
    /// Looked for where there is a GPU.
    pub libraries: Vec<CudaLibraryFacts>,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuFacts {
    /// Its number, as `--device cuda:N` has it.
    pub ordinal: usize,
    pub name: String,
    pub uuid: String,
    pub pci_bus_id: String,
    /// Compute capability: major, minor.
    pub compute: (u32, u32),
    pub memory_bytes: u64,
    /// Memory is allocated and mapped apart, which everything here needs.
    pub virtual_memory: bool,
    /// Other processes of this host map its memory.
    pub export: bool,
    /// NICs may reach its memory.
    pub rdma: bool,
    pub dmabuf: bool,
    /// Streams wait on and write words of memory.
    pub memory_operations: bool,
    /// Who sees a NIC's writes in order: `none`, `owner` or `all`.
    pub writes_ordering: String,
    /// The host can flush a NIC's writes.
    pub flush: bool,
    pub numa_node: Option<u32>,
    /// The other GPUs whose memory it reaches.
    pub reaches: Vec<usize>,
    pub nics: Vec<NicDistance>,
}

/// How far a NIC is from a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicDistance {
    pub nic: String,
    pub numa_node: Option<u32>,
    /// As the kernel counts it: 10 is next to each other; none where it does not say.
    pub distance: Option<u32>,
}

/// A library of CUDA's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaLibraryFacts {
    pub name: String,
    /// None where it was not found.
    pub path: Option<String>,
    /// Whose place that is.
    pub place: Option<String>,
    /// Its own, if this program calls it and the functions that it calls are there.
    #[serde(default)]
    pub version: Option<String>,
    /// Why this program cannot call it, if it does call such a library.
    #[serde(default)]
    pub obstacle: Option<String>,
    /// What has it on PyPI.
    pub package: String,
}

/// What `--transport auto` would take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Auto {
    pub one_host: Transport,
    /// If the other hosts can, too.
    pub several_hosts: Transport,
    pub why: String,
}

impl Rdma {
    /// The port that a job would take.
    pub fn picked_port(&self) -> Option<(&NicFacts, &PortFacts, &GidFacts)> {
        let pick = self.pick.as_ref()?;
        let nic = self.nics.iter().find(|nic| nic.name == pick.nic)?;
        let port = nic.ports.iter().find(|port| port.number == pick.port)?;
        let gid = port.gids.iter().find(|gid| gid.index == pick.gid_index)?;
        Some((nic, port, gid))
    }
}

impl Gpu {
    /// How a NIC would reach a GPU's memory here.
    pub fn direct(&self) -> Option<&'static str> {
        match () {
            () if self.driver.is_none() => None,
            () if self.dmabuf_kernel && self.open_modules => Some("dma-buf"),
            () if self.peermem => Some("nvidia-peermem"),
            () => None,
        }
    }
}
