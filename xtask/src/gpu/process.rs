//! A program that is run to its end within a time, with all that it started.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::soft_roce::Stop;

/// How late an end is seen.
const TICK: Duration = Duration::from_millis(20);
/// Of what a program said, so many of its last lines are told.
const LINES_MAX: usize = 6;

/// What a program said, and how it ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) succeeded: bool,
    pub(super) stdout: String,
    pub(super) stderr: String,
    /// None of a program that was killed.
    pub(super) code: Option<i32>,
}

/// Kills a group of processes when it is dropped.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = rustix::process::Pid::from_raw(self.0.id().cast_signed()) {
            // who has ended is not there any more
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// Runs it.
///
/// # Errors
/// When it cannot be started, does not end in time, or Ctrl-C came: in words.
pub(super) fn run(command: &mut Command, until: Instant, stop: &Stop) -> Result<Ended, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let name = name.rsplit('/').next().unwrap_or_default().to_owned();
    if Instant::now() >= until {
        return Err("the part's time is over".to_owned());
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
    let mut group = Group(child);
    let stdout = group.0.stdout.take().map(gather);
    let stderr = group.0.stderr.take().map(gather);
    let status = loop {
        if stop.check().is_err() {
            return Err("interrupted".to_owned());
        }
        match group.0.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() >= until => {
                return Err(format!("{name} did not end in the part's time"));
            }
            Ok(None) => std::thread::sleep(TICK),
            Err(error) => return Err(format!("{name}: {error}")),
        }
    };
    // what it left running holds its pipes
    drop(group);
    let all = |reader: Option<JoinHandle<Vec<u8>>>| {
        let bytes = reader.and_then(|reader| reader.join().ok()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (stdout, stderr) = (all(stdout), all(stderr));
    Ok(Ended { succeeded: status.success(), stdout, stderr, code: status.code() })
}

fn gather(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // what was read before an error is still what the program said
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

impl Ended {
    /// The end of what it said, in one line, for a failure.
    pub(super) fn why(&self) -> String {
        let said = if self.stderr.trim().is_empty() { &self.stdout } else { &self.stderr };
        let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines[lines.len().saturating_sub(LINES_MAX)..].join(" | ");
        let code = self.code.map_or_else(|| "a signal".to_owned(), |code| code.to_string());
        format!("ended with {code}: {last}")
    }

    /// It, if it succeeded; else why not.
    pub(super) fn checked(self) -> Result<Ended, String> {
        if self.succeeded { Ok(self) } else { Err(self.why()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_does_not_end_is_killed_with_its_children() {
        let near = Instant::now() + Duration::from_millis(100);
        let mut command = Command::new("sh");
        // the child holds the pipe
        command.args(["-c", "sleep 600 & wait"]);
        let error = run(&mut command, near, &Stop::default()).unwrap_err();
        assert_eq!(error, "sh did not end in the part's time");
        let far = Instant::now() + Duration::from_secs(60);
        let ended = run(
            Command::new("sh").args(["-c", "echo a; echo b >&2; exit 3"]),
            far,
            &Stop::default(),
        );
        let ended = ended.unwrap();
        assert_eq!((ended.stdout.as_str(), ended.code), ("a\n", Some(3)));
        assert_eq!(ended.checked().unwrap_err(), "ended with 3: b");
    }
}
