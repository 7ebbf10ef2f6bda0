//! What a process does that somebody else started: one of them leads the job, the others join it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tensorwire_launch::rendezvous::{
    Composition, Detected, Gathering, Joined, RendezvousError, detect, join, share_out,
};
use tensorwire_train::Strategy;

use super::args::TrainArgs;
use super::job::told_to_end;
use super::output::{last_words, note};
use super::{Failure, member, train};

/// What only the processes of the job know, set for all of them.
const SECRET: &str = "TENSORWIRE_SECRET";

/// The others, and how this process is told to end.
#[derive(Debug)]
pub(crate) struct Lead {
    pub(crate) gathering: Arc<Gathering>,
    pub(crate) interrupt: Arc<AtomicBool>,
}

/// What the environment makes of this process.
pub(crate) fn detected() -> Result<Option<Detected>, Failure> {
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    let variables = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    let variables: BTreeMap<String, String> = variables.collect();
    // fits: process ids are positive
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get() as u32);
    detect(&variables, parent).map_err(Failure::user)
}

/// Trains with the processes that somebody else started; none where nobody has, or this one is to start its own.
pub(crate) fn found(args: &TrainArgs) -> Result<Option<Detected>, Failure> {
    if args.no_detect {
        return Ok(None);
    }
    let Some(found) = detected()? else { return Ok(None) };
    let (by, world) = (found.by, found.world);
    if args.job.hosts.is_some() {
        note(format_args!(
            "{by} started {world} processes; --hosts was given, so this one starts a job of its own"
        ));
        return Ok(None);
    }
    if world == 1 && found.counts.is_none() {
        note(format_args!("{by} started one process, which starts those of the job itself"));
        return Ok(None);
    }
    match args.job.listen {
        None => Ok(Some(found)),
        Some(listen) => found.listening_at(listen).map(Some).map_err(Failure::user),
    }
}

/// Trains as `found` says.
pub(crate) fn run(found: &Detected, args: TrainArgs) -> Result<(), Failure> {
    let secret = std::env::var(SECRET).ok().filter(|secret| !secret.is_empty());
    if found.launched_as.is_launcher() {
        return lead(found, secret.as_deref(), args);
    }
    let stay = member::Stay::begin()?;
    match join(found, secret.as_deref()) {
        // the launcher says why
        Err(RendezvousError::NoJob) => std::process::exit(1),
        Err(error) => Err(Failure::other(error)),
        // kept until this process ends: the launcher sees that by it
        Ok(Joined { assignment, sign_of_life: _kept }) => member::take_part(assignment, Some(stay)),
    }
}

fn lead(found: &Detected, secret: Option<&str>, args: TrainArgs) -> Result<(), Failure> {
    let interrupt = told_to_end()?;
    let gathering =
        Arc::new(Gathering::open(found, secret, args.job.listen).map_err(Failure::other)?);
    note(format_args!(
        "started by {}: {} processes, {} is the launcher at {}",
        found.by,
        found.processes(),
        found.launched_as,
        gathering.at(),
    ));
    let lead = Lead { gathering: gathering.clone(), interrupt };
    gather_and_train(found, lead, args).map_err(|failure| {
        // said before the others end: whoever started them ends this process then
        last_words(failure.to_string());
        gathering.dismiss();
        std::process::exit(i32::from(failure.status()))
    })
}

fn gather_and_train(found: &Detected, lead: Lead, mut args: TrainArgs) -> Result<(), Failure> {
    let (strategy, workers, servers) = (args.job.strategy(), args.job.workers, args.job.servers);
    let composition = match strategy {
        Strategy::Local => Composition::OneProcess,
        Strategy::AllReduce => Composition::Workers,
        _ => Composition::WorkersAndServers,
    };
    let counts = share_out(composition, workers, servers, found).map_err(Failure::user)?;
    lead.gathering.gather(&lead.interrupt).map_err(Failure::other)?;
    (args.job.workers, args.job.servers) = (Some(counts.0), Some(counts.1));
    args.job.placed = Some(lead.gathering.hosts());
    train::prepare_and_run(args, Some(lead))
}
