//! `cargo xtask soft-roce`: small machines whose kernel has Soft-RoCE, a libibverbs device without a
//! NIC. `prepare` makes what they boot from, `run` runs a command in one or two of them, `test` runs
//! the cases that need such a device. Knows QEMU, Debian's kernel and a shell; nothing of tensorwire
//! but the names of its programs.
//!
//! In a machine, `/` is the host's, read-only; `/tmp`, `/run` and `/dev/shm` are empty and can be
//! written; results come back as output. Node N has the address 10.9.0.(N+1) on eth0 and the device
//! rxe0, whose address at index 1 is the RoCE v2 one.

mod cache;
pub mod cases;
mod job;
mod machine;
pub mod perftest;
pub mod remote;
mod serial;
mod suite;
pub(crate) mod tools;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use cache::{Kernel, insmod_order, prepare};
pub use job::{Job, Step, quoted};
pub use machine::{Hardware, Machines};
pub use serial::{Decoder, Event};
pub use suite::test;
pub use tools::Stop;

/// From the start of QEMU to a guest that is ready: 10 s on an idle machine, the rest is patience
/// with a busy one.
const BOOT_MAX: Duration = Duration::from_secs(180);

/// Why there is no result. What a guest's command did wrong is not among this: that is its exit status.
#[derive(Debug, thiserror::Error)]
pub enum SoftRoceError {
    /// This machine lacks something; tests skip then.
    #[error("{what}; {mend}")]
    Missing { what: String, mend: &'static str },
    #[error("cannot {action} '{path}': {source}")]
    File { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error("'{command}' {what}\n{output}")]
    Command { command: String, what: String, output: String },
    #[error("node {node} {what}; the last that it said:\n{console}")]
    Machine { node: usize, what: String, console: String },
    #[error("cargo built no {0}; is its name right in the table of cases?")]
    NotBuilt(String),
    #[error("interrupted")]
    Interrupted,
}

/// What `run` is asked for.
#[derive(Debug)]
pub struct Run<'a> {
    pub hardware: Hardware,
    /// For the command, from when all machines are ready.
    pub timeout: Duration,
    /// What netem does to every node's eth0, as `tc` takes it.
    pub netem: Option<&'a str>,
    pub command: &'a [String],
}

/// Where `prepare` keeps what it makes, unless it is told otherwise.
pub fn cache_folder() -> Result<PathBuf, SoftRoceError> {
    Ok(tools::target_folder()?.join("soft-roce"))
}

/// Runs a command in each machine, its output to `out` line by line. The exit status is the command's
/// on node 0, and that on node 1 where node 0's is 0; 124 if a command ran out of time.
pub fn run(
    request: &Run<'_>,
    cache: &Path,
    stop: &Stop,
    out: &mut dyn Write,
) -> Result<i32, SoftRoceError> {
    let kernel = prepare(cache, stop, out)?;
    let folder = std::env::current_dir().map_err(tools::file_error("find", Path::new(".")))?;
    let step = Step { script: quoted(request.command), timeout: request.timeout };
    let job = Job {
        folder: &folder,
        folders: &[folder.clone(), crate::root().to_owned(), tools::target_folder()?],
        netem: request.netem.unwrap_or(""),
        programs: &[],
        steps: &vec![vec![step]; request.hardware.machines],
        reset: false,
    };
    let mut machines = Machines::boot(&kernel, &job, &request.hardware, stop)?;
    let mut deadline = Instant::now() + BOOT_MAX;
    let mut statuses = vec![None; request.hardware.machines];
    while statuses.contains(&None) {
        let (node, event) = machines.next(deadline)?;
        match event {
            Event::Line(line) => say(out, &format!("node {node}: {line}"))?,
            Event::Ready => {
                // the guest enforces the limit; this is for a guest that no longer can
                deadline = Instant::now() + request.timeout + BOOT_MAX / 4;
            }
            Event::Ended { status, .. } => statuses[node] = Some(status),
            Event::Started { .. } | Event::Done | Event::Broken => {}
        }
    }
    let failed = statuses.into_iter().flatten().find(|status| *status != 0);
    Ok(failed.unwrap_or(0))
}

/// One line to where this task's output goes.
fn say(out: &mut dyn Write, line: &str) -> Result<(), SoftRoceError> {
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|source| SoftRoceError::File {
        action: "write to",
        path: PathBuf::from("standard output"),
        source,
    })
}
