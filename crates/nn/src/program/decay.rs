//! Which parameters decay: those of two dimensions or more, but for what the user names.

use super::Variable;
use crate::Optimizer;

/// An optimizer for a parameter: without decay if it has fewer than two dimensions, or if a pattern of `no_decay` names it.
pub fn rule_of(optimizer: Optimizer, parameter: &Variable, no_decay: &[String]) -> Optimizer {
    match no_decay.iter().any(|pattern| is_named(pattern, &parameter.name)) {
        true => optimizer.decaying(0.0),
        false => optimizer.of(&parameter.spec),
    }
}

/// True if `pattern` is `name`, where each `*` in it stands for any characters, or for none.
pub fn is_named(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((first, rest)) => name.strip_prefix(first).is_some_and(|left| {
            let mut ends = left.char_indices().map(|(at, _)| &left[at..]).chain([""]);
            ends.any(|end| is_named(rest, end))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, names, others) in [
            ("wte", &["wte"][..], &["wte/x", "a/wte"][..]),
            ("*norm*", &["norm", "h0/norm1/scale"], &["h0/scale"]),
            ("h*/weight", &["h0/weight", "h/weight"], &["h0/weights", "x/h0/weight"]),
            ("*", &["", "a"], &[]),
            ("ä*ö", &["äxö", "äö"], &["äx"]),
        ] {
            assert!(names.iter().all(|name| is_named(pattern, name)), "{pattern}");
            assert!(!others.iter().any(|name| is_named(pattern, name)), "{pattern}");
        }
    }
}
