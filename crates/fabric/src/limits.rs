//! How much memory this process may still take: what its host has, and what its control groups allow. A kernel that
//! finds a limit passed ends the process, so that whoever is about to touch memory asks here first. Knows not what for.

use std::fmt;
use std::path::{Path, PathBuf};

use tensorwire_base::human_bytes;

use crate::error::RegionError;

/// What version 1 writes for no limit, rounded down to whole pages of any size.
const UNLIMITED_FROM: u64 = 1 << 62;

/// The limit of a control group that this process is in, with what its members use of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Where it is written.
    pub file: PathBuf,
    pub limit: u64,
    /// Without files that the kernel only remembers, and gives up for whoever needs their memory.
    pub used: u64,
}

/// Memory that this process may still take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryRoom {
    pub bytes: u64,
    /// The control group that leaves no more; None if it is the host that has no more.
    pub limit: Option<MemoryLimit>,
}

impl MemoryLimit {
    /// Returns what is left of it.
    pub fn room(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryLimit { file, limit, used } = self;
        let (limit, used) = (human_bytes(*limit), human_bytes(*used));
        write!(
            f,
            "its control group's limit is {limit} ({}), of which {used} are in use",
            file.display()
        )
    }
}

impl fmt::Display for MemoryRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = human_bytes(self.bytes);
        match &self.limit {
            None => write!(f, "{bytes} are available"),
            Some(limit) => write!(f, "{bytes} are left ({limit}; raise it if the host has more)"),
        }
    }
}

/// Returns what this process may still take: what the host could give, or what the tightest of its control groups leaves.
pub fn memory_room() -> MemoryRoom {
    room_under(Path::new("/"))
}

/// Returns the bytes of [`memory_room`].
pub fn available_bytes() -> u64 {
    memory_room().bytes
}

/// Refuses a region for which there is no room.
pub(crate) fn check_room(bytes: u64) -> Result<(), RegionError> {
    let room = memory_room();
    match room.limit {
        _ if bytes <= room.bytes => Ok(()),
        None => Err(RegionError::NoMemory { bytes, available: room.bytes }),
        Some(limit) => Err(RegionError::Limited { bytes, limit }),
    }
}

/// [`memory_room`] of a host whose files lie under `root`.
fn room_under(root: &Path) -> MemoryRoom {
    let host = host_bytes(root);
    let tightest = limits_under(root).into_iter().min_by_key(MemoryLimit::room);
    match tightest.filter(|limit| limit.room() < host) {
        Some(limit) => MemoryRoom { bytes: limit.room(), limit: Some(limit) },
        None => MemoryRoom { bytes: host, limit: None },
    }
}

fn host_bytes(root: &Path) -> u64 {
    let text = text(&root.join("proc/meminfo"));
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib.saturating_mul(1024))
}

/// How a version of control groups names things.
struct Version {
    /// There is one hierarchy, for all controllers.
    is_unified: bool,
    limit: &'static str,
    used: &'static str,
    /// Keys of `memory.stat`: bytes of files that nobody needs.
    files: [&'static str; 2],
}

static V1: Version = Version {
    is_unified: false,
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    files: ["total_inactive_file", "total_active_file"],
};
static V2: Version = Version {
    is_unified: true,
    limit: "memory.max",
    used: "memory.current",
    files: ["inactive_file", "active_file"],
};

/// Every limit that holds for this process: those of its group and of all above it, as far as they are mounted.
fn limits_under(root: &Path) -> Vec<MemoryLimit> {
    let groups = text(&root.join("proc/self/cgroup"));
    let mounts = text(&root.join("proc/self/mountinfo"));
    let mut limits = Vec::new();
    for mount in mounts.lines().filter_map(Mount::parse) {
        let Some(group) = groups.lines().find_map(|line| mount.group(line)) else { continue };
        // a container may see its own group as the root of the mount
        let group = Path::new(group);
        let below = group.strip_prefix(mount.root).or(group.strip_prefix("/")).unwrap_or(group);
        for above in below.ancestors() {
            limits.extend(mount.version.limit_of(root, &Path::new(mount.point).join(above)));
        }
    }
    limits
}

/// A mount of control groups of memory.
struct Mount<'a> {
    version: &'static Version,
    /// The group that is mounted.
    root: &'a str,
    point: &'a str,
}

impl<'a> Mount<'a> {
    /// A line of `mountinfo` (proc_pid_mountinfo(5)), if it is one.
    fn parse(line: &'a str) -> Option<Mount<'a>> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let mut fields = file_system.split(' ');
        let version = match (fields.next()?, fields.nth(1)?) {
            ("cgroup2", _) => &V2,
            ("cgroup", options) if options.split(',').any(|option| option == "memory") => &V1,
            _ => return None,
        };
        Some(Mount { version, root, point })
    }

    /// The group that a line of `/proc/self/cgroup` puts this process into, if it is of this mount.
    fn group<'b>(&self, line: &'b str) -> Option<&'b str> {
        let (_, line) = line.split_once(':')?;
        let (controllers, group) = line.split_once(':')?;
        let is_here = match controllers {
            "" => self.version.is_unified,
            some => !self.version.is_unified && some.split(',').any(|name| name == "memory"),
        };
        is_here.then_some(group)
    }
}

impl Version {
    /// The limit of one group; None if it has none.
    fn limit_of(&self, root: &Path, group: &Path) -> Option<MemoryLimit> {
        let at = |name: &str| group.join(name);
        let number = |file: &Path| text(&under(root, file)).trim().parse::<u64>().ok();
        let file = at(self.limit);
        let limit = number(&file).filter(|limit| *limit < UNLIMITED_FROM)?;
        let used = number(&at(self.used))?;
        let stat = text(&under(root, &at("memory.stat")));
        let count = |line: &str| {
            let (key, count) = line.split_once(' ')?;
            count.parse::<u64>().ok().filter(|_| self.files.contains(&key))
        };
        let files: u64 = stat.lines().filter_map(count).sum();
        Some(MemoryLimit { file, limit, used: used.saturating_sub(files) })
    }
}

/// An absolute path of a host whose files lie under `root`.
fn under(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Empty if it cannot be read: then nothing is known of it.
fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// What lifts the limit on locked memory. The capability that a container is given is in effect for root alone: nobody hands it on to
/// the process of another user.
pub(crate) fn memlock_mend() -> &'static str {
    memlock_mend_of(rustix::process::geteuid().is_root())
}

fn memlock_mend_of(is_root: bool) -> &'static str {
    if is_root {
        return "ulimit -l unlimited; in a container: --ulimit memlock=-1, or --cap-add IPC_LOCK; in Kubernetes: capabilities.add: [IPC_LOCK]";
    }
    "ulimit -l unlimited; in a container: --ulimit memlock=-1; in Kubernetes: LimitMEMLOCK=infinity for containerd, or a pod of root's with IPC_LOCK"
}

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
