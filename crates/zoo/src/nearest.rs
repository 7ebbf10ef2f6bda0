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
    let [a, b] = [a, b].map(|word| word.to_lowercase().chars().collect::<Vec<char>>());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
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
