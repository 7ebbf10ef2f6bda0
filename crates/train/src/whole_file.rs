//! Files that appear whole under their name or not at all. Knows nothing of what is in them.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Can a file be made in the folder of `path`?
///
/// # Errors
/// If not: why.
pub fn check_writable(path: &Path) -> io::Result<()> {
    let wrong = |kind, what: &str| Err(io::Error::new(kind, what));
    if path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return wrong(io::ErrorKind::IsADirectory, "it names a folder");
    }
    // a rename would put a file in the place of a device, a pipe or a link
    if std::fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        return wrong(io::ErrorKind::InvalidInput, "it is there and is no regular file");
    }
    match Staged::make(path)? {
        Staged::Nameless(_) => Ok(()),
        Staged::Named(_, staged) => std::fs::remove_file(staged),
    }
}

/// Has `content` write to the file that will be `path`. Nothing is left behind if this process is killed
/// on the way: until the file is complete it has no name.
///
/// # Errors
/// The first of making it, `content` and naming it; an older file of the name then stays.
pub fn write(path: &Path, content: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let mut staged = Staged::make(path)?;
    let (Staged::Nameless(file) | Staged::Named(file, _)) = &mut staged;
    let written = content(file).and_then(|()| file.sync_all());
    written.and_then(|()| staged.publish(path)).inspect_err(|_| staged.discard())
}

/// A file on its way to its name.
enum Staged {
    /// It vanishes with its descriptor.
    Nameless(File),
    /// Where the file system knows no nameless files.
    Named(File, PathBuf),
}

impl Staged {
    fn make(path: &Path) -> io::Result<Staged> {
        use rustix::fs::{CWD, Mode, OFlags, openat};
        use rustix::io::Errno;
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        match openat(CWD, folder(path), flags, Mode::from_raw_mode(0o644)) {
            Ok(file) => Ok(Staged::Nameless(File::from(file))),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Staged::named(path),
            Err(error) => Err(error.into()),
        }
    }

    fn named(path: &Path) -> io::Result<Staged> {
        let staged = staging_path(path);
        let file = File::options().write(true).create_new(true).open(&staged)?;
        Ok(Staged::Named(file, staged))
    }

    /// Gives the file its name, in the place of an older file of that name.
    fn publish(&self, path: &Path) -> io::Result<()> {
        use rustix::fs::{AtFlags, CWD, linkat};
        use rustix::io::Errno;
        let file = match self {
            Staged::Nameless(file) => file,
            Staged::Named(_, staged) => return std::fs::rename(staged, path),
        };
        let source = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
        let link = |to: &Path| linkat(CWD, source.as_str(), CWD, to, AtFlags::SYMLINK_FOLLOW);
        match link(path) {
            // a link replaces nothing, a rename does
            Err(Errno::EXIST) => {
                let staged = staging_path(path);
                link(&staged)?;
                std::fs::rename(&staged, path).inspect_err(|_| drop(std::fs::remove_file(&staged)))
            }
            linked => Ok(linked?),
        }
    }

    fn discard(&self) {
        if let Staged::Named(_, staged) = self {
            // what it holds is of no use; that it stays is worth no second error
            let _ = std::fs::remove_file(staged);
        }
    }
}

fn staging_path(path: &Path) -> PathBuf {
    let random = hex::encode(tensorwire_fabric::handshake::random_bytes::<8>());
    folder(path).join(format!(".tensorwire-{random}"))
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_file_system_without_nameless_files_is_served_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w");
        for content in [b"first", b"other"] {
            let mut staged = Staged::named(&path).unwrap();
            let (Staged::Nameless(file) | Staged::Named(file, _)) = &mut staged;
            file.write_all(content).unwrap();
            staged.publish(&path).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), content);
        }
        Staged::named(&path).unwrap().discard();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_that_is_not_there_is_known_before_a_job() {
        let folder = tempfile::tempdir().unwrap();
        assert!(check_writable(&folder.path().join("w.safetensors")).is_ok());
        assert!(check_writable(&folder.path().join("none/w.safetensors")).is_err());
        assert!(check_writable(folder.path()).is_err());
        assert!(check_writable(&folder.path().join("w.safetensors/")).is_err());
        assert!(check_writable(Path::new("/dev/null")).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "asking leaves nothing");
    }

    #[test]
    fn a_file_that_failed_half_way_leaves_the_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        write(&path, |file| file.write_all(b"whole")).unwrap();
        let torn = write(&path, |file| {
            file.write_all(b"to")?;
            Err(io::Error::other("no space"))
        });
        assert!(torn.is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
