//! What a machine boots from: Debian's kernel, and an initial file system with busybox and the
//! modules of Soft-RoCE. Made once and kept below cargo's target folder. Knows packages and modules;
//! nothing of what runs in a machine later.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::tools::{self, Stop, file_error};
use super::{SoftRoceError, say};

const INIT: &str = include_str!("guest/init.sh");

/// With what they need, in the order in which they are to be loaded. crc32_generic is in nobody's
/// dependencies: without it rxe cannot make its checksum, and 'rdma link add' says ENOENT.
const MODULES: [&str; 11] = [
    "crc32_generic",
    "9p",
    "9pnet_virtio",
    "virtio_pci",
    "virtio_net",
    "virtio_console",
    "rdma_rxe",
    "rdma_ucm",
    "ib_uverbs",
    "sch_netem",
    "macvlan",
];

const MEND: &str = "run ./scripts/setup.sh --tests";
/// Looking up, unpacking, packing: seconds on an idle machine.
const STEP_MAX: Duration = Duration::from_secs(300);
/// 70 MB.
const DOWNLOAD_MAX: Duration = Duration::from_secs(900);

/// What QEMU is given to boot.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub image: PathBuf,
    pub initial: PathBuf,
}

/// Programs without which there are no machines or nothing to do in them, and what else must be there.
const PROGRAMS: [(&str, &str); 9] = [
    ("qemu-system-x86_64", "the machines"),
    ("cpio", "their initial file system"),
    ("modprobe", "the order of the kernel's modules"),
    ("depmod", "the order of the kernel's modules"),
    ("ip", "a machine's network"),
    ("tc", "faults of a machine's network"),
    ("rdma", "a machine's RDMA device"),
    ("ibv_devinfo", "looking at that device"),
    ("ib_write_bw", "comparing with that device's usual benchmark"),
];

/// Makes the cache below `folder`, or finds it. Says what it does only if there is something to do.
pub fn prepare(folder: &Path, stop: &Stop, out: &mut dyn Write) -> Result<Kernel, SoftRoceError> {
    let busybox = check_programs()?;
    let place = folder.join(key());
    let kernel = Kernel { image: place.join("vmlinuz"), initial: place.join("initial.cpio") };
    // the folder gets its name when all is in it
    if place.is_dir() {
        return Ok(kernel);
    }
    std::fs::create_dir_all(folder).map_err(file_error("make", folder))?;
    let made = tempfile::Builder::new()
        .prefix(".making-")
        .tempdir_in(folder)
        .map_err(file_error("make a folder in", folder))?;
    let package = package(stop)?;
    say(out, &format!("soft-roce: making machines of {package}, once (70 MB to download)"))?;
    make(made.path(), &package, &busybox, stop)?;
    let ready = made.path().join("ready");
    if let Err(source) = std::fs::rename(&ready, &place) {
        // somebody else was faster, with the same result
        if !place.is_dir() {
            return Err(file_error("make", &place)(source));
        }
    }
    say(out, &format!("soft-roce: made, in {}", place.display()))?;
    Ok(kernel)
}

/// Changes with all that decides what is in the cache, but not with the kernel's version: one that
/// works is kept, also where there is no network any more.
fn key() -> String {
    let mut hasher = DefaultHasher::new();
    (INIT, MODULES).hash(&mut hasher);
    format!("machine-{:016x}", hasher.finish())
}

/// Where busybox is, if all that is needed is there.
fn check_programs() -> Result<PathBuf, SoftRoceError> {
    let missing = |what: String| Err(SoftRoceError::Missing { what, mend: MEND });
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return missing("the machines are x86-64 and run this host's own files".to_owned());
    }
    for (program, what_for) in PROGRAMS {
        if tools::find(program).is_none() {
            return missing(format!("no {program}, for {what_for}"));
        }
    }
    if !Path::new("/etc/libibverbs.d/rxe.driver").is_file() {
        return missing("no libibverbs driver for rxe (package ibverbs-providers)".to_owned());
    }
    let Some(busybox) = tools::find("busybox") else {
        return missing("no busybox, for their initial file system".to_owned());
    };
    let bytes = std::fs::read(&busybox).map_err(file_error("read", &busybox))?;
    if bytes[..bytes.len().min(4096)].windows(8).any(|part| part == b"ld-linux") {
        return missing(format!("'{}' needs a C library; busybox-static", busybox.display()));
    }
    Ok(busybox)
}

/// The package that Debian's `linux-image-amd64` stands for now.
fn package(stop: &Stop) -> Result<String, SoftRoceError> {
    let missing = |what: &str| SoftRoceError::Missing { what: what.to_owned(), mend: MEND };
    if tools::find("apt-get").is_none() {
        return Err(missing("no apt-get, with which Debian's kernel is downloaded"));
    }
    let mut command = tools::command("apt-cache");
    command.args(["depends", "linux-image-amd64"]).stderr(std::process::Stdio::piped());
    let said = tools::output(&mut command, &[], STEP_MAX, stop);
    let said = match said {
        Err(SoftRoceError::Command { .. }) => Vec::new(),
        said => said?,
    };
    kernel_package(&String::from_utf8_lossy(&said))
        .ok_or_else(|| missing("apt knows no package linux-image-amd64 (Debian's kernel)"))
}

fn kernel_package(depends: &str) -> Option<String> {
    let mut packages = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let numbered = |package: &&str| {
        let version = package.strip_prefix("linux-image-").unwrap_or_default();
        version.starts_with(|c: char| c.is_ascii_digit())
    };
    packages.find(numbered).map(str::to_owned)
}

/// Fills `folder/ready`; what else lies in `folder` is of no more use.
fn make(folder: &Path, package: &str, busybox: &Path, stop: &Stop) -> Result<(), SoftRoceError> {
    let run = |program: &str, arguments: &[&str], limit| {
        let mut command = tools::command(program);
        command.current_dir(folder).args(arguments).stderr(std::process::Stdio::piped());
        tools::output(&mut command, &[], limit, stop)
    };
    run("apt-get", &["download", "-qq", package], DOWNLOAD_MAX).map_err(|error| match error {
        // most machines that cannot have no network, and tests skip then
        SoftRoceError::Command { output, .. } => SoftRoceError::Missing {
            what: format!("Debian's kernel could not be downloaded: {output}"),
            mend: MEND,
        },
        other => other,
    })?;
    let archive = only_file(folder, ".deb")?;
    run("dpkg", &["-x", &archive, "unpacked"], STEP_MAX)?;
    let unpacked = folder.join("unpacked");
    let version = only_file(&unpacked.join("lib/modules"), "")?;
    run("depmod", &["-b", "unpacked", &version], STEP_MAX)?;
    let mut shown = String::new();
    for module in MODULES {
        let arguments = ["-d", "unpacked", "-S", &version, "--show-depends", module];
        shown += &String::from_utf8_lossy(&run("modprobe", &arguments, STEP_MAX)?);
    }
    let initial = folder.join("initial");
    let mut order = String::new();
    for from in insmod_order(&shown) {
        // relative to the folder, as it was given to modprobe
        order += &add_module(&folder.join(from), &initial.join("modules"), stop)?;
        order.push('\n');
    }
    write(&initial.join("modules/order"), order.as_bytes(), 0o644)?;
    write(&initial.join("init"), INIT.as_bytes(), 0o755)?;
    let bytes = std::fs::read(busybox).map_err(file_error("read", busybox))?;
    write(&initial.join("bin/busybox"), &bytes, 0o755)?;
    write(&folder.join("ready/initial.cpio"), &archive_of(&initial, stop)?, 0o644)?;
    let image = unpacked.join("boot").join(format!("vmlinuz-{version}"));
    let target = folder.join("ready/vmlinuz");
    std::fs::copy(&image, target).map_err(file_error("copy", &image))?;
    Ok(())
}

/// The files in what `modprobe --show-depends` prints for one module after another: each once, and
/// none before what it needs.
pub fn insmod_order(shown: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    for line in shown.lines() {
        // other lines: 'builtin NAME'; after the file there may be parameters
        let file = line.strip_prefix("insmod ").and_then(|rest| rest.split(' ').next());
        let file = file.map(PathBuf::from);
        files.extend(file.filter(|file| !files.contains(file)));
    }
    files
}

/// Puts a module into the initial file system, unpacked, since busybox may not know how. Its name.
fn add_module(file: &Path, folder: &Path, stop: &Stop) -> Result<String, SoftRoceError> {
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let bytes = std::fs::read(file).map_err(file_error("read", file))?;
    let (name, bytes) = match name.strip_suffix(".xz") {
        // Debian 13 and later
        Some(name) => {
            let mut command = tools::command("xz");
            command.args(["--decompress", "--stdout"]).stderr(std::process::Stdio::piped());
            (name.to_owned(), tools::output(&mut command, &bytes, STEP_MAX, stop)?)
        }
        None => (name, bytes),
    };
    write(&folder.join(&name), &bytes, 0o644)?;
    Ok(name)
}

/// A cpio archive of a folder, not compressed: unpacking costs more than loading under emulation.
fn archive_of(folder: &Path, stop: &Stop) -> Result<Vec<u8>, SoftRoceError> {
    let mut names = String::from(".\n");
    for entry in ignore::WalkBuilder::new(folder).standard_filters(false).build().skip(1) {
        let path = match entry {
            Ok(entry) => entry.into_path(),
            Err(error) => {
                return Err(file_error("list", folder)(std::io::Error::other(error)));
            }
        };
        let name = path.strip_prefix(folder).unwrap_or(&path);
        names += &format!("{}\n", name.display());
    }
    let mut command = tools::command("cpio");
    command.current_dir(folder).args(["--create", "--format=newc", "--quiet"]);
    command.args(["--owner=0:0"]).stderr(std::process::Stdio::piped());
    tools::output(&mut command, names.as_bytes(), STEP_MAX, stop)
}

/// The only name in a folder that ends like this.
fn only_file(folder: &Path, end: &str) -> Result<String, SoftRoceError> {
    let entries = std::fs::read_dir(folder).map_err(file_error("list", folder))?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names = names.filter(|name| name.ends_with(end));
    match (names.next(), names.next()) {
        (Some(name), None) => Ok(name),
        _ => Err(file_error("choose a file in", folder)(std::io::ErrorKind::NotFound.into())),
    }
}

/// Writes a file and the folders above it.
pub(super) fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), SoftRoceError> {
    use std::os::unix::fs::PermissionsExt;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(file_error("make", folder))?;
    }
    std::fs::write(path, bytes).map_err(file_error("write", path))?;
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, mode).map_err(file_error("write", path))
}

#[cfg(test)]
mod tests {
    use tensorwire_testkit::skip::skip;

    use super::*;

    #[test]
    fn the_kernel_is_the_one_that_the_name_stands_for() {
        let said = "linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n";
        assert_eq!(kernel_package(said).as_deref(), Some("linux-image-6.1.0-56-amd64"));
        assert_eq!(kernel_package("linux-image-amd64\n  Depends: linux-base\n"), None);
        assert_eq!(kernel_package(""), None);
    }

    #[test]
    fn a_packed_module_is_unpacked() {
        if tools::find("xz").is_none() {
            skip(None, &"there is no xz");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let mut xz = tools::command("xz");
        let packed = tools::output(&mut xz, b"module", STEP_MAX, &Stop::default()).unwrap();
        let file = folder.path().join("a.ko.xz");
        std::fs::write(&file, packed).unwrap();
        let name = add_module(&file, &folder.path().join("m"), &Stop::default()).unwrap();
        assert_eq!(name, "a.ko");
        assert_eq!(std::fs::read(folder.path().join("m/a.ko")).unwrap(), b"module");
    }
}
