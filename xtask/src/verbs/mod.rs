//! Writes `crates/fabric`'s declarations of libibverbs from the library's C headers, so that nobody else needs
//! those headers. bindgen reads them as a program of its own. Knows which names are used, and how the file is
//! to look; knows no layout itself.

mod selection;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use selection::{
    CONSTANTS, ENUMERATIONS, FUNCTIONS, FUNCTIONS_LATER, HIDDEN, NAMES, OPAQUE, TYPES,
};

/// What bindgen reads, and what is written, in the workspace.
const HEADER: &str = "xtask/src/verbs/verbs.h";
const DECLARATIONS: &str = "crates/fabric/src/verbs/ibv/sys/declarations.rs";

/// Of rustfmt.toml.
const LINE_MAX: usize = 100;

const PREFACE: &str = "\
//! libibverbs' structures, constants and functions as its C headers declare them: those that are used, and
//! nothing else. Written by `cargo xtask verbs-declarations`; not to be changed by hand.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

";

/// Why the declarations could not be written.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    #[error(
        "cannot run bindgen ({0}); it comes with `cargo install bindgen-cli`, and needs libclang (Debian: \
         libclang-dev)"
    )]
    Bindgen(io::Error),
    #[error(
        "bindgen cannot read the headers of libibverbs; they come with libibverbs-dev, and bindgen needs \
         libclang-dev beside them. It says:\n{0}"
    )]
    Headers(String),
    #[error("the headers of libibverbs have no {0}")]
    Missing(&'static str),
    #[error("rustfmt takes no declarations ({0}); it comes with `rustup component add rustfmt`")]
    Format(String),
    #[error("cannot write {file}: {source}")]
    Write { file: PathBuf, source: io::Error },
}

/// Writes the declarations anew, and returns where, from `root`.
///
/// # Errors
/// When bindgen or the headers are not there, or lack something that is used.
pub fn write_declarations(root: &Path) -> Result<&'static str, VerbsError> {
    let types = bindgen(root, &[TYPES, ENUMERATIONS].concat(), "types", &[])?;
    let every = bindgen(root, FUNCTIONS, "functions", FUNCTIONS)?;
    let later = bindgen(root, FUNCTIONS_LATER, "functions", FUNCTIONS_LATER)?;
    let types = only_used_constants(&format(&readable(&types), LINE_MAX)?)?;
    let text = [PREFACE, &types, &opaque(), "\n", &functions(&every, &later)?].concat();
    let file = root.join(DECLARATIONS);
    std::fs::write(&file, text).map_err(|source| VerbsError::Write { file, source })?;
    Ok(DECLARATIONS)
}

/// What bindgen makes of the header for these names, of which it must declare `declared`.
fn bindgen(
    root: &Path,
    names: &[&str],
    what: &str,
    declared: &[&'static str],
) -> Result<String, VerbsError> {
    let list = |names: &[&str]| format!("({})", names.join("|"));
    let mut command = Command::new("bindgen");
    command.args([
        "--use-core",
        "--no-layout-tests",
        "--no-doc-comments",
        "--disable-header-comment",
    ]);
    command.args(["--no-prepend-enum-name", "--default-enum-style", "consts"]);
    command.args(["--no-derive-debug", "--merge-extern-blocks", "--formatter", "none"]);
    command.args(["--rust-target", "1.82", "--generate", what]);
    command.args(["--allowlist-item", &list(names)]);
    command.args(["--blocklist-type", &list(&[OPAQUE, HIDDEN].concat())]);
    if what == "functions" {
        command.arg("--no-recursive-allowlist");
    }
    let done = command.arg(root.join(HEADER)).output().map_err(VerbsError::Bindgen)?;
    if !done.status.success() {
        return Err(VerbsError::Headers(String::from_utf8_lossy(&done.stderr).into_owned()));
    }
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let missing = declared.iter().find(|name| !text.contains(&format!("fn {name} ")));
    missing.map_or(Ok(text.clone()), |name| Err(VerbsError::Missing(name)))
}

/// Names as a reader knows them.
fn readable(text: &str) -> String {
    let text = text.replace(":: core :: ffi :: ", "").replace(":: core :: option :: ", "");
    let spaced = |text: String, (from, to): &(&str, &str)| {
        text.replace(&from.replace(':', " :"), &to.replace(':', " :"))
    };
    NAMES.iter().fold(text, spaced)
}

/// The text without constants of enumerations that nobody uses.
fn only_used_constants(text: &str) -> Result<String, VerbsError> {
    let constant = |line: &str| -> Option<String> {
        let (name, _) = line.strip_prefix("pub const ")?.split_once(':')?;
        Some(name.to_owned())
    };
    let lines = || text.split_inclusive('\n');
    let missing =
        CONSTANTS.iter().find(|&&name| !lines().filter_map(constant).any(|found| found == name));
    if let Some(name) = missing {
        return Err(VerbsError::Missing(name));
    }
    let used = |line: &&str| constant(line).is_none_or(|name| CONSTANTS.contains(&&*name));
    Ok(lines().filter(used).collect())
}

fn opaque() -> String {
    let one = |name: &&str| format!("    {name},\n");
    let names: String = OPAQUE.iter().map(one).collect();
    format!("\nopaque! {{\n{names}}}\n")
}

/// The functions as the macro `functions!` takes them, which makes a table of them.
fn functions(every: &str, later: &str) -> Result<String, VerbsError> {
    let prototypes = |text: &str| -> Result<String, VerbsError> {
        let text = format(&readable(text), LINE_MAX - 4)?;
        let (_, block) = text.split_once("extern \"C\" {\n").unwrap_or_default();
        let block = block.trim_end().strip_suffix('}').unwrap_or(block);
        Ok(block.lines().map(|line| format!("    {line}\n")).collect())
    };
    let (every, later) = (prototypes(every)?, prototypes(later)?);
    Ok(format!("functions! {{\n    every {{\n{every}    }}\n    later {{\n{later}    }}\n}}\n"))
}

/// The text as rustfmt would have it.
fn format(text: &str, line_max: usize) -> Result<String, VerbsError> {
    let failed = |error: io::Error| VerbsError::Format(error.to_string());
    let mut rustfmt = Command::new("rustfmt")
        .args(["--edition", "2024", "--config"])
        .arg(format!("max_width={line_max},use_small_heuristics=Max"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut input) = rustfmt.stdin.take() {
        input.write_all(text.as_bytes()).map_err(failed)?;
    }
    let done = rustfmt.wait_with_output().map_err(failed)?;
    match done.status.success() {
        true => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        false => Err(VerbsError::Format(String::from_utf8_lossy(&done.stderr).into_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_bindgen_makes_up_is_renamed_and_what_nobody_uses_is_left_out() {
        let made = "pub wr : ibv_send_wr__bindgen_ty_2 , pub __bindgen_anon_1 : ibv_wc__bindgen_ty_1 , pub f : \
                    :: core :: option :: Option < :: core :: ffi :: c_int >";
        let ours = "pub wr : ibv_send_wr_wr , pub data : ibv_wc_data , pub f : Option < c_int >";
        assert_eq!(readable(made), ours);
        let used: String =
            CONSTANTS.iter().map(|name| format!("pub const {name}: c_uint = 1;\n")).collect();
        let more = format!("{used}pub const IBV_WR_TSO: c_uint = 10;\npub type a = u32;\n");
        assert_eq!(only_used_constants(&more).unwrap(), format!("{used}pub type a = u32;\n"));
        let (_, less) = used.split_once('\n').unwrap();
        let missing = only_used_constants(less).unwrap_err().to_string();
        assert_eq!(missing, format!("the headers of libibverbs have no {}", CONSTANTS[0]));
    }
}
