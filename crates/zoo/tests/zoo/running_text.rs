//! Texts in tokens, from files: windows of them, and what is said of files that are none.

use std::path::{Path, PathBuf};

use tensorwire_nn::{Batches, Data, HostBatch, TestBatches};
use tensorwire_zoo::data::{Characters, DataError, SampleKind, Source};

const LENGTH: usize = 8;

fn open(source: &str) -> Result<Data, DataError> {
    source.parse::<Source>()?.open(SampleKind::Tokens { vocabulary: 50, length: LENGTH }, 1)
}

fn words(data: &Data) -> usize {
    match SampleKind::of(&data.train.describe()) {
        Some(SampleKind::Tokens { length: LENGTH, vocabulary: words }) => words,
        other => panic!("{other:?}"),
    }
}

fn file(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn two_bytes(tokens: impl Iterator<Item = u16>) -> Vec<u8> {
    tokens.flat_map(u16::to_le_bytes).collect()
}

fn four_bytes(tokens: impl Iterator<Item = u32>) -> Vec<u8> {
    tokens.flat_map(u32::to_le_bytes).collect()
}

fn input(batch: &HostBatch) -> &[i32] {
    batch.get("input").unwrap().values()
}

#[test]
fn tokens_are_read_where_a_window_lies() {
    let folder = tempfile::tempdir().unwrap();
    let train = file(&folder, "train.bin", &two_bytes(0..1000));
    let test = file(&folder, "val.bin", &two_bytes(5000..5025));
    let data = open(&format!("tokens:{},{}", train.display(), test.display())).unwrap();
    assert_eq!((words(&data), data.train.samples()), (5025, Some(124)));
    let batch = Batches::new(data.train, 1, 100, 1).unwrap().batch(1, 0).unwrap();
    let labels = batch.get("labels").unwrap().values::<i32>();
    assert!(input(&batch).iter().zip(labels).all(|(&word, &next)| word + 1 == next && next < 1000));
    assert!(input(&batch).iter().any(|&word| word > 900));
    let tests = TestBatches::new(data.test.unwrap(), 3).unwrap().batch(0).unwrap();
    assert_eq!(input(&tests), (5000..5024).collect::<Vec<i32>>());
}

#[test]
fn tokens_may_have_four_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let named = file(&folder, "a.u32", &four_bytes(70_000..70_200));
    let plain = file(&folder, "a.bin", &four_bytes(70_000..70_200));
    let by_name = open(&format!("tokens:{}", named.display())).unwrap();
    let by_words = open(&format!("tokens:{},vocab=100000", plain.display())).unwrap();
    assert_eq!((words(&by_name), words(&by_words)), (70_200, 100_000));
    let first = |data: Data| Batches::new(data.train, 1, 4, 1).unwrap().batch(0, 0).unwrap();
    let (by_name, by_words) = (first(by_name), first(by_words));
    assert_eq!(input(&by_name), input(&by_words));
    assert!(input(&by_name).iter().all(|&word| word >= 70_000));
}

#[test]
fn training_goes_on_from_any_step() {
    let data = open("kjv").unwrap();
    let mut walked = Batches::new(data.train.clone(), 2, 16, 5).unwrap();
    let per_epoch = walked.steps_per_epoch().unwrap();
    for step in [3, per_epoch - 1, per_epoch + 2] {
        let mut fresh = Batches::new(data.train.clone(), 2, 16, 5).unwrap();
        for worker in 0..2 {
            assert_eq!(walked.batch(step, worker).unwrap(), fresh.batch(step, worker).unwrap());
        }
    }
    // an epoch has windows of its own
    assert_ne!(walked.batch(0, 0).unwrap(), walked.batch(per_epoch, 0).unwrap());
}

#[test]
fn files_that_are_no_tokens_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let said = |name: &str, bytes: &[u8], options: &str| {
        let path = file(&folder, name, bytes);
        let error = open(&format!("tokens:{}{options}", path.display())).unwrap_err();
        let line = error.to_string();
        assert!(line.contains(&format!("{name}'")) && line.contains("; "), "{line}");
        line
    };
    assert!(said("odd.bin", &[1; 101], "").contains("has 101 bytes, and its tokens have 2 each"));
    assert!(said("odd.u32", &[1; 102], "").contains("4 each"));
    assert!(said("empty.bin", &[], "").contains("a sample needs 9"));
    // of 80 tokens the test has 8
    assert!(said("short.bin", &[0; 160], "").contains("has 8 tokens"));
    assert!(said("npy.bin", b"\x93NUMPY\x01\0more", "").contains("tofile()"));
    let large = four_bytes((0..100).map(|token| token << 25));
    assert!(said("large.u32", &large, "").contains("outside 0..2147483647"));
    let missing = open("tokens:/nowhere/train.bin").unwrap_err();
    assert!(missing.to_string().contains("/nowhere/train.bin"), "{missing}");
    let size = open("tokens:/nowhere/train.bin,vocab=many").unwrap_err();
    assert!(matches!(size, DataError::NoVocabularySize { .. }), "{size}");
    let is_folder = open(&format!("tokens:{}", folder.path().display())).unwrap_err();
    assert!(matches!(is_folder, DataError::Unreadable { .. }), "{is_folder}");
    // a vocabulary that is too small shows when a token is read
    let path = file(&folder, "many.bin", &two_bytes(0..1000));
    let data = open(&format!("tokens:{},vocab=10", path.display())).unwrap();
    let error = Batches::new(data.train, 1, 8, 1).unwrap().batch(0, 0).unwrap_err().to_string();
    assert!(error.contains("many.bin'") && error.contains("outside 0..10"), "{error}");
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "train.bin", &two_bytes(0..1000));
    let data = open(&format!("tokens:{}", path.display())).unwrap();
    std::fs::write(&path, [0; 4]).unwrap();
    let error = Batches::new(data.train, 1, 8, 1).unwrap().batch(0, 0).unwrap_err().to_string();
    assert!(error.contains("train.bin'"), "{error}");
}

#[test]
fn characters_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let text = "Der Hund schläft. ".repeat(20);
    let path = file(&folder, "a.txt", text.as_bytes());
    let data = open(&format!("chars:{}", path.display())).unwrap();
    let characters = Characters::of(&text);
    assert_eq!(words(&data), characters.count());
    let tests = TestBatches::new(data.test.unwrap(), 1).unwrap().batch(0).unwrap();
    let tokens: Vec<u32> = input(&tests).iter().map(|&token| token as u32).collect();
    assert_eq!(characters.text(&tokens), text.chars().skip(324).take(8).collect::<String>());
    for (bytes, reason) in [(&b"ab\xff"[..], "not UTF-8"), (b"", "needs 9"), (b"abc", "needs 9")] {
        let path = file(&folder, "bad.txt", bytes);
        let line = open(&format!("chars:{}", path.display())).unwrap_err().to_string();
        assert!(line.contains(reason) && line.contains("bad.txt'"), "{line}");
    }
}

/// A tokenizer of whole words, whose numbers have a gap.
const TOKENIZER: &str = r#"{
    "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "one": 1, "two": 2, "three": 9}}
}"#;

#[test]
fn a_text_in_tokens_of_a_trained_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let text = file(&folder, "a.txt", "one two three four\n".repeat(40).as_bytes());
    let said = |source: &str| open(source).unwrap_err().to_string();
    let missing = said(&format!("lm:{}", text.display()));
    assert!(missing.contains("tokenizer.json'") && missing.contains("No such file"), "{missing}");
    file(&folder, "tokenizer.json", TOKENIZER.as_bytes());
    let named = file(&folder, "other.json", TOKENIZER.as_bytes());
    for source in
        [format!("lm:{}", text.display()), format!("lm:{},{}", text.display(), named.display())]
    {
        let data = open(&source).unwrap();
        assert_eq!(words(&data), 10);
        let tests = TestBatches::new(data.test.unwrap(), 1).unwrap().batch(0).unwrap();
        assert_eq!(input(&tests), [1, 2, 9, 0, 1, 2, 9, 0]);
    }
    let foreign = said(&format!("lm:{},{}", text.display(), text.display()));
    assert!(foreign.contains("a.txt' as a tokenizer"), "{foreign}");
    let nowhere = Path::new("/nowhere/b.txt").display();
    assert!(said(&format!("lm:{nowhere}")).contains("/nowhere/b.txt"));
}
