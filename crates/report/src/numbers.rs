//! Numbers as tables write them.

/// `1.7×`, `0.24×`, `61×`.
pub(crate) fn times(ratio: f64) -> String {
    let digits = match ratio.abs() {
        r if r > 0.0 && r < 0.1 => format!("{ratio:.4}"),
        // more than 1, if not by much
        r if r > 1.0 && r < 1.005 => format!("{ratio:.3}"),
        r if r < 10.0 => format!("{ratio:.2}"),
        r if r < 100.0 => format!("{ratio:.1}"),
        _ => format!("{ratio:.0}"),
    };
    format!("{}×", without_zeros(&digits))
}

pub(crate) fn plain(figure: f64) -> String {
    without_zeros(&format!("{figure:.4}")).to_string()
}

/// `0.170` to `0.17`, `2.0` to `2`.
pub(crate) fn without_zeros(digits: &str) -> &str {
    match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.'),
        false => digits,
    }
}

pub(crate) fn percent(share: f64) -> String {
    without_zeros(&format!("{:.1}", share * 100.0)).to_string()
}
