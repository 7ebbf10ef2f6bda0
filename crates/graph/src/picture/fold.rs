//! Layers become rows: as many as fit, those that repeat once.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Crossing, ModelLayer, SEPARATORS, What};
use crate::graph::{Job, Task};

/// Longest run of layers that is looked for again behind it.
const PERIOD_MAX: usize = 24;

/// Which way a tensor goes, seen from the left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    ToLeft,
    ToRight,
    Both,
}

/// How much crosses in one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) bytes: u64,
    /// Tensors whose size is known only when they exist.
    pub(super) dynamic: usize,
}

/// What crosses, by how it does.
pub(super) type Flows = BTreeMap<(What, Way), BTreeMap<String, Amount>>;

/// A layer, or several, at two sides.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: String,
    /// Layers of the model that it stands for, not counting repetitions.
    pub(super) layers: usize,
    /// Times that it is there; the flows are those of one.
    pub(super) times: usize,
    pub(super) variable_bytes: u64,
    /// Of what crosses between servers: one of them is at the left.
    pub(super) is_of_servers: bool,
    pub(super) left: BTreeSet<Task>,
    pub(super) right: BTreeSet<Task>,
    pub(super) flows: Flows,
    /// What it is made of, with numbers left out of the names: two rows of one shape are the same.
    shape: Vec<(String, u64, Flows)>,
}

/// The rows of a drawing.
#[derive(Clone, Debug)]
pub(super) struct Folded {
    pub(super) rows: Vec<Row>,
    /// The workers that the rows show one of, if they all have the same.
    pub(super) same: Vec<Task>,
}

/// Folds layers until their rows, each of so many lines as `height` says, take at most `lines`.
pub(super) fn fold(
    layers: &[ModelLayer],
    crossings: &[Crossing],
    lines: usize,
    height: &dyn Fn(&Row) -> usize,
) -> Folded {
    let (crossings, same) = of_one_worker(crossings);
    let leaves = leaves(layers, &crossings);
    let fits = |rows: &[Row]| rows.iter().map(height).sum::<usize>() <= lines;
    let deepest = leaves.iter().map(|row| parts(&row.name).count()).max().unwrap_or(1);
    let mut rows = Vec::new();
    for depth in (1..=deepest).rev() {
        rows = repeats(at_depth(&leaves, depth));
        if fits(&rows) {
            break;
        }
    }
    while rows.len() > 1 && !fits(&rows) {
        join_two(&mut rows);
    }
    Folded { rows, same }
}

/// What one worker sends and gets, if all that deal with others do the same, and those workers; else everything.
fn of_one_worker(crossings: &[Crossing]) -> (Vec<&Crossing>, Vec<Task>) {
    let drawn = || crossings.iter().filter(|crossing| crossing.what != What::Signal);
    // (layer, what it is, how it crosses, its bytes, whether it leaves the worker)
    type Key<'a> = (&'a str, What, &'a str, Option<u64>, bool);
    let mut by_worker: BTreeMap<Task, Vec<Key<'_>>> = BTreeMap::new();
    let mut is_plain = true;
    for crossing in drawn().filter(|crossing| !crossing.is_among()) {
        let Crossing { layer, what, how, bytes, .. } = crossing;
        let worker = |tasks: &[Task]| tasks.iter().find(|task| task.job == Job::Worker).copied();
        let (task, leaves) = match (worker(&crossing.from), worker(&crossing.to)) {
            (Some(task), None) => (task, true),
            (None, Some(task)) => (task, false),
            // between servers, whoever the worker is
            (None, None) => continue,
            (Some(_), Some(_)) => {
                is_plain = false;
                break;
            }
        };
        by_worker.entry(task).or_default().push((layer, *what, how, *bytes, leaves));
    }
    by_worker.values_mut().for_each(|keys| keys.sort_unstable());
    let first = by_worker.values().next();
    is_plain &= by_worker.values().all(|keys| Some(keys) == first);
    if !is_plain {
        return (drawn().collect(), Vec::new());
    }
    let same: Vec<Task> = by_worker.into_keys().collect();
    let is_shown = |crossing: &&Crossing| {
        let one = same.first().copied().unwrap_or(Task::worker(0));
        match crossing.is_among() {
            true => crossing.from.contains(&one),
            false => {
                let tasks = || crossing.from.iter().chain(&crossing.to);
                tasks().any(|task| *task == one) || tasks().all(|task| task.job == Job::Server)
            }
        }
    };
    (drawn().filter(is_shown).collect(), same)
}

/// A row for each layer.
fn leaves(layers: &[ModelLayer], crossings: &[&Crossing]) -> Vec<Row> {
    let mut rows: Vec<Row> =
        layers.iter().map(|layer| Row::new(&layer.name, layer.bytes)).collect();
    let mut places: HashMap<(String, bool), usize> =
        rows.iter().enumerate().map(|(at, row)| ((row.name.clone(), false), at)).collect();
    for crossing in crossings {
        let (_, left, _) = sides(crossing);
        let is_of_servers = left.iter().all(|task| task.job == Job::Server);
        let at = *places.entry((crossing.layer.clone(), is_of_servers)).or_insert_with(|| {
            rows.push(Row { is_of_servers, ..Row::new(&crossing.layer, 0) });
            rows.len() - 1
        });
        rows[at].add(crossing);
    }
    for row in &mut rows {
        row.shape = vec![(without_numbers(&row.name), row.variable_bytes, row.flows.clone())];
    }
    rows
}

impl Row {
    fn new(name: &str, variable_bytes: u64) -> Row {
        Row {
            name: name.to_string(),
            layers: 1,
            times: 1,
            variable_bytes,
            is_of_servers: false,
            left: BTreeSet::new(),
            right: BTreeSet::new(),
            flows: Flows::new(),
            shape: Vec::new(),
        }
    }

    fn add(&mut self, crossing: &Crossing) {
        let (way, left, right) = sides(crossing);
        self.left.extend(left);
        self.right.extend(right);
        let flow = self.flows.entry((crossing.what, way)).or_default();
        let amount = flow.entry(crossing.how.clone()).or_default();
        match crossing.bytes {
            Some(bytes) => amount.bytes += bytes,
            None => amount.dynamic += 1,
        }
    }

    /// Stands for another row, too, wherever that comes.
    fn join(&mut self, other: &Row) {
        let (ours, theirs) = (self.times, other.times);
        for amount in self.flows.values_mut().flat_map(BTreeMap::values_mut) {
            *amount = amount.times(ours);
        }
        for (key, by_how) in &other.flows {
            let flow = self.flows.entry(*key).or_default();
            for (how, amount) in by_how {
                let (sum, more) = (flow.entry(how.clone()).or_default(), amount.times(theirs));
                *sum =
                    Amount { bytes: sum.bytes + more.bytes, dynamic: sum.dynamic + more.dynamic };
            }
        }
        self.is_of_servers &= other.is_of_servers;
        self.variable_bytes =
            self.variable_bytes * ours as u64 + other.variable_bytes * theirs as u64;
        self.layers = self.layers * ours + other.layers * theirs;
        self.times = 1;
        self.left.extend(&other.left);
        self.right.extend(&other.right);
        self.shape.extend(other.shape.iter().cloned());
    }
}

impl Amount {
    fn times(self, times: usize) -> Amount {
        // fits: sums of sizes that are each allocated somewhere
        Amount { bytes: self.bytes * times as u64, dynamic: self.dynamic * times }
    }
}

/// Which way a tensor is drawn, and who is at either side.
fn sides(crossing: &Crossing) -> (Way, Vec<Task>, Vec<Task>) {
    let Crossing { from, to, .. } = crossing;
    if crossing.is_among() {
        let (first, others) = from.split_at(from.len().min(1));
        return (Way::Both, first.to_vec(), others.to_vec());
    }
    let is_worker = |tasks: &[Task]| tasks.iter().all(|task| task.job == Job::Worker);
    match !is_worker(from) && is_worker(to) {
        true => (Way::ToLeft, to.clone(), from.clone()),
        false => (Way::ToRight, from.clone(), to.clone()),
    }
}

/// The parts of a name, each with the separator before it.
fn parts(name: &str) -> impl Iterator<Item = &str> {
    let mut rest = name;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let end = rest[first.len_utf8()..].find(SEPARATORS).map(|at| at + first.len_utf8());
        let (part, left) = rest.split_at(end.unwrap_or(rest.len()));
        rest = left;
        Some(part)
    })
}

/// One row for all layers that have the first `depth` parts of their names in common.
fn at_depth(leaves: &[Row], depth: usize) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut places: HashMap<(String, bool), usize> = HashMap::new();
    for leaf in leaves {
        let name: String = parts(&leaf.name).take(depth).collect();
        match places.get(&(name.clone(), leaf.is_of_servers)) {
            Some(at) => rows[*at].join(leaf),
            None => {
                places.insert((name.clone(), leaf.is_of_servers), rows.len());
                rows.push(Row { name, ..leaf.clone() });
            }
        }
    }
    rows
}

/// Runs of rows that come again right behind themselves stand once.
fn repeats(rows: Vec<Row>) -> Vec<Row> {
    let is_same = |a: &Row, b: &Row| {
        let same = without_numbers(&a.name) == without_numbers(&b.name);
        same && a.is_of_servers == b.is_of_servers && a.shape == b.shape
    };
    let mut folded = Vec::new();
    let mut at = 0;
    while at < rows.len() {
        let rest = &rows[at..];
        let times = |period: usize| {
            let blocks = rest.chunks_exact(period).skip(1);
            let again = |block: &&[Row]| block.iter().zip(rest).all(|(a, b)| is_same(a, b));
            1 + blocks.take_while(again).count()
        };
        let periods = 1..=PERIOD_MAX.min(rest.len() / 2);
        let saved = |(period, times): &(usize, usize)| (period * (times - 1), rest.len() - period);
        let best = periods.map(|period| (period, times(period))).max_by_key(saved);
        let (period, times) = best.filter(|(_, times)| *times > 1).unwrap_or((1, 1));
        for first in 0..period {
            let mut row = rest[first].clone();
            for again in 1..times {
                let other = &rest[first + again * period];
                row.left.extend(&other.left);
                row.right.extend(&other.right);
            }
            row.name = range(&row.name, &rest[first + (times - 1) * period].name);
            row.times = times;
            folded.push(row);
        }
        at += period * times;
    }
    folded
}

/// Two neighbours become one: of those whose names begin alike, the two of the fewest bytes; if none do, of all.
fn join_two(rows: &mut Vec<Row>) {
    let stem = |row: &Row| row.name.chars().take_while(|c| c.is_alphabetic()).collect::<String>();
    let bytes = |row: &Row| {
        let all = row.flows.values().flat_map(BTreeMap::values).map(|amount| amount.bytes);
        all.sum::<u64>() * row.times as u64
    };
    let price = |at: &usize| {
        let (one, next) = (&rows[*at], &rows[at + 1]);
        let is_other = stem(one) != stem(next) || one.is_of_servers != next.is_of_servers;
        (is_other, bytes(one) + bytes(next))
    };
    let Some(at) = (0..rows.len().saturating_sub(1)).min_by_key(price) else { return };
    let next = rows.remove(at + 1);
    let last = |name: &str| name.rsplit(['…', ' ']).next().unwrap_or_default().to_string();
    let first = rows[at].name.split(" … ").next().unwrap_or_default().to_string();
    rows[at].join(&next);
    rows[at].name = match next.name.split_once(" … ") {
        Some((_, end)) => format!("{first} … {}", last(end)),
        None => format!("{first} … {}", next.name),
    };
}

/// Two names as one: where they differ in one number, that from the first to the last.
fn range(first: &str, last: &str) -> String {
    if first == last {
        return first.to_string();
    }
    let is_digit = |c: char| c.is_ascii_digit();
    let same = first.bytes().zip(last.bytes()).take_while(|(a, b)| a == b).count();
    // back to where the number begins
    let digits = first.as_bytes()[..same].iter().rev().take_while(|b| b.is_ascii_digit()).count();
    let (Some(a), Some(b)) = (first.get(same - digits..), last.get(same - digits..)) else {
        return format!("{first} … {last}");
    };
    let (rest_a, rest_b) = (a.trim_start_matches(is_digit), b.trim_start_matches(is_digit));
    let (from, to) = (&a[..a.len() - rest_a.len()], &b[..b.len() - rest_b.len()]);
    match rest_a == rest_b && !from.is_empty() && !to.is_empty() {
        true => format!("{}{from}…{to}{rest_a}", &first[..same - digits]),
        false => format!("{first} … {last}"),
    }
}

/// A name with `#` for each number.
fn without_numbers(name: &str) -> String {
    let mut shape = String::new();
    for c in name.chars() {
        match c.is_ascii_digit() {
            true if shape.ends_with('#') => {}
            true => shape.push('#'),
            false => shape.push(c),
        }
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crossing(layer: &str, bytes: u64, worker: u32) -> Crossing {
        Crossing {
            tensor: format!("{layer}/weight"),
            layer: layer.to_string(),
            what: What::Weights,
            from: vec![Task::server(0)],
            to: vec![Task::worker(worker)],
            bytes: Some(bytes),
            how: "one write".to_string(),
            fact: String::new(),
            reason: String::new(),
            lies_at: String::new(),
            at: String::new(),
            reuse: String::new(),
        }
    }

    fn rows(names: &[(&str, u64)], workers: u32, lines: usize) -> Vec<(String, usize, u64)> {
        let each = |worker| move |(name, bytes): &(&str, u64)| crossing(name, *bytes, worker);
        let crossings: Vec<Crossing> =
            (0..workers).flat_map(|worker| names.iter().map(each(worker))).collect();
        let layer = |(name, bytes): &(&str, u64)| ModelLayer {
            name: name.to_string(),
            variables: 1,
            bytes: *bytes,
        };
        let layers: Vec<ModelLayer> = names.iter().map(layer).collect();
        let folded = fold(&layers, &crossings, lines, &|_| 1);
        assert_eq!(folded.same.len(), workers as usize);
        let bytes =
            |row: &Row| row.flows.values().flat_map(BTreeMap::values).map(|a| a.bytes).sum();
        folded.rows.iter().map(|row| (row.name.clone(), row.times, bytes(row))).collect()
    }

    #[test]
    fn what_repeats_stands_once_whatever_its_period() {
        let names = [("in", 7), ("h0/a", 1), ("h0/b", 2), ("h1/a", 1), ("h1/b", 2), ("out", 9)];
        let expected = [("in", 1, 7), ("h0…1/a", 2, 1), ("h0…1/b", 2, 2), ("out", 1, 9)];
        let expected = expected.map(|(name, times, bytes)| (name.to_string(), times, bytes));
        assert_eq!(rows(&names, 1, 9), expected);
        assert_eq!(rows(&names, 3, 9), expected, "of one worker where all are the same");
        // another size is another layer
        let other = [("h0/a", 1), ("h1/a", 2)].map(|(name, bytes)| (name, bytes));
        assert_eq!(rows(&other, 1, 9).len(), 2);
    }

    #[test]
    fn where_lines_are_few_scopes_are_one_row_and_then_neighbours() {
        let names = [("a/x", 1), ("a/y", 2), ("b/x", 4), ("c1", 8), ("c2", 16)];
        let found = |lines| rows(&names, 1, lines);
        assert_eq!(found(4).len(), 4);
        assert_eq!(found(4)[0], ("a".to_string(), 1, 3));
        assert_eq!(found(3)[2], ("c1 … c2".to_string(), 1, 24));
        assert_eq!(found(1), [("a … c2".to_string(), 1, 31)]);
    }

    #[test]
    fn a_range_of_names_says_which_number_runs() {
        for (first, last, range_of_them) in [
            ("layer9/a", "layer11/a", "layer9…11/a"),
            ("layer10", "layer12", "layer10…12"),
            ("s1/b1", "s2/b3", "s1/b1 … s2/b3"),
            ("a", "a", "a"),
        ] {
            assert_eq!(range(first, last), range_of_them);
        }
    }
}
