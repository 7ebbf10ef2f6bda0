//! The command line of `tensorwire bench evaluation`.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use tensorwire_bench::{DataFolder, FIGURES, Figure, FigureScope, no_links};
use tensorwire_launch::{VerbsOptions, verbs_usable};
use tensorwire_train::{ConfigError, DeviceChoice, Exchange, TrainConfig};

use super::super::Failure;
use super::super::job::interrupt;
use super::ExchangeArg;

pub(super) const EXAMPLES: &str = "\
Examples:
  tensorwire bench evaluation --quick --json results.jsonl --report page.html
      everything, in less than 30 minutes on 2 cores, and a page of it
  tensorwire bench evaluation --only transfer,modes
  tensorwire bench evaluation --data DIR --json results.jsonl
      on MNIST, CIFAR-10 and WMT, where `scripts/data.sh DIR` put them
  tensorwire bench evaluation --json results.jsonl --resume
      takes a day or more: the same command again goes on where it was stopped
  tensorwire bench evaluation --list
      which figures there are, and of which paper; with --json as JSON

A case that fails is said, and the rest goes on; what a job refuses on this
machine is left out, and that is said, too. What cannot be measured here, as
without a GPU or RDMA, is a line of its own, with what would measure it. Links of a given
rate are between network namespaces, which root may make. With --quick
each figure has its minutes; those that it leaves go to cases of others that had
too few, and when all are over nothing is begun any more.

Exit status: 0 all cases done or left out; 1 a case failed; 2 something given
cannot be right.";

/// What stands for `--json` without a file.
const NO_FILE: &str = "-";

#[derive(Args, Debug)]
pub(crate) struct EvaluationArgs {
    /// These figures alone
    #[arg(long, value_name = "FIGURE", value_delimiter = ',',
          value_parser = PossibleValuesParser::new(FIGURES.iter().map(|figure| figure.name)))]
    only: Vec<String>,
    /// Say which figures there are, and measure nothing
    #[arg(long)]
    pub(crate) list: bool,
    /// Fewer cases, repetitions and steps
    #[arg(long)]
    quick: bool,
    /// Folder of the papers' data
    ///
    /// Where `scripts/data.sh DIR` put MNIST, CIFAR-10 and WMT, and where `imagenet` is ImageNet, a folder a class in `train`
    /// and `val`. [default: what ships stands in their place, and lines say so]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The library of CUDA's driver
    ///
    /// [default: libcuda.so.1, where the dynamic linker finds it]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    cuda_driver: Option<PathBuf>,
    /// Append the lines of JSON of each benchmark to FILE
    ///
    /// With --list, which takes no FILE: one object of JSON a figure, on standard output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = NO_FILE)]
    pub(crate) json: Option<PathBuf>,
    /// Leave out the cases that the file of --json has
    ///
    /// Goes on where the same command was stopped. The lines of a case are written once all of it is done.
    #[arg(long, requires = "json", conflicts_with = "list")]
    pub(crate) resume: bool,
    /// Make a page of that file's lines at the end
    ///
    /// As `tensorwire report` does.
    #[arg(long, value_name = "FILE", requires = "json")]
    pub(crate) report: Option<PathBuf>,
}

impl EvaluationArgs {
    /// True if what is printed is to be JSON.
    ///
    /// # Errors
    /// When there is a file where none is used, or none where lines are to go to one.
    pub(crate) fn prints_json(&self) -> Result<bool, Failure> {
        let has_no_file = self.json.as_deref().map(|file| file == Path::new(NO_FILE));
        match (self.list, has_no_file) {
            (true, Some(false)) => Err(Failure::user(
                "--list measures nothing that would go to a file; --list --json prints JSON",
            )),
            (false, Some(true)) => Err(Failure::user(
                "--json needs a file to which lines are appended: --json results.jsonl",
            )),
            (is_list, given) => Ok(is_list && given.is_some()),
        }
    }

    pub(crate) fn figures(&self) -> Vec<&'static Figure> {
        let wanted = |figure: &&Figure| {
            self.only.is_empty() || self.only.iter().any(|name| name == figure.name)
        };
        FIGURES.iter().filter(wanted).collect()
    }

    /// # Errors
    /// When there are no data where they are said to be, and when the user wants no more.
    pub(crate) fn scope(&self) -> Result<FigureScope, Failure> {
        let exchanges = ExchangeArg::value_variants().iter().copied().map(Exchange::from);
        let data = self.data.as_deref().map(DataFolder::open).transpose().map_err(Failure::user)?;
        let cuda_driver = self.cuda_driver.clone();
        let config = TrainConfig { cuda_driver, ..TrainConfig::default() };
        let gpu = DeviceChoice::Cuda { ordinal: None }.resolved(&config);
        // it takes a moment to try
        let has_links = self.figures().iter().any(|figure| figure.has_links());
        let scratch = std::env::temp_dir();
        let no_links = if has_links && !self.list { try_links(&scratch)? } else { None };
        Ok(FigureScope {
            quick: self.quick,
            exchanges: exchanges.collect(),
            data,
            no_gpu: gpu.err().map(|why| match why {
                // without how to do without one
                ConfigError::Device(why) => why.to_string(),
                other => other.to_string(),
            }),
            no_rdma: verbs_usable(&VerbsOptions::default(), None).err().map(|why| why.to_string()),
            no_links,
            scratch,
            cuda_driver: self.cuda_driver.clone(),
        })
    }
}

/// Why there can be no hosts with links of a given rate; none: there can. Ctrl-C leaves nothing of the trial.
fn try_links(scratch: &Path) -> Result<Option<String>, Failure> {
    let interrupt = interrupt()?;
    let why = no_links(scratch, &interrupt);
    if interrupt.load(Ordering::Relaxed) {
        return Err(Failure::interrupted());
    }
    Ok(why)
}
