//! Writes `crates/cuda/ptx`: the kernels' one source in CUDA C, compiled by NVRTC, and says whether NVIDIA's assembler takes
//! it. Files are packed, for they are in the program. Both come as wheels into a folder that is thrown away; neither needs a GPU. Knows files and programs, and no kernel.

use std::fmt::Write as _;
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

/// In the workspace.
const SOURCES: &str = "crates/cuda/kernels";
const WRITTEN: &str = "crates/cuda/ptx";

/// The first architecture that has all that the kernels use. Later ones take its PTX.
const TARGET: &str = "compute_80";

/// Of 12.0, whose PTX every driver takes that has all functions which are used (525 and newer).
const COMPILER: &str = "nvidia-cuda-nvrtc-cu12==12.0.140";
const COMPILER_LIBRARY: &str = "nvidia/cuda_nvrtc/lib/libnvrtc.so.12";
const ASSEMBLER: &str = "nvidia-cuda-nvcc-cu12==12.0.140";
const ASSEMBLER_PROGRAM: &str = "nvidia/cuda_nvcc/bin/ptxas";

/// What the PTX is assembled for.
const MACHINES: [&str; 2] = ["sm_80", "sm_90"];

const PREFACE: &str =
    "// Written by `cargo xtask ptx` from crates/cuda/kernels; not to be changed by hand.";

/// Of the line that says what a file was made from.
const HASH: &str = "// sources ";

/// Why there is no PTX, or none that is right.
#[derive(Debug, thiserror::Error)]
pub enum PtxError {
    #[error("cannot run {program} ({source})")]
    Run { program: String, source: io::Error },
    #[error("{package} cannot be installed; pip says:\n{said}")]
    Install { package: &'static str, said: String },
    #[error("the kernels do not compile:\n{0}")]
    Compile(String),
    #[error("{file} does not assemble for {machine}:\n{said}")]
    Assemble { file: String, machine: &'static str, said: String },
    #[error("{file} was made from other sources; run `cargo xtask ptx`")]
    Stale { file: String },
    #[error("cannot read or write {file}: {source}")]
    File { file: PathBuf, source: io::Error },
}

/// What was written, or checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxFile {
    /// From the workspace's folder.
    pub file: String,
    pub bytes: usize,
}

/// Compiles the kernels and writes their PTX, one file for each of theirs.
///
/// # Errors
/// When the compiler cannot be had, or refuses.
pub fn write(root: &Path) -> Result<Vec<PtxFile>, PtxError> {
    let (names, hash) = (sources(root)?, hash(root)?);
    let folder = tempfile::tempdir().map_err(|source| file_error(Path::new("."), source))?;
    install(folder.path(), COMPILER)?;
    let script = folder.path().join("nvrtc.py");
    put(&script, include_str!("ptx/nvrtc.py"))?;
    let from = root.join(SOURCES);
    let mut command = Command::new("python3");
    command.current_dir(folder.path()).arg(&script).arg(folder.path().join(COMPILER_LIBRARY));
    command.arg(TARGET).arg(&from).args(names.iter().map(|name| from.join(name)));
    let done = run(&mut command)?;
    if !done.status.success() {
        return Err(PtxError::Compile(String::from_utf8_lossy(&done.stderr).into_owned()));
    }
    let mut written = Vec::with_capacity(names.len());
    for name in &names {
        let text = get(&folder.path().join(name).with_extension("ptx"))?;
        let text = format!("{PREFACE}\n{HASH}{hash}\n{}", compact(&text));
        let file = packed(name);
        pack(&root.join(&file), &text).map_err(|source| file_error(&file, source))?;
        written.push(PtxFile { file: file.display().to_string(), bytes: text.len() });
    }
    Ok(written)
}

/// Holds the PTX that is there against the sources, and has it assembled for the machines that are named.
///
/// # Errors
/// When it is stale, or the assembler cannot be had, or refuses.
pub fn check(root: &Path) -> Result<(Vec<PtxFile>, &'static [&'static str]), PtxError> {
    let (names, hash) = (sources(root)?, hash(root)?);
    let folder = tempfile::tempdir().map_err(|source| file_error(Path::new("."), source))?;
    install(folder.path(), ASSEMBLER)?;
    let mut checked = Vec::with_capacity(names.len());
    for name in names {
        let path = packed(&name);
        let file = path.display().to_string();
        let text = unpack(&root.join(&path)).map_err(|source| file_error(&path, source))?;
        let unpacked = folder.path().join("kernels.ptx");
        put(&unpacked, &text)?;
        if !text.lines().any(|line| line.strip_prefix(HASH) == Some(&hash)) {
            return Err(PtxError::Stale { file });
        }
        for machine in MACHINES {
            let mut command = Command::new(folder.path().join(ASSEMBLER_PROGRAM));
            command.arg(format!("-arch={machine}")).arg(&unpacked);
            command.arg("-o").arg(folder.path().join("assembled"));
            let done = run(&mut command)?;
            if !done.status.success() {
                let said = String::from_utf8_lossy(&done.stderr).into_owned();
                return Err(PtxError::Assemble { file, machine, said });
            }
        }
        checked.push(PtxFile { file, bytes: text.len() });
    }
    Ok((checked, &MACHINES))
}

/// The file of a source's PTX, from the workspace's folder.
fn packed(source: &str) -> PathBuf {
    Path::new(WRITTEN).join(source).with_extension("ptx.gz")
}

fn pack(file: &Path, text: &str) -> io::Result<()> {
    let mut packed = GzEncoder::new(std::fs::File::create(file)?, Compression::best());
    packed.write_all(text.as_bytes())?;
    packed.finish().map(drop)
}

fn unpack(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    GzDecoder::new(std::fs::File::open(file)?).read_to_string(&mut text)?;
    Ok(text)
}

/// The files that are compiled, in their order.
fn sources(root: &Path) -> Result<Vec<String>, PtxError> {
    let all = source_files(root)?;
    Ok(all.into_iter().filter(|name| name.ends_with(".cu")).collect())
}

/// All files of the kernels, by name.
fn source_files(root: &Path) -> Result<Vec<String>, PtxError> {
    let folder = root.join(SOURCES);
    let wrong = |source| file_error(&folder, source);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(wrong)? {
        names.push(entry.map_err(wrong)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// The SHA-256 of all names and contents, in their order: a test of crate `cuda` computes the same.
fn hash(root: &Path) -> Result<String, PtxError> {
    let mut hasher = Sha256::new();
    for name in source_files(root)? {
        hasher.update(&name);
        hasher.update(get(&root.join(SOURCES).join(&name))?);
    }
    let mut text = String::new();
    for byte in hasher.finalize() {
        // a string takes all that is written to it
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

/// The text without comments and blanks that nobody reads, and with short names of parameters.
fn compact(ptx: &str) -> String {
    let mut compact = String::with_capacity(ptx.len());
    for line in ptx.lines() {
        let line = line.split("//").next().unwrap_or_default().trim();
        if !line.is_empty() {
            let words: Vec<&str> = line.split_whitespace().collect();
            compact.push_str(&short_parameters(&words.join(" ").replace(", ", ",")));
            compact.push('\n');
        }
    }
    compact
}

/// `kernel_param_0` becomes `p0`: a parameter's name is known in its function alone.
fn short_parameters(line: &str) -> String {
    const MARK: &str = "_param_";
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
    let (mut short, mut rest) = (String::with_capacity(line.len()), line);
    while let Some(at) = rest.find(MARK) {
        let before = &rest[..at];
        let name = before.rfind(|c| !is_name(c)).map_or(0, |end| end + 1);
        short.push_str(&before[..name]);
        short.push('p');
        rest = &rest[at + MARK.len()..];
    }
    short.push_str(rest);
    short
}

fn install(folder: &Path, package: &'static str) -> Result<(), PtxError> {
    let mut command = Command::new("python3");
    command.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]);
    let done = run(command.arg(folder).arg(package))?;
    match done.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            Err(PtxError::Install { package, said })
        }
    }
}

fn run(command: &mut Command) -> Result<Output, PtxError> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.output().map_err(|source| PtxError::Run { program, source })
}

fn get(file: &Path) -> Result<String, PtxError> {
    std::fs::read_to_string(file).map_err(|source| file_error(file, source))
}

fn put(file: &Path, text: &str) -> Result<(), PtxError> {
    std::fs::write(file, text).map_err(|source| file_error(file, source))
}

fn file_error(file: &Path, source: io::Error) -> PtxError {
    PtxError::File { file: file.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_reads_is_left_out() {
        let ptx = "//\n// by NVVM\n.visible .entry  map_f32(\n\t.param .b8 map_f32_param_0[48]\n)\n{\n\n\tld.param.u64 \t%rd1, \
                   [map_f32_param_0+16]; // x\n\tst.b64 [_Z1f_param_12], %rd2;\n}\n";
        assert_eq!(
            compact(ptx),
            ".visible .entry map_f32(\n.param .b8 p0[48]\n)\n{\nld.param.u64 %rd1,[p0+16];\nst.b64 [p12],%rd2;\n}\n"
        );
    }
}
