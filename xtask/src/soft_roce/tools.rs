//! The machine's own programs: which of them are there, and how one is run to its end, with a
//! deadline and an eye on Ctrl-C. Knows nothing of what they are for.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::SoftRoceError;

/// How long Ctrl-C and the end of a program may stay unseen.
pub(crate) const TICK: Duration = Duration::from_millis(50);
/// Of a failed program's output, that much is shown.
const OUTPUT_LINES_MAX: usize = 30;
/// Not on the PATH of everybody who is not root.
const ADMIN_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Set by a signal; every wait looks at it.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Is set by Ctrl-C and by a request to terminate.
    pub fn on_signals() -> Result<Stop, SoftRoceError> {
        let stop = Stop::default();
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&stop.0))
                .map_err(file_error("listen to", Path::new("signals")))?;
        }
        Ok(stop)
    }

    pub(crate) fn check(&self) -> Result<(), SoftRoceError> {
        if self.0.load(Ordering::Relaxed) { Err(SoftRoceError::Interrupted) } else { Ok(()) }
    }
}

/// A child that is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Guarded(pub(super) Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        // both fail only if it has ended already
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where a program is, by the PATH and the folders of administrators.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(ADMIN_FOLDERS.map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// A program that [`find`] finds. Children get the folders of administrators on their PATH as well.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(find(program).unwrap_or_else(|| PathBuf::from(program)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(ADMIN_FOLDERS.map(PathBuf::from));
    if let Ok(path) = std::env::join_paths(folders) {
        command.env("PATH", path);
    }
    command
}

/// What a program printed, if it ended well within the limit. Only what goes to a pipe is gathered:
/// whoever wants its messages on the terminal sets `stderr` to inherit.
pub(crate) fn output(
    command: &mut Command,
    input: &[u8],
    limit: Duration,
    stop: &Stop,
) -> Result<Vec<u8>, SoftRoceError> {
    let name = named(command);
    let fail = |what: String, output: &[u8]| SoftRoceError::Command {
        command: name.clone(),
        what,
        output: last_lines(&String::from_utf8_lossy(output)),
    };
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let child = child.map_err(|source| fail(format!("could not be started: {source}"), &[]))?;
    let mut child = Guarded(child);
    let writer = child.0.stdin.take().map(|mut pipe| {
        let input = input.to_vec();
        // a program that ends without reading all is judged by its status
        std::thread::spawn(move || drop(pipe.write_all(&input)))
    });
    let stdout = child.0.stdout.take().map(gather);
    let stderr = child.0.stderr.take().map(gather);
    let status = wait(&mut child.0, Instant::now() + limit, stop)?;
    let all = |reader: Option<JoinHandle<Vec<u8>>>| {
        reader.and_then(|reader| reader.join().ok()).unwrap_or_default()
    };
    drop(writer);
    match status {
        Some(status) if status.success() => Ok(all(stdout)),
        Some(status) => Err(fail(format!("failed ({status}):"), &all(stderr))),
        // its readers end when the pipes do, which its children may hold: do not wait for them
        None => Err(fail(format!("did not end within {} s", limit.as_secs()), &[])),
    }
}

/// The status, or nothing if the deadline came first.
fn wait(
    child: &mut Child,
    deadline: Instant,
    stop: &Stop,
) -> Result<Option<ExitStatus>, SoftRoceError> {
    loop {
        stop.check()?;
        let ended = child.try_wait().map_err(|source| SoftRoceError::File {
            action: "wait for",
            path: PathBuf::from("a program"),
            source,
        })?;
        if ended.is_some() || Instant::now() >= deadline {
            return Ok(ended);
        }
        std::thread::sleep(TICK);
    }
}

fn gather(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // what was read before an error is still what the program said
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

/// A command as a person would type it, without its environment.
fn named(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// The end of what a program said.
pub(crate) fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(OUTPUT_LINES_MAX)..].join("\n")
}

/// Cargo's folder for what it builds.
pub(crate) fn target_folder() -> Result<PathBuf, SoftRoceError> {
    let manifest = crate::root().join("Cargo.toml");
    let metadata =
        cargo_metadata::MetadataCommand::new().manifest_path(manifest).no_deps().exec().map_err(
            |error| SoftRoceError::Command {
                command: "cargo metadata".to_owned(),
                what: "failed:".to_owned(),
                output: error.to_string(),
            },
        )?;
    Ok(metadata.target_directory.into_std_path_buf())
}

/// For `map_err` of what `std::fs` says.
pub(crate) fn file_error<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(std::io::Error) -> SoftRoceError + 'a {
    move |source| SoftRoceError::File { action, path: path.to_owned(), source }
}
