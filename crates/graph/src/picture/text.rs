//! The drawing in a terminal.

use std::collections::{BTreeMap, BTreeSet};

use tensorwire_base::human_bytes;

use super::fold::{Amount, Folded, Row, Way, fold};
use super::{Picture, Screen, What};
use crate::graph::{Job, Task};

/// Columns inside the boxes at the left and at the right.
const LEFT: usize = 16;
const RIGHT: usize = 10;
/// Most lines that a name takes.
const NAME_LINES_MAX: usize = 3;

impl Picture {
    /// The drawing as text of at most so many lines and columns; more only where the notes alone take as many.
    pub fn to_text(&self, screen: Screen) -> String {
        let (text, has_legend) = self.drawn(screen, 0);
        // what short forms mean takes a line
        match has_legend && text.lines().count() > screen.lines {
            true => self.drawn(screen, 1).0,
            false => text,
        }
    }

    /// The drawing, which leaves so many lines free, and whether one says what its short forms mean.
    fn drawn(&self, screen: Screen, reserved: usize) -> (String, bool) {
        let columns = screen.columns.max(LEFT + RIGHT + 8 + 24);
        let notes: Vec<String> =
            self.notes.iter().flat_map(|note| wrapped(note, columns)).collect();
        let titles = wrapped(&self.title, columns);
        // whose sides they are, the first border, an empty line before the notes
        let around = titles.len() + notes.len() + 4 + reserved;
        let lines = screen.lines.saturating_sub(around);
        let folded = fold(&self.layers, &self.crossings, lines, &|row| lines_of(row) + 1);
        let between = columns - (LEFT + 4) - (RIGHT + 4);
        let (mut out, mut short) = (titles, Vec::new());
        out.extend(wrapped(&folded.whose(), columns));
        let border = |ends: [&str; 2], row: &Row| {
            let line =
                |columns: usize| format!("{}{}{}", ends[0], "─".repeat(columns + 2), ends[1]);
            match row.right.is_empty() {
                true => line(LEFT),
                false => format!("{}{}{}", line(LEFT), " ".repeat(between), line(RIGHT)),
            }
        };
        for (at, row) in folded.rows.iter().enumerate() {
            out.push(border(if at == 0 { ["┌", "┐"] } else { ["├", "┤"] }, row));
            let (names, others) = (row.name_lines(), names_of(&row.right));
            let others = wrapped(&others, RIGHT);
            let mut flows = row.flows.iter();
            for line in 0..lines_of(row) {
                let flow = flows.next().map(|((what, way), by_how)| {
                    let room = (between - 5, true);
                    let (label, is_short) = label(*what, by_how, row.times, room);
                    short.extend(is_short.then(|| label.clone()));
                    arrow(*way, &label, between)
                });
                let left = format!("│ {} │", padded(names.get(line), LEFT));
                out.push(match row.right.is_empty() {
                    true => left,
                    false => format!(
                        "{left}{}│ {} │",
                        flow.unwrap_or_else(|| " ".repeat(between)),
                        padded(others.get(line), RIGHT)
                    ),
                });
            }
        }
        out.extend(folded.rows.last().map(|row| border(["└", "┘"], row)));
        out.push(String::new());
        let legend = legend(&short);
        let has_legend = legend.is_some();
        out.extend(legend);
        out.extend(notes);
        let text = out.into_iter().map(|line| line.trim_end().to_string() + "\n").collect();
        (text, has_legend)
    }
}

impl Folded {
    /// Whose boxes stand at the left.
    pub(super) fn whose(&self) -> String {
        match self.same.split_first() {
            Some((first, [])) => format!("{first} at the left"),
            Some((first, others)) => {
                let others = names_of(&others.iter().copied().collect());
                format!("{first} at the left; the same for {others}")
            }
            None if self.rows.iter().all(|row| row.flows.is_empty()) => "one process".to_string(),
            None => {
                let left = self.rows.iter().flat_map(|row| row.left.iter().copied());
                let left: BTreeSet<Task> = left.collect();
                let of_all = if left.len() > 1 { "; bytes of all together" } else { "" };
                format!("{} at the left{of_all}", names_of(&left))
            }
        }
    }
}

impl Row {
    /// Its name, and how many layers it stands for, as lines of a box.
    fn name_lines(&self) -> Vec<String> {
        let mut lines = wrapped(&self.name, LEFT);
        if lines.len() > NAME_LINES_MAX {
            lines.truncate(NAME_LINES_MAX);
            if let Some(last) = lines.last_mut() {
                *last = last.chars().take(LEFT - 1).chain(['…']).collect();
            }
        }
        lines.extend(self.counted());
        if self.is_of_servers {
            lines.extend(wrapped(&format!("on {}", names_of(&self.left)), LEFT));
        }
        if self.flows.is_empty() {
            lines.push(human_bytes(self.variable_bytes));
        }
        lines
    }

    /// How many layers it stands for, if those are several.
    pub(super) fn counted(&self) -> Option<String> {
        match (self.times, self.layers) {
            (1, 1) => None,
            (1, layers) => Some(format!("{layers} layers")),
            (times, 1) => Some(format!("×{times}, the same")),
            (times, layers) => Some(format!("×{times}, {layers} layers")),
        }
    }
}

fn lines_of(row: &Row) -> usize {
    let right = wrapped(&names_of(&row.right), RIGHT).len();
    row.flows.len().max(row.name_lines().len()).max(right)
}

/// What an arrow says, in at most `room` columns; short forms come in where `may_shorten`, and whether they have.
pub(super) fn label(
    what: What,
    by_how: &BTreeMap<String, Amount>,
    times: usize,
    (room, may_shorten): (usize, bool),
) -> (String, bool) {
    let name = what.name();
    let times = if times > 1 { format!("{times} × ") } else { String::new() };
    let mut amounts: Vec<(&String, &Amount)> = by_how.iter().collect();
    amounts.sort_by_key(|(_, amount)| std::cmp::Reverse(amount.bytes));
    let tensors = |count| if count == 1 { "tensor" } else { "tensors" };
    let part = |(how, amount): &(&String, &Amount)| {
        let bytes = human_bytes(amount.bytes);
        match (amount.bytes, amount.dynamic) {
            (_, 0) => format!("{times}{bytes} {how}"),
            (0, count) if *how == "dynamic" => format!("{times}{count} dynamic {}", tensors(count)),
            (0, count) => format!("{times}{count} {} {how}", tensors(count)),
            (_, count) => format!("{times}{bytes} and {count} {} {how}", tensors(count)),
        }
    };
    let parts: Vec<String> = amounts.iter().map(part).collect();
    let bytes: u64 = amounts.iter().map(|(_, amount)| amount.bytes).sum();
    let dynamic: usize = amounts.iter().map(|(_, amount)| amount.dynamic).sum();
    let more = if dynamic > 0 { format!(" and {dynamic} dynamic") } else { String::new() };
    let hows: Vec<&str> = amounts.iter().map(|(how, _)| how.as_str()).collect();
    let all = format!("{name} {times}{}{more}", human_bytes(bytes));
    // nine tenths of the bytes
    let most = amounts.first().filter(|(_, amount)| amount.bytes / 9 >= bytes - amount.bytes);
    let mostly = most.map(|(how, _)| format!("{all} mostly {how}")).unwrap_or_default();
    let in_ways = match hows.len() {
        1 => all.clone(),
        ways => format!("{all} in {ways} ways"),
    };
    let fits = |text: &String| (1..=room).contains(&text.chars().count());
    let words =
        [format!("{name} {}", parts.join(", ")), format!("{all} {}", hows.join(", ")), mostly];
    if let Some(text) = words.into_iter().find(fits) {
        return (text, false);
    }
    let shorter: Vec<&str> = hows.iter().map(|how| short(how)).collect();
    let besides = most.map(|_| format!("{all} {}+", shorter[0])).unwrap_or_default();
    let shorter = [format!("{all} {}", shorter.join(", ")), besides];
    if let Some(text) = shorter.into_iter().find(|text| may_shorten && fits(text)) {
        return (text, true);
    }
    let rest = [in_ways, all.clone()].into_iter().find(fits);
    (rest.unwrap_or_else(|| all.chars().take(room).collect()), false)
}

/// How a tensor crosses, where there is little room.
fn short(how: &str) -> &str {
    match how {
        "by reference" => "ref",
        "one write" => "write",
        how => how,
    }
}

/// What the short forms in these labels mean; nothing where there are none.
fn legend(labels: &[String]) -> Option<String> {
    let words = || labels.iter().flat_map(|label| label.split([' ', ',']));
    let has = |short: &&str| words().any(|word| word.trim_end_matches('+') == *short);
    let mut said: Vec<String> = Vec::new();
    for how in ["by reference", "one write"] {
        said.extend(Some(short(how)).filter(has).map(|short| format!("{short}: {how}")));
    }
    said.extend(words().any(|word| word.ends_with('+')).then(|| "+: and other ways".to_string()));
    (!said.is_empty()).then(|| said.join("; "))
}

fn arrow(way: Way, label: &str, columns: usize) -> String {
    let (begin, end) = match way {
        Way::ToLeft => ("◄─", "─"),
        Way::ToRight => ("──", "►"),
        Way::Both => ("◄─", "►"),
    };
    let used = begin.chars().count() + label.chars().count() + 2 + 1;
    format!("{begin} {label} {}{end}", "─".repeat(columns.saturating_sub(used)))
}

/// `server 0`, `servers 0–3`, `workers 1, 3`.
pub(super) fn names_of(tasks: &BTreeSet<Task>) -> String {
    let of = |job: Job, name: &str| {
        let of_job = tasks.iter().filter(|task| task.job == job);
        let numbers: Vec<u32> = of_job.map(|task| task.index).collect();
        let all = match numbers.as_slice() {
            [] => return None,
            [one] => return Some(format!("{name} {one}")),
            // fits: tasks are few
            [first, .., last] if (last - first) as usize + 1 == numbers.len() => {
                format!("{first}–{last}")
            }
            numbers => numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
        };
        Some(format!("{name}s {all}"))
    };
    let both = [of(Job::Worker, "worker"), of(Job::Server, "server")];
    both.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// A text in lines of at most so many columns, cut at blanks and at the separators of names.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find([' ', '/', '.']).map_or(rest.len(), |at| at + 1);
        let (word, left) = rest.split_at(end);
        rest = left;
        let last = lines.last().map_or(0, |line| line.chars().count());
        if last > 0 && last + word.trim_end().chars().count() > columns {
            lines.push(String::new());
        }
        for c in word.chars() {
            match lines.last_mut() {
                Some(line) if line.chars().count() < columns => line.push(c),
                // a blank at the end of a line is not seen
                _ if c == ' ' => {}
                _ => lines.push(c.to_string()),
            }
        }
    }
    lines.into_iter().map(|line| line.trim_end().to_string()).collect()
}

fn padded(text: Option<&String>, columns: usize) -> String {
    let text: String = text.map(|text| text.chars().take(columns).collect()).unwrap_or_default();
    let free = columns - text.chars().count();
    text + &" ".repeat(free)
}
