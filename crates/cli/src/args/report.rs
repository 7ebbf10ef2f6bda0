//! The arguments of `tensorwire report`.

use std::path::PathBuf;

use clap::Args;

#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// Lines of JSON, as `tensorwire bench … --json FILE`, the scripts in bench/peers and `tensorwire train --metrics FILE`
    /// write them; each file of a training run is a curve
    #[arg(required = true, value_name = "FILE")]
    pub(crate) lines: Vec<PathBuf>,
    /// Where the page goes: one file that needs no other
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    pub(crate) output: PathBuf,
}
