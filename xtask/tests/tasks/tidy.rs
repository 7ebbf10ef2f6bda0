//! The project is tidy; and each check of tidy complains about a bad example, so that its silence
//! means something.

use xtask::tidy::{
    Code, Complaint, CrateTable, Edge, PublicType, SharedName, check, check_edges,
    check_forbids_unsafe, check_members, check_messages, check_names, check_pages, check_rust_file,
    check_shown, check_text_file, check_words, is_page, public_types,
};

const MAP: &str = "\
# Map

| crate | may use (besides base) | never |
|---|---|---|
| `base` | – | tensors |
| tensor | – | bytes |
| memory | tensor | ranks |
| train | all | arguments |
| tensorwire (the library) | train, tensor | logic |
| testkit | memory | |
| xtask | – | |

| not | a | crate |
";

fn table() -> CrateTable {
    let (table, complaints) = CrateTable::parse(MAP);
    assert_eq!(complaints, []);
    table
}

/// The only complaint about the words of `text` in `file`.
fn word(file: &str, text: &str) -> Complaint {
    let complaints = check_words(file, &Code::read(text));
    assert_eq!(complaints.len(), 1, "{complaints:?}");
    complaints.into_iter().next().expect("there is one")
}

fn edge(user: &str, used: &str) -> Edge {
    Edge { user: user.to_owned(), used: used.to_owned(), dev: false }
}

#[test]
fn the_project_is_tidy() {
    let complaints = check(xtask::root()).unwrap();
    let lines: Vec<String> = complaints.iter().map(Complaint::to_string).collect();
    assert!(lines.is_empty(), "\n{}", lines.join("\n"));
}

#[test]
fn a_message_that_nobody_says() {
    let source = "#[error(\n  \"cannot read {path}: \\\n      {source}; give another\"\n)]";
    let row = |quoted: &str| format!("| message | fix |\n|---|---|\n| `{quoted}` | `none` |\n");
    for quoted in ["cannot read …: …; give another", "…; give another", "cannot read"] {
        assert_eq!(check_messages(&row(quoted), &[source]), []);
    }
    let wrong = check_messages(&row("cannot write …; give another"), &[source, "cannot write"]);
    let [complaint] = &wrong[..] else { panic!("{wrong:?}") };
    assert_eq!(complaint.line, 3);
    assert!(complaint.message.contains("`cannot write …; give another`"), "{complaint}");
}

#[test]
fn a_test_that_shows_an_attack_and_is_not_there() {
    let texts = [
        ("crates/a/tests/a/one.rs", "fn it_holds_today() {}"),
        ("crates/a/tests/a/two.rs", "fn so_does_it() {}"),
    ];
    let page = |shown: &str| {
        format!(
            "| a | `x.rs` |\n\n## What was attacked, and so on\n\n| what | holds | by |\n|---|---|---|\n| w | h | {shown} |\n"
        )
    };
    let shown = "`a/tests/a/one.rs`: `it_holds…`; `two.rs`: `so_does…`; loom's `models`";
    assert_eq!(check_shown(&page(shown), &texts), []);
    for wrong in ["`a/tests/a/three.rs`: x", "`a/tests/a/one.rs`: `so_does…`", "`it_holds…`"] {
        let complaints = check_shown(&page(wrong), &texts);
        let [complaint] = &complaints[..] else { panic!("{wrong}: {complaints:?}") };
        assert_eq!((complaint.file.as_str(), complaint.line), ("docs/reliability.md", 7));
    }
}

#[test]
fn a_check_of_debug_builds_alone_where_memory_rests_on_it() {
    let text = "fn f(x: u8) { debug_assert!(x > 0); }";
    assert!(word("crates/kernels/src/cpu/conv.rs", text).message.contains("say assert"));
    assert_eq!(check_words("crates/kernels/src/check.rs", &Code::read(text)), []);
}

#[test]
fn a_dependency_that_the_table_does_not_allow() {
    let allowed = [
        ("tensorwire-memory", "tensorwire-tensor"),
        ("tensorwire-memory", "tensorwire-base"),
        ("tensorwire-train", "tensorwire-memory"),
        ("tensorwire", "tensorwire-train"),
        ("tensorwire-testkit", "tensorwire-memory"),
    ];
    assert_eq!(check_edges(&table(), &allowed.map(|(user, used)| edge(user, used))), []);
    for (user, used) in [
        ("tensorwire-tensor", "tensorwire-memory"),
        ("tensorwire-base", "tensorwire-tensor"),
        ("tensorwire-memory", "tensorwire-train"),
        ("tensorwire", "tensorwire-memory"),
        ("tensorwire-unknown", "tensorwire-tensor"),
    ] {
        let complaints = check_edges(&table(), &[edge(user, used)]);
        assert_eq!(complaints.len(), 1, "{user} -> {used}");
        assert!(complaints[0].message.contains("does not allow"), "{}", complaints[0]);
    }
}

#[test]
fn test_helpers_are_for_tests() {
    // not even where the table says all
    for used in ["tensorwire-testkit", "xtask"] {
        let complaints = check_edges(&table(), &[edge("tensorwire-train", used)]);
        assert!(complaints[0].message.contains("dev-dependency"), "{complaints:?}");
        let dev = Edge { dev: true, ..edge("tensorwire-train", used) };
        assert_eq!(check_edges(&table(), &[dev]), []);
    }
}

#[test]
fn the_tables_crates_and_the_packages_are_the_same() {
    let packages =
        ["base", "tensor", "memory", "train", "testkit"].map(|r| format!("tensorwire-{r}"));
    let mut packages = Vec::from(packages);
    packages.extend(["tensorwire", "xtask"].map(str::to_owned));
    assert_eq!(check_members(&table(), &packages), []);
    packages.push("tensorwire-attic".to_owned());
    packages.retain(|package| package != "tensorwire-memory");
    let complaints = check_members(&table(), &packages);
    assert_eq!(complaints.len(), 2);
    assert!(complaints[0].message.contains("'attic'"), "{}", complaints[0]);
    assert!(complaints[1].message.contains("'memory' has no package"), "{}", complaints[1]);
}

#[test]
fn a_table_that_is_wrong_itself() {
    assert_eq!(CrateTable::parse("no table\n").1.len(), 1);
    let (_, complaints) =
        CrateTable::parse("| crate | may use |\n|---|---|\n| a | b |\n| a | – |\n");
    assert_eq!(complaints.len(), 2, "{complaints:?}");
    assert_eq!((complaints[0].line, complaints[1].line), (3, 4));
}

#[test]
fn each_word_in_a_crate_that_is_not_its_own() {
    for (place, name, text) in [
        ("fabric", "ibv_", "fn f() { ibv_post_send(); }"),
        ("graph", "unsafe", "fn f() { unsafe { g() } }"),
        ("node", "std::env", "fn f() { std::env::args(); }"),
        ("node", "std::env", "use std::{fs, env};"),
        ("node", "tokio::", "use tokio::net::TcpStream;"),
        ("kernels", "thread::spawn", "fn f() { std::thread::spawn(g); }"),
        ("graph", "thread::spawn", "use std::thread::{self, spawn};"),
        ("graph", "thread::scope", "use std::thread::scope;"),
        ("memory", "thread::Builder", "fn f() { thread::Builder::new(); }"),
        ("runtime", "println!", "fn f() { println!(\"x\"); }"),
        ("node", "print!", "fn f() { print!(\"x\"); }"),
        ("tensorwire", "eprintln!", "fn f() { eprintln!(\"x\"); }"),
        ("fabric", "f32", "fn f(x: f32) {}"),
        ("memory", "f64", "const X: [u8; 1] = g(1.5_f64);"),
        ("runtime", "Instant::now", "fn f() { Instant::now(); }"),
        ("nn", "SystemTime", "use std::time::SystemTime;"),
    ] {
        let complaint = word(&format!("crates/{place}/src/a/b.rs"), &format!("//! x\n{text}\n"));
        assert_eq!(complaint.line, 2, "{complaint}");
        assert!(complaint.message.starts_with(&format!("`{name}` belongs to ")), "{complaint}");
    }
}

#[test]
fn each_word_in_its_own_crate() {
    for (file, text) in [
        ("crates/fabric/src/verbs/a.rs", "fn f() { unsafe { ibv_post_send() } }"),
        ("crates/cli/src/main.rs", "fn f() { g(std::env::args()); }"),
        ("crates/baselines/src/a.rs", "use tokio::net::TcpStream;"),
        ("crates/runtime/src/a.rs", "fn f(x: f32) { std::thread::spawn(g); }"),
        ("crates/base/src/a.rs", "fn f() { Instant::now(); }"),
        ("crates/graph/tests/a.rs", "fn f() { println!(\"{:?}\", std::env::args()); }"),
    ] {
        assert_eq!(check_words(file, &Code::read(text)), [], "{file}");
    }
}

#[test]
fn comments_strings_and_tests_are_free() {
    let text = r#"
        //! f32 and unsafe
        #![deny(unsafe_op_in_unsafe_fn)]
        /// An `f64`. println!
        fn f() { g("unsafe f32", 0x1f32, "std::env"); /* unsafe */ }
        #[cfg(test)]
        use std::env;
        #[cfg(test)]
        mod tests { fn f(x: f32) { println!(); } }
    "#;
    assert_eq!(check_words("crates/memory/src/a.rs", &Code::read(text)), []);
    let after = "#[cfg(test)] mod tests {} fn f(x: f32) {}";
    assert_eq!(word("crates/memory/src/a.rs", after).line, 1);
    let after = "#[cfg(test)] use a::b; fn f(x: f32) {}";
    assert_eq!(word("crates/fabric/src/a.rs", after).line, 1);
}

#[test]
fn a_folder_is_not_a_prefix() {
    assert!(word("crates/memory2/src/a.rs", "unsafe fn f() {}").message.contains("memory, fabric"));
}

#[test]
fn a_safe_crate_has_the_compiler_forbid_unsafe() {
    let complains = |file, text| check_forbids_unsafe(file, text).is_some();
    assert!(complains("crates/graph/src/lib.rs", "//! x\n"));
    assert!(complains("crates/graph/src/lib.rs", "//! x\n// #![forbid(unsafe_code)]\n"));
    assert!(complains("xtask/src/lib.rs", "//! x\n"));
    assert!(!complains("crates/graph/src/lib.rs", "//! x\n#![forbid(unsafe_code)]\n"));
    assert!(!complains("crates/memory/src/lib.rs", "//! x\n"));
    assert!(!complains("crates/graph/src/op.rs", "//! x\n"));
}

#[test]
fn what_holds_for_each_rust_file() {
    let complaints = |text: &str| check_rust_file("a.rs", text, &Code::read(text));
    assert_eq!(complaints("//! x\n#[ignore = \"needs a NIC\"]\nfn f() {}\n"), []);
    let bad = [
        ("fn f() {}\n".to_owned(), 1, "`//!`"),
        (format!("//! x\n{}", "//\n".repeat(600)), 600, "601 lines"),
        ("//! x\n\n#[ignore]\nfn f() {}\n".to_owned(), 3, "reason"),
        ("//! x\nfn f( {}\n".to_owned(), 2, "no Rust"),
    ];
    for (text, line, says) in bad {
        let found = complaints(&text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].line, line, "{}", found[0]);
        assert!(found[0].message.contains(says), "{}", found[0]);
    }
}

#[test]
fn places_of_one_machine() {
    let path = ["", "work", "main"].join("/");
    let complaints = check_text_file("README.md", &format!("fine\ncd {path}\nnetwork/path\n"));
    assert_eq!(complaints.len(), 1);
    assert_eq!(complaints[0].to_string().split(": ").next(), Some("README.md:2"));
}

/// A project of three pages and one other file.
fn pages_of<'a>(readme: &'a str, guide: &'a str) -> Vec<(&'a str, &'a str)> {
    let contents = "# Book\n- [Guide](guide.md)\n";
    vec![("README.md", readme), ("docs/SUMMARY.md", contents), ("docs/guide.md", guide)]
}

fn exists(path: &str) -> bool {
    ["README.md", "LICENSE", "docs/SUMMARY.md", "docs/guide.md", "docs"].contains(&path)
}

#[test]
fn a_link_that_leads_nowhere() {
    let guide = "# A guide, in `code`\n## How it ends\n";
    let good = "[a](docs/guide.md) [b](./docs/guide.md#how-it-ends) [c](docs/guide.md#a-guide-in-code)\n\
                [d](LICENSE) [e](https://example.org/x#y) [f](#here) [`g`](docs/)\n\
                `[no](link)`\n```sh\n[no](link)\n# no heading\n```\n### Here\n";
    assert_eq!(check_pages(&pages_of(good, guide), &exists), []);
    for (link, says) in [
        ("docs/other.md", "leads nowhere"),
        ("../README.md", "leads nowhere"),
        ("docs/guide.md#how-it-began", "no heading"),
        ("#no-heading", "no heading"),
    ] {
        let readme = format!("```sh\n# no heading\n```\n[x](LICENSE) [y]({link})\n");
        let complaints = check_pages(&pages_of(&readme, guide), &exists);
        assert_eq!(complaints.len(), 1, "{complaints:?}");
        assert_eq!((complaints[0].file.as_str(), complaints[0].line), ("README.md", 4));
        assert!(complaints[0].message.contains(says), "{}", complaints[0]);
    }
}

#[test]
fn a_book_is_whole_and_by_itself() {
    let outside = check_pages(&pages_of("", "[x](../README.md)\n"), &exists);
    assert_eq!(outside.len(), 1);
    assert!(outside[0].to_string().starts_with("docs/guide.md:1: "), "{}", outside[0]);
    let mut pages = pages_of("", "");
    pages.push(("docs/attic.md", ""));
    let complaints = check_pages(&pages, &exists);
    assert_eq!(complaints.len(), 1);
    assert!(complaints[0].to_string().contains("`attic.md`"), "{}", complaints[0]);
}

#[test]
fn the_readme_is_short() {
    let lines = |count| "word\n".repeat(count);
    assert_eq!(check_pages(&[("README.md", &lines(150))], &exists), []);
    assert_eq!(check_pages(&[("docs/guide.md", &lines(151))], &exists), []);
    let complaints = check_pages(&[("README.md", &lines(151))], &exists);
    assert!(complaints[0].message.starts_with("151 lines"), "{complaints:?}");
}

#[test]
fn which_files_are_pages() {
    for file in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/guide.md"] {
        assert!(is_page(file), "{file}");
    }
    for file in ["data/README.md", "docs/book.toml", "docs/a/b.md", "crates/base/src/lib.rs"] {
        assert!(!is_page(file), "{file}");
    }
}

/// The public types of a file of the crate `owner`.
fn types(owner: &str, text: &str) -> Vec<PublicType> {
    public_types(&format!("crates/{owner}/src/a.rs"), &Code::read(text))
}

#[test]
fn a_public_name_of_two_crates() {
    let mut all =
        types("fabric", "pub struct Gate;\npub enum Word {}\nstruct Own;\npub(crate) struct Near;");
    all.extend(types(
        "graph",
        "pub type Word = u8;\npub unsafe trait Gate {}\nstruct Own;\npub enum Near {}",
    ));
    // in one crate a module tells them apart, and tests are free
    all.extend(types(
        "graph",
        "pub mod a { pub struct Gate; }\n#[cfg(test)]\nmod tests { pub enum Word {} }",
    ));
    assert_eq!(public_types("crates/fabric/tests/a.rs", &Code::read("pub struct Gate;")), []);
    let complaints = check_names(&all, &[]);
    assert_eq!(complaints.len(), 2, "{complaints:?}");
    assert_eq!((complaints[0].file.as_str(), complaints[0].line), ("crates/graph/src/a.rs", 2));
    assert!(
        complaints[0].message.contains("`Gate` is also a public type of fabric"),
        "{complaints:?}"
    );
    let gate = |owners| SharedName { name: "Gate", owners, reason: "both are gates" };
    assert_eq!(check_names(&all, &[gate(&["fabric", "graph"])]), []);
    assert_eq!(check_names(&all, &[gate(&["fabric"])]).len(), 2, "not in another crate");
    let stale = check_names(&all, &[gate(&["fabric", "graph", "nn"])]);
    assert!(stale[0].message.contains("nn has no `Gate` any more"), "{stale:?}");
}
