//! What NCCL reduces beside what the graph does: losses of jobs, and times of vectors.

use std::path::Path;

use serde_json::{Value, json};

use super::jobs::train;
use super::suites::{built, outcome};
use super::{Bench, Outcome};

/// Losses of sums in two orders may differ so much.
const RELATIVE_MAX: f64 = 1e-3;

/// What becomes of a job by NCCL beside one of ours.
pub(super) enum Beside {
    Within,
    Apart(f64),
    /// There is no NCCL, or it wants more GPUs.
    Absent(String),
}

/// Trains as `own` did, with NCCL.
pub(super) fn beside(
    bench: &mut Bench<'_, '_>,
    tensorwire: &Path,
    own: &Value,
    size: &str,
) -> Result<Beside, String> {
    let libraries = Libraries::of(bench)?;
    let job = format!("--strategy allreduce --collectives nccl {size} {}", libraries.options);
    // each its own GPU, where there are several: two members on one need a newer NCCL
    let result = match train(bench, tensorwire, &job, "cuda") {
        Ok(result) => result,
        Err(why) if is_absence(&why) => return Ok(Beside::Absent(why)),
        Err(why) => return Err(why),
    };
    let [found, expected] = [&result, own].map(|result| result["final_loss"].as_f64());
    let (found, expected) = found.zip(expected).ok_or("a job said no loss")?;
    let apart = (found - expected).abs() / expected.abs().max(f64::MIN_POSITIVE);
    bench.say(json!({
        "job": "allreduce by NCCL",
        "final_loss": result["final_loss"],
        "weights_sha256": result["weights_sha256"],
        "nccl_reductions": result["nccl_reductions"],
        "apart": apart,
    }))?;
    Ok(if apart <= RELATIVE_MAX { Beside::Within } else { Beside::Apart(apart) })
}

/// All-reduces of vectors in device memory, ours and NCCL's.
pub(super) fn vectors(bench: &mut Bench<'_, '_>) -> Outcome {
    let tensorwire = built!(bench.programs.tensorwire, "tensorwire");
    outcome(vectors_of(bench, &tensorwire))
}

fn vectors_of(bench: &mut Bench<'_, '_>, tensorwire: &Path) -> Result<Outcome, String> {
    let size = match bench.is_stand_in() {
        true => "--ranks 2 --sizes 4KiB --iterations 2 --quick",
        false => "--ranks 2,4 --sizes 4KiB,256KiB,16MiB,256MiB --iterations 50 --quick",
    };
    let libraries = Libraries::of(bench)?;
    let file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    let mut command = bench.command(tensorwire);
    command.args(["bench", "allreduce", "--device", "cuda"]).args(size.split_whitespace());
    command.args(libraries.options.split_whitespace()).args(bench.driver_option());
    command.arg("--json").arg(file.path());
    let ended = bench.run(&mut command)?.checked()?;
    let text = std::fs::read_to_string(file.path()).map_err(|error| error.to_string())?;
    let mut measured = 0;
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        measured += 1;
        bench.say(json!({
            "by": line["system"],
            "version": line["version"],
            "processes": line["ranks"],
            "gpus": line["gpus"],
            "bytes": line["bytes"],
            "median_s": line["median_s"],
            "p10_s": line["p10_s"],
            "p90_s": line["p90_s"],
            "bus_bytes_per_s": line["bus_bytes_per_s"],
        }))?;
    }
    let missing: Vec<&str> =
        ended.stdout.lines().filter(|line| line.contains("not measured")).collect();
    let missing = missing.iter().map(|line| format!("; {line}")).collect::<String>();
    Ok(match measured {
        0 => Outcome::NotRun(format!("nothing was measured{missing}")),
        _ => Outcome::Passed(format!("{measured} all-reduces, all vectors compared{missing}")),
    })
}

/// True if a job says that it has no NCCL, or one that shares no GPU.
fn is_absence(why: &str) -> bool {
    why.contains("NCCL cannot be loaded") || why.contains("NCCL 2.30 or newer")
}

/// Where NCCL is found: of the stand-in, in a folder of its own.
struct Libraries {
    options: String,
    _folder: Option<tempfile::TempDir>,
}

impl Libraries {
    fn of(bench: &Bench<'_, '_>) -> Result<Libraries, String> {
        let library = bench.programs.stand_in.as_ref().filter(|_| bench.is_stand_in());
        let Some((library, _)) = library else {
            return Ok(Libraries { options: String::new(), _folder: None });
        };
        let failed = |error: std::io::Error| error.to_string();
        let folder = tempfile::tempdir().map_err(failed)?;
        let link = folder.path().join("libnccl.so.2");
        std::os::unix::fs::symlink(library, link).map_err(failed)?;
        let options = format!("--cuda-libs {}", folder.path().display());
        Ok(Libraries { options, _folder: Some(folder) })
    }
}
