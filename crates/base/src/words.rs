//! Which name may have been meant by one that is none.

/// Letters that tell what is only begun.
const BEGUN: usize = 3;

/// Returns the most similar of the known names, if one is similar: a third of the letters at most are others, or it begins with
/// what is given.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase();
    let known: Vec<&str> = known.into_iter().collect();
    // more would be another word
    let is_near = |(edits, known): &(usize, &str)| 3 * edits <= known.len().max(given.len());
    // insertions, deletions, substitutions and transpositions of neighbours
    let edits = |known: &'a str| (strsim::osa_distance(&given, &known.to_lowercase()), known);
    let near = known.iter().copied().map(edits).filter(is_near).min().map(|(_, known)| known);
    let is_begun = |known: &&str| known.to_lowercase().starts_with(&given);
    let begun = known.into_iter().filter(is_begun).min_by_key(|known| known.len());
    near.or(begun.filter(|_| given.len() >= BEGUN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nearly_spelled_or_begun_is_meant() {
        let known = ["mlp", "bert-mini", "resnet50", "resnet101", "lr"];
        for (given, wanted) in [
            ("mpl", Some("mlp")),
            ("MLP", Some("mlp")),
            ("lrr", Some("lr")),
            ("resent50", Some("resnet50")),
            ("bert", Some("bert-mini")),
            ("resnet", Some("resnet50")),
            ("be", None),
            ("", None),
            ("transformer", None),
        ] {
            assert_eq!(nearest(given, known), wanted, "{given}");
        }
    }
}
