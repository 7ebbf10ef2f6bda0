//! The kernels of crate `cuda` as a library that runs on the CPU: its one source in CUDA C, compiled by the C++ compiler that
//! is here, with the shim before it. Knows files and a compiler, and no kernel.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::program::itself;

/// Numbers as a device has them: nothing is fused that the source does not fuse.
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

/// The library, built if these sources were not built before. Tests that run at the same time build it once.
///
/// # Errors
/// Why there is none: no compiler is here.
pub fn cuda_shim() -> Result<PathBuf, String> {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cuda");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let version = Command::new(&compiler).arg("--version").output();
    let version = version.map_err(|error| {
        format!("no C++ compiler, which kernels are built with for tests: {compiler}: {error}")
    })?;
    let sources = Sources::read(&crate_folder).unwrap();
    // target/debug/deps/test-0123456789abcdef
    let folder = itself().ancestors().nth(2).unwrap().join("cuda-shim");
    let folder = folder.join(format!("{:016x}", sources.hash(&version.stdout)));
    let library = folder.join("libkernels.so");
    fs::create_dir_all(&folder).unwrap();
    let lock = File::create(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    if !library.exists() {
        sources.build(&compiler, &crate_folder, &folder, &library);
    }
    Ok(library)
}

/// The files with their contents.
struct Sources(Vec<(PathBuf, Vec<u8>)>);

impl Sources {
    fn read(crate_folder: &Path) -> io::Result<Sources> {
        let mut files = Vec::new();
        for folder in ["kernels", "shim"] {
            for file in fs::read_dir(crate_folder.join(folder))? {
                let path = file?.path();
                let text = fs::read(&path)?;
                files.push((path, text));
            }
        }
        files.sort();
        Ok(Sources(files))
    }

    fn hash(&self, compiler: &[u8]) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.0, compiler, FLAGS).hash(&mut hasher);
        hasher.finish()
    }

    /// Compiles every file on its own, as many at a time as there are processors, and links them.
    fn build(&self, compiler: &str, crate_folder: &Path, folder: &Path, library: &Path) {
        let has = |path: &Path, end: &str| path.extension().is_some_and(|found| found == end);
        let units = self.0.iter().map(|(path, _)| path);
        let units: Vec<&PathBuf> = units.filter(|p| has(p, "cu") || has(p, "cpp")).collect();
        let object = |unit: &Path| {
            let name = unit.file_name().unwrap_or_default();
            folder.join(format!("{}.o", name.to_string_lossy()))
        };
        let compile = |unit: &Path| {
            let mut command = Command::new(compiler);
            command.args(FLAGS).arg("-include").arg(crate_folder.join("shim/cuda.hpp"));
            command.args(["-x", "c++", "-c"]).arg(unit).arg("-o").arg(object(unit));
            succeeded(command.output());
        };
        let next = std::sync::atomic::AtomicUsize::new(0);
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..processors {
                scope.spawn(|| {
                    while let Some(unit) =
                        units.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                    {
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
}

#[track_caller]
fn succeeded(output: io::Result<Output>) {
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the kernels do not compile for the CPU:\n{said}");
}
