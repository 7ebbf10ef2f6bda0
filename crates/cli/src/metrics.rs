//! `--metrics FILE`: one line of JSON a step. Each line is written whole; what the file held before
//! stays until the first line.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::Failure;
use super::output::json_line;

pub(crate) struct Metrics {
    path: PathBuf,
    file: Option<BufWriter<File>>,
    /// It was not there before.
    fresh: bool,
    begun: bool,
}

impl Metrics {
    /// Opens the file, if there is to be one.
    pub(crate) fn open(path: Option<&Path>) -> Result<Metrics, Failure> {
        let Some(path) = path else {
            return Ok(Metrics { path: PathBuf::new(), file: None, fresh: false, begun: false });
        };
        let fresh = !path.exists();
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| {
            let path = path.display();
            Failure::user(format!("cannot write metrics to {path}: {error}; choose another file"))
        })?;
        let file = Some(BufWriter::new(file));
        Ok(Metrics { path: path.to_path_buf(), file, fresh, begun: false })
    }

    /// Writes one line.
    pub(crate) fn line(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let line = json_line(value)?;
        self.write(&line).map_err(|error| {
            let path = self.path.display();
            Failure::other(format!("writing metrics to {path}: {error}; free space there"))
        })
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        // a pipe or a device has no length to cut
        if !std::mem::replace(&mut self.begun, true) && file.get_ref().metadata()?.is_file() {
            file.get_ref().set_len(0)?;
        }
        writeln!(file, "{line}")?;
        file.flush()
    }
}

impl Drop for Metrics {
    /// A job that never began leaves no empty file.
    fn drop(&mut self) {
        if self.file.is_some() && self.fresh && !self.begun {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
