//! Tables in Markdown, as GitHub and many others read it.

use super::{Cell, Table};
use crate::plots::Plot;

/// The caption, and the table under it.
pub(super) fn of_plot(plot: &Plot, caption: &str, table: &Table) -> String {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let head = row(table.head.iter().map(|text| escaped(text)).collect());
    let marks = ["---:"].repeat(table.head.len().saturating_sub(1)).join("|");
    let rows: String =
        table.rows.iter().map(|cells| row(cells.iter().map(cell).collect())).collect();
    format!("**{}.** {}\n\n{head}|---|{marks}|\n{rows}", escaped(&plot.name), escaped(caption))
}

fn cell(cell: &Cell) -> String {
    let text = escaped(&cell.text);
    match &cell.spread {
        Some([low, high]) => format!("{text} \\[{}, {}\\]", escaped(low), escaped(high)),
        None => text,
    }
}

/// What Markdown shows as this text, on one line.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '~' | '$' => escaped.extend(['\\', letter]),
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            letter if letter.is_control() => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_stays_in_its_cell() {
        assert_eq!(escaped("a|b\n<i>*_`&"), r"a\|b &lt;i&gt;\*\_\`&amp;");
    }
}
