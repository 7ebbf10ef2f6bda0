//! Which line is which, in rows under a plot.

use maud::{Markup, html};

use super::svg::WIDTH;
use super::{Look, Looks, PAGE, TEXT};
use crate::figure::Role;
use crate::plots::Plot;

const ROW: f64 = 17.0;
/// From a sample of the line to its name.
const SAMPLE: f64 = 40.0;
/// Letters have no width before they are drawn; wider ones than this are rare.
const LETTER: f64 = 6.3;
/// Letters of a name: more do not fit the width.
const NAME_MAX: usize = 50;

pub(super) struct Legend {
    entries: Vec<Entry>,
    pub(super) height: f64,
}

struct Entry {
    name: String,
    look: Look,
    x: f64,
    y: f64,
}

impl Legend {
    pub(super) fn of(plot: &Plot, looks: &Looks) -> Legend {
        let (mut entries, mut x, mut y) = (Vec::new(), 2.0, ROW / 2.0);
        for series in &plot.series {
            let name = short(&series.name);
            // fits: names are short
            let width = SAMPLE + name.chars().count() as f64 * LETTER + 12.0;
            if x > 2.0 && x + width > WIDTH {
                (x, y) = (2.0, y + ROW);
            }
            entries.push(Entry { name, look: looks.get(series.role, &series.name), x, y });
            x += width;
        }
        Legend { entries, height: y + ROW / 2.0 }
    }

    /// Below `top`.
    pub(super) fn draw(&self, top: f64) -> Markup {
        html! {
            g.legend {
                @for Entry { name, look, x, y } in &self.entries {
                    @let y = top + y;
                    (sample(*look, *x, y))
                    text.ink x=(format!("{:.1}", x + SAMPLE)) y=(format!("{:.1}", y + 4.0)) fill=(TEXT) stroke="none" { (name) }
                }
            }
        }
    }
}

fn sample(look: Look, x: f64, y: f64) -> Markup {
    let (width, dashes) = look.stroke();
    let inside = if look.role == Role::Limit { Some(PAGE) } else { None };
    html! {
        g class=(look.class()) fill=(look.colour()) stroke=(look.colour()) {
            path d=(format!("M{x:.1} {y:.1}h32")) fill="none" stroke-width=(width) stroke-dasharray=[dashes] {}
            path class=(mark_class(look)) d=(look.marker(x + 16.0, y)) fill=[inside] stroke=(mark_stroke(look)) stroke-width="0.8" {}
        }
    }
}

/// `mark`, or `hollow` for what is a limit.
pub(super) fn mark_class(look: Look) -> &'static str {
    if look.role == Role::Limit { "hollow" } else { "mark" }
}

/// Around a marker: the page, so that it stands out from its line; around a hollow one its colour.
pub(super) fn mark_stroke(look: Look) -> &'static str {
    if look.role == Role::Limit { look.colour() } else { PAGE }
}

/// A name that fits, without what no file of XML may have; of a long one the end, which tells files apart.
pub(super) fn short(name: &str) -> String {
    let letters: Vec<char> = readable(name).chars().collect();
    match letters.len().checked_sub(NAME_MAX) {
        None | Some(0) => letters.into_iter().collect(),
        Some(over) => std::iter::once('…').chain(letters.into_iter().skip(over + 1)).collect(),
    }
}

/// The text without what no file of XML may have.
pub(super) fn readable(text: &str) -> String {
    let is_none = |letter: char| letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}');
    text.chars().map(|letter| if is_none(letter) { ' ' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_name_the_end_is_there() {
        assert_eq!(short("a\u{0}b"), "a b");
        let long = format!("{}/run.jsonl", "x".repeat(80));
        let short = short(&long);
        assert_eq!(short.chars().count(), NAME_MAX);
        assert!(short.starts_with('…') && short.ends_with("/run.jsonl"), "{short}");
    }
}
