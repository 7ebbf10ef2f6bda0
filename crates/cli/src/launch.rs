//! `tensorwire launch`: another subcommand on several hosts, which is what its own `--hosts` does; and what this
//! process would be under whoever started it.

use std::ffi::OsString;

use serde::Serialize;
use tensorwire::program::detected;

use super::args::{LaunchArgs, ProgramArgs};
use super::output::{json_line, print, print_text};
use super::{Failure, begin, command_line};

/// Does what the command line inside says, with what `program` says where that does not.
pub(crate) fn run(args: LaunchArgs, program: ProgramArgs) -> Result<(), Failure> {
    let mut line: Vec<OsString> = vec!["tensorwire".into()];
    line.extend(args.command.into_iter().map(OsString::from));
    let options = [
        ("--hosts", args.hosts),
        ("--rsh", args.rsh),
        ("--listen", args.listen.map(|listen| listen.to_string())),
    ];
    for (option, value) in options {
        line.extend(value.into_iter().flat_map(|value| [option.into(), OsString::from(value)]));
    }
    let Some(mut inner) = command_line::read(line)? else { return Ok(()) };
    inner.program = inner.program.within(program);
    begin(inner)
}

/// What `--json` prints of this process; all is null but the members where nobody started several.
#[derive(Default, Serialize)]
struct Said {
    by: Option<&'static str>,
    launched_as: Option<String>,
    members: u32,
    local_rank: Option<u32>,
    /// The launcher's.
    host: Option<String>,
    ports: Option<Vec<u16>>,
}

/// Says what this process is to whoever started it.
pub(crate) fn detect(json: bool) -> Result<(), Failure> {
    let found = detected().map_err(Failure::user)?;
    if json {
        let said = found.map_or_else(Said::default, |found| Said {
            by: Some(found.by.name()),
            launched_as: Some(found.launched_as.to_string()),
            members: found.world,
            local_rank: found.local_rank,
            host: found.rendezvous.host,
            ports: Some(found.rendezvous.ports),
        });
        return print(json_line(&said)?);
    }
    print_text(match found {
        None => "nobody started several processes: this one starts those of a job itself".into(),
        Some(found) => {
            let local = found.local_rank.map(|rank| format!(", local rank {rank}"));
            format!(
                "{}: {} of {} members{}; the launcher is at {}",
                found.by,
                found.launched_as,
                found.world,
                local.unwrap_or_default(),
                found.rendezvous,
            )
        }
    })
}
