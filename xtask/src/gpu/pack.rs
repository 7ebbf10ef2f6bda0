//! Programs in a folder, for a machine that has a GPU and no Rust.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::build::{Programs, build};
use super::{GpuError, Report};
use crate::soft_roce::tools;
use crate::soft_roce::{SoftRoceError, Stop};

const TENSORWIRE: &str = "tensorwire";
const DRIVER_SUITE: &str = "driver-suite";
const OPERATORS_SUITE: &str = "operators-suite";
const GPU: &str = "gpu";
/// This program.
const XTASK: &str = "xtask";
/// Of the sources that they are built from.
const COMMIT: &str = "commit";
/// Beside them where `tensorwire` has what it is measured beside.
const BASELINES: &str = "has-baselines";

const STRIP_MAX: Duration = Duration::from_secs(60);

/// Builds all programs and puts them into a folder, without what is for debuggers alone.
///
/// # Errors
/// A build that fails, a folder that cannot be written, Ctrl-C.
pub fn pack(
    folder: &Path,
    features: Option<&str>,
    stop: &Stop,
    out: &mut dyn Write,
) -> Result<(), GpuError> {
    let programs = build(features, false, stop)?;
    let at = |file: &Path| {
        let file = file.to_owned();
        move |source| GpuError::File { file, source }
    };
    fs::create_dir_all(folder).map_err(at(folder))?;
    let own = std::env::current_exe().map_err(at(Path::new(XTASK)))?;
    let all = [
        (TENSORWIRE, programs.tensorwire),
        (DRIVER_SUITE, programs.driver_suite),
        (OPERATORS_SUITE, programs.operators_suite),
        (GPU, programs.gpu),
        (XTASK, Some(own)),
    ];
    let (count, mut bytes) = (all.len(), 0);
    for (name, program) in all {
        let Some(program) = program else {
            return Err(SoftRoceError::NotBuilt(name.to_owned()).into());
        };
        let to = folder.join(name);
        fs::copy(&program, &to).map_err(at(&to))?;
        if tools::find("strip").is_some() {
            // what cannot be stripped is larger, and runs as well
            let _ = tools::output(tools::command("strip").arg(&to), &[], STRIP_MAX, stop);
        }
        bytes += fs::metadata(&to).map_err(at(&to))?.len();
    }
    let (file, commit) = (folder.join(COMMIT), checked_out().unwrap_or_default());
    fs::write(&file, commit).map_err(at(&file))?;
    let beside = folder.join(BASELINES);
    match programs.has_baselines {
        true => fs::write(&beside, "").map_err(at(&beside))?,
        false => match fs::remove_file(&beside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(at(&beside)(error));
            }
            _ => {}
        },
    }
    let mut report = Report { out, json: None, is_stand_in: false };
    report.line(&format!(
        "{count} programs, {} MB, in {folder}; on a machine with a GPU, in a checkout of this commit: {folder}/{XTASK} gpu \
         --packed {folder}",
        bytes / 1_000_000,
        folder = folder.display(),
    ))
}

/// The commit of this checkout, with a word where files differ from it.
fn checked_out() -> Option<String> {
    let git = |arguments: &[&str]| {
        let said =
            tools::command("git").args(arguments).current_dir(crate::root()).output().ok()?;
        said.status.success().then(|| String::from_utf8_lossy(&said.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short", "HEAD"])?;
    let is_changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if is_changed { format!("{commit}, changed") } else { commit })
}

/// What [`pack`] put into a folder.
pub(super) fn packed(folder: &Path) -> Result<Programs, GpuError> {
    // parts run them in other folders
    let absolute = std::path::absolute(folder)
        .map_err(|source| GpuError::File { file: folder.to_owned(), source })?;
    let found = |missing: &'static str| -> Result<Option<PathBuf>, GpuError> {
        let file = absolute.join(missing);
        match file.is_file() {
            true => Ok(Some(file)),
            false => Err(GpuError::NotPacked { folder: folder.to_owned(), missing }),
        }
    };
    Ok(Programs {
        tensorwire: found(TENSORWIRE)?,
        driver_suite: found(DRIVER_SUITE)?,
        operators_suite: found(OPERATORS_SUITE)?,
        gpu: found(GPU)?,
        has_baselines: absolute.join(BASELINES).is_file(),
        commit: fs::read_to_string(absolute.join(COMMIT)).ok().filter(|commit| !commit.is_empty()),
        ..Programs::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_in_a_folder_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let said = |folder: &Path| packed(folder).unwrap_err().to_string();
        assert!(said(folder.path()).contains("has no tensorwire: "));
        for name in [TENSORWIRE, DRIVER_SUITE, OPERATORS_SUITE, XTASK] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert!(said(folder.path()).contains("has no gpu: "));
        fs::write(folder.path().join(GPU), "").unwrap();
        let programs = packed(folder.path()).unwrap();
        assert!(programs.gpu.is_some() && !programs.has_baselines && programs.commit.is_none());
        fs::write(folder.path().join(COMMIT), "0e877c1e, changed").unwrap();
        fs::write(folder.path().join(BASELINES), "").unwrap();
        let programs = packed(folder.path()).unwrap();
        assert!(programs.has_baselines);
        assert_eq!(programs.commit.as_deref(), Some("0e877c1e, changed"));
    }
}
