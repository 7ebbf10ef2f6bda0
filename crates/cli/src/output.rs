//! What the program says: results on standard output, everything else on standard error, and only
//! through here. Prose is as wide as the terminal at most; a file or a program gets whole lines. That nobody reads it is no
//! reason to stop a job, or to stay.

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use console::Term;
use serde::Serialize;
use tensorwire::program::in_time;
use tensorwire_bench::Machine;
use textwrap::{Options, WordSplitter};

use super::Failure;

/// Nobody wants to be told how things go.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Prints a paragraph for people: as wide as the terminal at most.
pub(crate) fn print_text(text: impl Display) -> Result<(), Failure> {
    print(wrapped(&text.to_string(), columns_of(Term::stdout()), 0))
}

/// Prints a line of results, as it is. A reader that has seen enough (`| head`) is no error.
pub(crate) fn print(line: impl Display) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{line}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::other(format!("writing to standard output: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// One line of JSON. Keys come in alphabetical order.
pub(crate) fn json_line(value: &impl Serialize) -> Result<String, Failure> {
    Ok(serde_json::to_value(value).map_err(Failure::other)?.to_string())
}

/// A result, and the machine that it is of.
#[derive(Serialize)]
pub(crate) struct OnMachine<'a, T> {
    #[serde(flatten)]
    result: &'a T,
    machine: Machine,
}

impl<'a, T> OnMachine<'a, T> {
    pub(crate) fn here(result: &'a T) -> OnMachine<'a, T> {
        OnMachine { result, machine: Machine::here() }
    }
}

/// With `--quiet`, only results and last words are said from here on.
pub(crate) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

pub(crate) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Says something on standard error, as wide as the terminal at most; if nobody takes it, nobody wants it.
pub(crate) fn note(text: impl Display) {
    if !is_quiet() {
        say(wrapped(&text.to_string(), columns_of(Term::stderr()), 0));
    }
}

/// How wide a terminal is. None where it is none.
pub(crate) fn columns_of(term: Term) -> Option<usize> {
    let (_, columns) = Some(term).filter(Term::is_term)?.size_checked()?;
    // some say that they have none
    Some(usize::from(columns)).filter(|columns| *columns > 0)
}

/// How many lines a terminal shows at once, but the one of its prompt. None where it is none.
pub(crate) fn lines_of(term: Term) -> Option<usize> {
    let (lines, _) = Some(term).filter(Term::is_term)?.size_checked()?;
    Some(usize::from(lines)).filter(|lines| *lines > 1).map(|lines| lines - 1)
}

/// The text with its lines wrapped to so many columns, if there is such a bound: a line goes on below its beginning and `indent` columns
/// further right. What has no blank stays whole, so that a path and a hash can be copied.
pub(crate) fn wrapped(text: &str, columns: Option<usize>, indent: usize) -> String {
    let Some(columns) = columns else { return text.to_string() };
    let indent = " ".repeat(indent);
    let options = Options::new(columns).subsequent_indent(&indent).break_words(false);
    let options = options.word_splitter(WordSplitter::NoHyphenation);
    let lines = text.split('\n').map(|line| textwrap::fill(line, &options));
    lines.collect::<Vec<String>>().join("\n")
}

/// Says why the program ends, which it does even if the terminal does not take it.
pub(crate) fn last_words(line: String) {
    in_time(move || say(line));
}

/// Says something on standard error, and waits for the terminal.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_keeps_to_the_terminal_and_loses_nothing() {
        let text = "  transport        writes of 8 B to 4 MiB both ways and a read, every byte right\n\nweights sha256 \
                    0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        assert_eq!(wrapped(text, None, 0), text, "a file gets whole lines");
        assert_eq!(wrapped(text, Some(200), 19), text, "so does a wide terminal");
        let narrow = wrapped(text, Some(60), 19);
        let lines: Vec<&str> = narrow.lines().collect();
        assert_eq!(lines[0], "  transport        writes of 8 B to 4 MiB both ways and a");
        assert_eq!(lines[1], " ".repeat(19) + "read, every byte right");
        assert_eq!((lines[2], lines[3]), ("", "weights sha256"));
        let words = |text: &str| text.split_whitespace().map(str::to_string).collect::<Vec<_>>();
        assert_eq!(words(&narrow), words(text));
    }
}
