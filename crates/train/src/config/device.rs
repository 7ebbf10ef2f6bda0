//! What computes in workers: the processor, or a GPU.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tensorwire_base::Rank;
use tensorwire_collectives::Design;
use tensorwire_cuda::{CudaError, Gpus, LibrarySearch, Nccl, Rounding};
use tensorwire_graph::{
    AllReduceBy, AmongDevices, DeviceCrossing, DeviceTasks, Graph, Op, Placement, PlanOptions,
    SharedMemory,
};
use tensorwire_kvstore::DeviceReach;
use tensorwire_launch::Transport;

use super::{ConfigError, Exchange, FloatType, TrainConfig};
use crate::strategy::Strategy;
use crate::topology::{Topology, Weights};

/// What computes in workers (`--device`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum DeviceChoice {
    /// The processor.
    #[default]
    Cpu,
    /// A GPU of CUDA's: this one, or of those that there are each worker of a host the next.
    Cuda { ordinal: Option<usize> },
    /// A GPU where there is one, else the processor.
    Auto,
}

/// What products and convolutions on a GPU multiply (`--math`). Sums are of f32 all the same, and weights stay as they
/// are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MathMode {
    /// Numbers as they are.
    #[default]
    F32,
    /// Numbers of f32, rounded to TF32.
    Tf32,
    /// Numbers of f32, rounded to bf16.
    Bf16,
}

/// How the gradients of several GPUs a worker are reduced (`--design`), in two of the ways that Mamidala et al. (§6, §7.3) compare.
/// Both give the same bits. With NCCL it is always `Reg`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceDesign {
    /// Each GPU reduces a share, among the GPUs of its worker, and then with its like at other workers, or at servers, so that the
    /// links of all carry as much. What is updated of it comes to it, and it gives that to the others of its worker.
    #[default]
    MultiRing,
    /// The first GPU of a worker reduces all, and gives the others what is updated.
    Reg,
}

/// Where CUDA's libraries are looked for (`--cuda-libs`), besides where the dynamic linker and python3 have them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CudaLibraries {
    /// Nowhere: this program's own kernels compute all.
    Unused,
    /// In these folders first, and in the toolkit's.
    Used { folders: Vec<PathBuf>, cuda_home: Option<PathBuf> },
}

impl Default for CudaLibraries {
    fn default() -> CudaLibraries {
        CudaLibraries::Used { folders: Vec::new(), cuda_home: None }
    }
}

impl CudaLibraries {
    /// Refuses folders that have no library.
    fn check(&self) -> Result<(), ConfigError> {
        let CudaLibraries::Used { folders, .. } = self else { return Ok(()) };
        let search = LibrarySearch { folders: folders.clone(), ..LibrarySearch::default() };
        match search.folder_without() {
            Some(folder) => Err(ConfigError::NoLibraries { folder: folder.to_path_buf() }),
            None => Ok(()),
        }
    }

    /// Where to look on this host.
    pub fn search(&self) -> Option<LibrarySearch> {
        let CudaLibraries::Used { folders, cuda_home } = self else { return None };
        let (folders, cuda_home) = (folders.clone(), cuda_home.clone());
        let mut search = LibrarySearch { folders, cuda_home, site_packages: Vec::new() };
        search.ask_python();
        Some(search)
    }
}

impl DeviceDesign {
    /// As `--design` spells it.
    pub fn name(self) -> &'static str {
        match self {
            DeviceDesign::MultiRing => Design::MultiRing.name(),
            DeviceDesign::Reg => Design::Reg.name(),
        }
    }
}

impl MathMode {
    /// As `--math` spells it.
    pub fn name(self) -> &'static str {
        match self {
            MathMode::F32 => "f32",
            MathMode::Tf32 => "tf32",
            MathMode::Bf16 => "bf16",
        }
    }

    pub(crate) fn rounding(self) -> Rounding {
        match self {
            MathMode::F32 => Rounding::Nothing,
            MathMode::Tf32 => Rounding::Tf32,
            MathMode::Bf16 => Rounding::Bf16,
        }
    }

    /// Refuses what would round nothing.
    pub(crate) fn check(self, device: DeviceChoice, dtype: FloatType) -> Result<(), ConfigError> {
        let math = self.name();
        match (self, device, dtype) {
            (MathMode::F32, _, _) => Ok(()),
            (_, DeviceChoice::Cpu, _) => Err(ConfigError::MathOfCpu { math }),
            (_, _, FloatType::F64) => Err(ConfigError::MathOfF64 { math }),
            _ => Ok(()),
        }
    }
}

impl DeviceChoice {
    /// Which tasks of a plan compute on a GPU, and how tensors cross between them. Where processes run parts of one graph, servers
    /// have GPUs, too, and tensors go from memory to memory, but for `by_way_of_host`: what groups all-reduce as well. By NCCL they
    /// reduce what stays where it is. Before a store groups reduce so, whether or not they reach its values there.
    pub(crate) fn plan_options(
        self,
        options: PlanOptions,
        topology: &Topology,
        (config, program): (&TrainConfig, &Graph),
    ) -> PlanOptions {
        if self == DeviceChoice::Cpu {
            return options;
        }
        // what comes to a device's memory is there for it alone
        let options = PlanOptions { relays: false, ..options };
        if let Some(all_reduce) = config.all_reduce_by_nccl() {
            let (devices, device_crossing) = (DeviceTasks::Workers, DeviceCrossing::ByHost);
            return PlanOptions { devices, device_crossing, all_reduce, ..options };
        }
        let reach = config.store_reach(topology, program);
        let among_devices = match config.design {
            _ if config.devices_per_worker < 2 => AmongDevices::First,
            DeviceDesign::Reg => AmongDevices::First,
            // what is averaged with a centre stays whole, and so does what a store has by its key
            DeviceDesign::MultiRing if topology.has_store() || topology.averaging.is_some() => {
                AmongDevices::Shares { split_above: usize::MAX }
            }
            DeviceDesign::MultiRing => AmongDevices::Shares { split_above: Placement::SPLIT_ABOVE },
        };
        let options = PlanOptions { among_devices, ..options };
        // whoever has weights of his own shares no more than what his group reduces
        let is_of_groups = topology.reduces_apart_from_store();
        let is_one_graph = topology.weights == Weights::Servers && !topology.is_asynchronous();
        let by_host = config.crosses_by_host();
        let is_before_store = topology.trains_over_store() && topology.is_grouped();
        let crosses = match reach {
            _ if is_one_graph || is_of_groups => true,
            // a centre is no tensor of the plan's
            Some(DeviceReach::Mapped | DeviceReach::ByNic) => true,
            Some(DeviceReach::ByHost) => is_before_store,
            None => false,
        };
        if by_host || !crosses {
            let (devices, device_crossing) = (DeviceTasks::Workers, DeviceCrossing::ByHost);
            return PlanOptions { devices, device_crossing, ..options };
        }
        let all_reduce = match (is_of_groups, config.placement) {
            // a group's first worker alone deals with the store
            (false, _) if topology.is_grouped() => AllReduceBy::Firsts { groups: topology.groups },
            (false, _) => AllReduceBy::Group,
            (true, Placement::Balanced { split_above: Some(split_above) }) => {
                AllReduceBy::Edges { groups: topology.groups, split_above }
            }
            // rows are written by devices, as fast as they are read
            (true, _) => {
                let split_above = Placement::SPLIT_ABOVE;
                AllReduceBy::Edges { groups: topology.groups, split_above }
            }
        };
        // nothing is read in a memory that is out of reach
        let shared_memory = match (config.settled_transport(), config.devices_apart) {
            (Some(Transport::Shm), false) => options.shared_memory,
            (Some(Transport::Shm), true) => SharedMemory::Unused,
            (None, false) if config.exchange == Exchange::ZeroCopy => {
                SharedMemory::UsedOnHosts(topology.of_parts(&config.host_numbers()).into())
            }
            _ => SharedMemory::None,
        };
        let devices = match reach {
            // what a store that is out of reach takes and gives lies in the host's memory
            Some(DeviceReach::ByHost) if is_before_store => DeviceTasks::Workers,
            _ => DeviceTasks::All,
        };
        let device_crossing = DeviceCrossing::Direct;
        PlanOptions { devices, shared_memory, device_crossing, all_reduce, ..options }
    }

    /// True if GPUs of some of these processes of this host do not reach each other's memory.
    ///
    /// # Errors
    /// When there is no driver, or a worker has too few GPUs.
    pub(crate) fn are_apart(
        self,
        config: &TrainConfig,
        among: impl Fn(Rank) -> bool,
    ) -> Result<bool, ConfigError> {
        let DeviceChoice::Cuda { .. } = self else { return Ok(false) };
        if config.strategy == Strategy::Local {
            return Ok(false);
        }
        let gpus = Gpus::find(config.cuda_driver.as_deref())?;
        let used = used(config, gpus.count(), among)?;
        Ok(!gpus.reach_each_other(&used)?)
    }

    /// Decides what `auto` is on this machine, and looks for the GPU that is named.
    ///
    /// # Errors
    /// When a GPU is asked for, and there is none that can be used.
    pub fn resolved(self, config: &TrainConfig) -> Result<DeviceChoice, ConfigError> {
        let driver = config.cuda_driver.as_deref();
        let ordinal = match self {
            DeviceChoice::Cpu => return Ok(self),
            DeviceChoice::Cuda { ordinal } => ordinal,
            DeviceChoice::Auto => {
                let found = match can_compute(config) {
                    Ok(true) => DeviceChoice::Cuda { ordinal: None },
                    Ok(false) => DeviceChoice::Cpu,
                    Err(why) => {
                        tracing::info!("no GPU computes: {why}");
                        DeviceChoice::Cpu
                    }
                };
                let devices = config.devices_per_worker;
                return match found {
                    DeviceChoice::Cpu if devices > 1 => Err(ConfigError::DevicesOfNone { devices }),
                    DeviceChoice::Cpu => Ok(found),
                    found => found.resolved(config),
                };
            }
        };
        let gpus = Gpus::find(driver)?;
        gpus.check(ordinal.unwrap_or(0))?;
        let used = used(config, gpus.count(), |rank| config.hosts.is_here(rank))?;
        used.into_iter().try_for_each(|ordinal| gpus.check(ordinal))?;
        config.cuda_libraries.check()?;
        if let (Some(_), Some(search)) =
            (config.all_reduce_by_nccl(), config.cuda_libraries.search())
        {
            // opened once more by who reduces; here it is looked for before anything is started
            Nccl::find(&search)?;
        }
        Ok(self)
    }
}

impl TrainConfig {
    /// True if all that crosses goes by the memory of hosts: a message is made of bytes that the host reads, and so is a copy.
    fn crosses_by_host(&self) -> bool {
        self.by_way_of_host || !matches!(self.exchange, Exchange::ZeroCopy | Exchange::Write)
    }

    /// True if servers, where there are some, have GPUs, too.
    fn serves_on_devices(&self) -> bool {
        !self.crosses_by_host() && (self.strategy != Strategy::Ps || !self.asynchronous)
    }

    /// Why the values of a store lie in the host's memory where workers compute on GPUs; none: they lie in that of its servers'
    /// GPUs.
    pub(crate) fn store_by_host(&self) -> Option<&'static str> {
        self.crosses_by_host().then_some("tensors go by way of it")
    }

    /// Why what is pushed to values in the memory of servers' GPUs, and pulled from there, goes by pinned memory of the host; none:
    /// it does not.
    pub(crate) fn store_is_staged(
        &self,
        topology: &Topology,
        program: &Graph,
    ) -> Option<&'static str> {
        let whys = [
            (self.devices_apart, "GPUs do not reach each other's memory"),
            (
                self.settled_transport() != Some(Transport::Shm),
                "workers and servers share no memory; --transport shm has them do so on one host",
            ),
        ];
        let reached = || whys.into_iter().find(|(is_so, _)| *is_so).map(|(_, why)| why);
        self.store_needs_host(topology, program).or_else(reached)
    }

    /// Why what is pushed to a store and pulled from it has to pass the host's memory at servers, whoever reaches their GPUs' memory.
    fn store_needs_host(&self, topology: &Topology, program: &Graph) -> Option<&'static str> {
        let mut updates = program.nodes().map(|(_, node)| &node.op);
        let has_row_updates = updates.any(|op| matches!(op, Op::ApplyRows { .. }));
        // a centre gets whole weights, of who has made steps by itself
        let is_trained = topology.averaging.is_none();
        let whys = [
            (has_row_updates && is_trained, "gradients of embeddings are pushed by rows"),
            (self.wire.narrow().is_some(), "values travel rounded"),
            (
                self.store.snapshot.is_some(),
                "workers keep what they push for servers that take over",
            ),
        ];
        whys.into_iter().find(|(is_so, _)| *is_so).map(|(_, why)| why)
    }

    /// How the values of a store get to workers, if they lie in the memory of its servers' GPUs. By a NIC where a server finds that its
    /// NIC reaches that.
    pub(crate) fn store_reach(&self, topology: &Topology, program: &Graph) -> Option<DeviceReach> {
        let is_on_devices = self.device != DeviceChoice::Cpu
            && (topology.trains_over_store() || topology.averaging.is_some())
            && self.store_by_host().is_none();
        let by_nic = || {
            self.settled_transport() == Some(Transport::Verbs)
                && self.store_needs_host(topology, program).is_none()
        };
        is_on_devices.then(|| match self.store_is_staged(topology, program) {
            None => DeviceReach::Mapped,
            Some(_) if by_nic() => DeviceReach::ByNic,
            Some(_) => DeviceReach::ByHost,
        })
    }
}

/// True if there are GPUs, and all that members on this host compute on can be used.
fn can_compute(config: &TrainConfig) -> Result<bool, CudaError> {
    let gpus = Gpus::find(config.cuda_driver.as_deref())?;
    // that there are too few of them is said later
    let used = used(config, gpus.count(), |rank| config.hosts.is_here(rank)).unwrap_or_default();
    match gpus.count() {
        0 => Ok(false),
        _ => used.into_iter().try_for_each(|ordinal| gpus.check(ordinal)).map(|()| true),
    }
}

/// The GPUs that some members on this host compute on.
///
/// # Errors
/// As of [`ordinals`].
fn used(
    config: &TrainConfig,
    count: usize,
    among: impl Fn(Rank) -> bool,
) -> Result<Vec<usize>, ConfigError> {
    let topology = config.topology();
    let is_alone = config.strategy == Strategy::Local;
    let world = if is_alone { 1 } else { topology.world() };
    let mut used = Vec::new();
    // who is last is the first to have too few
    for rank in (0..world).rev().map(Rank).filter(|rank| among(*rank)) {
        let is_server = !is_alone && topology.worker(rank).is_none();
        if is_server && !config.serves_on_devices() {
            continue;
        }
        // in the multi-ring a server has as many as a worker, if it has one for each share
        let has_shares = is_server && topology.weights == Weights::Servers;
        let devices = match config.design {
            // fits: as many as a host has
            DeviceDesign::MultiRing if has_shares => config.devices_per_worker as usize,
            _ => 1,
        };
        used.extend(ordinals(config, count, rank, devices)?);
    }
    used.sort_unstable();
    used.dedup();
    Ok(used)
}

/// The GPUs of a member's host that it computes on, of `count` that there are: as many as a worker has, if it is one, else
/// `devices`. Without a number each worker of a host takes the next ones; others take theirs behind those, where there are too few
/// beside others, and a server of several devices some twice.
///
/// # Errors
/// When a worker is to have several, and they are not there.
pub(crate) fn ordinals(
    config: &TrainConfig,
    count: usize,
    rank: Rank,
    devices: usize,
) -> Result<Vec<usize>, ConfigError> {
    // fits: as many as a host has
    let each = config.devices_per_worker as usize;
    let topology = config.topology();
    let is_alone = config.strategy == Strategy::Local;
    let together = |other: &Rank| !is_alone && config.hosts.together(rank, *other);
    let before = (0..rank.0).map(Rank).filter(together);
    let (workers, others): (Vec<Rank>, Vec<Rank>) =
        before.partition(|other| topology.worker(*other).is_some());
    let is_worker = is_alone || topology.worker(rank).is_some();
    let has_several = is_worker && each > 1;
    let first = match config.device {
        DeviceChoice::Cuda { ordinal: Some(ordinal) } if has_several => {
            ordinal + workers.len() * each
        }
        DeviceChoice::Cuda { ordinal: Some(ordinal) } => ordinal,
        // servers come behind all workers, or beside them
        _ if has_several => workers.len() * each,
        _ => workers.len() * each + others.len() * devices,
    };
    if !has_several {
        let is_named = matches!(config.device, DeviceChoice::Cuda { ordinal: Some(_) });
        let of = |number: usize| match is_named && devices == 1 {
            true => first,
            false => (first + number) % count.max(1),
        };
        return Ok((0..devices).map(of).collect());
    }
    if first + each > count {
        let host = config.hosts.name(rank).to_string();
        let workers = match workers.len() + 1 {
            1 => "1 worker".to_string(),
            workers => format!("{workers} workers"),
        };
        let (each, needed) = (config.devices_per_worker, first + each);
        return Err(ConfigError::TooFewDevices { each, workers, needed, count, host });
    }
    Ok((first..first + each).collect())
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Cuda { ordinal: None } => f.write_str("cuda"),
            DeviceChoice::Cuda { ordinal: Some(ordinal) } => write!(f, "cuda:{ordinal}"),
            DeviceChoice::Auto => f.write_str("auto"),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceChoice, String> {
        match (text, text.strip_prefix("cuda:")) {
            ("cpu", _) => Ok(DeviceChoice::Cpu),
            ("cuda" | "gpu", _) => Ok(DeviceChoice::Cuda { ordinal: None }),
            ("auto", _) => Ok(DeviceChoice::Auto),
            (_, Some(number)) => match number.parse() {
                Ok(ordinal) => Ok(DeviceChoice::Cuda { ordinal: Some(ordinal) }),
                Err(_) => Err(format!("'{number}' is no number of a GPU, as in cuda:0")),
            },
            _ => Err(format!("there is no device '{text}'; there are cpu, cuda, cuda:N and auto")),
        }
    }
}

impl From<DeviceChoice> for String {
    fn from(choice: DeviceChoice) -> String {
        choice.to_string()
    }
}

impl TryFrom<String> for DeviceChoice {
    type Error = String;

    fn try_from(text: String) -> Result<DeviceChoice, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests;
