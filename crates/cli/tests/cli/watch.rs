//! What shows a run while it goes: TensorBoard's event files, read by nothing of ours, and the terminal's bar.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::support::terminal::{has_script, on_noted_terminal, on_terminal, screen};
use crate::support::{Ended, Job, children, send};
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(60);
const SMALL: &str = "train --batch 8 --threads 1";

fn run(arguments: &str) -> Ended {
    let ended = Job::start(arguments).end(LIMIT);
    assert!(ended.status.success(), "{arguments}: {}", ended.stderr);
    ended
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn an_event_file_has_the_scalars_of_every_step_and_of_the_end() {
    for strategy in ["local", "ps"] {
        let folder = tempfile::tempdir().unwrap();
        let (runs, metrics) = (folder.path().join("deep/runs"), folder.path().join("m.jsonl"));
        let files = format!("--tensorboard {} --metrics {}", runs.display(), metrics.display());
        let result = run(&format!("{SMALL} --strategy {strategy} --steps 7 --json {files}")).json();
        let events = events(&only_file(&runs));
        assert_eq!(events[0].version.as_deref(), Some("brain.Event:2"));
        assert!(events.windows(2).all(|two| two[0].seconds <= two[1].seconds));
        assert!(events[0].seconds > 1.7e9, "{}", events[0].seconds);
        let metrics = lines(&metrics);
        for (index, line) in metrics[..7].iter().enumerate() {
            let event = &events[index + 1];
            assert_eq!(event.step, index as u64 + 1);
            let scalar = |name: &str| line[name].as_f64().unwrap() as f32;
            let expected = ["loss", "rate", "samples_per_second"].map(|name| (name, scalar(name)));
            let found = event.scalars.iter().map(|(name, value)| (name.as_str(), *value));
            assert_eq!(found.collect::<BTreeMap<_, _>>(), BTreeMap::from(expected));
        }
        let last = &events[8];
        assert_eq!((events.len(), last.step), (9, 7));
        for name in ["test_accuracy", "test_loss"] {
            assert_eq!(last.scalars[name], result[name].as_f64().unwrap() as f32, "{name}");
        }
    }
}

#[test]
fn runs_in_one_folder_have_a_file_each() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        run(&format!(
            "{SMALL} --strategy local --steps 1 --tensorboard {}",
            folder.path().display()
        ));
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

/// The event file of a folder, named as TensorBoard looks for it.
fn only_file(folder: &Path) -> Vec<u8> {
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().flatten().collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    let name = file.file_name().to_string_lossy().into_owned();
    let rest = name.strip_prefix("events.out.tfevents.").unwrap();
    let (seconds, host_and_pid) = rest.split_once('.').unwrap();
    let (host, pid) = host_and_pid.rsplit_once('.').unwrap();
    assert!(seconds.len() == 10 && !host.is_empty() && pid.parse::<u32>().is_ok(), "{name}");
    std::fs::read(file.path()).unwrap()
}

#[derive(Default)]
struct Event {
    seconds: f64,
    step: u64,
    version: Option<String>,
    scalars: BTreeMap<String, f32>,
}

/// All records of a file: a length, its checksum, so many bytes, their checksum.
fn events(mut file: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    while !file.is_empty() {
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let crc = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        let record = &file[12..12 + length];
        assert_eq!(crc(8), masked_crc32c(&file[..8]));
        assert_eq!(crc(12 + length), masked_crc32c(record));
        events.push(event(record));
        file = &file[16 + length..];
    }
    events
}

/// CRC-32C bit by bit, masked as TFRecord has it.
fn masked_crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    let crc = !crc;
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

fn event(record: &[u8]) -> Event {
    let mut event = Event::default();
    for (number, value) in fields(record) {
        match number {
            1 => event.seconds = f64::from_le_bytes(value.try_into().unwrap()),
            2 => event.step = varint(&mut value.as_slice()),
            3 => event.version = Some(String::from_utf8(value).unwrap()),
            5 => event.scalars.extend(fields(&value).into_iter().map(|(number, value)| {
                assert_eq!(number, 1);
                let parts = fields(&value);
                let tag = String::from_utf8(parts[0].1.clone()).unwrap();
                assert_eq!((parts[0].0, parts[1].0, parts.len()), (1, 2, 2));
                (tag, f32::from_le_bytes(parts[1].1.clone().try_into().unwrap()))
            })),
            other => panic!("field {other}"),
        }
    }
    event
}

/// The fields of a message of protocol buffers, by their numbers.
fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let length = match key & 7 {
            0 => message.iter().position(|byte| *byte < 0x80).unwrap() + 1,
            1 => 8,
            2 => varint(&mut message) as usize,
            5 => 4,
            other => panic!("wire type {other}"),
        };
        fields.push((key >> 3, message[..length].to_vec()));
        message = &message[length..];
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return value;
        }
    }
    panic!("a number of more than 64 bits");
}

/// Evaluating between steps changes nothing, and finds what a job finds that ends there.
#[test]
fn an_evaluation_between_steps_is_that_of_a_job_that_ends_there() {
    for strategy in [
        "local",
        "ps",
        "ps --transport tcp",
        "ps --exchange write",
        "ps --exchange copy",
        "ps --servers 3 --split-above 1KiB",
        "dist-sgd",
        "allreduce",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let metrics = folder.path().join("m.jsonl");
        let job = format!("{SMALL} --strategy {strategy} --json");
        let plain = run(&format!("{job} --steps 6")).json();
        let options = format!("--val-every 2 --metrics {}", metrics.display());
        let looked_at = run(&format!("{job} --steps 6 {options}"));
        let summary = looked_at.json();
        for same in ["weights_sha256", "final_loss", "test_accuracy", "test_loss"] {
            assert_eq!(summary[same], plain[same], "{strategy}: {same}");
        }
        let lines = lines(&metrics);
        let evaluated = |step: usize| lines[step - 1].get("test_accuracy").is_some();
        assert_eq!((1..=6).filter(|step| evaluated(*step)).collect::<Vec<_>>(), [2, 4]);
        let shorter = run(&format!("{job} --steps 4")).json();
        for name in ["test_accuracy", "test_loss"] {
            assert_eq!(lines[3][name], shorter[name], "{strategy}: {name}");
        }
        let said = looked_at.stderr.lines().filter(|line| line.contains("test accuracy"));
        let said: Vec<&str> = said.filter(|line| line.starts_with("epoch 1: step ")).collect();
        assert_eq!(said.len(), 2, "{}", looked_at.stderr);
    }
}

#[test]
fn an_evaluation_that_cannot_be_is_refused() {
    for (arguments, says) in [
        ("--async --val-every 5", "leave --async or --val-every out, or take dist-asgd"),
        ("--val-every 0", "--val-every must be at least 1"),
    ] {
        let ended = Job::start(&format!("train {arguments}")).end(LIMIT);
        assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
        assert!(ended.last_line().contains(says), "{}", ended.stderr);
    }
}

#[test]
fn the_bar_keeps_to_the_terminal_and_leaves_a_line_an_epoch() {
    if !has_script() {
        return;
    }
    for columns in [24, 40, 80, 200] {
        let job = on_terminal(
            columns,
            "train --threads 1 --strategy local --batch 32 --epochs 2 --val-every 15",
        );
        let ended = job.end(LIMIT);
        assert!(ended.status.success(), "{}", ended.stdout);
        let drawn: Vec<String> = ended.stdout.split(['\r', '\n']).map(without_escapes).collect();
        // of 22 steps an epoch
        let bars =
            drawn.iter().filter(|line| line.contains("/44") && !line.starts_with("epoch 1:"));
        let bars: Vec<&String> = bars.filter(|line| !line.contains(": step ")).collect();
        assert!(bars.len() > 2, "{columns}: {drawn:?}");
        for bar in &bars {
            assert!(bar.chars().count() < columns - 2, "{columns}: {bar}");
        }
        let shown = ["loss ", "left", "epoch ", "accuracy ", "samples/s", "╌"];
        let shown = shown.map(|text| bars.iter().any(|bar| bar.contains(text)));
        if columns >= 80 {
            assert_eq!(shown, [true; 6], "{columns}: {bars:?}");
        } else {
            // what matters most
            assert_eq!(shown[..2], [true, columns >= 40], "{columns}: {bars:?}");
        }
        let screen = screen(&ended.stdout, columns);
        for epoch in 1..=2 {
            let begins = format!("epoch {epoch}: step {}/44", epoch * 22);
            assert!(screen.iter().any(|line| line.starts_with(&begins)), "{screen:?}");
        }
        assert!(!screen.iter().any(|line| line.contains(" left")), "{columns}: {screen:?}");
    }
}

#[test]
fn nothing_of_the_bar_is_left_after_ctrl_c() {
    if !has_script() {
        return;
    }
    for strategy in ["local", "ps"] {
        let endless = format!("{SMALL} --strategy {strategy} --steps 1000000");
        let job = on_noted_terminal(80, &endless, "sent");
        let sent = || std::fs::read(job.folder().join("sent")).unwrap_or_default();
        let start = std::time::Instant::now();
        while !String::from_utf8_lossy(&sent()).contains(" left") {
            assert!(start.elapsed() < LIMIT, "there is no bar: {:?}", sent());
            std::thread::sleep(Duration::from_millis(5));
        }
        for process in children(job.launcher()) {
            send(process, Signal::INT);
        }
        let ended = job.end(LIMIT);
        assert_eq!(ended.status.code(), Some(130), "{}", ended.stdout);
        assert!(ended.stdout.contains(" left"), "there was a bar: {}", ended.stdout);
        let screen = screen(&ended.stdout, 80);
        assert!(!screen.iter().any(|line| line.contains(" left")), "{strategy}: {screen:?}");
        assert!(
            screen.iter().rev().find(|line| !line.is_empty()).unwrap().contains("interrupted"),
            "{screen:?}"
        );
    }
}

/// Text without the sequences that move the cursor and erase.
fn without_escapes(text: &str) -> String {
    let (mut plain, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain += before;
        rest = after.split_once(|end: char| end.is_ascii_alphabetic()).map_or("", |(_, rest)| rest);
    }
    plain + rest
}
