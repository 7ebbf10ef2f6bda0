//! Event files that TensorBoard opens: what is told of a run's steps, and its summary, as scalars. Knows no job and no
//! terminal.
//!
//! A file is a TFRecord: each record has its length, the masked CRC-32C of that, its bytes and their masked CRC-32C. The bytes
//! are a `tensorflow.Event` as protocol buffers spell it (tensorflow/core/util/event.proto and framework/summary.proto), of
//! which scalars need six fields.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crc::{CRC_32_ISCSI, Crc};

use crate::steps::FinishedStep;
use crate::summary::Summary;
use crate::whole_records::WholeRecords;

/// What the first record of every file says.
const FILE_VERSION: &str = "brain.Event:2";

/// CRC-32C.
const CASTAGNOLI: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// Files of one process whose names begin in the same second, at most.
const SAME_SECOND_MAX: u32 = 1000;

/// Writes the scalars of one run to an event file of its own, in a folder that may hold those of other runs. Their names
/// are those of [`FinishedStep`] and [`Summary`]. A file of a run that never made a step is removed again, with its folder if
/// that is new.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: WholeRecords,
    /// The folder was not there before.
    is_folder_new: bool,
    begun: bool,
}

/// Why a run's events are not there.
#[derive(Debug, thiserror::Error)]
pub enum EventFileError {
    /// Before the run.
    #[error(
        "cannot write TensorBoard's event files to {folder}: {source}; choose a folder that may be written, or one that can be \
         made"
    )]
    Create { folder: PathBuf, source: io::Error },
    /// While it ran.
    #[error("writing events to {path}: {source}; free space there")]
    Write { path: PathBuf, source: io::Error },
}

impl EventFile {
    /// Creates `events.out.tfevents.SECONDS.HOST.PID` in a folder, which is made if it is not there.
    ///
    /// # Errors
    /// When no file can be written there.
    pub fn create(folder: &Path) -> Result<EventFile, EventFileError> {
        let is_folder_new = !folder.exists();
        let failed = |source| EventFileError::Create { folder: folder.to_path_buf(), source };
        fs::create_dir_all(folder).map_err(failed)?;
        let (path, file) = new_file(folder).map_err(failed)?;
        let file = WholeRecords::new(file);
        let mut events = EventFile { path, file, is_folder_new, begun: false };
        events.record(&event(0, FILE_VERSION_FIELD, FILE_VERSION.as_bytes())).map_err(failed)?;
        Ok(events)
    }

    /// Adds what is known of a step.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn step(&mut self, step: &FinishedStep) -> Result<(), EventFileError> {
        let FinishedStep { loss, rate, samples_per_second, .. } = *step;
        let mut scalars = vec![
            ("loss", f64::from(loss)),
            ("rate", rate),
            ("samples_per_second", samples_per_second),
        ];
        scalars.extend(step.evaluation.iter().flat_map(|evaluation| evaluation.named()));
        self.scalars(step.step, &scalars)
    }

    /// Adds the evaluation in the end, at the last step.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn summary(&mut self, summary: &Summary) -> Result<(), EventFileError> {
        let named = [
            ("test_loss", summary.test_loss),
            ("test_accuracy", summary.test_accuracy),
            ("test_perplexity", summary.test_perplexity),
        ];
        let named = named.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let others = summary.metrics.iter().map(|(name, value)| (name.as_str(), *value));
        self.scalars(summary.steps, &named.chain(others).collect::<Vec<_>>())
    }

    /// Writes the scalars of a step as one event.
    fn scalars(&mut self, step: u64, scalars: &[(&str, f64)]) -> Result<(), EventFileError> {
        if scalars.is_empty() {
            return Ok(());
        }
        self.begun = true;
        let mut summary = Vec::new();
        for (name, value) in scalars {
            field(&mut summary, SUMMARY_VALUE_FIELD, &scalar(name, *value));
        }
        let event = event(step, SUMMARY_FIELD, &summary);
        let path = self.path.clone();
        self.record(&event).map_err(|source| EventFileError::Write { path, source })
    }

    fn record(&mut self, bytes: &[u8]) -> io::Result<()> {
        let length = (bytes.len() as u64).to_le_bytes();
        let mut record = length.to_vec();
        record.extend(masked_crc(&length).to_le_bytes());
        record.extend(bytes);
        record.extend(masked_crc(bytes).to_le_bytes());
        // whoever watches sees the step now
        self.file.append(&record)
    }
}

impl Drop for EventFile {
    fn drop(&mut self) {
        if self.begun {
            return;
        }
        // that something stays is worth no error
        let _ = fs::remove_file(&self.path);
        if let Some(folder) = self.path.parent().filter(|_| self.is_folder_new) {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Creates a file of a name that no other run has.
fn new_file(folder: &Path) -> io::Result<(PathBuf, File)> {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let name = format!("events.out.tfevents.{}.{host}.{}", now().as_secs(), std::process::id());
    let mut path = folder.join(&name);
    for other in 1..SAME_SECOND_MAX {
        match File::options().append(true).create_new(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                path = folder.join(format!("{name}.{other}"));
            }
            opened => return Ok((path, opened?)),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "too many runs in one second"))
}

/// Since 1970.
fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// As TFRecord stores it, so that a CRC of bytes that hold CRCs is not weak.
fn masked_crc(bytes: &[u8]) -> u32 {
    CASTAGNOLI.checksum(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// `Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5; }`
const WALL_TIME_FIELD: u8 = 1;
const STEP_FIELD: u8 = 2;
const FILE_VERSION_FIELD: u8 = 3;
const SUMMARY_FIELD: u8 = 5;
/// `Summary { repeated Value value = 1; }`
const SUMMARY_VALUE_FIELD: u8 = 1;
/// `Summary.Value { string tag = 1; float simple_value = 2; }`
const TAG_FIELD: u8 = 1;
const SIMPLE_VALUE_FIELD: u8 = 2;

/// How the bytes of a field are to be read, behind its number in its key.
const VARINT: u8 = 0;
const EIGHT_BYTES: u8 = 1;
const WITH_LENGTH: u8 = 2;
const FOUR_BYTES: u8 = 5;

/// An event of now that has one more field.
fn event(step: u64, number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut event = vec![WALL_TIME_FIELD << 3 | EIGHT_BYTES];
    event.extend(now().as_secs_f64().to_le_bytes());
    // what is 0 is left out
    if step > 0 {
        event.push(STEP_FIELD << 3 | VARINT);
        varint(&mut event, step);
    }
    field(&mut event, number, bytes);
    event
}

fn scalar(name: &str, value: f64) -> Vec<u8> {
    let mut scalar = Vec::new();
    field(&mut scalar, TAG_FIELD, name.as_bytes());
    scalar.push(SIMPLE_VALUE_FIELD << 3 | FOUR_BYTES);
    // rounds: the format has floats
    scalar.extend((value as f32).to_le_bytes());
    scalar
}

/// Adds a field of text or of a message.
fn field(to: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    to.push(number << 3 | WITH_LENGTH);
    varint(to, bytes.len() as u64);
    to.extend(bytes);
}

/// Adds a number, seven bits a byte, the lowest first.
fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        // fits: seven bits
        to.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    // fits: below 0x80
    to.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_no_step_is_gone_with_its_new_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("old"), folder.path().join("new"));
        fs::create_dir(&old).unwrap();
        for folder in [&old, &new] {
            let (one, other) = (EventFile::create(folder).unwrap(), EventFile::create(folder));
            assert_ne!(one.path, other.unwrap().path);
        }
        assert_eq!(fs::read_dir(&old).unwrap().count(), 0);
        assert!(!new.exists());
    }

    #[test]
    fn a_folder_that_cannot_be_is_said_before_the_run() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = EventFile::create(&file.path().join("runs")).unwrap_err().to_string();
        assert!(error.contains("choose a folder that may be written"), "{error}");
        assert!(EventFile::create(file.path()).is_err());
    }

    /// RFC 3720, B.4; and what `masked_crc32c` of TensorFlow gives for the length of an event of 24 bytes.
    #[test]
    fn the_checksum_is_castagnolis() {
        assert_eq!(CASTAGNOLI.checksum(&[0; 32]), 0x8a91_36aa);
        assert_eq!(CASTAGNOLI.checksum(b"123456789"), 0xe306_9283);
        assert_eq!(masked_crc(&24_u64.to_le_bytes()).to_le_bytes(), [0xa3, 0x7f, 0x4b, 0x22]);
    }
}
