//! Test programs without a harness, which start themselves again as members of a job of somebody else's.

use std::fmt::Display;
use std::path::PathBuf;

/// What this program was called with.
pub fn arguments() -> Vec<String> {
    std::env::args().skip(1).collect()
}

/// This program's file.
pub fn itself() -> PathBuf {
    std::env::current_exe().unwrap()
}

/// A line for whoever reads what tests print.
pub fn say(line: &dyn Display) {
    eprintln!("{line}");
}
