//! What holds for each file on its own: it opens with what it is, it fits a sitting, it skips no test
//! without a reason, and it is of use on another machine than its author's.

use super::{Code, Complaint};

const LINES_MAX: usize = 600;

/// Places of one machine. Written in two pieces, so that this file passes its own check.
const MACHINE_PATHS: [&str; 3] =
    [concat!("/", "work/"), concat!("/", "root/"), concat!("/tmp/", "target")];

/// Checks a Rust file; `file` is its path in the project.
pub fn check_rust_file(file: &str, text: &str, code: &Code) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let mut complain = |line, message| complaints.push(Complaint::new(file, line, message));
    if let Some((line, reason)) = &code.unreadable {
        complain(*line, format!("no Rust: {reason}"));
    }
    if !text.starts_with("//!") {
        complain(
            1,
            "does not open with `//!`; say what it is and what it does not know".to_owned(),
        );
    }
    let lines = text.lines().count();
    if lines > LINES_MAX {
        complain(
            LINES_MAX,
            format!("{lines} lines, {LINES_MAX} are a sitting; two things are in it"),
        );
    }
    for token in code.find(&["#", "[", "ignore", "]"]) {
        complain(
            token.line,
            "a test skipped without a reason; write `#[ignore = \"why\"]`".to_owned(),
        );
    }
    complaints
}

/// Checks any text file; `file` is its path in the project.
pub fn check_text_file(file: &str, text: &str) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        for path in MACHINE_PATHS.iter().filter(|path| line.contains(*path)) {
            let message =
                format!("`{path}` is a place of one machine; use a path from the project");
            complaints.push(Complaint::new(file, number, message));
        }
    }
    complaints
}
