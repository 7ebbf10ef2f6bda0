//! What goes with a release: the changelog knows its version, an image is made of files that there are, and whoever reports
//! something is asked for what is needed.

use std::collections::BTreeSet;

use serde_json::Value;

fn read(file: &str) -> String {
    std::fs::read_to_string(xtask::root().join(file)).unwrap()
}

/// The version of the workspace, as its manifest says it.
pub(crate) fn version() -> String {
    let manifest = read("Cargo.toml");
    let line = manifest.lines().find_map(|line| line.strip_prefix("version = ")).unwrap();
    line.trim_matches('"').to_owned()
}

#[test]
fn the_changelog_begins_with_what_is_unreleased_and_then_has_this_version() {
    let text = read("CHANGELOG.md");
    let sections: Vec<&str> = text.lines().filter(|line| line.starts_with("## ")).collect();
    assert_eq!(sections[0], "## [Unreleased]");
    assert!(sections[1].starts_with(&format!("## [{}] - ", version())), "{}", sections[1]);
    let groups = text.lines().filter_map(|line| line.strip_prefix("### "));
    let known = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"];
    let others: Vec<&str> = groups.filter(|group| !known.contains(group)).collect();
    assert!(others.is_empty(), "not of Keep a Changelog: {others:?}");
}

#[test]
fn an_image_is_made_of_files_that_there_are() {
    let text = read("Containerfile");
    let mut copied = 0;
    for line in text.lines().filter_map(|line| line.strip_prefix("COPY ")) {
        if line.starts_with("--from=") {
            continue;
        }
        let words: Vec<&str> = line.split(' ').collect();
        for file in &words[..words.len() - 1] {
            assert!(xtask::root().join(file).exists(), "{file} is copied, and is not there");
            copied += 1;
        }
    }
    assert!(copied >= 3, "the sources, the licences, the program of Ray");
}

/// A form of `.github/ISSUE_TEMPLATE`, with the ids of what it asks for.
fn form(name: &str) -> (Value, BTreeSet<String>) {
    let text = read(&format!(".github/ISSUE_TEMPLATE/{name}.yml"));
    let form: Value =
        serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    let fields = form["body"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    for field in fields.iter().filter(|field| field["type"] != "markdown") {
        let kind = field["type"].as_str().unwrap();
        assert!(["textarea", "input", "dropdown", "checkboxes"].contains(&kind), "{name}: {kind}");
        assert!(field["attributes"]["label"].is_string(), "{name}: {field:#}");
        let id = field["id"].as_str().unwrap().to_owned();
        assert!(ids.insert(id), "{name}: an id twice: {field:#}");
    }
    assert!(form["name"].is_string() && form["description"].is_string(), "{name}");
    (form, ids)
}

#[test]
fn forms_ask_for_what_a_report_needs() {
    for (name, wanted, says) in [
        ("bug", vec!["what", "said", "doctor", "version"], "tensorwire doctor --json"),
        ("performance", vec!["command", "json", "doctor", "version"], "tensorwire bench … --json"),
        ("feature", vec!["problem"], "CONTRIBUTING.md"),
    ] {
        let (form, ids) = form(name);
        for id in wanted {
            assert!(ids.contains(id), "{name} does not ask for {id}");
        }
        assert!(form.to_string().contains(says), "{name}: {says}");
    }
}
