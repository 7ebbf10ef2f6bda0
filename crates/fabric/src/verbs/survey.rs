//! The RDMA NICs of this machine as plain data, and the choice among them. Opens them to look, and connects to
//! nobody.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use super::ibv::{self, Context, sys};
use super::{GidChoice, VerbsOptions, VerbsUnusable};

/// An RDMA NIC.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Nic {
    pub name: String,
    pub firmware: String,
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

/// A NIC, a port and a GID, and the reason for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicChoice {
    /// Index into the survey.
    pub nic: usize,
    /// Index into the NIC's ports.
    pub port: usize,
    /// Index into the port's GIDs.
    pub gid: usize,
    /// One line.
    pub reason: String,
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

/// As the kernel says it: such a NIC is an `RNIC`, others are a `CA`.
fn is_iwarp(name: &str) -> bool {
    let kind = Path::new("/sys/class/infiniband").join(name).join("node_type");
    std::fs::read_to_string(kind).is_ok_and(|kind| kind.trim_end().ends_with("RNIC"))
}

/// Mb/s of a link, by its lanes and the speed of each as the library has them; 0 where they say nothing.
fn mbps(width: u8, speed: u8) -> u32 {
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

/// Chooses among what a survey found. `near` is the address at which this process listens; its peers are on
/// that network.
///
/// A GID is taken if the options ask for it. Among the others of active ports, these come first, in this
/// order: RoCE v2 or InfiniBand; more than link-local; the fastest link; the address `near` itself; routable, as all of
/// InfiniBand are in their subnet; private; IPv4.
///
/// # Errors
/// If there is no NIC, port or GID as the options ask, or none of them is active, or they speak iWARP.
pub fn choose(
    nics: &[Nic],
    options: &VerbsOptions,
    near: Option<IpAddr>,
) -> Result<NicChoice, VerbsUnusable> {
    let unusable = |reason: String, mend: &str| Err(VerbsUnusable { reason, mend: mend.into() });
    if nics.is_empty() {
        return unusable(
            "there is no RDMA NIC".into(),
            "without one, a software device will do: rdma link add rxe0 type rxe netdev INTERFACE",
        );
    }
    let (wanted_nic, wanted_port) = match options.nic.as_deref().map(|nic| nic.split_once(':')) {
        None => (None, None),
        Some(None) => (options.nic.as_deref(), None),
        Some(Some((name, port))) => match port.parse::<u8>() {
            Ok(port) => (Some(name), Some(port)),
            Err(_) => {
                return unusable(format!("'{port}' is no port number"), "write NIC or NIC:PORT");
            }
        },
    };
    let mut places = Vec::new();
    for (nic_at, nic) in nics.iter().enumerate() {
        for (port_at, port) in nic.ports.iter().enumerate() {
            let wanted = wanted_nic.is_none_or(|name| name == nic.name)
                && wanted_port.is_none_or(|number| number == port.number);
            places.extend(wanted.then_some((nic_at, port_at)));
        }
    }
    if places.is_empty() {
        let names: Vec<&str> = nics.iter().map(|nic| nic.name.as_str()).collect();
        let nic = options.nic.as_deref().unwrap_or("");
        let mend = format!("there is {}", names.join(", "));
        return unusable(format!("there is no NIC or port '{nic}'"), &mend);
    }
    if let [(nic, _), ..] = places[..]
        && places.iter().all(|(nic, _)| nics[*nic].is_iwarp)
    {
        return unusable(
            format!("{} speaks iWARP, over which nothing is connected here", nics[nic].name),
            "use --transport tcp, or a NIC with RoCE or InfiniBand (some can be switched to RoCE: devlink, or roce_ena of their driver)",
        );
    }
    places.retain(|(nic, _)| !nics[*nic].is_iwarp);
    let active = |&(nic, port): &(usize, usize)| nics[nic].ports[port].state == PortState::Active;
    if !places.iter().any(active) {
        let (nic, port) = places[0];
        let reason =
            format!("port {} of {} is not active", nics[nic].ports[port].number, nics[nic].name);
        return unusable(
            reason,
            "bring its link up (ip link set INTERFACE up), or plug in the cable",
        );
    }
    let best = places
        .into_iter()
        .filter(active)
        .flat_map(|(nic, port)| {
            (0..nics[nic].ports[port].gids.len()).map(move |gid| (nic, port, gid))
        })
        .filter(|&(nic, port, gid)| {
            let gid = &nics[nic].ports[port].gids[gid];
            options.gid.is_none_or(|wanted| match wanted {
                GidChoice::Index(index) => gid.index == index,
                GidChoice::Address(address) => gid.address == address,
            })
        })
        // the first of equals: `max_by_key` would take the last
        .rev_max_by_key(|&(nic, port, gid)| {
            let port = &nics[nic].ports[port];
            Rank::of(port, &port.gids[gid], near)
        });
    let Some((nic, port, gid)) = best else {
        let reason = match options.gid {
            Some(GidChoice::Index(index)) => format!("no active port has GID index {index}"),
            Some(GidChoice::Address(address)) => format!("no active port has the GID {address}"),
            None => "no active port has a GID".into(),
        };
        return unusable(
            reason,
            "give its interface an address (ip addr add …), or leave --gid out",
        );
    };
    let rank = Rank::of(&nics[nic].ports[port], &nics[nic].ports[port].gids[gid], near);
    let why = if options.gid.is_some() { "as asked".into() } else { rank.to_string() };
    let (nic_name, port_number) = (&nics[nic].name, nics[nic].ports[port].number);
    let gid_entry = &nics[nic].ports[port].gids[gid];
    let reason = format!(
        "{nic_name} port {port_number}, MTU {}, GID {} = {} ({}): {why}",
        nics[nic].ports[port].mtu, gid_entry.index, gid_entry.address, gid_entry.kind
    );
    Ok(NicChoice { nic, port, gid, reason })
}

/// What speaks for a GID, most important first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    current: bool,
    /// Every port has a link-local one, which reaches no further than its switch.
    is_addressed: bool,
    mbps: u32,
    near: bool,
    reach: Reach,
    /// Addresses that peers know are most often IPv4.
    ipv4: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    LinkLocal,
    Private,
    Routable,
}

impl Rank {
    fn of(port: &Port, gid: &Gid, near: Option<IpAddr>) -> Rank {
        let near = near.is_some_and(|near| {
            near == gid.address && !near.is_unspecified() && !near.is_loopback()
        });
        let reach = match gid.address {
            _ if port.link == LinkLayer::InfiniBand => Reach::Routable,
            IpAddr::V4(address) if address.is_link_local() => Reach::LinkLocal,
            IpAddr::V6(address) if address.is_unicast_link_local() => Reach::LinkLocal,
            IpAddr::V4(address) if address.is_private() => Reach::Private,
            IpAddr::V6(address) if address.is_unique_local() || is_site_local(address) => {
                Reach::Private
            }
            _ => Reach::Routable,
        };
        let current = gid.kind != GidKind::RoceV1;
        let (is_addressed, mbps) = (reach != Reach::LinkLocal, port.mbps);
        Rank { current, is_addressed, mbps, near, reach, ipv4: gid.address.is_ipv4() }
    }
}

/// fec0::/10, which routers still give.
fn is_site_local(address: std::net::Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfec0
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reach = match self.reach {
            Reach::LinkLocal => "link-local, none better",
            Reach::Private => "a private address, routable among the hosts of a site",
            Reach::Routable => "routable",
        };
        if self.mbps > 0 {
            let half = if self.mbps % 1000 >= 500 { ".5" } else { "" };
            write!(f, "{}{half} Gb/s, ", self.mbps / 1000)?;
        }
        if self.near {
            f.write_str("the address at which this process listens, ")?;
        }
        f.write_str(reach)
    }
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

/// `max_by_key` that keeps the first of equals.
trait FirstMax: Iterator + Sized {
    fn rev_max_by_key<K: Ord>(self, key: impl Fn(&Self::Item) -> K) -> Option<Self::Item> {
        self.fold(None, |best: Option<Self::Item>, item| match best {
            Some(best) if key(&best) >= key(&item) => Some(best),
            _ => Some(item),
        })
    }
}

impl<I: Iterator> FirstMax for I {}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u32, kind: GidKind, address: &str) -> Gid {
        let address: IpAddr = address.parse().unwrap();
        let raw = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        Gid { index, kind, address, interface: Some("eth0".into()), raw }
    }

    fn nic(name: &str, state: PortState, gids: Vec<Gid>) -> Nic {
        let link = LinkLayer::Ethernet;
        let (mbps, mtu, mtu_max, lid) = (0, 1024, 4096, 0);
        let port = Port { number: 1, state, link, mbps, mtu, mtu_max, lid, gids };
        Nic {
            name: name.into(),
            firmware: String::new(),
            is_iwarp: false,
            vendor: 0,
            part: 0,
            memory_region_bytes_max: u64::MAX,
            queue_pairs_max: 1,
            requests_max: 1,
            completions_max: 1,
            reads_max: 1,
            read_targets_max: 1,
            ports: vec![port],
        }
    }

    fn typical() -> Vec<Gid> {
        vec![
            gid(0, GidKind::RoceV1, "fe80::1"),
            gid(1, GidKind::RoceV2, "fe80::1"),
            gid(2, GidKind::RoceV1, "10.0.0.1"),
            gid(3, GidKind::RoceV2, "10.0.0.1"),
        ]
    }

    fn chosen(nics: &[Nic], options: &VerbsOptions, near: Option<&str>) -> (String, u32) {
        let near = near.map(|near| near.parse().unwrap());
        let choice = choose(nics, options, near).unwrap();
        let nic = &nics[choice.nic];
        (nic.name.clone(), nic.ports[choice.port].gids[choice.gid].index)
    }

    #[test]
    fn version_two_and_an_address_that_is_routed_come_first() {
        let nics = [nic("a", PortState::Active, typical())];
        assert_eq!(chosen(&nics, &VerbsOptions::default(), None), ("a".into(), 3));
        let mut site = typical();
        site.insert(0, gid(9, GidKind::RoceV2, "fec0::1"));
        let nics = [nic("a", PortState::Active, site)];
        assert_eq!(chosen(&nics, &VerbsOptions::default(), None), ("a".into(), 3));
        let global = [gid(0, GidKind::RoceV2, "2001:db8::1"), gid(1, GidKind::RoceV2, "10.0.0.1")];
        let nics = [nic("a", PortState::Active, global.to_vec())];
        assert_eq!(chosen(&nics, &VerbsOptions::default(), None).1, 0, "a private one is behind");
    }

    #[test]
    fn the_network_of_the_rendezvous_decides_between_nics() {
        let other = vec![gid(3, GidKind::RoceV2, "8.8.8.8")];
        let nics = [nic("a", PortState::Active, other), nic("b", PortState::Active, typical())];
        assert_eq!(chosen(&nics, &VerbsOptions::default(), None).0, "a");
        assert_eq!(chosen(&nics, &VerbsOptions::default(), Some("10.0.0.1")).0, "b");
    }

    /// With a link of such a speed.
    fn fast(mut nic: Nic, width: u8, speed: u8) -> Nic {
        nic.ports[0].mbps = mbps(width, speed);
        nic
    }

    #[test]
    fn the_fastest_link_goes_before_the_address_of_the_control_connections() {
        // four lanes of 50 Gb/s, and one of 25 on the network of the control connections
        let other = vec![gid(3, GidKind::RoceV2, "192.168.7.1")];
        let nics = [
            fast(nic("board", PortState::Active, typical()), 1, 32),
            fast(nic("fast", PortState::Active, other), 2, 64),
        ];
        assert_eq!(nics.each_ref().map(|nic| nic.ports[0].mbps), [25_000, 200_000]);
        assert_eq!(chosen(&nics, &VerbsOptions::default(), Some("10.0.0.1")).0, "fast");
        let asked = VerbsOptions { nic: Some("board".into()), ..VerbsOptions::default() };
        assert_eq!(chosen(&nics, &asked, Some("10.0.0.1")).0, "board");
        // the same speed
        let nics = nics.map(|nic| fast(nic, 2, 64));
        assert_eq!(chosen(&nics, &VerbsOptions::default(), Some("10.0.0.1")).0, "board");
        assert_eq!(mbps(0, 0), 0, "a driver that does not say");
        // one that is cabled, and has no address but its own
        let bare = vec![gid(1, GidKind::RoceV2, "fe80::2")];
        let bare = fast(nic("bare", PortState::Active, bare), 2, 128);
        let [board, _] = nics;
        assert_eq!(chosen(&[bare, board], &VerbsOptions::default(), None).0, "board");
    }

    #[test]
    fn infiniband_reaches_its_subnet_whatever_its_gid_looks_like() {
        let mut fabric = nic("ib", PortState::Active, vec![gid(0, GidKind::InfiniBand, "fe80::1")]);
        fabric.ports[0].link = LinkLayer::InfiniBand;
        let nics = [nic("eth", PortState::Active, typical()), fabric];
        assert_eq!(chosen(&nics, &VerbsOptions::default(), None).0, "ib");
    }

    #[test]
    fn iwarp_is_passed_over_and_named_where_there_is_nothing_else() {
        let mut iwarp =
            nic("irdma", PortState::Active, vec![gid(0, GidKind::InfiniBand, "3cfd:fe9e::1")]);
        iwarp.is_iwarp = true;
        let nics = [iwarp.clone(), nic("roce", PortState::Active, typical())];
        assert_eq!(chosen(&nics, &VerbsOptions::default(), None).0, "roce");
        let alone = choose(&[iwarp], &VerbsOptions::default(), None).unwrap_err().to_string();
        assert!(alone.contains("irdma speaks iWARP"), "{alone}");
        let asked = VerbsOptions { nic: Some("irdma".into()), ..VerbsOptions::default() };
        let refused = choose(&nics, &asked, None).unwrap_err().to_string();
        assert!(refused.contains("irdma speaks iWARP"), "{refused}");
    }

    #[test]
    fn what_is_asked_for_is_taken_or_refused() {
        let nics = [nic("a", PortState::Active, typical()), nic("b", PortState::Down, typical())];
        let options = |nic: Option<&str>, gid| VerbsOptions {
            nic: nic.map(Into::into),
            gid,
            ..VerbsOptions::default()
        };
        assert_eq!(chosen(&nics, &options(None, Some(GidChoice::Index(0))), None).1, 0);
        let address = Some(GidChoice::Address("10.0.0.1".parse().unwrap()));
        assert_eq!(chosen(&nics, &options(Some("a:1"), address), None).1, 3, "version two of it");
        for (options, words) in [
            (options(Some("c"), None), "there is no NIC or port 'c'"),
            (options(Some("a:2"), None), "'a:2'"),
            (options(Some("a:x"), None), "no port number"),
            (options(Some("b"), None), "port 1 of b is not active"),
            (options(None, Some(GidChoice::Index(9))), "GID index 9"),
        ] {
            let refused = choose(&nics, &options, None).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
        assert!(choose(&[], &VerbsOptions::default(), None).is_err());
    }
}
