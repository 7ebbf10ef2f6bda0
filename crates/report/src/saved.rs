//! What a plot leaves the page as: its drawing, and the data behind it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::caption::{Shown, caption};
use crate::plot::{Looks, draw};
use crate::section::{Evaluation, Section};
use crate::table::csv_of_plot;

/// A plot to be saved, each as a file of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlotFiles {
    /// Of the files, without an ending; of lower-case letters, digits and dashes.
    pub name: String,
    /// An image that needs no style sheet, no font and no page.
    pub svg: String,
    /// A row a point: median, percentiles, repetitions, units, and where it was measured.
    pub csv: String,
    /// What a paper would print under it.
    pub caption: String,
}

impl PlotFiles {
    /// Of all plots, in the order of the page.
    pub(crate) fn of(evaluation: &Evaluation) -> Vec<PlotFiles> {
        let sections = evaluation.sections.iter().chain(&evaluation.curves);
        sections.flat_map(PlotFiles::of_section).collect()
    }

    fn of_section(section: &Section) -> Vec<PlotFiles> {
        let Section { figure, plots, .. } = section;
        let looks = Looks::of(plots);
        let files = plots.iter().map(|plot| {
            let caption = caption(section, plot, Shown::Drawing);
            PlotFiles {
                name: plot.name.clone(),
                svg: draw(figure, plot, &looks, &caption).into_string(),
                csv: csv_of_plot(figure, plot),
                caption,
            }
        });
        files.collect()
    }

    /// The image as an address.
    pub(crate) fn svg_address(&self) -> String {
        format!("data:image/svg+xml;base64,{}", STANDARD.encode(&self.svg))
    }

    pub(crate) fn csv_address(&self) -> String {
        format!("data:text/csv;charset=utf-8;base64,{}", STANDARD.encode(&self.csv))
    }
}
