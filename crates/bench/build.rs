//! Tells the crate which commit it is built from: figures are of a version.

use std::process::Command;

/// Says the commit where there is no repository to ask.
const COMMIT: &str = "TENSORWIRE_COMMIT";

fn main() {
    // an image is built without the repository, and told
    let told = std::env::var(COMMIT).ok().filter(|told| !told.is_empty());
    let commit = told.or_else(|| git(&["rev-parse", "--short=12", "HEAD"]));
    println!("cargo:rustc-env=TENSORWIRE_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed={COMMIT}");
    // a line is added to it whenever HEAD moves
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
}

/// What git says; nothing where there is no git, or no repository.
fn git(arguments: &[&str]) -> Option<String> {
    let done = Command::new("git").args(arguments).output().ok()?;
    let said = String::from_utf8(done.stdout).ok()?;
    done.status.success().then(|| said.trim().to_string())
}
