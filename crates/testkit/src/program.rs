//! Programs that tests start: themselves again, as members of a job of somebody else's, and examples.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

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

/// The example of this name, as `cargo test` has built it beside the calling test: nothing is built here. A file
/// that is not there, or is older than one of its sources, ends the test and says what to build.
pub fn example(name: &str) -> PathBuf {
    // target/debug/deps/test-0123456789abcdef
    let profile = itself().ancestors().nth(2).unwrap().join("examples");
    let (program, sources) = (profile.join(name), profile.join(format!("{name}.d")));
    let listed = fs::read_to_string(&sources).unwrap_or_default();
    assert!(
        program.exists() && is_newer(&program, &sources_of(&listed)),
        "{} is not built from the sources as they are; build it: cargo build --example {name}",
        program.display()
    );
    program
}

/// What a file of cargo's (`program: source source`) names behind the colon; blanks in names are escaped.
fn sources_of(listed: &str) -> Vec<PathBuf> {
    let names = listed.split_once(": ").map_or("", |(_, names)| names);
    let names = names.replace("\\ ", "\0");
    names.split_whitespace().map(|name| name.replace('\0', " ").into()).collect()
}

/// True if there are sources, and none was written after `program`.
fn is_newer(program: &Path, sources: &[PathBuf]) -> bool {
    let written = |file: &Path| fs::metadata(file).and_then(|file| file.modified()).ok();
    let is_older = |source: &PathBuf| {
        written(source).zip(written(program)).is_some_and(|(source, program)| source <= program)
    };
    !sources.is_empty() && sources.iter().all(is_older)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_may_have_blanks_in_their_names() {
        let listed = "/target/debug/examples/a: /src/a.rs /my\\ src/b.rs\n";
        assert_eq!(sources_of(listed), ["/src/a.rs", "/my src/b.rs"].map(PathBuf::from));
        assert_eq!(sources_of(""), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_program_that_is_older_than_its_source_is_not_taken() {
        let program = itself();
        let itself = [program.clone()];
        assert!(is_newer(&program, &itself));
        assert!(!is_newer(&program, &[]), "nobody knows what it was built from");
        assert!(!is_newer(Path::new("/nonexistent"), &itself));
        // what the kernel tells is always of now
        assert!(!is_newer(&program, &["/proc/self/stat".into()]));
    }
}
