//! Which name may have been meant by one that is none.

/// The most similar of the known names, if one is similar.
pub(crate) fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // a third of the letters at most: more would be another word
    let near = |(edits, known): &(usize, &str)| 3 * edits <= known.len();
    let distances = known.map(|known| (edits(given, known), known));
    distances.filter(near).min().map(|(_, known)| known)
}

/// The edit distance of two words: insertions, deletions, substitutions and transpositions of neighbours (Damerau and
/// Levenshtein, optimal string alignment).
fn edits(a: &str, b: &str) -> usize {
    strsim::osa_distance(&a.to_lowercase(), &b.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        for (a, b, wanted) in
            [("", "", 0), ("abc", "", 3), ("abc", "acb", 1), ("ca", "abc", 3), ("a-b", "ab", 1)]
        {
            assert_eq!((edits(a, b), edits(b, a)), (wanted, wanted), "{a} {b}");
        }
    }
}
