//! File systems that a test mounts for itself, where it may: disks that are full, and that crash.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tensorwire_testkit::skip::skip;

/// A file system of a test's own; it ends with the test.
pub(crate) struct Mounted(PathBuf);

impl Mounted {
    /// One in memory of so many bytes; None, with the reason said, where none can be had.
    pub(crate) fn small(folder: &Path, bytes: u64) -> Option<Mounted> {
        let size = format!("size={bytes}");
        let kind = [OsStr::new("-t"), OsStr::new("tmpfs"), OsStr::new("tmpfs")];
        said(mount(folder.join("small"), &size, &kind))
    }

    /// What is in an image of a disk; None, with the reason said, where it cannot be mounted.
    pub(crate) fn of_image(folder: &Path, image: &Path) -> Option<Mounted> {
        let name = format!("{}-mounted", image.file_name()?.display());
        // no commit of the file system's own comes while a test runs
        said(mount(folder.join(name), "loop,commit=300", &[image.as_os_str()]))
    }

    /// Makes the image of an empty disk; false, with the reason said, where that cannot be done.
    pub(crate) fn make_image(image: &Path) -> bool {
        let file = std::fs::File::create(image).unwrap();
        file.set_len(32 << 20).unwrap();
        said(run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(image))).is_some()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // the folder it is in is removed next, which fails if this did
        let _ = run(Command::new("umount").arg(&self.0));
    }
}

fn mount(place: PathBuf, options: &str, what: &[&OsStr]) -> Result<Mounted, String> {
    std::fs::create_dir_all(&place).unwrap();
    run(Command::new("mount").args(["-o", options]).args(what).arg(&place))?;
    Ok(Mounted(place))
}

fn said<T>(result: Result<T, String>) -> Option<T> {
    result.inspect_err(|reason| skip(None, &format!("no disk of its own: {reason}"))).ok()
}

/// Runs a command; what it said, if it failed.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Err(format!("{}: {error}", command.get_program().display())),
    }
}
