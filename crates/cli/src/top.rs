//! `tensorwire top`: how the jobs of this user run, live: who waits for whom, how fast, and what crosses.

mod columns;
mod view;

use std::io::{self, IsTerminal};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tensorwire::program::{status_folder, told_to_end};
use tensorwire_launch::{JobStatus, StatusError, job_status, jobs};

use super::args::TopArgs;
use super::output::{note, print, print_text};
use super::status::{line, why_not};
use super::{Failure, table::table};
use columns::{Column, cells};
use view::View;

/// How often the jobs are asked.
const ASKED_EVERY: Duration = Duration::from_secs(1);
/// Longest that a key, a signal or an answer waits.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    let job = args.job.clone();
    // a job that is not there is said before the screen is taken
    let why = |error: StatusError| match &job {
        Some(job) => Failure::user(why_not(&status_folder(), job, error)),
        None => Failure::user(error),
    };
    let found = ask(job.as_deref()).map_err(why)?;
    if args.once || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return print_once(&found);
    }
    let told = told_to_end()?;
    let (answers, inbox) = channel();
    let asks = move || ask_again(job.as_deref(), &answers);
    std::thread::Builder::new().name("top".into()).spawn(asks).map_err(Failure::no_thread)?;
    let failed = |error: io::Error| Failure::other(format!("the terminal: {error}"));
    // whatever panics from here on gives the terminal back first
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let is_told = || told.load(Ordering::Relaxed);
    let shown = show(&mut terminal, View::new(found), &inbox, is_told);
    let restored = ratatui::try_restore();
    let left = shown.map_err(failed)?;
    restored.map_err(failed)?;
    match left {
        Left::ByKey => Ok(()),
        Left::BySignal => Err(Failure::interrupted()),
    }
}

/// How the screen was left.
enum Left {
    ByKey,
    BySignal,
}

/// Asks a job how it stands, or all.
fn ask(job: Option<&str>) -> Result<Vec<JobStatus>, StatusError> {
    let folder = status_folder();
    match job {
        Some(job) => job_status(&folder, job).map(|job| vec![job]),
        None => jobs(&folder),
    }
}

/// Asks until nobody wants to know.
fn ask_again(job: Option<&str>, answers: &Sender<Result<Vec<JobStatus>, String>>) {
    loop {
        std::thread::sleep(ASKED_EVERY);
        if answers.send(ask(job).map_err(|error| error.to_string())).is_err() {
            return;
        }
    }
}

/// Shows the jobs until a key or a signal ends it.
fn show(
    terminal: &mut DefaultTerminal,
    mut view: View,
    inbox: &Receiver<Result<Vec<JobStatus>, String>>,
    is_told: impl Fn() -> bool,
) -> io::Result<Left> {
    loop {
        terminal.draw(|frame| view.draw(frame))?;
        // something new: an answer, a key, another size
        loop {
            if is_told() {
                return Ok(Left::BySignal);
            }
            if let Some(answer) = inbox.try_iter().last() {
                view.update(answer);
                break;
            }
            if event::poll(LOOK_AGAIN)? {
                match event::read()? {
                    Event::Key(key) if ends(key) => return Ok(Left::ByKey),
                    Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
                        KeyCode::Up | KeyCode::Left => view.choose(-1),
                        KeyCode::Down | KeyCode::Right => view.choose(1),
                        _ => {}
                    },
                    _ => {}
                }
                break;
            }
        }
    }
}

fn ends(key: KeyEvent) -> bool {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => key.kind == KeyEventKind::Press,
        KeyCode::Char('c') => is_control,
        _ => false,
    }
}

/// The same as tables.
fn print_once(found: &[JobStatus]) -> Result<(), Failure> {
    if found.is_empty() {
        note("no job whose launcher runs on this host");
    }
    for job in found {
        print_text(format_args!("job {}: {}", job.job, line(job)))?;
        if job.members.is_empty() {
            continue;
        }
        let columns = Column::of(job);
        let rows: Vec<Vec<String>> =
            job.members.iter().map(|member| cells(member, &columns)).collect();
        let header: Vec<&str> = columns.iter().map(|column| column.title()).collect();
        let numbers = columns.iter().enumerate().filter(|(_, column)| column.is_number());
        let numbers: Vec<usize> = numbers.map(|(at, _)| at).collect();
        print(table(&header, &rows, &numbers))?;
    }
    Ok(())
}
