//! The kernels that PTX declares, with their parameters. Reads no instruction.

/// A kernel of PTX.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxEntry {
    pub name: String,
    /// Of all its parameters.
    pub bytes: usize,
    /// By words of 8 bytes: whether it is a floating number; none within a structure.
    pub(crate) are_real: Vec<Option<bool>>,
    /// The first parameter that is not of 8 bytes, and its type.
    odd: Option<(usize, String)>,
}

impl PtxEntry {
    pub(crate) fn odd(&self) -> Option<(usize, &str)> {
        self.odd.as_ref().map(|(at, kind)| (*at, kind.as_str()))
    }
}

/// The kernels of a text, or why it is no PTX.
pub(super) fn entries(ptx: &str) -> Result<Vec<PtxEntry>, String> {
    let lines: Vec<&str> =
        ptx.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let text = lines.join("\n");
    for directive in [".version", ".target", ".address_size"] {
        if !text.split_whitespace().any(|word| word == directive) {
            return Err(format!("the PTX has no {directive}"));
        }
    }
    let found: Vec<PtxEntry> = text.split(".entry").skip(1).filter_map(entry).collect();
    if found.is_empty() {
        return Err("the PTX has no .entry: no kernel".to_owned());
    }
    Ok(found)
}

/// The kernel whose declaration a text begins with.
fn entry(text: &str) -> Option<PtxEntry> {
    let text = text.trim_start();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$' || c == '%';
    let name = &text[..text.find(|c| !is_part(c))?];
    // of a kernel without parameters the body comes next, or nothing is in the parentheses
    let rest = text[name.len()..].trim_start();
    let parameters = rest.strip_prefix('(').and_then(|rest| rest.split(')').next());
    let parameters = parameters.unwrap_or_default().split(',').map(str::trim);
    let mut made = PtxEntry { name: name.to_owned(), bytes: 0, are_real: Vec::new(), odd: None };
    for (at, parameter) in parameters.filter(|parameter| !parameter.is_empty()).enumerate() {
        let words: Vec<&str> = parameter.split_whitespace().collect();
        // .param .u64 name, .param .u64 .ptr .global .align 16 name, .param .align 8 .b8 name[64]
        let is_type = |word: &&&str| {
            let kind = word.trim_start_matches('.').split_at_checked(1);
            kind.is_some_and(|(kind, bits)| {
                "bfsu".contains(kind) && bits.bytes().all(|byte| byte.is_ascii_digit())
            })
        };
        let kind = words.iter().skip(1).find(is_type).copied().unwrap_or(".b0");
        let bits: usize = kind[2..].parse().unwrap_or(0);
        let array = words.last().and_then(|name| name.split_once('[')?.1.strip_suffix(']'));
        let count = array.map_or(Some(1), |count| count.parse().ok()).unwrap_or(0);
        let bytes = bits / 8 * count;
        if bytes == 0 || !bytes.is_multiple_of(8) || (array.is_none() && bytes != 8) {
            made.odd.get_or_insert((at, kind.to_owned()));
        }
        made.bytes += bytes;
        let is_real = array.is_none().then_some(kind == ".f64");
        let is_known = is_real.filter(|_| !kind.starts_with(".b"));
        made.are_real.resize(made.are_real.len() + bytes / 8, is_known);
    }
    Some(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

    #[test]
    fn kernels_have_their_parameters() {
        let text = format!(
            "// .entry no(\n{HEAD}.visible .entry one(\n\t.param .u64 .ptr .global .align 16 a,\n\t.param .f64 b\n)\n\
             {{ ret; }}\n.entry two(.param .align 8 .b8 s[24]) {{ call (r), f, (x); }}\n.entry none()\n{{ ret; }}\n\
             .entry odd(.param .u64 a, .param .f32 b) {{ ret; }}\n"
        );
        let found = entries(&text).unwrap();
        let names: Vec<(&str, usize)> =
            found.iter().map(|entry| (entry.name.as_str(), entry.bytes)).collect();
        assert_eq!(names, [("one", 16), ("two", 24), ("none", 0), ("odd", 12)]);
        assert_eq!(found[0].are_real, [Some(false), Some(true)]);
        assert_eq!(found[1].are_real, [None; 3]);
        assert_eq!([found[0].odd(), found[1].odd()], [None, None]);
        assert_eq!(found[3].odd(), Some((1, ".f32")));
    }

    #[test]
    fn what_is_no_ptx_is_refused() {
        assert_eq!(entries(HEAD).unwrap_err(), "the PTX has no .entry: no kernel");
        assert_eq!(entries("extern \"C\"").unwrap_err(), "the PTX has no .version");
    }
}
