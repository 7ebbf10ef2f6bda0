//! What holds for the pages that people read: README.md is short, every link leads somewhere, and the book in
//! `docs/` lists all of its pages and leads to nothing outside of itself.

use super::Complaint;

const README: &str = "README.md";
const README_LINES_MAX: usize = 150;
/// Pages beside the book.
const PAGES: [&str; 5] =
    [README, "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];
const BOOK: &str = "docs/";
/// The book's table of contents, as mdBook reads it.
const CONTENTS: &str = "docs/SUMMARY.md";

/// True if `file`, a path in the project, is a page that [`check_pages`] takes.
pub fn is_page(file: &str) -> bool {
    let in_book = file.strip_prefix(BOOK).is_some_and(|name| !name.contains('/'));
    PAGES.contains(&file) || in_book && file.ends_with(".md")
}

/// Checks all pages, each with its path in the project. `exists` says whether there is a file or folder at a path.
pub fn check_pages(pages: &[(&str, &str)], exists: &dyn Fn(&str) -> bool) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for &(file, text) in pages {
        let lines = text.lines().count();
        if file == README && lines > README_LINES_MAX {
            let message = format!(
                "{lines} lines, {README_LINES_MAX} are enough to begin with; move the rest to {BOOK}"
            );
            complaints.push(Complaint::new(file, README_LINES_MAX, message));
        }
        for (line, target) in links(text) {
            if let Some(message) = what_is_wrong(file, target, pages, exists) {
                complaints.push(Complaint::new(file, line, message));
            }
        }
    }
    complaints.extend(unlisted(pages));
    complaints
}

/// What is wrong with a link of `file`, if anything is.
fn what_is_wrong(
    file: &str,
    target: &str,
    pages: &[(&str, &str)],
    exists: &dyn Fn(&str) -> bool,
) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let place = match path {
        "" => Some(file.to_owned()),
        path => resolve(file, path),
    };
    let Some(place) = place.filter(|place| exists(place)) else {
        return Some(format!("the link `{target}` leads nowhere; correct its path"));
    };
    if file.starts_with(BOOK) && !place.starts_with(BOOK) {
        return Some(format!(
            "the link `{target}` leaves {BOOK}, where the book has no page; name the file as text"
        ));
    }
    let (_, text) = pages.iter().find(|(page, _)| *page == place).filter(|_| !anchor.is_empty())?;
    let has_heading = headings(text).any(|heading| slug(heading) == anchor);
    (!has_heading).then(|| format!("`{place}` has no heading for the link `{target}`"))
}

/// Pages of the book that its table of contents lacks.
fn unlisted(pages: &[(&str, &str)]) -> Vec<Complaint> {
    let Some((_, contents)) = pages.iter().find(|(file, _)| *file == CONTENTS) else {
        return Vec::new();
    };
    let is_listed = |name: &str| links(contents).any(|(_, target)| target == name);
    let names = pages.iter().filter(|(file, _)| *file != CONTENTS);
    let names = names.filter_map(|(file, _)| file.strip_prefix(BOOK));
    names
        .filter(|name| !is_listed(name))
        .map(|name| Complaint::new(CONTENTS, 1, format!("lacks the page `{name}`; add a line")))
        .collect()
}

/// The lines of a page that are no code, numbered from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// The targets of a page's inline links, with their lines.
fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).flat_map(|(number, line)| {
        // a link's text may be code, and code may look like a link
        let is_code = |at: usize| line[..at].matches('`').count() % 2 == 1;
        let starts = line.match_indices("](").filter(move |(at, _)| !is_code(*at));
        starts.filter_map(move |(at, mark)| {
            let target = line[at + mark.len()..].split(')').next()?;
            Some((number, target.trim()))
        })
    })
}

fn headings(text: &str) -> impl Iterator<Item = &str> {
    prose(text)
        .filter(|(_, line)| line.starts_with('#'))
        .map(|(_, line)| line.trim_matches(['#', ' ']))
}

/// The anchor of a heading, as GitHub and mdBook make it.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The path in the project that `path` names in `file`; None if it is outside of the project.
fn resolve(file: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}
