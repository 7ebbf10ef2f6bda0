//! docs/one-tensor.md: its commands run, one after the other, and print what stands below them.

use std::path::Path;
use std::process::Command;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/one-tensor.md");
const BEGIN: &str = "```console";

/// A command of the page, and the lines below it.
struct Shown {
    command: String,
    lines: Vec<String>,
}

fn commands(page: &str) -> Vec<Shown> {
    let mut shown: Vec<Shown> = Vec::new();
    let blocks = page.split(BEGIN).skip(1).filter_map(|rest| rest.split("```").next());
    for line in blocks.flat_map(str::lines).filter(|line| !line.is_empty()) {
        match (line.strip_prefix("$ "), shown.last_mut()) {
            (Some(command), _) => {
                shown.push(Shown { command: command.to_string(), lines: Vec::new() });
            }
            (None, Some(last)) => last.lines.push(line.to_string()),
            (None, None) => panic!("output without a command: {line}"),
        }
    }
    shown
}

/// A line without what differs from run to run: `#` for each number, and no units of time.
fn masked(line: &str) -> String {
    let mut masked = String::new();
    for c in line.chars() {
        match c {
            '0'..='9' if masked.ends_with('#') => {}
            '0'..='9' => masked.push('#'),
            '.' if masked.ends_with('#') => {}
            ' ' if masked.ends_with([' ', '#']) => {}
            c => masked.push(c),
        }
    }
    for unit in ["#ns", "#µs", "#ms", "#s"] {
        masked = masked.replace(unit, "#");
    }
    masked.trim().to_string()
}

/// True if a line has the parts of another that `…` stands between, in order.
fn has(line: &str, parts: &str) -> bool {
    let mut rest = line;
    parts.split('…').all(|part| match rest.split_once(part.trim()) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

#[test]
fn the_way_of_one_tensor_is_as_the_page_says() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_tensorwire")).parent().unwrap();
    let path = format!("{}:/usr/bin:/bin", program.display());
    let commands = commands(&page);
    assert!(commands.len() >= 6, "{}", commands.len());
    for Shown { command, lines } in commands {
        let mut shell = Command::new("sh");
        shell.args(["-c", &command]).current_dir(folder.path()).env("PATH", &path);
        let ended = shell.output().unwrap();
        let said = [ended.stdout, ended.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(ended.status.success(), "{command}: {}", said[1]);
        let said = said.concat();
        // a plan is the same on every machine; times are not
        let is_plan = command.starts_with("tensorwire graph");
        let form = |line: &str| if is_plan { line.trim().to_string() } else { masked(line) };
        let found: Vec<String> = said.lines().map(form).collect();
        for line in lines.iter().map(|line| form(line)).filter(|line| line != "…") {
            assert!(
                found.iter().any(|found| has(found, &line)),
                "{command}: no '{line}' in\n{}",
                found.join("\n")
            );
        }
    }
}
