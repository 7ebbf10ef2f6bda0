//! `tensorwire report`: what was measured, as a page.

use std::io::Write;
use std::path::{Path, PathBuf};

use tensorwire_report::{Line, report};
use tensorwire_train::whole_file;

use super::args::ReportArgs;
use super::{Failure, output::print};

pub(crate) fn run(args: &ReportArgs) -> Result<(), Failure> {
    check_output(&args.output, &args.lines)?;
    write(&args.output, &args.lines)
}

/// Fails if a page cannot be written there, or would replace the lines that it is made of.
pub(super) fn check_output(output: &Path, files: &[PathBuf]) -> Result<(), Failure> {
    let shown = output.display();
    if files.iter().any(|file| is_same(file, output)) {
        return Err(Failure::user(format!(
            "the page would replace the lines in {shown}; give it another file"
        )));
    }
    whole_file::check_writable(output).map_err(|error| {
        Failure::user(format!(
            "cannot write a page to {shown}: {error}; give it a file in a folder that exists"
        ))
    })
}

/// Fails if more lines are to go to one of these, and no page could be made of it then.
pub(super) fn check_lines(files: &[PathBuf]) -> Result<(), Failure> {
    match files.iter().find(|file| !file.is_file()) {
        Some(file) => Err(Failure::user(format!(
            "no page can be made of {}, which is no file; give --json a file",
            file.display()
        ))),
        None => read(files).map(drop),
    }
}

fn read(files: &[PathBuf]) -> Result<Vec<Line>, Failure> {
    let mut lines = Vec::new();
    for file in files {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file).map_err(|error| {
            Failure::user(format!(
                "cannot read lines from {name}: {error}; give files of JSON lines"
            ))
        })?;
        lines.extend(Line::read_all(&name, &text).map_err(Failure::user)?);
    }
    Ok(lines)
}

/// Makes a page of the lines in files.
pub(super) fn write(output: &Path, files: &[PathBuf]) -> Result<(), Failure> {
    let shown = output.display();
    let lines = read(files)?;
    let report = report(&lines).map_err(Failure::user)?;
    whole_file::write(output, |file| file.write_all(report.html.as_bytes()))
        .map_err(|error| Failure::other(format!("writing a page to {shown}: {error}")))?;
    let left_out = match report.left_out {
        0 => String::new(),
        count => format!("; {count} of {} lines left out, the page says why", lines.len()),
    };
    let runs = match report.runs {
        0 => String::new(),
        1 => "; 1 training run".to_string(),
        count => format!("; {count} training runs"),
    };
    if report.figures == 0 && report.runs > 0 {
        return print(format_args!("{shown}{}{left_out}", runs.replacen(';', ":", 1)));
    }
    print(format_args!(
        "{shown}: {} figures; claims met {}, short {}, not measured {}{runs}{left_out}",
        report.figures, report.met, report.short, report.unmeasured
    ))
}

/// Do both names lead to one file?
fn is_same(a: &Path, b: &Path) -> bool {
    let found = [a, b].map(|path| path.canonicalize().ok());
    found[0].is_some() && found[0] == found[1]
}
