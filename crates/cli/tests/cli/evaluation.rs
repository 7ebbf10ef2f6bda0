//! Learning curves, overlap and the papers' evaluation with real processes: what they count and hold against each
//! other. Never a time: a test machine's speed is nobody's defect.

#[cfg(feature = "baselines")]
use std::collections::HashSet;
use std::time::Duration;
#[cfg(feature = "baselines")]
use std::time::Instant;

use crate::support::{Ended, Job};
#[cfg(feature = "baselines")]
use rustix::process::Signal;
use serde_json::Value;
#[cfg(feature = "baselines")]
use tensorwire_testkit::{long, skip::skip};

const LIMIT: Duration = Duration::from_secs(240);

/// Bytes of the mlp's weights.
const WEIGHTS: u64 = 4 * (64 * 2048 + 2048 + 2048 * 2048 + 2048 + 2048 * 10 + 10);

/// Runs a benchmark that appends to `results.jsonl` beside its folder, and returns its lines.
fn bench(arguments: &str) -> (Vec<Value>, Ended) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results.jsonl");
    let job = Job::start(&format!("bench {arguments} --json {}", file.display()));
    let ended = job.end(LIMIT);
    assert!(ended.status.success(), "{}", ended.stderr);
    let lines = std::fs::read_to_string(&file).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (lines, ended)
}

/// The curve of a mode: a line an epoch.
fn of_mode<'a>(lines: &'a [Value], mode: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["mode"] == mode).collect()
}

#[test]
fn each_mode_has_its_curve_and_its_traffic() {
    let modes = ["dist-sgd", "dist-asgd", "dist-esgd", "mpi-sgd", "mpi-asgd", "mpi-esgd"];
    let (lines, ended) = bench("modes --epochs 2 --batch 64 --interval 4");
    assert_eq!(lines.len(), 2 * modes.len());
    for mode in modes {
        let curve = of_mode(&lines, mode);
        assert_eq!(curve.len(), 2, "{mode}");
        // 1438 samples, 4 workers, 64 each
        let steps = 5u64;
        for (epoch, line) in (1u64..).zip(curve) {
            assert_eq!((&line["epoch"], &line["workers"]), (&epoch.into(), &4.into()), "{line}");
            let number = |field: &str| line[field].as_u64().unwrap();
            let grouped = mode.starts_with("mpi");
            let clients: u64 = if grouped { 2 } else { 4 };
            assert_eq!(number("clients"), clients, "{line}");
            let meetings = match mode.ends_with("esgd") {
                // in step 1, 5, 9, and so on
                true => (steps * epoch).div_ceil(4),
                false => steps * epoch,
            };
            // pushed and pulled; what is read ahead for the step after it counts, too, and before the first
            // meeting a client begins at the centre
            let at_least = 2 * WEIGHTS * clients * meetings;
            let most = at_least + WEIGHTS * clients * (1 + epoch);
            assert!((at_least..=most).contains(&number("store_bytes")), "{at_least}: {line}");
            let in_clients = number("client_bytes");
            assert_eq!(number("bytes_exchanged"), number("store_bytes") + in_clients);
            // two members fold gradients: each sends as much as there is
            let folded = 4 * WEIGHTS * steps * epoch;
            assert!(if grouped { in_clients >= folded } else { in_clients == 0 }, "{line}");
            // what workers at their own pace know after two epochs depends on who came when; where they learn to is
            // tests/store.rs's and tests/clients.rs's
            let in_step = mode.ends_with("-sgd");
            let accuracy = line["test_accuracy"].as_f64().unwrap();
            assert!(accuracy > if in_step { 0.2 } else { 0.0 } && accuracy <= 1.0, "{line}");
            assert!(line["loss"].as_f64().unwrap() > 0.0, "{line}");
            assert!(line["seconds"].as_f64().unwrap() > 0.0, "{line}");
        }
        assert!(ended.stdout.contains(mode), "{}", ended.stdout);
    }
}

#[test]
fn a_step_is_held_against_its_halves_and_shown_in_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("t.json");
    for strategy in ["allreduce", "ps"] {
        let (lines, ended) = bench(&format!(
            "step --strategy {strategy} --overlap --steps 3 --iterations 1 --batch 8 --trace {}",
            trace.display()
        ));
        let line = &lines[0];
        let ms = |kind: &str| line[kind]["median"].as_f64().unwrap();
        let longer = ms("compute_ms").max(ms("communication_ms"));
        let found = line["step_over_longer"].as_f64().unwrap();
        assert!((found - ms("ps_ms") / longer).abs() < 1e-9, "{line}");
        assert!(ended.stdout.contains("of the longer"), "{}", ended.stdout);
        let shown: Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
        let events = shown["traceEvents"].as_array().unwrap();
        let crosses = if strategy == "allreduce" { "collective" } else { "send" };
        for cat in ["kernel", crosses] {
            assert!(events.iter().any(|event| event["cat"] == cat), "{strategy}: no {cat}");
        }
    }
}

/// How many cases of a figure `--quick` has, as it lists them.
#[cfg(feature = "baselines")]
fn listed_cases(figure: &str) -> usize {
    let listed = Job::start("bench evaluation --quick --list --json").end(LIMIT);
    let lines = listed.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let line = lines.into_iter().find(|line| line["figure"] == figure);
    // fits: it is a few
    line.unwrap()["cases"].as_u64().unwrap() as usize
}

/// How many cases of a figure were not begun since its minutes were over, as was said.
#[cfg(feature = "baselines")]
fn left_for_want_of_time(ended: &Ended, figure: &str) -> usize {
    let count_of = |line: &str| {
        let count = line.strip_prefix(figure)?.strip_prefix(": ")?;
        count.strip_suffix(" cases left for want of time")?.parse().ok()
    };
    ended.stderr.lines().find_map(count_of).unwrap_or_default()
}

#[cfg(feature = "baselines")]
#[test]
fn the_evaluation_runs_what_it_lists() {
    let page = tempfile::NamedTempFile::new().unwrap();
    let page = page.path();
    let only = format!("--only store-training --report {}", page.display());
    let (lines, ended) = bench(&format!("evaluation --quick {only}"));
    let shown = std::fs::read_to_string(page).unwrap();
    assert!(shown.contains("<svg") && shown.contains("Training over a store"), "{shown}");
    assert!(ended.stderr.contains("store-training 1/"), "{}", ended.stderr);
    // over a link, where there can be one, the job has two exchanges in one case
    let (over_link, lines): (Vec<Value>, Vec<Value>) =
        lines.into_iter().partition(|line| line.get("link").is_some());
    assert!(over_link.iter().all(|line| line["bench"] == "step" && line["link"] == "1gbit"));
    let (missing, steps): (Vec<&Value>, Vec<&Value>) =
        lines.iter().partition(|line| line["bench"] == "not-measured");
    // a model and its data
    let subjects = missing.iter().filter_map(|line| line["subject"][1].as_str());
    assert_eq!(subjects.collect::<Vec<&str>>(), ["MNIST", "CIFAR-10"]);
    assert!(shown.contains("Not measured") && ended.stderr.contains("not measured: MNIST"));
    assert!(ended.stdout.contains("not measured"), "{}", ended.stdout);
    let possible = listed_cases("store-training") - missing.len();
    // of MNIST's shape, and of CIFAR-10's; and over RDMA, where there is some
    assert!(possible >= 6, "zero-copy over both transports, and zmq: {possible}");
    // what a busy machine has no time for is said, and nothing else is left
    let late = left_for_want_of_time(&ended, "store-training");
    assert!(!steps.is_empty(), "{}", ended.stderr);
    assert_eq!(steps.len() + over_link.len() / 2 + late, possible, "{}", ended.stderr);
    for line in steps {
        assert_eq!((&line["bench"], &line["strategy"]), (&"throughput".into(), &"dist-sgd".into()));
        let same = lines.iter().filter(|other| other["data"] == line["data"]);
        let mut same = same.map(|other| &other["weights_sha256"]);
        assert!(same.all(|sha| *sha == line["weights_sha256"]), "{line}");
        assert!(line["step_s"].as_f64().unwrap() > 0.0, "{line}");
        assert_eq!(line["weights_sha256"].as_str().unwrap().len(), 64, "{line}");
        assert!(line["machine"]["commit"].as_str().unwrap().len() > 6, "{line}");
    }
    let listed = Job::start("bench evaluation --list").end(LIMIT);
    for figure in ["transfer", "throughput", "convergence", "scaling", "copies", "modes"] {
        assert!(listed.stdout.contains(figure), "{}", listed.stdout);
    }
}

#[test]
fn lines_go_to_a_file_and_a_list_to_none() {
    for (arguments, says) in [
        ("--quick --json", "--json needs a file"),
        ("--json --quick --report p.html", "--json needs a file"),
        ("--list --json results.jsonl", "--list --json prints JSON"),
    ] {
        let ended = Job::start(&format!("bench evaluation {arguments}")).end(LIMIT);
        assert_eq!(ended.status.code(), Some(2), "{arguments}: {}", ended.stderr);
        assert!(ended.stderr.starts_with("error: ") && ended.stderr.contains(says));
    }
}

#[cfg(feature = "baselines")]
#[test]
fn what_cannot_be_measured_here_is_a_line_with_what_would_measure_it() {
    // a library that is none
    let (lines, ended) =
        bench("evaluation --quick --only gpudirect --cuda-driver /nowhere/libcuda.so");
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((&line["bench"], &line["figure"]), (&"not-measured".into(), &"xue-table-3".into()));
    assert!(line["why"].as_str().unwrap().starts_with("no GPU: "), "{line}");
    assert_eq!(line["command"], "tensorwire bench evaluation --only gpudirect");
    assert!(line["machine"]["commit"].is_string() && ended.stderr.contains("not measured"));
}

/// A run of hours that is stopped loses the case that it is in, and no other.
#[cfg(feature = "baselines")]
#[test]
fn a_run_that_was_stopped_goes_on_behind_the_cases_that_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results.jsonl");
    let run = |more: &str| {
        let json = file.display();
        Job::start(&format!("bench evaluation --quick {more} --json {json} --resume"))
    };
    let text = || std::fs::read_to_string(&file).unwrap_or_default();
    let read = || -> Vec<Value> {
        text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let job = run("--only sizes,transfer");
    let begun = Instant::now();
    // one tensor has been to another process
    while !text().contains("\"bench\":\"transfer\"") {
        assert!(begun.elapsed() < LIMIT, "no case is done");
        std::thread::sleep(Duration::from_millis(20));
    }
    rustix::process::kill_process(job.launcher(), Signal::INT).unwrap();
    let ended = job.end(LIMIT);
    assert!(ended.stderr.contains("interrupted; with --resume the same"), "{}", ended.stderr);
    let before = read();
    // a case has all of its lines
    let cases: HashSet<&str> = before.iter().filter_map(|line| line["case"].as_str()).collect();
    let exchanges = |case: &str| before.iter().filter(|line| line["case"] == case).count();
    let transfers: Vec<&str> =
        cases.iter().copied().filter(|case| case.starts_with("transfer, quick: ")).collect();
    let measured = transfers.iter().filter(|case| case.contains(" exchanges"));
    let said = |case: &str| case.split(", ").last()?.strip_suffix(" exchanges")?.parse().ok();
    assert!(
        measured.clone().count() > 0 && cases.contains("sizes, quick: variables of six models")
    );
    assert!(measured.into_iter().all(|case| said(case) == Some(exchanges(case))), "{cases:?}");
    let ended = run("--only sizes").end(LIMIT);
    assert!(ended.status.success(), "{}", ended.stderr);
    let here = format!("sizes: 1 of 1 cases are in {}\n", file.display());
    assert!(ended.stderr.contains(&here), "{}", ended.stderr);
    assert_eq!(read(), before);
    // what another program has measured counts, and is said; without --resume all is measured again
    let commit = before[0]["machine"]["commit"].as_str().unwrap();
    std::fs::write(&file, text().replace(commit, "0000000")).unwrap();
    let ended = run("--only sizes").end(LIMIT);
    assert!(ended.stderr.contains(", 1 of them of another program or machine"), "{}", ended.stderr);
    let again = format!("bench evaluation --quick --only sizes --json {}", file.display());
    assert!(Job::start(&again).end(LIMIT).status.success());
    assert!(read().len() > before.len());
    // a line that nobody can read is named before anything is measured
    std::fs::write(&file, format!("{}\n{{\"bench\":", before[0])).unwrap();
    let ended = run("--only sizes").end(LIMIT);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains(", line 2, is not JSON"), "{}", ended.stderr);
}

/// Where there can be hosts with such links; else a line says why not.
#[cfg(feature = "baselines")]
#[test]
fn a_step_over_links_of_a_given_rate_is_measured_and_simulated() {
    if !long::is_long() {
        return skip(None, &"it takes minutes: TENSORWIRE_LONG asks for it");
    }
    let page = tempfile::NamedTempFile::new().unwrap();
    let only = format!("--only links --report {}", page.path().display());
    let (lines, ended) = bench(&format!("evaluation --quick {only}"));
    if lines.len() == 1 && lines[0]["bench"] == "not-measured" {
        return skip(None, &lines[0]["why"]);
    }
    // as far as there was time, each in four ways
    assert!(!lines.is_empty() && lines.len() % 4 == 0, "{}", ended.stderr);
    for line in &lines {
        assert_eq!(
            (&line["bench"], &line["transport"]),
            (&"links".into(), &"tcp".into()),
            "{line}"
        );
        let same = lines.iter().filter(|one| one["model"] == line["model"]);
        let mut same = same.filter(|one| one["steps"] == line["steps"]);
        assert!(same.all(|one| one["weights_sha256"] == line["weights_sha256"]), "{line}");
        let number = |field: &str| line[field].as_f64();
        assert!(number("step_s") > Some(0.0) && number("local_step_s") > Some(0.0), "{line}");
        assert_eq!(number("simulated_step_s").is_none(), line["exchange"] == "zmq", "{line}");
    }
    let page = std::fs::read_to_string(page.path()).unwrap();
    assert!(page.contains("id=\"links\"") && page.contains("write, simulated"), "{page}");
}

/// The same of several strategies, with workers that share hosts; and a line says how near it was.
#[cfg(feature = "baselines")]
#[test]
fn steps_over_links_are_simulated_for_each_strategy() {
    if !long::is_long() {
        return skip(None, &"it takes minutes: TENSORWIRE_LONG asks for it");
    }
    let page = tempfile::NamedTempFile::new().unwrap();
    let only = format!("--only links-simulated --report {}", page.path().display());
    let (lines, ended) = bench(&format!("evaluation --quick {only}"));
    if lines.len() == 1 && lines[0]["bench"] == "not-measured" {
        return skip(None, &lines[0]["why"]);
    }
    let (verdict, rows) = lines.split_last().unwrap();
    assert!(!rows.is_empty(), "{}", ended.stderr);
    let within = |line: &&Value| (line["ratio"].as_f64().unwrap() - 1.0).abs() <= 0.15;
    let count = |count: usize| Value::from(count as u64);
    assert_eq!(verdict["bench"], "links-simulated-goal");
    assert_eq!(verdict["rows"], count(rows.len()), "{verdict}");
    assert_eq!(verdict["within"], count(rows.iter().filter(within).count()), "{verdict}");
    assert!(ended.stderr.contains("within 15 %"), "{}", ended.stderr);
    for line in rows {
        let number = |field: &str| line[field].as_f64().unwrap();
        let servers = if line["strategy"] == "dist-sgd" { number("workers") } else { 0.0 };
        assert_eq!((&line["transport"], number("servers")), (&"tcp".into(), servers), "{line}");
        let ratio = number("simulated_step_s") / number("step_s");
        assert!((ratio - number("ratio")).abs() < 1e-9, "{line}");
        // two workers end with the same bits however they share their weights
        let same = |other: &&Value| {
            (&other["model"], &other["workers"]) == (&line["model"], &Value::from(2))
                && line["workers"] == 2
        };
        let mut same = rows.iter().filter(same);
        assert!(same.all(|other| other["weights_sha256"] == line["weights_sha256"]), "{line}");
        let parts = line["way_s"].as_object().unwrap().values();
        let way_s: f64 = parts.map(|seconds| seconds.as_f64().unwrap()).sum();
        assert!((way_s / number("simulated_step_s") - 1.0).abs() < 1e-6, "{line}");
        assert!(line["cores_s"]["sockets"].as_f64().unwrap() > 0.0, "{line}");
    }
    let page = std::fs::read_to_string(page.path()).unwrap();
    assert!(page.contains("id=\"links-simulated\""), "{page}");
}

/// One tensor over links of each rate says over which, and what no core carries is said in its place.
#[cfg(feature = "baselines")]
#[test]
fn tensors_go_over_links_of_each_rate() {
    if !long::is_long() {
        return skip(None, &"it takes minutes: TENSORWIRE_LONG asks for it");
    }
    let page = tempfile::NamedTempFile::new().unwrap();
    let only = format!("--only transfer-links --report {}", page.path().display());
    let (lines, ended) = bench(&format!("evaluation --quick {only}"));
    let of = |rate: &'static str| lines.iter().filter(move |line| line["link"] == rate);
    let missing = |rate: &str| {
        let mut all = lines.iter().filter(|line| line["bench"] == "not-measured");
        all.any(|line| line["subject"][0] == rate && line["figure"] == "xue-8")
    };
    for rate in ["1gbit", "10gbit", "100gbit"] {
        let exchanges = ["write", "grpc-tcp", "grpc-rdma"];
        let each =
            exchanges.map(|exchange| of(rate).filter(|one| one["exchange"] == exchange).count());
        let wanted = if missing(rate) { [0; 3] } else { [3; 3] };
        assert_eq!(each, wanted, "{rate}: {}", ended.stderr);
        assert!(of(rate).all(|line| line["hosts"] == 2 && line["limit"].is_null()), "{rate}");
    }
    let page = std::fs::read_to_string(page.path()).unwrap();
    let is_there = |rate: &str| page.contains(&format!("tcp, {rate}")) != missing(rate);
    assert!(["1gbit", "10gbit"].into_iter().all(is_there), "{}", ended.stderr);
}

/// The page knows every figure that may not be measured.
#[test]
fn a_figure_that_is_not_measured_has_its_place_on_the_page() {
    use tensorwire_bench::{Case, FIGURES, FigureScope};
    let (no_gpu, no_links) = (Some("no driver".to_string()), Some("no tc".to_string()));
    let scope = FigureScope { no_gpu, no_links, ..FigureScope::default() };
    let cases = FIGURES.iter().flat_map(|figure| figure.cases(&scope));
    let missing = cases.filter_map(|case| match case {
        Case::NotMeasured(missing) => Some(missing),
        _ => None,
    });
    for missing in missing {
        let mut line = serde_json::to_value(&missing).unwrap();
        line["bench"] = "not-measured".into();
        let lines = tensorwire_report::Line::read_all("f", &line.to_string()).unwrap();
        let report = tensorwire_report::report(&lines).unwrap();
        assert!(report.left_out.is_empty() && report.unmeasured > 0, "{missing:?}");
        assert!(report.html.contains(missing.figure), "{missing:?}");
    }
}
