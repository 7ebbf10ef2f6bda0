//! What a process does that somebody else started: one of them leads the job, the others join it.

use std::time::Duration;

use tensorwire::program::{Lead, LeadError, detected, follow};
use tensorwire_launch::rendezvous::{Composition, Detected};
use tensorwire_train::Strategy;

use super::args::{TrainArgs, Workers};
use super::output::{last_words, note};
use super::{Failure, member, train};

/// Returns what trains with the processes that somebody else started; none where nobody has, or this one is to start its own.
pub(crate) fn found(args: &TrainArgs) -> Result<Option<Detected>, Failure> {
    if args.no_detect {
        return Ok(None);
    }
    let Some(found) = detected().map_err(Failure::user)? else { return Ok(None) };
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
    let patience = args
        .job
        .gather_timeout
        .map_or(found.patience, |seconds| Duration::from_secs(u64::from(seconds)));
    let found = Detected { patience, ..found };
    match args.job.listen {
        None => Ok(Some(found)),
        Some(listen) => found.listening_at(listen).map(Some).map_err(Failure::user),
    }
}

/// Trains as `found` says.
pub(crate) fn run(found: &Detected, args: TrainArgs) -> Result<(), Failure> {
    if found.launched_as.is_launcher() {
        return lead(found, args);
    }
    Ok(follow(found, member::part)?)
}

fn lead(found: &Detected, args: TrainArgs) -> Result<(), Failure> {
    let lead = Lead::open(found, args.job.listen)?;
    note(format_args!(
        "started by {}: {} processes, {} is the launcher at {}",
        found.by,
        found.processes(),
        found.launched_as,
        lead.gathering.at(),
    ));
    let gathering = lead.gathering.clone();
    gather_and_train(found, lead, args).map_err(|failure| {
        // said before the others end: whoever started them ends this process then
        last_words(failure.to_string());
        gathering.dismiss("the job has ended", failure.status());
        std::process::exit(i32::from(failure.status()))
    })
}

fn gather_and_train(found: &Detected, lead: Lead, mut args: TrainArgs) -> Result<(), Failure> {
    let composition = match args.job.strategy() {
        Strategy::Local => Composition::OneProcess,
        Strategy::AllReduce => Composition::Workers,
        Strategy::Ps if args.job.is_colocated() => Composition::Workers,
        _ => Composition::WorkersAndServers,
    };
    let range = args.job.workers.filter(|workers| workers.fewest.is_some());
    let workers = args.job.workers.filter(|_| range.is_none()).map(|workers| workers.count);
    let counts = lead.gather(found, composition, (workers, args.job.servers))?;
    args.job.workers = Some(Workers { count: counts.0, fewest: None });
    args.job.of_workers = range;
    // one process has none, and what was given for it is refused with the other arguments
    if composition != Composition::OneProcess {
        args.job.servers = Some(counts.1);
    }
    args.job.placed = Some(lead.gathering.hosts());
    train::prepare_and_run(args, Some(lead))
}

impl From<LeadError> for Failure {
    fn from(error: LeadError) -> Failure {
        match error {
            LeadError::Counts(error) => Failure::user(error),
            error => Failure::other(error),
        }
    }
}
