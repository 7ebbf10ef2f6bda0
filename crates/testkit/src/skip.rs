//! Tests that this machine cannot run. They say why and return, which the test harness counts as passed. Who
//! counts names a file in TENSORWIRE_SKIPS: every skip is a line of it.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Says why the running test is skipped. `expected` is a variable of the environment: where it is set, what the
/// test needs is known to be there, and its absence is a failure.
pub fn skip(expected: Option<&str>, reason: &dyn Display) {
    if let Some(variable) = expected.filter(|variable| std::env::var_os(variable).is_some()) {
        panic!("{reason}, though {variable} is set");
    }
    tell("skipped", reason);
}

/// Says which part of the running test is left out, and why; the rest of it counts.
pub fn skip_part(reason: &dyn Display) {
    tell("skipped in part", reason);
}

fn tell(what: &str, reason: &dyn Display) {
    eprintln!("{what}: {reason}");
    let Some(file) = std::env::var_os("TENSORWIRE_SKIPS") else { return };
    let program = std::env::current_exe().unwrap();
    // the harness names a test's thread after the test
    let thread = std::thread::current();
    let line = line(what, &program, thread.name().unwrap_or("?"), &reason.to_string());
    // one write, so that lines of several programs do not mix
    let mut file = OpenOptions::new().create(true).append(true).open(PathBuf::from(file)).unwrap();
    file.write_all(line.as_bytes()).unwrap();
}

/// Four fields: what, the program without the hash in its name, the test, the reason.
fn line(what: &str, program: &Path, test: &str, reason: &str) -> String {
    let stem = program.file_stem().unwrap_or_default().to_string_lossy();
    let name = match stem.rsplit_once('-') {
        Some((name, hash)) if hash.len() == 16 => name,
        _ => &*stem,
    };
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{what}\t{name}\t{test}\t{reason}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_a_line_of_four_fields() {
        let program = Path::new("/target/debug/deps/fabric-0123456789abcdef");
        assert_eq!(
            line("skipped", program, "verbs::a_write_lands", "no device\n\tis there"),
            "skipped\tfabric\tverbs::a_write_lands\tno device is there\n"
        );
        let line = line("skipped", Path::new("two-words"), "a", "b");
        assert_eq!(line, "skipped\ttwo-words\ta\tb\n");
    }
}
