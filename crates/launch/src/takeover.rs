//! A job whose launcher died, and that another takes over: what the first one wrote down for it, in a file of this user's alone, and
//! the processes that wait.

use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tensorwire_base::Deadline;

use crate::assignment::{Assignment, JobIdentity};
use crate::job::Resize;

/// Of what launchers and members say to each other, and of what a launcher does on their behalf: one that takes a job over must
/// understand its members as the first one did. To be raised with each change of either.
pub(crate) const PROTOCOL: u32 = 2;

/// What the names of records end with.
const EXTENSION: &str = "job";

/// That a job outlives its launcher for some time, so that another can take it over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Takeover {
    /// Where the launcher writes down what another needs: [`Takeover::record_of`].
    pub record: PathBuf,
    /// How long members wait for another.
    pub patience: Duration,
}

impl Takeover {
    /// Returns where, in a folder that is this user's alone, the record is of the job that keeps its state at `state`: there is
    /// one such job on a host at a time.
    pub fn record_of(folder: &Path, state: &Path) -> PathBuf {
        let state = std::path::absolute(state).unwrap_or_else(|_| state.to_path_buf());
        let name = Sha256::digest(settled(&state).as_os_str().as_encoded_bytes());
        folder.join(hex::encode(&name[..16])).with_extension(EXTENSION)
    }
}

/// The same place without links, as far as it is there yet.
fn settled(path: &Path) -> PathBuf {
    match (std::fs::canonicalize(path), path.parent(), path.file_name()) {
        (Ok(settled), ..) => settled,
        (Err(_), Some(parent), Some(name)) => settled(parent).join(name),
        (Err(_), ..) => path.to_path_buf(),
    }
}

/// Why what an earlier launcher left cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    #[error(
        "the job that keeps its state here runs already: its launcher is process {pid} (tensorwire status {pid})"
    )]
    Runs { pid: u32 },
    #[error(
        "{}: {source}; if no such job runs, remove the file",
        .path.display()
    )]
    Record { path: PathBuf, source: std::io::Error },
}

/// What a launcher writes down. Holds the job's secret, and is never printed.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct JobRecord {
    pub(crate) launcher: ProcessName,
    /// What the job is, in a few words.
    pub(crate) title: String,
    /// Where it listens.
    pub(crate) listen: SocketAddr,
    /// That of the first member, which has all that they have in common.
    pub(crate) assignment: Assignment,
    /// By rank.
    pub(crate) members: Vec<MemberRecord>,
    /// How it is to go on, if that was asked for and it is not yet launched so.
    #[serde(default)]
    pub(crate) resize: Option<Resize>,
    /// [`PROTOCOL`] of who wrote this; earlier ones wrote none.
    #[serde(default)]
    pub(crate) protocol: u32,
}

impl JobRecord {
    /// What an earlier launcher wrote: of a job that has an identity.
    fn read(bytes: &[u8]) -> std::io::Result<JobRecord> {
        let read: JobRecord = serde_json::from_slice(bytes)?;
        match read.assignment.identity() {
            Some(_) => Ok(read),
            None => Err(ErrorKind::InvalidData.into()),
        }
    }
}

/// What is in a record's file, as another launcher reads it. Looks for none of the processes that it names.
pub(crate) fn fuzz_record(bytes: &[u8]) {
    let Ok(record) = JobRecord::read(bytes) else { return };
    let written = serde_json::to_vec(&record).expect("what was read is written");
    let record = JobRecord::read(&written).expect("what was written is read");
    assert_eq!(serde_json::to_vec(&record).expect("as before"), written);
    let (path, secret) = (PathBuf::new(), record.assignment.identity());
    let left = Abandoned { path, record: Arc::new(record) };
    assert_eq!(left.identity().incarnations, secret.expect("it has one").incarnations);
}

/// A member, or what started it on another host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MemberRecord {
    pub(crate) process: ProcessName,
    pub(crate) role: String,
    pub(crate) host: Option<String>,
}

/// A process of this host, told apart from a later one with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessName {
    pub(crate) pid: u32,
    /// When it began, in ticks of the system.
    pub(crate) started: u64,
}

/// A process that this one did not start.
#[derive(Debug)]
pub(crate) struct OtherProcess {
    pub(crate) pid: u32,
    /// None: it has ended.
    life: Option<OwnedFd>,
}

impl ProcessName {
    /// None if there is no such process.
    pub(crate) fn of(pid: u32) -> Option<ProcessName> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // the name in brackets may have anything in it
        let (_, fields) = stat.rsplit_once(')')?;
        let started = fields.split_whitespace().nth(19)?.parse().ok()?;
        Some(ProcessName { pid, started })
    }

    /// The process, if it still is that one.
    pub(crate) fn find(self) -> OtherProcess {
        let raw = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let life = raw.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // asked after it is held: from here on the id is not another's
        let life = life.filter(|_| ProcessName::of(self.pid) == Some(self));
        let mut found = OtherProcess { pid: self.pid, life };
        found.has_ended();
        found
    }
}

impl OtherProcess {
    pub(crate) fn has_ended(&mut self) -> bool {
        let Some(life) = &self.life else { return true };
        let mut ready = [rustix::event::PollFd::new(life, rustix::event::PollFlags::IN)];
        let no_time = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let ended = matches!(rustix::event::poll(&mut ready, Some(&no_time)), Ok(1));
        if ended {
            self.life = None;
        }
        ended
    }

    pub(crate) fn kill(&self) {
        // fails if it has just ended by itself
        let _ = self.life.as_ref().map(|life| pidfd_send_signal(life, Signal::KILL));
    }

    /// Waits for one that was killed; false if it had not ended at the deadline.
    pub(crate) fn await_end(&mut self, deadline: Deadline) -> bool {
        while !self.has_ended() {
            if deadline.passed() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }
}

/// The file of a job that runs; it goes with the launcher, unless that is killed.
#[derive(Debug)]
pub(crate) struct RecordFile {
    path: PathBuf,
    is_written: bool,
}

impl RecordFile {
    pub(crate) fn new(path: PathBuf) -> RecordFile {
        RecordFile { path, is_written: false }
    }

    /// Writes the record, in place of an earlier one.
    ///
    /// # Errors
    /// When the folder cannot be made or written.
    pub(crate) fn write(&mut self, record: &JobRecord) -> std::io::Result<()> {
        let path = &self.path;
        if let Some(folder) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let new = path.with_extension(format!("{}.new", std::process::id()));
        let written = write_private(&new, &serde_json::to_vec(record)?)
            .and_then(|()| std::fs::rename(&new, path));
        if written.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        self.is_written |= written.is_ok();
        written
    }
}

impl Drop for RecordFile {
    fn drop(&mut self) {
        if self.is_written {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// True if of what was written only a part is there, or none.
fn is_cut(bytes: &[u8]) -> bool {
    // what the disk had not taken may be zeros
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let read = serde_json::from_slice::<serde_json::Value>(&bytes[..end]);
    read.is_err_and(|error| error.is_eof())
}

fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    // not for the disk: what ends the system ends the members, too
    file.write_all(bytes)
}

/// A job whose launcher died, and whose members may wait for another.
#[derive(Clone)]
pub struct Abandoned {
    path: PathBuf,
    pub(crate) record: Arc<JobRecord>,
}

impl std::fmt::Debug for Abandoned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Abandoned")
            .field("path", &self.path)
            .field("members", &self.record.members)
            .finish_non_exhaustive()
    }
}

impl Abandoned {
    /// Returns the job that a launcher left behind which wrote `record`; none if there is none.
    ///
    /// # Errors
    /// When its launcher lives, or the record cannot be read.
    pub fn find(record: &Path) -> Result<Option<Abandoned>, TakeoverError> {
        let failed = |source| TakeoverError::Record { path: record.to_path_buf(), source };
        let bytes = match std::fs::read(record) {
            Ok(bytes) => bytes,
            // what this user may not read, no job of this user's has left
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(failed(error)),
        };
        let read = match JobRecord::read(&bytes) {
            Ok(read) => read,
            // as after a power failure, which leaves no processes either
            Err(error) if is_cut(&bytes) => {
                let path = record.display();
                tracing::warn!("{path}: {error}: it names no job that could be taken over");
                return Ok(None);
            }
            Err(error) => return Err(failed(error)),
        };
        if !read.launcher.find().has_ended() {
            return Err(TakeoverError::Runs { pid: read.launcher.pid });
        }
        Ok(Some(Abandoned { path: record.to_path_buf(), record: Arc::new(read) }))
    }

    /// True if all members, or what started them on other hosts, live.
    pub fn is_whole(&self) -> bool {
        let JobRecord { assignment, members, .. } = &*self.record;
        let is_there = |member: &MemberRecord| !member.process.find().has_ended();
        members.len() == assignment.world() && members.iter().all(is_there)
    }

    /// Returns the jobs that wait for another launcher, of those with their records in `folder`. Records of jobs that are over are
    /// removed.
    pub fn all(folder: &Path) -> Vec<Abandoned> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let records = entries.map(|entry| entry.path());
        let records = records.filter(|path| path.extension().is_some_and(|e| e == EXTENSION));
        let found = records.filter_map(|record| Abandoned::find(&record).ok().flatten());
        let mut all = Vec::new();
        for left in found {
            match left.waiting().is_empty() {
                true => left.end(),
                false => all.push(left),
            }
        }
        all
    }

    /// What the job is, in a few words.
    pub fn title(&self) -> &str {
        &self.record.title
    }

    /// How it is to go on, if its launcher was asked for that and came no further.
    pub fn asked(&self) -> Option<&Resize> {
        self.record.resize.as_ref()
    }

    /// The launcher that died.
    pub fn launcher_pid(&self) -> u32 {
        self.record.launcher.pid
    }

    /// Those of its processes that are left.
    pub fn waiting(&self) -> Vec<u32> {
        let members = self.record.members.iter();
        let left = members.filter(|member| !member.process.find().has_ended());
        left.map(|member| member.process.pid).collect()
    }

    /// What the members were told of the job, in its own form; none if it has another, or they speak otherwise than this launcher.
    pub fn payload<T: DeserializeOwned>(&self) -> Option<T> {
        if self.record.protocol != PROTOCOL {
            return None;
        }
        serde_json::from_value(self.record.assignment.payload.clone()).ok()
    }

    /// What all its members have in common.
    pub(crate) fn identity(&self) -> JobIdentity {
        // one without is not found
        let none = || JobIdentity::random(self.record.members.len());
        self.record.assignment.identity().unwrap_or_else(none)
    }

    /// Where its members call their launcher.
    pub(crate) fn listen(&self) -> SocketAddr {
        self.record.listen
    }

    /// Its members, by rank: what each is, and its host where that is another.
    pub(crate) fn members(&self) -> impl Iterator<Item = (OtherProcess, String, Option<String>)> {
        let member = |MemberRecord { process, role, host }: &MemberRecord| {
            (process.find(), role.clone(), host.clone())
        };
        self.record.members.iter().map(member)
    }

    /// Ends the members that are left, and removes the record.
    pub fn end(self) {
        let now = || {
            let bytes = std::fs::read(&self.path).ok()?;
            JobRecord::read(&bytes).ok().map(|now| now.launcher == self.record.launcher)
        };
        if now() == Some(false) {
            // another launcher has taken them over meanwhile
            return;
        }
        let members = self.record.members.iter();
        let mut left: Vec<OtherProcess> = members.map(|member| member.process.find()).collect();
        left.iter().for_each(OtherProcess::kill);
        let deadline = Deadline::after(crate::start::REAP_PATIENCE);
        for process in &mut left {
            if !process.await_end(deadline) {
                tracing::warn!("process {} was killed and has not ended", process.pid);
            }
        }
        // another launcher may have written its own since
        let is_same = now() == Some(true);
        drop(RecordFile { path: self.path, is_written: is_same });
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;
    use crate::assignment::JobIdentity;
    use crate::job::JobSpec;

    fn record(launcher: u32, member: u32) -> JobRecord {
        let listen = SocketAddr::from(([127, 0, 0, 1], 9));
        let spec = JobSpec::new("", "", vec![String::new()]);
        let rank = tensorwire_base::Rank(0);
        JobRecord {
            launcher: ProcessName::of(launcher).unwrap(),
            title: "a test".into(),
            listen,
            assignment: JobIdentity::random(1).assignment(rank, rank, listen, &spec),
            members: vec![MemberRecord {
                process: ProcessName::of(member).unwrap(),
                role: "worker 0".into(),
                host: None,
            }],
            resize: None,
            protocol: PROTOCOL,
        }
    }

    #[test]
    fn a_job_is_abandoned_once_its_launcher_has_ended_and_its_members_can_be_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = Takeover::record_of(&folder.path().join("jobs"), folder.path());
        assert!(Abandoned::find(&path).unwrap().is_none());
        let sleep = || Command::new("sleep").arg("60").spawn().unwrap();
        let (mut launcher, mut member) = (sleep(), sleep());
        let mut file = RecordFile::new(path.clone());
        file.write(&record(launcher.id(), member.id())).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let runs = Abandoned::find(&path).unwrap_err();
        assert!(matches!(runs, TakeoverError::Runs { pid } if pid == launcher.id()), "{runs}");
        // killed and not waited for: what is left has its id still
        launcher.kill().unwrap();
        let deadline = Deadline::after(Duration::from_secs(20));
        let left = loop {
            match Abandoned::find(&path) {
                Ok(left) => break left.unwrap(),
                Err(error) => assert!(!deadline.passed(), "{error}"),
            }
        };
        assert!(left.is_whole());
        let all = Abandoned::all(path.parent().unwrap());
        assert_eq!((all.len(), all[0].title(), all[0].waiting().len()), (1, "a test", 1));
        assert!(!format!("{left:?}").contains("secret"));
        left.clone().end();
        assert!(!left.is_whole() && !path.exists());
        launcher.wait().unwrap();
        assert!(!member.wait().unwrap().success());
        drop(file);
    }

    #[test]
    fn members_of_a_launcher_that_spoke_otherwise_are_told_nothing_that_is_understood() {
        let me = std::process::id();
        let left = |record: JobRecord| {
            let written = serde_json::to_vec(&record).unwrap();
            let record = Arc::new(JobRecord::read(&written).unwrap());
            Abandoned { path: PathBuf::new(), record }
        };
        let same = record(me, me);
        assert!(left(same.clone()).payload::<serde_json::Value>().is_some());
        let other = left(JobRecord { protocol: PROTOCOL + 1, ..same });
        assert!(other.payload::<serde_json::Value>().is_none());
        assert_eq!(other.waiting().len(), 1, "they can be ended");
    }

    #[test]
    fn a_later_process_of_the_same_id_is_another() {
        let me = ProcessName::of(std::process::id()).unwrap();
        assert!(!me.find().has_ended());
        assert!(ProcessName { started: me.started + 1, ..me }.find().has_ended());
        assert!(ProcessName { pid: 4_194_305, started: 1 }.find().has_ended());
    }

    #[test]
    fn a_record_has_the_same_name_once_its_job_has_written() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(folder.path(), folder.path().join("link")).unwrap();
        let state = folder.path().join("link/runs/a");
        let before = Takeover::record_of(folder.path(), &state);
        std::fs::create_dir_all(&state).unwrap();
        assert_eq!(Takeover::record_of(folder.path(), &state), before);
        assert_eq!(Takeover::record_of(folder.path(), &folder.path().join("runs/a")), before);
        assert_ne!(Takeover::record_of(folder.path(), &folder.path().join("runs")), before);
    }

    /// As power that fails leaves it: nothing in it, or a part.
    #[test]
    fn a_record_that_is_cut_names_no_job() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.job");
        let me = std::process::id();
        let whole = serde_json::to_vec(&record(me, me)).unwrap();
        for bytes in [&[][..], b"{", &whole[..whole.len() / 2]] {
            std::fs::write(&path, bytes).unwrap();
            assert!(Abandoned::find(&path).unwrap().is_none());
        }
        std::fs::write(&path, [0; 300]).unwrap();
        assert!(Abandoned::find(&path).unwrap().is_none());
        // what another version wrote may have members that wait
        for other in ["{}", "nonsense"] {
            std::fs::write(&path, other).unwrap();
            let error = Abandoned::find(&path).unwrap_err().to_string();
            assert!(error.contains("remove the file"), "{error}");
        }
    }

    #[test]
    fn a_record_that_another_launcher_has_written_since_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.job");
        let mut first = Command::new("true").spawn().unwrap();
        let me = std::process::id();
        let old = JobRecord { members: Vec::new(), ..record(me, me) };
        let old = JobRecord { launcher: ProcessName { pid: first.id(), started: 1 }, ..old };
        first.wait().unwrap();
        std::fs::write(&path, serde_json::to_vec(&old).unwrap()).unwrap();
        let left = Abandoned::find(&path).unwrap().unwrap();
        std::fs::write(&path, serde_json::to_vec(&record(me, me)).unwrap()).unwrap();
        left.clone().end();
        assert!(path.exists());
        std::fs::write(&path, serde_json::to_vec(&old).unwrap()).unwrap();
        left.end();
        assert!(!path.exists());
    }
}
