//! The same drawing as a file that stands alone, light and dark, and in Graphviz's language.

use std::fmt::Write as _;

use super::fold::{Folded, Row, Way, fold};
use super::text::{label, names_of};
use super::{Picture, Screen};

/// Where things are, in pixels.
const WIDTH: usize = 960;
const LEFT: usize = 230;
const RIGHT: usize = 150;
const LINE: usize = 22;
const MARGIN: usize = 16;
/// Columns of an arrow's text.
const LABEL: usize = 60;

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1b1f24}.t{font-weight:600;font-size:15px}\
    .n{fill:#57606a;font-size:12px}rect.p{fill:#fff}rect.l{fill:#ddf4ff;stroke:#0969da}\
    rect.r{fill:#fff8c5;stroke:#9a6700}path{stroke:#57606a;stroke-width:1.5;fill:none}path.h{fill:#57606a}\
    @media(prefers-color-scheme:dark){text{fill:#e6edf3}.n{fill:#9198a1}rect.p{fill:#0d1117}\
    rect.l{fill:#0c2d4b;stroke:#4493f8}rect.r{fill:#3a2d06;stroke:#d29922}\
    path{stroke:#9198a1}path.h{fill:#9198a1}}";

impl Picture {
    fn folded(&self, screen: Screen) -> Folded {
        fold(&self.layers, &self.crossings, screen.lines, &|row| row.flows.len().max(2) + 1)
    }

    /// The folded drawing as SVG. It takes as many rows as fit so many lines of text.
    pub fn to_svg(&self, screen: Screen) -> String {
        let folded = self.folded(screen);
        let mut body = String::new();
        let mut y = MARGIN + LINE;
        let text = |x: usize, y: usize, class: &str, text: &str| {
            format!("<text x=\"{x}\" y=\"{y}\" class=\"{class}\">{}</text>\n", escape(text))
        };
        body += &text(MARGIN, y - 6, "t", &self.title);
        body += &text(MARGIN, y + LINE - 8, "n", &folded.whose());
        y += LINE;
        for row in &folded.rows {
            let height = row.flows.len().max(2) * LINE + 8;
            let right = WIDTH - MARGIN - RIGHT;
            let _ = writeln!(body, "{}", rect("l", MARGIN, y, LEFT, height));
            body += &text(MARGIN + 10, y + 19, "", &short(&row.name, 30));
            let of = row.is_of_servers.then(|| format!("on {}", names_of(&row.left)));
            let count: Vec<String> = row.counted().into_iter().chain(of).collect();
            let count = count.join(", ");
            body += &text(MARGIN + 10, y + 19 + LINE, "n", &count);
            if !row.right.is_empty() {
                let _ = writeln!(body, "{}", rect("r", right, y, RIGHT, height));
                body += &text(right + 10, y + 19, "", &short(&names_of(&row.right), 20));
            }
            for (at, ((what, way), by_how)) in row.flows.iter().enumerate() {
                let line = y + LINE * at + LINE;
                let (from, to) = (MARGIN + LEFT + 6, right - 6);
                let _ = writeln!(body, "<path d=\"M{from} {line}H{to}\"/>");
                if *way != Way::ToRight {
                    let _ = writeln!(body, "<path class=\"h\" d=\"M{from} {line}l8 -4v8z\"/>");
                }
                if *way != Way::ToLeft {
                    let _ = writeln!(body, "<path class=\"h\" d=\"M{to} {line}l-8 -4v8z\"/>");
                }
                let said = label(*what, by_how, row.times, (LABEL, false)).0;
                body += &text(from + 18, line - 5, "", &said);
            }
            y += height + 8;
        }
        for note in &self.notes {
            y += LINE;
            body += &text(MARGIN, y - 6, "n", note);
        }
        let height = y + MARGIN;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" style=\"max-width:100%;height:auto\" role=\"img\">\n<title>{}</title>\n<style>{STYLE}</style>\n\
             <rect class=\"p\" width=\"{WIDTH}\" height=\"{height}\"/>\n{body}</svg>\n",
            escape(&self.title)
        )
    }

    /// The folded drawing in Graphviz's language.
    pub fn to_dot(&self, screen: Screen) -> String {
        let mut out = String::from("digraph picture {\n  rankdir=LR; node [shape=box];\n");
        for (at, row) in self.folded(screen).rows.iter().enumerate() {
            let Row { name, left, right, flows, times, .. } = row;
            let count = row.counted().map(|count| format!("\\n{count}")).unwrap_or_default();
            let node = |side: &str, tasks: String| {
                let name = quoted(name);
                format!("  {side}{at} [label=\"{name}{count}\\n{tasks}\"];\n")
            };
            out += &node("l", names_of(left));
            if !right.is_empty() {
                out += &node("r", names_of(right));
            }
            for ((what, way), by_how) in flows {
                let said = quoted(&label(*what, by_how, *times, (LABEL, false)).0);
                let (from, to, direction) = match way {
                    Way::ToLeft => ("r", "l", ""),
                    Way::ToRight => ("l", "r", ""),
                    Way::Both => ("l", "r", ", dir=both"),
                };
                let _ = writeln!(out, "  {from}{at} -> {to}{at} [label=\"{said}\"{direction}];");
            }
        }
        out + "}\n"
    }
}

fn rect(class: &str, x: usize, y: usize, width: usize, height: usize) -> String {
    format!(
        "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"4\"/>"
    )
}

/// The text, cut where it is longer than so many columns.
fn short(text: &str, columns: usize) -> String {
    match text.chars().count() > columns {
        true => text.chars().take(columns - 1).chain(['…']).collect(),
        false => text.to_string(),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
