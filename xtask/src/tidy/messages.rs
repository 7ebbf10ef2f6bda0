//! What holds for the page of messages: each that it quotes is in the program.

use super::Complaint;

/// The page whose tables quote messages in their first column.
pub const MESSAGES: &str = "docs/troubleshooting.md";
/// What stands for names and numbers in a quoted message.
const ANYTHING: char = '…';

/// Checks the page of messages. `sources` are the texts of the program's files.
pub fn check_messages(page: &str, sources: &[&str]) -> Vec<Complaint> {
    let sources: Vec<String> = sources.iter().map(|source| joined(source)).collect();
    let quoted = (1..).zip(page.lines()).filter_map(|(line, text)| {
        let quoted = text.strip_prefix("| `")?.split('`').next()?;
        Some((line, quoted))
    });
    let is_there = |quoted: &str| sources.iter().any(|source| has(source, quoted));
    let missing = quoted.filter(|(_, quoted)| !is_there(quoted));
    let complaint = |(line, quoted)| {
        let message = format!("no file of the program says `{quoted}`; quote what it says now");
        Complaint::new(MESSAGES, line, message)
    };
    missing.map(complaint).collect()
}

/// True if a file has all parts of a message.
fn has(source: &str, quoted: &str) -> bool {
    let mut parts = quoted.split(ANYTHING).map(str::trim).filter(|part| !part.is_empty());
    parts.all(|part| source.contains(part))
}

/// A source with the lines of each text that is broken by a backslash as one.
fn joined(source: &str) -> String {
    let mut lines = source.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    lines.fold(first, |text, line| text + line.trim_start())
}
