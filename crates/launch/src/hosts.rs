//! The hosts of a job: which there are, which of them is this one, which member runs where, and at which
//! address the others reach this one. Starts no process and opens no connection.

mod said;

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc::channel;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorwire_base::Rank;

use crate::cpus::CpuMask;

pub use said::RanksByHost;

/// What starts a command on another host where nothing else is given. It never asks for a password, and what forgets
/// connections that say nothing for some minutes hears one that does. Who does not answer is the job's to give up, not ssh's.
pub const RSH: &str = "ssh -o BatchMode=yes -o ServerAliveInterval=30 -o ServerAliveCountMax=240";

/// How long a name may take to become an address.
const RESOLVE_PATIENCE: Duration = Duration::from_secs(5);
/// Members that one host may take in a turn; a job has no more.
const SLOTS_MAX: u32 = 256;
/// More than any list of hosts needs.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where the members of a job run. They go to the hosts round-robin, in the order of their ranks; a host
/// with several slots takes so many in its turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hosts {
    list: Vec<Host>,
    rsh: Vec<String>,
}

/// One host of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Host {
    /// As the user gave it.
    name: String,
    slots: u32,
    /// It is the launcher's own.
    here: bool,
    /// The processors that whoever started its one member has bound it to.
    #[serde(default)]
    cpus: CpuMask,
}

/// What is wrong with a list of hosts, and how to mend it.
#[derive(Debug, thiserror::Error)]
pub enum HostsError {
    #[error("--hosts names no host; give at least one, as in --hosts node0,node1:2")]
    None,
    #[error(
        "--hosts: '{found}' is no host; write NAME, USER@NAME or an address, with :SLOTS behind it where it takes several processes in a turn (an IPv6 address in brackets)"
    )]
    BadHost { found: String },
    #[error("--hosts: '{found}' has no number of slots from 1 to {SLOTS_MAX}; write NAME:SLOTS")]
    BadSlots { found: String },
    #[error(
        "cannot read the hosts in {path}: {source}; write a file with a host in each line, as in node1:2"
    )]
    File { path: PathBuf, source: std::io::Error },
    #[error("--rsh names no command; leave it out for `{RSH}`")]
    NoRsh,
    #[error(
        "--hosts: the name {host} does not resolve on this machine; {}correct it, or where --rsh alone knows it, give --listen \
         ADDRESS:0, an address at which that host reaches this one",
        .meant.as_ref().map(|name| format!("did you mean '{name}'? Else ")).unwrap_or_default()
    )]
    NoName { host: String, meant: Option<String> },
    #[error(
        "cannot tell at which of this machine's addresses {host} reaches it, for there is no route to it; give --listen ADDRESS:0"
    )]
    NoRoute { host: String },
    #[error(
        "--listen: {ip} is the address of a group or of a whole network; give an address of this machine, or 0.0.0.0 for all of them"
    )]
    NoAddress { ip: IpAddr },
    #[error(
        "processes of this host find each other over its loopback interface, which is down; as root: ip link set lo up"
    )]
    NoLoopback,
}

impl Default for Hosts {
    /// This host alone.
    fn default() -> Hosts {
        let cpus = CpuMask::default();
        let here = Host { name: "localhost".to_string(), slots: 1, here: true, cpus };
        Hosts { list: vec![here], rsh: words(RSH) }
    }
}

impl FromStr for Hosts {
    type Err = HostsError;

    /// Reads `node0,node1:2`, or the file behind `@FILE`, with one host in each line. Asks the system
    /// which of them are this one.
    fn from_str(given: &str) -> Result<Hosts, HostsError> {
        let entries: Vec<String> = match given.strip_prefix('@') {
            Some(path) => lines(Path::new(path))?,
            None => given.split(',').map(|entry| entry.trim().to_string()).collect(),
        };
        if entries.iter().all(|entry| entry.is_empty()) {
            return Err(HostsError::None);
        }
        let list = entries.iter().map(|entry| Host::parse(entry)).collect::<Result<_, _>>()?;
        Ok(Hosts { list, ..Hosts::default() })
    }
}

/// Where a launcher listens, and where its members find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Front {
    pub(crate) listen: SocketAddr,
    /// None: where it listens.
    pub(crate) reached_at: Option<IpAddr>,
}

impl Hosts {
    /// The same hosts, whose processes are started by `rsh`: a command and its first arguments,
    /// separated by blanks, that is given a host and a command line for its shell.
    ///
    /// # Errors
    /// When there is no word in it.
    pub fn started_by(self, rsh: &str) -> Result<Hosts, HostsError> {
        let rsh = words(rsh);
        if rsh.is_empty() { Err(HostsError::NoRsh) } else { Ok(Hosts { rsh, ..self }) }
    }

    /// The hosts of members that somebody else started, by rank: the name of each, whether it is the launcher's,
    /// and the processors that the member may run on.
    pub(crate) fn of_members(members: Vec<(String, bool, CpuMask)>) -> Hosts {
        let of = |(name, here, cpus)| Host { name, slots: 1, here, cpus };
        Hosts { list: members.into_iter().map(of).collect(), ..Hosts::default() }
    }

    /// The same hosts without those of these names; none if none is left.
    pub fn without(&self, names: &[String]) -> Option<Hosts> {
        let list: Vec<Host> =
            self.list.iter().filter(|host| !names.contains(&host.name)).cloned().collect();
        (!list.is_empty()).then(|| Hosts { list, rsh: self.rsh.clone() })
    }

    /// The names of those that are not the launcher's own, each once.
    pub fn others(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for host in self.list.iter().filter(|host| !host.here) {
            if !names.contains(&host.name.as_str()) {
                names.push(&host.name);
            }
        }
        names
    }

    /// True if processes on all of them would find the launcher, which listens where it is given.
    ///
    /// # Errors
    /// When the launcher does not know at which of its addresses.
    pub fn check_front(&self, listen: Option<SocketAddr>) -> Result<(), HostsError> {
        // fits: there are few
        self.front(listen, self.slots() as usize).map(drop)
    }

    /// Members that all hosts together take in a turn.
    pub fn slots(&self) -> u32 {
        self.list.iter().map(|host| host.slots).sum()
    }

    /// Is any of them another host than the launcher's?
    pub fn any_remote(&self) -> bool {
        self.list.iter().any(|host| !host.here)
    }

    /// Would `world` members be on more than one host?
    pub fn spread(&self, world: usize) -> bool {
        self.neighbours(Rank(0), world) < world
    }

    /// By rank of so many members, the number of its host: that of the first rank that is there.
    pub fn numbers(&self, world: usize) -> Vec<u32> {
        // fits: a job has far fewer than 2^32 members
        (0..world as u32).map(|rank| self.number(Rank(rank))).collect()
    }

    /// The number of the host of a member.
    pub(crate) fn number(&self, rank: Rank) -> u32 {
        (0..rank.0).find(|first| self.together(Rank(*first), rank)).unwrap_or(rank.0)
    }

    /// The name of the host of a member, as the user gave it.
    pub fn name(&self, rank: Rank) -> &str {
        &self.host(rank).name
    }

    /// Does a member run on the launcher's host?
    pub fn is_here(&self, rank: Rank) -> bool {
        self.host(rank).here
    }

    /// How many of the first `count` ranks are on the host of `rank`.
    pub fn neighbours(&self, rank: Rank, count: usize) -> usize {
        let host = self.host(rank);
        // fits: a job has far fewer than 2^32 members
        (0..count as u32).filter(|other| self.host(Rank(*other)).is(host)).count()
    }

    /// How many ranks on the host of `rank` are lower.
    pub fn neighbours_before(&self, rank: Rank) -> u32 {
        let host = self.host(rank);
        // fits: there are as many ranks
        (0..rank.0).filter(|other| self.host(Rank(*other)).is(host)).count() as u32
    }

    /// The host that most of `count` members run on, and how many do.
    pub fn fullest(&self, count: u32) -> (&str, u64) {
        let turn: u64 = self.list.iter().map(|host| u64::from(host.slots)).sum();
        let (turns, mut rest) = (u64::from(count) / turn.max(1), u64::from(count) % turn.max(1));
        let mut on: Vec<(&Host, u64)> = Vec::new();
        for host in &self.list {
            let slots = u64::from(host.slots);
            let last = rest.min(slots);
            rest -= last;
            let members = turns * slots + last;
            match on.iter_mut().find(|(earlier, _)| earlier.is(host)) {
                Some((_, sum)) => *sum += members,
                None => on.push((host, members)),
            }
        }
        let fullest = on.into_iter().rev().max_by_key(|(_, members)| *members);
        fullest.map_or(("", 0), |(host, members)| (host.name.as_str(), members))
    }

    /// Do two members run on one host?
    pub fn together(&self, rank: Rank, other: Rank) -> bool {
        self.host(rank).is(self.host(other))
    }

    /// True if two members run on one host, and may run on the same of its processors.
    pub fn share_cores(&self, rank: Rank, other: Rank) -> bool {
        self.together(rank, other) && self.host(rank).cpus.overlaps(&self.host(other).cpus)
    }

    /// The command that starts others' processes, in words.
    pub(crate) fn rsh(&self) -> &[String] {
        &self.rsh
    }

    /// What starts a process on another host, as it is written.
    pub fn started_with(&self) -> String {
        self.rsh.join(" ")
    }

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

    fn host(&self, rank: Rank) -> &Host {
        let turn: usize = self.list.iter().map(|host| host.slots as usize).sum();
        let mut place = rank.index() % turn.max(1);
        for host in &self.list {
            match place.checked_sub(host.slots as usize) {
                Some(rest) => place = rest,
                None => return host,
            }
        }
        // a list has a host, and a host a slot: only a foreign message could have none
        &self.list[self.list.len() - 1]
    }
}

impl Host {
    fn parse(entry: &str) -> Result<Host, HostsError> {
        let bad = || HostsError::BadHost { found: entry.to_string() };
        let (name, slots) = match entry.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, "")) => (address, None),
            Some((address, rest)) => (address, Some(rest.strip_prefix(':').ok_or_else(bad)?)),
            None => match entry.split_once(':') {
                Some((name, slots)) => (name, Some(slots)),
                None => (entry, None),
            },
        };
        let bracketed = entry.starts_with('[');
        // a name is an argument of --rsh: it must not look like an option
        let plain =
            |c: char| c.is_ascii_alphanumeric() || "._-@%".contains(c) || bracketed && c == ':';
        if name.is_empty() || name.starts_with('-') || !name.chars().all(plain) {
            return Err(bad());
        }
        let slots = slots.map_or(Ok(1), str::parse);
        match slots {
            Ok(slots @ 1..=SLOTS_MAX) => {
                let (name, here) = (name.to_string(), is_here(name));
                Ok(Host { name, slots, here, cpus: CpuMask::default() })
            }
            _ => Err(HostsError::BadSlots { found: entry.to_string() }),
        }
    }

    /// The launcher's host is one, however it is called.
    fn is(&self, other: &Host) -> bool {
        self.here && other.here || self.name == other.name
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_string).collect()
}

/// The hosts in a file; `#` begins a comment.
fn lines(path: &Path) -> Result<Vec<String>, HostsError> {
    let failed = |source| HostsError::File { path: path.to_path_buf(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    Ok(lines.filter(|line| !line.is_empty()).map(str::to_string).collect())
}

/// Is this name, or this address, the launcher's own? Who gives a user wants to log in, even here.
fn is_here(name: &str) -> bool {
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
fn resolve(name: &str) -> Vec<IpAddr> {
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
    let unknown = names.iter().zip(&found).filter(|(_, addresses)| addresses.is_empty());
    let mut unknown = unknown.map(|(name, _)| *name);
    let Some(own) = first else {
        return Err(match unknown.next() {
            Some(name) => HostsError::NoName { host: name.to_string(), meant: meant(name, &names) },
            None => HostsError::NoRoute { host: hosts.first().unwrap_or(&"a host").to_string() },
        });
    };
    for name in unknown {
        let meant = meant(name, &names).map(|meant| format!("; did you mean '{meant}'?"));
        tracing::warn!(
            "--hosts: the name {name} does not resolve on this machine{}",
            meant.unwrap_or_else(|| "; --rsh may know it".to_string())
        );
    }
    Ok(own)
}

/// The host that a name may have meant: one that this machine knows, or another that was given.
fn meant(name: &str, given: &[&str]) -> Option<String> {
    let known = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let others = given.iter().copied().filter(|other| *other != name);
    nearest(name, named_in(&known).chain(others))
}

/// The names in a file as /etc/hosts.
fn named_in(file: &str) -> impl Iterator<Item = &str> {
    let lines = file.lines().filter_map(|line| line.split('#').next());
    lines.flat_map(|line| line.split_whitespace().skip(1))
}

/// The most similar of other names, if one is similar.
fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let distances = known.map(|known| (strsim::osa_distance(given, known), known));
    // a third of the letters at most: more would be another word
    let near = distances.filter(|(edits, known)| (1..=known.len() / 3).contains(edits));
    near.min().map(|(_, known)| known.to_string())
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

    fn names(given: &str, world: u32) -> Vec<String> {
        let hosts: Hosts = given.parse().unwrap();
        (0..world).map(|rank| hosts.name(Rank(rank)).to_string()).collect()
    }

    #[test]
    fn members_go_round_the_hosts_in_turns_of_their_slots() {
        assert_eq!(names("192.0.2.1,192.0.2.2", 3), ["192.0.2.1", "192.0.2.2", "192.0.2.1"]);
        let turns = ["192.0.2.1", "192.0.2.2", "192.0.2.2", "192.0.2.1", "192.0.2.2"];
        assert_eq!(names("192.0.2.1,192.0.2.2:2", 5), turns);
        assert_eq!(names("[2001:db8::1]:2,192.0.2.1", 3)[..2], ["2001:db8::1", "2001:db8::1"]);
    }

    #[test]
    fn this_host_is_one_however_it_is_called() {
        let hosts: Hosts = "127.0.0.1,localhost,192.0.2.7".parse().unwrap();
        assert!(hosts.is_here(Rank(0)) && hosts.is_here(Rank(1)) && !hosts.is_here(Rank(2)));
        assert!(hosts.any_remote() && !hosts.spread(2) && hosts.spread(3));
        assert_eq!((hosts.neighbours(Rank(0), 4), hosts.neighbours(Rank(2), 4)), (3, 1));
        let before = [0, 1, 2, 3].map(|rank| hosts.neighbours_before(Rank(rank)));
        assert_eq!(before, [0, 1, 0, 2]);
        assert!(!Hosts::default().spread(9) && !Hosts::default().any_remote());
        let one: Hosts = "192.0.2.7".parse().unwrap();
        assert!(one.any_remote() && !one.spread(9), "all on one other host share its memory");
        let login: Hosts = "me@localhost".parse().unwrap();
        assert!(login.any_remote(), "who gives a user wants to log in");
    }

    #[test]
    fn the_fullest_host_is_found_without_a_walk_over_all_members() {
        for given in [
            "192.0.2.1",
            "192.0.2.1,192.0.2.2:3",
            "192.0.2.1:2,192.0.2.2,192.0.2.1",
            "127.0.0.1,a:5,localhost",
        ] {
            let hosts: Hosts = given.parse().unwrap();
            for count in 1..40 {
                let (name, members) = hosts.fullest(count);
                let on = |rank| hosts.neighbours(Rank(rank), count as usize) as u64;
                assert_eq!((0..count).map(on).max(), Some(members), "{given}, {count}");
                let first = (0..count).find(|rank| hosts.name(Rank(*rank)) == name);
                assert_eq!(first.map(on), Some(members), "{given}, {count}: {name}");
            }
        }
        assert_eq!(Hosts::default().fullest(u32::MAX), ("localhost", u64::from(u32::MAX)));
    }

    #[test]
    fn a_file_has_a_host_in_each_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        std::fs::write(&path, "# ours\n192.0.2.1 # first\n\n192.0.2.2:2\n").unwrap();
        let given = format!("@{}", path.display());
        assert_eq!(names(&given, 3), ["192.0.2.1", "192.0.2.2", "192.0.2.2"]);
        std::fs::write(&path, "# none\n").unwrap();
        assert!(matches!(given.parse::<Hosts>(), Err(HostsError::None)));
        assert!(matches!("@/none/there".parse::<Hosts>(), Err(HostsError::File { .. })));
    }

    #[test]
    fn what_is_no_list_of_hosts() {
        for given in ["", " ", ","] {
            assert!(matches!(given.parse::<Hosts>(), Err(HostsError::None)), "{given:?}");
        }
        for given in ["a,,b", "-oProxyCommand=x", "a b", "a;b", "[::1", "[::1]2", "::1", ":2"] {
            let error = given.parse::<Hosts>().unwrap_err();
            let shown = matches!(error, HostsError::BadHost { .. } | HostsError::BadSlots { .. });
            assert!(shown, "{given:?}: {error}");
        }
        for given in ["a:0", "a:257", "a:two", "a:"] {
            let error = given.parse::<Hosts>().unwrap_err();
            assert!(matches!(error, HostsError::BadSlots { .. }), "{given:?}: {error}");
        }
        assert!(matches!(Hosts::default().started_by("  "), Err(HostsError::NoRsh)));
    }

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
        assert_eq!(nearest("ndoe1", named_in(known)).as_deref(), Some("node1"));
        assert_eq!(nearest("node9", named_in(known)).as_deref(), Some("node1"));
        assert_eq!(nearest("elsewhere", named_in(known)), None);
        let near = HostsError::NoName { host: "ndoe1".into(), meant: Some("node1".into()) };
        assert!(near.to_string().contains("; did you mean 'node1'? Else correct it"), "{near}");
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
