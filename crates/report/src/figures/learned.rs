//! What a job learned from, in words, and in the place of which data of a paper it stands.

use crate::line::Line;

/// The words of a title for a line that says what was learned from; `papers` is what the paper's job learned from.
pub(super) fn learned_from(line: &Line, papers: Option<&str>) -> Option<String> {
    let name = name(line)?;
    Some(match papers.filter(|papers| *papers != name) {
        Some(papers) => format!("{name} in the place of {papers}"),
        None => name,
    })
}

/// Of images, how large they are, where the line says it: `28×28×1`.
pub(super) fn image_size(line: &Line) -> Option<String> {
    let data = line.optional_text("data")?;
    match kind(data) {
        ("digits" | "synthetic", sized) if sized.contains(',') => {
            Some(sized.split_once(',')?.1.replace('x', "×"))
        }
        ("digits", _) => Some("8×8×1".to_string()),
        ("mnist", _) => Some("28×28×1".to_string()),
        ("cifar10", _) => Some("32×32×3".to_string()),
        _ => None,
    }
}

fn name(line: &Line) -> Option<String> {
    let name = match kind(line.optional_text("data")?) {
        ("digits", sized) if sized.contains(',') => "enlarged digits",
        ("digits", _) => "digits (8×8)",
        ("mnist", _) => "MNIST",
        ("cifar10", _) => "CIFAR-10",
        ("images", folder) if folder.contains("imagenet") => "ImageNet",
        ("images", _) => "photographs",
        ("text", files) if files.contains("news-commentary") => "WMT News Commentary",
        ("kjv", _) if line.optional_text("model") == Some("seq2seq") => {
            "clauses of Genesis and Exodus, and their reverses"
        }
        ("kjv", _) if line.optional_text("model") == Some("sentence-embedding") => {
            "verses of Genesis and Exodus, by chapter"
        }
        ("grammar", _) => "a made-up language",
        ("reverse", _) => "made-up sequences",
        ("synthetic", made) if made.contains(',') => "made-up images",
        ("synthetic", _) if line.optional_text("model") == Some("sentence-embedding") => {
            "made-up sentences"
        }
        ("synthetic", _) => "made-up data",
        (other, _) => other,
    };
    Some(name.to_string())
}

/// What stands before the ':' of what `--data` takes, and behind it.
fn kind(data: &str) -> (&str, &str) {
    data.split_once(':').unwrap_or((data, ""))
}
