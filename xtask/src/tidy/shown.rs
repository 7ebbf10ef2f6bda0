//! What holds for the table of attacks: each test that a row names is there. Tests are named by their file and the beginning of their
//! name.

use super::Complaint;

/// The page that has the table.
pub const ATTACKS: &str = "docs/reliability.md";
/// What the table's section begins with.
const SECTION: &str = "## What was attacked";
/// What stands for the rest of a test's name.
const REST: char = '…';

/// Checks the table of attacks against the project's texts, each with its path.
pub fn check_shown(page: &str, texts: &[(&str, &str)]) -> Vec<Complaint> {
    let lines = (1..).zip(page.lines());
    let section = lines.skip_while(|(_, line)| !line.starts_with(SECTION)).skip(1);
    let section = section.take_while(|(_, line)| !line.starts_with("## "));
    let rows = section.filter(|(_, line)| line.starts_with("| ")).skip(1);
    rows.flat_map(|(line, row)| {
        let wrong = what_is_wrong(row, texts);
        wrong.into_iter().map(move |message| Complaint::new(ATTACKS, line, message))
    })
    .collect()
}

/// What a row's last column names that is not there.
fn what_is_wrong(row: &str, texts: &[(&str, &str)]) -> Vec<String> {
    let shown = row.trim_end().trim_end_matches('|').rsplit(" | ").next().unwrap_or_default();
    let quoted = shown.split('`').skip(1).step_by(2);
    let mut wrong = Vec::new();
    // the file that was named last, and its folder
    let mut file: Option<&(&str, &str)> = None;
    for quoted in quoted {
        if quoted.ends_with(".rs") {
            let whole = format!("crates/{quoted}");
            let folder = file.and_then(|(path, _)| path.rsplit_once('/')).map(|(folder, _)| folder);
            let beside = folder.map(|folder| format!("{folder}/{quoted}"));
            let is_it = |path: &str| {
                [whole.as_str(), quoted].contains(&path) || beside.as_deref() == Some(path)
            };
            file = texts.iter().find(|(path, _)| is_it(path));
            if file.is_none() {
                wrong.push(format!(
                    "no file `{quoted}` below crates/; name the one that has the test"
                ));
            }
        } else if let Some(begun) = quoted.strip_suffix(REST) {
            let is_test = |text: &str| text.contains(&format!("fn {begun}"));
            if !file.is_some_and(|(_, text)| is_test(text)) {
                let of = file.map_or("no file", |(path, _)| path);
                wrong.push(format!("no test `{quoted}` in {of}; name the one that shows it"));
            }
        }
    }
    wrong
}
