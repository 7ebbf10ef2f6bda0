//! `tensorwire doctor`: looks, tries, and says what to type. Exit status 0 if nothing keeps training from
//! working here, 1 if something does.

mod page;

use console::Term;
use tensorwire_doctor::{DoctorError, Examination, Severity, examine, examine_peer, hosts_of_peer};

use tensorwire_launch::JobSpec;

use super::Failure;
use super::args::DoctorArgs;
use super::job::job_spec;
use super::output::{columns_of, note, print};

pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let options = args.options();
    // a name that is none is said before the trials, which take their time
    let hosts = args.peer.as_ref().map(|host| hosts_of_peer(host, &args.rsh)).transpose()?;
    if !args.json {
        note("looking at this machine and trying its transports, which takes a few seconds");
    }
    let mut found = examine(&options, &args.cuda());
    if let (Some(host), Some(hosts)) = (&args.peer, hosts) {
        if !args.json {
            note(format_args!("starting a process on {host} and trying the way there"));
        }
        let job = JobSpec { listen: args.listen, ..job_spec()? };
        let peer = examine_peer(host, hosts, &options, &found.facts, &job)?;
        found = found.with_peer(peer);
    }
    show(&found, args.json)?;
    let errors =
        found.findings.iter().filter(|finding| finding.severity == Severity::Error).count();
    match errors {
        0 => Ok(()),
        1 => Err(Failure::other("one thing above does not work; its fix is beside it")),
        _ => Err(Failure::other(format!(
            "{errors} things above do not work; the fix of each is beside it"
        ))),
    }
}

fn show(found: &Examination, json: bool) -> Result<(), Failure> {
    if json {
        return print(serde_json::to_string(found).map_err(Failure::other)?);
    }
    print(page::page(found, columns_of(Term::stdout())).trim_end())
}

impl From<DoctorError> for Failure {
    fn from(error: DoctorError) -> Failure {
        match error {
            DoctorError::Job(error) => error.into(),
            error if error.is_user_error() => Failure::user(error),
            error => Failure::other(error),
        }
    }
}
