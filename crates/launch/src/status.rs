//! How a running job stands, for whoever of the same user asks, and what is asked of it: the launcher answers on a socket of the
//! file system that others cannot reach.

mod server;

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::job::{Resize, Scaled};
use crate::standing::Still;
pub use server::StatusServer;

/// Longest that an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of an answer.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Most bytes of a question, and most that ask at a time.
const QUESTION_BYTES_MAX: usize = 256 << 10;
const ASKING_MAX: usize = 64;
/// What the names of sockets end with.
const EXTENSION: &str = "sock";

/// The numbers of the jobs of this process that have a socket.
static NUMBERS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// A job that runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// The name to ask for: the launcher's process id, and a number if it runs others besides.
    pub job: String,
    pub launcher_pid: u32,
    /// What it is, in its own words.
    pub title: String,
    /// Where its processes run, as `--hosts` has it, and what starts them on other hosts.
    #[serde(default)]
    pub hosts: String,
    #[serde(default)]
    pub rsh: String,
    /// When it was launched for the first time, by this launcher: milliseconds since 1970. Another job of the same name has another.
    #[serde(default)]
    pub begun_ms: u64,
    /// Since then.
    pub seconds: f64,
    /// How often it was launched since: more than once where it was started again, or went on with other workers; and why it was
    /// lately.
    #[serde(default)]
    pub launches: u64,
    #[serde(default)]
    pub launched_again: Option<String>,
    /// What it does while it is not launched.
    #[serde(default)]
    pub meanwhile: Option<String>,
    /// How it is to go on behind its present step, if that is so.
    #[serde(default)]
    pub goes_on: Option<Resize>,
    /// The step that its furthest member is in, from 1; before that, the step behind which it begins.
    pub step: u64,
    /// Steps that it has.
    pub steps: Option<u64>,
    /// Since the first step that was seen.
    pub steps_per_second: Option<f64>,
    pub members: Vec<MemberStatus>,
}

/// A member of a job that runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    pub rank: u32,
    pub role: String,
    /// Its host, where that is not the launcher's; `pid` is then that of what started it there.
    pub host: Option<String>,
    pub pid: u32,
    pub phase: MemberPhase,
    /// The step that it is in, from 1; 0: before the first.
    pub step: u64,
    /// Where it stands, if it has not moved for a second.
    pub still: Option<Still>,
    /// Since it was last heard of, in seconds.
    pub silent_s: f64,
    /// What it showed last, in the job's own form.
    pub progress: Option<serde_json::Value>,
    /// How fast it was last, in the job's own form.
    #[serde(default)]
    pub figures: Option<serde_json::Value>,
}

/// How far a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberPhase {
    /// Nothing was heard of it yet.
    Starting,
    /// It meets the others.
    Meeting,
    Running,
    /// Its part is done.
    Done,
    /// It was lost, and the job goes on.
    Lost,
}

/// Why a job does not say how it stands.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    #[error(
        "no job '{job}' of this user runs on this host; `tensorwire status` lists those that do, as far as they have the same \
         XDG_RUNTIME_DIR"
    )]
    NoSuchJob { job: String },
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("job '{job}' does not answer: its launcher is stopped, or reads a checkpoint")]
    Silent { job: String },
    #[error("{0}")]
    Refused(String),
    #[error("job '{job}' answered what makes no sense: {source}; is it of the same version?")]
    Garbled { job: String, source: serde_json::Error },
}

/// What is asked of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Question {
    Status,
    /// Is to go on so.
    Scale(Resize),
    /// Is to end, behind its present step or at once.
    Stop {
        at_once: bool,
    },
}

impl Question {
    fn read(line: &[u8]) -> serde_json::Result<Question> {
        serde_json::from_slice(line)
    }
}

/// Where a launcher answers.
#[derive(Debug)]
pub(crate) struct StatusSocket {
    listener: UnixListener,
    path: PathBuf,
    pub(crate) job: String,
    asking: Vec<Asking>,
    _number: Number,
}

/// A job's number among those of its launcher: one that is launched again has the same.
#[derive(Debug)]
struct Number(u32);

impl Number {
    fn take() -> Number {
        let mut taken = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        // fits: a process runs few jobs at a time
        let free = (0..).find(|number| !taken.contains(number)).unwrap_or_default();
        taken.insert(free);
        Number(free)
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        NUMBERS.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// Somebody who has connected, and whose question has not come whole.
#[derive(Debug)]
struct Asking {
    stream: UnixStream,
    question: Vec<u8>,
    /// What it is told, once that is known, as far as it has not gone.
    answer: Option<Vec<u8>>,
    until: Instant,
}

impl StatusSocket {
    /// Opens one in a folder that is this user's alone.
    pub(crate) fn open(folder: &Path) -> std::io::Result<StatusSocket> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let pid = std::process::id();
        let number = Number::take();
        let job = match number.0 {
            0 => pid.to_string(),
            other => format!("{pid}-{other}"),
        };
        let path = folder.join(&job).with_extension(EXTENSION);
        if UnixStream::connect(&path).is_ok() {
            return Err(ErrorKind::AddrInUse.into());
        }
        // left behind by a process that had this id, and was killed
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        Ok(StatusSocket { listener, path, job, asking: Vec::new(), _number: number })
    }

    /// Hears those whose question has come, and keeps what each is to be told; never waits.
    pub(crate) fn hear(&mut self, answer: impl Fn(Question) -> serde_json::Value) {
        while self.asking.len() < ASKING_MAX
            && let Ok((stream, _)) = self.listener.accept()
        {
            if stream.set_nonblocking(true).is_ok() {
                let until = Instant::now() + PATIENCE;
                self.asking.push(Asking { stream, question: Vec::new(), answer: None, until });
            }
        }
        self.asking
            .retain_mut(|asking| asking.find(&answer).is_ok() && Instant::now() < asking.until);
    }

    /// Tells them that, as far as they take it.
    pub(crate) fn tell(&mut self) {
        self.asking.retain_mut(|asking| asking.tell().unwrap_or(false));
    }
}

impl Asking {
    /// Finds the answer, once the question has come.
    fn find(&mut self, answer: impl Fn(Question) -> serde_json::Value) -> std::io::Result<()> {
        if self.answer.is_none()
            && let Some(question) = self.hear()?
        {
            self.answer = Some(answer(question).to_string().into_bytes());
        }
        Ok(())
    }

    /// Tells what is left of the answer; false once all is told.
    fn tell(&mut self) -> std::io::Result<bool> {
        let Some(answer) = &mut self.answer else { return Ok(true) };
        while !answer.is_empty() {
            match self.stream.write(answer) {
                Ok(count) => drop(answer.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// What is asked, once it has come whole.
    fn hear(&mut self) -> std::io::Result<Option<Question>> {
        let (mut bytes, mut is_all) = ([0; 4 << 10], false);
        loop {
            match self.stream.read(&mut bytes) {
                // one that asks and says at once that this is all is answered
                Ok(0) if self.question.is_empty() => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(0) => {
                    is_all = true;
                    break;
                }
                Ok(count) => self.question.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            if self.question.len() > QUESTION_BYTES_MAX {
                return Err(ErrorKind::InvalidData.into());
            }
        }
        let question = self.question.strip_suffix(b"\n").map(Question::read).transpose()?;
        match question {
            // who asked for it has given up, and was told that nothing comes of it
            Some(Question::Scale(_) | Question::Stop { .. }) if is_all => {
                Err(ErrorKind::UnexpectedEof.into())
            }
            question => Ok(question),
        }
    }
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns how a job stands that has its socket in `folder`.
///
/// # Errors
/// When there is no such job, or it does not answer.
pub fn job_status(folder: &Path, job: &str) -> Result<JobStatus, StatusError> {
    ask(folder, job, &Question::Status)
}

/// Has a job go on so; returns what comes of it.
///
/// # Errors
/// As [`job_status`], and when the job cannot.
pub fn scale_job(folder: &Path, job: &str, wanted: Resize) -> Result<Scaled, StatusError> {
    let answer: Result<Scaled, String> = ask(folder, job, &Question::Scale(wanted))?;
    answer.map_err(StatusError::Refused)
}

/// Has a job end, as the first Ctrl-C does or, `at_once`, the second; returns how, in words.
///
/// # Errors
/// As [`job_status`], and when it would lose what it has made, and is not to end at once.
pub fn stop_job(folder: &Path, job: &str, at_once: bool) -> Result<String, StatusError> {
    let answer: Result<String, String> = ask(folder, job, &Question::Stop { at_once })?;
    answer.map_err(StatusError::Refused)
}

fn ask<T: DeserializeOwned>(folder: &Path, job: &str, what: &Question) -> Result<T, StatusError> {
    let path = folder.join(job).with_extension(EXTENSION);
    let none = || StatusError::NoSuchJob { job: job.to_string() };
    // a name is no path
    if job.is_empty() || job.contains(['/', '.']) {
        return Err(none());
    }
    let io = |source: std::io::Error| match source.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => none(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => StatusError::Silent { job: job.to_string() },
        _ => StatusError::Io { path: path.clone(), source },
    };
    let garbled = |source| StatusError::Garbled { job: job.to_string(), source };
    let mut stream = UnixStream::connect(&path).map_err(io)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(io)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(io)?;
    let mut question = serde_json::to_vec(what).map_err(garbled)?;
    question.push(b'\n');
    stream.write_all(&question).map_err(io)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).map_err(io)?;
    serde_json::from_slice(&answer).map_err(garbled)
}

/// Returns how all jobs stand that have their sockets in `folder`, by name; those that ended without removing theirs are none.
///
/// # Errors
/// When the folder cannot be read.
pub fn jobs(folder: &Path) -> Result<Vec<JobStatus>, StatusError> {
    let io = |source| StatusError::Io { path: folder.to_path_buf(), source };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(io(source)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(io)?.path();
        let is_socket = path.extension().is_some_and(|extension| extension == EXTENSION);
        let Some(job) = path.file_stem().and_then(|name| name.to_str()).filter(|_| is_socket)
        else {
            continue;
        };
        match job_status(folder, job) {
            Ok(status) => found.push(status),
            // one that has just been bound does not answer for a moment
            Err(StatusError::NoSuchJob { .. }) if lives(job) => {}
            Err(StatusError::NoSuchJob { .. }) => {
                let _ = std::fs::remove_file(&path);
            }
            Err(error) => tracing::warn!("{error}"),
        }
    }
    found.sort_by(|one, other| one.job.cmp(&other.job));
    Ok(found)
}

/// True if the launcher of this job lives.
fn lives(job: &str) -> bool {
    let pid = job.split('-').next().unwrap_or_default();
    Path::new("/proc").join(pid).exists()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::Hosts;
    use std::os::unix::fs::PermissionsExt;

    fn status(job: &str) -> JobStatus {
        JobStatus {
            job: job.to_string(),
            launcher_pid: std::process::id(),
            hosts: "localhost".into(),
            rsh: "ssh".into(),
            title: "a test".into(),
            begun_ms: 7,
            seconds: 1.5,
            launches: 1,
            launched_again: None,
            meanwhile: None,
            goes_on: None,
            step: 3,
            steps: Some(10),
            steps_per_second: None,
            members: vec![MemberStatus {
                rank: 0,
                role: "worker 0".into(),
                host: None,
                pid: 7,
                phase: MemberPhase::Running,
                step: 3,
                still: Some(Still { what: "computes 'x'".into(), waits: false, for_ms: 1200 }),
                silent_s: 0.1,
                progress: Some(serde_json::json!({ "loss": 2.5 })),
                figures: Some(serde_json::json!({ "steps": 4 })),
            }],
        }
    }

    #[test]
    fn a_job_says_how_it_stands_and_its_socket_goes_with_it() {
        let made = tempfile::tempdir().unwrap();
        let folder = made.path().join("jobs");
        assert_eq!(jobs(&folder).unwrap(), []);
        let mut socket = StatusSocket::open(&folder).unwrap();
        let other = StatusSocket::open(&folder).unwrap();
        assert_ne!(socket.job, other.job);
        let mode = std::fs::metadata(&folder).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let (job, expected) = (socket.job.clone(), status(&socket.job));
        let answer = |question| match question {
            Question::Status => serde_json::to_value(&expected).unwrap(),
            Question::Scale(wanted) => serde_json::to_value(match wanted.hosts {
                Some(hosts) if wanted.workers == 2 => {
                    Ok(Scaled { said: format!("{} slots", hosts.slots()), changes: true })
                }
                _ => Err("not so many".to_string()),
            })
            .unwrap(),
            Question::Stop { at_once } => {
                serde_json::to_value(Ok::<String, String>(format!("at once: {at_once}"))).unwrap()
            }
        };
        // one that asks nothing, and one that asks nonsense, hold up nobody
        let silent = UnixStream::connect(folder.join(&job).with_extension(EXTENSION)).unwrap();
        let mut odd = UnixStream::connect(folder.join(&job).with_extension(EXTENSION)).unwrap();
        odd.write_all(b"how?\n").unwrap();
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                assert_eq!(job_status(&folder, &job).unwrap(), expected);
                // as many hosts as there may be
                let many: Vec<String> = (0..2000).map(|_| "127.0.0.1:2".to_string()).collect();
                let hosts: Hosts = many.join(",").parse().unwrap();
                let said = format!("{} slots", hosts.slots());
                let on = |workers, hosts| Resize { workers, hosts, listen: None };
                let scaled = scale_job(&folder, &job, on(2, Some(hosts))).unwrap();
                assert_eq!(scaled, Scaled { said, changes: true });
                assert_eq!(stop_job(&folder, &job, true).unwrap(), "at once: true");
                let refused = scale_job(&folder, &job, on(3, None)).unwrap_err();
                assert_eq!(refused.to_string(), "not so many");
            });
            while !asking.is_finished() {
                socket.hear(answer);
                socket.tell();
            }
            asking.join().unwrap();
        });
        assert_eq!(odd.read(&mut [0]).unwrap(), 0, "it was hung up on");
        drop(silent);
        drop((socket, other));
        assert!(matches!(job_status(&folder, &job), Err(StatusError::NoSuchJob { .. })));
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    }

    #[test]
    fn a_socket_that_was_left_behind_is_no_job_and_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        // no process has this id
        let left = folder.path().join("4194305.sock");
        drop(UnixListener::bind(&left).unwrap());
        assert_eq!(jobs(folder.path()).unwrap(), []);
        assert!(!left.exists());
        for job in ["", "../1", "1.sock", "nobody"] {
            let asked = job_status(folder.path(), job);
            assert!(matches!(asked, Err(StatusError::NoSuchJob { .. })), "{asked:?}");
        }
    }
}
