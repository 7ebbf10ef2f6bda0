//! Files that appear whole under their name or not at all, and stay. Knows nothing of what is in them.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Names of this process's standard output.
const STDOUT: [&str; 3] = ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];
/// What files on their way to their name are called, where they are called anything.
const STAGING_PREFIX: &str = ".tensorwire-";
/// Of the identifier of a boot, so many are in such a name.
const HOST_LETTERS: usize = 8;
/// Longest that a file is there before its writer has its lock. One of this host that has bytes had its lock before; of another
/// host's file nobody may know that here.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);

/// Tries all that [`write()`] does, with a file of no bytes and another name beside `path`.
///
/// # Errors
/// The first that was refused. Then a `write` of `path` would fail, too.
pub fn check_writable(path: &Path) -> io::Result<()> {
    let wrong = |kind, what: &str| Err(io::Error::new(kind, what));
    if path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return wrong(io::ErrorKind::IsADirectory, "it names a folder");
    }
    // a rename would put a file in the place of a device, a pipe or a link
    if std::fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        return wrong(io::ErrorKind::InvalidInput, "it is there and is no regular file");
    }
    let probe = staging_path(path);
    write(&probe, |_| Ok(()))?;
    std::fs::remove_file(probe)
}

/// Has `content` write to the file that will be `path`, and returns once the system keeps it under that name. What a
/// process leaves behind that is killed on the way, the next write into the folder removes.
///
/// # Errors
/// The first of making it, `content` and naming it; an older file of the name then stays. Last, of having the folder kept:
/// the new file is there then, and a crash of the host may bring back the older.
pub fn write(path: &Path, content: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    remove_abandoned(folder(path));
    let mut staged = Staged::make(path)?;
    let (Staged::Nameless(file) | Staged::Named(file, _)) = &mut staged;
    let written = content(file).and_then(|()| file.sync_all());
    written.and_then(|()| staged.publish(path)).inspect_err(|_| staged.discard())?;
    sync_folder(folder(path))
}

/// [`check_writable`] for what [`write_where`] writes.
///
/// # Errors
/// The first that was refused.
pub fn check_writable_where(path: &Path) -> io::Result<()> {
    match Place::of(path)? {
        Place::Stdout | Place::Stream => may_write(path),
        Place::Name(path) => check_writable(&path),
    }
}

/// Tries whether lines can be added to what is at `path`, or to a new file of that name.
///
/// # Errors
/// The first that was refused.
pub fn check_appendable(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => File::options().append(true).open(path).map(drop),
        Ok(found) if !found.is_dir() => may_write(path),
        _ => check_writable(path),
    }
}

/// Opens nothing: who reads a pipe would take the end of that for the end of all.
fn may_write(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::access(path, rustix::fs::Access::WRITE_OK)?)
}

/// As [`write()`], and also where `path` is a link to a file that is there, which stays a link, or a pipe or a device, such as
/// /dev/stdout, which takes the bytes as they come. True if they went to this process's standard output.
///
/// # Errors
/// The first of opening and writing, as of [`write()`].
pub fn write_where(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let place = Place::of(path)?;
    match &place {
        Place::Stdout => {
            // not by another descriptor, whose place in a file would be another
            let mut stdout = io::stdout().lock();
            stdout.write_all(bytes).and_then(|()| stdout.flush())
        }
        Place::Stream => File::options().append(true).open(path)?.write_all(bytes),
        Place::Name(path) => write(path, |file| file.write_all(bytes)),
    }?;
    Ok(matches!(place, Place::Stdout))
}

/// What a path names.
enum Place {
    /// By a name of its descriptor.
    Stdout,
    /// What cannot be replaced: a pipe, a device, a file that this process has open.
    Stream,
    /// A file, or nothing yet; links are followed.
    Name(PathBuf),
}

impl Place {
    fn of(path: &Path) -> io::Result<Place> {
        // a file that this process has open, by the name of its descriptor, as /dev/stdout is one
        let is_own = [std::fs::canonicalize(folder(path)), std::fs::read_link(path)]
            .iter()
            .any(|found| found.as_ref().is_ok_and(|found| found.starts_with("/proc")));
        let is_stdout = [std::fs::read_link(path).unwrap_or_default().as_path(), path]
            .iter()
            .any(|name| STDOUT.iter().any(|known| *name == Path::new(known)));
        match std::fs::metadata(path) {
            Ok(_) if is_stdout => Ok(Place::Stdout),
            Ok(found) if is_own || !(found.is_file() || found.is_dir()) => Ok(Place::Stream),
            Ok(_) => std::fs::canonicalize(path).map(Place::Name),
            Err(_) => Ok(Place::Name(path.to_path_buf())),
        }
    }
}

/// Makes a folder, and those that it is in, and returns once the system keeps their names.
///
/// # Errors
/// The first of making one, and having it kept.
pub(crate) fn make_folders(path: &Path) -> io::Result<()> {
    let is_there = |path: &&Path| path.as_os_str().is_empty() || path.is_dir();
    let missing: Vec<&Path> = path.ancestors().take_while(|path| !is_there(path)).collect();
    std::fs::create_dir_all(path)?;
    missing.into_iter().rev().try_for_each(|made| sync_folder(folder(made)))
}

/// Has the system keep the names in a folder, where its file system can.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

/// Removes files on their way to a name whose writers are gone: whoever writes one holds its lock.
pub(crate) fn remove_abandoned(folder: &Path) {
    let is_abandoned = |path: &Path| -> io::Result<bool> {
        // whoever else may write in this folder may have put anything there
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        let found = file.metadata()?;
        let age = found.modified()?.elapsed().unwrap_or_default();
        let had_a_lock = is_of_here(path) && found.len() > 0 || age > ABANDONED_AFTER;
        Ok(found.is_file() && had_a_lock && lock(&file).is_ok())
    };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_staged = entry.file_name().as_encoded_bytes().starts_with(STAGING_PREFIX.as_bytes());
        if is_staged && is_abandoned(&entry.path()).unwrap_or(false) {
            // what it holds is of no use; that it stays is worth no error
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Takes the lock of a file that is being written; it ends with the descriptor.
fn lock(file: &File) -> io::Result<()> {
    Ok(rustix::fs::flock(file, rustix::fs::FlockOperation::NonBlockingLockExclusive)?)
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
        use rustix::fs::{CWD, openat};
        use rustix::io::Errno;
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        match openat(CWD, folder(path), flags, Mode::from_raw_mode(0o644)) {
            Ok(file) => Ok(Staged::Nameless(locked(File::from(file)))),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Staged::named(path),
            Err(error) => Err(error.into()),
        }
    }

    fn named(path: &Path) -> io::Result<Staged> {
        let staged = staging_path(path);
        let file = File::options().write(true).create_new(true).open(&staged)?;
        Ok(Staged::Named(locked(file), staged))
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

/// The same file, with its lock where the file system has locks; where it has none, nobody removes what is left behind.
fn locked(file: File) -> File {
    let _ = lock(&file);
    file
}

pub(crate) fn staging_path(path: &Path) -> PathBuf {
    let random = hex::encode(tensorwire_fabric::handshake::random_bytes::<8>());
    let host = host().unwrap_or_default();
    folder(path).join(format!("{STAGING_PREFIX}{host}{random}"))
}

/// Tells this host, since it booted, from others that see the same folder; their locks may not be seen here.
fn host() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(format!("{}-", boot.get(..HOST_LETTERS)?))
}

/// True if a process of this host made this file on its way to a name.
fn is_of_here(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let rest = name.strip_prefix(STAGING_PREFIX.as_bytes());
    rest.zip(host()).is_some_and(|(rest, host)| rest.starts_with(host.as_bytes()))
}

pub(crate) fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// What the name of a folder ends with that another is to take the place of, where a file system cannot exchange the two at once.
pub(crate) const REPLACED: &str = ".replaced";

/// Each of two folders gets the other's name, at once where the file system can.
pub(crate) fn exchange(new: &Path, old: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            let replaced = replace(new, old)?;
            std::fs::rename(replaced, new)
        }
        done => Ok(done?),
    }
}

/// A folder gets another's name, which is kept by a third: one of the two is found whenever this ends in the middle. Returns where
/// the other is.
pub(crate) fn replace(new: &Path, old: &Path) -> io::Result<PathBuf> {
    let mut replaced = old.as_os_str().to_os_string();
    replaced.push(REPLACED);
    let replaced = PathBuf::from(replaced);
    match std::fs::remove_dir_all(&replaced) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => std::fs::rename(old, &replaced)?,
    }
    std::fs::rename(new, old)?;
    Ok(replaced)
}

#[cfg(test)]
#[path = "whole_file_tests.rs"]
mod tests;
