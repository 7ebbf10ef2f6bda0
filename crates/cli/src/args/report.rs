//! The arguments of `tensorwire report`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::tolerance;

pub(super) const EXAMPLES: &str = "\
Examples:
  tensorwire report results.jsonl                        a page of plots and tables: report.html
  tensorwire report results.jsonl --plots plots          each plot alone: plots/NAME.svg, .pdf and .csv
  tensorwire report results.jsonl --format latex         the data of each plot as a table for a paper: report.tex
  tensorwire report before.jsonl after.jsonl --compare   what became slower or faster; --output p.html: and a page
  tensorwire report first.jsonl second.jsonl             training runs (train --metrics): a curve a file, or one of several seeds

Exit status: 0 done, whatever a comparison says (`tensorwire bench check` judges); 2 something given cannot be right.";

#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// Lines of JSON of measurements or training runs
    ///
    /// As `tensorwire bench … --json FILE`, the scripts in bench/peers and `tensorwire train --metrics FILE` write them; each
    /// file of a training run is a curve, or several that differ in their seed are one.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) lines: Vec<PathBuf>,
    /// Where it goes: one file that needs no other
    ///
    /// [default: report.html, .tex, .md or .csv; claims.md, .jsonl; with --plots or --compare and no --format: nowhere]
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// html, latex, markdown, csv, claims, claims-json
    ///
    /// A page with all plots, or what they show as tables. [default: as the name of --output ends: .tex, .md, .csv; else html]
    #[arg(long, value_enum)]
    format: Option<ReportFormat>,
    /// Write each plot to this folder
    ///
    /// As NAME.svg and NAME.csv, and as NAME.pdf where rsvg-convert is installed. With --output a page as well.
    #[arg(long, value_name = "DIR")]
    pub(crate) plots: Option<PathBuf>,
    /// Hold the second of two files against the first
    ///
    /// Row by row, in the terminal. With --output on a page of the second, too.
    #[arg(long)]
    pub(crate) compare: bool,
    /// With --compare: what counts as the same, in percent
    ///
    /// What a row may change by.
    #[arg(long, value_name = "PERCENT", default_value = "10", allow_negative_numbers = true, value_parser = tolerance, requires = "compare")]
    pub(crate) tolerance: f64,
    /// With --compare: print one object of JSON
    ///
    /// With --output the page is made all the same.
    #[arg(long, requires = "compare")]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    /// The page
    Html,
    /// A table a plot, with the packages booktabs, adjustbox and longtable
    Latex,
    /// A table a plot, as GitHub reads it
    Markdown,
    /// All points in one table, in seconds and bytes
    Csv,
    /// What is claimed and what was found, in Markdown
    Claims,
    /// The same, a line of JSON a claim
    ClaimsJson,
}

impl ReportFormat {
    /// What errors call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            ReportFormat::Html => "a page",
            ReportFormat::Latex | ReportFormat::Markdown | ReportFormat::Csv => "tables",
            ReportFormat::Claims | ReportFormat::ClaimsJson => "claims",
        }
    }
}

impl ReportArgs {
    /// What it is: as was said, or else as the name of the file ends that it goes to.
    pub(crate) fn format(&self) -> ReportFormat {
        let end = self.output.as_deref().and_then(|output| output.extension()?.to_str());
        self.format.unwrap_or(match end {
            _ if self.compare => ReportFormat::Html,
            Some("tex") => ReportFormat::Latex,
            Some("md") => ReportFormat::Markdown,
            Some("csv") => ReportFormat::Csv,
            _ => ReportFormat::Html,
        })
    }

    /// Where it goes. None where plots alone are asked for, or a comparison.
    pub(crate) fn output(&self) -> Option<PathBuf> {
        let is_asked_for = self.output.is_some() || self.format.is_some();
        let is_all = self.plots.is_none() && !self.compare;
        if !is_asked_for && !is_all {
            return None;
        }
        let usual = match self.format() {
            ReportFormat::Html => "report.html",
            ReportFormat::Latex => "report.tex",
            ReportFormat::Markdown => "report.md",
            ReportFormat::Csv => "report.csv",
            ReportFormat::Claims => "claims.md",
            ReportFormat::ClaimsJson => "claims.jsonl",
        };
        Some(self.output.clone().unwrap_or_else(|| PathBuf::from(usual)))
    }
}
