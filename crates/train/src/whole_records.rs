//! A file that records are appended to, each whole or not at all: what a full disk took of one is cut off again. Knows nothing of
//! what is in them.

use std::fs::File;
use std::io::{self, Write};

/// A file that others may read, rotate and cut short meanwhile. It is to be open for appending.
#[derive(Debug)]
pub struct WholeRecords {
    file: File,
    /// Where a record begins that could be written in part alone.
    torn: Option<u64>,
}

impl WholeRecords {
    pub fn new(file: File) -> WholeRecords {
        WholeRecords { file, torn: None }
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Appends a record by one write, wherever the file ends now.
    ///
    /// # Errors
    /// When it cannot be written whole; nothing of it stays then, or nothing is written until it can be cut off.
    pub fn append(&mut self, record: &[u8]) -> io::Result<()> {
        let found = self.file.metadata()?;
        // what a pipe has taken it keeps
        if !found.is_file() {
            return self.file.write_all(record);
        }
        let mut end = found.len();
        // whoever has cut it shorter meanwhile has cut that, too
        if let Some(torn) = self.torn.filter(|torn| *torn < end) {
            self.file.set_len(torn)?;
            end = torn;
        }
        self.torn = None;
        self.file.write_all(record).inspect_err(|_| {
            self.torn = Some(end);
            if self.file.set_len(end).is_ok() {
                self.torn = None;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn open(path: &std::path::Path) -> WholeRecords {
        let file = File::options().append(true).create(true).open(path).unwrap();
        WholeRecords::new(file)
    }

    #[test]
    fn a_record_goes_where_the_file_ends_and_what_is_torn_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records");
        let mut records = open(&path);
        records.append(b"one\n").unwrap();
        // as logrotate's copytruncate does
        File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        records.append(b"two\n").unwrap();
        let text = || {
            let mut text = String::new();
            File::open(&path).unwrap().read_to_string(&mut text).unwrap();
            text
        };
        assert_eq!(text(), "two\n");
        // what a disk took before it was full, and could not be cut off
        (&records.file).write_all(b"thr").unwrap();
        records.torn = Some(4);
        records.append(b"four\n").unwrap();
        assert_eq!(text(), "two\nfour\n");
        records.torn = Some(400);
        records.append(b"five\n").unwrap();
        assert_eq!(text(), "two\nfour\nfive\n", "it is shorter than that by now");
    }

    #[test]
    fn what_has_no_room_leaves_nothing() {
        let mut full = open("/dev/full".as_ref());
        assert!(full.append(b"one\n").is_err());
        assert!(full.append(b"two\n").is_err());
    }
}
