//! `tensorwire bench evaluation`: the figures of the papers that one machine can measure, by one command.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tensorwire_base::human_seconds;
use tensorwire_bench::{Case, Earlier, Figure, FigureScope, Machine, Runner, Turns, case_key};
use tensorwire_train::Exchange;

use super::{Lines, announce};
use crate::args::EvaluationArgs;
use crate::job::{end_at_once_while, job_spec};
use crate::output::{json_line, note, print};
use crate::{Failure, report, table::table};

pub(super) fn run(args: &EvaluationArgs) -> Result<(), Failure> {
    let prints_json = args.prints_json()?;
    let scope = args.scope()?;
    if args.list {
        return list(&args.figures(), &scope, prints_json);
    }
    if args.figures().iter().any(|figure| figure.has_baselines(&scope)) {
        Exchange::GrpcTcp.check_built_in()?;
    }
    let mut lines = Lines::open(args.json.as_deref())?;
    let files: Vec<PathBuf> = args.json.iter().cloned().collect();
    // nobody wants to measure for half an hour to hear that it cannot be written
    if let Some(page) = &args.report {
        report::check_output("a page", page, &files)?;
        report::check_lines(&files)?;
    }
    let job = job_spec()?;
    let alone = Arc::new(AtomicBool::new(false));
    end_at_once_while(&alone)?;
    announce(&Machine::here());
    let mut runner = Runner::new(&job, &alone, scope.quick);
    let mut all: Vec<Measured> =
        args.figures().into_iter().map(|of| Measured::new(of, &scope)).collect();
    if let Some(file) = args.json.as_deref().filter(|_| args.resume) {
        leave_out(&mut all, &mut runner, file, scope.quick)?;
    }
    let limits = all.iter().map(|of| (of.cases.len(), of.figure.quick_limit()));
    let (mut turns, begun) = (Turns::new(limits, scope.quick), Instant::now());
    let mut is_second_round = false;
    while let Some(turn) = turns.next(begun.elapsed()) {
        if turn.is_second_round && !std::mem::replace(&mut is_second_round, true) {
            let left = human_seconds(turns.time_left(begun.elapsed()).as_secs_f64());
            note(format_args!("{left} are left for the cases that figures had no time for"));
        }
        let Measured { figure, cases, all: of, count, took } = &mut all[turn.figure];
        let (number, case) = &cases[turn.case];
        let name = format!("{} {number}/{of}: {}", figure.name, case.name());
        let case_begun = Instant::now();
        let key = case_key(figure, case, scope.quick);
        measure(&mut runner, (&name, &key, case), &mut lines, count, &|| {
            let is_over = job.interrupt.load(Ordering::Relaxed);
            if is_over { Err(interrupted(args.json.as_deref())) } else { Ok(()) }
        })?;
        *took += case_begun.elapsed();
        if turns.left(turn.figure) == 0 {
            tell_verdict(&mut runner, figure, &mut lines, count)?;
        }
    }
    for (at, Measured { figure, count, .. }) in all.iter_mut().enumerate() {
        count.late = turns.left(at);
        if count.late > 0 {
            note(format_args!("{}: {} cases left for want of time", figure.name, count.late));
            tell_verdict(&mut runner, figure, &mut lines, count)?;
        }
    }
    let failed: usize = all.iter().map(|of| of.count.failed).sum();
    let rows: Vec<Vec<String>> = all.iter().map(Measured::row).collect();
    let header =
        ["figure", "of", "done", "not measured", "left out", "no time", "failed", "lines", "took"];
    print(table(&header, &rows, &[2, 3, 4, 5, 6, 7, 8]))?;
    args.report.as_deref().map(|page| report::write(page, &files)).transpose()?;
    match failed {
        0 => Ok(()),
        1 => Err(Failure::other("1 case failed; what it said is above")),
        failed => Err(Failure::other(format!("{failed} cases failed; what they said is above"))),
    }
}

/// Leaves out the cases that a file has lines of, and says how many.
fn leave_out(
    all: &mut [Measured],
    runner: &mut Runner<'_>,
    file: &Path,
    quick: bool,
) -> Result<(), Failure> {
    let shown = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::user(format!("cannot read {shown}: {error}")))?;
    let earlier = Earlier::read(&text).map_err(|line| {
        Failure::user(format!(
            "{shown}, line {line}, is not JSON; take away what is not a line of results"
        ))
    })?;
    let here = Machine::here();
    for Measured { figure, cases, all: of, .. } in all {
        let mut elsewhere = 0;
        cases.retain(|(_, case)| {
            let Some(done) = earlier.case(&case_key(figure, case, quick)) else { return true };
            runner.recall(done);
            elsewhere += usize::from(!done.is_of(&here));
            false
        });
        let done = *of - cases.len();
        if done > 0 {
            let of_others = match elsewhere {
                0 => String::new(),
                some => format!(", {some} of them of another program or machine than this one"),
            };
            note(format_args!("{}: {done} of {of} cases are in {shown}{of_others}", figure.name));
        }
    }
    Ok(())
}

/// The user wants no more.
fn interrupted(file: Option<&Path>) -> Failure {
    let failure = Failure::interrupted();
    match file {
        Some(file) => failure.with(format_args!(
            "with --resume the same command goes on behind the cases that {} has",
            file.display()
        )),
        None => failure,
    }
}

/// A figure, and what became of it.
#[derive(Debug)]
struct Measured {
    figure: &'static Figure,
    /// To be done, each with its number among all, from 1.
    cases: Vec<(usize, Case)>,
    all: usize,
    count: Count,
    took: Duration,
}

/// What became of a figure's cases.
#[derive(Debug, Default)]
struct Count {
    done: usize,
    /// What this machine cannot show.
    unmeasured: usize,
    refused: usize,
    late: usize,
    failed: usize,
    lines: usize,
}

/// Does one case, says how it went, and writes its lines if it was done. Fails when they cannot be written, and when the user
/// wants no more.
fn measure(
    runner: &mut Runner<'_>,
    (name, key, case): (&str, &str, &Case),
    lines: &mut Lines,
    count: &mut Count,
    check_interrupt: &dyn Fn() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut results = Vec::new();
    let mut compared = None;
    let done = runner.run(case, &mut |mut line| {
        if let Some(ratio) = line["ratio"].as_f64().filter(|_| line["bench"] == "links-simulated") {
            let seconds = |field: &str| human_seconds(line[field].as_f64().unwrap_or_default());
            let (measured, simulated) = (seconds("step_s"), seconds("simulated_step_s"));
            compared = Some(format!("measured {measured}, simulated {simulated} ({ratio:.2}); "));
        }
        line["case"] = key.into();
        results.push(line);
    });
    if done.is_ok() {
        count.lines += results.len();
        lines.append_all(&results)?;
    }
    check_interrupt()?;
    match done {
        Ok(()) if let Case::NotMeasured(missing) = case => {
            count.unmeasured += 1;
            note(format_args!("{name}: not measured: {}", missing.why));
        }
        Ok(()) => {
            count.done += 1;
            let compared = compared.unwrap_or_default();
            note(format_args!(
                "{name}: {compared}{}",
                human_seconds(begun.elapsed().as_secs_f64())
            ));
        }
        Err(error) if error.is_user_error() => {
            count.refused += 1;
            note(format_args!("{name}: left out: {error}"));
        }
        Err(error) => {
            count.failed += 1;
            note(format_args!("{name}: failed: {error}"));
        }
    }
    Ok(())
}

/// Says what the cases of a figure that is done show together, if they do.
fn tell_verdict(
    runner: &mut Runner<'_>,
    figure: &Figure,
    lines: &mut Lines,
    count: &mut Count,
) -> Result<(), Failure> {
    let Some(verdict) = runner.verdict(figure) else { return Ok(()) };
    count.lines += 1;
    lines.append(&verdict)?;
    let number = |field: &str| verdict[field].as_f64().unwrap_or_default();
    note(format_args!(
        "{}: {}: {}, {:.0} % (wanted: {:.0} %)",
        figure.name,
        verdict["goal"].as_str().unwrap_or_default(),
        verdict["within"],
        100.0 * number("ratio"),
        100.0 * number("at_least"),
    ));
    Ok(())
}

impl Measured {
    fn new(figure: &'static Figure, scope: &FigureScope) -> Measured {
        let cases: Vec<(usize, Case)> = (1..).zip(figure.cases(scope)).collect();
        Measured { figure, all: cases.len(), cases, count: Count::default(), took: Duration::ZERO }
    }

    fn row(&self) -> Vec<String> {
        let Measured { figure, count, took, .. } = self;
        let mut row = vec![figure.name.to_string(), figure.paper.to_string()];
        let counts =
            [count.done, count.unmeasured, count.refused, count.late, count.failed, count.lines];
        row.extend(counts.map(|count| count.to_string()));
        row.push(human_seconds(took.as_secs_f64()));
        row
    }
}

/// What `--list --json` prints of one figure.
#[derive(Serialize)]
struct ListedFigure {
    figure: &'static str,
    paper: &'static str,
    cases: usize,
    what: &'static str,
}

fn list(figures: &[&Figure], scope: &FigureScope, json: bool) -> Result<(), Failure> {
    let listed = figures.iter().map(|figure| ListedFigure {
        figure: figure.name,
        paper: figure.paper,
        cases: figure.cases(scope).len(),
        what: figure.what,
    });
    if json {
        return listed.into_iter().try_for_each(|figure| print(json_line(&figure)?));
    }
    let row = |listed: ListedFigure| {
        let ListedFigure { figure, paper, cases, what } = listed;
        vec![figure.to_string(), paper.to_string(), cases.to_string(), what.to_string()]
    };
    let rows: Vec<Vec<String>> = listed.map(row).collect();
    print(table(&["figure", "of", "cases", "what is run"], &rows, &[2]))
}
