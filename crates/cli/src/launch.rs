//! `tensorwire launch`: another subcommand on several hosts, which is what its own `--hosts` does; and what this
//! process would be under whoever started it.

use std::ffi::OsString;

use clap::Parser;

use super::args::{Arguments, LaunchArgs};
use super::output::print;
use super::{Failure, dispatch};
use tensorwire::program::detected;

pub(crate) fn run(args: LaunchArgs) -> Result<(), Failure> {
    if args.detect {
        return print(match detected().map_err(Failure::user)? {
            None => {
                "nobody started several processes: this one starts those of a job itself".into()
            }
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
        });
    }
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
    match Arguments::try_parse_from(line) {
        Ok(arguments) => dispatch(arguments.command),
        Err(error) => error.exit(),
    }
}
