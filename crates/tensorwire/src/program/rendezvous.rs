//! A process that somebody else started: it leads the job, or joins the one that does.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tensorwire_launch::Member;
use tensorwire_launch::rendezvous::{
    Composition, CountError, DetectError, Detected, Gathering, Joined, KeySource, RendezvousError,
    detect, join, share_out,
};

use super::{ProgramError, Stay, take_part, told_to_end};

/// What only the processes of the job know, set for all of them.
const SECRET: &str = "TENSORWIRE_SECRET";

/// Returns what the environment makes of this process; none if nobody but a shell started it.
///
/// # Errors
/// When a launcher's variables contradict each other.
pub fn detected() -> Result<Option<Detected>, DetectError> {
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    let variables = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    let variables: BTreeMap<String, String> = variables.collect();
    // fits: process ids are positive
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get() as u32);
    detect(&variables, parent)
}

/// Returns where the key of the job is: the text that all processes were given, else a file of the user's.
pub(crate) fn key_source() -> KeySource {
    // bytes that are no text are the same for all as they are escaped
    let escaped = |bytes: std::ffi::OsString| format!("{bytes:?}");
    let text = given(SECRET).map(|text| text.into_string().unwrap_or_else(escaped));
    text.map(KeySource::Text).unwrap_or_else(|| KeySource::Folder(own_folder().join("keys")))
}

fn given(variable: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(variable).filter(|value| !value.is_empty())
}

/// Returns where jobs of this user answer how they stand ([`tensorwire_launch::job_status`]).
pub fn status_folder() -> PathBuf {
    // a socket's name is short, and a home may be deep
    let runtime = given("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join("tensorwire"));
    // several hosts may share it
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    runtime.unwrap_or_else(own_folder).join("jobs").join(host)
}

/// What is this user's, and outlives no machine.
fn own_folder() -> PathBuf {
    let home = || given("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = given("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    cache.map(|cache| cache.join("tensorwire")).unwrap_or_else(|| {
        let user = rustix::process::geteuid().as_raw();
        std::env::temp_dir().join(format!("tensorwire-{user}"))
    })
}

/// Why the processes of a job did not come together.
#[derive(Debug, thiserror::Error)]
pub enum LeadError {
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The user's mistake.
    #[error(transparent)]
    Counts(#[from] CountError),
}

/// The others, and how this process is told to end.
#[derive(Debug)]
pub struct Lead {
    pub gathering: Arc<Gathering>,
    pub interrupt: Arc<AtomicBool>,
}

impl Lead {
    /// Opens the rendezvous that the other processes call.
    ///
    /// # Errors
    /// When its address is taken.
    pub fn open(found: &Detected, listen: Option<SocketAddr>) -> Result<Lead, LeadError> {
        let interrupt = told_to_end()?;
        let gathering = Arc::new(Gathering::open(found, &key_source(), listen)?);
        Ok(Lead { gathering, interrupt })
    }

    /// Waits for all others; returns how many of the processes are workers, and how many servers: as given, else as follows
    /// from their number.
    ///
    /// # Errors
    /// When the numbers do not fit, or somebody does not come.
    pub fn gather(
        &self,
        found: &Detected,
        composition: Composition,
        (workers, servers): (Option<u32>, Option<u32>),
    ) -> Result<(u32, u32), LeadError> {
        let counts = share_out(composition, workers, servers, found)?;
        self.gathering.gather(&self.interrupt)?;
        Ok(counts)
    }
}

/// Joins the process that leads, and does a member's part; `run` as for [`take_part`].
///
/// # Errors
/// When the one that leads cannot be reached.
pub fn follow<E>(
    found: &Detected,
    run: impl FnOnce(&Member) -> Result<(), E>,
) -> Result<(), LeadError> {
    let stay = Stay::begin()?;
    match join(found, &key_source()) {
        // the launcher says why
        Err(RendezvousError::NoJob { status }) => std::process::exit(i32::from(status)),
        Err(error) => Err(error.into()),
        // kept until this process ends: the launcher sees that by it
        Ok(Joined { assignment, sign_of_life: _kept }) => {
            Ok(take_part(assignment, Some(stay), run)?)
        }
    }
}
