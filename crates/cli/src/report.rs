//! `tensorwire report`: what was measured, as a page, as files of plots, or as tables.

mod pdf;

use std::io::Write;
use std::path::{Path, PathBuf};

use tensorwire_report::{
    LIMIT, LeftOut, Line, PlotFiles, Report, RunComparison, TableFormat, compare, report,
    report_compared, tables,
};
use tensorwire_train::whole_file;

use super::args::{ReportArgs, ReportFormat};
use super::output::{json_line, note, print, print_text};
use super::{Failure, table::table};

/// Rows that one of two runs lacks and that are named in the terminal; JSON has all.
const NAMES_MAX: usize = 3;
/// Where reasons are that the terminal has no room for.
const NO_PAGE: &str = "a page says why: --output p.html";
/// Reasons for which lines were left out, in the terminal; the page has all.
const REASONS_MAX: usize = 5;
/// PDFs that fail before no more are tried: each may take a minute.
const PDF_FAILURES_MAX: usize = 3;
/// What the name of no folder ends with.
const FILES: [&str; 5] = ["svg", "pdf", "png", "csv", "html"];

pub(crate) fn run(args: &ReportArgs) -> Result<(), Failure> {
    let (output, format) = (args.output(), args.format());
    if args.compare && format != ReportFormat::Html {
        return Err(Failure::user(
            "--compare makes a page; leave --format out, or compare without it",
        ));
    }
    if let Some(output) = &output {
        check_name(format.name(), output, &args.lines)?;
    }
    // the page may go into it
    args.plots.as_deref().map(make_folder).transpose()?;
    if let Some(output) = &output {
        check_writable(format.name(), output)?;
    }
    let report = match (args.compare, &output) {
        (true, output) => compared(args, output.as_deref())?,
        (false, None) => Some(evaluated(&args.lines)?),
        (false, Some(output)) => Some(match format {
            ReportFormat::Html => page(output, &args.lines)?,
            ReportFormat::Latex => written(args, output, TableFormat::Latex)?,
            ReportFormat::Markdown => written(args, output, TableFormat::Markdown)?,
            ReportFormat::Csv => written(args, output, TableFormat::Csv)?,
            ReportFormat::Claims => written(args, output, TableFormat::Claims)?,
            ReportFormat::ClaimsJson => written(args, output, TableFormat::ClaimsJson)?,
        }),
    };
    args.plots.as_deref().zip(report).map(|(folder, of)| save(folder, &of.plots)).transpose()?;
    Ok(())
}

/// Fails if `what` cannot be written there, or would replace the lines that it is made of.
pub(super) fn check_output(what: &str, output: &Path, files: &[PathBuf]) -> Result<(), Failure> {
    check_name(what, output, files)?;
    check_writable(what, output)
}

fn check_writable(what: &str, output: &Path) -> Result<(), Failure> {
    whole_file::check_writable(output).map_err(|error| Failure::unwritable(what, output, &error))
}

fn check_name(what: &str, output: &Path, files: &[PathBuf]) -> Result<(), Failure> {
    let shown = output.display();
    if files.iter().any(|file| is_same(file, output)) {
        return Err(Failure::user(format!(
            "{what} would replace the lines in {shown}; give it another file"
        )));
    }
    let end = output.extension().and_then(|end| end.to_str()).unwrap_or_default();
    if ["pdf", "svg", "png"].contains(&end.to_ascii_lowercase().as_str()) {
        return Err(Failure::user(format!(
            "{what} would be no {end} in {shown}; --plots DIR writes each plot as SVG, PDF and CSV, and a browser prints a page"
        )));
    }
    Ok(())
}

/// Fails if more lines are to go to one of these, and no page could be made of it then.
pub(super) fn check_lines(files: &[PathBuf]) -> Result<(), Failure> {
    match files.iter().find(|file| !file.is_file()) {
        Some(file) => Err(Failure::user(format!(
            "no page can be made of {}, which is no file; give --json a file",
            file.display()
        ))),
        None => files.iter().try_for_each(|file| read(file).map(drop)),
    }
}

fn read(file: &Path) -> Result<Vec<Line>, Failure> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|error| {
        Failure::user(format!("cannot read lines from {name}: {error}; give files of JSON lines"))
    })?;
    Line::read_all(&name, &text).map_err(Failure::user)
}

/// The lines of a file that must have some.
pub(super) fn read_file(file: &Path) -> Result<Vec<Line>, Failure> {
    let lines = read(file)?;
    if lines.is_empty() {
        return Err(Failure::user(format!(
            "there are no lines in {}; write some first: tensorwire bench transfer --quick --json {0}",
            file.display()
        )));
    }
    Ok(lines)
}

fn read_files(files: &[PathBuf]) -> Result<Vec<Line>, Failure> {
    let each = files.iter().map(|file| read_file(file)).collect::<Result<Vec<_>, _>>()?;
    Ok(each.concat())
}

/// Makes a page of the lines in files.
pub(super) fn write(output: &Path, files: &[PathBuf]) -> Result<(), Failure> {
    page(output, files).map(drop)
}

fn page(output: &Path, files: &[PathBuf]) -> Result<Report, Failure> {
    let report = report(&read_files(files)?).map_err(Failure::user)?;
    keep(output, &report.html)?;
    print_text(what_it_has(output, &report))?;
    say_left_out(&report.left_out, "the page says why");
    Ok(report)
}

/// What the plots of the lines in files are of.
fn evaluated(files: &[PathBuf]) -> Result<Report, Failure> {
    let report = report(&read_files(files)?).map_err(Failure::user)?;
    say_left_out(&report.left_out, NO_PAGE);
    Ok(report)
}

/// What the page has, in a line.
fn what_it_has(output: &Path, report: &Report) -> String {
    let shown = output.display();
    let runs = match report.runs {
        0 => String::new(),
        1 => "; 1 training run".to_string(),
        count => format!("; {count} training runs"),
    };
    if report.figures == 0 && report.runs > 0 {
        format!("{shown}{}", runs.replacen(';', ":", 1))
    } else {
        let Report { figures, met, short, unclear, unmeasured, .. } = report;
        let figures =
            if *figures == 1 { "1 figure".to_string() } else { format!("{figures} figures") };
        format!(
            "{shown}: {figures}; claims met {met}, short {short}, unclear {unclear}, not measured \
             {unmeasured}{runs}"
        )
    }
}

fn say_left_out(all: &[LeftOut], why: &str) {
    for left_out in all.iter().take(REASONS_MAX) {
        note(format_args!("left out: {left_out}"));
    }
    let rest: usize = all.iter().skip(REASONS_MAX).map(|left_out| left_out.count).sum();
    if rest > 0 {
        note(format_args!("left out: {rest} more lines; {why}"));
    }
}

/// Writes the data of all plots as tables.
fn written(args: &ReportArgs, output: &Path, format: TableFormat) -> Result<Report, Failure> {
    let lines = read_files(&args.lines)?;
    keep(output, &tables(&lines, format).map_err(Failure::user)?)?;
    let report = report(&lines).map_err(Failure::user)?;
    match format {
        TableFormat::Claims | TableFormat::ClaimsJson => {
            print_text(what_it_has(output, &report))?;
        }
        _ => {
            print_text(format_args!(
                "{}: the data of {}",
                output.display(),
                plots(report.plots.len())
            ))?;
        }
    }
    say_left_out(&report.left_out, NO_PAGE);
    Ok(report)
}

/// Holds the second file against the first, and makes a page of the second, if there is to be one. None where nobody asks for more
/// than the comparison.
fn compared(args: &ReportArgs, output: Option<&Path>) -> Result<Option<Report>, Failure> {
    let [before, after] = args.lines.as_slice() else {
        return Err(Failure::user(format!(
            "--compare is for two files, the earlier first, not {}",
            args.lines.len()
        )));
    };
    let [earlier, later] = [read_file(before)?, read_file(after)?];
    let [before, after] = [before, after].map(|file| file.display().to_string());
    let comparison = compare((&before, &earlier), (&after, &later), args.tolerance);
    let comparison = comparison.map_err(Failure::user)?;
    if output.is_none() && args.plots.is_none() {
        show(&comparison, args.json)?;
        return Ok(None);
    }
    let report = report_compared(&later, &comparison).map_err(Failure::user)?;
    output.map(|output| keep(output, &report.html)).transpose()?;
    show(&comparison, args.json)?;
    match output.map(|output| what_it_has(output, &report)) {
        Some(has) if args.json => note(has),
        Some(has) => print_text(has)?,
        None => {}
    }
    say_left_out(&report.left_out, if output.is_some() { "the page says why" } else { NO_PAGE });
    Ok(Some(report))
}

/// Prints a comparison.
pub(super) fn show(comparison: &RunComparison, json: bool) -> Result<(), Failure> {
    if json {
        return print(json_line(&comparison.json())?);
    }
    comparison.provenance.iter().try_for_each(print_text)?;
    if let Some(why) = comparison.of_one_commit() {
        note(format_args!("warning: {why}"));
    }
    if let Some(why) = comparison.of_other_seeds() {
        note(why);
    }
    if let Some([before, after]) = &comparison.machines {
        note(format_args!("measured on other machines: {before}; then {after}"));
    }
    let limits = comparison.has_limits();
    let row = |row: &tensorwire_report::ComparedRow| {
        let mut cells = vec![row.name.clone(), row.before.clone(), row.after.clone(), row.change()];
        cells.extend(limits.then(|| row.limit_change()));
        cells.push(row.verdict.to_string());
        cells
    };
    let rows: Vec<Vec<String>> = comparison.rows.iter().map(row).collect();
    print(match limits {
        true => {
            let heads = ["row", "before", "after", "change", "limit", "verdict"];
            table(&heads, &rows, &[1, 2, 3, 4])
        }
        false => table(&["row", "before", "after", "change", "verdict"], &rows, &[1, 2, 3]),
    })?;
    for (what, names) in [("missing", &comparison.missing), ("new", &comparison.added)] {
        note_names(what, names);
    }
    if limits {
        note(LIMIT);
    }
    if comparison.has_noise() {
        note(
            "unclear: changed by more than the tolerance, but within the spread; measure again, or longer",
        );
    }
    print_text(comparison.summary())
}

/// Says which rows one of the runs lacks, in a line.
fn note_names(what: &str, names: &[String]) {
    let first = names.iter().take(NAMES_MAX).map(String::as_str).collect::<Vec<&str>>();
    match names {
        [] => {}
        [name] => note(format_args!("{what}: {name}")),
        _ if names.len() > NAMES_MAX => note(format_args!(
            "{what}: {} rows: {}; and {} more, which --json names",
            names.len(),
            first.join("; "),
            names.len() - NAMES_MAX
        )),
        _ => note(format_args!("{what}: {} rows: {}", names.len(), first.join("; "))),
    }
}

fn make_folder(folder: &Path) -> Result<(), Failure> {
    let end = folder.extension().and_then(|end| end.to_str()).unwrap_or_default();
    if !folder.is_dir() && FILES.contains(&end.to_ascii_lowercase().as_str()) {
        return Err(Failure::user(format!(
            "--plots takes a folder, in which each plot is a file of its own, and {} reads as a file; give --plots DIR",
            folder.display()
        )));
    }
    std::fs::create_dir_all(folder).map_err(|error| {
        Failure::user(format!(
            "cannot make the folder {}: {error}; give --plots another",
            folder.display()
        ))
    })
}

/// Writes each plot as files of its own.
fn save(folder: &Path, all: &[PlotFiles]) -> Result<(), Failure> {
    let file = |plot: &PlotFiles, ending: &str| folder.join(format!("{}.{ending}", plot.name));
    for plot in all {
        keep(&file(plot, "svg"), &plot.svg)?;
        keep(&file(plot, "csv"), &plot.csv)?;
    }
    // last, since another program makes them, which may be broken
    let (mut made, mut missing) = (0, Vec::new());
    for (index, plot) in all.iter().enumerate() {
        match pdf::make(&file(plot, "svg"), &file(plot, "pdf")) {
            Ok(true) => made += 1,
            Ok(false) => {
                missing.push(pdf::NONE.to_string());
                break;
            }
            Err(why) => missing.push(why),
        }
        let rest = all.len() - index - 1;
        if missing.len() == PDF_FAILURES_MAX && rest > 0 {
            missing.push(format!("no .pdf of {} either: not tried after that", plots(rest)));
            break;
        }
    }
    let endings = match made {
        all_made if all_made == all.len() => ".svg, .pdf and .csv".to_string(),
        0 => ".svg and .csv".to_string(),
        some => format!(".svg and .csv, and {some} as .pdf"),
    };
    print_text(format_args!("{}: {}, each as {endings}", folder.display(), plots(all.len())))?;
    missing.iter().for_each(note);
    Ok(())
}

fn plots(count: usize) -> String {
    if count == 1 { "1 plot".to_string() } else { format!("{count} plots") }
}

fn keep(file: &Path, text: &str) -> Result<(), Failure> {
    whole_file::write(file, |file| file.write_all(text.as_bytes()))
        .map_err(|error| Failure::other(format!("writing {}: {error}", file.display())))
}

/// Do both names lead to one file?
fn is_same(a: &Path, b: &Path) -> bool {
    let found = [a, b].map(|path| path.canonicalize().ok());
    found[0].is_some() && found[0] == found[1]
}
