//! How fast bytes move: copies of the GPU's, and steps of a job by every way that its tensors cross.

use std::path::Path;

use serde_json::{Value, json};

use super::jobs::{ONE_GPU, moved};
use super::suites::{built, lines, outcome};
use super::{Bench, Outcome};

/// Of the rate of a plain copy that a write reaches, and of the rate of pinned memory that a staged tensor reaches.
const SHARE_MIN: f64 = 0.8;

/// Rates of copies, and what a job's ways reach of them.
pub(super) fn rates(bench: &mut Bench<'_, '_>) -> Outcome {
    let gpu = built!(bench.programs.gpu, "the example gpu of crate cuda");
    let bytes = if bench.is_stand_in() { 4 << 20 } else { 256 << 20 };
    let arguments = ["rates".to_owned(), bench.driver_word(), bytes.to_string()];
    outcome(lines(bench, &gpu, &arguments).map(|rates| {
        // the least, where it is more than one
        let share = |key: &str| {
            let all = rates.iter().filter_map(|line| line[key].as_f64());
            all.reduce(f64::min)
        };
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

/// A model, its batch, its steps, and how often they are measured.
type Crossed = (&'static str, usize, u64, usize);

/// The models of Xue et al.'s table 3. Those that take longest are last, so that the others are measured where the part's time
/// does not suffice for all.
const CROSSED: &[Crossed] = &[
    ("fcn5", 64, 20, 3),
    ("gru", 8, 10, 1),
    ("lstm", 32, 10, 1),
    ("alexnet", 16, 5, 1),
    ("inception-v3", 8, 5, 1),
    ("vgg16", 8, 5, 1),
];
const CROSSED_ON_STAND_IN: &[Crossed] = &[("mlp", 4, 3, 1)];

const READ: &str = "read where it lies";
const WRITTEN: &str = "one write";

fn crossings_of(bench: &mut Bench<'_, '_>, tensorwire: &Path) -> Result<Outcome, String> {
    let is_stand_in = bench.is_stand_in();
    let mut ways =
        vec![(READ, ""), (WRITTEN, "--exchange write"), ("staged over tcp", "--transport tcp")];
    if bench.programs.has_baselines {
        ways.push(("gRPC", "--exchange grpc-tcp-tuned"));
    }
    let models = if is_stand_in { CROSSED_ON_STAND_IN } else { CROSSED };
    let mut wrong = Vec::new();
    for (model, batch, steps, repetitions) in models {
        let size = format!(
            "--model {model} --data synthetic:{} --batch {batch} --steps {steps} --repetitions {repetitions}",
            batch * 4
        );
        let planned = planned(bench, tensorwire, &format!("--model {model} --batch {batch}"))?;
        let mut lines = Vec::new();
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
                "bytes_copied_to_host": line["bytes_copied_to_host"],
                "bytes_copied_to_device": line["bytes_copied_to_device"],
                "bytes_copied_to_peers": line["bytes_copied_to_peers"],
                "bytes_copied_from_peers": line["bytes_copied_from_peers"],
                "bytes_written": line["bytes_written"],
                "alone_to_host": line["local_bytes_copied_to_host"],
                "planned_to_be_written": (*name == READ).then_some(planned),
            }))?;
            lines.push((*name, line));
        }
        wrong.extend(not_by_reference(&lines, planned).map(|why| format!("{model}, {why}")));
        let ms =
            |(name, line): &(&'static str, Value)| Some((*name, line["ps_ms"]["median"].as_f64()?));
        let steps: Option<Vec<_>> = lines.iter().map(ms).collect();
        let steps = steps.ok_or("a step has no time")?;
        // the stand-in's times are of no GPU
        if !is_stand_in && bench.programs.has_baselines {
            wrong.extend(slower_than_last(&steps).map(|why| format!("{model}: {why}")));
        }
    }
    let said = format!("{} models by {} ways", models.len(), ways.len());
    if !wrong.is_empty() {
        return Ok(Outcome::Failed(format!("{}; {said}", wrong.join("; "))));
    }
    let said = format!("{said}; nothing is moved where it is {READ}");
    Ok(match is_stand_in || bench.programs.has_baselines {
        true if is_stand_in => Outcome::Passed(said),
        true => Outcome::Passed(format!("{said}; none is slower than gRPC")),
        false => Outcome::NotRun(format!(
            "{said}; gRPC, which they are held beside, is not built (--features tensorwire-cli/baselines)"
        )),
    })
}

/// Why a plan may write what is read otherwise.
const WRITTEN_FOR: [&str; 2] = ["below a page", "rows of a tensor of several servers"];

/// The share of the bytes of a step that the plan writes for such a reason.
fn planned(bench: &mut Bench<'_, '_>, tensorwire: &Path, size: &str) -> Result<f64, String> {
    let mut command = bench.command(tensorwire);
    command.args(["graph", "--json", "--strategy", "ps", "--device", ONE_GPU]);
    command.args(size.split_whitespace()).args(bench.driver_option());
    let ended = bench.run(&mut command)?.checked().map_err(|why| format!("graph {size}: {why}"))?;
    let graph: Value = serde_json::from_str(&ended.stdout).map_err(|error| error.to_string())?;
    share_written(&graph).ok_or_else(|| format!("graph {size}: nothing crosses"))
}

fn share_written(graph: &Value) -> Option<f64> {
    let edges = graph["edges"].as_array()?;
    let ends = |edge: &Value, key: &str| edge[key].as_array().map_or(0, Vec::len) as f64;
    let bytes = |edge: &Value| {
        edge["bytes"].as_f64().unwrap_or(0.0) * ends(edge, "from") * ends(edge, "to")
    };
    let all: f64 = edges.iter().map(bytes).sum();
    let may_be_written = |edge: &&Value| {
        let reason = edge["reason"].as_str().unwrap_or_default();
        edge["transfer"] == "one write" && WRITTEN_FOR.iter().any(|why| reason.contains(why))
    };
    let written: f64 = edges.iter().filter(may_be_written).map(bytes).sum();
    (all > 0.0).then(|| written / all)
}

/// What is moved of tensors that are said to be read where they lie, or written by a GPU, by two workers and servers; none:
/// nothing that may not be.
fn not_by_reference(lines: &[(&str, Value)], planned: f64) -> Option<String> {
    let of = |way: &str| lines.iter().find(|(name, _)| *name == way).map(|(_, line)| line);
    let (read, written) = of(READ).zip(of(WRITTEN))?;
    let mut wrong: Vec<String> =
        moved(read, written, planned).map(|moved| format!("{READ}: {moved}")).into_iter().collect();
    for (way, line) in [(READ, read), (WRITTEN, written)] {
        let [found, alone] =
            ["bytes_copied_to_host", "local_bytes_copied_to_host"].map(|key| &line[key]);
        // what is shown: each of two workers shows its own
        let is_shown = |found: u64, alone: u64| found <= 2 * alone;
        if !found.as_u64().zip(alone.as_u64()).is_some_and(|(found, alone)| is_shown(found, alone))
        {
            wrong.push(format!("{way}: bytes_copied_to_host {found}, and {alone} of one process"));
        }
    }
    (!wrong.is_empty()).then(|| wrong.join("; "))
}

/// Which ways take longer than the last one; none: no one does.
fn slower_than_last(steps: &[(&str, f64)]) -> Option<String> {
    let (&(last, most), others) = steps.split_last()?;
    let slower = others.iter().filter(|(_, ms)| ms.is_nan() || *ms > most);
    let slower: Vec<String> =
        slower.map(|(name, ms)| format!("{name} takes {ms:.2} ms, {last} {most:.2} ms")).collect();
    (!slower.is_empty()).then(|| slower.join("; "))
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
    let ratios = direct_over_host(&lines);
    if ratios.is_empty() {
        return Err("no model was measured in both ways".to_owned());
    }
    let said: Vec<String> =
        ratios.iter().map(|(model, over)| format!("{model} {over:.2}")).collect();
    let said = format!("steps directly over steps by the host: {}", said.join(", "));
    // what computes for long gains nothing, as in the paper; all together gain
    let mean = ratios.iter().map(|(_, over)| over.ln()).sum::<f64>() / ratios.len() as f64;
    Ok(match mean <= 0.0 {
        true => Outcome::Passed(said),
        false => Outcome::Failed(format!("from memory to memory takes longer; {said}")),
    })
}

/// For each model that was measured in both ways, its step from memory to memory over that by way of the host.
fn direct_over_host(lines: &[Value]) -> Vec<(String, f64)> {
    let of = |way: &'static str| {
        let lines = lines.iter().filter(move |line| line["crossing"] == way);
        lines.filter_map(|line| Some((line["model"].as_str()?, line["step_s"].as_f64()?)))
    };
    let ratio = |(model, direct): (&str, f64)| {
        let (_, host) = of("host").find(|(other, _)| *other == model)?;
        Some((model.to_owned(), direct / host))
    };
    of("direct").filter_map(ratio).collect()
}

/// The line of a `bench step`, all of whose processes are on one GPU.
pub(super) fn step(
    bench: &mut Bench<'_, '_>,
    tensorwire: &Path,
    job: &str,
) -> Result<Value, String> {
    let file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    let mut command = bench.command(tensorwire);
    command.args(["bench", "step"]).args(job.split_whitespace());
    command.args(["--device", ONE_GPU]).args(bench.driver_option());
    command.args(["--lr", "1e-4", "--json"]).arg(file.path());
    bench.run(&mut command)?.checked().map_err(|why| format!("bench step {job}: {why}"))?;
    let text = std::fs::read_to_string(file.path()).map_err(|error| error.to_string())?;
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line).map_err(|error| format!("bench step {job}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_that_takes_longer_than_grpc_is_said() {
        assert_eq!(slower_than_last(&[("read", 1.0), ("staged", 3.0), ("gRPC", 3.0)]), None);
        let said = slower_than_last(&[("read", f64::NAN), ("staged", 3.5), ("gRPC", 3.0)]).unwrap();
        assert!(said.contains("read takes NaN ms") && said.contains("gRPC 3.00 ms"), "{said}");
    }

    #[test]
    fn a_job_that_is_staged_is_not_by_reference() {
        // as `bench step` says it of two workers: nothing of what the host's memory is passed through is an exchange
        let line = |to_host: u64, to_peers: u64| {
            json!({
                "bytes_copied": 0, "bytes_written": 0, "bytes_copied_from_peers": 0, "bytes_copied_to_peers": to_peers,
                "bytes_copied_to_host": to_host, "local_bytes_copied_to_host": 24,
            })
        };
        let of = |read: Value, written: Value| {
            not_by_reference(&[(READ, read), (WRITTEN, written)], 0.0)
        };
        assert_eq!(of(line(48, 10), line(48, 1000)), None);
        let staged = of(line(1048, 0), line(1048, 0)).unwrap();
        assert!(staged.contains("and 0 where they are written"), "{staged}");
        assert!(staged.contains("bytes_copied_to_host 1048, and 24 of one process"), "{staged}");
        let staged = of(line(1048, 10), line(48, 1000)).unwrap();
        assert_eq!(staged, "read where it lies: bytes_copied_to_host 1048, and 24 of one process");
        assert!(of(json!({ "bytes_copied": 0 }), line(48, 1000)).is_some(), "what is not counted");
    }

    #[test]
    fn a_plan_may_write_for_two_reasons() {
        let edge = |bytes: u64, to: &[&str], transfer: &str, reason: &str| json!({ "bytes": bytes, "from": ["server 0"], "to": to, "transfer": transfer, "reason": reason });
        let both = ["worker 0", "worker 1"];
        let edges = [
            edge(500, &["worker 0"], "by reference", "size known, memory shared"),
            edge(100, &both, "one write", "size known, rows of a tensor of several servers"),
            edge(50, &both, "one write", "size known, below a page"),
            edge(100, &both, "one write", "asked for"),
        ];
        assert_eq!(share_written(&json!({ "edges": edges })), Some(0.3));
        assert_eq!(share_written(&json!({ "edges": [] })), None);
    }

    #[test]
    fn a_model_is_held_against_itself() {
        let line = |model: &str, crossing: &str, step_s: f64| json!({ "model": model, "crossing": crossing, "step_s": step_s });
        let lines =
            [line("gru", "host", 2.0), line("gru", "direct", 1.0), line("lstm", "direct", 1.0)];
        assert_eq!(direct_over_host(&lines), [("gru".to_owned(), 0.5)]);
    }
}
