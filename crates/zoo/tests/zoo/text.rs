//! Two aligned text files: pairs of their lines load, every tenth for the test, and whatever is wrong with a
//! file is one line that names it and the place in it.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use tempfile::TempDir;
use tensorwire_zoo::data::{
    DataError, Pairs, SENTENCE_WORDS_MAX, SampleKind, Source, UNKNOWN, Vocabulary,
};

const WORDS: [usize; 2] = [8000, 8000];

/// Writes both files and loads them.
fn load_from(
    folder: &Path,
    source: &[u8],
    target: &[u8],
    words: [usize; 2],
) -> Result<Pairs, DataError> {
    let paths = ["a.en", "b.de"].map(|name| folder.join(name));
    fs::write(&paths[0], source).unwrap();
    fs::write(&paths[1], target).unwrap();
    Pairs::text(paths.each_ref().map(|path| path.as_path()), words)
}

fn load(source: &[u8], target: &[u8]) -> Result<Pairs, DataError> {
    load_from(TempDir::new().unwrap().path(), source, target, WORDS)
}

fn pairs(source: &str, target: &str) -> Pairs {
    load(source.as_bytes(), target.as_bytes()).unwrap()
}

/// 20 lines of each language.
fn corpus() -> [String; 2] {
    let line = |i: usize| [format!("Number {i}, please!\n"), format!("Bitte die Größe {i}.\n")];
    let lines: Vec<[String; 2]> = (0..20).map(line).collect();
    [0, 1].map(|side| lines.iter().map(|line| line[side].as_str()).collect())
}

#[test]
fn every_tenth_line_is_for_the_test() {
    let [source, target] = corpus();
    let pairs = pairs(&source, &target);
    assert_eq!((pairs.train.samples(), pairs.test.samples(), pairs.left_out), (18, 2, 0));
    let sentence = |vocabulary: &Vocabulary, tokens: &[i32]| vocabulary.sentence(tokens);
    assert_eq!(sentence(&pairs.source, pairs.train.sources().sentence(9)), "number 10 , please !");
    assert_eq!(sentence(&pairs.target, pairs.train.targets().sentence(9)), "bitte die größe 10 .");
    // 9 is in no training line, so it is no word that is known
    let test = pairs.test.sources().sentence(0);
    assert_eq!(sentence(&pairs.source, test), "number <unk> , please !");
    assert_eq!(test[1], UNKNOWN);
}

#[test]
fn vocabularies_are_bounded() {
    let [source, target] = corpus();
    let folder = TempDir::new().unwrap();
    let load = || load_from(folder.path(), source.as_bytes(), target.as_bytes(), [6, 5]).unwrap();
    let data = load();
    assert_eq!(data.kind(), SampleKind::Pairs { source_words: 6, target_words: 5 });
    // the four that are in every line, in the order of their characters
    assert_eq!(data.source.sentence(&[2, 3, 4, 5]), "! , number please");
    assert_eq!(data.train.targets().sentence(9), [3, 4, 1, 1, 2]);
    let again = load();
    assert_eq!((&again.source, &again.train), (&data.source, &data.train));
}

#[test]
fn sentences_of_no_words_or_too_many_are_left_out() {
    let most = "w ".repeat(SENTENCE_WORDS_MAX);
    let source = format!("a\n\n{most}\n{most} w\n{}", "b\n".repeat(7));
    let pairs = pairs(&source, &"x\r\n".repeat(11));
    assert_eq!((pairs.left_out, pairs.train.samples(), pairs.test.samples()), (2, 8, 1));
    assert_eq!(pairs.train.sources().longest(), SENTENCE_WORDS_MAX);
    let line = load("a\n".repeat(9).as_bytes(), "b\n".repeat(9).as_bytes()).unwrap_err();
    assert!(matches!(line, DataError::NoPairs { part: "test", pairs: 9, .. }), "{line}");
}

#[test]
fn a_byte_order_mark_is_no_word() {
    let [source, target] = corpus();
    let marked = pairs(&format!("\u{feff}{source}"), &target);
    assert_eq!(marked.source, pairs(&source, &target).source);
}

#[test]
fn what_is_wrong_is_named() {
    let [source, target] = corpus();
    let [source, target] = [source.as_bytes(), target.as_bytes()];
    let error = load(b"", target).unwrap_err();
    assert!(
        matches!(error, DataError::Empty { .. }) && error.to_string().contains("a.en"),
        "{error}"
    );
    let error = load(source, &target[..target.len() - 23]).unwrap_err();
    let DataError::LineMismatch { source_lines: 20, target_lines: 19, .. } = error else {
        panic!("{error}")
    };
    assert!(error.to_string().contains("b.de' ends at offset"), "{error}");
    let error = load(b"ab\nc\xff\n", target).unwrap_err();
    assert!(matches!(error, DataError::NotUtf8 { line: 2, offset: 4, .. }), "{error}");
    for (bytes, mend) in [(&b"\x1f\x8b\x08"[..], "gunzip"), (b"\xff\xfea\0", "UTF-16")] {
        let line = load(source, bytes).unwrap_err().to_string();
        assert!(line.contains(mend) && line.contains("b.de") && line.contains("offset"), "{line}");
    }
    let nowhere: Source = "text:/nowhere/a,/nowhere/b".parse().unwrap();
    let line = nowhere
        .open(SampleKind::Pairs { source_words: 8000, target_words: 8000 }, 0)
        .unwrap_err()
        .to_string();
    assert!(line.contains("/nowhere/a"), "{line}");
}

/// An error of one line that names a file, and where it is of bytes the place.
fn assert_diagnoses(error: &DataError) {
    let line = error.to_string();
    assert!(line.contains("a.en") || line.contains("b.de"), "{line}");
    assert!(!line.contains('\n') && line.contains("; "), "{line}");
    if matches!(error, DataError::NotUtf8 { .. } | DataError::LineMismatch { .. }) {
        assert!(line.contains("offset"), "{line}");
    }
}

proptest! {
    #[test]
    fn a_cut_anywhere_is_seen_unless_it_is_in_the_last_line(at: prop::sample::Index) {
        let [source, target] = corpus();
        let cut = at.index(target.len());
        let kept = &target.as_bytes()[..cut];
        let lines = String::from_utf8_lossy(kept).lines().count();
        match load(source.as_bytes(), kept) {
            Ok(_) => prop_assert_eq!(lines, 20),
            Err(error) => {
                assert_diagnoses(&error);
                match error {
                    DataError::NotUtf8 { offset, line, .. } => {
                        // within the two bytes of ö or ß
                        prop_assert_eq!((offset, line), (cut - 1, lines));
                    }
                    DataError::LineMismatch { target_lines, offset, .. } => {
                        prop_assert_eq!((target_lines, offset), (lines, cut));
                    }
                    DataError::Empty { .. } => prop_assert_eq!(cut, 0),
                    other => return Err(TestCaseError::fail(other.to_string())),
                }
            }
        }
    }

    #[test]
    fn a_changed_byte_makes_no_panic(at: prop::sample::Index, byte: u8) {
        let [source, target] = corpus();
        let mut bytes = source.into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let valid = std::str::from_utf8(&bytes).map_err(|error| error.valid_up_to());
        match (load(&bytes, target.as_bytes()), valid) {
            (Ok(data), Ok(_)) => prop_assert_eq!(data.train.samples() + data.test.samples(), 20),
            (Err(error), valid) => {
                assert_diagnoses(&error);
                match error {
                    DataError::NotUtf8 { offset, .. } => prop_assert_eq!(Err(offset), valid),
                    // a line more or less
                    DataError::LineMismatch { .. } => prop_assert!(valid.is_ok()),
                    other => return Err(TestCaseError::fail(other.to_string())),
                }
            }
            (Ok(_), Err(at)) => return Err(TestCaseError::fail(format!("no UTF-8 at {at}"))),
        }
    }

    #[test]
    fn no_bytes_make_it_panic(
        source in proptest::collection::vec(any::<u8>(), 0..200),
        target in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        if let Err(error) = load(&source, &target) {
            assert_diagnoses(&error);
        }
    }

    #[test]
    fn no_text_makes_it_panic(lines in proptest::collection::vec("[^\n\r]{0,30}", 10..20)) {
        let text = lines.join("\n");
        match load(text.as_bytes(), text.as_bytes()) {
            Err(error) => assert_diagnoses(&error),
            Ok(pairs) => {
                prop_assert_eq!(&pairs.train.sources(), &pairs.train.targets());
                for i in 0..pairs.train.samples() {
                    prop_assert!(pairs.train.sources().sentence(i).iter().all(|&t| t >= 2));
                }
            }
        }
    }
}
