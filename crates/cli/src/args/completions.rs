//! The command lines of `tensorwire completions` and `tensorwire man`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

pub(super) const EXAMPLES: &str = "\
Examples:
  tensorwire completions bash > ~/.local/share/bash-completion/completions/tensorwire
  tensorwire completions zsh > ~/.zfunc/_tensorwire     where fpath has ~/.zfunc
  tensorwire completions fish > ~/.config/fish/completions/tensorwire.fish";

#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// Write a page for each command to this folder
    ///
    /// `tensorwire.1`, `tensorwire-train.1`, `tensorwire-bench-step.1` and so on. Without it, the first goes to standard
    /// output: `tensorwire man | man -l -` shows it.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}
