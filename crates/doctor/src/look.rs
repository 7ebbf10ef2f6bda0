//! Puts together what is known of this machine: its file tree, the fabric's survey of NICs, and CUDA's driver. Judges
//! nothing.

mod cuda;

use std::path::Path;

use tensorwire_fabric::{VerbsOptions, choose, survey, verbs_usable};

use super::CudaSearch;
use super::facts::{Auto, Facts, GidFacts, Gpu, NicFacts, Pick, PortFacts, Rdma};
use super::tree::Tree;
use tensorwire_launch::Obstacle;
use tensorwire_launch::Transport;

/// Everything, of this machine.
pub(crate) fn gather(options: &VerbsOptions, search: &CudaSearch) -> Facts {
    let tree = Tree::at(Path::new("/"));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memfd = rustix::fs::memfd_create("tensorwire-doctor", rustix::fs::MemfdFlags::CLOEXEC);
    let rdma = rdma(&tree, options);
    let nics: Vec<&str> = rdma.nics.iter().map(|nic| nic.name.as_str()).collect();
    let gpu = Gpu { cuda: cuda::look(&tree, search, &nics), ..tree.gpu() };
    Facts {
        version: env!("CARGO_PKG_VERSION").to_string(),
        host: tree.host(),
        kernel: tree.kernel(),
        // fits: a machine has few
        computer: tree.computer(cores as u32),
        shared_memory: tree.shared_memory(memfd.err().map(|error| error.to_string())),
        locking: tree.locking(),
        gpu,
        auto: auto(&rdma),
        rdma,
    }
}

fn rdma(tree: &Tree, options: &VerbsOptions) -> Rdma {
    // first of all: it loads the library, of which the tree then tells
    let (found, error) = match survey() {
        Ok(found) => (found, None),
        Err(unusable) => (Vec::new(), Some(unusable)),
    };
    let choice = choose(&found, options, None).ok();
    let pick = choice.map(|choice| {
        let (nic, port) = (&found[choice.nic], &found[choice.nic].ports[choice.port]);
        let (nic, port, gid) = (nic.name.clone(), port.number, port.gids[choice.gid].index);
        Pick { nic, port, gid_index: gid, why: choice.reason }
    });
    let mut nics: Vec<NicFacts> = found.iter().map(|nic| nic_of(nic, pick.as_ref())).collect();
    nics.iter_mut().for_each(|nic| tree.complete(nic));
    let library = tree.library(None);
    let error = error.map(|error| error.reason).filter(|_| library.path.is_none());
    let library = if error.is_some() { tree.library(error) } else { library };
    Rdma {
        providers: tree.providers(&library),
        library,
        modules: tree.modules(),
        devices: tree.devices(),
        files: tree.device_files(),
        nics,
        pick,
        obstacle: verbs_usable(options, None).err().map(Obstacle::from),
        default_interface: tree.default_interface(),
    }
}

fn nic_of(nic: &tensorwire_fabric::Nic, pick: Option<&Pick>) -> NicFacts {
    let port = |port: &tensorwire_fabric::Port| {
        let picked = pick.filter(|pick| pick.nic == nic.name && pick.port == port.number);
        let gid = |gid: &tensorwire_fabric::Gid| GidFacts {
            index: gid.index,
            kind: gid.kind,
            address: gid.address,
            interface: gid.interface.clone(),
            picked: picked.is_some_and(|pick| pick.gid_index == gid.index),
        };
        PortFacts {
            number: port.number,
            state: port.state,
            link: port.link,
            rate: None,
            mtu: port.mtu,
            mtu_max: port.mtu_max,
            interface: None,
            interface_mtu: None,
            gids: port.gids.iter().map(gid).collect(),
        }
    };
    let (name, firmware) = (nic.name.clone(), nic.firmware.clone());
    NicFacts { name, firmware, ports: nic.ports.iter().map(port).collect() }
}

fn auto(rdma: &Rdma) -> Auto {
    let (several_hosts, why) = match (&rdma.obstacle, &rdma.pick) {
        (Some(obstacle), _) => {
            (Transport::Tcp, format!("RDMA cannot be used here: {}", obstacle.reason))
        }
        (None, Some(pick)) => (Transport::Verbs, pick.why.clone()),
        (None, None) => (Transport::Verbs, "RDMA can be used here".to_string()),
    };
    Auto { one_host: Transport::Shm, several_hosts, why }
}
