//! `tensorwire train`.

mod announce;
mod ending;
mod traced;
mod watcher;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use serde::Serialize;
use tensorwire::program::Lead;
use tensorwire_base::{human_bytes, human_seconds, number_of};
use tensorwire_bench::ByName;
use tensorwire_launch::{JobSpec, Movement};
use tensorwire_train::{
    Averaging, EventFile, Prepared, Quantiles, Strategy, Summary, TrainConfig, TrainOutcome,
    launch_train, train_local,
};

use super::Failure;
use super::args::TrainArgs;
use super::job::{interrupt, job_spec_until};
use super::metrics::Metrics;
use super::output::{OnMachine, json_line, last_words, print, print_text};
use super::rendezvous;
use announce::announcement;
use ending::Ending;
use watcher::Watcher;

/// How long a failed job waits for the display to catch up.
const CATCH_UP: Duration = Duration::from_millis(500);
/// How long a launcher that was told to end at once may take to end its processes.
const ENDS_ITSELF: Duration = Duration::from_secs(4);

pub(crate) fn run(args: TrainArgs) -> Result<(), Failure> {
    match rendezvous::found(&args)? {
        Some(found) => rendezvous::run(&found, args),
        None => prepare_and_run(args, None),
    }
}

/// Trains with processes of its own, or with those of `lead`.
pub(crate) fn prepare_and_run(args: TrainArgs, lead: Option<Lead>) -> Result<(), Failure> {
    let (json, metrics, tensorboard) = (args.json, args.metrics.clone(), args.tensorboard.clone());
    let prepared = Prepared::new(args.config()?, &ByName)?;
    let trace = prepared.config.trace.as_ref().map(|trace| &trace.path);
    let save = prepared.config.save.as_ref();
    let files = [("--metrics", metrics.as_ref()), ("--save", save), ("--trace", trace)];
    for (at, (option, path)) in files.iter().enumerate() {
        let same = files[..at].iter().find(|(_, earlier)| path.is_some() && earlier == path);
        if let Some((earlier, _)) = same {
            let what = format!("{earlier} and {option} name the same file; give each its own");
            return Err(Failure::user(what));
        }
    }
    let metrics = Metrics::open(metrics.as_deref())?;
    let events = tensorboard.as_deref().map(EventFile::create).transpose()?;
    let watcher = Watcher::new(&prepared, metrics, events);
    let mut ending = Ending::new(&prepared, &watcher);
    let ran = match prepared.config.strategy {
        Strategy::Local => run_local(&prepared, watcher, &mut ending),
        _ => run_job(&prepared, watcher, &mut ending, lead),
    };
    let (outcome, mut watcher) = ran.map_err(|failure| ending.told(failure))?;
    let summary = Summary::new(&prepared, &outcome, &watcher.steps).map_err(Failure::other)?;
    let placed = OnMachine::here(&summary);
    let written = watcher.metrics.line(&LastLine { summary: &placed });
    let shown = watcher.events.as_mut().map_or(Ok(()), |events| events.summary(&summary));
    let last = written.and(shown.map_err(Failure::from)).err();
    match json {
        // its last line says the same
        _ if watcher.metrics.is_stdout() => {}
        true => print(json_line(&placed)?)?,
        false => show(&prepared, &summary, &outcome)?,
    }
    // what was trained is there all the same
    if let Some(Failure { message, .. }) = watcher.failure.take().or(last) {
        last_words(format!("warning: {message}; what could not be written is left out"));
    }
    Ok(())
}

/// The last line of `--metrics`.
#[derive(Serialize)]
struct LastLine<'a> {
    summary: &'a OnMachine<'a, Summary>,
}

type Done = (TrainOutcome, Watcher);

fn run_local(
    prepared: &Prepared,
    mut watcher: Watcher,
    ending: &mut Ending,
) -> Result<Done, Failure> {
    announcement(prepared).into_iter().for_each(|said| watcher.bar.say(said));
    let TrainConfig { trace, checkpoint, .. } = &prepared.config;
    let interrupt = if trace.is_some() || checkpoint.is_some() {
        ending.hear(Duration::ZERO)?
    } else {
        // there is nothing to write before the end
        ending.clone().end_soon_after(interrupt()?)?;
        Arc::default()
    };
    watcher.begin();
    let bar = watcher.bar.clone();
    let on_still = move |movement: Movement| {
        let is_over = matches!(movement, Movement::Stopped(_));
        if !is_over {
            return bar.say(movement);
        }
        bar.clear_in_time();
        last_words(format!("error: {movement}"));
        std::process::exit(1);
    };
    let mut on_progress = |progress| watcher.all_did(&progress);
    let report = train_local(prepared, &interrupt, &mut on_progress, &on_still);
    watcher.end();
    let began_behind = prepared.steps_done();
    Ok((TrainOutcome { began_behind, ..TrainOutcome::alone(report?) }, watcher))
}

/// Launches the job here and shows it on another thread: a terminal that takes nothing for a while
/// must not keep the launcher from looking after its members, or from hearing Ctrl-C.
fn run_job(
    prepared: &Prepared,
    mut watcher: Watcher,
    ending: &mut Ending,
    lead: Option<Lead>,
) -> Result<Done, Failure> {
    let (told_to_end, gathering) = match lead {
        None => (ending.hear(ENDS_ITSELF)?, None),
        // whoever started the processes may tell them to end twice
        Some(Lead { gathering, interrupt }) => (interrupt, Some(gathering)),
    };
    watcher.hears_another = gathering.is_none();
    let at_once = ending.at_once.clone();
    let how = JobSpec { gathering, at_once, ..job_spec_until(told_to_end)? };
    let (updates, inbox) = channel();
    let bar = watcher.bar.clone();
    let mut said = announcement(prepared);
    // who started the processes may have none of them here for a while
    if how.gathering.is_some() {
        said.drain(..).for_each(|said| bar.say(said));
    }
    let show = move || {
        for update in inbox {
            // what keeps a job from its first process is said alone
            said.drain(..).for_each(|said| watcher.bar.say(said));
            watcher.update(update);
        }
        watcher.end();
        watcher
    };
    let display = std::thread::Builder::new().name("display".into()).spawn(show);
    let display = display.map_err(Failure::no_thread)?;
    ending.launches.store(true, Ordering::Relaxed);
    // a display that is gone shows nothing more
    let outcome = launch_train(prepared, &ByName, &how, &mut |update| drop(updates.send(update)));
    ending.launches.store(false, Ordering::Relaxed);
    drop(updates);
    let since = Instant::now();
    while !display.is_finished() {
        let failed = outcome.is_err() && since.elapsed() > CATCH_UP;
        if failed || how.interrupt.load(Ordering::Relaxed) {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    if !display.is_finished() {
        bar.clear_in_time();
    }
    let stopped = how.stopped.load(Ordering::Relaxed);
    let outcome = outcome.map_err(|failure| Failure::from(failure).stopped_if(stopped))?;
    if !display.is_finished() {
        // nothing is lost but what was to be shown
        return Err(
            Failure::other(if stopped { "stopped" } else { "interrupted" }).stopped_if(stopped)
        );
    }
    let watcher = display.join().map_err(|_| Failure::other("the display failed"))?;
    Ok((outcome, watcher))
}

/// `began_behind`: the step behind which it began the last time, of which times and bytes are.
fn show(prepared: &Prepared, summary: &Summary, outcome: &TrainOutcome) -> Result<(), Failure> {
    print_text(format_args!(
        "{} steps in {:.2} s, {:.0} samples/s, loss {:.4}, {} bytes copied between processes",
        summary.steps - outcome.began_behind,
        summary.seconds,
        summary.samples_per_second,
        summary.final_loss,
        summary.bytes_copied,
    ))?;
    if let Some(Quantiles { count: 2.., p10, median, p90 }) = summary.step_ms {
        let [p10, median, p90] = [p10, median, p90].map(|ms| human_seconds(ms / 1e3));
        print_text(format_args!(
            "a step behind the first: {median}, the 10th to the 90th percentile {p10} to {p90}"
        ))?;
    }
    match summary.restarts {
        0 => {}
        1 => print_text(format_args!("started again once; all this is of the steps since"))?,
        times => {
            print_text(format_args!("started again {times} times; all this is of the steps since"))?
        }
    }
    if summary.resizes > 0 {
        let times =
            if summary.resizes == 1 { "once" } else { &format!("{} times", summary.resizes) };
        let workers = number_of(summary.workers_finished, "worker");
        print_text(format_args!(
            "went on with other workers {times}, with {workers} at the end; all this is of the steps since"
        ))?;
    }
    if summary.steps < prepared.steps() {
        let most = prepared.config.early_stop.unwrap_or_default();
        let all = prepared.steps();
        print_text(format_args!(
            "ended before step {all}: {most} evaluations in a row were no better"
        ))?;
    }
    if let Some(Averaging { interval, .. }) = prepared.topology.averaging {
        let clients = u64::from(prepared.topology.groups);
        let weights: usize = prepared.program.weights().map(|variable| variable.spec.bytes()).sum();
        // fits: sizes in memory
        let steps = summary.steps - outcome.began_behind;
        let all_steps = 2 * weights as u64 * prepared.config.workers as u64 * steps;
        print_text(format_args!(
            "{} pushed and pulled by {clients} clients, every {interval} steps; dist-sgd: {} in as many steps",
            human_bytes(summary.store_bytes),
            human_bytes(all_steps),
        ))?;
    }
    // what went on with another number has said so; fits: workers are few
    if summary.resizes == 0 && summary.workers_finished != summary.workers as usize {
        let Summary { workers_finished, workers, .. } = summary;
        print_text(format_args!("{workers_finished} of {workers} workers finished"))?;
    }
    print_text(format_args!("weights sha256 {}", summary.weights_sha256))?;
    if let Some(path) = &prepared.config.save {
        print_text(format_args!("weights saved to {}", path.display()))?;
    }
    // of the first start, however far it came
    if let Some(trace) = prepared.config.trace.as_ref().filter(|_| summary.restarts == 0) {
        let steps = trace.steps.min(prepared.steps());
        print_text(format_args!(
            "trace of {steps} steps written to {}; open it in ui.perfetto.dev",
            trace.path.display()
        ))?;
        traced::show(outcome.trace.as_ref())?;
    }
    if let Some(perplexity) = summary.test_perplexity {
        print_text(format_args!("test perplexity {perplexity:.4}"))?;
    }
    match (summary.test_accuracy, summary.test_loss) {
        (Some(accuracy), _) => print_text(format_args!("test accuracy {accuracy:.4}")),
        (None, Some(loss)) => print_text(format_args!("test loss {loss:.4}")),
        (None, None) => print_text(format_args!("not tested: the data have no samples for it")),
    }
}
