//! Runs the table of cases: builds their programs, boots one machine and then two, and reports in the
//! words of `cargo test`, so that whoever counts those counts these. Knows cases and events; nothing of
//! how a machine is made.

use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use cargo_metadata::{Message, TargetKind};

use super::cases::{CASES, Case, PRELUDE, Program};
use super::serial::Event;
use super::tools::{self, Stop};
use super::{BOOT_MAX, Hardware, Job, Kernel, Machines, SoftRoceError, Step, prepare, say};

/// A whole build on a small machine.
const BUILD_MAX: Duration = Duration::from_secs(3600);
/// Between a case's own limit and giving up its machine: SIGTERM, SIGKILL, and taking faults away.
const GRACE: Duration = Duration::from_secs(60);

/// For all machines of a boot together; a small machine has twice that.
const MEMORY_MIB: usize = 2048;

/// What became of the cases.
#[derive(Debug, Default)]
struct Tally {
    passed: usize,
    failed: usize,
    ignored: usize,
}

/// Runs the cases whose names hold `filter`, of programs with these `features`. True if none failed; where this
/// machine lacks what they need, they are skipped, with the reason.
pub fn test(
    filter: &str,
    features: Option<&str>,
    cache: &Path,
    stop: &Stop,
    out: &mut dyn Write,
) -> Result<bool, SoftRoceError> {
    let started = Instant::now();
    let (cases, long): (Vec<&Case>, Vec<&Case>) =
        CASES.iter().filter(|case| case.name.contains(filter)).partition(|case| {
            // what takes long is run where it is named, or all is
            let is_asked_for = !filter.is_empty() || std::env::var_os("TENSORWIRE_LONG").is_some();
            is_asked_for || !case.is_long()
        });
    say(out, &format!("\nrunning {} tests in machines with Soft-RoCE", cases.len()))?;
    for case in long {
        say(out, &format!("{} takes minutes: name it, or set TENSORWIRE_LONG", case.name))?;
    }
    let mut tally = Tally::default();
    match prepare(cache, stop, out) {
        Ok(kernel) => {
            let programs = build(&cases, features, stop)?;
            let mut suite = Suite { kernel: &kernel, programs, stop, out: &mut *out, tally };
            for machines in [1, 2] {
                let chosen = cases.iter().copied().filter(|case| case.machines == machines);
                suite.run(machines, chosen.collect())?;
            }
            tally = suite.tally;
        }
        Err(SoftRoceError::Missing { what, mend }) => {
            say(out, &format!("skipped: RDMA in machines: {what}; {mend}"))?;
            tally.ignored = cases.len();
        }
        Err(error) => return Err(error),
    }
    let Tally { passed, failed, ignored } = tally;
    let word = if failed == 0 { "ok" } else { "FAILED" };
    let rest = CASES.len() - cases.len();
    let seconds = started.elapsed().as_secs_f64();
    say(
        out,
        &format!(
            "\ntest result: {word}. {passed} passed; {failed} failed; {ignored} ignored; \
             0 measured; {rest} filtered out; finished in {seconds:.2}s\n"
        ),
    )?;
    Ok(failed == 0)
}

/// What all boots share.
struct Suite<'a> {
    kernel: &'a Kernel,
    programs: Vec<(String, PathBuf)>,
    stop: &'a Stop,
    out: &'a mut dyn Write,
    tally: Tally,
}

/// The case whose script runs.
struct Running<'a> {
    case: &'a Case,
    since: Instant,
    lines: Vec<String>,
}

impl Suite<'_> {
    /// Runs cases in as many boots as it takes: one, and one more for each that brings its machine down.
    fn run(&mut self, machines: usize, mut pending: VecDeque<&Case>) -> Result<(), SoftRoceError> {
        while !pending.is_empty() {
            let before = pending.len();
            match self.boot_and_run(machines, &mut pending) {
                Err(error @ SoftRoceError::Machine { .. }) => {
                    say(self.out, &format!("soft-roce: {error}"))?;
                    // a case that has begun is not pending any more
                    if pending.len() == before {
                        for case in pending.drain(..) {
                            let none = Running { case, since: Instant::now(), lines: Vec::new() };
                            self.report(&none, Err("no machine".to_owned()))?;
                        }
                    }
                }
                result => result?,
            }
        }
        Ok(())
    }

    fn boot_and_run(
        &mut self,
        machines: usize,
        pending: &mut VecDeque<&Case>,
    ) -> Result<(), SoftRoceError> {
        let boot_started = Instant::now();
        let mut machines = self.boot(machines, pending)?;
        let mut deadline = boot_started + BOOT_MAX;
        let mut running: Option<Running<'_>> = None;
        loop {
            let (node, event) = match machines.next(deadline) {
                Ok(event) => event,
                Err(error) => {
                    if let Some(running) = running {
                        self.report(&running, Err("its machine was lost".to_owned()))?;
                    }
                    return Err(error);
                }
            };
            match event {
                Event::Line(line) => {
                    if let Some(running) = &mut running {
                        let node = if node == 0 { "" } else { "node 1: " };
                        running.lines.push(format!("{node}{line}"));
                    }
                }
                Event::Ready if node == 0 => {
                    let seconds = boot_started.elapsed().as_secs_f64();
                    say(self.out, &format!("soft-roce: booted in {seconds:.1} s"))?;
                }
                Event::Started { .. } => {
                    let Some(case) = pending.pop_front() else { continue };
                    let since = Instant::now();
                    deadline = since + Duration::from_secs(case.timeout_s) + GRACE;
                    running = Some(Running { case, since, lines: Vec::new() });
                }
                Event::Ended { status, .. } => {
                    if let Some(running) = running.take() {
                        self.report(&running, running.verdict(status))?;
                    }
                }
                Event::Done if node == 0 => return Ok(()),
                // node 1 has no steps, and is done from the start
                Event::Ready | Event::Done | Event::Broken => {}
            }
        }
    }

    fn boot(&self, machines: usize, pending: &VecDeque<&Case>) -> Result<Machines, SoftRoceError> {
        let steps = pending.iter().map(|case| Step {
            script: format!("{PRELUDE}{}", case.script),
            timeout: Duration::from_secs(case.timeout_s),
        });
        let mut nodes = vec![steps.collect()];
        // the other machine does what node 0 tells it
        nodes.resize_with(machines, Vec::new);
        let root = crate::root();
        let root = root.canonicalize().map_err(tools::file_error("find", root))?;
        let job = Job {
            folder: &root,
            folders: &[root.clone(), tools::target_folder()?],
            netem: "",
            programs: &self.programs,
            steps: &nodes,
            reset: true,
        };
        let hardware = Hardware { machines, memory_mib: MEMORY_MIB / machines, cpus: 2 };
        Machines::boot(self.kernel, &job, &hardware, self.stop)
    }

    /// One line for a case that passed; for one that failed, all that it said.
    fn report(
        &mut self,
        running: &Running<'_>,
        verdict: Result<String, String>,
    ) -> Result<(), SoftRoceError> {
        let name = running.case.name;
        let seconds = running.since.elapsed().as_secs_f64();
        match verdict {
            Ok(note) => {
                self.tally.passed += 1;
                let note = if note.is_empty() { note } else { format!(": {note}") };
                say(self.out, &format!("test {name} ... ok ({seconds:.1} s){note}"))
            }
            Err(reason) => {
                self.tally.failed += 1;
                say(self.out, &format!("test {name} ... FAILED ({seconds:.1} s): {reason}"))?;
                // not at the start of the line, where a suite's own counts would be counted again
                let mut lines = running.lines.iter();
                lines.try_for_each(|line| say(self.out, &format!("    {line}")))
            }
        }
    }
}

impl Running<'_> {
    fn verdict(&self, status: i32) -> Result<String, String> {
        match (status, self.case.judge) {
            (0, None) => Ok(String::new()),
            (0, Some(judge)) => judge(&self.lines.join("\n")),
            (124 | 137, _) => {
                Err(format!("exit status {status}, as after its {} s", self.case.timeout_s))
            }
            (status, _) => Err(format!("exit status {status}")),
        }
    }
}

/// Builds what the cases name, as `cargo test --workspace` does with the same features, which finds it built then,
/// and so does this after that.
fn build(
    cases: &[&Case],
    features: Option<&str>,
    stop: &Stop,
) -> Result<Vec<(String, PathBuf)>, SoftRoceError> {
    let mut wanted: Vec<Program> = Vec::new();
    for program in cases.iter().flat_map(|case| case.programs) {
        if !wanted.contains(program) {
            wanted.push(*program);
        }
    }
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = tools::command(&cargo);
    command.current_dir(crate::root()).stderr(Stdio::inherit());
    command.args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    command.args(features.into_iter().flat_map(|features| ["--features", features]));
    for program in &wanted {
        match program {
            Program::Test(target) => command.args(["--test", target]),
            // there is no way to name one library only
            Program::Unit(_) => command.arg("--lib"),
            Program::Bin(_, test) | Program::Library(_, test) => command.args(["--test", test]),
            Program::Made(example) => command.args(["--example", example]),
        };
    }
    let said = tools::output(&mut command, &[], BUILD_MAX, stop)?;
    let built: Vec<_> = Message::parse_stream(said.as_slice()).filter_map(Result::ok).collect();
    wanted
        .into_iter()
        .map(|program| {
            let file = built.iter().rev().find_map(|message| file_of(program, message));
            let mut file = file.ok_or_else(|| SoftRoceError::NotBuilt(program.name()))?;
            if let Program::Made(_) = program {
                // a machine's processor is not this one
                let mut command = tools::command(&file.to_string_lossy());
                let said = tools::output(
                    command.env("CXXFLAGS", "-march=x86-64-v2"),
                    &[],
                    BUILD_MAX,
                    stop,
                )?;
                file = PathBuf::from(String::from_utf8_lossy(&said).trim());
            }
            Ok((program.name(), file))
        })
        .collect()
}

/// The file that a message of cargo's is about, if it is this program's.
fn file_of(program: Program, message: &Message) -> Option<PathBuf> {
    let Message::CompilerArtifact(artifact) = message else { return None };
    let (target, kind, in_test_mode) = match program {
        Program::Test(target) => (target, TargetKind::Test, true),
        Program::Unit(library) => (library, TargetKind::Lib, true),
        // the same target is also built with its unit tests
        Program::Bin(target, _) => (target, TargetKind::Bin, false),
        Program::Library(target, _) => (target, TargetKind::CDyLib, false),
        Program::Made(target) => (target, TargetKind::Example, true),
    };
    let same = artifact.target.name == target
        && artifact.target.kind.contains(&kind)
        && artifact.profile.test == in_test_mode;
    let library = || artifact.filenames.iter().find(|file| file.extension() == Some("so"));
    let file = artifact.executable.as_ref().or_else(library).filter(|_| same)?;
    Some(file.clone().into_std_path_buf())
}
