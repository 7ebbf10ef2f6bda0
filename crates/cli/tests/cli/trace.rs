//! `--trace`: what real jobs write. It is whole, every tensor's way is in it, and it shows that sending
//! hides behind computing; and it is written however the job ends.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::hosts::Rsh;
use crate::support::{Job, send};
use rustix::process::Signal;
use serde_json::Value;
use tensorwire_testkit::skip::skip;

const LIMIT: Duration = Duration::from_secs(120);

/// A trace file's events, of the kinds that this program writes.
struct Trace {
    slices: Vec<Slice>,
    /// By id: where the arrow starts and where it ends.
    starts: HashMap<String, Place>,
    ends: HashMap<String, Place>,
    /// By pid.
    processes: HashMap<u64, String>,
}

#[derive(Clone, Debug)]
struct Slice {
    place: Place,
    end_ns: u64,
    name: String,
    kind: String,
    step: u64,
    bytes: u64,
    peer: String,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    pid: u64,
    row: u64,
    ns: u64,
}

impl Trace {
    fn read(path: &Path) -> Trace {
        let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let mut trace = Trace {
            slices: Vec::new(),
            starts: HashMap::new(),
            ends: HashMap::new(),
            processes: HashMap::new(),
        };
        for event in file["traceEvents"].as_array().unwrap() {
            trace.take(event);
        }
        trace
    }

    fn take(&mut self, event: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        // microseconds with three digits
        let ns = |field: &str| (event[field].as_f64().unwrap() * 1e3).round() as u64;
        let (pid, row) = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        match event["ph"].as_str().unwrap() {
            "X" => self.slices.push(Slice {
                place: Place { pid, row, ns: ns("ts") },
                end_ns: ns("ts") + ns("dur"),
                name: text(&event["name"]),
                kind: text(&event["cat"]),
                step: event["args"]["step"].as_u64().unwrap(),
                bytes: event["args"]["bytes"].as_u64().unwrap_or_default(),
                peer: text(&event["args"]["peer"]),
            }),
            "M" if event["name"] == "process_name" => {
                self.processes.insert(pid, text(&event["args"]["name"]));
            }
            "M" => {}
            end => {
                let ends = if end == "s" { &mut self.starts } else { &mut self.ends };
                let double = ends.insert(text(&event["id"]), Place { pid, row, ns: ns("ts") });
                assert!(double.is_none(), "{event}");
            }
        }
    }

    fn pid(&self, role: &str) -> u64 {
        let named = |(_, name): &(&u64, &String)| name.starts_with(&format!("{role}, pid "));
        *self.processes.iter().find(named).unwrap_or_else(|| panic!("no {role}")).0
    }

    fn of(&self, kind: &str, pid: u64) -> Vec<&Slice> {
        self.slices.iter().filter(|s| s.kind == kind && s.place.pid == pid).collect()
    }

    fn count(&self, kind: &str) -> usize {
        self.slices.iter().filter(|slice| slice.kind == kind).count()
    }

    /// No two slices of one row overlap.
    fn check_rows(&self) {
        let mut slices: Vec<&Slice> = self.slices.iter().collect();
        slices
            .sort_by_key(|slice| (slice.place.pid, slice.place.row, slice.place.ns, slice.end_ns));
        for pair in slices.windows(2) {
            let [one, next] = pair else { unreachable!() };
            let same_row = (one.place.pid, one.place.row) == (next.place.pid, next.place.row);
            assert!(!same_row || one.end_ns <= next.place.ns, "{one:?} {next:?}");
        }
    }

    /// The slice of that kind in which an arrow starts or ends.
    fn around(&self, place: &Place, kind: &str) -> &Slice {
        let holds = |slice: &&Slice| {
            (slice.place.pid, slice.place.row) == (place.pid, place.row)
                && (slice.place.ns..=slice.end_ns).contains(&place.ns)
                && slice.kind == kind
        };
        self.slices.iter().find(holds).unwrap_or_else(|| panic!("no {kind} at {place:?}"))
    }
}

const ROLES: [&str; 4] =
    ["worker 0 (rank 0", "worker 1 (rank 1", "server 0 (rank 2", "server 1 (rank 3"];

#[test]
fn a_job_of_four_processes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.json");
    let job = format!("train --steps 6 --json --trace {} --trace-steps 4", path.display());
    Job::start(&job).end(LIMIT).json();
    let trace = Trace::read(&path);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    assert_eq!(trace.processes.len(), 4);
    for role in ROLES {
        let steps = trace.of("step", trace.pid(role));
        let names: Vec<&str> = steps.iter().map(|slice| slice.name.as_str()).collect();
        assert_eq!(names, ["step 1", "step 2", "step 3", "step 4"], "{role}");
        assert!(!trace.of("kernel", trace.pid(role)).is_empty(), "{role}");
    }
    trace.check_rows();
    // six variables go to two workers, and their gradients come back; each worker says when it has read
    // the two that it still reads while their gradients are under way
    assert_eq!((trace.count("send"), trace.count("recv")), (28 * 4, 28 * 4));
    every_tensor_arrives_where_it_was_sent(&trace);
    gradients_leave_while_others_are_computed(&trace);
}

fn every_tensor_arrives_where_it_was_sent(trace: &Trace) {
    assert_eq!(trace.starts.len(), trace.count("send"));
    assert_eq!(trace.ends.len(), trace.count("recv"));
    for (id, start) in &trace.starts {
        let end = trace.ends.get(id).unwrap_or_else(|| panic!("{id} never arrives"));
        let (sent, found) = (trace.around(start, "send"), trace.around(end, "recv"));
        assert!(sent.place.ns <= found.end_ns, "{sent:?} {found:?}");
        assert_eq!((sent.step, sent.bytes), (found.step, found.bytes));
        assert_eq!(sent.bytes % 4, 0);
        for (slice, other) in [(sent, end.pid), (found, start.pid)] {
            let peer = slice.peer.trim_end_matches(')');
            assert!(trace.processes[&other].starts_with(peer), "{slice:?}");
        }
    }
}

/// A gradient is sent once it is computed, and not when all are: the first one is on its way before the
/// last kernel of the step, which computes another one, has ended.
fn gradients_leave_while_others_are_computed(trace: &Trace) {
    for role in &ROLES[..2] {
        let (kernels, sends) =
            (trace.of("kernel", trace.pid(role)), trace.of("send", trace.pid(role)));
        for step in 2..=4 {
            let last = kernels.iter().filter(|kernel| kernel.step == step);
            let last = last.max_by_key(|kernel| kernel.end_ns).unwrap();
            assert!(last.name.contains("/gradient/"), "{last:?}");
            let first = sends.iter().filter(|send| send.step == step && send.bytes > 0);
            let first = first.min_by_key(|send| send.place.ns).unwrap();
            assert!(first.name.contains("/gradient/"), "{first:?}");
            assert!(first.place.ns < last.end_ns, "{role}, step {step}: {first:?} {last:?}");
        }
    }
}

/// The second host's clock is 5,000 s ahead. Its times are put in the launcher's, so that no tensor is found before it was sent,
/// but for what a round trip leaves in doubt.
#[test]
fn hosts_whose_clocks_differ_are_on_one_line_of_time() {
    const AHEAD: &str = "unshare --map-root-user --time --monotonic 5000 sh -c";
    let tried = std::process::Command::new("sh").args(["-c", &format!("{AHEAD} true")]).status();
    if !tried.is_ok_and(|status| status.success()) {
        return skip(None, &"no process can have a clock of its own in a namespace here (unshare)");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.json");
    let rsh = Rsh::new(&format!("exec {AHEAD} \"$2\""));
    let job = format!(
        "train --steps 30 --batch 8 --servers 2 --trace {} --trace-steps 20",
        path.display()
    );
    let ended = rsh.start(&job).end(LIMIT);
    assert!(ended.status.success(), "{}", ended.stderr);
    let said = |begin: &str| {
        let line = ended.stdout.lines().find(|line| line.starts_with(begin));
        line.unwrap_or_else(|| panic!("{begin}: {}", ended.stdout)).to_string()
    };
    assert!(said("communication: tensors under way for ").contains("hidden behind kernels"));
    let within = said("clocks: times of other hosts are put in this one's, to within ");
    let within = within.rsplit(' ').nth(1).unwrap().parse::<f64>().unwrap();
    let within = Duration::from_secs_f64(within / 1e3);
    assert!(within < Duration::from_secs(1), "{within:?}");
    let trace = Trace::read(&path);
    assert_eq!(trace.processes.len(), 4);
    for role in ROLES {
        assert_eq!(trace.of("step", trace.pid(role)).len(), 20, "{role}");
    }
    let last = trace.slices.iter().map(|slice| slice.end_ns).max().unwrap();
    assert!(last < 1_000_000_000_000, "the trace lasts {last} ns: the clocks are apart");
    // fits: below a second
    let within_ns = within.as_nanos() as u64 + 1_000;
    for (id, start) in &trace.starts {
        let sent = trace.around(start, "send");
        let found = trace.around(&trace.ends[id], "recv");
        assert!(sent.place.ns <= found.end_ns + within_ns, "{within:?}: {sent:?} {found:?}");
    }
}

/// Without servers: a gradient is in the group's hands while the gradients of earlier layers are computed.
#[test]
fn gradients_are_folded_while_others_are_computed() {
    for how in ["allreduce --transport shm", "allreduce --transport tcp"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.json");
        let job = format!("train --strategy {how} --steps 4 --trace {}", path.display());
        let ended = Job::start(&job).end(LIMIT);
        assert!(ended.status.success(), "{}", ended.stderr);
        let trace = Trace::read(&path);
        trace.check_rows();
        assert_eq!((trace.processes.len(), trace.count("send")), (2, 0));
        for role in &ROLES[..2] {
            let pid = trace.pid(role);
            for step in 1..=4 {
                let of_step = |kind| {
                    let all = trace.of(kind, pid).into_iter();
                    all.filter(|slice| slice.step == step).collect::<Vec<&Slice>>()
                };
                let folds = of_step("collective");
                // 4,349,962 numbers of 4 bytes
                assert_eq!(folds.len(), 6, "{folds:?}");
                assert_eq!(folds.iter().map(|fold| fold.bytes).sum::<u64>(), 4_349_962 * 4);
                let gradients = of_step("kernel");
                let gradients =
                    gradients.iter().filter(|kernel| kernel.name.contains("/gradient/"));
                let last = gradients.max_by_key(|kernel| kernel.end_ns).unwrap();
                let first = folds.iter().min_by_key(|fold| fold.place.ns).unwrap();
                assert!(first.name.contains("/mean/"), "{first:?}");
                assert!(first.place.ns < last.place.ns, "{role}, step {step}: {first:?} {last:?}");
            }
        }
    }
}

#[test]
fn one_process_computes_and_sends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.json");
    let job = format!("train --strategy local --steps 3 --batch 8 --trace {}", path.display());
    let ended = Job::start(&job).end(LIMIT);
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(ended.stdout.contains("trace of 3 steps written to"), "{}", ended.stdout);
    let trace = Trace::read(&path);
    trace.check_rows();
    assert_eq!((trace.processes.len(), trace.count("step")), (1, 3));
    assert!(trace.count("kernel") > 0);
    for kind in ["send", "recv", "wait"] {
        assert_eq!(trace.count(kind), 0, "{kind}");
    }
}

/// Jobs that never end by themselves: what was said until their end is in the file.
#[test]
fn a_job_that_is_interrupted_or_fails_leaves_what_it_did() {
    let long = "train --steps 100000 --batch 8 --trace t.json --trace-steps 1000 --metrics m.jsonl";
    for (strategy, signal) in [("ps", Signal::INT), ("ps", Signal::KILL), ("local", Signal::INT)] {
        let mut job = Job::start(&format!("{long} --strategy {strategy}"));
        let folder = job.folder().to_path_buf();
        wait_for_lines(&folder.join("m.jsonl"), 3);
        if signal == Signal::KILL {
            send(job.members(4)[2], signal);
        } else {
            job.signal_group(signal);
        }
        let ended = job.end(Duration::from_secs(10));
        let status = if signal == Signal::KILL { 1 } else { 130 };
        assert_eq!(ended.status.code(), Some(status), "{strategy}: {}", ended.stderr);
        let error = if signal == Signal::KILL { "first to fail: server 0" } else { "interrupted" };
        assert!(ended.last_line().contains(error), "{strategy}: {}", ended.stderr);
        let trace = Trace::read(&folder.join("t.json"));
        let roles = if strategy == "ps" { &ROLES[..2] } else { &ROLES[..1] };
        for role in roles {
            // a member's trace of a step is heard before its loss
            let steps: HashSet<u64> =
                trace.of("step", trace.pid(role)).iter().map(|slice| slice.step).collect();
            assert!((1..=3).all(|step| steps.contains(&step)), "{strategy}, {role}: {steps:?}");
        }
        assert_eq!(ended.files().len(), 2, "{:?}", ended.files());
    }
}

fn wait_for_lines(path: &Path, count: usize) {
    let start = Instant::now();
    while std::fs::read_to_string(path).map_or(0, |text| text.lines().count()) < count {
        assert!(start.elapsed() < LIMIT, "no {count} lines in {path:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
