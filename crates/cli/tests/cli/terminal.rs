//! What is said to people on a terminal keeps to its width, and is as wide as it can be.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::terminal::{has_script, on_terminal, screen};
use crate::support::{Job, send};

const LIMIT: Duration = Duration::from_secs(120);
/// Wider than any line, so that one that is too wide is seen as it was sent.
const ENDLESS: usize = 10_000;

/// The lines that a command leaves on a terminal of so many columns.
fn lines(columns: usize, arguments: &str) -> Vec<String> {
    left(arguments, on_terminal(columns, arguments))
}

/// The same of a command that asks jobs whose sockets are in a folder.
fn lines_about(jobs: &Path, columns: usize, arguments: &str) -> Vec<String> {
    let program = env!("CARGO_BIN_EXE_tensorwire");
    let line = format!("stty cols {columns} rows 24; exec {program} {arguments}");
    let mut command = Command::new("script");
    command.env("TERM", "xterm").env("XDG_RUNTIME_DIR", jobs).args(["-qec", &line, "/dev/null"]);
    left(arguments, Job::start_command(command))
}

fn left(arguments: &str, job: Job) -> Vec<String> {
    let ended = job.end(LIMIT);
    // the doctor ends with 1 where something does not work
    assert!(matches!(ended.status.code(), Some(0 | 1)), "{arguments}: {}", ended.stdout);
    let lines = screen(&ended.stdout, ENDLESS);
    lines.into_iter().map(|line| line.trim_end().to_string()).collect()
}

/// Fails if what a command leaves on some terminal is wider than that, or lacks what is `said`, or could be `least` columns wide and
/// is less.
fn keeps_to_the_terminal(
    arguments: &str,
    (said, least): (&str, usize),
    left_on: impl Fn(usize) -> Vec<String>,
) {
    for columns in [60, 80, 200] {
        let lines = left_on(columns);
        let wide = lines.iter().filter(|line| line.chars().count() > columns);
        let wide: Vec<&String> = wide.filter(|line| !is_one_word(line)).collect();
        assert!(wide.is_empty(), "{arguments} at {columns}: {wide:#?}");
        // nothing is cut off
        let words = lines.join(" ");
        let words = words.split_whitespace().collect::<Vec<&str>>().join(" ");
        assert!(words.contains(said), "{arguments} at {columns}: {words}");
        let least = least.min(columns / 10 * 9);
        assert!(widest(&lines) >= least, "{arguments} at {columns}: {lines:#?}");
    }
}

/// True if a line is of one word, which stays whole: a path, a hash.
fn is_one_word(line: &str) -> bool {
    !line.trim().contains(' ')
}

fn widest(lines: &[String]) -> usize {
    lines.iter().map(|line| line.chars().count()).max().unwrap_or(0)
}

#[test]
fn what_is_said_keeps_to_the_terminal() {
    if !has_script() {
        return;
    }
    for (arguments, said, least) in [
        ("train --strategy ps --batch 8 --threads 1 --steps 2", "per step", 120),
        ("doctor", "every byte right", 0),
        ("simulate", "Above, by component:", 180),
        (
            "bench transfer --quick --transport shm --sizes 4KiB --kind static --exchange zero-copy --iterations 1",
            "Every value and every tensor was verified.",
            100,
        ),
        ("graph --model mlp", "a training step:", 60),
        ("graph --model mlp --full", "if every operator's output had a place of its own", 100),
    ] {
        keeps_to_the_terminal(arguments, (said, least), |columns| lines(columns, arguments));
    }
}

#[test]
fn benchmarks_keep_to_the_terminal() {
    if !has_script() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link").display().to_string();
    let link = format!("bench allreduce --transport tcp --ranks 2 --times 1 --quick --link {link}");
    for (arguments, said, least) in [
        ("bench step --steps 2 --iterations 1 --batch 8 --threads 1", "the same weights in", 70),
        (
            "bench write --quick --transport shm --sizes 4KiB --iterations 3",
            "The last write of every measurement was compared whole.",
            100,
        ),
        (
            "bench kvstore --quick --transport shm --workers 1 --sizes 4KiB --iterations 1",
            "The sums were compared whole.",
            180,
        ),
        (
            "bench allreduce --quick --transport shm --ranks 2 --sizes 4KiB --iterations 1 --algorithm ring",
            "all vectors were compared whole.",
            180,
        ),
        (&link, "2 processes reduce 4 KiB by", 70),
        (
            "bench modes --modes dist-sgd --epochs 1 --data synthetic:8 --batch 8 --workers 1 --servers 1 --iterations 2",
            "medians of 2 runs; p10 and p90:",
            180,
        ),
        ("bench evaluation --list --quick", "learning curves", 100),
    ] {
        keeps_to_the_terminal(arguments, (said, least), |columns| lines(columns, arguments));
    }
}

#[test]
fn what_is_looked_up_keeps_to_the_terminal() {
    if !has_script() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).display().to_string();
    let (kept, before, after, page) = (place("kept"), place("a"), place("b"), place("p.html"));
    let job = "train --strategy local --workers 1 --batch 8 --threads 1 --steps 2";
    let ended = Job::start(&format!("{job} --checkpoint {kept}")).end(LIMIT);
    assert!(ended.status.success(), "{}", ended.stderr);
    let line = |bytes: u32, median: u32| {
        format!(
            "{{\"bench\":\"write\",\"transport\":\"shm\",\"bytes\":{bytes},\"round_trip_us\":{median}}}\n"
        )
    };
    std::fs::write(&before, line(4, 2) + &line(8, 2)).unwrap();
    std::fs::write(&after, line(4, 4)).unwrap();
    for (arguments, said, least) in [
        ("models".to_string(), "224×224×3 → 1000", 80),
        (format!("checkpoint show {kept}"), "33.2 MiB", 65),
        (format!("report {before} {after} --compare"), "0 new; tolerance 10 %", 60),
        (format!("bench check {before} {after} --tolerance 200"), "no row is slower", 60),
        (format!("report {before} --output {page}"), "1 figure; claims met 0,", 50),
        (format!("report {before} --format markdown --output {page}"), "the data of 1 plot", 0),
    ] {
        let left = |columns| lines(columns, &arguments);
        keeps_to_the_terminal(&arguments, (said, least), left);
    }
}

#[test]
fn what_is_said_of_a_running_job_keeps_to_the_terminal() {
    if !has_script() {
        return;
    }
    let jobs = tempfile::tempdir().unwrap();
    // as many columns as there are for any job
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
    command.args(
        "train --strategy dist-sgd --batch 8 --threads 1 --steps 100000000 --deadline 120"
            .split(' '),
    );
    command.env("XDG_RUNTIME_DIR", jobs.path());
    let mut job = Job::start_command(command);
    let (members, name) = (job.members(4), job.launcher().as_raw_nonzero().to_string());
    let until = Instant::now() + LIMIT;
    let waits_for = |columns: usize, arguments: &str, text: &str| loop {
        let found = lines_about(jobs.path(), columns, arguments);
        match found.iter().any(|line| line.contains(text)) {
            true => break,
            false => assert!(Instant::now() < until, "no {text}: {found:#?}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    // figures come after half a second of steps, and that one waits after it stopped
    waits_for(200, "top --once", "pushed/s");
    send(members[1], Signal::STOP);
    waits_for(200, &format!("status {name}"), "nothing heard of it for");
    for (arguments, said, least) in [
        ("status".to_string(), "100000000", 50),
        (format!("status {name}"), "nothing heard of it", 50),
        ("top --once".to_string(), "nothing heard of it", 110),
    ] {
        let left = |columns| lines_about(jobs.path(), columns, &arguments);
        keeps_to_the_terminal(&arguments, (said, least), left);
    }
    send(members[1], Signal::CONT);
    send(job.launcher(), Signal::TERM);
    job.end(LIMIT);
}

/// A table that is too wide comes in parts, each of which says which rows it is of.
#[test]
fn headings_stay_whole_on_a_narrow_terminal() {
    if !has_script() {
        return;
    }
    let headings = "strategy exchange workers servers step compute efficiency speed-up paper";
    let simulate = "simulate --model vgg16 --preset paper-xue --workers 2,8";
    for (columns, parts) in [(60, 3), (80, 2), (200, 1)] {
        let lines = lines(columns, simulate);
        let words: Vec<&str> = lines.iter().flat_map(|line| line.split_whitespace()).collect();
        for heading in headings.split(' ') {
            assert!(words.contains(&heading), "{heading} at {columns}: {lines:#?}");
        }
        let heads = lines.iter().filter(|line| line.trim_start().starts_with("strategy  exchange"));
        assert_eq!(heads.count(), parts, "{columns}: {lines:#?}");
    }
}

#[test]
fn a_drawing_is_as_wide_as_the_terminal_and_no_wider_than_a_page() {
    if !has_script() {
        return;
    }
    for (columns, expected) in [(60, 60), (80, 80), (200, 80)] {
        assert_eq!(widest(&lines(columns, "graph --model mlp")), expected, "{columns} columns");
    }
}

/// What reads it gets whole lines, however long.
#[test]
fn a_pipe_gets_whole_lines() {
    let ended = Job::start("simulate").end(LIMIT);
    let last = ended.stdout.lines().last().unwrap();
    assert!(last.starts_with("Above, by component:") && last.ends_with("the other."), "{last}");
    assert!(last.chars().count() > 300, "{last}");
    let ended = Job::start("train --strategy ps --batch 8 --threads 1 --steps 2").end(LIMIT);
    let is_whole = |line: &str| line.starts_with("ps: ") && line.ends_with("sends");
    assert!(ended.stderr.lines().any(is_whole), "{}", ended.stderr);
}

#[test]
fn a_drawing_on_a_small_terminal_says_how_tensors_cross_and_scrolls_nothing_away() {
    if !has_script() {
        return;
    }
    let drawn = |columns: usize, model: &str| {
        let lines = lines(columns, &format!("graph --model {model}"));
        // the last one is where the terminal's next line begins
        let shown = lines.iter().rposition(|line| !line.is_empty()).unwrap() + 1;
        assert!(shown < 24, "{model} on {columns} columns: {lines:#?}");
        lines.join("\n")
    };
    let short = "\nref: by reference; +: and other ways\n";
    let narrow = drawn(60, "mlp");
    assert!(narrow.contains("weights 16.0 MiB ref ") && narrow.contains(short), "{narrow}");
    let wide = drawn(80, "mlp");
    assert!(wide.contains("weights 16.0 MiB by reference ") && !wide.contains("\nref: "), "{wide}");
    drawn(60, "resnet50");
    drawn(80, "bert-mini");
}
