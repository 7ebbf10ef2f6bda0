//! `tensorwire status`: how the jobs of this user stand; `tensorwire scale`: with how many workers one goes on, and where.

use std::thread::ScopedJoinHandle;
use std::time::Duration;

use tensorwire::program::status_folder;
use tensorwire_launch::{
    Abandoned, Hosts, JobStatus, MemberPhase, MemberStatus, Resize, Still, host_answers,
    job_status, jobs, scale_job,
};
use tensorwire_train::Progress;

use super::args::{ScaleArgs, StatusArgs};
use super::output::{json_line, note, print, print_text};
use super::{Failure, table::table};

/// How long a host may take to answer.
const HOST_PATIENCE: Duration = Duration::from_secs(15);
/// Who was not heard of for so long is worth a word.
const SILENT: Duration = Duration::from_secs(2);

pub(crate) fn run(args: &StatusArgs) -> Result<(), Failure> {
    let folder = status_folder();
    let found = match &args.job {
        Some(job) => vec![job_status(&folder, job).map_err(Failure::user)?],
        None => jobs(&folder).map_err(Failure::other)?,
    };
    if args.json {
        return found.iter().try_for_each(|job| print(json_line(job)?));
    }
    if args.job.is_none() {
        for left in Abandoned::all(&folder) {
            note(format_args!(
                "{}: {} processes wait for another launcher, since that one (process {}) was killed; its command with --resume auto \
                 goes on with them",
                left.title(),
                left.waiting(),
                left.launcher_pid()
            ));
        }
    }
    match (&args.job, found.as_slice()) {
        (Some(_), [job]) => show(job),
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
    let ScaleArgs { job, workers, listen, json, .. } = args;
    let JobStatus { rsh, .. } = job_status(&status_folder(), job).map_err(Failure::user)?;
    let hosts = args.named_hosts(&rsh).map_err(Failure::user)?;
    hosts.iter().try_for_each(check_hosts)?;
    let wanted = Resize { workers: *workers, hosts, listen: *listen };
    let said = scale_job(&status_folder(), job, wanted).map_err(Failure::user)?;
    if *json {
        let answer = serde_json::json!({ "job": job, "workers": workers, "answer": said });
        return print(json_line(&answer)?);
    }
    print_text(format_args!("job {job}: {said}"))
}

/// A job that runs is not to be sent where nothing starts.
fn check_hosts(hosts: &Hosts) -> Result<(), Failure> {
    let silent: Vec<&str> = std::thread::scope(|scope| {
        let ask = |name| scope.spawn(move || !host_answers(hosts, name, HOST_PATIENCE));
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
        job.title.clone(),
        step(job),
        rate(job),
        seconds(job),
        job.members.len().to_string(),
    ]
}

pub(super) fn step(job: &JobStatus) -> String {
    match job.steps {
        Some(steps) => format!("{} of {steps}", job.step),
        None => job.step.to_string(),
    }
}

pub(super) fn rate(job: &JobStatus) -> String {
    job.steps_per_second.map_or_else(|| "-".to_string(), |rate| format!("{rate:.2}"))
}

pub(super) fn seconds(job: &JobStatus) -> String {
    // whole seconds: it is for people
    let seconds = job.seconds as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

fn show(job: &JobStatus) -> Result<(), Failure> {
    print_text(format_args!(
        "{}; step {}, {} steps/s, for {}",
        job.title,
        step(job),
        rate(job),
        seconds(job)
    ))?;
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
