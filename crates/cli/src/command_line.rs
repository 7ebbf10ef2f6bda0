//! From the words of a command line to arguments: what clap is told beside the structs, how wide help is, and which
//! words come from a file.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::error::{ContextKind, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, ColorChoice, Command, CommandFactory, FromArgMatches};
use tensorwire_bench::ByName;
use tensorwire_train::Supply;

use super::args::{Arguments, PROGRAM};
use super::worked_out::worked_out;
use super::{Failure, config, hints, output};

/// Columns of help where no terminal says how many there are, and at most.
const WIDTH: usize = 80;

/// The commands that take `--config`.
const CONFIGURED: [&[&str]; 2] = [&["train"], &["bench", "step"]];

/// The commands that take what `train` does.
const TRAINING: [&str; 4] = ["train", "eval", "graph", "step"];

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
    let alone = line.clone();
    let (line, file) = config::with_file(&command, line)?;
    let first = words(&line).nth(1).and_then(OsStr::to_str).map(str::to_string);
    let trains = words(&line).any(|word| TRAINING.iter().any(|name| word == *name));
    let matches = command.try_get_matches_from_mut(line).unwrap_or_else(|mut error| {
        let is_wrong = error.use_stderr();
        // what the command line says alone is not the file's
        let is_of_file = || match self::command(form).try_get_matches_from(alone) {
            Ok(_) => true,
            Err(other) => said(&other) != said(&error),
        };
        let file = file.filter(|_| is_wrong && is_of_file());
        hints::trim(&mut error);
        hints::add(&mut error, trains, first.as_deref());
        if let Some(clearer) = hints::of_number(&error) {
            error = clearer.with_cmd(&command);
        }
        if let Some(file) = file {
            output::note(format_args!("with the options in {}:", file.display()));
        }
        error.exit()
    });
    let (chosen, of_it) = innermost(&command, &matches);
    if has_config(chosen) && of_it.get_flag(config::PRINT) {
        let config = Arguments::from_arg_matches(&matches).ok().and_then(Arguments::job);
        if let Some(config) = &config {
            // a file with another name for it helps nobody
            ByName.model(config)?;
        }
        let worked_out = config.as_ref().map(worked_out).unwrap_or_default();
        output::print(config::printed(chosen, of_it, &worked_out)?.trim_end())?;
        return Ok(None);
    }
    match Arguments::from_arg_matches(&matches) {
        Ok(arguments) => Ok(Some(arguments)),
        Err(error) => error.format(&mut command).exit(),
    }
}

/// What an error is, and of what.
fn said(error: &clap::Error) -> (ErrorKind, Vec<String>) {
    // the usage has whatever was given
    let of = error.context().filter(|(kind, _)| *kind != ContextKind::Usage);
    (error.kind(), of.map(|(_, value)| value.to_string()).collect())
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
    let command = with_negative_numbers(in_any_case(command));
    match form {
        Help::Short => in_short(command),
        Help::Long => command,
    }
}

/// The same command, whose options are told what is wrong with a negative number, where it would be taken for an option.
fn with_negative_numbers(command: Command) -> Command {
    let command = command.mut_args(|arg| match arg.get_action() {
        ArgAction::Set | ArgAction::Append if !arg.is_positional() => {
            arg.allow_negative_numbers(true)
        }
        _ => arg,
    });
    command.mut_subcommands(with_negative_numbers)
}

/// The same command, which takes names out of a list in any case.
fn in_any_case(command: Command) -> Command {
    let command = command.mut_args(|arg| match arg.get_action() {
        ArgAction::Set | ArgAction::Append if !arg.get_possible_values().is_empty() => {
            arg.ignore_case(true)
        }
        _ => arg,
    });
    command.mut_subcommands(in_any_case)
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
    let file = file.value_parser(clap::value_parser!(PathBuf));
    [
        file.help("Read options from this TOML file").help_heading(PROGRAM).long_help(
            "Read options from this TOML file. A key is the name of an option, as in `batch = 32`; keys may stand in \
             tables that are called as the groups of this help, as in `[model-and-data]`. The command line wins over \
             the file",
        ),
        Arg::new(config::PRINT)
            .long(config::PRINT)
            .action(ArgAction::SetTrue)
            .hide_short_help(true)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// More options than a reader takes in without groups.
    const UNGROUPED_MAX: usize = 12;
    /// Lines of a short help.
    const SHORT_LINES: usize = 60;

    /// Every command that people see, by its words, as it is in a terminal of 80 columns.
    fn commands(form: Help) -> Vec<(String, Command)> {
        let mut root = command(form).term_width(WIDTH);
        root.build();
        let mut found = vec![("tensorwire".to_string(), root)];
        let mut at = 0;
        while at < found.len() {
            let (words, command) = found[at].clone();
            let inner = command.get_subcommands().filter(|inner| !inner.is_hide_set());
            let inner = inner.filter(|inner| inner.get_name() != "help");
            found.extend(
                inner.map(|inner| (format!("{words} {}", inner.get_name()), inner.clone())),
            );
            at += 1;
        }
        assert!(found.len() > 20, "{}", found.len());
        found
    }

    fn visible(command: &Command) -> impl Iterator<Item = &Arg> {
        command.get_arguments().filter(|arg| !arg.is_hide_set())
    }

    #[test]
    fn no_line_of_help_is_wider_than_a_terminal() {
        for form in [Help::Short, Help::Long] {
            for (words, mut command) in commands(form) {
                let text = match form {
                    Help::Short => command.render_help(),
                    Help::Long => command.render_long_help(),
                };
                for line in text.to_string().lines() {
                    assert!(line.chars().count() <= WIDTH, "{words}: {line}");
                }
            }
        }
    }

    #[test]
    fn short_help_fits_a_screen_and_has_a_line_an_option() {
        for (words, mut command) in commands(Help::Short) {
            let text = command.render_help().to_string();
            let lines: Vec<&str> = text.lines().collect();
            assert!(lines.len() <= SHORT_LINES, "{words}: {} lines\n{text}", lines.len());
            for arg in visible(&command).filter(|arg| !arg.is_hide_short_help_set()) {
                let Some(name) = arg.get_long() else { continue };
                let option = format!("--{name}");
                let is_of = |line: &&str| {
                    line.starts_with("  ")
                        && line
                            .split_whitespace()
                            .take(2)
                            .any(|word| word.trim_end_matches("...") == option)
                };
                let at = lines.iter().position(is_of);
                let at = at.unwrap_or_else(|| panic!("{words} {option}:\n{text}"));
                let behind = lines.get(at + 1).copied().unwrap_or_default();
                // a default that does not fit beside its option may stand below
                let goes_on = behind.starts_with("            ") && !behind.ends_with(']');
                assert!(!goes_on, "{words} {option} takes two lines:\n{text}");
            }
        }
    }

    #[test]
    fn many_options_are_in_groups_and_each_is_explained() {
        for (words, command) in commands(Help::Long) {
            let options: Vec<&Arg> = visible(&command).collect();
            let own = options.iter().filter(|arg| arg.get_help_heading() != Some(PROGRAM)).count();
            for arg in options {
                assert!(arg.get_help().is_some(), "{words}: {arg} has no help");
                let is_grouped = arg.is_positional() || arg.get_help_heading().is_some();
                assert!(is_grouped || own <= UNGROUPED_MAX, "{words}: {arg} has no group");
            }
        }
    }

    #[test]
    fn the_definition_is_sound() {
        for form in [Help::Short, Help::Long] {
            command(form).debug_assert();
        }
    }

    #[test]
    fn what_people_type_is_taken() {
        let read = |line: &str| {
            let words = std::iter::once("tensorwire").chain(line.split_whitespace());
            read(words.map(OsString::from).collect()).unwrap().unwrap().command
        };
        let config = |line: &str| match read(line) {
            crate::args::Command::Train(args) => args.config().unwrap(),
            other => panic!("{other:?}"),
        };
        // and is printed by its own name, which a file is read back by
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job.toml");
        let printed = |line: &str| {
            let mut command = command(Help::Long);
            let words = std::iter::once("tensorwire").chain(line.split_whitespace());
            let matches = command.try_get_matches_from_mut(words).unwrap();
            let (chosen, given) = innermost(&command, &matches);
            super::config::printed(chosen, given, &[]).unwrap()
        };
        for (alias, name) in [
            ("--transport rdma", "--transport verbs"),
            ("--transport ib", "--transport verbs"),
            ("--transport roce", "--transport verbs"),
            ("--transport infiniband", "--transport verbs"),
            ("--transport shmem", "--transport shm"),
            ("--strategy ddp", "--strategy allreduce"),
            ("--strategy all-reduce", "--strategy allreduce"),
            ("--strategy parameter-server", "--strategy ps"),
            ("--strategy easgd", "--strategy dist-esgd"),
            ("--strategy horovod", "--strategy allreduce"),
            ("--strategy PS", "--strategy ps"),
            ("--strategy AllReduce", "--strategy allreduce"),
            ("--strategy DDP", "--strategy allreduce"),
            ("--transport TCP", "--transport tcp"),
            ("--optimizer AdamW", "--optimizer adamw"),
            ("--kernels oneDNN", "--kernels onednn"),
            ("--model ResNet50", "--model resnet50"),
            ("--model VGG-16", "--model vgg16"),
            ("--batch-size 8", "--batch 8"),
            ("--learning-rate 0.1", "--lr 0.1"),
            ("--lr-scheduler cosine", "--schedule cosine"),
            ("--warmup-steps 5", "--warmup 5"),
            ("--max-grad-norm 1", "--clip-norm 1"),
            ("--clip-grad-norm 1", "--clip-norm 1"),
            ("--gradient-accumulation-steps 2", "--accumulate 2"),
            ("--num-epochs 2", "--epochs 2"),
            ("--max-steps 2", "--steps 2"),
            ("--dataset digits", "--data digits"),
            ("--max-restarts 2", "--restarts 2"),
            ("--wire fp32", "--wire f32"),
            ("--wire bfloat16", "--wire bf16"),
            ("--wire top-k", "--wire top-k:0.01"),
            ("--dtype float64", "--dtype f64"),
            ("--dtype float32", "--dtype f32"),
            ("--wire I8", "--wire int8"),
            ("--wire TOP-K:1e-1", "--wire top-k:0.1"),
            ("--device gpu", "--device cuda"),
            ("--device cuda:01", "--device cuda:1"),
            ("--schedule cosine", "--schedule cosine:0"),
            ("--schedule step:1e1,.5", "--schedule step:10,0.5"),
        ] {
            let wanted = config(&format!("train {name}"));
            assert_eq!(config(&format!("train {alias}")), wanted);
            let text = printed(&format!("train {alias}"));
            assert_eq!(text, printed(&format!("train {name}")));
            std::fs::write(&file, &text).unwrap();
            assert_eq!(config(&format!("train --config {}", file.display())), wanted, "{text}");
        }
        assert_ne!(config("train --transport rdma"), config("train --transport tcp"));
    }
}
