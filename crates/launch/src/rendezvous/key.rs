//! What makes the processes of one job meet, and no others: a name that their launcher gives the job, and a key that
//! nobody can derive. The key is a random one in a file that only the user reads, or it is made from a text that all
//! processes were given.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use argon2::Argon2;
use rustix::fs::{Mode, OFlags};
use sha2::{Digest, Sha256};
use tensorwire_base::JobId;
use tensorwire_fabric::handshake::random_bytes;
use tensorwire_fabric::{JobCredentials, Secret};

/// Below the ports that systems give to whoever asks for any, above those of well-known services.
const PORTS: std::ops::Range<u16> = 20_000..30_000;
/// A key that is older was left by a launcher that was killed before its job began.
const LEFT_BEHIND_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Where the key is that the processes of a job share before the job has a secret of its own.
#[derive(Clone, PartialEq, Eq)]
pub enum KeySource {
    /// All were given this text. It is stretched by Argon2id (RFC 9106), so that trying out words takes long.
    Text(String),
    /// The launcher writes a random key into a file of this folder, which only the user's processes can read. All hosts
    /// of the job see the folder.
    Folder(PathBuf),
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum JobKeyError {
    #[error(
        "the job's key at {}: {source}; set TENSORWIRE_SECRET to the same random text for all processes, or HOME to a folder of yours",
        .path.display()
    )]
    Io { path: PathBuf, source: std::io::Error },
    #[error(
        "{} is not this user's alone (owner {owner}, mode {mode:o}), so others could know the job's key; remove it, or set TENSORWIRE_SECRET to the same random text for all processes",
        .path.display()
    )]
    NotOurs { path: PathBuf, owner: u32, mode: u32 },
    #[error("the text of TENSORWIRE_SECRET makes no key: {0}")]
    Text(argon2::Error),
}

/// A key that lies in a file as long as this lives.
#[derive(Debug)]
pub(super) struct KeyFile {
    path: PathBuf,
    secret: Secret,
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        // the next job of this name may have put its own there; one that is gone needs no removing
        if matches!(read(&self.path), Ok(Some(found)) if found == self.secret) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The number of the job that its launcher calls so.
pub(super) fn job_id(name: &str) -> JobId {
    let id = digest(&[b"tensorwire job", name.as_bytes()]);
    JobId(u64::from_le_bytes(std::array::from_fn(|i| id[i])))
}

/// What the launcher of the job `name` proves and asks for, and what keeps the key where the others find it.
pub(super) fn made(
    name: &str,
    source: &KeySource,
) -> Result<(JobCredentials, Option<KeyFile>), JobKeyError> {
    let job_id = job_id(name);
    let (secret, file) = match source {
        KeySource::Text(text) => (stretched(text, job_id)?, None),
        KeySource::Folder(folder) => {
            let (secret, file) = written(folder, job_id)?;
            (secret, Some(file))
        }
    };
    Ok((JobCredentials { job_id, secret }, file))
}

/// What another process of that job proves; none while there is no key.
pub(super) fn found(name: &str, source: &KeySource) -> Result<Option<JobCredentials>, JobKeyError> {
    let job_id = job_id(name);
    let secret = match source {
        KeySource::Text(text) => Some(stretched(text, job_id)?),
        KeySource::Folder(folder) => {
            let path = path(folder, job_id);
            match std::fs::symlink_metadata(folder) {
                Err(error) if error.kind() == ErrorKind::NotFound => look_anew(folder.parent()),
                Err(source) => return Err(JobKeyError::Io { path, source }),
                Ok(_) => {
                    check_folder(folder)?;
                    read(&path)?.or_else(|| look_anew(Some(folder)))
                }
            }
        }
    };
    Ok(secret.map(|secret| JobCredentials { job_id, secret }))
}

/// Nothing was found in a folder. Over NFS that is remembered for up to a minute, but for a folder that was read meanwhile.
fn look_anew<T>(folder: Option<&Path>) -> Option<T> {
    // what cannot be read is looked into again as it is
    folder.into_iter().for_each(|folder| drop(std::fs::read_dir(folder).map(Iterator::count)));
    None
}

/// What to do where there is no key, or another one.
pub(super) fn lacking(name: &str, source: &KeySource) -> String {
    let mend = "set TENSORWIRE_SECRET to the same random text for all processes";
    match source {
        KeySource::Text(_) => mend.to_string(),
        KeySource::Folder(folder) => {
            let path = path(folder, job_id(name));
            format!(
                "no key of this job at {}; {mend}, if they do not share that folder",
                path.display()
            )
        }
    }
}

/// Where the processes of a job meet, if nothing else says.
pub(super) fn port(name: &str) -> u16 {
    let bytes = digest(&[b"tensorwire port", name.as_bytes()]);
    PORTS.start + u16::from_le_bytes([bytes[0], bytes[1]]) % (PORTS.end - PORTS.start)
}

pub(super) fn path(folder: &Path, job_id: JobId) -> PathBuf {
    folder.join(format!("{:016x}", job_id.0))
}

fn stretched(text: &str, job_id: JobId) -> Result<Secret, JobKeyError> {
    let mut secret = [0; 32];
    let salt = [b"tensorwire", &job_id.0.to_le_bytes()[..]].concat();
    let made = Argon2::default().hash_password_into(text.as_bytes(), &salt, &mut secret);
    made.map_err(JobKeyError::Text)?;
    Ok(Secret(secret))
}

/// Puts a new key into the place of whatever is left of an earlier job of that name.
fn written(folder: &Path, job_id: JobId) -> Result<(Secret, KeyFile), JobKeyError> {
    let path = path(folder, job_id);
    let failed = |source| JobKeyError::Io { path: path.clone(), source };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    check_folder(folder)?;
    remove_left_behind(folder);
    let secret: [u8; 32] = random_bytes();
    // under its name it is whole
    let new = path.with_extension(hex::encode(random_bytes::<8>()));
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&new);
    let written = file.and_then(|mut file| file.write_all(&secret));
    let named = written.and_then(|()| std::fs::rename(&new, &path));
    named.inspect_err(|_| drop(std::fs::remove_file(&new))).map_err(failed)?;
    let secret = Secret(secret);
    Ok((secret.clone(), KeyFile { path, secret }))
}

fn read(path: &Path) -> Result<Option<Secret>, JobKeyError> {
    let failed = |source| JobKeyError::Io { path: path.to_path_buf(), source };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty()).map_err(std::io::Error::from);
    let mut file = match opened {
        Ok(file) => std::fs::File::from(file),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let found = file.metadata().map_err(failed)?;
    let mut secret = [0; 32];
    if !found.is_file() || found.len() != secret.len() as u64 {
        return Err(failed(std::io::Error::other("it is no file of a key")));
    }
    check_ours(path, &found, 0o077)?;
    file.read_exact(&mut secret).map_err(failed)?;
    Ok(Some(Secret(secret)))
}

/// Whoever else could write in the folder of the keys, or put another one in its place, could choose the key.
fn check_folder(folder: &Path) -> Result<(), JobKeyError> {
    let failed = |source| JobKeyError::Io { path: folder.to_path_buf(), source };
    let found = std::fs::symlink_metadata(folder).map_err(failed)?;
    if !found.is_dir() {
        return Err(failed(ErrorKind::NotADirectory.into()));
    }
    check_ours(folder, &found, 0o022)?;
    let Some(parent) = folder.parent() else { return Ok(()) };
    check_ours(parent, &std::fs::metadata(parent).map_err(failed)?, 0o022)
}

/// Refuses what is not this user's, or allows others what they may not do.
fn check_ours(path: &Path, found: &std::fs::Metadata, others: u32) -> Result<(), JobKeyError> {
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    if owner == rustix::process::geteuid().as_raw() && mode & others == 0 {
        return Ok(());
    }
    Err(JobKeyError::NotOurs { path: path.to_path_buf(), owner, mode })
}

fn remove_left_behind(folder: &Path) {
    let is_old = |entry: &std::fs::DirEntry| {
        let modified = entry.metadata().and_then(|found| found.modified());
        let age = modified.map(|at| SystemTime::now().duration_since(at).unwrap_or_default());
        age.is_ok_and(|age| age >= LEFT_BEHIND_AFTER)
    };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten().filter(is_old) {
        // what cannot be removed stays
        let _ = std::fs::remove_file(entry.path());
    }
}

fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        // lengths keep two lists of parts from being one text
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

impl std::fmt::Debug for KeySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            KeySource::Text(_) => f.write_str("Text(..)"),
            KeySource::Folder(folder) => write!(f, "Folder({})", folder.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let made = tempfile::tempdir().unwrap();
        let keys = made.path().join("tensorwire").join("keys");
        (made, keys)
    }

    #[test]
    fn a_text_makes_a_key_of_each_job() {
        let key = |name: &str, text: &str| {
            found(name, &KeySource::Text(text.to_string())).unwrap().unwrap()
        };
        let one = key("srun 7.0", "s");
        assert_eq!(one, key("srun 7.0", "s"));
        assert_eq!(made("srun 7.0", &KeySource::Text("s".to_string())).unwrap().0, one);
        let other = key("srun 7.1", "s");
        assert_ne!((one.job_id, &one.secret), (other.job_id, &other.secret));
        let wrong = key("srun 7.0", "t");
        assert_eq!(one.job_id, wrong.job_id, "a wrong secret is told from another job");
        assert_ne!(one.secret, wrong.secret);
        assert!(PORTS.contains(&port("srun 7.0")));
    }

    #[test]
    fn a_file_has_a_new_key_for_each_job_and_goes_with_its_launcher() {
        let (_made, keys) = folder();
        let source = KeySource::Folder(keys.clone());
        assert_eq!(found("job", &source).unwrap(), None);
        let (first, file) = made("job", &source).unwrap();
        assert_eq!(found("job", &source).unwrap().as_ref(), Some(&first));
        assert_eq!(found("another", &source).unwrap(), None);
        // the next job of this name begins while the launcher of this one is about to end
        let (second, next) = made("job", &source).unwrap();
        assert_ne!(first.secret, second.secret);
        drop(file);
        assert_eq!(found("job", &source).unwrap(), Some(second));
        let file = next;
        drop(file);
        assert_eq!(found("job", &source).unwrap(), None);
        assert_eq!(std::fs::read_dir(keys).unwrap().count(), 0);
    }

    /// A client of NFS forgets that a file was missing when it reads the folder.
    #[test]
    fn a_folder_without_the_key_is_read_before_the_next_look() {
        let (_made, keys) = folder();
        let source = KeySource::Folder(keys.clone());
        let _kept = made("another", &source).unwrap();
        let old = rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 };
        let is_read = |folder: &Path, read: &dyn Fn()| {
            let times = rustix::fs::Timestamps { last_access: old, last_modification: old };
            rustix::fs::utimensat(rustix::fs::CWD, folder, &times, rustix::fs::AtFlags::empty())
                .unwrap();
            read();
            std::fs::metadata(folder).unwrap().atime() > 1
        };
        // without the times of access (noatime) nothing is seen of it
        let is_seen = is_read(&keys, &|| drop(std::fs::read_dir(&keys).map(Iterator::count)));
        assert_eq!(is_read(&keys, &|| assert_eq!(found("job", &source).unwrap(), None)), is_seen);
        let none_yet = keys.join("none").join("yet");
        let source = KeySource::Folder(none_yet);
        std::fs::create_dir(keys.join("none")).unwrap();
        let above = keys.join("none");
        assert_eq!(is_read(&above, &|| assert_eq!(found("job", &source).unwrap(), None)), is_seen);
    }

    #[test]
    fn what_others_could_read_or_write_is_no_key() {
        let (_made, keys) = folder();
        let source = KeySource::Folder(keys.clone());
        let (_, _kept) = made("job", &source).unwrap();
        let file = path(&keys, job_id("job"));
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        let allow = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        allow(&file, 0o640);
        assert!(matches!(found("job", &source), Err(JobKeyError::NotOurs { mode: 0o640, .. })));
        allow(&file, 0o600);
        let private = keys.parent().unwrap().join("private");
        std::fs::write(&private, [7; 32]).unwrap();
        allow(&private, 0o600);
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(&private, &file).unwrap();
        assert!(matches!(found("job", &source), Err(JobKeyError::Io { .. })), "a link");
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, [7; 33]).unwrap();
        allow(&file, 0o600);
        assert!(matches!(found("job", &source), Err(JobKeyError::Io { .. })), "a longer file");
        std::fs::remove_file(&file).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        assert!(matches!(found("job", &source), Err(JobKeyError::Io { .. })), "a pipe");
        allow(keys.parent().unwrap(), 0o777);
        assert!(matches!(found("job", &source), Err(JobKeyError::NotOurs { mode: 0o777, .. })));
        allow(keys.parent().unwrap(), 0o700);
        allow(&keys, 0o777);
        assert!(matches!(made("job", &source), Err(JobKeyError::NotOurs { mode: 0o777, .. })));
        allow(&keys, 0o700);
    }

    #[test]
    fn a_text_is_never_printed() {
        assert!(!format!("{:?}", KeySource::Text("word".to_string())).contains("word"));
    }
}
