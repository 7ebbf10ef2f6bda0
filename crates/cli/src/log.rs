//! What is logged on standard error: `-v` and `-q`, else `TENSORWIRE_LOG`, else `RUST_LOG`, else warnings. Members are
//! told what their launcher was told, on other hosts, too.

use std::io::IsTerminal;
use std::sync::OnceLock;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::args::{ColorArg, ProgramArgs};
use super::{Failure, output};

/// The variables that say what to log, the first before the second.
const OWN: &str = "TENSORWIRE_LOG";
const COMMON: &str = "RUST_LOG";

/// Arguments that tell a member what is logged.
static OF_MEMBERS: OnceLock<Vec<String>> = OnceLock::new();

/// Begins to log, once. `told`: what the launcher of this process logs.
///
/// # Errors
/// When a variable holds what is no filter.
pub(crate) fn start(program: ProgramArgs, told: Option<String>) -> Result<(), Failure> {
    if program.quiet {
        output::be_quiet();
    }
    let chosen = match told.or_else(|| levels(program)) {
        Some(filter) => Some(filter),
        None => variable(OWN)?.or(variable(COMMON)?),
    };
    let builder = EnvFilter::builder().with_default_directive(LevelFilter::WARN.into());
    let filter = builder.parse(chosen.as_deref().unwrap_or_default()).map_err(Failure::user)?;
    let color = program.color.unwrap_or_default();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(is_colored(color))
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .init();
    let mut of_members = Vec::new();
    if let Some(filter) = chosen {
        of_members.extend(["--log".to_string(), filter]);
    }
    if let Some(value) = color.to_possible_value().filter(|_| color != ColorArg::Auto) {
        of_members.extend(["--color".to_string(), value.get_name().to_string()]);
    }
    OF_MEMBERS.get_or_init(|| of_members);
    Ok(())
}

/// Arguments behind `member` that have one log what this process does.
pub(crate) fn of_members() -> Vec<String> {
    OF_MEMBERS.get().cloned().unwrap_or_default()
}

/// What `-v` and `-q` ask for: of this project's parts, as libraries say much that nobody here asked.
fn levels(program: ProgramArgs) -> Option<String> {
    let level = match (program.quiet, program.verbose) {
        (true, _) => return Some("error".to_string()),
        (false, 0) => return None,
        (false, 1) => LevelFilter::INFO,
        (false, 2) => LevelFilter::DEBUG,
        (false, _) => LevelFilter::TRACE,
    };
    Some(format!("warn,tensorwire={level}"))
}

/// The filter in a variable of the environment, if there is one.
fn variable(name: &'static str) -> Result<Option<String>, Failure> {
    let Some(value) = std::env::var_os(name).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let text = value.to_string_lossy().into_owned();
    // other programs look at that variable, too, and may know such a part
    let is_right = EnvFilter::try_new(&text).is_ok() && (name == COMMON || is_ours(&text));
    match is_right {
        true => Ok(Some(text)),
        false => Err(Failure::user(format!(
            "{name}={text} is no log filter; write off, error, warn, info, debug or trace, or levels of parts, as in \
             warn,tensorwire_fabric=debug"
        ))),
    }
}

/// True if every word that stands alone is a level, or a part of this project: a mistyped level would be taken for a
/// part that nobody has.
fn is_ours(filter: &str) -> bool {
    let mut alone = filter.split(',').map(str::trim).filter(|one| !one.contains(['=', '[', ']']));
    alone.all(|word| word.parse::<LevelFilter>().is_ok() || word.starts_with("tensorwire"))
}

fn is_colored(color: ColorArg) -> bool {
    let is_unwanted = || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    match color {
        ColorArg::Always => true,
        ColorArg::Never => false,
        ColorArg::Auto => std::io::stderr().is_terminal() && !is_unwanted(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_alone_is_a_level_or_a_part_of_ours() {
        for right in
            ["info", "OFF", "debug,", "warn,tensorwire_fabric=debug", "tensorwire_launch", "h2=off"]
        {
            assert!(is_ours(right), "{right}");
        }
        for wrong in ["inof", "verbose", "warn,bogus", "yes"] {
            assert!(!is_ours(wrong), "{wrong}");
        }
    }

    #[test]
    fn each_v_says_more() {
        let level = |verbose, quiet| levels(ProgramArgs { verbose, quiet, color: None });
        assert_eq!(level(0, false), None);
        assert_eq!(level(1, false).as_deref(), Some("warn,tensorwire=info"));
        assert_eq!(level(2, false).as_deref(), Some("warn,tensorwire=debug"));
        assert_eq!(level(9, false).as_deref(), Some("warn,tensorwire=trace"));
        assert_eq!(level(0, true).as_deref(), Some("error"));
        for verbose in 1..4 {
            assert!(EnvFilter::try_new(level(verbose, false).unwrap_or_default()).is_ok());
        }
    }
}
