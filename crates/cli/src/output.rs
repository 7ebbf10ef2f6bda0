//! What the program says: results on standard output, everything else on standard error, and only
//! through here. That nobody reads it is no reason to stop a job, or to stay.

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;

use super::Failure;

/// Nobody wants to be told how things go.
static QUIET: AtomicBool = AtomicBool::new(false);

/// How long the last words wait for a terminal that takes nothing.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Prints a line of results. A reader that has seen enough (`| head`) is no error.
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

/// With `--quiet`, only results and last words are said from here on.
pub(crate) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

pub(crate) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Says something on standard error; if nobody takes it, nobody wants it.
pub(crate) fn note(line: impl Display) {
    if !is_quiet() {
        say(line);
    }
}

/// Says why the program ends, which it does even if the terminal does not take it.
pub(crate) fn last_words(line: String) {
    in_time(move || say(line));
}

fn say(line: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Has the terminal shown something, and waits for it, but not long.
pub(crate) fn in_time(show: impl FnOnce() + Send + 'static) {
    let (said, wait) = channel();
    let show = Arc::new(Mutex::new(Some(show)));
    let speak = {
        let show = show.clone();
        move || {
            show_once(&show);
            // nobody waits any more if it took too long
            let _ = said.send(());
        }
    };
    match std::thread::Builder::new().name("last-words".into()).spawn(speak) {
        Ok(_) => drop(wait.recv_timeout(LAST_WORDS)),
        // where there is no memory for a thread, better late than never
        Err(_) => show_once(&show),
    }
}

fn show_once(show: &Mutex<Option<impl FnOnce()>>) {
    let show = show.lock().map(|mut show| show.take());
    if let Ok(Some(show)) = show {
        show();
    }
}
