//! What a file says and what a command line says are the same.

use clap::error::ErrorKind;

use super::*;
use crate::command_line::{Help, command};

/// Values, of which every option takes one.
const VALUES: [&str; 13] = [
    "5",
    "0.5",
    "a text, of \"words\"",
    "2..4",
    "3MiB",
    "127.0.0.1:0",
    "cuda:1",
    "cosine:0.1",
    "mlp",
    "int8",
    "node0,node1",
    "10.0.0.1",
    "1e-3",
];
/// Options without which another one is none.
const COMPANIONS: [&str; 5] = ["", "--checkpoint=c", "--snapshot=s", "--trace=t", "--val-every=4"];

/// What a line of `words` says, as TOML.
fn said(words: &[&str], line: &[String]) -> Result<String, ErrorKind> {
    let program = std::iter::once("tensorwire").chain(words.iter().copied()).map(str::to_string);
    let mut command = command(Help::Long);
    let matches = command
        .try_get_matches_from_mut(program.chain(line.iter().cloned()))
        .map_err(|error| error.kind())?;
    let (chosen, given) = innermost(&command, &matches);
    Ok(printed(chosen, given, &[]).unwrap())
}

/// The line of `words` with `text` as its file.
fn line(words: &[&str], text: &str) -> Result<Vec<String>, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.toml");
    std::fs::write(&path, text).unwrap();
    let file = format!("--{FILE}={}", path.display());
    let line = std::iter::once("tensorwire").chain(words.iter().copied()).map(OsString::from);
    let line = line.chain([OsString::from(&file)]).collect();
    let (line, _) = with_file(&command(Help::Long), line).map_err(|failure| {
        failure.to_string().replace(&format!("{}/", folder.path().display()), "")
    })?;
    let words = line.into_iter().map(|word| word.into_string().unwrap());
    Ok(words.skip(1).filter(|word| *word != file).collect())
}

/// What `words` and a file say together, as TOML.
fn together(words: &[&str], text: &str) -> String {
    said(&[], &line(words, text).unwrap()).unwrap()
}

/// Lines that are no comments.
fn given(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with(['#', '[']) && !line.is_empty()).collect()
}

/// Ways to give an option, the first that the command takes.
fn example(words: &[&str], arg: &Arg) -> Vec<String> {
    let name = arg.get_long().unwrap();
    let ways: Vec<String> = match arg.get_action() {
        ArgAction::SetTrue | ArgAction::Count => vec![format!("--{name}")],
        _ => {
            let possible = arg.get_possible_values();
            let values = possible.iter().map(|value| value.get_name()).rev().chain(VALUES);
            values.map(|value| format!("--{name}={value}")).collect()
        }
    };
    let all = ways.iter().flat_map(|way| {
        COMPANIONS.map(|companion| {
            [way.as_str(), companion]
                .into_iter()
                .filter(|word| !word.is_empty())
                .map(str::to_string)
                .collect()
        })
    });
    let mut all: Vec<Vec<String>> = all.collect();
    all.retain(|line| said(words, line).is_ok());
    all.into_iter().next().unwrap_or_else(|| panic!("no value for --{name}"))
}

#[test]
fn every_option_is_read_back_as_it_was_printed() {
    for words in [["train"].as_slice(), &["bench", "step"]] {
        let mut root = command(Help::Long);
        root.build();
        let chosen = words.iter().fold(&root, |of, word| of.find_subcommand(word).unwrap());
        let mut count = 0;
        for arg in options(chosen) {
            let example = example(words, arg);
            let text = said(words, &example).unwrap();
            let key = format!("{} = ", arg.get_long().unwrap());
            assert!(given(&text).iter().any(|line| line.starts_with(&key)), "{example:?}:\n{text}");
            assert_eq!(together(words, &text), text, "{example:?}");
            count += 1;
        }
        assert!(count > 50, "{count} options");
    }
}

#[test]
fn keys_stand_alone_or_in_their_groups_and_lists_are_lists() {
    let text = "batch = 0x20\nlr = 1e-2\nhosts = ['a', \"b:2\"]\njson = true\nencrypt = false\n\
                [optimizer]\nno-decay = ['*bias', 'wte']\n[wire]\nwire = 'bf16'\n";
    let found = together(&["train"], text);
    let expected = [
        "batch = 32",
        "hosts = \"a,b:2\"",
        "lr = 1e-2",
        "no-decay = [\"*bias\", \"wte\"]",
        "wire = \"bf16\"",
        "json = true",
    ];
    assert_eq!(given(&found), expected);
}

#[test]
fn the_command_line_wins() {
    let text = "batch = 32\nepochs = 3\nno-decay = ['a']\nlr = 0.5\n";
    let found = together(&["train", "--batch=8", "--steps", "7", "--no-decay=b"], text);
    assert_eq!(given(&found), ["batch = 8", "steps = 7", "lr = 0.5", "no-decay = [\"b\"]"]);
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    assert_eq!(line(&["train"], "val_every = 3").unwrap(), ["train", "--val-every=3"]);
    for (text, says) in [
        (
            "batch = 3\n\nlrr = 1\n",
            "job.toml, line 3: there is no option 'lrr' of tensorwire train; did you mean 'lr'?",
        ),
        (
            "val_evry = 3",
            "line 1: there is no option 'val_evry' of tensorwire train; did you mean 'val-every'?",
        ),
        (
            "\n[optimiser]\nlr = 1",
            "line 2: there is no group of options 'optimiser'; did you mean 'optimizer'?",
        ),
        (
            "[optimizer]\n\nlearning-rate-of-it = 1",
            "line 3: there is no option 'learning-rate-of-it'",
        ),
        ("json = 1", "line 1: 'json' is true or false"),
        ("batch = true", "line 1: 'batch' is a text, a number or a list of them"),
        ("batch = [[1]]", "line 1: 'batch' is a list of texts or numbers"),
        ("epochs = 1\nbatch = 1979-05-27", "line 2: 'batch' is a text, a number"),
        ("verbose = 'much'", "line 1: 'verbose' is a small number"),
        ("config = 'other.toml'", "line 1: there is no option 'config'"),
        ("batch 3", "line 1: "),
        ("batch = 3\nbatch = 4", "line 2: "),
    ] {
        let found = line(&["train"], text).unwrap_err();
        assert!(found.contains(says), "{text}: {found}");
        assert_eq!(found.lines().count(), 1, "{found}");
    }
}

#[test]
fn a_line_without_a_file_stays_as_it_is() {
    for words in ["train --batch 3", "models", "launch --hosts a train --config x", "train --help"]
    {
        let words = std::iter::once("tensorwire").chain(words.split(' ')).map(OsString::from);
        let line: Vec<OsString> = words.collect();
        assert_eq!(with_file(&command(Help::Long), line.clone()).unwrap(), (line, None));
    }
    let missing = ["tensorwire", "train", "--config", "/none/job.toml"].map(OsString::from);
    let found = with_file(&command(Help::Long), missing.to_vec()).unwrap_err().to_string();
    assert!(found.contains("cannot read --config /none/job.toml"), "{found}");
}
