//! Limits of control groups, as files say them and as the kernel keeps them.

use std::process::Command;

use tensorwire_base::{Incarnation, JobId, Rank};
use tensorwire_testkit::skip::skip;

use super::*;
use crate::{Backend, Fabric, FabricConfig, Identity, JobCredentials, Secret};

const MEMINFO: &str = "MemTotal: 100 kB\nMemAvailable: 16777216 kB\n";
const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";

/// A host of so many files.
fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    root
}

#[test]
fn without_a_limit_the_host_decides() {
    let root = host(&[
        ("proc/meminfo", MEMINFO),
        ("proc/self/cgroup", "0::/user\n"),
        ("proc/self/mountinfo", V2_MOUNT),
        ("sys/fs/cgroup/user/memory.max", "max\n"),
        ("sys/fs/cgroup/user/memory.current", "4096\n"),
    ]);
    let room = room_under(root.path());
    assert_eq!(room, MemoryRoom { bytes: 16 << 30, limit: None });
    assert_eq!(room.to_string(), "16 GiB are available");
    let nothing = tempfile::tempdir().unwrap();
    assert_eq!(room_under(nothing.path()).bytes, u64::MAX, "what is not known forbids nothing");
}

#[test]
fn of_version_two_the_tightest_group_counts_and_files_that_nobody_needs_do_not() {
    let root = host(&[
        ("proc/meminfo", MEMINFO),
        ("proc/self/cgroup", "4:freezer:/elsewhere\n0::/jobs/mine\n"),
        ("proc/self/mountinfo", V2_MOUNT),
        ("sys/fs/cgroup/jobs/memory.max", "4294967296\n"),
        ("sys/fs/cgroup/jobs/memory.current", "3221225472\n"),
        (
            "sys/fs/cgroup/jobs/memory.stat",
            "anon 7\ninactive_file 536870912\nactive_file 536870912\n",
        ),
        ("sys/fs/cgroup/jobs/mine/memory.max", "8589934592\n"),
        ("sys/fs/cgroup/jobs/mine/memory.current", "1073741824\n"),
    ]);
    let room = room_under(root.path());
    assert_eq!(room.bytes, 2 << 30);
    let limit = room.limit.clone().unwrap();
    assert_eq!((limit.limit, limit.used), (4 << 30, 2 << 30));
    assert_eq!(limit.file, Path::new("/sys/fs/cgroup/jobs/memory.max"));
    let error = RegionError::Limited { bytes: 3 << 30, limit }.to_string();
    for word in ["3 GiB", "4 GiB", "2 GiB", "/sys/fs/cgroup/jobs/memory.max", "raise"] {
        assert!(error.contains(word), "{error} lacks {word}");
    }
    assert!(room.to_string().contains("/sys/fs/cgroup/jobs/memory.max"), "{room}");
}

#[test]
fn of_version_one_a_container_sees_its_own_group_as_the_root() {
    let mount = "36 32 0:33 /docker/ab /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                 35 32 0:32 /docker/ab /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n";
    let root = host(&[
        ("proc/meminfo", MEMINFO),
        ("proc/self/cgroup", "3:cpuset:/\n4:memory:/docker/ab/inner\n0::/\n"),
        ("proc/self/mountinfo", mount),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n"),
        ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n"),
        ("sys/fs/cgroup/memory/memory.stat", "total_inactive_file 4096\ninactive_file 9999\n"),
        ("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "9223372036854771712\n"),
        ("sys/fs/cgroup/memory/inner/memory.usage_in_bytes", "5\n"),
    ]);
    let room = room_under(root.path());
    assert_eq!(room.bytes, 4096);
    let file = room.limit.unwrap().file;
    assert_eq!(file, Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
}

#[test]
fn lines_that_make_no_sense_limit_nothing() {
    let root = host(&[
        ("proc/meminfo", "MemAvailable: many\n"),
        ("proc/self/cgroup", "\n::\n0:\n4:memory\n0::/../up\n"),
        (
            "proc/self/mountinfo",
            "\n - \n1 2 3 - cgroup2\n30 23 0:26 / /c rw - cgroup2 cgroup2 rw\n",
        ),
        ("c/memory.max", "plenty\n"),
        ("c/memory.current", "1\n"),
    ]);
    assert_eq!(room_under(root.path()), MemoryRoom { bytes: u64::MAX, limit: None });
}

/// A control group that a test makes below its own, of either version; it ends with the test.
struct Group(PathBuf);

impl Group {
    fn new(limit: u64) -> Result<Group, String> {
        let groups = text(Path::new("/proc/self/cgroup"));
        let mounts = text(Path::new("/proc/self/mountinfo"));
        let mut why = "no control groups of memory are mounted".to_string();
        for mount in mounts.lines().filter_map(Mount::parse) {
            let Some(group) = groups.lines().find_map(|line| mount.group(line)) else { continue };
            let below = Path::new(group).strip_prefix(mount.root).unwrap_or(Path::new(""));
            let name = format!("tensorwire-test-{}", std::process::id());
            let made = Path::new(mount.point).join(below).join(name);
            if let Err(error) = std::fs::create_dir(&made) {
                why = error.to_string();
                continue;
            }
            let made = Group(made);
            match std::fs::write(made.0.join(mount.version.limit), limit.to_string()) {
                Ok(()) => return Ok(made),
                Err(error) => why = error.to_string(),
            }
        }
        Err(why)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // one that stays is empty, and the next boot removes it
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri starts no process")]
#[ignore = "started by the test below, in a group of 64 MiB"]
fn allocates_more_than_its_group_may() {
    let me = Identity { rank: Rank(0), incarnation: Incarnation(1) };
    let job = JobCredentials { job_id: JobId(1), secret: Secret([1; 32]) };
    let fabric = Fabric::open(Backend::Shm, FabricConfig::new(me, job)).unwrap();
    let refused = fabric.alloc_region(256 << 20).unwrap_err();
    let RegionError::Limited { bytes, limit } = &refused else { panic!("{refused}") };
    assert_eq!((*bytes, limit.limit), (256 << 20, 64 << 20));
    assert!(fabric.alloc_region(1 << 20).is_ok());
}

#[test]
#[cfg_attr(miri, ignore = "Miri starts no process")]
fn a_group_of_the_kernel_refuses_with_an_error_and_kills_nobody() {
    let group = match Group::new(64 << 20) {
        Ok(group) => group,
        Err(reason) => return skip(None, &format!("no control group can be made: {reason}")),
    };
    let test = "limits::tests::allocates_more_than_its_group_may";
    let program = std::fs::read_link("/proc/self/exe").unwrap();
    let enter = r#"echo $$ > "$0/cgroup.procs" && exec "$1" --exact "$2" --ignored"#;
    let mut inside = Command::new("sh");
    inside.args(["-c", enter]).arg(&group.0).arg(program).arg(test);
    let output = inside.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{}: {said}", output.status);
}

#[test]
fn a_capability_is_advised_to_whom_it_helps() {
    assert!(memlock_mend_of(true).contains("--cap-add IPC_LOCK"));
    let other = memlock_mend_of(false);
    assert!(other.contains("LimitMEMLOCK=infinity") && !other.contains("--cap-add"), "{other}");
}
