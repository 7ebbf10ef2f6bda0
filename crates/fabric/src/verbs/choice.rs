//! Which NIC a process takes, and what of it.

use std::fmt;
use std::net::IpAddr;

use super::survey::{Gid, GidKind, LinkLayer, Nic, Place, Port, PortState};
use super::{GidChoice, VerbsOptions, VerbsUnusable};

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

/// A GID of an active port, which may be taken.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    nic: usize,
    port: usize,
    gid: usize,
    rank: Rank,
}

/// Chooses among what a survey found. `near` is the address at which this process listens; its peers are on
/// that network.
///
/// A GID is taken if the options ask for it. Among the others of active ports, these come first, in this
/// order: RoCE v2 or InfiniBand; more than link-local; the fastest link; the address `near` itself; routable, as all of
/// InfiniBand are in their subnet; private; IPv4.
///
/// Where several NICs are named, or several serve as well and are on one network (the same subnet of InfiniBand; the same /24 or /64
/// of RoCE, between hosts alone), those nearest to the GPU of the options are taken, and the processes of a host share them in turn.
///
/// # Errors
/// If there is no NIC, port or GID as the options ask, or none of them is active, or they speak iWARP.
pub fn choose(
    nics: &[Nic],
    options: &VerbsOptions,
    near: Option<IpAddr>,
) -> Result<NicChoice, VerbsUnusable> {
    let gpu = options.beside.as_deref().and_then(Place::of_pci);
    choose_beside(nics, options, near, gpu.as_ref())
}

fn choose_beside(
    nics: &[Nic],
    options: &VerbsOptions,
    near: Option<IpAddr>,
    gpu: Option<&Place>,
) -> Result<NicChoice, VerbsUnusable> {
    let found = candidates(nics, options, near)?;
    // the first of equals: `max_by_key` would take the last
    let Some(best) = found.iter().copied().rev().max_by_key(|candidate| candidate.rank) else {
        let reason = match options.gid {
            Some(GidChoice::Index(index)) => format!("no active port has GID index {index}"),
            Some(GidChoice::Address(address)) => format!("no active port has the GID {address}"),
            None => "no active port has a GID".into(),
        };
        let mend = "give its interface an address (ip addr add …), or leave --gid out";
        return Err(unusable(reason, mend));
    };
    let are_named = options.nics.len() > 1;
    let is_routed_to_itself = nics[best.nic].ports[best.port].link == LinkLayer::InfiniBand;
    let is_best = |candidate: &Candidate| (candidate.nic, candidate.port) == (best.nic, best.port);
    let serves_as_well = |candidate: &Candidate| {
        let is_as_good = Rank { near: best.rank.near, ..candidate.rank } == best.rank;
        let may_differ = options.between_hosts || is_routed_to_itself;
        is_as_good && share_a_network(nics, candidate, &best) && (may_differ || is_best(candidate))
    };
    let mut shared = found;
    shared.retain(|candidate| are_named || serves_as_well(candidate));
    let away = |candidate: &Candidate| {
        let place = nics[candidate.nic].place.as_ref();
        gpu.zip(place).map_or((true, usize::MAX), |(gpu, place)| gpu.away_from(place))
    };
    if let Some(nearest) = shared.iter().map(away).min() {
        shared.retain(|candidate| away(candidate) == nearest);
    }
    // fits: usize is 64 bits wide
    let turn = options.turn as usize % shared.len();
    let Candidate { nic, port, gid, rank } = shared[turn];
    let mut why = if options.gid.is_some() { "as asked".into() } else { rank.to_string() };
    if shared.len() > 1 {
        why += &format!(", number {} of {} that processes share", turn + 1, shared.len());
    }
    let (nic_name, port_number) = (&nics[nic].name, nics[nic].ports[port].number);
    let gid_entry = &nics[nic].ports[port].gids[gid];
    let reason = format!(
        "{nic_name} port {port_number}, MTU {}, GID {} = {} ({}): {why}",
        nics[nic].ports[port].mtu, gid_entry.index, gid_entry.address, gid_entry.kind
    );
    Ok(NicChoice { nic, port, gid, reason })
}

/// The best GID of each active port that may be taken, in the order in which they were asked for, or found.
fn candidates(
    nics: &[Nic],
    options: &VerbsOptions,
    near: Option<IpAddr>,
) -> Result<Vec<Candidate>, VerbsUnusable> {
    if nics.is_empty() {
        return Err(unusable(
            "there is no RDMA NIC".into(),
            "without one, a software device will do: rdma link add rxe0 type rxe netdev INTERFACE",
        ));
    }
    let mut places = wanted(nics, &options.nics)?;
    if let [(nic, _), ..] = places[..]
        && places.iter().all(|(nic, _)| nics[*nic].is_iwarp)
    {
        return Err(unusable(
            format!("{} speaks iWARP, over which nothing is connected here", nics[nic].name),
            "use --transport tcp, or a NIC with RoCE or InfiniBand (some can be switched to RoCE: devlink, or roce_ena of their driver)",
        ));
    }
    places.retain(|(nic, _)| !nics[*nic].is_iwarp);
    let active = |&(nic, port): &(usize, usize)| nics[nic].ports[port].state == PortState::Active;
    if let Some((nic, port)) = places.first().filter(|_| !places.iter().any(active)) {
        let (nic, port) = (&nics[*nic], &nics[*nic].ports[*port]);
        return Err(unusable(
            format!("port {} of {} is not active", port.number, nic.name),
            "bring its link up (ip link set INTERFACE up), or plug in the cable",
        ));
    }
    let best_of = |(nic, port): (usize, usize)| {
        let is_wanted = |gid: &Gid| match options.gid {
            None => true,
            Some(GidChoice::Index(index)) => gid.index == index,
            Some(GidChoice::Address(address)) => gid.address == address,
        };
        let of = |(at, gid): (usize, &Gid)| Candidate {
            nic,
            port,
            gid: at,
            rank: Rank::of(&nics[nic].ports[port], gid, near),
        };
        let gids = nics[nic].ports[port].gids.iter().enumerate();
        let all = gids.filter(|(_, gid)| is_wanted(gid)).map(of);
        all.rev().max_by_key(|candidate| candidate.rank)
    };
    Ok(places.into_iter().filter(active).filter_map(best_of).collect())
}

/// NICs and their ports, as indices, in the order of the names; all without one.
fn wanted(nics: &[Nic], names: &[String]) -> Result<Vec<(usize, usize)>, VerbsUnusable> {
    let all = nics.iter().enumerate();
    let all = all.flat_map(|(nic_at, nic)| (0..nic.ports.len()).map(move |port| (nic_at, port)));
    let all: Vec<(usize, usize)> = all.collect();
    if names.is_empty() {
        return Ok(all);
    }
    let mut places = Vec::new();
    for asked in names {
        let (name, number) = match asked.split_once(':') {
            None => (asked.as_str(), None),
            Some((name, port)) => match port.parse::<u8>() {
                Ok(port) => (name, Some(port)),
                Err(_) => {
                    let mend = "write NIC or NIC:PORT";
                    return Err(unusable(format!("'{port}' is no port number"), mend));
                }
            },
        };
        let is_asked = |&(nic, port): &(usize, usize)| {
            let (nic, port) = (&nics[nic], &nics[nic].ports[port]);
            nic.name == name && number.is_none_or(|number| number == port.number)
        };
        let before = places.len();
        places.extend(all.iter().copied().filter(is_asked));
        if places.len() == before {
            let names: Vec<&str> = nics.iter().map(|nic| nic.name.as_str()).collect();
            let mend = format!("there is {}", names.join(", "));
            return Err(unusable(format!("there is no NIC or port '{asked}'"), &mend));
        }
    }
    Ok(places)
}

fn unusable(reason: String, mend: &str) -> VerbsUnusable {
    VerbsUnusable { reason, mend: mend.into() }
}

/// True if whoever reaches the one reaches the other, as far as addresses tell.
fn share_a_network(nics: &[Nic], one: &Candidate, other: &Candidate) -> bool {
    let [(one, one_link), (other, other_link)] = [one, other].map(|at| {
        let port = &nics[at.nic].ports[at.port];
        (&port.gids[at.gid], port.link)
    });
    let same_start = |bytes: usize| one.raw[..bytes] == other.raw[..bytes];
    one_link == other_link
        && match (one_link, one.address, other.address) {
            // an IPv4 address is the end of its GID
            (LinkLayer::Ethernet, IpAddr::V4(_), IpAddr::V4(_)) => same_start(15),
            (LinkLayer::Ethernet, IpAddr::V4(_), _) | (LinkLayer::Ethernet, _, IpAddr::V4(_)) => {
                false
            }
            _ => same_start(8),
        }
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

#[cfg(test)]
mod tests {
    use super::super::survey::mbps;
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
            place: None,
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
        let asked = VerbsOptions { nics: vec!["board".into()], ..VerbsOptions::default() };
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
        let asked = VerbsOptions { nics: vec!["irdma".into()], ..VerbsOptions::default() };
        let refused = choose(&nics, &asked, None).unwrap_err().to_string();
        assert!(refused.contains("irdma speaks iWARP"), "{refused}");
    }

    #[test]
    fn what_is_asked_for_is_taken_or_refused() {
        let nics = [nic("a", PortState::Active, typical()), nic("b", PortState::Down, typical())];
        let options = |nic: Option<&str>, gid| VerbsOptions {
            nics: nic.map(Into::into).into_iter().collect(),
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

    /// As the kernel has a device that is behind these bridges.
    fn place(numa_node: u32, path: &str) -> Place {
        Place { path: format!("/sys/devices/{path}").into(), numa_node: Some(numa_node) }
    }

    /// Two NICs behind each of two switches, one switch a processor.
    fn rails(addresses: [&str; 4]) -> [Nic; 4] {
        let mut number = 0;
        addresses.map(|address| {
            let mut rail = nic("", PortState::Active, vec![gid(3, GidKind::RoceV2, address)]);
            rail.name = format!("mlx5_{number}");
            let path = format!("pci0000:0{}/switch/{number}", number / 2);
            rail.place = Some(place(number / 2, &path));
            number += 1;
            rail
        })
    }

    #[test]
    fn processes_of_a_host_share_what_serves_as_well_in_turn() {
        let between_hosts = true;
        let turn = |turn| VerbsOptions { turn, between_hosts, ..VerbsOptions::default() };
        let near = |nics: &[Nic], options: &VerbsOptions| chosen(nics, options, Some("10.0.0.2")).0;
        let one_network = rails(["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]);
        let taken = [0, 1, 2, 3, 4].map(|number| near(&one_network, &turn(number)));
        assert_eq!(taken, ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_0"]);
        let reason = choose(&one_network, &turn(1), None).unwrap().reason;
        assert!(reason.ends_with("number 2 of 4 that processes share"), "{reason}");
        // processes of a host that meet over RoCE
        let within = VerbsOptions { turn: 2, ..VerbsOptions::default() };
        assert_eq!(near(&one_network, &within), "mlx5_1");
        // whether one network reaches the other, nobody knows
        let apart = rails(["10.0.0.1", "10.0.1.1", "10.0.2.1", "10.0.0.2"]);
        let taken = [0, 1, 2].map(|number| chosen(&apart, &turn(number), None).0);
        assert_eq!(taken, ["mlx5_0", "mlx5_3", "mlx5_0"]);
        // one that is slower is not shared
        let [a, b, c, d] = one_network.map(|nic| fast(nic, 2, 64));
        let taken = [0, 1].map(|at| near(&[fast(a.clone(), 1, 32), b.clone()], &turn(at)));
        assert_eq!(taken, ["mlx5_1", "mlx5_1"]);
        let mut down = c;
        down.ports[0].state = PortState::Down;
        let taken = [0, 1, 2].map(|at| near(&[a.clone(), down.clone(), d.clone()], &turn(at)));
        assert_eq!(taken, ["mlx5_0", "mlx5_3", "mlx5_0"]);
        // those that are named, whatever they are
        let names = || vec!["mlx5_2".to_string(), "mlx5_0:1".to_string()];
        let named = |turn| VerbsOptions { nics: names(), turn, ..VerbsOptions::default() };
        let taken = [0, 1, 2].map(|number| chosen(&apart, &named(number), None).0);
        assert_eq!(taken, ["mlx5_2", "mlx5_0", "mlx5_2"]);
        let unknown = VerbsOptions { nics: vec!["mlx5_2".into(), "mlx".into()], ..turn(0) };
        let refused = choose(&apart, &unknown, None).unwrap_err().to_string();
        assert!(refused.contains("there is no NIC or port 'mlx'"), "{refused}");
    }

    #[test]
    fn the_nearest_to_the_gpu_goes_before_the_turn() {
        let nics = rails(["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]);
        let options = |turn| VerbsOptions { turn, between_hosts: true, ..VerbsOptions::default() };
        let beside = |gpu: &Place, turn| {
            let choice = choose_beside(&nics, &options(turn), None, Some(gpu)).unwrap();
            nics[choice.nic].name.clone()
        };
        let behind = place(1, "pci0000:01/switch/gpu");
        assert_eq!([0, 1, 2].map(|turn| beside(&behind, turn)), ["mlx5_2", "mlx5_3", "mlx5_2"]);
        let beside_one = place(0, "pci0000:00/switch/1/gpu");
        assert_eq!([0, 1].map(|turn| beside(&beside_one, turn)), ["mlx5_1", "mlx5_1"]);
        // another bridge of the same processor is nearer than any of the other
        let processor = place(1, "pci0000:07/gpu");
        assert_eq!([0, 1].map(|turn| beside(&processor, turn)), ["mlx5_2", "mlx5_3"]);
    }

    #[test]
    fn subnets_of_infiniband_are_told_apart() {
        let of = |name: &str, address: &str| {
            let mut nic = nic(name, PortState::Active, vec![gid(0, GidKind::InfiniBand, address)]);
            nic.ports[0].link = LinkLayer::InfiniBand;
            nic
        };
        let nics = [of("a", "fe80::1"), of("b", "fe80:0:0:1::1"), of("c", "fe80::2")];
        let turn = |turn| VerbsOptions { turn, ..VerbsOptions::default() };
        let taken = [0, 1, 2].map(|number| chosen(&nics, &turn(number), None).0);
        assert_eq!(taken, ["a", "c", "a"]);
    }
}
