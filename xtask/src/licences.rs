//! The licences of other people's code that the program `tensorwire` is linked from: what has to go with a program that is
//! handed out. Knows `cargo tree`, `cargo metadata` and the files of the crates; what a licence asks for is read by people.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use cargo_metadata::Package;

/// The package whose program is handed out.
const PROGRAM: &str = "tensorwire-cli";
/// How files are called that hold a licence, or what one asks to be handed on.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];

/// Why the licences could not be gathered.
#[derive(Debug, thiserror::Error)]
pub enum LicencesError {
    #[error("cargo metadata: {0}")]
    Metadata(#[from] cargo_metadata::Error),
    #[error("cannot start cargo: {0}")]
    Start(std::io::Error),
    #[error("cargo tree: {0}")]
    Tree(String),
    #[error("cannot read '{file}': {source}")]
    Read { file: String, source: std::io::Error },
}

/// A crate of somebody else's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Licensed {
    pub name: String,
    pub version: String,
    /// As the crate says it, an expression of SPDX.
    pub licence: String,
    /// Each file of a licence that the crate has, whole.
    pub texts: Vec<String>,
}

/// The page for the program of the project in `root`, built for `target` with `features`.
pub fn page(root: &Path, target: &str, features: &[String]) -> Result<String, LicencesError> {
    let linked = linked(root, target, features)?;
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .other_options(["--locked", "--all-features"].map(String::from))
        .exec()?;
    let mut packages: Vec<&Package> = metadata.packages.iter().collect();
    // those without a source are ours
    packages.retain(|package| {
        let named = (package.name.to_string(), package.version.to_string());
        package.source.is_some() && linked.contains(&named)
    });
    packages.sort_by_key(|package| (package.name.to_string(), package.version.clone()));
    let licensed = packages.into_iter().map(licensed).collect::<Result<Vec<_>, _>>()?;
    Ok(render(&licensed))
}

/// Names and versions of the packages that the program is linked from. `cargo tree` looks at one package's features, where
/// `cargo metadata` adds up those of the whole workspace.
fn linked(
    root: &Path,
    target: &str,
    features: &[String],
) -> Result<BTreeSet<(String, String)>, LicencesError> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["tree", "--locked", "--package", PROGRAM, "--target", target])
        .args(["--features", &features.join(","), "--edges", "normal,no-proc-macro"])
        .args(["--prefix", "none", "--format", "{p}"])
        .current_dir(root)
        .output()
        .map_err(LicencesError::Start)?;
    if !output.status.success() {
        return Err(LicencesError::Tree(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    // clap v4.5.0, or tensorwire-cli v0.1.0 (/folder)
    let named = |line: &str| {
        let mut words = line.split(' ');
        Some((words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
    };
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(named).collect())
}

/// What a package says of its licence, with the files that it has of it.
fn licensed(package: &Package) -> Result<Licensed, LicencesError> {
    let folder = package.manifest_path.parent().unwrap_or(&package.manifest_path);
    let read = |file: &Path| {
        std::fs::read(file)
            .map(|bytes| String::from_utf8_lossy(&bytes).trim().replace("\r\n", "\n"))
            .map_err(|source| LicencesError::Read { file: file.display().to_string(), source })
    };
    let entries = std::fs::read_dir(folder)
        .map_err(|source| LicencesError::Read { file: folder.to_string(), source })?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.is_file() && is_licence(file));
    files.sort();
    Ok(Licensed {
        name: package.name.to_string(),
        version: package.version.to_string(),
        licence: package.license.clone().unwrap_or_else(|| "see its text".to_owned()),
        texts: files.iter().map(|file| read(file)).collect::<Result<_, _>>()?,
    })
}

/// True if a file is called as those are that hold a licence.
fn is_licence(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
    NAMES.iter().any(|start| name.starts_with(start))
}

/// The page: a table of all crates, then each text once, under the crates that it is of.
pub fn render(licensed: &[Licensed]) -> String {
    let mut page = String::from(
        "The program tensorwire is linked from these crates, each under the licence beside it, and from Rust's\n\
         standard library (MIT OR Apache-2.0). Their texts follow.\n\n",
    );
    let mut crates_of: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for one in licensed {
        // writing to a string does not fail
        let _ = writeln!(page, "{} {}: {}", one.name, one.version, one.licence);
        for text in &one.texts {
            crates_of.entry(text).or_default().push(&one.name);
        }
    }
    for (text, crates) in crates_of {
        let line = "-".repeat(80);
        let _ = write!(page, "\n{line}\n{}\n{line}\n\n{text}\n", crates.join(", "));
    }
    page
}
