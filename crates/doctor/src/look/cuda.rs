//! What CUDA's driver says of this machine's GPUs, and which of CUDA's libraries there are. Makes no context: looking
//! takes no memory of a GPU. Judges nothing.

use tensorwire_device::{
    CublasLt, CudaLibrary, Cudnn, DeviceError, DeviceFacts, Driver, FoundLibrary, LibrarySearch,
    Nvrtc, WritesOrdering,
};
use tensorwire_launch::Obstacle;

use crate::CudaSearch;
use crate::facts::{CudaFacts, CudaLibraryFacts, GpuFacts, NicDistance};
use crate::tree::Tree;

/// `nics`: the names of those that there are.
pub(super) fn look(tree: &Tree, search: &CudaSearch, nics: &[&str]) -> CudaFacts {
    let asked = search.driver.is_some();
    let driver = match Driver::open(search.driver.as_deref()) {
        Ok(driver) => driver,
        Err(error) => {
            let obstacle = Some(Obstacle { reason: error.reason(), mend: error.mend() });
            return CudaFacts { obstacle, asked, ..CudaFacts::default() };
        }
    };
    let version = Some(driver.version().to_string());
    let loaded = tree.loaded("libcuda.so").unwrap_or_else(|| driver.looked_for().to_string());
    let (gpus, obstacle) = match gpus(tree, &driver, nics) {
        Ok(gpus) => (gpus, None),
        Err(error) => {
            let mend = "nvidia-smi; dmesg | grep -i -e nvrm -e xid".to_string();
            (Vec::new(), Some(Obstacle { reason: error.to_string(), mend }))
        }
    };
    let libraries = if gpus.is_empty() { Vec::new() } else { libraries(search.libraries.clone()) };
    CudaFacts { version, library: Some(loaded), obstacle, asked, gpus, libraries }
}

fn gpus(tree: &Tree, driver: &Driver, nics: &[&str]) -> Result<Vec<GpuFacts>, DeviceError> {
    let all = driver.devices()?;
    let count = all.len();
    all.into_iter()
        .map(|facts| {
            let mut reaches = Vec::new();
            for other in (0..count).filter(|other| *other != facts.ordinal) {
                if driver.can_reach(facts.ordinal, other)? {
                    reaches.push(other);
                }
            }
            Ok(gpu(tree, facts, reaches, nics))
        })
        .collect()
}

fn gpu(tree: &Tree, facts: DeviceFacts, reaches: Vec<usize>, nics: &[&str]) -> GpuFacts {
    let numa_node = facts.numa_node.or_else(|| tree.numa_node_of_pci(&facts.pci_bus_id));
    let distance_to = |nic: &&str| {
        let of_nic = tree.numa_node_of_nic(nic);
        let both = numa_node.zip(of_nic);
        NicDistance {
            nic: nic.to_string(),
            numa_node: of_nic,
            distance: both.and_then(|(gpu, nic)| tree.numa_distance(gpu, nic)),
        }
    };
    let writes_ordering = match facts.ordering {
        WritesOrdering::None => "none",
        WritesOrdering::Owner => "owner",
        WritesOrdering::AllDevices => "all",
    };
    GpuFacts {
        ordinal: facts.ordinal,
        name: facts.name,
        uuid: facts.uuid,
        pci_bus_id: facts.pci_bus_id,
        compute: facts.compute,
        memory_bytes: facts.memory_bytes,
        virtual_memory: facts.virtual_memory,
        export: facts.export,
        rdma: facts.rdma,
        dmabuf: facts.dmabuf,
        memory_operations: facts.memory_operations,
        writes_ordering: writes_ordering.to_string(),
        flush: facts.flush,
        numa_node,
        reaches,
        nics: nics.iter().map(distance_to).collect(),
    }
}

fn libraries(mut search: LibrarySearch) -> Vec<CudaLibraryFacts> {
    search.ask_python();
    let facts = |library: CudaLibrary| {
        let (mut version, mut obstacle) = (None, None);
        let looked = match library {
            CudaLibrary::CublasLt => {
                let loaded = CublasLt::look(&search);
                Some(loaded.map(|it| (it.version().to_string(), it.found().clone())))
            }
            CudaLibrary::Cudnn => {
                let loaded = Cudnn::look(&search);
                Some(loaded.map(|it| (it.version().to_string(), it.found().clone())))
            }
            CudaLibrary::Nvrtc => {
                let loaded = Nvrtc::look(&search);
                let of =
                    |it: Nvrtc| (it.library().version().to_string(), it.library().found().clone());
                Some(loaded.map(of))
            }
            CudaLibrary::Nccl => None,
        };
        let found = match looked {
            Some(Ok((said, found))) => {
                version = Some(said);
                Some(found)
            }
            Some(Err(error)) => {
                obstacle = Some(error.to_string());
                search.find(library)
            }
            None => search.find(library),
        };
        let obstacle = obstacle.filter(|_| found.is_some());
        let (path, place) = match found {
            Some(FoundLibrary { path, place, .. }) => {
                (Some(path.display().to_string()), Some(place.to_string()))
            }
            None => (None, None),
        };
        let (name, package) = (library.name().to_string(), library.package().to_string());
        CudaLibraryFacts { name, path, place, version, obstacle, package }
    };
    CudaLibrary::ALL.into_iter().map(facts).collect()
}
