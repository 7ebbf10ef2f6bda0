//! Tables for papers in LaTeX.

use super::{Cell, Table};
use crate::plots::Plot;

pub(super) const PREAMBLE: &str = "% Needs \\usepackage{booktabs,adjustbox,longtable}, and \\usepackage[utf8]{inputenc} before 2018. A longtable stands where there is one column.\n\n";

/// Rows of a float, at most: more are no page.
const ROWS_MAX: usize = 40;

/// A float with a caption and a label, no wider than a line: a wide table is made smaller. One of more rows than a page has goes
/// over several, as wide as it is.
pub(super) fn of_plot(plot: &Plot, caption: &str, table: &Table) -> String {
    let columns = "r".repeat(table.head.len().saturating_sub(1));
    let row = |cells: Vec<String>| format!("    {} \\\\\n", cells.join(" & "));
    let head = row(table.head.iter().map(|text| escaped(text)).collect());
    let rows: String =
        table.rows.iter().map(|cells| row(cells.iter().map(cell).collect())).collect();
    let (caption, name) = (escaped(caption), &plot.name);
    if table.rows.len() > ROWS_MAX {
        let rule = format!("    \\toprule\n{head}    \\midrule\n");
        return format!(
            "{{\\footnotesize\n\\begin{{longtable}}{{l{columns}}}\n    \\caption{{{caption}}}\\label{{tab:{name}}}\\\\\n{rule}    \\endfirsthead\n{rule}    \\endhead\n    \
             \\bottomrule\n    \\endfoot\n{rows}\\end{{longtable}}\n}}\n"
        );
    }
    format!(
        "\\begin{{table}}[t]\n  \\centering\n  \\caption{{{caption}}}\n  \\label{{tab:{name}}}\n  \\begin{{adjustbox}}{{max width=\\linewidth}}\n  \
         \\begin{{tabular}}{{l{columns}}}\n    \\toprule\n{head}    \\midrule\n{rows}    \\bottomrule\n  \\end{{tabular}}\n  \\end{{adjustbox}}\n\\end{{table}}\n"
    )
}

fn cell(cell: &Cell) -> String {
    let text = escaped(&cell.text);
    match &cell.spread {
        Some([low, high]) => {
            format!("{text} {{\\footnotesize [{}, {}]}}", escaped(low), escaped(high))
        }
        None => text,
    }
}

/// What LaTeX prints as this text, on one line. Letters of any language stay as they are.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => escaped.extend(['\\', letter]),
            '\\' => escaped.push_str("\\textbackslash{}"),
            '~' => escaped.push_str("\\textasciitilde{}"),
            '^' => escaped.push_str("\\textasciicircum{}"),
            '<' => escaped.push_str("\\textless{}"),
            '>' => escaped.push_str("\\textgreater{}"),
            '|' => escaped.push_str("\\textbar{}"),
            '"' => escaped.push_str("\\textquotedbl{}"),
            '×' => escaped.push_str("$\\times$"),
            'µ' | 'μ' => escaped.push_str("$\\mu$"),
            '–' => escaped.push_str("--"),
            '…' => escaped.push_str("\\ldots{}"),
            '≥' => escaped.push_str("$\\geq$"),
            '≤' => escaped.push_str("$\\leq$"),
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
    fn what_latex_reads_as_a_command_is_printed_instead() {
        assert_eq!(escaped("a_b & 5 % of $x#1"), r"a\_b \& 5 \% of \$x\#1");
        assert_eq!(
            escaped(r"\input{~^}"),
            r"\textbackslash{}input\{\textasciitilde{}\textasciicircum{}\}"
        );
        assert_eq!(escaped("1.2× 3 µs\n%"), r"1.2$\times$ 3 $\mu$s \%");
    }

    #[test]
    fn rows_have_as_many_cells_as_the_head() {
        let plot = Plot { name: "f-1".to_string(), title: String::new(), series: Vec::new() };
        let spread = Some(["1 µs", "3 µs"].map(str::to_string));
        let cells = vec![
            Cell { text: "4 KiB".to_string(), ..Cell::default() },
            Cell { text: "2 µs".to_string(), spread, is_met: None },
        ];
        let head = vec!["tensor".to_string(), "{a_b}".to_string()];
        let table = Table { head, rows: vec![cells] };
        assert_eq!(
            of_plot(&plot, "What & where.", &table),
            r"\begin{table}[t]
  \centering
  \caption{What \& where.}
  \label{tab:f-1}
  \begin{adjustbox}{max width=\linewidth}
  \begin{tabular}{lr}
    \toprule
    tensor & \{a\_b\} \\
    \midrule
    4 KiB & 2 $\mu$s {\footnotesize [1 $\mu$s, 3 $\mu$s]} \\
    \bottomrule
  \end{tabular}
  \end{adjustbox}
\end{table}
"
        );
        let rows = table.rows[0].clone();
        let long = Table { rows: vec![rows; ROWS_MAX + 1], ..table };
        let long = of_plot(&plot, "What.", &long);
        assert!(long.starts_with("{\\footnotesize\n\\begin{longtable}{lr}\n    \\caption{What.}\\label{tab:f-1}\\\\\n"), "{long}");
        assert_eq!(long.matches(r"4 KiB &").count(), ROWS_MAX + 1);
        assert_eq!(long.matches(r"tensor & \{a\_b\} \\").count(), 2, "above each page");
    }
}
