//! A user's CUDA C, made a library for the processor: the compiler, what NVRTC's options are to it, and what its log would be
//! of NVRTC. What was made once stays beside the kernels of the tests, for whoever compiles the same.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use tensorwire_device::sys::nvrtc::*;

use crate::kernels::Kernels;

/// Numbers as a device has them; a warning is none of the user's.
const FLAGS: &[&str] = &[
    "-std=c++17",
    "-O1",
    "-ffp-contract=off",
    "-fPIC",
    "-fvisibility=hidden",
    "-w",
    "-DSHIM_OF_PROGRAM",
];

/// Before the text of a cubin, as of ELF.
pub(crate) const MACHINE_CODE: &str = "\u{7f}ELF stand-in ";
/// Before the number of the library that runs an image's kernels.
const LIBRARY: &str = "// stand-in's library ";

/// What a program has come to. Both end with a 0.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) ptx: Vec<u8>,
    /// Nothing where the target is a virtual one.
    pub(crate) machine_code: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) status: nvrtcResult,
    pub(crate) log: String,
}

impl Failed {
    fn new(status: nvrtcResult, log: impl Into<String>) -> Failed {
        Failed { status, log: log.into() }
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        crate::state::say(&format!("a program is not compiled: {error}"));
        Failed::new(NVRTC_ERROR_INTERNAL_ERROR, "")
    }
}

/// What the options say.
#[derive(Debug, Default)]
struct Options {
    /// As of `.target`.
    target: u32,
    is_real: bool,
    /// Macros, and where headers are, as the C++ compiler is told of them.
    others: Vec<String>,
}

/// Compiles a source; `keep` gives the number that the library is known by.
pub(crate) fn compile(
    name: &str,
    source: &str,
    options: &[String],
    version: i32,
    keep: impl FnOnce(Kernels) -> usize,
) -> Result<Made, Failed> {
    let options = parsed(options)?;
    let library = library(name, source, &options.others)?;
    let wrong = |why: String| Failed::from(io::Error::other(why));
    let path = library.to_str().ok_or_else(|| wrong(format!("{}", library.display())))?;
    let kernels = Kernels::load(path).map_err(wrong)?;
    let entries = kernels.entries().map_err(wrong)?;
    let number = keep(kernels);
    let (major, minor) = (version / 1000, version % 1000 / 10);
    // PTX 8.0 came with CUDA 12.0, 9.0 with 13.0
    let ptx = format!(
        "{LIBRARY}{number}\n.version {}.{minor}\n.target sm_{}\n.address_size 64\n\n{entries}\0",
        major - 4,
        options.target
    );
    let machine_code = match options.is_real {
        true => format!("{MACHINE_CODE}{major}\n{ptx}").into_bytes(),
        false => Vec::new(),
    };
    Ok(Made { ptx: ptx.into_bytes(), machine_code })
}

/// The number of the library that an image says.
pub(crate) fn library_of(image: &str) -> Option<usize> {
    image.lines().find_map(|line| line.strip_prefix(LIBRARY))?.parse().ok()
}

fn parsed(options: &[String]) -> Result<Options, Failed> {
    let mut found = Options::default();
    for option in options {
        let target = option.strip_prefix("--gpu-architecture=");
        if let Some(target) = target {
            let number = target.strip_prefix("sm_").or_else(|| target.strip_prefix("compute_"));
            let number = number.and_then(|number| number.parse().ok()).ok_or_else(|| {
                let log = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n";
                Failed::new(NVRTC_ERROR_INVALID_OPTION, log)
            })?;
            (found.target, found.is_real) = (number, target.starts_with("sm_"));
        } else if let Some(define) = option.strip_prefix("--define-macro=") {
            found.others.push(format!("-D{define}"));
        } else if let Some(folder) = option.strip_prefix("--include-path=") {
            found.others.push(format!("-I{folder}"));
        } else if option.starts_with("-D") || option.starts_with("-I") {
            found.others.push(option.clone());
        } else if !["--std=", "--fmad=", "--use_fast_math", "--generate-line-info"]
            .iter()
            .any(|known| option.starts_with(known))
        {
            let log = format!("nvrtc: error: unrecognized option {option} found\n");
            return Err(Failed::new(NVRTC_ERROR_INVALID_OPTION, log));
        }
    }
    Ok(found)
}

/// The library of a program, compiled if it was not before.
fn library(name: &str, source: &str, options: &[String]) -> Result<PathBuf, Failed> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let version = Command::new(&compiler).arg("--version").output()?;
    let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cuda/shim");
    let files = ["cuda.hpp", "program.hpp", "shim.cpp"].map(|file| shim.join(file));
    let mut hasher = DefaultHasher::new();
    for file in &files {
        fs::read(file)?.hash(&mut hasher);
    }
    (&version.stdout, FLAGS).hash(&mut hasher);
    let of_shim = hasher.finish();
    (name, source, options).hash(&mut hasher);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cuda-programs");
    let folder = folder.join(format!("{of_shim:016x}"));
    let library = folder.join(format!("{:016x}.so", hasher.finish()));
    fs::create_dir_all(&folder)?;
    // whoever compiles the same waits
    let lock = File::create(folder.join("lock"))?;
    lock.lock()?;
    if library.exists() {
        return Ok(library);
    }
    let run = |command: &mut Command| -> Result<(), Failed> {
        let output = command.output()?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let log = log_of(name, &said);
        if log.is_empty() {
            crate::state::say(&said);
        }
        Err(Failed::new(NVRTC_ERROR_COMPILATION, log))
    };
    let object = folder.join("shim.o");
    if !object.exists() {
        let fresh = folder.join("shim.new");
        run(Command::new(&compiler).args(FLAGS).arg("-c").arg(&files[2]).arg("-o").arg(&fresh))?;
        fs::rename(fresh, &object)?;
    }
    let (unit, fresh) = (folder.join("program.cpp"), folder.join("program.new"));
    fs::write(&unit, whole(name, source))?;
    let mut command = Command::new(&compiler);
    command.args(FLAGS).args(options).arg("-shared");
    command.arg("-include").arg(&files[0]).arg("-include").arg(&files[1]);
    run(command.arg(&unit).arg(&object).arg("-o").arg(&fresh))?;
    // whole or not at all
    fs::rename(fresh, &library)?;
    Ok(library)
}

/// The source with a line for each of its kernels behind it.
fn whole(name: &str, source: &str) -> String {
    let meets = ["__syncthreads", "__syncwarp", "__shfl", "__ballot"]
        .iter()
        .any(|barrier| source.contains(barrier));
    let written = with_dynamic(source);
    let mut text = format!("#line 1 \"{name}\"\n{written}\n#line 1 \"the stand-in's own\"\n");
    for kernel in kernels(source) {
        text.push_str(&format!("SHIM_PROGRAM_ENTRY({kernel}, {meets})\n"));
    }
    text.push_str("SHIM_PROGRAM_END\n");
    text
}

/// The source where each `extern __shared__ T name[];` is a pointer to what a launch asks for. Its lines stay where they are.
fn with_dynamic(source: &str) -> String {
    let mut made = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("extern") {
        let (before, from) = rest.split_at(at);
        made.push_str(before);
        let declared =
            from.split_once(';').and_then(|(said, rest)| Some((pointer(said)?, said, rest)));
        match declared {
            Some((pointer, said, behind)) => {
                made.push_str(&pointer);
                made.extend(said.chars().filter(|c| *c == '\n'));
                rest = behind;
            }
            None => {
                let (word, behind) = from.split_at("extern".len());
                made.push_str(word);
                rest = behind;
            }
        }
    }
    made.push_str(rest);
    made
}

/// `extern __shared__ __align__(16) T name[]` as a pointer; none where it is something else.
fn pointer(said: &str) -> Option<String> {
    let is_other = |c: char| matches!(c, '{' | '}' | '"' | '=');
    if !said.contains("__shared__") || said.contains(is_other) {
        return None;
    }
    let declared = said.trim_end().strip_suffix(']')?.trim_end().strip_suffix('[')?.trim_end();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (of, name) = declared.split_at(declared.trim_end_matches(is_part).len());
    let mut of = of.replacen("extern", "", 1).replacen("__shared__", "", 1);
    if let Some((before, behind)) = of.split_once("__align__") {
        of = format!("{before}{}", behind.split_once(')')?.1);
    }
    let of = of.split_whitespace().collect::<Vec<_>>().join(" ");
    Some(format!(
        "static thread_local {of} *const {name} = reinterpret_cast<{of} *>(shim::dynamic());"
    ))
}

/// The kernels that have their names from C: those of C++ have others in PTX.
fn kernels(source: &str) -> Vec<String> {
    let text: Vec<&str> =
        source.lines().map(|line| line.split("//").next().unwrap_or("")).collect();
    let text = text.join("\n");
    let mut found = Vec::new();
    for (at, word) in text.match_indices("__global__") {
        let before = text[..at].split_whitespace().collect::<Vec<_>>().join(" ");
        if !before.ends_with("extern \"C\"") && !before.contains("extern \"C\" {") {
            continue;
        }
        // behind the bounds of a launch comes the name
        let rest = &text[at + word.len()..];
        let rest = match rest.split_once("__launch_bounds__") {
            Some((before, bounds)) if !before.contains('(') => {
                bounds.split_once(')').map_or("", |(_, rest)| rest)
            }
            _ => rest,
        };
        let name = rest.split('(').next().unwrap_or_default().split_whitespace().last();
        let name = name.map(str::to_owned);
        found.extend(name.filter(|name| !found.contains(name)));
    }
    found
}

/// As NVRTC would have said it: `name(3): error: what` and the line.
fn log_of(name: &str, said: &str) -> String {
    let mut log = String::new();
    for line in said.lines() {
        let place = line.strip_prefix(name).and_then(|rest| rest.strip_prefix(':'));
        let Some((at, rest)) = place.and_then(|rest| rest.split_once(':')) else { continue };
        let Some((_, what)) = rest.split_once("error: ") else { continue };
        if at.parse::<u32>().is_ok() {
            log.push_str(&format!("{name}({at}): error: {what}\n\n"));
        }
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_those_with_names_of_c() {
        let source = "// extern \"C\" __global__ void no(\nextern \"C\" __global__ void a(int);\n\
            template <class T> __global__ void b(T) {}\n\
            extern \"C\" __global__ void __launch_bounds__(256) c (float *x) {}\n\
            extern \"C\" __global__ void a(int) {}";
        assert_eq!(kernels(source), ["a", "c"]);
        assert_eq!(kernels("extern \"C\" {\n__global__ void d(int) {} }"), ["d"]);
    }

    #[test]
    fn dynamic_shared_memory_is_where_the_launch_has_it() {
        let source = "extern \"C\" __global__ void a() {\n extern __shared__\n __align__(16) unsigned char raw[ ];\n int b; }";
        let expected = "extern \"C\" __global__ void a() {\n static thread_local unsigned char *const raw = \
            reinterpret_cast<unsigned char *>(shim::dynamic());\n\n int b; }";
        assert_eq!(with_dynamic(source), expected);
        for other in
            ["extern int a[];", "extern \"C\" { __shared__ int a[]; }", "// extern __shared__"]
        {
            assert_eq!(with_dynamic(other), other);
        }
    }

    #[test]
    fn a_log_is_in_nvrtcs_words() {
        let said =
            "Sign: In function 'void f()':\nSign:3:12: error: 'z' was not declared\n    3 | z\n";
        assert_eq!(log_of("Sign", said), "Sign(3): error: 'z' was not declared\n\n");
    }
}
