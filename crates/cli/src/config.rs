//! `--config FILE` and `--print-config`: options of a command as TOML. What the file says becomes words of the command
//! line, so that every option can stand in it, and means the same there.

use std::ffi::OsString;
use std::fmt::{Display, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::builder::PossibleValue;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use tensorwire_base::nearest;
use tensorwire_nn::Schedule;
use tensorwire_train::{DeviceChoice, WireType};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Failure;
use super::command_line::{has_config, innermost};

/// The two options that no file has.
pub(crate) const FILE: &str = "config";
pub(crate) const PRINT: &str = "print-config";

/// The command line with what the file says behind it, and the file, if one is given. What the command line says itself, or
/// excludes, is left out.
///
/// # Errors
/// When the file cannot be read, or has what is no option of this command.
pub(crate) fn with_file(
    command: &Command,
    mut line: Vec<OsString>,
) -> Result<(Vec<OsString>, Option<PathBuf>), Failure> {
    // what was given, whatever else is missing or wrong; that is said when all of it is there
    let mut lenient = command.clone().ignore_errors(true);
    let Ok(matches) = lenient.try_get_matches_from_mut(&line) else { return Ok((line, None)) };
    let (chosen, given) = innermost(&lenient, &matches);
    if !has_config(chosen) {
        return Ok((line, None));
    }
    let Some(path) = given.get_one::<PathBuf>(FILE).cloned() else { return Ok((line, None)) };
    let text = std::fs::read_to_string(&path).map_err(|error| {
        let path = path.display();
        Failure::user(format!(
            "cannot read --config {path}: {error}; give a TOML file, as --print-config writes it"
        ))
    })?;
    for (arg, words) in (Config { path: &path, text: &text, command: chosen }).options()? {
        let is_said = |other: &&Arg| {
            given.value_source(other.get_id().as_str()) == Some(ValueSource::CommandLine)
        };
        let excludes = |said: &Arg| {
            let has = |of: &Arg, other: &Arg| {
                chosen
                    .get_arg_conflicts_with(of)
                    .iter()
                    .any(|found| found.get_id() == other.get_id())
            };
            said.get_id() == arg.get_id() || has(said, arg) || has(arg, said)
        };
        if !chosen.get_arguments().filter(is_said).any(excludes) {
            line.extend(words.into_iter().map(OsString::from));
        }
    }
    Ok((line, Some(path)))
}

/// The options of a command as TOML, in tables by their groups. Defaults are comments, those that clap knows and those that were
/// worked out, by option.
///
/// # Errors
/// When a value is no text.
pub(crate) fn printed(
    command: &Command,
    matches: &ArgMatches,
    worked_out: &[(&str, String)],
) -> Result<String, Failure> {
    let mut groups: Vec<(&str, String)> = Vec::new();
    for arg in options(command) {
        let Some(key) = arg.get_long() else { continue };
        let found = || worked_out.iter().find(|(option, _)| *option == key);
        let (value, why) = match (value(arg, matches)?, found()) {
            (Some(value), _) => (value, ""),
            (None, Some((_, value))) => (scalar(value), "    # worked out"),
            (None, None) => continue,
        };
        let is_default =
            matches.value_source(arg.get_id().as_str()) == Some(ValueSource::DefaultValue);
        let comment = if is_default || !why.is_empty() { "# " } else { "" };
        let heading = heading(arg);
        let at = groups.iter().position(|(name, _)| *name == heading).unwrap_or(groups.len());
        if at == groups.len() {
            groups.push((heading, String::new()));
        }
        // writing to a string does not fail
        let _ = writeln!(groups[at].1, "{comment}{key} = {value}{why}");
    }
    let tables = groups.iter().map(|(name, lines)| format!("[{}]\n{lines}", slug(name)));
    Ok(tables.collect::<Vec<_>>().join("\n"))
}

/// What an option is, as TOML; none if it is nothing.
fn value(arg: &Arg, matches: &ArgMatches) -> Result<Option<String>, Failure> {
    let id = arg.get_id().as_str();
    match arg.get_action() {
        ArgAction::SetTrue => return Ok(Some(matches.get_flag(id).to_string())),
        ArgAction::Count => return Ok(Some(matches.get_count(id).to_string())),
        _ => {}
    }
    let Some(raw) = matches.get_raw(id) else { return Ok(None) };
    let known = arg.get_possible_values();
    // by its own name, whatever it was called
    let named = |text: &str| {
        let meant = known.iter().find(|known| known.matches(text, arg.is_ignore_case_set()));
        scalar(meant.map_or(text, PossibleValue::get_name))
    };
    let typed = || raw.map(|text| text.to_str().map(str::to_string)).collect();
    let texts: Option<Vec<String>> = understood(id, matches).or_else(typed);
    let texts = texts.ok_or_else(|| {
        Failure::user(format!("--{id} is no UTF-8, which TOML is; give it on the command line"))
    })?;
    let texts: Vec<String> = texts.iter().map(|text| named(text)).collect();
    Ok(Some(match (arg.get_action(), texts.as_slice()) {
        (ArgAction::Set, [one]) => one.clone(),
        _ => format!("[{}]", texts.join(", ")),
    }))
}

/// What was read of texts that have several names for one thing without a list of them, as their types show it. None of other
/// types, whose texts stay as they are typed: a size, a number.
fn understood(id: &str, matches: &ArgMatches) -> Option<Vec<String>> {
    // a name of a model is a text that its parser has made the model's own
    shown::<String>(id, matches)
        .or_else(|| shown::<WireType>(id, matches))
        .or_else(|| shown::<DeviceChoice>(id, matches))
        .or_else(|| shown::<Schedule>(id, matches))
}

/// The values of an option, if they are of this type.
fn shown<T: Display + Clone + Send + Sync + 'static>(
    id: &str,
    matches: &ArgMatches,
) -> Option<Vec<String>> {
    let values = matches.try_get_many::<T>(id).ok().flatten()?;
    Some(values.map(T::to_string).collect())
}

/// A number as it is written, anything else in quotes.
fn scalar(text: &str) -> String {
    let number = DeValue::parse(text).is_ok_and(|value| match value.get_ref() {
        DeValue::Integer(number) => number.as_str() == text,
        DeValue::Float(number) => number.as_str() == text,
        _ => false,
    });
    if number { text.to_string() } else { toml::Value::from(text).to_string() }
}

/// The options that may stand in a file.
fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    let is_option = |arg: &&Arg| match arg.get_action() {
        ArgAction::SetTrue | ArgAction::Count | ArgAction::Set | ArgAction::Append => {
            arg.get_long().is_some_and(|name| name != FILE && name != PRINT)
        }
        _ => false,
    };
    command.get_arguments().filter(is_option)
}

fn heading(arg: &Arg) -> &str {
    arg.get_help_heading().unwrap_or("Options")
}

/// A heading as the name of a table.
fn slug(heading: &str) -> String {
    heading.to_lowercase().replace(' ', "-")
}

/// A file that is read for a command.
struct Config<'a> {
    path: &'a Path,
    text: &'a str,
    command: &'a Command,
}

impl<'a> Config<'a> {
    /// Each option of the file, and the words that say the same on a command line.
    fn options(&self) -> Result<Vec<(&'a Arg, Vec<String>)>, Failure> {
        let table = DeTable::parse(self.text)
            .map_err(|error| self.wrong(error.span().unwrap_or_default(), error.message()))?;
        let mut found = Vec::new();
        for (key, value) in table.get_ref() {
            match value.get_ref() {
                DeValue::Table(group) => {
                    self.check_group(key)?;
                    for (key, value) in group {
                        found.push((key.span().start, self.option(key, value)?));
                    }
                }
                _ => found.push((key.span().start, self.option(key, value)?)),
            }
        }
        // in the order of the file
        found.sort_by_key(|(at, _)| *at);
        Ok(found.into_iter().map(|(_, option)| option).collect())
    }

    fn check_group(&self, key: &Spanned<impl AsRef<str>>) -> Result<(), Failure> {
        let name = key.get_ref().as_ref();
        let known: Vec<String> = options(self.command).map(|arg| slug(heading(arg))).collect();
        if known.iter().any(|known| known == name) {
            return Ok(());
        }
        let meant = meant(name, known.iter().map(String::as_str));
        let what = format!("there is no group of options '{name}'{meant}");
        Err(self.wrong(key.span(), &what))
    }

    fn option(
        &self,
        key: &Spanned<impl AsRef<str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(&'a Arg, Vec<String>), Failure> {
        let typed = key.get_ref().as_ref();
        // as files of other tools have it, too
        let name = &*typed.replace('_', "-");
        let is_it = |arg: &&Arg| {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long() == Some(name) || aliases.contains(&name)
        };
        let Some(arg) = options(self.command).find(is_it) else {
            let known = options(self.command).filter_map(Arg::get_long);
            let of = self.command.get_bin_name().unwrap_or(self.command.get_name());
            let what = format!("there is no option '{typed}' of {of}{}", meant(name, known));
            return Err(self.wrong(key.span(), &what));
        };
        let wants = |what: &str| self.wrong(value.span(), &format!("'{name}' is {what}"));
        let words = match (arg.get_action(), value.get_ref()) {
            (ArgAction::SetTrue, DeValue::Boolean(true)) => vec![format!("--{name}")],
            (ArgAction::SetTrue, DeValue::Boolean(false)) => Vec::new(),
            (ArgAction::SetTrue, _) => return Err(wants("true or false")),
            (ArgAction::Count, value) => {
                let times = text(value).and_then(|text| text.parse::<u8>().ok());
                let times = times.ok_or_else(|| wants("a small number"))?;
                vec![format!("--{name}"); usize::from(times)]
            }
            (action, DeValue::Array(list)) => {
                let texts = list.iter().map(|one| text(one.get_ref())).collect::<Option<Vec<_>>>();
                let texts = texts.ok_or_else(|| wants("a list of texts or numbers"))?;
                match action {
                    ArgAction::Append => {
                        texts.iter().map(|text| format!("--{name}={text}")).collect()
                    }
                    // such an option takes a list as one text
                    _ => vec![format!("--{name}={}", texts.join(","))],
                }
            }
            (_, value) => {
                let text =
                    text(value).ok_or_else(|| wants("a text, a number or a list of them"))?;
                vec![format!("--{name}={text}")]
            }
        };
        Ok((arg, words))
    }

    /// One line that says where and what.
    fn wrong(&self, span: Range<usize>, what: &str) -> Failure {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        Failure::user(format!("{}, line {line}: {what}", self.path.display()))
    }
}

/// What one value is on a command line.
fn text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
            .ok()
            .map(|number| number.to_string()),
        DeValue::Float(number) => Some(number.as_str().to_string()),
        _ => None,
    }
}

/// What may have been meant, as the end of a line.
fn meant<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> String {
    nearest(given, known).map(|name| format!("; did you mean '{name}'?")).unwrap_or_default()
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
