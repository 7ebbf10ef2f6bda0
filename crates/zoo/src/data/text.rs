//! Reader of two aligned text files: a sentence a line, line N of one translating line N of the other. Words
//! are what the `tokenizers` library makes of a line, lower case, punctuation apart; tokens number the
//! commonest words of the training lines. Trusts nothing that it reads.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use tokenizers::models::wordlevel::{WordLevel, WordLevelTrainer};
use tokenizers::pre_tokenizers::whitespace::Whitespace;
use tokenizers::utils::parallelism::set_parallelism;
use tokenizers::{
    AddedToken, Model, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Trainer,
};

use super::error::DataError;
use super::pairs::{PairSplit, Pairs};
use super::tokens::{NO_WORDS, UNKNOWN, Vocabulary};

/// Words of the longest sentences that are kept; a pair with a longer one is left out.
pub const SENTENCE_WORDS_MAX: usize = 50;
/// Of so many pairs the last is for the test.
const TEST_EVERY: usize = 10;

/// One file: its lines as words, each word as a number that means nothing yet.
pub(super) struct File {
    name: String,
    bytes: usize,
    /// Each word once.
    words: Vec<String>,
    pub(super) lines: Vec<Vec<u32>>,
}

impl Pairs {
    /// Reads `[source, target]`, with vocabularies of at most `words` tokens each.
    ///
    /// # Errors
    /// When a file cannot be read or is no text, or the two have no pairs.
    pub fn text(paths: [&Path; 2], words: [usize; 2]) -> Result<Pairs, DataError> {
        let [source, target] = [read_file(paths[0])?, read_file(paths[1])?];
        pairs(&source, &target, words)
    }
}

/// As [`Pairs::text`], of the bytes of both files.
pub(super) fn read(files: [&[u8]; 2], words: [usize; 2]) -> Result<Pairs, DataError> {
    pairs(&parse("source", files[0])?, &parse("target", files[1])?, words)
}

fn read_file(path: &Path) -> Result<File, DataError> {
    let file = path.display().to_string();
    match std::fs::read(path) {
        Ok(bytes) => parse(&file, &bytes),
        Err(source) => Err(DataError::Unreadable { file, source }),
    }
}

/// The text in the bytes of a file, without what some editors put before a text to say that it is one. `file` is how errors
/// name it.
pub(super) fn utf8<'a>(file: &str, bytes: &'a [u8]) -> Result<&'a str, DataError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let offset = error.valid_up_to();
        let line = 1 + bytes[..offset].iter().filter(|&&byte| byte == b'\n').count();
        let mend = match bytes {
            [0x1f, 0x8b, ..] => "it is compressed: unpack it with gunzip or tar xzf",
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "it is UTF-16: convert it with iconv -f UTF-16",
            _ => "copy or download it again, or convert it with iconv",
        };
        DataError::NotUtf8 { file: file.to_owned(), line, offset, mend }
    })?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

/// Reads the bytes of a file. `file` is how errors name it.
pub(super) fn parse(file: &str, bytes: &[u8]) -> Result<File, DataError> {
    let text = utf8(file, bytes)?;
    let mut numbers: HashMap<String, u32> = HashMap::new();
    let mut words = Vec::new();
    let mut lines = Vec::new();
    for line in text.lines() {
        let numbered = words_of(file, line)?.into_iter().map(|word| {
            *numbers.entry(word).or_insert_with_key(|word| {
                words.push(word.clone());
                // fits: a file in memory has fewer words than that
                (words.len() - 1) as u32
            })
        });
        lines.push(numbered.collect());
    }
    if lines.is_empty() {
        return Err(DataError::Empty { file: file.to_owned() });
    }
    Ok(File { name: file.to_owned(), bytes: bytes.len(), words, lines })
}

/// As [`split`], of a line of this file.
pub(super) fn words_of(file: &str, line: &str) -> Result<Vec<String>, DataError> {
    split(line).map_err(|error| no_vocabulary(file, error.as_ref()))
}

/// The words of a line: runs of letters and digits, and runs of what is neither and no space.
fn split(line: &str) -> tokenizers::Result<Vec<String>> {
    let mut line = PreTokenizedString::from(line);
    line.normalize(|line| {
        line.nfc().lowercase();
        Ok(())
    })?;
    Whitespace.pre_tokenize(&mut line)?;
    let words = line.get_splits(OffsetReferential::Normalized, OffsetType::None);
    Ok(words.into_iter().map(|(word, ..)| word.to_owned()).collect())
}

fn pairs(source: &File, target: &File, words: [usize; 2]) -> Result<Pairs, DataError> {
    let lines = source.lines.len();
    if lines != target.lines.len() {
        let shorter = if lines < target.lines.len() { source } else { target };
        return Err(DataError::LineMismatch {
            source_file: source.name.clone(),
            source_lines: lines,
            target_file: target.name.clone(),
            target_lines: target.lines.len(),
            shorter: shorter.name.clone(),
            offset: shorter.bytes,
        });
    }
    let fits = |line: &Vec<u32>| (1..=SENTENCE_WORDS_MAX).contains(&line.len());
    let kept = |line: &usize| fits(&source.lines[*line]) && fits(&target.lines[*line]);
    let (test, train): (Vec<usize>, Vec<usize>) =
        (0..lines).filter(kept).partition(|line| line % TEST_EVERY == TEST_EVERY - 1);
    for (part, of) in [("training", &train), ("test", &test)] {
        if of.is_empty() {
            return Err(DataError::NoPairs {
                source_file: source.name.clone(),
                target_file: target.name.clone(),
                part,
                pairs: lines,
                words_max: SENTENCE_WORDS_MAX,
            });
        }
    }
    let left_out = lines - train.len() - test.len();
    let (source_vocabulary, source_tokens) = vocabulary(source, &train, words[0])?;
    let (target_vocabulary, target_tokens) = vocabulary(target, &train, words[1])?;
    let split = |lines: &[usize]| {
        let mut split = PairSplit::default();
        let tokens = |words: &[u32], tokens: &[i32]| -> Vec<i32> {
            words.iter().map(|&word| tokens[word as usize]).collect()
        };
        for &line in lines {
            split.push(
                &tokens(&source.lines[line], &source_tokens),
                &tokens(&target.lines[line], &target_tokens),
            );
        }
        split
    };
    let (train, test) = (Arc::new(split(&train)), Arc::new(split(&test)));
    let name = "text".to_owned();
    let (source, target) = (source_vocabulary, target_vocabulary);
    Ok(Pairs { name, source, target, train, test, left_out })
}

/// The `tokens_max` commonest words of the lines `train`, and each word's token.
pub(super) fn vocabulary(
    file: &File,
    train: &[usize],
    tokens_max: usize,
) -> Result<(Vocabulary, Vec<i32>), DataError> {
    let failed = |error: tokenizers::Error| no_vocabulary(&file.name, error.as_ref());
    // the library would start threads of its own, for the whole process
    set_parallelism(false);
    let mut trainer = WordLevelTrainer::builder()
        .vocab_size(tokens_max.max(NO_WORDS.len()))
        .show_progress(false)
        // no line splits into a word that is written like one of these
        .special_tokens(NO_WORDS.map(|word| AddedToken::from(word, true)).to_vec())
        .build()
        .map_err(|error| failed(error.into()))?;
    let words = train.iter().flat_map(|&line| &file.lines[line]);
    let words = words.map(|&word| file.words[word as usize].as_str());
    trainer.feed(words, |word| Ok(vec![word.to_owned()])).map_err(failed)?;
    // sorts by count and then by the word, so that equal files give equal tokens
    let mut model = WordLevel::default();
    trainer.train(&mut model).map_err(failed)?;

    // fits: not more than the vocabulary's size
    let tokens = NO_WORDS.len() as u32..model.get_vocab_size() as u32;
    let vocabulary = Vocabulary::new(tokens.filter_map(|token| model.id_to_token(token)));
    let token = |word: &String| model.token_to_id(word).map_or(UNKNOWN, |token| token as i32);
    Ok((vocabulary, file.words.iter().map(token).collect()))
}

fn no_vocabulary(file: &str, error: &dyn std::error::Error) -> DataError {
    DataError::NoVocabulary { file: file.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_lower_case_and_punctuation_stands_apart() {
        assert_eq!(
            split("  Der Hund,\tder... SCHLÄFT!").unwrap(),
            ["der", "hund", ",", "der", "...", "schläft", "!"]
        );
        // written with a combining mark, and like the tokens that are no words
        assert_eq!(split("a\u{308}h <s><UNK>").unwrap(), ["äh", "<", "s", "><", "unk", ">"]);
        assert_eq!(split(" \u{a0}").unwrap(), [""; 0]);
    }

    #[test]
    fn tokens_number_words_by_count_and_then_by_word() {
        let lines = "b a c\nc b\nzebra c\n".repeat(4);
        let file = parse("f", lines.as_bytes()).unwrap();
        let (vocabulary, tokens) = vocabulary(&file, &[0, 1, 3], 5).unwrap();
        // of lines 0, 1 and 3: b and c three times, a twice; zebra is not in them
        assert_eq!(file.words, ["b", "a", "c", "zebra"]);
        assert_eq!(tokens, [2, 4, 3, UNKNOWN]);
        assert_eq!(vocabulary.sentence(&[2, 3, 4, 1, 0]), "b c a <unk>");
        assert_eq!(vocabulary.words(), 5);
        // no threads of the library's
        assert!(!tokenizers::utils::parallelism::has_parallelism_been_used());
    }
}
