//! What is said to people on a terminal keeps to its width, and is as wide as it can be.

use std::time::Duration;

use crate::support::Job;
use crate::support::terminal::{has_script, on_terminal, screen};

const LIMIT: Duration = Duration::from_secs(120);
/// Wider than any line, so that one that is too wide is seen as it was sent.
const ENDLESS: usize = 10_000;

/// The lines that a command leaves on a terminal of so many columns.
fn lines(columns: usize, arguments: &str) -> Vec<String> {
    let ended = on_terminal(columns, arguments).end(LIMIT);
    // the doctor ends with 1 where something does not work
    assert!(matches!(ended.status.code(), Some(0 | 1)), "{arguments}: {}", ended.stdout);
    let lines = screen(&ended.stdout, ENDLESS);
    lines.into_iter().map(|line| line.trim_end().to_string()).collect()
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
        for columns in [60, 80, 200] {
            let lines = lines(columns, arguments);
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
