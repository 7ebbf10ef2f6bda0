//! The RDMA NICs of this machine as plain data. Opens them to look, and connects to nobody.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::VerbsUnusable;
use super::ibv::{self, Context, sys};

/// An RDMA NIC.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Nic {
    pub name: String,
    pub firmware: String,
    /// None of a device without hardware.
    #[serde(skip)]
    pub(crate) place: Option<Place>,
    /// It speaks iWARP, RDMA over TCP, by which nobody is connected here.
    pub is_iwarp: bool,
    pub vendor: u32,
    pub part: u32,
    pub memory_region_bytes_max: u64,
    pub queue_pairs_max: u32,
    pub requests_max: u32,
    pub completions_max: u32,
    /// Reads that one queue pair may have outstanding as their reader, and as their target.
    pub reads_max: u32,
    pub read_targets_max: u32,
    pub ports: Vec<Port>,
}

/// Where the kernel has a device, behind which bridges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// `/sys/devices/pci0000:16/0000:16:02.0/…`
    pub(super) path: PathBuf,
    pub(super) numa_node: Option<u32>,
}

impl Place {
    fn of(link: &Path) -> Option<Place> {
        let path = std::fs::canonicalize(link).ok()?;
        // -1 where there is one processor, or nobody knows
        let numa_node = std::fs::read_to_string(path.join("numa_node")).ok();
        let numa_node = numa_node.and_then(|number| number.trim().parse().ok());
        Some(Place { path, numa_node })
    }

    pub(super) fn of_pci(address: &str) -> Option<Place> {
        Place::of(&Path::new("/sys/bus/pci/devices").join(address))
    }

    /// Returns how far two devices are from each other, to compare: another processor first, then the bridges between them.
    pub(super) fn away_from(&self, other: &Place) -> (bool, usize) {
        let nodes = self.numa_node.zip(other.numa_node);
        let pairs = self.path.components().zip(other.path.components());
        let shared = pairs.take_while(|(one, other)| one == other).count();
        let between = self.path.components().count() + other.path.components().count() - 2 * shared;
        (nodes.is_some_and(|(one, other)| one != other), between)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Port {
    pub number: u8,
    pub state: PortState,
    pub link: LinkLayer,
    /// Mb/s; 0 where the driver does not say.
    pub mbps: u32,
    pub mtu: u32,
    pub mtu_max: u32,
    pub lid: u16,
    pub gids: Vec<Gid>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortState {
    Down,
    /// The link trains, or waits for the subnet manager.
    Initializing,
    Active,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkLayer {
    #[serde(rename = "infiniband")]
    InfiniBand,
    Ethernet,
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Gid {
    pub index: u32,
    pub kind: GidKind,
    /// The GID as the address that it is.
    pub address: IpAddr,
    pub interface: Option<String>,
    #[serde(skip)]
    pub(crate) raw: [u8; 16],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GidKind {
    #[serde(rename = "infiniband")]
    InfiniBand,
    RoceV1,
    RoceV2,
}

/// Returns every RDMA NIC of this machine; an empty list if there is none.
///
/// # Errors
/// If libibverbs cannot be loaded, or cannot list devices.
pub fn survey() -> Result<Vec<Nic>, VerbsUnusable> {
    Ok(look()?.into_iter().map(|(nic, _)| nic).collect())
}

/// The same, with the NICs open.
pub(super) fn look() -> Result<Vec<(Nic, Arc<Context>)>, VerbsUnusable> {
    let library = ibv::load().map_err(|error| VerbsUnusable {
        reason: format!("libibverbs cannot be loaded ({error})"),
        mend: "install rdma-core (apt-get install rdma-core ibverbs-providers)".into(),
    })?;
    let (mut found, mut failed) = (Vec::new(), None);
    let listed = ibv::each_device(library, |name, opened| {
        match opened.and_then(|context| Ok((describe(name, &context)?, context))) {
            Ok((nic, context)) => found.push((nic, Arc::new(context))),
            Err(error) => {
                tracing::warn!(nic = name, %error, "cannot open an RDMA NIC");
                failed.get_or_insert_with(|| format!("{name} cannot be opened ({error})"));
            }
        }
    });
    listed.map_err(|error| VerbsUnusable {
        reason: format!("libibverbs cannot list devices ({error})"),
        mend: "load the kernel's RDMA modules (modprobe ib_uverbs)".into(),
    })?;
    match failed {
        Some(reason) if found.is_empty() => Err(VerbsUnusable {
            reason,
            mend: "give this process access to /dev/infiniband/uverbs* (in a container: --device /dev/infiniband)".into(),
        }),
        _ => Ok(found),
    }
}

fn describe(name: &str, context: &Context) -> std::io::Result<Nic> {
    let device = context.device()?;
    let count = |value: i32| u32::try_from(value).unwrap_or(0);
    let firmware =
        device.fw_ver.iter().take_while(|&&c| c != 0).map(|&c| c as u8 as char).collect();
    let gids = context.gids()?;
    let ports = (1..=device.phys_port_cnt)
        .filter_map(|number| describe_port(context, number, &gids).ok())
        .collect();
    Ok(Nic {
        name: name.to_string(),
        firmware,
        place: Place::of(&folder(name).join("device")),
        is_iwarp: is_iwarp(name),
        vendor: device.vendor_id,
        part: device.vendor_part_id,
        memory_region_bytes_max: device.max_mr_size,
        queue_pairs_max: count(device.max_qp),
        requests_max: count(device.max_qp_wr),
        completions_max: count(device.max_cqe),
        reads_max: count(device.max_qp_init_rd_atom),
        read_targets_max: count(device.max_qp_rd_atom),
        ports,
    })
}

fn folder(name: &str) -> PathBuf {
    Path::new("/sys/class/infiniband").join(name)
}

/// As the kernel says it: such a NIC is an `RNIC`, others are a `CA`.
fn is_iwarp(name: &str) -> bool {
    std::fs::read_to_string(folder(name).join("node_type"))
        .is_ok_and(|kind| kind.trim_end().ends_with("RNIC"))
}

/// Mb/s of a link, by its lanes and the speed of each as the library has them; 0 where they say nothing.
pub(super) fn mbps(width: u8, speed: u8) -> u32 {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    let a_lane = match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    };
    lanes * a_lane
}

fn describe_port(
    context: &Context,
    number: u8,
    gids: &[sys::ibv_gid_entry],
) -> std::io::Result<Port> {
    let port = context.port(number)?;
    // a connection names its GID in 8 bits
    let is_usable = |entry: &&sys::ibv_gid_entry| {
        entry.port_num == u32::from(number) && entry.gid_index <= u32::from(u8::MAX)
    };
    let gid = |entry: &sys::ibv_gid_entry| {
        // SAFETY: any bytes are a GID.
        let raw = unsafe { entry.gid.raw };
        let kind = match entry.gid_type {
            sys::IBV_GID_TYPE_IB => GidKind::InfiniBand,
            sys::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
            _ => GidKind::RoceV2,
        };
        let interface = ibv::interface_name(entry.ndev_ifindex);
        let index = entry.gid_index;
        Gid { index, kind, address: ibv::address_of(raw), interface, raw }
    };
    Ok(Port {
        number,
        state: match port.state {
            sys::IBV_PORT_ACTIVE => PortState::Active,
            sys::IBV_PORT_INIT | sys::IBV_PORT_ARMED => PortState::Initializing,
            _ => PortState::Down,
        },
        // 0 is what drivers of InfiniBand said before there was a second kind
        link: match u32::from(port.link_layer) {
            sys::VERBS_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            _ => LinkLayer::InfiniBand,
        },
        mbps: mbps(port.active_width, port.active_speed),
        mtu: ibv::mtu_bytes(port.active_mtu),
        mtu_max: ibv::mtu_bytes(port.max_mtu),
        lid: port.lid,
        gids: gids.iter().filter(is_usable).map(gid).collect(),
    })
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GidKind::InfiniBand => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        })
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
        })
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PortState::Down => "down",
            PortState::Initializing => "initializing",
            PortState::Active => "active",
        })
    }
}
