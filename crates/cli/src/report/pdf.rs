//! Plots as PDF, by a program that is installed for it: librsvg's.

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tensorwire_base::Deadline;

/// What makes PDF of an SVG, with the letters that it shows.
const PROGRAM: &str = "rsvg-convert";
/// Longest that it may take for a plot.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Why there is no PDF, and what helps.
pub(super) const NONE: &str =
    "no .pdf: rsvg-convert makes them and is not installed (Debian: apt-get install librsvg2-bin)";

/// Makes a PDF of a drawing; false where the program for it is not installed. Fails with why there is none, and leaves no half
/// of one.
pub(super) fn make(svg: &Path, pdf: &Path) -> Result<bool, String> {
    let mut command = Command::new(PROGRAM);
    command.args(["--format", "pdf", "--output"]).arg(pdf).arg("--").arg(svg);
    // what is wrong it says on standard error
    let started = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let ended = match started {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => Err(error.to_string()),
        Ok(child) => wait(child),
    };
    ended.map(|()| true).map_err(|why| {
        // there may be none
        let _ = std::fs::remove_file(pdf);
        format!("no {}: {PROGRAM}: {why}", pdf.display())
    })
}

fn wait(mut child: Child) -> Result<(), String> {
    let deadline = Deadline::after(PATIENCE);
    loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(status.to_string()),
            None if deadline.passed() => {
                // one that ended just now is as good
                let _ = child.kill().and_then(|()| child.wait());
                return Err("it takes more than a minute".to_string());
            }
            None => std::thread::sleep(LOOK_AGAIN),
        }
    }
}
