//! `scripts/data.sh` with files of a folder in the place of a network: what is not as it was published leaves nothing, and what
//! is can be learned from.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use crate::support::Job;

const LIMIT: Duration = Duration::from_secs(120);
const DIGITS: [&str; 4] = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Runs a shell's command, which may not fail.
fn shell(folder: &Path, command: &str) -> String {
    let output = Command::new("bash").args(["-euc", command]).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_string()
}

/// Runs a script of data, with files from a folder.
fn fetch(script: &Path, served: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("bash");
    command.arg(script).args(arguments);
    command.env("TENSORWIRE_DATA_URL", format!("file://{}", served.display()));
    command.output().unwrap()
}

/// A folder of files named as MNIST's, of the digits that ship.
fn served() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in DIGITS {
        let from = root().join("crates/zoo/data/digits").join(name);
        shell(folder.path(), &format!("gzip --stdout '{}' > {name}.gz", from.display()));
    }
    folder
}

#[test]
fn a_file_that_is_not_what_was_published_leaves_nothing() {
    let (served, folder) = (served(), tempfile::tempdir().unwrap());
    let script = root().join("scripts/data.sh");
    let to = folder.path().to_str().unwrap();
    let output = fetch(&script, served.path(), &[to, "mnist"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("train-images-idx3-ubyte.gz") && said.contains("was removed"), "{said}");
    assert_eq!(shell(folder.path(), "find . -mindepth 1"), "");
    let output = fetch(&script, served.path(), &[to, "imagenet"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
}

#[test]
fn what_is_verified_is_learned_from() {
    let (served, folder) = (served(), tempfile::tempdir().unwrap());
    // the same script with the checksums of other files
    let mut script = std::fs::read_to_string(root().join("scripts/data.sh")).unwrap();
    for name in DIGITS {
        let sum = shell(served.path(), &format!("sha256sum {name}.gz | cut -d ' ' -f 1"));
        let row = script.lines().find(|line| line.starts_with(&format!("mnist|{name}.gz|")));
        let row = row.unwrap().to_string();
        let published = row.split('|').nth(2).unwrap();
        script = script.replace(&row, &row.replace(published, &sum));
    }
    let path = served.path().join("data.sh");
    std::fs::write(&path, script).unwrap();
    let to = folder.path().join("data");
    // a fetch that was cut off goes on, and one that ended before it was verified is none to begin with
    std::fs::create_dir_all(to.join("mnist")).unwrap();
    let part = |name: &str, bytes: &str| {
        let to = to.join("mnist").join(format!("{name}.gz.part"));
        shell(served.path(), &format!("head -c {bytes} {name}.gz > '{}'", to.display()));
    };
    part(DIGITS[0], "100");
    for _ in 0..2 {
        let output = fetch(&path, served.path(), &[to.to_str().unwrap(), "mnist"]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said} {}", String::from_utf8_lossy(&output.stderr));
        assert!(said.contains(&format!("train --data mnist:{}/mnist", to.display())), "{said}");
    }
    assert_eq!(shell(&to, "find . -name '*.part' -o -name .unpacking"), "");
    let job = format!(
        "train --strategy local --workers 1 --data mnist:{}/mnist --batch 8 --steps 2 --threads 1",
        to.display()
    );
    let trained = Job::start(&job).end(LIMIT);
    assert!(trained.status.success(), "{}", trained.stderr);
    let listed = Job::start(&format!("bench evaluation --list --data {}", to.display())).end(LIMIT);
    assert!(
        listed.status.success() && listed.stdout.contains("store-training"),
        "{}",
        listed.stderr
    );
    let nothing = folder.path().display();
    let refused = Job::start(&format!("bench evaluation --list --data {nothing}")).end(LIMIT);
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("scripts/data.sh"), "{}", refused.stderr);
}
