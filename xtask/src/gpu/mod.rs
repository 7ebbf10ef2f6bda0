//! What a person runs once on a machine with a GPU: suites on its driver, whole jobs, speeds beside PyTorch's. Prints what
//! ran on what, and writes it as lines of JSON. Knows the project's programs by their names and output, and no GPU.

mod build;
mod collectives;
mod jobs;
mod pack;
mod process;
mod sanitizer;
mod speeds;
mod steps;
mod suites;
mod torch_losses;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::soft_roce::{SoftRoceError, Stop};

pub use build::Programs;
pub use pack::pack;
use process::Ended;

/// What the command was told.
#[derive(Debug)]
pub struct GpuRun<'a> {
    /// Names of parts; none: all.
    pub parts: &'a [String],
    pub driver: GpuDriver,
    /// Lines are appended to this file.
    pub json: Option<&'a Path>,
    /// PyTorch is installed if it is not there.
    pub with_torch: bool,
    /// What to build with, as for cargo; none: what this machine can build.
    pub features: Option<&'a str>,
    pub programs: GpuPrograms<'a>,
}

/// Where what the parts run comes from.
#[derive(Debug)]
pub enum GpuPrograms<'a> {
    /// Built first.
    ToBuild,
    /// What [`pack`] put into this folder.
    Packed(&'a Path),
    Built(Box<Programs>),
}

/// On what it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuDriver {
    /// The machine's own: of this library, or the one that the dynamic linker finds.
    Real(Option<PathBuf>),
    /// The driver without a GPU.
    StandIn,
}

/// What became of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed(String),
    Failed(String),
    NotRun(String),
}

/// A part by its name.
struct Part {
    name: &'static str,
    /// In all.
    limit_s: u64,
    run: fn(&mut Bench<'_, '_>) -> Outcome,
}

const PARTS: &[Part] = &[
    Part { name: "machine", limit_s: 60, run: suites::machine },
    Part { name: "questions", limit_s: 60, run: suites::questions },
    Part { name: "driver", limit_s: 180, run: suites::driver },
    Part { name: "operators", limit_s: 300, run: suites::operators },
    Part { name: "jobs", limit_s: 180, run: jobs::same_bits },
    Part { name: "losses", limit_s: 180, run: jobs::losses },
    Part { name: "torch-losses", limit_s: 600, run: torch_losses::losses },
    Part { name: "rates", limit_s: 60, run: speeds::rates },
    Part { name: "collectives", limit_s: 120, run: collectives::vectors },
    Part { name: "crossings", limit_s: 600, run: speeds::crossings },
    Part { name: "gpudirect", limit_s: 300, run: speeds::gpudirect },
    Part { name: "steps", limit_s: 1800, run: steps::steps },
    Part { name: "sanitizer", limit_s: 900, run: sanitizer::sanitizer },
];

/// Parts that hold something beside PyTorch.
const BESIDE_TORCH: [&str; 2] = ["torch-losses", "steps"];

/// Why nothing ran.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    #[error("there is no part '{0}'; there are {1}")]
    NoSuchPart(String, String),
    #[error(
        "this machine has no GPU of NVIDIA's that Linux shows (no /dev/nvidiactl); run it on one that has, or name the \
         driver's library by --cuda-driver; --stand-in tries the command itself, and measures nothing"
    )]
    NoGpu,
    #[error(transparent)]
    Program(#[from] SoftRoceError),
    #[error("cannot write {file}: {source}")]
    File { file: PathBuf, source: io::Error },
    #[error("{folder} has no {missing}: `cargo xtask gpu --pack FOLDER` makes a folder that has")]
    NotPacked { folder: PathBuf, missing: &'static str },
}

/// What a part works with.
struct Bench<'a, 'b> {
    programs: &'a Programs,
    driver: &'a GpuDriver,
    stop: &'a Stop,
    /// A Python with PyTorch.
    python: Option<&'a Path>,
    report: &'a mut Report<'b>,
    part: &'static str,
    until: Instant,
}

/// Where results go.
struct Report<'a> {
    out: &'a mut dyn Write,
    json: Option<&'a Path>,
    is_stand_in: bool,
}

/// The names of all parts, in their order.
pub fn part_names() -> Vec<&'static str> {
    PARTS.iter().map(|part| part.name).collect()
}

/// How long all parts may take together, once the programs are built.
pub fn limits_s() -> u64 {
    PARTS.iter().map(|part| part.limit_s).sum()
}

/// Runs the parts one after the other; one that fails stops no other. True if none failed.
///
/// # Errors
/// When nothing can run at all: no GPU, no such part, a build that fails, Ctrl-C.
pub fn run(run: GpuRun<'_>, stop: &Stop, out: &mut dyn Write) -> Result<bool, GpuError> {
    let unknown = run.parts.iter().find(|part| !part_names().contains(&part.as_str()));
    if let Some(unknown) = unknown {
        return Err(GpuError::NoSuchPart(unknown.clone(), part_names().join(", ")));
    }
    let is_stand_in = run.driver == GpuDriver::StandIn;
    if run.driver == GpuDriver::Real(None) && !Path::new("/dev/nvidiactl").exists() {
        return Err(GpuError::NoGpu);
    }
    let mut report = Report { out, json: run.json, is_stand_in };
    if is_stand_in {
        report.line("on the stand-in: no GPU is here, sizes are small, and NOTHING IS MEASURED")?;
    }
    let looks_for_python = !matches!(run.programs, GpuPrograms::Built(_));
    let mut programs = match run.programs {
        GpuPrograms::ToBuild => build::build(run.features, is_stand_in, stop)?,
        GpuPrograms::Packed(folder) => pack::packed(folder)?,
        GpuPrograms::Built(programs) => *programs,
    };
    let chosen: Vec<&Part> = PARTS
        .iter()
        .filter(|part| run.parts.is_empty() || run.parts.iter().any(|name| name == part.name))
        .collect();
    // on a GPU all parts take the libraries that PyTorch brings
    let wants_torch = !is_stand_in || chosen.iter().any(|part| BESIDE_TORCH.contains(&part.name));
    if looks_for_python && wants_torch {
        programs.python = build::python(run.with_torch, stop);
    }
    let (mut passed, mut failed, mut not_run) = (0, 0, 0);
    let started = Instant::now();
    for part in chosen {
        let begun = Instant::now();
        let outcome = (part.run)(&mut Bench {
            programs: &programs,
            driver: &run.driver,
            stop,
            python: programs.python.as_deref(),
            report: &mut report,
            part: part.name,
            until: begun + Duration::from_secs(part.limit_s),
        });
        stop.check()?;
        let (word, why) = match &outcome {
            Outcome::Passed(what) => ("passed", what),
            Outcome::Failed(why) => ("failed", why),
            Outcome::NotRun(why) => ("not run", why),
        };
        match outcome {
            Outcome::Passed(_) => passed += 1,
            Outcome::Failed(_) => failed += 1,
            Outcome::NotRun(_) => not_run += 1,
        }
        let seconds = begun.elapsed().as_secs_f64();
        report.line(&format!("{:12} {word} ({seconds:.1} s): {why}", part.name))?;
        report.json(json!({
            "part": part.name, "outcome": word, "said": why, "seconds": seconds,
        }))?;
    }
    let seconds = started.elapsed().as_secs_f64();
    let ending = if is_stand_in { "; on the stand-in: nothing was measured" } else { "" };
    report.line(&format!(
        "{passed} passed, {failed} failed, {not_run} not run in {seconds:.0} s{ending}"
    ))?;
    Ok(failed == 0)
}

impl Report<'_> {
    fn line(&mut self, line: &str) -> Result<(), GpuError> {
        let wrote = writeln!(self.out, "gpu: {line}").and_then(|()| self.out.flush());
        wrote.map_err(|source| GpuError::File { file: "standard output".into(), source })
    }

    fn json(&mut self, mut line: Value) -> Result<(), GpuError> {
        let Some(file) = self.json else { return Ok(()) };
        line["gpu_run"] = json!(if self.is_stand_in { "stand-in" } else { "hardware" });
        let opened = std::fs::OpenOptions::new().create(true).append(true).open(file);
        let wrote = opened.and_then(|mut opened| writeln!(opened, "{line}"));
        wrote.map_err(|source| GpuError::File { file: file.to_owned(), source })
    }
}

impl Bench<'_, '_> {
    fn is_stand_in(&self) -> bool {
        *self.driver == GpuDriver::StandIn
    }

    /// The driver, as suites and the example take it.
    fn driver_word(&self) -> String {
        let library = match self.driver {
            GpuDriver::Real(library) => library.as_deref(),
            GpuDriver::StandIn => self.programs.stand_in.as_ref().map(|(library, _)| &**library),
        };
        library.map_or_else(|| "real".to_owned(), |library| library.display().to_string())
    }

    /// `--cuda-driver FILE`, where it is not the one that is found.
    fn driver_option(&self) -> Vec<String> {
        match self.driver_word() {
            word if word == "real" => Vec::new(),
            word => vec!["--cuda-driver".to_owned(), word],
        }
    }

    /// A program that finds the driver.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("TENSORWIRE_TEST_CUDA", self.driver_word()).env("RUST_BACKTRACE", "0");
        // programs ask python3 where the libraries lie that PyTorch brings
        if let Some(folder) = self.python.and_then(Path::parent) {
            let others = std::env::var_os("PATH").unwrap_or_default();
            let all = [folder.to_owned()].into_iter().chain(std::env::split_paths(&others));
            // a folder with a colon in its name cannot be in it
            if let Ok(path) = std::env::join_paths(all) {
                command.env("PATH", path);
            }
        }
        if let Some((_, kernels)) = self.programs.stand_in.as_ref().filter(|_| self.is_stand_in()) {
            command.env("FAKE_CUDA_KERNELS", kernels);
        }
        command
    }

    /// Runs a command to its end, or to the end of the part's time.
    fn run(&self, command: &mut Command) -> Result<Ended, String> {
        process::run(command, self.until, self.stop)
    }

    /// Tells a figure, or an answer.
    fn say(&mut self, mut line: Value) -> Result<(), String> {
        let words: Vec<String> = line
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| format!("{key} {}", short(value)))
            .collect();
        let text = format!("  {}", words.join(", "));
        line["part"] = json!(self.part);
        let told = self.report.line(&text).and_then(|()| self.report.json(line));
        told.map_err(|error| error.to_string())
    }
}

/// A value for people.
fn short(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(real) if real.abs() >= 1e6 => format!("{real:.3e}"),
            Some(real) => format!("{real:.4}"),
            None => number.to_string(),
        },
        other => other.to_string(),
    }
}
