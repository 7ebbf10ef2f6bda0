//! A process that trains alone, and the thread that watches it.

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tensorwire_base::Rank;
use tensorwire_fabric::pulse;
use tensorwire_launch::{Movement, Reminder, StandWatch, WORTH_A_LINE};

use super::listener::Caller;
use super::{Part, Prepared, TrainError, strategy, worker};
use crate::report::{Progress, TrainReport};
use crate::run::first_error;
use crate::trace::Collector;

/// How often a process that trains alone is looked at.
const LOOKS: Duration = Duration::from_millis(500);

/// Trains in this process alone. Ends after the present step once `interrupt` is set. However it ends,
/// the trace is written, if there is to be one. `on_still` is told, by another thread, when the process stands still: from
/// 10 s on, seldom, and once if that is for good.
///
/// # Errors
/// When the machine's memory does not suffice, training diverges or is interrupted, or the trace
/// cannot be written.
pub fn train_local(
    prepared: &Prepared,
    interrupt: &AtomicBool,
    on_progress: &mut dyn FnMut(Progress),
    on_still: &(dyn Fn(Movement) + Sync),
) -> Result<TrainReport, TrainError> {
    let mut trace = prepared.collector();
    if let Some(trace) = &mut trace {
        trace.started(0, Rank(0), std::process::id(), true);
    }
    let _claim = prepared.claim()?;
    let keeper = prepared.keeper(false);
    let mut caller = Caller { interrupt, on_progress, trace, keeper, last: None };
    let done = work_alone(&prepared.part(), &mut caller, on_still).and_then(|report| match report
        .interrupted
    {
        true => Err(TrainError::Interrupted),
        false => Ok(report),
    });
    if let (Some(keeper), Ok(report)) = (&caller.keeper, &done) {
        keeper.concluded(report);
    }
    let written = caller.trace.map(Collector::write).transpose();
    // nothing crosses that a summary could tell of
    first_error(done, written).map(|(report, _)| report)
}

/// Does in this process alone what a job does that makes no step: evaluates the weights that it begins with. `on_still` is told as
/// by [`train_local`].
///
/// # Errors
/// When the machine's memory does not suffice, or a sample cannot be read.
pub(crate) fn evaluate_local(
    prepared: &Prepared,
    on_still: &(dyn Fn(Movement) + Sync),
) -> Result<TrainReport, TrainError> {
    let mut part = prepared.part();
    part.shape.steps = part.shape.done;
    let (interrupt, on_progress) = (&AtomicBool::new(false), &mut |_| {});
    let mut caller = Caller { interrupt, on_progress, trace: None, keeper: None, last: None };
    work_alone(&part, &mut caller, on_still)
}

fn work_alone(
    part: &Part,
    caller: &mut Caller<'_>,
    on_still: &(dyn Fn(Movement) + Sync),
) -> Result<TrainReport, TrainError> {
    let watch = StandWatch::new(part.standing.clone(), part.config.liveness());
    let (done, is_done) = channel();
    std::thread::scope(|scope| {
        let look = move || look_until(&is_done, watch, on_still);
        let watching = std::thread::Builder::new().name("watch".into()).spawn_scoped(scope, look);
        if let Err(error) = watching {
            tracing::warn!("nobody watches whether training stands still: no thread ({error})");
        }
        let _watched = pulse::watch_worker("main");
        // however it ends
        let _done: Sender<()> = done;
        worker::run(strategy::open_local(part)?, part, caller)
    })
}

/// Looks at this process until `done` is dropped.
fn look_until(done: &Receiver<()>, mut watch: StandWatch, on_still: &dyn Fn(Movement)) {
    let _watched = pulse::watch_service("watch");
    let mut reminder = Reminder::default();
    while done.recv_timeout(LOOKS) == Err(RecvTimeoutError::Timeout) {
        pulse::beat();
        match watch.look() {
            Movement::Moves => reminder = Reminder::default(),
            Movement::StandsStill(still) => {
                if still.silent() >= WORTH_A_LINE && reminder.is_due(still.silent()) {
                    on_still(Movement::StandsStill(still));
                }
            }
            stopped @ Movement::Stopped(_) => return on_still(stopped),
        }
    }
}
