//! Checkpoints of whole jobs, with real processes: whoever goes on from one ends with the bits of a job that nobody stopped,
//! whatever became of the job that wrote it, and of its files.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use tensorwire_testkit::skip::skip;

use crate::support::{Ended, Job};
use crate::train::weights;

const LIMIT: Duration = Duration::from_secs(120);
pub(crate) const JOB: &str = "--batch 8 --threads 1";

pub(crate) fn train(arguments: &str) -> Ended {
    Job::start(&format!("train --json {JOB} {arguments}")).end(LIMIT)
}

pub(crate) fn hash(ended: &Ended) -> String {
    ended.json()["weights_sha256"].as_str().unwrap().to_string()
}

/// A folder of checkpoints that is not there yet, in one that goes with the test.
pub(crate) fn place() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs/a").display().to_string();
    (folder, path)
}

/// What is in a folder, in order.
pub(crate) fn names(path: &str) -> Vec<String> {
    let entries = std::fs::read_dir(path).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

pub(crate) fn step(path: &str, step: u64) -> PathBuf {
    Path::new(path).join(format!("step-{step:08}"))
}

#[test]
fn what_goes_on_from_a_checkpoint_has_the_bits_of_an_undisturbed_job() {
    let adam = "--optimizer adam --lr 0.001 --schedule step:2,0.5 --warmup 3 --accumulate 2";
    let undisturbed = hash(&train(&format!("{adam} --strategy local --steps 9")));
    for (job, files) in [
        ("--strategy local", 1),
        ("--split-above 1KiB", 2),
        ("--transport tcp --servers 3", 3),
        ("--strategy dist-sgd", 2),
    ] {
        goes_on(&format!("{adam} {job}"), files, &undisturbed);
    }
    for (job, files) in [
        ("--strategy allreduce --optimizer adagrad", 1),
        ("--strategy mpi-sgd --workers 4 --clients 2", 2),
    ] {
        goes_on(job, files, &hash(&train(&format!("{job} --steps 9"))));
    }
}

/// The last evaluation counts, and what it was of is taken out: averages.
#[test]
fn the_best_may_be_the_last_and_is_taken_out_as_it_was_evaluated() {
    let (folder, path) = place();
    let file = |name: &str| folder.path().join(name);
    let (saved, taken) = (file("saved"), file("taken"));
    let kept = format!("--ema 0.5 --steps 20 --val-every 10 --keep-best --checkpoint {path}");
    train(&format!("{kept} --save {}", saved.display())).json();
    let best = std::fs::canonicalize(Path::new(&path).join("best")).unwrap();
    assert!(best.ends_with("step-00000020"), "{}", best.display());
    let convert = format!("checkpoint convert {path}/best {}", taken.display());
    let ended = Job::start(&convert).end(LIMIT);
    assert!(ended.stderr.contains("averages of weights of step 20"), "{}", ended.stderr);
    assert_eq!(weights(&taken), weights(&saved));
}

/// Averages are worker 0's; weights that a store's means change are each worker's own.
#[test]
fn averages_of_weights_go_on_too() {
    for (recipe, job, files) in [
        ("--ema 0.9", "--strategy dist-sgd", 3),
        ("--ema 0.9 --clip-norm 0.5", "--strategy dist-sgd", 1),
        ("--ema 0.9", "--strategy ps", 3),
    ] {
        let undisturbed = hash(&train(&format!("{recipe} --strategy local --steps 9")));
        goes_on(&format!("{recipe} {job}"), files, &undisturbed);
    }
    // of workers at their own pace one has them, and servers the weights
    for strategy in ["ps --async", "dist-asgd"] {
        let (_folder, path) = place();
        train(&format!("--strategy {strategy} --ema 0.9 --steps 4 --checkpoint {path}"));
        assert_eq!(names(step(&path, 4).to_str().unwrap()).len(), 3 + 1, "{strategy}");
    }
}

fn goes_on(job: &str, files: usize, undisturbed: &str) {
    let (_folder, path) = place();
    let first = format!("{job} --steps 5 --checkpoint {path} --checkpoint-every 2 --keep 2");
    let first = train(&first);
    assert_ne!(hash(&first), undisturbed);
    assert_eq!(names(&path), ["step-00000004", "step-00000005"], "{job}: {}", first.stderr);
    // and what the job was
    assert_eq!(names(step(&path, 5).to_str().unwrap()).len(), files + 1, "{job}");
    let second = train(&format!("{job} --steps 9 --resume {path} --metrics m.jsonl"));
    assert_eq!(hash(&second), undisturbed, "{job}: {}", second.stderr);
    assert!(second.stderr.contains(", after step 5\n"), "{job}: {}", second.stderr);
    assert_eq!(second.lines_of("m.jsonl"), 4 + 1, "{job}");
    assert_eq!(names(&path).len(), 2, "nobody asked for more");
}

#[test]
fn pieces_are_put_together_for_other_servers_and_other_strategies() {
    let (_folder, path) = place();
    let job = "--optimizer adam --lr 0.001 --steps";
    let undisturbed = hash(&train(&format!("{job} 8 --strategy local")));
    let split = "--servers 3 --split-above 1KiB";
    train(&format!("{job} 5 {split} --checkpoint {path}")).json();
    for (other, says) in [
        ("--servers 2", "; now servers 2 (was 3)\n"),
        ("--colocate", "; now servers 0 (was 3)\n"),
        ("--strategy local", "; now strategy local (was ps), servers 0 (was 3)\n"),
        ("--strategy dist-sgd", "; now strategy dist-sgd (was ps), servers 2 (was 3)\n"),
    ] {
        let ended = train(&format!("{job} 8 {other} --resume {path}"));
        assert_eq!(hash(&ended), undisturbed, "{other}: {}", ended.stderr);
        assert!(ended.stderr.contains(says), "{other}: {}", ended.stderr);
    }
    // what a store wrote: the middle layer has a shard on each of its servers
    let (_other, store) = place();
    train(&format!("{job} 5 --strategy dist-sgd --checkpoint {store}")).json();
    let ended = train(&format!("{job} 8 {split} --resume {store}"));
    assert_eq!(hash(&ended), undisturbed, "{}", ended.stderr);
    let other = "--clip-norm 5 --schedule cosine --weight-decay 0.1 --resume";
    let ended =
        train(&format!("--optimizer adam --lr 0.002 --steps 6 --strategy local {other} {path}"));
    for says in [
        "clip norm 5.0 (was none), rate 0.002 (was 0.001), schedule cosine",
        " (was constant), weight decay 0.1 (was 0.0)\n",
    ] {
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
    }
    // more workers see other samples
    let ended = train(&format!("{job} 8 --workers 3 --resume {path}"));
    assert!(ended.stderr.contains("workers 3 (was 2)"), "{}", ended.stderr);
    assert_ne!(hash(&ended), undisturbed);
}

#[test]
fn a_job_that_is_killed_goes_on_from_its_last_checkpoint() {
    for strategy in ["ps", "dist-sgd"] {
        let (_folder, path) = place();
        let job = format!("--strategy {strategy} --checkpoint {path} --checkpoint-every 2");
        let endless = Job::start(&format!("train {JOB} {job} --steps 100000"));
        let start = Instant::now();
        while !step(&path, 4).exists() {
            assert!(start.elapsed() < LIMIT, "no checkpoint");
            std::thread::sleep(Duration::from_millis(1));
        }
        endless.signal_group(Signal::KILL);
        endless.end(LIMIT);
        let last = names(&path).iter().filter_map(|name| name.get(5..)?.parse().ok()).max();
        let steps: u64 = last.unwrap_or(0u64) + 3;
        let ended = train(&format!("{job} --steps {steps} --resume {path}"));
        let undisturbed = train(&format!("--strategy local --steps {steps}"));
        assert_eq!(hash(&ended), hash(&undisturbed), "{strategy}: {}", ended.stderr);
        let left = names(&path);
        assert!(left.contains(&format!("step-{steps:08}")), "{left:?}");
        assert!(!left.iter().any(|name| name.ends_with(".partial")), "{left:?}");
    }
}

#[test]
fn ctrl_c_leaves_a_checkpoint_of_the_last_step_of_all() {
    for (strategy, signal, status) in [
        ("local", Signal::INT, 130),
        ("ps", Signal::INT, 130),
        // as a batch system tells all processes of a job to end
        ("ps", Signal::TERM, 143),
        ("allreduce", Signal::INT, 130),
        ("dist-sgd", Signal::TERM, 143),
    ] {
        let (_folder, path) = place();
        let job = format!("--strategy {strategy} --checkpoint {path} --checkpoint-every 1000000");
        let endless = Job::start(&format!("train {JOB} {job} --steps 100000 --metrics m.jsonl"));
        let metrics = endless.folder().join("m.jsonl");
        let start = Instant::now();
        while std::fs::metadata(&metrics).map_or(0, |file| file.len()) == 0 {
            assert!(start.elapsed() < LIMIT, "no step");
            std::thread::sleep(Duration::from_millis(1));
        }
        endless.signal_group(signal);
        let ended = endless.end(LIMIT);
        assert_eq!(ended.status.code(), Some(status), "{strategy}: {}", ended.stderr);
        let names = names(&path);
        let [name] = names.as_slice() else { panic!("{strategy}: {names:?}, {}", ended.stderr) };
        let last: u64 = name[5..].parse().unwrap();
        let says = format!("the newest checkpoint is of step {last}: --checkpoint {path} --resume");
        // what to act on comes last
        let says = format!("error: interrupted; {says}");
        assert!(ended.last_line().starts_with(&says), "{strategy}: {}", ended.stderr);
        let steps = last + 2;
        let ended = train(&format!("{job} --steps {steps} --resume {path}"));
        let undisturbed = train(&format!("--strategy local --steps {steps}"));
        assert_eq!(hash(&ended), hash(&undisturbed), "{strategy}: {}", ended.stderr);
    }
}

#[test]
fn a_second_ctrl_c_ends_at_once_and_says_from_where_another_job_goes_on() {
    for (every, strategy) in [(1, "ps"), (1, "allreduce"), (1_000_000, "ps"), (1, "local")] {
        let (_folder, path) = place();
        let job = format!("--strategy {strategy} --checkpoint {path} --checkpoint-every {every}");
        let mut endless =
            Job::start(&format!("train {JOB} {job} --steps 100000 --metrics m.jsonl"));
        let metrics = endless.folder().join("m.jsonl");
        let start = Instant::now();
        let is_begun = || std::fs::metadata(&metrics).is_ok_and(|file| file.len() > 0);
        while !is_begun() || (every == 1 && !step(&path, 2).exists()) {
            assert!(start.elapsed() < LIMIT, "no step");
            std::thread::sleep(Duration::from_millis(1));
        }
        if strategy != "local" {
            // without it no step ends, which is what the first one waits for
            kill_process(endless.members(2)[1], Signal::STOP).unwrap();
        }
        // one after another of the same might come as one
        kill_process(endless.launcher(), Signal::INT).unwrap();
        kill_process(endless.launcher(), Signal::TERM).unwrap();
        let ended = endless.end(Duration::from_secs(20));
        let status = ended.status.code();
        assert!(status == Some(130) || status == Some(143), "{strategy}: {}", ended.stderr);
        let names = names(&path);
        let newest = names.iter().filter_map(|name| name[5..].parse::<u64>().ok()).max();
        assert_eq!(newest.is_some(), every == 1, "{names:?}");
        // a process that trains alone may make another one while it says so
        let says = match newest {
            Some(_) if strategy == "local" => "the newest checkpoint is of step".to_string(),
            Some(step) => format!("the newest checkpoint is of step {step}: --checkpoint {path}"),
            None => "there is no checkpoint yet".to_string(),
        };
        let how =
            if strategy == "local" { "interrupted" } else { "interrupted, and ended at once" };
        let (last, says) = (ended.last_line(), format!("; {says}"));
        assert!(last.starts_with(&format!("error: {how}")), "{strategy}: {}", ended.stderr);
        assert!(last.contains(&says), "{strategy}: {}", ended.stderr);
        let is_partial = |name: &String| name.ends_with(".partial");
        assert!(strategy == "local" || !names.iter().any(is_partial), "{strategy}: {names:?}");
        // once, and no process says something else of its own
        let errors = ended.stderr.matches("error: ").count();
        assert!(strategy == "local" || errors == 1, "{strategy}: {}", ended.stderr);
        assert!(!ended.stderr.contains("hung up"), "{strategy}: {}", ended.stderr);
    }
}

#[test]
fn training_ends_behind_the_same_step_when_evaluations_are_no_better() {
    // it learns nothing
    let job = "--lr 1e-30 --steps 9 --val-every 2 --early-stop 2 --keep-best --keep 1";
    let mut hashes = Vec::new();
    for strategy in ["local", "ps", "allreduce", "dist-sgd"] {
        let (_folder, path) = place();
        let ended = train(&format!("{job} --strategy {strategy} --checkpoint {path}"));
        assert_eq!(ended.json()["steps"], 6, "{strategy}: {}", ended.stderr);
        hashes.push(hash(&ended));
        let kept = ["best", "step-00000002", "step-00000006"];
        assert_eq!(names(&path), kept, "{strategy}: {}", ended.stderr);
        // no better than the best before
        let more = "--lr 1e-30 --steps 9 --val-every 2 --early-stop 3";
        let ended = train(&format!("{more} --strategy {strategy} --resume {path}"));
        assert_eq!(ended.json()["steps"], 8, "{strategy}: {}", ended.stderr);
        let ended = train(&format!("--steps 3 --strategy {strategy} --resume {path}/best"));
        let says = ", after step 2; now rate 0.05 (was 1e-30)\n";
        assert!(ended.stderr.contains(says), "{strategy}: {}", ended.stderr);
    }
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
}

#[test]
fn a_torn_file_is_passed_over_and_another_model_is_refused() {
    let (_folder, path) = place();
    let first = train(&format!("--steps 6 --checkpoint {path} --checkpoint-every 2"));
    let torn = step(&path, 6).join("shard-server1.safetensors");
    let whole = std::fs::read(&torn).unwrap();
    std::fs::write(&torn, &whole[..whole.len() / 2]).unwrap();
    let ended = train(&format!("--steps 6 --resume {path} --checkpoint {path}"));
    assert_eq!(hash(&ended), hash(&first), "{}", ended.stderr);
    let says = "shard-server1.safetensors is not as it was written";
    assert!(ended.stderr.contains(says), "{}", ended.stderr);
    assert!(ended.stderr.contains("step-00000004, after step 4\n"), "{}", ended.stderr);
    assert_eq!(std::fs::read(&torn).unwrap(), whole, "it was written again");
    let (_other, empty) = place();
    for (arguments, says) in [
        (format!("--resume {path} --model cifar"), "is of another job than this: "),
        (format!("--resume {path} --optimizer sgd"), "/velocity' is unknown"),
        (format!("--resume {path} --steps 6"), "training ends at step 6; give more --steps"),
        (format!("--resume {empty}"), "cannot read "),
        (format!("--checkpoint {path}"), "holds checkpoints of an earlier job; give --resume "),
        ("--strategy dist-sgd --snapshot s --checkpoint c".to_string(), "goes without --snapshot"),
    ] {
        let ended = train(&arguments);
        assert_eq!(ended.status.code(), Some(2), "{arguments}: {}", ended.stderr);
        assert!(ended.last_line().starts_with("error: "), "{}", ended.stderr);
        assert!(ended.last_line().contains(says), "{arguments}: {}", ended.stderr);
    }
}

#[test]
fn where_no_checkpoint_can_be_written_no_step_is_made() {
    for strategy in ["local", "ps"] {
        let (folder, path) = place();
        std::fs::write(folder.path().join("runs"), "in the place of the folder").unwrap();
        let below = format!("{path}/below");
        let refused = refused(&format!("--strategy {strategy} --steps 4 --checkpoint {below}"));
        let says = format!("no checkpoint can be written in {below}: Not a directory");
        assert!(refused.contains(&says), "{strategy}: {refused}");
    }
}

#[test]
fn two_jobs_do_not_write_in_one_folder() {
    let (_folder, path) = place();
    let job = format!("--checkpoint {path} --checkpoint-every 2");
    let endless = Job::start(&format!("train {JOB} --strategy ps {job} --steps 100000"));
    let start = Instant::now();
    while !step(&path, 4).exists() {
        assert!(start.elapsed() < LIMIT, "no checkpoint");
        std::thread::sleep(Duration::from_millis(1));
    }
    let says = format!("another job keeps its checkpoints in {path} at this moment");
    let resume = format!("--resume {path}");
    for (strategy, resume) in [("local", ""), ("local", &resume), ("ps", "--resume auto")] {
        let words = format!("--strategy {strategy} {job} --steps 1000000 {resume}");
        let refused = refused(&words);
        assert!(refused.contains(&says), "{words}: {refused}");
    }
    endless.signal_group(Signal::INT);
    let ended = endless.end(LIMIT);
    assert!(ended.last_line().starts_with("error: interrupted; "), "{}", ended.stderr);
    let warned = ended.stderr.matches("no checkpoint of step").count();
    assert_eq!(warned, 0, "{}", ended.stderr);
}

/// What went further than a job is to go is no beginning of it, and training anew would mix both.
#[test]
fn what_went_further_is_not_begun_anew() {
    let (_folder, path) = place();
    let job = format!("--strategy local --checkpoint {path} --checkpoint-every 4");
    train(&format!("{job} --steps 8"));
    let refused = refused(&format!("{job} --steps 3 --resume auto"));
    let says = "has 8 steps, and training ends at step 3; give more --steps";
    assert!(refused.contains(says), "{refused}");
}

/// The error of a job that is refused.
fn refused(job: &str) -> String {
    let ended = Job::start(&format!("train {JOB} {job}")).end(LIMIT);
    assert_eq!(ended.status.code(), Some(2), "{job}: {}", ended.stderr);
    ended.last_line().to_string()
}

/// Runs a script in a mount namespace of its own, with a file system of `options` at `runs`; `$train` is what all jobs are. None
/// where the system has no such namespaces to give.
fn on_a_file_system(options: &str, train: &str, script: &str) -> Option<Ended> {
    let has = |mut command: Command| command.status().is_ok_and(|status| status.success());
    let mount = format!("mkdir runs && mount -t tmpfs -o {options} tmpfs runs");
    let in_namespace = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-ec", script]);
        command
    };
    let trial = tempfile::tempdir().unwrap();
    let mut mounts = in_namespace(&mount);
    mounts.current_dir(trial.path()).stderr(Stdio::null());
    if !has(mounts) {
        skip(None, &"no file system can be mounted in a namespace here (unshare, mount)");
        return None;
    }
    let program = env!("CARGO_BIN_EXE_tensorwire");
    let train = format!("train=\"{program} train --json {JOB} {train}\"");
    Some(Job::start_command(in_namespace(&format!("{mount}\n{train}\n{script}"))).end(LIMIT))
}

/// Two checkpoints fit, and some of the third.
#[test]
fn a_full_disk_is_a_warning_and_the_last_good_checkpoint_is_whole() {
    for strategy in ["local", "ps", "dist-sgd", "dist-asgd --workers 1"] {
        let job = format!("--optimizer sgd --strategy {strategy}");
        // what is written of the third one may fill the disk while others are not whole yet: so that they are, first a job ends
        let script = "keep='--checkpoint runs --checkpoint-every 2'\n$train --steps 4 $keep\n\
                      $train --steps 6 --resume runs $keep\nls runs\n$train --steps 8 --resume runs";
        let Some(ended) = on_a_file_system("size=44m", &job, script) else { return };
        let context = format!("{strategy}: {}", ended.stderr);
        assert!(ended.status.success(), "{context}");
        let warned = ended.stderr.matches("no checkpoint of step 6: ").count();
        assert_eq!(warned, 1, "{context}");
        assert!(ended.stderr.contains("No space left on device"), "{context}");
        let there: Vec<&str> = ended.stdout.lines().filter(|line| !line.starts_with('{')).collect();
        assert_eq!(there, ["step-00000002", "step-00000004"], "{context}");
        assert!(ended.stderr.contains("step-00000004, after step 4\n"), "{context}");
        assert_eq!(hash(&ended), hash(&train(&format!("{job} --steps 8"))), "{context}");
    }
}

#[test]
fn a_folder_that_may_not_be_written_is_refused() {
    let script =
        "for folder in runs/a runs; do $train --checkpoint $folder || echo refused: $?; done";
    let Some(ended) = on_a_file_system("ro", "--strategy ps --steps 4", script) else { return };
    assert_eq!(ended.stdout, "refused: 2\nrefused: 2\n", "{}", ended.stderr);
    let says = ended.stderr.matches("Read-only file system").count();
    assert_eq!(says, 2, "{}", ended.stderr);
}

#[test]
fn checkpoints_are_shown_and_their_weights_taken_out() {
    let (folder, path) = place();
    let saved = folder.path().join("w").display().to_string();
    let first = format!("--steps 4 --checkpoint {path} --checkpoint-every 2 --save {saved}");
    let first = train(&first).json();
    // two, of 4,349,962 parameters of 4 bytes and as many velocities
    assert_eq!(first["bytes_copied_checkpoint"], 2 * 2 * 4_349_962 * 4);
    assert_eq!(first["bytes_copied"], 0, "nothing of it is on the way of a tensor");
    let run = |arguments: &str| Job::start(arguments).end(LIMIT);
    let shown = run(&format!("checkpoint show {path}"));
    assert!(shown.status.success(), "{}", shown.stderr);
    let lines: Vec<&str> = shown.stdout.lines().collect();
    assert!(lines[1].contains(" 4  whole") && lines[2].contains(" 2  whole"), "{lines:?}");
    assert!(lines[1].contains("mlp on digits, ps, 2 workers, 2 servers"), "{lines:?}");
    let at = step(&path, 4);
    let converted = run(&format!("checkpoint convert {} c.safetensors", at.display()));
    assert!(converted.status.success(), "{}", converted.stderr);
    assert_eq!(converted.read("c.safetensors"), std::fs::read(&saved).unwrap());
    std::fs::remove_file(at.join("shard-server0.safetensors")).unwrap();
    let shown = run(&format!("checkpoint show {path}"));
    assert_eq!(shown.status.code(), Some(1), "{}", shown.stdout);
    assert!(shown.stdout.contains("4  damaged"), "{}", shown.stdout);
    assert!(shown.last_line().contains("shard-server0.safetensors"), "{}", shown.stderr);
}
