//! At which address hosts reach this one, and which of them is this one. Opens no connection.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::mpsc::channel;
use std::time::Duration;

use tensorwire_base::{Rank, nearest};

use super::{Hosts, HostsError};

/// How long a name may take to become an address.
const RESOLVE_PATIENCE: Duration = Duration::from_secs(5);

/// Where a launcher listens, and where its members find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Front {
    pub(crate) listen: SocketAddr,
    /// None: where it listens.
    pub(crate) reached_at: Option<IpAddr>,
}

impl Hosts {
    /// Where to listen so that all `world` members reach this host: where the user says, else on
    /// loopback where all are here, else at the address from which this host reaches the first other.
    pub(crate) fn front(
        &self,
        given: Option<SocketAddr>,
        world: usize,
    ) -> Result<Front, HostsError> {
        // fits: a job has far fewer than 2^32 members
        let others = (0..world as u32).map(Rank).filter(|rank| !self.is_here(*rank));
        let others: Vec<&str> = others.map(|rank| self.name(rank)).collect();
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let listens_there = given.map_or(others.is_empty(), |listen| listen.ip() == loopback);
        if listens_there && address_towards(loopback).is_none() {
            return Err(HostsError::NoLoopback);
        }
        match (given, others.first()) {
            (Some(listen), _) if is_of_many(listen.ip()) => {
                Err(HostsError::NoAddress { ip: listen.ip() })
            }
            (Some(listen), Some(_)) if listen.ip().is_unspecified() => {
                Ok(Front { listen, reached_at: Some(route(&others)?) })
            }
            (Some(listen), _) => Ok(Front { listen, reached_at: None }),
            (None, Some(_)) => {
                Ok(Front { listen: SocketAddr::new(route(&others)?, 0), reached_at: None })
            }
            (None, None) => {
                let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                Ok(Front { listen, reached_at: None })
            }
        }
    }
}

/// True if this name, or this address, is the launcher's own. Who gives a user wants to log in, even here.
pub(super) fn is_here(name: &str) -> bool {
    if let Ok(address) = name.parse() {
        return is_own(address);
    }
    let system = rustix::system::uname();
    let own = system.nodename().to_string_lossy();
    let first = own.split('.').next().unwrap_or_default();
    if name == "localhost" || name == own || name == first {
        return true;
    }
    if name.contains('@') {
        return false;
    }
    let addresses = resolve(name);
    !addresses.is_empty() && addresses.into_iter().all(is_own)
}

/// True for an address of this host's: what goes there comes from there. Any can be bound, if the system is told so.
fn is_own(address: IpAddr) -> bool {
    address.is_loopback() || address.is_unspecified() || address_towards(address) == Some(address)
}

/// True for an address of a group, or of all hosts of a network, which can be bound and never be called.
fn is_of_many(address: IpAddr) -> bool {
    if address.is_multicast() {
        return true;
    }
    // whoever sends to many must say so first, and has not
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
    let refused = socket.and_then(|socket| socket.connect((address, 9)));
    address.is_ipv4() && refused.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

/// The addresses of a host; none where it has no name that this host knows, or nobody says in time.
pub(crate) fn resolve(name: &str) -> Vec<IpAddr> {
    let (found, wait) = channel();
    let host = name.to_string();
    let ask = move || {
        let addresses = (host.as_str(), 0).to_socket_addrs();
        let addresses = addresses.into_iter().flatten().map(|address| address.ip());
        // a link-local address means nothing without its interface
        let usable = |ip: &IpAddr| !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        // nobody waits any more if it took too long
        let _ = found.send(addresses.filter(usable).collect());
    };
    match std::thread::Builder::new().name("resolve".into()).spawn(ask) {
        Ok(_) => wait.recv_timeout(RESOLVE_PATIENCE).unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

/// This host's address on the way to the first of `hosts` to which there is one. No packet is sent. Of the others, names that do
/// not resolve are told: what starts processes there may know them all the same.
fn route(hosts: &[&str]) -> Result<IpAddr, HostsError> {
    let mut names: Vec<&str> = Vec::new();
    for host in hosts {
        let name = host.rsplit('@').next().unwrap_or_default();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let ask = |name: &str| name.parse().map_or_else(|_| resolve(name), |address| vec![address]);
    // all at once: each may take its time
    let found: Vec<Vec<IpAddr>> = std::thread::scope(|scope| {
        let asked: Vec<_> = names.iter().map(|name| scope.spawn(move || ask(name))).collect();
        asked.into_iter().map(|one| one.join().unwrap_or_default()).collect()
    });
    let first = found.iter().flatten().find_map(|address| address_towards(*address));
    let (known, unknown): (Vec<_>, Vec<_>) =
        names.iter().zip(&found).partition(|(_, addresses)| !addresses.is_empty());
    let name = |(name, _): (&&str, _)| name.to_string();
    let known: Vec<String> = known.into_iter().map(name).collect();
    let unknown: Vec<String> = unknown.into_iter().map(name).collect();
    let Some(own) = first else {
        return Err(match unknown.first() {
            Some(first) => HostsError::NoName { meant: meant(first, &known), hosts: unknown },
            None => HostsError::NoRoute { host: hosts.first().unwrap_or(&"a host").to_string() },
        });
    };
    for name in &unknown {
        let meant = meant(name, &known).map(|meant| format!("; did you mean '{meant}'?"));
        tracing::warn!(
            "--hosts: the name {name} does not resolve on this machine{}",
            meant.unwrap_or_else(|| "; --rsh may know it".to_string())
        );
    }
    Ok(own)
}

/// Names that are none, in words.
pub(super) fn unknown(hosts: &[String]) -> String {
    match hosts {
        [host] => format!("the name {host} does not resolve"),
        hosts => format!("the names {} do not resolve", hosts.join(", ")),
    }
}

/// The host that a name may have meant: one that this machine knows, or one of these, which resolve.
fn meant(name: &str, others: &[String]) -> Option<String> {
    let known = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let others = others.iter().map(String::as_str);
    let known: Vec<&str> = named_in(&known).chain(others).filter(|known| *known != name).collect();
    nearest(name, known).map(str::to_string)
}

/// The names in a file as /etc/hosts.
fn named_in(file: &str) -> impl Iterator<Item = &str> {
    let lines = file.lines().filter_map(|line| line.split('#').next());
    lines.flat_map(|line| line.split_whitespace().skip(1))
}

fn address_towards(peer: IpAddr) -> Option<IpAddr> {
    let any: SocketAddr = match peer {
        IpAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
        IpAddr::V6(_) => SocketAddr::from(([0u16; 8], 0)),
    };
    let socket = UdpSocket::bind(any).ok()?;
    // any port will do: the route is all that is asked for
    socket.connect((peer, 9)).ok()?;
    let own = socket.local_addr().ok()?.ip();
    (!own.is_unspecified()).then_some(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_launcher_listens_where_its_members_reach_it() {
        let here = Hosts::default();
        assert_eq!(here.front(None, 4).unwrap().listen.to_string(), "127.0.0.1:0");
        let given: SocketAddr = "127.0.0.1:77".parse().unwrap();
        let other: Hosts = "localhost,no-such-host.invalid".parse().unwrap();
        let front = other.front(Some(given), 2).unwrap();
        assert_eq!(front, Front { listen: given, reached_at: None });
        let error = other.front(None, 2).unwrap_err();
        let says = "--hosts: the name no-such-host.invalid does not resolve on this machine; ";
        assert!(error.to_string().starts_with(says), "{error}");
        assert!(error.to_string().contains("--listen"), "{error}");
        let known = "127.0.0.1 localhost # node9\n10.0.0.1\tnode1.cluster node1\n";
        assert_eq!(nearest("ndoe1", named_in(known)), Some("node1"));
        assert_eq!(nearest("node9", named_in(known)), Some("node1"));
        assert_eq!(nearest("elsewhere", named_in(known)), None);
        let near = HostsError::NoName { hosts: vec!["ndoe1".into()], meant: Some("node1".into()) };
        assert!(near.to_string().contains("; did you mean 'node1'? Else correct it"), "{near}");
        let none: Hosts = "no-such-host.invalid,nor-this.invalid".parse().unwrap();
        let said = none.front(None, 2).unwrap_err().to_string();
        assert!(
            said.contains("the names no-such-host.invalid, nor-this.invalid do not resolve"),
            "{said}"
        );
        for of_many in ["255.255.255.255:0", "127.255.255.255:0", "224.0.0.1:9", "[ff02::1]:9"] {
            let error = here.front(Some(of_many.parse().unwrap()), 4).unwrap_err();
            assert!(error.to_string().contains("an address of this machine"), "{error}");
        }
        assert!(other.front(None, 1).is_ok(), "nobody is on the other host");
        // loopback is a route that every machine has, and a user makes it another host
        let login: Hosts = "localhost,me@127.0.0.1".parse().unwrap();
        assert_eq!(login.front(None, 2).unwrap().listen.to_string(), "127.0.0.1:0");
        let everywhere: SocketAddr = "0.0.0.0:7".parse().unwrap();
        let reached_at = Some(Ipv4Addr::LOCALHOST.into());
        let front = login.front(Some(everywhere), 2).unwrap();
        assert_eq!(front, Front { listen: everywhere, reached_at });
        assert_eq!(address_towards([127, 0, 0, 9].into()), Some(Ipv4Addr::LOCALHOST.into()));
    }
}
