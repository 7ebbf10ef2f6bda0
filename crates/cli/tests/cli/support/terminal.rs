//! A terminal to run the program on, and what stands on it in the end.

use super::{Job, on_path};
use tensorwire_testkit::skip::skip;

/// Starts this program on a terminal of so many columns.
pub(crate) fn on_terminal(columns: usize, arguments: &str) -> Job {
    on_noted_terminal(columns, arguments, "/dev/null")
}

/// The same; what is sent to the terminal is written to a file in the job's folder, too, as it is sent.
pub(crate) fn on_noted_terminal(columns: usize, arguments: &str, file: &str) -> Job {
    let mut command = std::process::Command::new("script");
    let program = env!("CARGO_BIN_EXE_tensorwire");
    let line = format!("stty cols {columns} rows 24; exec {program} {arguments}");
    // what is logged, on a machine that is slow for a moment, is no drawing of a bar and no table
    command.env("TENSORWIRE_LOG", "error");
    command.env("TERM", "xterm").args(["-qefc", &line, file]);
    Job::start_command(command)
}

pub(crate) fn has_script() -> bool {
    let found = on_path("script").is_some();
    if !found {
        skip(None, &"no script(1), of bsdutils, to have a terminal with");
    }
    found
}

/// What stands on a terminal in the end, line by line, of what a bar sends to it.
pub(crate) fn screen(sent: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<Vec<char>> = vec![Vec::new()];
    let (mut row, mut column, mut rest) = (0, 0, sent);
    while let Some(next) = rest.chars().next() {
        rest = &rest[next.len_utf8()..];
        match next {
            '\r' => column = 0,
            '\n' => row += 1,
            '\u{1b}' => {
                let end = rest.find(|end: char| end.is_ascii_alphabetic()).unwrap();
                match &rest[end..=end] {
                    "A" => row -= rest[1..end].parse().unwrap_or(1),
                    "K" => lines[row].clear(),
                    "J" => lines.truncate(row + 1),
                    other => panic!("a sequence that ends with {other}"),
                }
                rest = &rest[end + 1..];
            }
            shown => {
                if column == columns {
                    (row, column) = (row + 1, 0);
                }
                lines.resize(lines.len().max(row + 1), Vec::new());
                let width = lines[row].len().max(column + 1);
                lines[row].resize(width, ' ');
                lines[row][column] = shown;
                column += 1;
            }
        }
        lines.resize(lines.len().max(row + 1), Vec::new());
    }
    lines.into_iter().map(|line| line.into_iter().collect()).collect()
}
