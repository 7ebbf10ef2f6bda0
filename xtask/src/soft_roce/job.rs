//! What machines are to do, and the folder in which they find it: settings, programs and a script a
//! step. Knows files and shell quoting; no machine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::SoftRoceError;
use super::cache::write;
use super::tools::file_error;

/// What the machines of one boot do.
#[derive(Debug)]
pub struct Job<'a> {
    /// Where the steps run.
    pub folder: &'a Path,
    /// Folders of the host that are to be seen in a machine even if its own `/tmp` or `/run` covers them.
    pub folders: &'a [PathBuf],
    /// What netem does to every node's eth0; empty for nothing.
    pub netem: &'a str,
    /// Names on the PATH of every machine, and the files of the host that they stand for.
    pub programs: &'a [(String, PathBuf)],
    /// For each machine, one after another.
    pub steps: &'a [Vec<Step>],
    /// Whether faults are taken away after each step.
    pub reset: bool,
}

/// A script for bash, and how long it may take.
#[derive(Clone, Debug)]
pub struct Step {
    pub script: String,
    pub timeout: Duration,
}

/// What guest.sh calls, by name.
const TOOLS: [(&str, &str); 4] = [
    ("reset", include_str!("guest/reset.sh")),
    ("rsh", include_str!("guest/rsh.sh")),
    ("fault", include_str!("guest/fault.sh")),
    ("write-bw", include_str!("guest/write-bw.sh")),
];

impl Job<'_> {
    /// Writes all of it into a folder.
    pub(super) fn write_to(&self, place: &Path) -> Result<(), SoftRoceError> {
        write(&place.join("guest.sh"), include_str!("guest/guest.sh").as_bytes(), 0o644)?;
        write(&place.join("config"), self.settings().as_bytes(), 0o644)?;
        for (name, text) in TOOLS {
            write(&place.join("bin").join(name), text.as_bytes(), 0o755)?;
        }
        // a copy, since cargo may put a new one in its place while machines run
        let own = std::env::current_exe().map_err(file_error("find", Path::new("xtask")))?;
        let copy = place.join("bin/xtask");
        std::fs::copy(&own, copy).map_err(file_error("copy", &own))?;
        let lines: String =
            self.folders.iter().map(|folder| format!("{}\n", folder.display())).collect();
        write(&place.join("folders"), lines.as_bytes(), 0o644)?;
        let programs = place.join("programs");
        std::fs::create_dir_all(&programs).map_err(file_error("make", &programs))?;
        for (name, file) in self.programs {
            let link = programs.join(name);
            std::os::unix::fs::symlink(file, &link).map_err(file_error("make", &link))?;
        }
        for (node, steps) in self.steps.iter().enumerate() {
            for (at, step) in steps.iter().enumerate() {
                // the shell takes them in the order of their names
                let file = place.join(format!("steps/{node}/{at:04}"));
                write(&file.with_extension("sh"), step.script.as_bytes(), 0o644)?;
                let seconds = format!("{}\n", step.timeout.as_secs().max(1));
                write(&file.with_extension("seconds"), seconds.as_bytes(), 0o644)?;
            }
        }
        Ok(())
    }

    fn settings(&self) -> String {
        let folder = self.folder.display().to_string();
        let machines = self.steps.len().to_string();
        let reset = if self.reset { "1" } else { "0" };
        [
            ("FOLDER", folder.as_str()),
            ("MACHINES", &machines),
            ("NETEM", self.netem),
            ("RESET", reset),
        ]
        .map(|(name, value)| format!("{name}={}\n", quoted(&[value.to_owned()])))
        .concat()
    }
}

/// Words as a shell takes them for exactly these words.
pub fn quoted(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,+@%^".contains(c);
    let words = words.iter().map(|word| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    words.collect::<Vec<_>>().join(" ")
}
