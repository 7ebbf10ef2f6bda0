//! What is left of checkpoints where power fails. strace notes what their writers ask of the system; a file system that keeps what
//! was synced, and of everything else what it likes, is then cut behind each call. Whatever it keeps, the newest checkpoint
//! that was said to be there is there and whole, or a newer one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;

use tensorwire_tensor::DType;
use tensorwire_testkit::program::itself;
use tensorwire_testkit::random::Random;
use tensorwire_testkit::skip::skip;

use super::keeper::{Evaluated, Keeper};
use super::saver::{Captured, Held, Saver};
use super::tests::state;
use super::{CheckpointConfig, CheckpointFolder};
use crate::report::LOSS;

/// Is there where the child writes, which is where it is started.
const TRACED: &str = "traced";
/// What it makes a folder of to say that a checkpoint is there.
const SAID: &str = "said";
/// Beside what all and nothing of the rest leave.
const DRAWN: u64 = 24;

/// The child: it writes checkpoints as a job of one process does, one step a second time, and keeps the best and the newest.
#[test]
#[ignore = "started by the test below, under strace"]
fn writes_checkpoints() {
    let (place, path) = (Path::new("."), Path::new("runs/a"));
    if !place.join(TRACED).exists() {
        return;
    }
    let config = CheckpointConfig { keep: 1, best: true, ..CheckpointConfig::new(path) };
    // as a job does before all else, which makes the folder
    let _claim = CheckpointFolder::new(path).claim().unwrap();
    let mut job = state();
    for (step, loss) in [(10, 3.0), (20, 1.0), (30, 2.0), (30, 2.0), (40, 0.5)] {
        let evaluated = Evaluated { every: Some(10), steps: 100 };
        let shards = BTreeSet::from(["worker0".to_string()]);
        let keeper = Keeper::start(&config, shards, job.clone(), job.step, evaluated).unwrap();
        let (tell, told) = channel();
        let folder = CheckpointFolder::new(path);
        let mut saver =
            Saver::telling(folder, "worker0", move |report| tell.send(report.clone()).unwrap())
                .unwrap();
        let variable = Captured {
            name: "w".to_string(),
            dtype: DType::U8,
            dims: vec![64],
            whole: vec![64],
            first_element: 0,
            bytes: Held::Apart(vec![step as u8; 64]),
        };
        saver.write(step, vec![variable]);
        keeper.add(told.recv().unwrap());
        let evaluation = [(LOSS.to_string(), loss)].into_iter().collect();
        keeper.evaluated(step, evaluation);
        drop((saver, keeper));
        job = CheckpointFolder::new(path).found().unwrap()[0].verified().unwrap();
        std::fs::create_dir_all(place.join(SAID)).unwrap();
        let said = format!("{step}-{}", job.best.as_ref().unwrap().step);
        // of the second time, too
        let _ = std::fs::remove_dir(place.join(SAID).join(&said));
        std::fs::create_dir(place.join(SAID).join(said)).unwrap();
    }
}

/// What was asked of the file system. Paths are as they were called at the time.
#[derive(Clone, Debug)]
enum Call {
    /// A file without a name, or with one.
    Make(usize, Option<PathBuf>),
    Write(usize, Vec<u8>),
    MakeFolder(usize, PathBuf),
    Link(usize, PathBuf),
    Symlink(PathBuf, PathBuf),
    Rename(PathBuf, PathBuf),
    Exchange(PathBuf, PathBuf),
    Remove(PathBuf),
    /// Of a file or a folder, by its number.
    Sync(usize),
    /// The child says that a checkpoint of this step is there, and that the best is of that one.
    Said(u64, u64),
}

#[derive(Clone, Debug, PartialEq)]
enum Node {
    File(usize),
    Folder(usize),
    Symlink(PathBuf),
}

/// A file system: what there is by path, and what is in its files.
#[derive(Clone, Debug, Default)]
struct Disk {
    nodes: BTreeMap<PathBuf, Node>,
    files: BTreeMap<usize, Vec<u8>>,
}

impl Disk {
    /// Does what was asked for, as far as it can without what was lost before.
    fn apply(&mut self, call: &Call) {
        match call {
            Call::Make(file, path) => {
                self.files.insert(*file, Vec::new());
                if let Some(path) = path {
                    self.put(path, Node::File(*file));
                }
            }
            Call::Write(file, bytes) => {
                self.files.entry(*file).or_default().extend_from_slice(bytes);
            }
            Call::MakeFolder(folder, path) => self.put(path, Node::Folder(*folder)),
            Call::Link(file, path) => self.put(path, Node::File(*file)),
            Call::Symlink(to, path) => self.put(path, Node::Symlink(to.clone())),
            Call::Rename(from, to) => {
                let moved = self.take(from);
                if !moved.is_empty() {
                    self.take(to);
                    self.put_all(moved, from, to);
                }
            }
            Call::Exchange(one, other) => {
                let (first, second) = (self.take(one), self.take(other));
                self.put_all(first, one, other);
                self.put_all(second, other, one);
            }
            Call::Remove(path) => drop(self.take(path)),
            Call::Sync(_) | Call::Said(..) => {}
        }
    }

    fn put(&mut self, path: &Path, node: Node) {
        // where its folder was lost, so was it
        if path.parent().is_some_and(|parent| self.nodes.contains_key(parent)) {
            self.nodes.insert(path.to_path_buf(), node);
        }
    }

    /// What is at a path and below.
    fn take(&mut self, path: &Path) -> Vec<(PathBuf, Node)> {
        let below: Vec<PathBuf> =
            self.nodes.keys().filter(|other| other.starts_with(path)).cloned().collect();
        below.into_iter().filter_map(|path| self.nodes.remove_entry(&path)).collect()
    }

    fn put_all(&mut self, moved: Vec<(PathBuf, Node)>, from: &Path, to: &Path) {
        for (path, node) in moved {
            let rest = path.strip_prefix(from).unwrap();
            let path = if rest.as_os_str().is_empty() { to.to_path_buf() } else { to.join(rest) };
            self.nodes.insert(path, node);
        }
    }

    fn folder(&self, path: &Path) -> Option<usize> {
        match self.nodes.get(path)? {
            Node::Folder(number) => Some(*number),
            _ => None,
        }
    }

    /// Makes it what a folder of this system holds.
    fn put_down(&self, from: &Path, to: &Path) {
        for (path, node) in &self.nodes {
            let Ok(rest) = path.strip_prefix(from) else { continue };
            let path = to.join(rest);
            match node {
                Node::Folder(_) => std::fs::create_dir_all(&path).unwrap(),
                Node::File(file) => std::fs::write(&path, &self.files[file]).unwrap(),
                Node::Symlink(target) => std::os::unix::fs::symlink(target, &path).unwrap(),
            }
        }
    }
}

/// Reads what strace wrote, of what lies in `place`.
struct Trace {
    place: PathBuf,
    calls: Vec<Call>,
    /// As if nothing was ever lost: paths are found here.
    disk: Disk,
    open: BTreeMap<i64, (usize, Option<PathBuf>)>,
    /// Calls that other threads interrupted, by thread.
    begun: BTreeMap<String, String>,
    next: usize,
}

impl Trace {
    fn read(place: &Path, text: &str) -> Vec<Call> {
        let mut disk = Disk::default();
        // the place itself was there before
        disk.nodes.insert(place.to_path_buf(), Node::Folder(0));
        let (calls, open, begun) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let mut trace = Trace { place: place.to_path_buf(), calls, disk, open, begun, next: 1 };
        text.lines().for_each(|line| trace.line(line));
        trace.calls
    }

    /// `4711 renameat2(AT_FDCWD, "\x2f", AT_FDCWD, "\x2f", RENAME_NOREPLACE) = 0`
    fn line(&mut self, line: &str) {
        let Some((thread, call)) = line.split_once(' ') else { return };
        let mut call = call.trim_start().to_string();
        if let Some(begun) = call.strip_suffix("<unfinished ...>") {
            self.begun.insert(thread.to_string(), begun.trim_end().to_string());
            return;
        }
        // it is done now: <... fsync resumed>) = 0
        if let Some((_, rest)) = call.strip_prefix("<... ").and_then(|call| call.split_once('>')) {
            call = self.begun.remove(thread).unwrap_or_default() + rest;
        }
        let Some((name, rest)) = call.split_once('(') else { return };
        let Some((arguments, result)) = rest.rsplit_once(" = ") else { return };
        let result: i64 = match result.split_whitespace().next().unwrap_or_default().parse() {
            Ok(result) if result >= 0 => result,
            _ => return,
        };
        let arguments = arguments.trim_end().strip_suffix(')').unwrap_or(arguments);
        let arguments: Vec<&str> = arguments.split(", ").collect();
        self.call(name, &arguments, result);
    }

    fn call(&mut self, name: &str, arguments: &[&str], result: i64) {
        let number = |at: usize| arguments[at].parse::<i64>().unwrap();
        match name {
            "openat" => {
                let path = self.path(arguments[0], arguments[1]);
                let flags = arguments[2];
                if flags.contains("O_TMPFILE") {
                    let file = self.fresh();
                    self.open.insert(result, (file, None));
                    self.add_in(&path, Call::Make(file, None));
                    return;
                }
                let found = self.disk.nodes.get(&path).cloned();
                let file = match found {
                    Some(Node::File(file) | Node::Folder(file)) => file,
                    _ => self.fresh(),
                };
                self.open.insert(result, (file, Some(path.clone())));
                let is_new = !self.disk.nodes.contains_key(&path);
                if flags.contains("O_CREAT") && is_new {
                    self.add(&path, Call::Make(file, Some(path.clone())));
                }
                assert!(!flags.contains("O_TRUNC") || is_new, "what is there is not cut: {path:?}");
            }
            "close" => drop(self.open.remove(&number(0))),
            "write" => {
                if let Some((file, _)) = self.open.get(&number(0)).cloned() {
                    let mut bytes = unquoted(arguments[1]);
                    bytes.truncate(usize::try_from(result).unwrap());
                    self.push(Call::Write(file, bytes));
                }
            }
            "fsync" | "fdatasync" => {
                if let Some((file, _)) = self.open.get(&number(0)) {
                    self.push(Call::Sync(*file));
                }
            }
            "mkdir" | "mkdirat" => {
                let path = self.any_path(name, arguments, 0);
                if let Ok(said) = path.strip_prefix(self.place.join(SAID)) {
                    let said = said.to_string_lossy();
                    if let Some((step, best)) = said.split_once('-') {
                        self.push(Call::Said(step.parse().unwrap(), best.parse().unwrap()));
                    }
                    return;
                }
                let folder = self.fresh();
                self.add(&path, Call::MakeFolder(folder, path.clone()));
            }
            "linkat" => {
                let source = String::from_utf8(unquoted(arguments[1])).unwrap();
                let open = source.rsplit('/').next().unwrap().parse::<i64>().unwrap();
                let (file, to) = (self.open[&open].0, self.path(arguments[2], arguments[3]));
                self.add(&to, Call::Link(file, to.clone()));
            }
            "symlink" | "symlinkat" => {
                let to = PathBuf::from(String::from_utf8(unquoted(arguments[0])).unwrap());
                let path = self.any_path(name, &arguments[1..], 0);
                self.add(&path, Call::Symlink(to, path.clone()));
            }
            "rename" | "renameat" | "renameat2" => {
                let from = self.any_path(name, arguments, 0);
                let skipped = if name == "rename" { 1 } else { 2 };
                let to = self.any_path(name, &arguments[skipped..], 0);
                let exchanges = arguments.last().unwrap().contains("RENAME_EXCHANGE");
                let call = if exchanges { Call::Exchange } else { Call::Rename };
                self.add(&to, call(from, to.clone()));
            }
            "unlink" | "rmdir" | "unlinkat" => {
                let path = self.any_path(name, arguments, 0);
                self.add(&path, Call::Remove(path.clone()));
            }
            other => panic!("{other} is not known"),
        }
    }

    /// The path of a call that has a folder before it if its name ends with `at`.
    fn any_path(&self, name: &str, arguments: &[&str], at: usize) -> PathBuf {
        match name.trim_end_matches('2').ends_with("at") {
            true => self.path(arguments[at], arguments[at + 1]),
            false => self.path("AT_FDCWD", arguments[at]),
        }
    }

    fn path(&self, folder: &str, path: &str) -> PathBuf {
        let path = PathBuf::from(String::from_utf8(unquoted(path)).unwrap());
        match folder.parse::<i64>() {
            Ok(open) if path.is_relative() => self
                .open
                .get(&open)
                .and_then(|(_, path)| path.clone())
                .unwrap_or_default()
                .join(path),
            // the child's own folder; what is not there is of no interest
            _ => self.place.join(path.strip_prefix(".").unwrap_or(&path)),
        }
    }

    fn fresh(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }

    /// Notes a call that is of what lies in the place.
    fn add(&mut self, path: &Path, call: Call) {
        if path.starts_with(&self.place) {
            self.push(call);
        }
    }

    /// The same of a file without a name, in a folder.
    fn add_in(&mut self, folder: &Path, call: Call) {
        self.add(&folder.join("_"), call);
    }

    fn push(&mut self, call: Call) {
        self.disk.apply(&call);
        self.calls.push(call);
    }
}

/// `"\x2f\x74"`
fn unquoted(text: &str) -> Vec<u8> {
    assert!(!text.ends_with("..."), "it was cut: {text}");
    let text = text.trim_matches('"');
    text.split("\\x").skip(1).map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

/// The calls that a file system may have lost when power fails behind the first `count`: those of which nothing was synced since.
fn at_risk(place: &Path, calls: &[Call], count: usize) -> Vec<usize> {
    let mut disk = Disk::default();
    disk.nodes.insert(place.to_path_buf(), Node::Folder(0));
    let mut needed = Vec::new();
    for call in &calls[..count] {
        let parent = |path: &Path| path.parent().and_then(|parent| disk.folder(parent));
        needed.push(match call {
            Call::Write(file, _) => Some(*file),
            Call::Make(_, Some(path))
            | Call::MakeFolder(_, path)
            | Call::Link(_, path)
            | Call::Symlink(_, path)
            // from one name to another in the same folder
            | Call::Rename(_, path)
            | Call::Exchange(_, path)
            | Call::Remove(path) => parent(path),
            Call::Make(_, None) | Call::Sync(_) | Call::Said(..) => None,
        });
        disk.apply(call);
    }
    let is_synced = |at: usize, what: usize| {
        calls[at..count].iter().any(|call| matches!(call, Call::Sync(synced) if *synced == what))
    };
    let lost = needed.into_iter().enumerate();
    lost.filter_map(|(at, what)| what.filter(|what| !is_synced(at, *what)).map(|_| at)).collect()
}

fn cut(place: &Path, calls: &[Call], count: usize, lost: &BTreeSet<usize>) -> Disk {
    let mut disk = Disk::default();
    disk.nodes.insert(place.to_path_buf(), Node::Folder(0));
    let kept = calls[..count].iter().enumerate().filter(|(at, _)| !lost.contains(at));
    kept.for_each(|(_, call)| disk.apply(call));
    disk
}

#[test]
fn whatever_a_disk_has_lost_the_last_checkpoint_is_there_and_whole() {
    let place = tempfile::tempdir().unwrap();
    let place = std::fs::canonicalize(place.path()).unwrap();
    std::fs::write(place.join(TRACED), "").unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    let calls = "openat,close,write,fsync,fdatasync,mkdir,mkdirat,linkat,symlink,symlinkat,rename,renameat,renameat2,unlink,unlinkat,rmdir";
    let mut strace = Command::new("strace");
    strace.args([
        "-f",
        "-xx",
        "-s",
        "1000000",
        "-e",
        &format!("trace={calls}"),
        "-e",
        "signal=none",
    ]);
    strace.arg("-o").arg(log.path()).arg(itself());
    strace.args(["checkpoint::power_loss::writes_checkpoints", "--exact", "--ignored"]);
    strace.args(["--test-threads", "1", "--nocapture"]).current_dir(&place);
    match strace.stdin(Stdio::null()).output() {
        Err(error) => return skip(None, &format!("strace cannot be run: {error}")),
        Ok(said) if !said.status.success() => {
            let said = String::from_utf8_lossy(&said.stderr).into_owned();
            assert!(!said.contains("panicked"), "{said}");
            return skip(None, &format!("strace follows no process here: {said}"));
        }
        Ok(_) => {}
    }
    let calls = Trace::read(&place, &std::fs::read_to_string(log.path()).unwrap());
    let said = calls.iter().filter(|call| matches!(call, Call::Said(..))).count();
    assert_eq!(said, 5, "{calls:?}");
    // nothing lost is what is there
    let whole = cut(&place, &calls, calls.len(), &BTreeSet::new());
    assert_eq!(look(&place, &whole), (Some(40), Some(40)));
    let (mut random, mut states) = (Random::new(19), 0);
    for count in 0..=calls.len() {
        let last = calls[..count].iter().rev().find_map(|call| match call {
            Call::Said(step, best) => Some((*step, *best)),
            _ => None,
        });
        let at_risk = at_risk(&place, &calls, count);
        let is_data = |at: &&usize| matches!(calls[**at], Call::Write(..));
        // nothing of it is lost, all of it, what is in files, and each call alone with and without that
        let data: BTreeSet<usize> = at_risk.iter().filter(is_data).copied().collect();
        let all: BTreeSet<usize> = at_risk.iter().copied().collect();
        let mut losses = vec![BTreeSet::new(), all.clone(), data.clone()];
        for at in &at_risk {
            losses.push([*at].into());
            losses.push(data.iter().copied().chain([*at]).collect());
            losses.push(all.iter().copied().filter(|other| other != at).collect());
        }
        losses.extend(
            (0..DRAWN).map(|_| at_risk.iter().copied().filter(|_| random.happens(50)).collect()),
        );
        losses.sort();
        losses.dedup();
        for lost in losses {
            states += 1;
            let (newest, best) = look(&place, &cut(&place, &calls, count, &lost));
            let context = || {
                let lost: Vec<&Call> = lost.iter().map(|at| &calls[*at]).collect();
                format!("behind call {count} {:?}, without {lost:#?}", calls[..count].last())
            };
            let Some((step, of_best)) = last else { continue };
            assert!(
                newest.is_some_and(|newest| newest >= step),
                "{newest:?} of {step} {}",
                context()
            );
            assert!(
                best.is_some_and(|best| best >= of_best),
                "{best:?} of {of_best} {}",
                context()
            );
        }
    }
    assert!(states > 1000, "{states}");
}

/// The newest step of which a whole checkpoint is there, and that of the best.
fn look(place: &Path, disk: &Disk) -> (Option<u64>, Option<u64>) {
    let folder = tempfile::tempdir().unwrap();
    disk.put_down(place, folder.path());
    let path = folder.path().join("runs/a");
    let whole = |folder: &Path| {
        let found = CheckpointFolder::new(folder).found().unwrap_or_default();
        found.iter().find_map(|found| {
            let state = found.verified().ok()?;
            let bytes = std::fs::read(found.path.join("worker0")).unwrap();
            assert!(bytes.ends_with(&[state.step as u8; 64]), "another's values");
            Some(state.step)
        })
    };
    (whole(&path), whole(&path.join("best")))
}
