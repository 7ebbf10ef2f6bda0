//! Keeps ARCHITECTURE.md true, and the other pages readable. Gathers texts and metadata here; the checks are functions over
//! strings, one file a subject.

mod code;
mod crates;
mod files;
mod messages;
mod names;
mod pages;
mod shown;
mod words;

use std::fmt;
use std::path::Path;

pub use code::Code;
pub use crates::{CrateTable, Edge, check_edges, check_members};
pub use files::{check_rust_file, check_text_file};
pub use messages::{MESSAGES, check_messages};
pub use names::{PublicType, SHARED_NAMES, SharedName, check_names, public_types};
pub use pages::{check_pages, is_page};
pub use shown::{ATTACKS, check_shown};
pub use words::{check_forbids_unsafe, check_words};

/// One thing that is not as ARCHITECTURE.md says: where, what, and what to do instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    pub file: String,
    /// Counted from 1.
    pub line: usize,
    pub message: String,
}

/// Why nothing could be checked.
#[derive(Debug, thiserror::Error)]
pub enum TidyError {
    #[error("cannot read '{file}': {source}")]
    Read { file: String, source: std::io::Error },
    #[error("cannot list the project's files: {0}")]
    Walk(#[from] ignore::Error),
    #[error("cargo metadata: {0}")]
    Metadata(#[from] cargo_metadata::Error),
}

/// Checks the project in `root`; no complaints means tidy.
pub fn check(root: &Path) -> Result<Vec<Complaint>, TidyError> {
    let map = root.join("ARCHITECTURE.md");
    let map = std::fs::read_to_string(&map)
        .map_err(|source| TidyError::Read { file: map.display().to_string(), source })?;
    let (table, mut complaints) = CrateTable::parse(&map);
    let (members, edges) = workspace(root)?;
    complaints.extend(check_members(&table, &members));
    complaints.extend(check_edges(&table, &edges));
    let texts = texts(root)?;
    let pages: Vec<(&str, &str)> = texts
        .iter()
        .map(|(file, text)| (file.as_str(), text.as_str()))
        .filter(|(file, _)| is_page(file))
        .collect();
    complaints.extend(check_pages(&pages, &|file| root.join(file).exists()));
    let said: Vec<&str> = texts
        .iter()
        .filter(|(file, _)| file.starts_with("crates/") && file.contains("/src/"))
        .map(|(_, text)| text.as_str())
        .collect();
    let quoting = texts.iter().find(|(file, _)| file == MESSAGES);
    complaints.extend(quoting.map_or_else(Vec::new, |(_, page)| check_messages(page, &said)));
    let attacks = texts.iter().find(|(file, _)| file == ATTACKS);
    let all: Vec<(&str, &str)> =
        texts.iter().map(|(file, text)| (file.as_str(), text.as_str())).collect();
    complaints.extend(attacks.map_or_else(Vec::new, |(_, page)| check_shown(page, &all)));
    let mut types = Vec::new();
    for (file, text) in texts {
        complaints.extend(check_text_file(&file, &text));
        if file.ends_with(".rs") {
            let code = Code::read(&text);
            complaints.extend(check_rust_file(&file, &text, &code));
            complaints.extend(check_words(&file, &code));
            complaints.extend(check_forbids_unsafe(&file, &text));
            types.extend(public_types(&file, &code));
        }
    }
    complaints.extend(check_names(&types, SHARED_NAMES));
    Ok(complaints)
}

/// The workspace's packages, and which uses which.
fn workspace(root: &Path) -> Result<(Vec<String>, Vec<Edge>), TidyError> {
    let manifest = root.join("Cargo.toml");
    // without dependencies nothing is resolved, so this needs no network and writes no lock file
    let metadata =
        cargo_metadata::MetadataCommand::new().manifest_path(manifest).no_deps().exec()?;
    let members: Vec<String> = metadata.packages.iter().map(|p| p.name.to_string()).collect();
    let mut edges = Vec::new();
    for package in &metadata.packages {
        for dependency in &package.dependencies {
            if members.contains(&dependency.name) {
                edges.push(Edge {
                    user: package.name.to_string(),
                    used: dependency.name.clone(),
                    dev: dependency.kind == cargo_metadata::DependencyKind::Development,
                });
            }
        }
    }
    Ok((members, edges))
}

/// Every text file that git does not ignore, with its path from `root`.
fn texts(root: &Path) -> Result<Vec<(String, String)>, TidyError> {
    let mut texts = Vec::new();
    let walk = ignore::WalkBuilder::new(root)
        .hidden(false)
        .require_git(false)
        .filter_entry(|entry| entry.file_name() != ".git")
        .sort_by_file_path(Path::cmp)
        .build();
    for entry in walk {
        let entry = entry?;
        if !entry.file_type().is_some_and(|kind| kind.is_file()) {
            continue;
        }
        let file = entry.path().strip_prefix(root).unwrap_or(entry.path()).display().to_string();
        let bytes = std::fs::read(entry.path())
            .map_err(|source| TidyError::Read { file: file.clone(), source })?;
        // what is not UTF-8, or holds a zero, is no text: the digits
        if let Ok(text) = String::from_utf8(bytes)
            && !text.contains('\0')
        {
            texts.push((file, text));
        }
    }
    Ok(texts)
}

impl Complaint {
    fn new(file: &str, line: usize, message: String) -> Complaint {
        Complaint { file: file.to_owned(), line, message }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}
