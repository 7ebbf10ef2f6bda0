//! Training runs that differ in nothing but their seed: which files they are, and what one curve of them all is called. Knows
//! no numbers of a curve.
//!
//! A summary does not say all that was given on the command line (what follows the first rate, the order of samples), so equal
//! summaries alone make no two runs alike: their files must be named alike as well, but for the seed.

use std::collections::{BTreeMap, BTreeSet};

use crate::line::Line;
use crate::runs::RUN;

/// What a summary says of a run that its seed does not change.
const SETTINGS: [&str; 14] = [
    "steps",
    "model",
    "data",
    "strategy",
    "exchange",
    "transport",
    "async",
    "batch",
    "workers",
    "servers",
    "clients",
    "devices_per_worker",
    "rate",
    "wire",
];

/// What files that share a curve are called, each with a star in the place of its seed.
#[derive(Debug, Default)]
pub(crate) struct Seeds {
    curves: BTreeMap<String, String>,
    /// The folder that all files are in, with its slash, which says nothing of any of them.
    folder: String,
}

/// What a file says of itself.
#[derive(Debug, Default)]
struct Said {
    seed: Option<u64>,
    settings: Vec<String>,
}

/// What runs of one curve have in common: their name without the seed, and their settings.
type Kind<'a> = (String, &'a [String]);

impl Seeds {
    /// Of files of which at least two are alike.
    pub(crate) fn of(lines: &[Line]) -> Seeds {
        let mut files: BTreeMap<&str, Said> = BTreeMap::new();
        for line in lines.iter().filter(|line| line.kind() == Some(RUN)) {
            files.entry(line.file()).or_default().hear(line);
        }
        let mut kinds: BTreeMap<Kind<'_>, BTreeMap<u64, &str>> = BTreeMap::new();
        for (&file, said) in &files {
            let Some(seed) = said.seed else { continue };
            for name in without(file, seed) {
                // the same seed once more is no other
                kinds.entry((name, &said.settings)).or_default().entry(seed).or_insert(file);
            }
        }
        let mut curves = BTreeMap::new();
        // a name may have the number in several places: where most files are alike, it is the seed
        let mut kinds: Vec<_> = kinds.into_iter().filter(|(_, files)| files.len() > 1).collect();
        kinds.sort_by_key(|(_, files)| std::cmp::Reverse(files.len()));
        let mut named = BTreeSet::new();
        for ((name, _), files) in kinds {
            let left: Vec<&str> =
                files.into_values().filter(|file| !curves.contains_key(*file)).collect();
            if left.len() > 1 {
                // other settings under the same name
                let others = (2..).map(|number| format!("{name} ({number})"));
                let free = std::iter::once(name.clone()).chain(others);
                let curve = free.into_iter().find(|one| !named.contains(one)).unwrap_or_default();
                named.insert(curve.clone());
                curves.extend(left.into_iter().map(|file| (file.to_string(), curve.clone())));
            }
        }
        let folder = common_folder(files.keys().copied()).to_string();
        Seeds { curves, folder }
    }

    /// What a file and those that share its curve are called; its own name if there are no others.
    pub(crate) fn curve<'a>(&'a self, file: &'a str) -> &'a str {
        self.short(self.curves.get(file).map_or(file, String::as_str))
    }

    /// Its name in the folder that all files are in.
    pub(crate) fn short<'a>(&self, file: &'a str) -> &'a str {
        // where the folder has the seed, its place has a star
        file.strip_prefix(&self.folder).unwrap_or(file)
    }
}

impl Said {
    /// Ours say it in the summary, which ends them; the scripts in bench/peers in each line.
    fn hear(&mut self, line: &Line) {
        let seed = line.optional_whole("summary.seed").or_else(|| line.optional_whole("seed"));
        self.seed = seed.or(self.seed);
        let settings = SETTINGS.iter().filter_map(|name| {
            Some(format!("{name}: {}", line.shown(&format!("summary.{name}"))?))
        });
        let settings: Vec<String> = settings.collect();
        if !settings.is_empty() {
            self.settings = settings;
        }
    }
}

/// Up to the last slash that all have in common.
fn common_folder<'a>(mut files: impl Iterator<Item = &'a str>) -> &'a str {
    let folder = |file: &'a str| &file[..file.rfind('/').map_or(0, |at| at + 1)];
    let first = files.next().map(folder).unwrap_or_default();
    files.fold(first, |common, file| {
        let same = common.chars().zip(file.chars()).take_while(|(a, b)| a == b);
        folder(&common[..same.map(|(letter, _)| letter.len_utf8()).sum()])
    })
}

/// The name with a star in the place of the seed, for each place where it may stand.
fn without(file: &str, seed: u64) -> Vec<String> {
    let is_digit = |letter: char| letter.is_ascii_digit();
    let mut names = Vec::new();
    let mut from = 0;
    while let Some(start) = file[from..].find(is_digit).map(|at| from + at) {
        let end =
            file[start..].find(|letter| !is_digit(letter)).map_or(file.len(), |at| start + at);
        if file[start..end].parse() == Ok(seed) {
            names.push(format!("{}*{}", &file[..start], &file[end..]));
        }
        from = end;
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The curves of files of runs with this seed and batch.
    fn curves(files: &[(&str, u64, u64)]) -> Vec<String> {
        let line = |&(file, seed, batch): &(&str, u64, u64)| {
            let text = format!("{{\"summary\":{{\"steps\":1,\"seed\":{seed},\"batch\":{batch}}}}}");
            Line::read_all(file, &text).unwrap().remove(0)
        };
        let seeds = Seeds::of(&files.iter().map(line).collect::<Vec<Line>>());
        files.iter().map(|(file, ..)| seeds.curve(file).to_string()).collect()
    }

    #[test]
    fn runs_named_alike_but_for_their_seed_are_one_curve() {
        let all =
            curves(&[("a/ps-1.jsonl", 1, 8), ("a/ps-2.jsonl", 2, 8), ("a/ps-10.jsonl", 10, 8)]);
        assert!(all.iter().all(|curve| curve == "ps-*.jsonl"), "{all:?}");
        // other settings, names, and numbers that are not the seed
        for others in [
            [("ps-1.jsonl", 1, 8), ("ps-2.jsonl", 2, 16)],
            [("ps-1.jsonl", 1, 8), ("ps-bf16-2.jsonl", 2, 8)],
            [("ps-1.jsonl", 7, 8), ("ps-2.jsonl", 7, 8)],
            [("first.jsonl", 1, 8), ("second.jsonl", 2, 8)],
        ] {
            assert_eq!(curves(&others), others.map(|(file, ..)| file));
        }
    }

    #[test]
    fn the_seed_is_where_most_names_are_alike() {
        let all =
            curves(&[("1/run-1", 1, 8), ("2/run-1", 2, 8), ("3/run-1", 3, 8), ("1/run-2", 2, 8)]);
        assert_eq!(all[..3], ["*/run-1"; 3]);
        assert_eq!(all[3], "1/run-2", "of its own, since the other is of a larger set");
        assert_eq!(curves(&[("s01", 1, 8), ("s2", 2, 8)]), ["s*"; 2]);
        // one that is there twice counts once
        assert_eq!(curves(&[("s01", 1, 8), ("s1", 1, 8), ("s2", 2, 8)]), ["s*", "s1", "s*"]);
        // larger than what a floating-point number keeps apart
        let large = [((1 << 53) + 1, "s9007199254740993"), (1 << 53, "s9007199254740992")];
        assert_eq!(curves(&large.map(|(seed, file)| (file, seed, 8))), ["s*"; 2]);
    }

    #[test]
    fn the_folder_that_all_are_in_is_left_out() {
        for (files, wanted) in [
            (&["a/b/ps.jsonl", "a/b/ddp.jsonl"][..], "a/b/"),
            (&["a/text/ps.jsonl", "a/tests/ps.jsonl"], "a/"),
            (&["/a/é/x", "/a/è/x"], "/a/"),
            (&["runs/one.jsonl"], "runs/"),
            (&["one.jsonl", "runs/one.jsonl"], ""),
            (&[], ""),
        ] {
            assert_eq!(common_folder(files.iter().copied()), wanted, "{files:?}");
        }
    }
}
