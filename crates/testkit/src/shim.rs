//! The kernels of crate `cuda` as a library that runs on the CPU: its one source in CUDA C, compiled by the C++ compiler that
//! is here, with the shim before it. Knows files and a compiler, and no kernel.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::program::itself;

/// Numbers as a device has them: nothing is fused that the source does not fuse. What `CXXFLAGS` says comes behind them.
const FLAGS: &[&str] = &[
    "-std=c++17",
    "-O2",
    "-march=native",
    "-ffp-contract=off",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Werror",
];

/// The library of the project's kernels, built if they were not built before. Tests that run at the same time build it once.
///
/// # Errors
/// Why there is none: no compiler is here.
pub fn cuda_shim() -> Result<PathBuf, String> {
    let kernels = files(&crate_folder().join("kernels")).unwrap();
    library(kernels.into_iter().filter(|file| has(file, "cu")).collect())
}

/// As [`cuda_shim`], of one file of kernels.
///
/// # Errors
/// As [`cuda_shim`].
pub fn cuda_shim_of(kernels: &Path) -> Result<PathBuf, String> {
    library(vec![kernels.to_owned()])
}

fn crate_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../cuda")
}

fn library(mut units: Vec<PathBuf>) -> Result<PathBuf, String> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let version = Command::new(&compiler).arg("--version").output();
    let version = version.map_err(|error| {
        format!("no C++ compiler, which kernels are built with for tests: {compiler}: {error}")
    })?;
    units.push(crate_folder().join("shim/shim.cpp"));
    let flags = std::env::var("CXXFLAGS").unwrap_or_default();
    let flags: Vec<&str> = FLAGS.iter().copied().chain(flags.split_whitespace()).collect();
    let hash = hash(&units, &version.stdout, &flags).unwrap();
    // target/debug/deps/test-0123456789abcdef
    let folder =
        itself().ancestors().nth(2).unwrap().join("cuda-shim").join(format!("{hash:016x}"));
    let library = folder.join("libkernels.so");
    fs::create_dir_all(&folder).unwrap();
    let lock = File::create(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    if !library.exists() {
        build((&compiler, &flags), &units, &folder, &library);
    }
    Ok(library)
}

/// Of all that is compiled: the units, the headers that they share, and how.
fn hash(units: &[PathBuf], compiler: &[u8], flags: &[&str]) -> io::Result<u64> {
    let mut all = units.to_vec();
    for folder in ["kernels", "shim"] {
        let headers = files(&crate_folder().join(folder))?;
        all.extend(headers.into_iter().filter(|file| has(file, "cuh") || has(file, "hpp")));
    }
    let mut hasher = DefaultHasher::new();
    (compiler, flags).hash(&mut hasher);
    for file in all {
        (&file, fs::read(&file)?).hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// The files of a folder, in their order.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut files = entries.collect::<io::Result<Vec<PathBuf>>>()?;
    files.sort();
    Ok(files)
}

fn has(file: &Path, extension: &str) -> bool {
    file.extension().is_some_and(|found| found == extension)
}

/// Compiles every unit on its own, as many at a time as there are processors, and links them.
fn build((compiler, flags): (&str, &[&str]), units: &[PathBuf], folder: &Path, library: &Path) {
    let object = |unit: &Path| {
        folder.join(format!("{}.o", unit.file_name().unwrap_or_default().to_string_lossy()))
    };
    let compile = |unit: &Path| {
        let mut command = Command::new(compiler);
        command.args(flags).arg("-include").arg(crate_folder().join("shim/cuda.hpp"));
        command.arg("-I").arg(crate_folder().join("kernels"));
        command.args(["-x", "c++", "-c"]).arg(unit).arg("-o").arg(object(unit));
        succeeded(command.output());
    };
    let next = AtomicUsize::new(0);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(|| {
                while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                    compile(unit);
                }
            });
        }
    });
    let linked = library.with_extension("new");
    let mut command = Command::new(compiler);
    command.arg("-shared").args(units.iter().map(|unit| object(unit))).arg("-o").arg(&linked);
    succeeded(command.output());
    // whole or not at all
    fs::rename(linked, library).unwrap();
}

#[track_caller]
fn succeeded(output: io::Result<Output>) {
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the kernels do not compile for the CPU:\n{said}");
}
