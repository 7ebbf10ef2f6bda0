//! The hosts of a job: which there are and which member runs where. Which of them is this one, and at which address the others
//! reach it, is `addresses.rs`. Starts no process and opens no connection.

mod addresses;
mod said;

use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tensorwire_base::Rank;

use crate::cpus::CpuMask;

pub(crate) use addresses::resolve;
use addresses::{is_here, unknown};
pub use said::RanksByHost;

/// What starts a command on another host where nothing else is given. It never asks for a password, and what forgets
/// connections that say nothing for some minutes hears one that does. Who does not answer is the job's to give up, not ssh's.
pub const RSH: &str = "ssh -o BatchMode=yes -o ServerAliveInterval=30 -o ServerAliveCountMax=240";

/// Members that one host may take in a turn; a job has no more.
const SLOTS_MAX: u32 = 256;
/// More than any list of hosts needs.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where the members of a job run. They go to the hosts round-robin, in the order of their ranks; a host
/// with several slots takes so many in its turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Told")]
pub struct Hosts {
    list: Vec<Host>,
    rsh: Vec<String>,
}

/// Hosts as another process tells them.
#[derive(Deserialize)]
struct Told {
    list: Vec<Host>,
    rsh: Vec<String>,
}

impl TryFrom<Told> for Hosts {
    type Error = HostsError;

    fn try_from(Told { list, rsh }: Told) -> Result<Hosts, HostsError> {
        if list.is_empty() {
            return Err(HostsError::None);
        }
        if rsh.is_empty() {
            return Err(HostsError::NoRsh);
        }
        match list.iter().find(|host| !(1..=SLOTS_MAX).contains(&host.slots)) {
            Some(Host { name, slots, .. }) => {
                Err(HostsError::BadSlots { found: format!("{name}:{slots}") })
            }
            None => Ok(Hosts { list, rsh }),
        }
    }
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
        "--hosts: {} on this machine; {}correct it, or where --rsh alone knows it, give --listen ADDRESS:0, an address at which \
         that host reaches this one",
        unknown(.hosts), .meant.as_ref().map(|name| format!("did you mean '{name}'? Else ")).unwrap_or_default()
    )]
    NoName { hosts: Vec<String>, meant: Option<String> },
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
        // nor may another process tell it
        let told = serde_json::to_string(&Hosts::default()).unwrap();
        assert_eq!(serde_json::from_str::<Hosts>(&told).unwrap(), Hosts::default());
        let rsh = told.find("\"rsh\"").unwrap();
        let without = format!("{}{}", &told[..rsh], "\"rsh\":[]}");
        for bad in ["{\"list\":[],\"rsh\":[\"ssh\"]}", &without, &told.replace(":1,", ":257,")] {
            assert!(serde_json::from_str::<Hosts>(bad).is_err(), "{bad}");
        }
    }
}
