//! What every command has: how much is said, and in which colours.

use clap::{ArgAction, Args, ValueEnum};

use super::headings::PROGRAM;

#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = PROGRAM)]
pub(crate) struct ProgramArgs {
    /// Log more: -v what happens, -vv details
    ///
    /// On standard error, of every process of a job. -v is info, -vv debug, -vvv trace. It goes before the variables
    /// TENSORWIRE_LOG and RUST_LOG, which take a level or a filter, as in warn,tensorwire_fabric=debug.
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet")]
    pub(crate) verbose: u8,
    /// Say errors and results alone
    ///
    /// No progress and no warnings.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Colours: auto, always, never [default: auto]
    ///
    /// auto: on a terminal, unless the variable NO_COLOR is set.
    #[arg(long, value_name = "WHEN", global = true, value_enum, hide_possible_values = true)]
    pub(crate) color: Option<ColorArg>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorArg {
    #[default]
    Auto,
    Always,
    Never,
}

impl ProgramArgs {
    /// What a command inside of another one (`launch … train`) goes by: its own options, else the outer one's.
    pub(crate) fn within(self, outer: ProgramArgs) -> ProgramArgs {
        let says = self.verbose > 0 || self.quiet;
        let (verbose, quiet) =
            if says { (self.verbose, self.quiet) } else { (outer.verbose, outer.quiet) };
        ProgramArgs { verbose, quiet, color: self.color.or(outer.color) }
    }
}
