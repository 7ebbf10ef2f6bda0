//! `--metrics FILE`: one line of JSON a step. Each line is written whole; what the file held before
//! stays until the first line, and of a job that goes on the steps before it stay for good.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::Serialize;
use tensorwire_base::Deadline;
use tensorwire_train::WholeRecords;

use super::Failure;
use super::output::{json_line, print};

/// In the place of a file: standard output.
const STDOUT: &str = "-";
/// How long somebody who is to read a pipe may take to come.
const READER_PATIENCE: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

pub(crate) struct Metrics {
    path: PathBuf,
    is_stdout: bool,
    file: Option<WholeRecords>,
    /// It was not there before.
    fresh: bool,
    begun: bool,
}

impl Metrics {
    /// Opens the file, if there is to be one.
    pub(crate) fn open(path: Option<&Path>) -> Result<Metrics, Failure> {
        let Some(path) = path else {
            return Ok(Metrics::without_file(false));
        };
        if path.as_os_str() == STDOUT {
            return Ok(Metrics::without_file(true));
        }
        let fresh = !path.exists();
        let file = open(path, fresh || path.is_file(), READER_PATIENCE);
        let file = file.map_err(|error| Failure::unwritable("metrics", path, &error))?;
        let file = Some(WholeRecords::new(file));
        let path = path.to_path_buf();
        Ok(Metrics { path, is_stdout: false, file, fresh, begun: false })
    }

    fn without_file(is_stdout: bool) -> Metrics {
        Metrics { path: PathBuf::new(), is_stdout, file: None, fresh: false, begun: false }
    }

    /// True if lines go to standard output, where nothing else is to stand between them.
    pub(crate) fn is_stdout(&self) -> bool {
        self.is_stdout
    }

    /// Writes one line.
    pub(crate) fn line(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        if !self.is_stdout && self.file.is_none() {
            return Ok(());
        }
        let line = json_line(value)?;
        if self.is_stdout {
            return print(line);
        }
        self.write(&line).map_err(|error| {
            let path = self.path.display();
            Failure::other(format!("writing metrics to {path}: {error}; free space there"))
        })
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        // a pipe or a device has no length to cut
        if !self.begun && file.file().metadata()?.is_file() {
            file.file().set_len(length_before(file.file(), step_of(line))?)?;
        }
        self.begun = true;
        file.append(format!("{line}\n").as_bytes())
    }
}

/// Opens a file to append to it. A pipe is waited for until somebody reads it; what it takes cannot be read again.
fn open(path: &Path, reads: bool, patience: Duration) -> io::Result<File> {
    let deadline = Deadline::after(patience);
    let is_pipe = path.metadata().is_ok_and(|it| it.file_type().is_fifo());
    loop {
        // of a pipe that nobody reads it is an error
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let mut options = OpenOptions::new();
        options.append(true).create(true).read(reads).custom_flags(flags);
        match options.open(path) {
            Err(error) if is_pipe && Errno::from_io_error(&error) == Some(Errno::NXIO) => {
                if deadline.passed() {
                    return Err(io::Error::other(format!("nobody has read it for {patience:?}")));
                }
                std::thread::sleep(LOOK_AGAIN);
            }
            opened => {
                let file = opened?;
                // what is said later waits for whoever reads
                let flags = rustix::fs::fcntl_getfl(&file)?;
                rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
                return Ok(file);
            }
        }
    }
}

/// The bytes of a file up to the last line that is of an earlier step than this one, before the first that is of none or a later
/// one; of all steps, if it is of none. A line that is torn is neither.
fn length_before(file: &File, step: Option<u64>) -> io::Result<u64> {
    let mut reader = BufReader::new(file);
    reader.seek(SeekFrom::Start(0))?;
    let (mut kept, mut read, mut line) = (0, 0, Vec::new());
    loop {
        line.clear();
        // fits: usize is 64 bits wide
        let bytes = reader.read_until(b'\n', &mut line)? as u64;
        read += bytes;
        let is_whole = line.ends_with(b"\n");
        match serde_json::from_slice(&line).ok().filter(|_| is_whole) {
            Some(found) if step_in(&found).is_some_and(|of| step.is_none_or(|step| of < step)) => {
                kept = read;
            }
            None if bytes > 0 => {}
            _ => return Ok(kept),
        }
    }
}

fn step_of(line: &str) -> Option<u64> {
    step_in(&serde_json::from_str(line).ok()?)
}

fn step_in(line: &serde_json::Value) -> Option<u64> {
    line.get("step")?.as_u64()
}

impl Drop for Metrics {
    /// A job that never began leaves no empty file.
    fn drop(&mut self) {
        if self.file.is_some() && self.fresh && !self.begun {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_waited_for_until_somebody_reads_it_and_no_longer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        let nobody = open(&path, false, Duration::from_millis(50)).unwrap_err();
        assert_eq!(nobody.to_string(), "nobody has read it for 50ms");
        let there = path.clone();
        let reader = std::thread::spawn(move || std::fs::read_to_string(there).unwrap());
        let mut file = open(&path, false, Duration::from_secs(60)).unwrap();
        io::Write::write_all(&mut file, b"a line").unwrap();
        drop(file);
        assert_eq!(reader.join().unwrap(), "a line");
    }

    #[test]
    fn a_job_that_goes_on_keeps_the_steps_before_and_another_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let write = |steps: &[u64], ends: bool| {
            let mut metrics = Metrics::open(Some(&path)).unwrap();
            for step in steps {
                metrics.line(&serde_json::json!({ "step": step })).unwrap();
            }
            if ends {
                metrics.line(&serde_json::json!({ "summary": {} })).unwrap();
            }
            std::fs::read_to_string(&path).unwrap()
        };
        let of = |steps: &[u64], rest: &str| {
            let lines: String = steps.iter().map(|step| format!("{{\"step\":{step}}}\n")).collect();
            lines + rest
        };
        let end = "{\"summary\":{}}\n";
        assert_eq!(write(&[1, 2, 3], false), of(&[1, 2, 3], ""));
        // from a checkpoint behind step 1
        assert_eq!(write(&[2, 3, 4], true), of(&[1, 2, 3, 4], end));
        assert_eq!(write(&[5], false), of(&[1, 2, 3, 4, 5], ""));
        // a launcher was killed in the middle of a line
        std::fs::write(&path, of(&[1, 2], "{\"st")).unwrap();
        assert_eq!(write(&[4], false), of(&[1, 2, 4], ""));
        assert_eq!(write(&[], true), of(&[1, 2, 4], end));
        assert_eq!(write(&[1], true), of(&[1], end));
        // a line that an earlier version left torn
        let torn = "{\"st{\"step\":3}\n";
        std::fs::write(&path, of(&[1, 2], torn) + &of(&[4, 5], end)).unwrap();
        assert_eq!(write(&[5], false), of(&[1, 2], torn) + &of(&[4, 5], ""));
        std::fs::write(&path, "something else\n").unwrap();
        assert_eq!(write(&[7], false), of(&[7], ""));
    }
}
