//! How fast bytes move: copies of the GPU's, and steps of a job by every way that its tensors cross.

use std::path::Path;

use serde_json::{Value, json};

use super::suites::{built, lines, outcome};
use super::{Bench, Outcome};

/// Of the rate of a plain copy that a write reaches, and of the rate of pinned memory that a staged tensor reaches.
const SHARE_MIN: f64 = 0.8;

/// Rates of copies, and what a job's ways reach of them.
pub(super) fn rates(bench: &mut Bench<'_, '_>) -> Outcome {
    let gpu = built!(bench.programs.gpu, "the example gpu of crate cuda");
    let bytes = if bench.is_stand_in() { 1 << 20 } else { 256 << 20 };
    let arguments = ["rates".to_owned(), bench.driver_word(), bytes.to_string()];
    outcome(lines(bench, &gpu, &arguments).map(|rates| {
        let share = |key: &str| rates.iter().find_map(|line| line[key].as_f64());
        let Some((write, staged)) = share("of_copy").zip(share("of_pinned")) else {
            return Outcome::Failed("a rate is missing".to_owned());
        };
        let said = format!("one write {write:.2} of a copy, staged {staged:.2} of pinned memory");
        match bench.is_stand_in() || write >= SHARE_MIN && staged >= SHARE_MIN {
            true => Outcome::Passed(said),
            false => Outcome::Failed(format!("{said}; {SHARE_MIN} of each are asked for")),
        }
    }))
}

/// Steps of a job by every way to cross, beside one process and gRPC.
pub(super) fn crossings(bench: &mut Bench<'_, '_>) -> Outcome {
    let tensorwire = built!(bench.programs.tensorwire, "tensorwire");
    outcome(crossings_of(bench, &tensorwire))
}

fn crossings_of(bench: &mut Bench<'_, '_>, tensorwire: &Path) -> Result<Outcome, String> {
    let size = match bench.is_stand_in() {
        true => "--model mlp --data synthetic:16 --batch 4 --steps 3 --repetitions 1",
        false => "--model fcn5 --data synthetic:512 --batch 64 --steps 20 --repetitions 3",
    };
    let mut ways = vec![
        ("read where it lies", ""),
        ("one write", "--exchange write"),
        ("staged over tcp", "--transport tcp"),
    ];
    if bench.programs.has_baselines {
        ways.push(("gRPC", "--exchange grpc-tcp-tuned"));
    }
    let mut copied = None;
    for (name, way) in &ways {
        let line = step(bench, tensorwire, &format!("--strategy ps {way} {size}"))?;
        bench.say(json!({
            "way": name,
            "model": line["model"],
            "batch": line["batch"],
            "alone_ms": line["local_ms"]["median"],
            "step_ms": line["ps_ms"]["median"],
            "over_alone": line["ratio"],
            "bytes_copied": line["bytes_copied"],
        }))?;
        copied.get_or_insert(line["bytes_copied"].clone());
    }
    let without = if bench.programs.has_baselines {
        ""
    } else {
        "; gRPC is not built (--features tensorwire-cli/baselines)"
    };
    Ok(match copied {
        Some(copied) if copied == 0 => Outcome::Passed(format!(
            "{} ways; read where it lies copies nothing{without}",
            ways.len()
        )),
        copied => Outcome::Failed(format!("read where it lies copies {copied:?} bytes")),
    })
}

/// Steps from memory to memory beside steps by way of the host (Xue et al., table 3).
pub(super) fn gpudirect(bench: &mut Bench<'_, '_>) -> Outcome {
    let tensorwire = built!(bench.programs.tensorwire, "tensorwire");
    if bench.is_stand_in() {
        return Outcome::NotRun("six models take hours on the stand-in".to_owned());
    }
    outcome(gpudirect_of(bench, &tensorwire))
}

fn gpudirect_of(bench: &mut Bench<'_, '_>, tensorwire: &Path) -> Result<Outcome, String> {
    let file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    let mut command = bench.command(tensorwire);
    command.args(["bench", "evaluation", "--only", "gpudirect", "--quick"]);
    command.args(bench.driver_option()).arg("--json").arg(file.path());
    let ended = bench.run(&mut command)?;
    let text = std::fs::read_to_string(file.path()).map_err(|error| error.to_string())?;
    let lines = text.lines().map(serde_json::from_str::<Value>).filter_map(Result::ok);
    let lines: Vec<Value> = lines.collect();
    for line in &lines {
        bench.say(line.clone())?;
    }
    ended.checked()?;
    let of = |way: &str| lines.iter().filter(|line| line["crossing"] == way).count();
    Ok(match (of("direct"), of("host")) {
        (0, _) | (_, 0) => Outcome::Failed("a way was not measured".to_owned()),
        (direct, host) => Outcome::Passed(format!("{direct} models directly, {host} by the host")),
    })
}

/// The line of a `bench step` on the GPU.
pub(super) fn step(
    bench: &mut Bench<'_, '_>,
    tensorwire: &Path,
    job: &str,
) -> Result<Value, String> {
    let file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    let mut command = bench.command(tensorwire);
    command.args(["bench", "step"]).args(job.split_whitespace());
    command.args(["--device", "cuda"]).args(bench.driver_option());
    command.args(["--lr", "1e-4", "--json"]).arg(file.path());
    bench.run(&mut command)?.checked().map_err(|why| format!("bench step {job}: {why}"))?;
    let text = std::fs::read_to_string(file.path()).map_err(|error| error.to_string())?;
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line).map_err(|error| format!("bench step {job}: {error}"))
}
