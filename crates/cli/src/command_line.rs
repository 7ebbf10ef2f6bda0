//! From the words of a command line to arguments: what clap is told beside the structs, how wide help is, and which
//! words come from a file.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, ColorChoice, Command, CommandFactory, FromArgMatches};

use super::args::{Arguments, PROGRAM};
use super::{Failure, config, output};

/// Columns of help where no terminal says how many there are, and at most.
const WIDTH: usize = 80;

/// The commands that take `--config`.
const CONFIGURED: [&[&str]; 2] = [&["train"], &["bench", "step"]];

/// Which help is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Help {
    /// `-h`: a line an option, of the options that most people need.
    Short,
    /// `--help`.
    Long,
}

/// Reads a command line. None if it has been answered: `--print-config`.
pub(crate) fn read(line: Vec<OsString>) -> Result<Option<Arguments>, Failure> {
    let form = if words(&line).any(|word| word == "-h") { Help::Short } else { Help::Long };
    let mut command = command(form).color(color(&line));
    let (line, file) = config::with_file(&command, line)?;
    let matches = command.try_get_matches_from_mut(line).unwrap_or_else(|error| {
        let is_wrong = error.use_stderr();
        if let Some(file) = file.filter(|_| is_wrong) {
            output::note(format_args!("with the options in {}:", file.display()));
        }
        error.exit()
    });
    let (chosen, of_it) = innermost(&command, &matches);
    if has_config(chosen) && of_it.get_flag(config::PRINT) {
        output::print(config::printed(chosen, of_it)?.trim_end())?;
        return Ok(None);
    }
    match Arguments::from_arg_matches(&matches) {
        Ok(arguments) => Ok(Some(arguments)),
        Err(error) => error.format(&mut command).exit(),
    }
}

/// The program's command as clap has it.
pub(crate) fn command(form: Help) -> Command {
    let mut command = Arguments::command();
    for path in CONFIGURED {
        command = at(command, path, &|command| command.args(config_arguments()));
    }
    let help = Arg::new("help").short('h').long("help").action(ArgAction::Help).global(true);
    let help = help.help("Print help; --help says more").help_heading(PROGRAM);
    let version = Arg::new("version").short('V').long("version").action(ArgAction::Version);
    let version = version.help("Print the version").help_heading(PROGRAM);
    let command = command.disable_help_flag(true).disable_version_flag(true);
    let command = command.arg(help).arg(version).max_term_width(WIDTH);
    match form {
        Help::Short => in_short(command),
        Help::Long => command,
    }
}

/// The command at the end of this path, changed.
fn at(command: Command, path: &[&str], change: &dyn Fn(Command) -> Command) -> Command {
    match path {
        [] => change(command),
        [first, rest @ ..] => command.mut_subcommand(first, |inner| at(inner, rest, change)),
    }
}

fn config_arguments() -> [Arg; 2] {
    let file = Arg::new(config::FILE).long(config::FILE).value_name("FILE");
    let file = file.value_parser(ValueParser::from(clap::value_parser!(PathBuf)));
    [
        file.help("Read options from this TOML file").help_heading(PROGRAM).long_help(
            "Read options from this TOML file. A key is the name of an option, as in `batch = 32`; keys may stand in \
             tables that are called as the groups of this help, as in `[model-and-data]`. The command line wins over \
             the file",
        ),
        Arg::new(config::PRINT)
            .long(config::PRINT)
            .action(ArgAction::SetTrue)
            .help("Print the options as --config takes them")
            .long_help(
                "Print the options as --config takes them, and end. What nobody gave and has a default is a comment",
            )
            .help_heading(PROGRAM),
    ]
}

/// The same command, whose help has a line an option: possible values are for the long help.
fn in_short(command: Command) -> Command {
    let command = command.mut_args(|arg| match arg.get_action() {
        ArgAction::Set | ArgAction::Append => arg.hide_possible_values(true),
        _ => arg,
    });
    command.mut_subcommands(in_short)
}

/// The command that was chosen, and what was given to it.
pub(crate) fn innermost<'a>(
    command: &'a Command,
    matches: &'a ArgMatches,
) -> (&'a Command, &'a ArgMatches) {
    let (mut command, mut matches) = (command, matches);
    while let Some((name, inner)) = matches.subcommand() {
        let Some(found) = command.find_subcommand(name) else { break };
        (command, matches) = (found, inner);
    }
    (command, matches)
}

pub(crate) fn has_config(command: &Command) -> bool {
    command.get_arguments().any(|arg| arg.get_id() == config::PRINT)
}

/// The words that are options of this program, and not another's.
fn words(line: &[OsString]) -> impl Iterator<Item = &OsStr> {
    line.iter().map(OsString::as_os_str).take_while(|word| *word != "--")
}

/// What `--color` says, which clap wants to know before it reads the line.
fn color(line: &[OsString]) -> ColorChoice {
    let mut words = words(line);
    while let Some(word) = words.next() {
        let value = match word.to_str() {
            Some("--color") => words.next().and_then(OsStr::to_str),
            Some(word) => word.strip_prefix("--color="),
            None => None,
        };
        match value {
            Some("always") => return ColorChoice::Always,
            Some("never") => return ColorChoice::Never,
            _ => {}
        }
    }
    ColorChoice::Auto
}
