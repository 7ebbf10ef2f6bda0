//! Slurm's lists of nodes: `node[1-3,7],login`. Only the first of them matters here.

/// The first node of a list; none where it is no list.
pub(super) fn first_node(list: &str) -> Option<String> {
    let mut name = String::new();
    let mut rest = list;
    loop {
        let at = rest.find(['[', ',']).unwrap_or(rest.len());
        name.push_str(&rest[..at]);
        let Some(range) = rest[at..].strip_prefix('[') else {
            break;
        };
        let (range, behind) = range.split_once(']')?;
        // a range begins with its first number, leading zeros and all
        let first = range.split(['-', ',']).next().filter(|first| !first.is_empty())?;
        name.push_str(first);
        rest = behind;
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-:".contains(c);
    (!name.is_empty() && name.chars().all(plain)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_list() {
        for (list, first) in [
            ("node7", "node7"),
            ("node[1-3,7]", "node1"),
            ("node[007,009-012]", "node007"),
            ("rack[0-1]n[2-3]", "rack0n2"),
            ("gpu[4-5]-ib.site", "gpu4-ib.site"),
            ("login,node[1-3]", "login"),
            ("a-1[8],b", "a-18"),
        ] {
            assert_eq!(first_node(list).as_deref(), Some(first), "{list}");
        }
        for list in ["", ",", "node[", "node[]", "node[1-3", "no de", "node[-3]", "$(id)"] {
            assert_eq!(first_node(list), None, "{list:?}");
        }
    }
}
