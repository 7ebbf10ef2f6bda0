//! What every program has to do whose processes train together: become a member where a launcher started it, find its place
//! where mpirun, srun, torchrun or Kubernetes did, and mind signals. [`crate::Training`] does all of it; a program that
//! launches jobs of its own kind starts here.
//!
//! The processes of a job run the same program with the same arguments. One that a launcher started knows it by an
//! environment variable, and reads its assignment from standard input.

mod member;
mod rendezvous;
mod signals;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tensorwire_base::human_bytes;
use tensorwire_launch::{Assignment, JobSpec, MEMBER, Movement, RUN_WITH_PARENT};

pub use member::{Stay, read_assignment, take_part};
pub(crate) use rendezvous::key_source;
pub use rendezvous::{Lead, LeadError, detected, follow, status_folder};
pub(crate) use signals::hear_each;
pub use signals::{
    Interrupts, end_at_once, end_at_once_while, interrupt, status_by_signal, told_to_end,
};

/// What `ssh` ends with, too, when it cannot start what it is told to.
const CANNOT_START: i32 = 255;
/// How long the last words wait for a terminal that takes nothing.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Address space that a program needs to begin, and to say what it lacks if it lacks more: stacks of a few threads among it.
const ROOM_TO_BEGIN: u64 = 10 << 20;

/// Why a program cannot take its part.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("this process was started as a member of a job, and has no assignment: {0}")]
    Assignment(serde_json::Error),
    #[error("the system refuses {what}: {source}")]
    System { what: &'static str, source: std::io::Error },
    /// Where memory is refused from here on, what allocates ends the process by a signal.
    #[error(
        "the address space is limited to {limit}, of which the program itself takes {taken}; it needs {} more to begin, and a job \
         more than that; raise the limit (ulimit -v)",
        human_bytes(ROOM_TO_BEGIN)
    )]
    NoRoom { limit: String, taken: String },
    #[error("the variables of the launcher that started this process: {0}")]
    Detect(#[from] tensorwire_launch::rendezvous::DetectError),
    #[error(transparent)]
    Join(#[from] tensorwire_launch::JoinError),
}

/// Where the assignment waits for the job that it is of.
static ASSIGNMENT: OnceLock<Option<Assignment>> = OnceLock::new();

/// Makes this process what it was started as. Call it first in `main`, before the program reads its arguments or standard
/// input. In a process that a launcher started it takes the assignment; [`crate::Training::run`] then does the member's
/// part and never returns.
///
/// # Errors
/// When the process was started as a member and has no assignment, or has no memory to begin with.
pub fn init() -> Result<(), ProgramError> {
    if ASSIGNMENT.get().is_some() {
        return Ok(());
    }
    raise_open_files();
    check_room()?;
    if std::env::var_os(RUN_WITH_PARENT).is_some() {
        run_with_parent(std::env::args_os().skip(1).collect());
    }
    let assignment = if is_member() { Some(read_assignment()?) } else { None };
    // another thread may have been first; it found the same
    let _ = ASSIGNMENT.set(assignment);
    Ok(())
}

/// Raises the number of files that this process may open to the most that it may raise it to by itself: in a job of some hundred
/// processes each has more connections than the usual 1024.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // where the system refuses, who has too many connections is told
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Refuses to begin where the address space is limited to little more than the program itself takes.
///
/// # Errors
/// What it takes, and what it may.
pub fn check_room() -> Result<(), ProgramError> {
    let Some(limit) = getrlimit(Resource::As).current else { return Ok(()) };
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let taken = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let taken = taken.and_then(|size| size.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    // where the system does not say, nothing is known
    let taken = taken.unwrap_or_default().saturating_mul(1024);
    match taken.saturating_add(ROOM_TO_BEGIN) > limit {
        true => Err(ProgramError::NoRoom { limit: human_bytes(limit), taken: human_bytes(taken) }),
        false => Ok(()),
    }
}

/// Returns the assignment of this process, if a launcher started it.
pub fn assigned() -> Option<Assignment> {
    ASSIGNMENT.get()?.clone()
}

/// True if a launcher started this process itself, rather than a parent that inherited the variable.
fn is_member() -> bool {
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().to_string());
    let said = std::env::var(MEMBER).ok();
    said.is_some_and(|said| said == "remote" || Some(said) == parent)
}

/// Becomes another command that ends when the launcher does, however that ends. So a connection to a host that does not answer
/// outlives nobody.
pub fn run_with_parent(command: Vec<OsString>) -> ! {
    let dies = Some(rustix::process::Signal::KILL);
    let tied = rustix::process::set_parent_process_death_signal(dies);
    let said = match (tied, command.split_first()) {
        (Err(error), _) => error.to_string(),
        (_, None) => "there is no command to become".to_string(),
        // returns only if it failed
        (Ok(()), Some((program, arguments))) => {
            // it is not one that becomes another, nor what it starts, here or where a shell takes the environment along
            let error = Command::new(program).args(arguments).env_remove(RUN_WITH_PARENT).exec();
            format!("{}: {error}", program.to_string_lossy())
        }
    };
    say(&said);
    std::process::exit(CANNOT_START)
}

/// Returns a job whose members are this program, started with its own arguments. Its first Ctrl-C ends it in good order.
///
/// # Errors
/// When the system does not say which program this is, or refuses to handle a signal.
pub fn job_spec(kind: &str, roles: Vec<String>) -> Result<JobSpec, ProgramError> {
    job_spec_until(kind, roles, interrupt()?)
}

/// The same, whose interrupt is this.
pub(crate) fn job_spec_until(
    kind: &str,
    roles: Vec<String>,
    interrupt: Arc<AtomicBool>,
) -> Result<JobSpec, ProgramError> {
    let (program, arguments) = own_command()?;
    let spec = JobSpec::new(program, kind, roles);
    let status_folder = Some(status_folder());
    // a folder that is gone is none to begin in
    let folder = std::env::current_dir().ok();
    Ok(JobSpec { arguments, marks_members: true, folder, interrupt, status_folder, ..spec })
}

/// Returns this program and its arguments.
pub(crate) fn own_command() -> Result<(PathBuf, Vec<String>), ProgramError> {
    let failed = |source| ProgramError::System { what: "to say which program this is", source };
    let program = std::env::current_exe().map_err(failed)?;
    let text = |text: OsString| text.to_string_lossy().into_owned();
    Ok((program, std::env::args_os().skip(1).map(text).collect()))
}

/// Says something on standard error; if nobody takes it, nobody wants it.
pub(crate) fn say(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Says that a process that trains alone stands still, and ends it if that is for good: whoever called would wait for ever.
pub(crate) fn say_or_end(movement: Movement) {
    if matches!(movement, Movement::Stopped(_)) {
        // the thread that stands still may hold what is written to
        in_time(move || say(&format!("error: {movement}")));
        std::process::exit(1);
    }
    say(&movement.to_string());
}

/// Has the terminal shown something, and waits for it, but not long: the program ends even if the terminal does not take it.
pub fn in_time(show: impl FnOnce() + Send + 'static) {
    let (said, wait) = channel();
    let show = Arc::new(Mutex::new(Some(show)));
    let speak = {
        let show = show.clone();
        move || {
            show_once(&show);
            // nobody waits any more if it took too long
            let _ = said.send(());
        }
    };
    match std::thread::Builder::new().name("last-words".into()).spawn(speak) {
        Ok(_) => drop(wait.recv_timeout(LAST_WORDS)),
        // where there is no memory for a thread, better late than never
        Err(_) => show_once(&show),
    }
}

fn show_once(show: &Mutex<Option<impl FnOnce()>>) {
    let show = show.lock().map(|mut show| show.take());
    if let Ok(Some(show)) = show {
        show();
    }
}
