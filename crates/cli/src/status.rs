//! `tensorwire status`: how the jobs of this user stand; `tensorwire scale`: with how many workers one goes on, and where;
//! `tensorwire stop`: that one ends.

use std::path::Path;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use tensorwire::program::status_folder;
use tensorwire_base::{Deadline, number_of};
use tensorwire_launch::{
    Abandoned, Hosts, JobStatus, MemberPhase, MemberStatus, Resize, Scaled, StatusError, Still,
    host_answers, job_status, jobs, scale_job, stop_job,
};
use tensorwire_train::Progress;

use super::args::{ScaleArgs, StatusArgs, StopArgs};
use super::output::{json_line, note, print, print_text};
use super::{Failure, table::table};

/// How long a host may take to answer.
const HOST_PATIENCE: Duration = Duration::from_secs(15);
/// Who was not heard of for so long is worth a word.
const SILENT: Duration = Duration::from_secs(2);
/// How often a job that is waited for is asked.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &StatusArgs) -> Result<(), Failure> {
    let folder = status_folder();
    let (found, waiting) = match &args.job {
        Some(job) => match job_status(&folder, job) {
            Err(StatusError::NoSuchJob { .. }) => (Vec::new(), abandoned(&folder, job)?),
            found => (vec![found.map_err(Failure::user)?], Vec::new()),
        },
        None => (jobs(&folder).map_err(Failure::other)?, Abandoned::all(&folder)),
    };
    if args.json {
        found.iter().try_for_each(|job| print(json_line(job)?))?;
        return waiting.iter().try_for_each(|left| print(json_line(&waiting_line(left))?));
    }
    for left in &waiting {
        let pid = left.launcher_pid();
        note(format_args!(
            "{}: {} for another launcher, since that one (process {pid}) was killed; its command with --resume auto goes on with \
             them; `tensorwire stop {pid} --now` ends them",
            left.title(),
            who_wait(left.waiting().len()),
        ));
    }
    match (&args.job, found.as_slice()) {
        (Some(_), [job]) => show(job),
        (_, []) if !waiting.is_empty() => Ok(()),
        (_, []) => {
            note("no job whose launcher runs on this host");
            Ok(())
        }
        (_, found) => {
            let rows: Vec<Vec<String>> = found.iter().map(row).collect();
            let header = ["job", "", "step", "steps/s", "for", "processes"];
            print(table(&header, &rows, &[2, 3, 4, 5]))
        }
    }
}

pub(crate) fn scale(args: &ScaleArgs) -> Result<(), Failure> {
    let ScaleArgs { job, workers, listen, timeout, json, .. } = args;
    let folder = status_folder();
    let running = job_status(&folder, job);
    let JobStatus { rsh, launches, .. } =
        running.map_err(|error| Failure::user(why_not(&folder, job, error)))?;
    let hosts = args.named_hosts(&rsh).map_err(Failure::user)?;
    let patience = match timeout {
        0 => HOST_PATIENCE,
        seconds => HOST_PATIENCE.min(Duration::from_secs(*seconds)),
    };
    hosts.iter().try_for_each(|hosts| check_hosts(hosts, patience))?;
    let where_to = hosts.as_ref().map(Hosts::to_string);
    let wanted = Resize { workers: *workers, hosts, listen: *listen };
    let Scaled { said, changes } = scale_job(&folder, job, wanted).map_err(Failure::user)?;
    if !json {
        print_text(format_args!("job {job}: {said}"))?;
    }
    let until = Deadline::after(Duration::from_secs(*timeout));
    let waits = changes && *timeout > 0;
    let came = waits.then(|| goes_on(&folder, job, launches, until));
    let is_so = |status: &JobStatus| {
        let is_there = where_to.as_ref().is_none_or(|hosts| *hosts == status.hosts);
        is_there && workers_of(status) == *workers as usize
    };
    if *json {
        let goes_on_so = came.as_ref().map(|came| came.as_ref().is_ok_and(is_so));
        let answer = serde_json::json!({
            "job": job, "workers": workers, "answer": said, "goes_on_so": goes_on_so,
        });
        print(json_line(&answer)?)?;
    }
    match came.transpose()? {
        Some(status) if !is_so(&status) => {
            let why = status.launched_again.unwrap_or_default();
            Err(Failure::other(format!("job {job} goes on otherwise: {why}")))
        }
        Some(status) if !json => print_text(format_args!(
            "job {job}: goes on{} on {}, in step {}",
            with_workers(workers_of(&status)),
            status.hosts,
            status.step
        )),
        _ => Ok(()),
    }
}

/// Waits until a job makes steps as it is to go on, or as it was; it was launched so often before.
fn goes_on(folder: &Path, job: &str, launches: u64, until: Deadline) -> Result<JobStatus, Failure> {
    loop {
        match job_status(folder, job) {
            Ok(status) => {
                let makes_steps = status.members.iter().any(|member| member.progress.is_some());
                if status.launches > launches && status.goes_on.is_none() && makes_steps {
                    return Ok(status);
                }
            }
            Err(StatusError::NoSuchJob { .. }) => {
                return Err(Failure::other(format!("job {job} has ended meanwhile")));
            }
            // as of one that ends while it is asked
            Err(_) => {}
        }
        if until.passed() {
            return Err(Failure::other(format!(
                "job {job} has not gone on so yet; `tensorwire status {job}` says where it stands"
            )));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// ` with 2 workers`.
fn with_workers(count: usize) -> String {
    format!(" with {}", number_of(count, "worker"))
}

/// Workers that a job has, but for those that it lost.
fn workers_of(job: &JobStatus) -> usize {
    let is_worker = |member: &&MemberStatus| {
        member.role.starts_with("worker") && member.phase != MemberPhase::Lost
    };
    job.members.iter().filter(is_worker).count()
}

pub(crate) fn stop(args: &StopArgs) -> Result<(), Failure> {
    let StopArgs { job, now, timeout, json } = args;
    let folder = status_folder();
    let asked = match job_status(&folder, job) {
        Err(StatusError::NoSuchJob { .. }) => {
            return end_abandoned(args, abandoned(&folder, job)?);
        }
        asked => asked.map_err(Failure::user)?,
    };
    let said = stop_job(&folder, job, *now).map_err(Failure::user)?;
    if !json {
        print_text(format_args!("job {job}: {said}"))?;
    }
    let until = Deadline::after(Duration::from_secs(*timeout));
    let mut has_ended = false;
    while *timeout > 0 && !has_ended && !until.passed() {
        // another job of the same program may have its name
        has_ended = match job_status(&folder, job) {
            Ok(status) => status.begun_ms != asked.begun_ms,
            Err(error) => matches!(error, StatusError::NoSuchJob { .. }),
        };
        if !has_ended {
            std::thread::sleep(LOOK_AGAIN);
        }
    }
    if *json {
        let answer = serde_json::json!({ "job": job, "answer": said, "has_ended": has_ended });
        print(json_line(&answer)?)?;
    }
    match has_ended {
        true if !json => print_text(format_args!("job {job}: has ended")),
        false if *timeout > 0 => Err(Failure::other(format!(
            "job {job} has not ended within {timeout} s; `tensorwire status {job}` says where it stands, and `tensorwire stop \
             {job} --now` ends it at once"
        ))),
        _ => Ok(()),
    }
}

/// `2 processes wait`.
fn who_wait(count: usize) -> String {
    format!("{} {}", number_of(count, "process"), if count == 1 { "waits" } else { "wait" })
}

/// What `--json` says of processes whose launcher was killed.
fn waiting_line(left: &Abandoned) -> serde_json::Value {
    let launcher = left.launcher_pid();
    let title = left.title();
    serde_json::json!({
        "job": launcher.to_string(), "launcher_pid": launcher, "title": title, "waiting": left.waiting(),
    })
}

/// The processes of a launcher that was killed, which are of several jobs where a program had several.
///
/// # Errors
/// When there are none.
fn abandoned(folder: &Path, job: &str) -> Result<Vec<Abandoned>, Failure> {
    let mut all = Abandoned::all(folder);
    all.retain(|left| left.launcher_pid().to_string() == job);
    match all.is_empty() {
        true => Err(Failure::user(no_such_job(folder, job))),
        false => Ok(all),
    }
}

/// Why there is no job of this name: a process of a job has another.
fn no_such_job(folder: &Path, job: &str) -> String {
    let running = jobs(folder).unwrap_or_default();
    let found = running.iter().find_map(|of| {
        let is_it = |member: &&MemberStatus| member.host.is_none() && member.pid.to_string() == job;
        Some((&of.job, &of.members.iter().find(is_it)?.role))
    });
    match found {
        Some((of, role)) => format!("process {job} is {role} of job {of}; name that one: {of}"),
        None => StatusError::NoSuchJob { job: job.to_string() }.to_string(),
    }
}

/// Why a job cannot be asked: what is left of it where its launcher was killed.
pub(crate) fn why_not(folder: &Path, job: &str, error: StatusError) -> String {
    if !matches!(error, StatusError::NoSuchJob { .. }) {
        return error.to_string();
    }
    match abandoned(folder, job) {
        Ok(all) => waits_for_another(job, all.iter().map(|left| left.waiting().len()).sum()),
        Err(none) => none.message,
    }
}

fn waits_for_another(job: &str, count: usize) -> String {
    format!(
        "the launcher of job {job} was killed, and {} for another: its command with --resume auto goes on with them; `tensorwire stop \
         {job} --now` ends them",
        who_wait(count)
    )
}

fn end_abandoned(
    StopArgs { job, now, json, .. }: &StopArgs,
    all: Vec<Abandoned>,
) -> Result<(), Failure> {
    let count = all.iter().map(|left| left.waiting().len()).sum();
    if !now {
        return Err(Failure::user(waits_for_another(job, count)));
    }
    all.into_iter().for_each(Abandoned::end);
    let said = format!("ended {} that waited for a launcher", number_of(count, "process"));
    if *json {
        let answer = serde_json::json!({ "job": job, "answer": said, "has_ended": true });
        return print(json_line(&answer)?);
    }
    print_text(format_args!("job {job}: {said}"))
}

/// A job that runs is not to be sent where nothing starts.
fn check_hosts(hosts: &Hosts, patience: Duration) -> Result<(), Failure> {
    let silent: Vec<&str> = std::thread::scope(|scope| {
        let ask = |name| scope.spawn(move || !host_answers(hosts, name, patience, || false));
        let asked: Vec<_> = hosts.others().into_iter().map(|name| (name, ask(name))).collect();
        // a thread that panicked has said nothing
        let is_silent = |silent: ScopedJoinHandle<'_, bool>| silent.join().unwrap_or(true);
        asked.into_iter().filter_map(|(name, asked)| is_silent(asked).then_some(name)).collect()
    });
    match silent.as_slice() {
        [] => Ok(()),
        [first, ..] => Err(Failure::user(format!(
            "no command runs on {}, and the job stays where it is; see what `{} {first} true` says",
            silent.join(", "),
            hosts.started_with(),
        ))),
    }
}

fn row(job: &JobStatus) -> Vec<String> {
    vec![
        job.job.clone(),
        job.meanwhile
            .as_ref()
            .map_or_else(|| job.title.clone(), |meanwhile| format!("{}; {meanwhile}", job.title)),
        step(job),
        rate(job),
        seconds(job),
        job.members.len().to_string(),
    ]
}

fn step(job: &JobStatus) -> String {
    match job.steps {
        Some(steps) => format!("{} of {steps}", job.step),
        None => job.step.to_string(),
    }
}

fn rate(job: &JobStatus) -> String {
    job.steps_per_second.map_or_else(|| "-".to_string(), |rate| format!("{rate:.2}"))
}

fn seconds(job: &JobStatus) -> String {
    // whole seconds: it is for people
    let seconds = job.seconds as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

/// How a job stands, in a line.
pub(super) fn line(job: &JobStatus) -> String {
    let JobStatus { title, meanwhile, goes_on, .. } = job;
    let (step, rate, seconds) = (step(job), rate(job), seconds(job));
    let meanwhile = meanwhile.as_ref().map(|doing| format!("; {doing}")).unwrap_or_default();
    let goes_on = goes_on.as_ref().map(|wanted| match &wanted.hosts {
        Some(hosts) => format!("; goes on{} on {hosts}", with_workers(wanted.workers as usize)),
        None => format!("; goes on{}", with_workers(wanted.workers as usize)),
    });
    let goes_on = goes_on.unwrap_or_default();
    format!("{title}; step {step}, {rate} steps/s, for {seconds}{meanwhile}{goes_on}")
}

fn show(job: &JobStatus) -> Result<(), Failure> {
    print_text(line(job))?;
    match (&job.launched_again, job.launches) {
        (Some(why), 0 | 1) => print_text(format_args!("it is launched again: {why}"))?,
        (Some(why), launches) => {
            print_text(format_args!("launched {launches} times, lately: {why}"))?
        }
        (None, _) => {}
    }
    if job.members.is_empty() {
        return Ok(());
    }
    let rows: Vec<Vec<String>> = job.members.iter().map(member_row).collect();
    print(table(&["rank", "", "pid", "step", "loss", ""], &rows, &[0, 2, 3, 4]))
}

fn member_row(member: &MemberStatus) -> Vec<String> {
    let MemberStatus { rank, role, host, pid, step, progress, .. } = member;
    let progress =
        progress.clone().and_then(|value| serde_json::from_value::<Progress>(value).ok());
    let role = host.as_ref().map_or_else(|| role.clone(), |host| format!("{role} on {host}"));
    let loss = progress.map_or_else(String::new, |progress| format!("{:.4}", progress.loss));
    vec![rank.to_string(), role, pid.to_string(), step.to_string(), loss, stands(member)]
}

/// How a member stands, in words.
pub(super) fn stands(member: &MemberStatus) -> String {
    if let MemberPhase::Starting | MemberPhase::Meeting | MemberPhase::Running = member.phase
        && member.silent_s > SILENT.as_secs_f64()
    {
        return format!("nothing heard of it for {:.1} s", member.silent_s);
    }
    match (member.phase, &member.still) {
        (MemberPhase::Lost, _) => "lost; the others go on".to_string(),
        (MemberPhase::Done, _) => "done".to_string(),
        (MemberPhase::Starting, _) => "starts".to_string(),
        (_, Some(still)) => Still::to_string(still),
        (MemberPhase::Meeting, None) => "meets the others".to_string(),
        (MemberPhase::Running, None) => "runs".to_string(),
    }
}
