//! `cargo xtask <task>`: tasks of the project itself. Parses arguments and prints; the tasks are in
//! the library, where tests reach them.

use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};
use xtask::gpu::{self, GpuDriver, GpuPrograms, GpuRun};
use xtask::soft_roce::{self, Hardware, Run, SoftRoceError, Stop, remote};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of the project itself")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Hold the code against ARCHITECTURE.md: who may use whom, and which words live where
    Tidy,
    /// Small virtual machines with Soft-RoCE, an RDMA device without a NIC
    SoftRoce {
        #[command(subcommand)]
        task: SoftRoce,
    },
    /// Run on this machine's GPU what needs one, and print what ran on what: suites, jobs, speeds
    Gpu(GpuArguments),
    /// Compile the kernels of crates/cuda to PTX anew; takes python3 with pip, and no GPU
    Ptx {
        /// Write nothing: say whether the PTX is that of the sources, and whether it assembles
        #[arg(long)]
        check: bool,
    },
    /// Write the licences of all crates that the program is linked from, which go with it
    Licences {
        file: PathBuf,
        /// What the program was built for [default: x86_64-unknown-linux-gnu]
        #[arg(
            long,
            value_name = "TRIPLE",
            default_value = "x86_64-unknown-linux-gnu",
            hide_default_value = true
        )]
        target: String,
        /// What the program was built with, as for cargo
        #[arg(long, value_name = "FEATURES", value_delimiter = ',')]
        features: Vec<String>,
    },
    /// Write crates/fabric's declarations of libibverbs anew, from its C headers; takes bindgen
    VerbsDeclarations,
}

#[derive(Subcommand)]
enum SoftRoce {
    /// Make what the machines boot from: Debian's kernel and a small initial file system
    Prepare {
        #[command(flatten)]
        cache: Cache,
    },
    /// Run a command in one machine, or in each of two that share a network
    Run(RunArguments),
    /// Run the cases that need an RDMA device, and report as `cargo test` does
    Test {
        /// Only cases whose names hold this
        #[arg(default_value = "")]
        filter: String,
        /// What to build with, as for cargo: what was built with the same is not built again
        #[arg(long, value_name = "FEATURES")]
        features: Option<String>,
        #[command(flatten)]
        cache: Cache,
    },
    /// In a machine: run commands for the other one
    #[command(hide = true)]
    Serve,
    /// In a machine: run a command on the other one
    #[command(hide = true)]
    Rsh {
        host: String,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<String>,
    },
}

#[derive(Args)]
struct GpuArguments {
    /// Only these [default: all, at most an hour and a half after the build]
    #[arg(value_name = "PART", value_parser = PossibleValuesParser::new(gpu::part_names()))]
    parts: Vec<String>,
    /// The library of CUDA's driver [default: the one that the dynamic linker finds]
    #[arg(long, value_name = "FILE", conflicts_with = "stand_in")]
    cuda_driver: Option<PathBuf>,
    /// Without a GPU, on what stands in its place in tests: tries the command, and measures nothing
    #[arg(long)]
    stand_in: bool,
    /// Append what ran and what was measured to this file, as lines of JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Install PyTorch to measure beside, if no python3 has it: some 6 GB in the user's cache
    #[arg(long)]
    with_torch: bool,
    /// What to build with, as for cargo [default: tensorwire-cli/baselines where there is a C++ compiler]
    #[arg(long, value_name = "FEATURES")]
    features: Option<String>,
    /// Run nothing: build all programs, this one too, and put them into a folder, for a machine without Rust
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["parts", "cuda_driver", "stand_in", "json", "with_torch"])]
    pack: Option<PathBuf>,
    /// Build nothing: run the programs that --pack put into this folder, in a checkout of the same commit
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["pack", "stand_in", "features"])]
    packed: Option<PathBuf>,
}

#[derive(Args)]
struct Cache {
    /// Where it is kept [default: soft-roce in cargo's target folder]
    #[arg(long, value_name = "FOLDER")]
    cache: Option<PathBuf>,
}

#[derive(Args)]
struct RunArguments {
    /// One, or two that share a network; NODE is 0 or 1 there, the address 10.9.0.1 or 10.9.0.2
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    machines: u8,
    /// Memory of each, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 2048)]
    memory: usize,
    /// Processors of each
    #[arg(long, value_name = "N", default_value_t = 2)]
    cpus: usize,
    /// Seconds for the command, after which its status is 124
    #[arg(long, value_name = "S", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86400))]
    timeout: u64,
    /// What the network does to packets, as tc's netem takes it: 'loss 1% delay 2ms'
    #[arg(long, value_name = "SPEC")]
    netem: Option<String>,
    #[command(flatten)]
    cache: Cache,
    /// The command and its arguments, taken as they are: for a line of shell, `bash -c '…'`
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

fn main() -> ExitCode {
    match Arguments::parse().task {
        Task::Tidy => tidy(),
        Task::SoftRoce { task } => soft_roce(task).unwrap_or_else(|error| {
            eprintln!("soft-roce: {error}");
            ExitCode::FAILURE
        }),
        Task::Gpu(arguments) => on_gpu(arguments),
        Task::Ptx { check } => ptx(check),
        Task::Licences { file, target, features } => licences(&file, &target, &features),
        Task::VerbsDeclarations => verbs_declarations(),
    }
}

fn on_gpu(arguments: GpuArguments) -> ExitCode {
    let GpuArguments { parts, cuda_driver, stand_in, json, with_torch, features, pack, packed } =
        arguments;
    let driver = if stand_in { GpuDriver::StandIn } else { GpuDriver::Real(cuda_driver) };
    let run = GpuRun {
        parts: &parts,
        driver,
        json: json.as_deref(),
        with_torch,
        features: features.as_deref(),
        programs: match &packed {
            Some(folder) => GpuPrograms::Packed(folder),
            None => GpuPrograms::ToBuild,
        },
    };
    let stop = Stop::on_signals().map_err(gpu::GpuError::from);
    let ran = stop.and_then(|stop| match &pack {
        Some(folder) => {
            gpu::pack(folder, features.as_deref(), &stop, &mut io::stdout()).map(|()| true)
        }
        None => gpu::run(run, &stop, &mut io::stdout()),
    });
    match ran {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("gpu: {error}");
            ExitCode::FAILURE
        }
    }
}

fn licences(file: &Path, target: &str, features: &[String]) -> ExitCode {
    let written = xtask::licences::page(xtask::root(), target, features)
        .map_err(|error| error.to_string())
        .and_then(|page| {
            std::fs::write(file, page).map_err(|error| format!("{}: {error}", file.display()))
        });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("licences: {error}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "a program that people run")]
fn ptx(check: bool) -> ExitCode {
    let root = xtask::root();
    let done = match check {
        true => xtask::ptx::check(root).map(|(files, machines)| (files, machines.join(", "))),
        false => xtask::ptx::write(root).map(|files| (files, String::new())),
    };
    match done {
        Ok((files, machines)) => {
            files.iter().for_each(|made| println!("{} {}", made.file, made.bytes));
            let bytes: usize = files.iter().map(|made| made.bytes).sum();
            let assembled = if check { format!("; assembles for {machines}") } else { machines };
            println!("{bytes} bytes{assembled}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("ptx: {error}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "a program that people run")]
fn verbs_declarations() -> ExitCode {
    match xtask::verbs::write_declarations(xtask::root()) {
        Ok(file) => {
            println!("{file}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("verbs-declarations: {error}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "a program that people run")]
fn tidy() -> ExitCode {
    match xtask::tidy::check(xtask::root()) {
        Ok(complaints) if complaints.is_empty() => {
            println!("tidy");
            ExitCode::SUCCESS
        }
        Ok(complaints) => {
            complaints.iter().for_each(|complaint| println!("{complaint}"));
            eprintln!("{} complaints", complaints.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn soft_roce(task: SoftRoce) -> Result<ExitCode, SoftRoceError> {
    match task {
        SoftRoce::Serve => return Ok(serve()),
        SoftRoce::Rsh { host, command } => return Ok(rsh(&host, &command.join(" "))),
        _ => {}
    }
    let stop = Stop::on_signals()?;
    let out = &mut io::stdout();
    Ok(match task {
        SoftRoce::Prepare { cache } => {
            soft_roce::prepare(&cache.folder()?, &stop, out)?;
            ExitCode::SUCCESS
        }
        SoftRoce::Run(arguments) => run(&arguments, &stop)?,
        SoftRoce::Test { filter, features, cache } => {
            let cache = cache.folder()?;
            let passed = soft_roce::test(&filter, features.as_deref(), &cache, &stop, out)?;
            if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        SoftRoce::Serve | SoftRoce::Rsh { .. } => ExitCode::SUCCESS,
    })
}

fn run(arguments: &RunArguments, stop: &Stop) -> Result<ExitCode, SoftRoceError> {
    let request = Run {
        hardware: Hardware {
            machines: usize::from(arguments.machines),
            memory_mib: arguments.memory,
            cpus: arguments.cpus,
        },
        timeout: Duration::from_secs(arguments.timeout),
        netem: arguments.netem.as_deref(),
        command: &arguments.command,
    };
    let cache = arguments.cache.folder()?;
    let status = soft_roce::run(&request, &cache, stop, &mut io::stdout())?;
    // the status of a process is a byte
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)))
}

fn serve() -> ExitCode {
    let served = TcpListener::bind(("0.0.0.0", remote::PORT)).and_then(|l| remote::serve(&l));
    if let Err(error) = served {
        eprintln!("soft-roce serve: {error}");
    }
    ExitCode::FAILURE
}

fn rsh(host: &str, command: &str) -> ExitCode {
    let (out, err) = (&mut io::stdout(), &mut io::stderr());
    let status = remote::call((host, remote::PORT), command, io::stdin(), out, err);
    let status = status.unwrap_or_else(|error| {
        eprintln!("rsh {host}: {error}");
        remote::STATUS_LOST
    });
    // not by returning: another thread may still read standard input
    std::process::exit(status)
}

impl Cache {
    fn folder(&self) -> Result<PathBuf, SoftRoceError> {
        self.cache.clone().map_or_else(soft_roce::cache_folder, Ok)
    }
}
