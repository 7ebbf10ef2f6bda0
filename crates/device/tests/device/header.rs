//! The driver's functions, structures and numbers of `sys.rs` against a `cuda.h`, and those of CUDA's libraries against theirs,
//! where such a header is named: a C++ compiler holds each against the other.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;

use tensorwire_device::nccl::sys as nccl;
use tensorwire_device::sys::cublas_lt::{
    CUBLAS_LT_CONSTANTS, CUBLAS_LT_PROTOTYPES, cublasLtMatmulAlgo_t,
    cublasLtMatmulHeuristicResult_t,
};
use tensorwire_device::sys::cudnn::{CUDNN_CONSTANTS, CUDNN_PROTOTYPES};
use tensorwire_device::sys::nvrtc::{NVRTC_CONSTANTS, NVRTC_PROTOTYPES};
use tensorwire_device::sys::{CONSTANTS, PROTOTYPES, STRUCTURES};
use tensorwire_testkit::skip::skip;

/// Names the folder of `cuda.h`: that of a toolkit, or of PyPI's nvidia-cuda-runtime-cu12.
const FOLDER: &str = "TENSORWIRE_CUDA_INCLUDE";

/// Names the folders of `cublasLt.h` and of the toolkit's headers, with a colon between.
const LIBRARY_FOLDERS: &str = "TENSORWIRE_CUBLAS_INCLUDE";

#[test]
fn the_header_agrees() {
    let folder = std::env::var_os(FOLDER).map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| PathBuf::from("/usr/local/cuda/include"));
    holds(FOLDER, "cuda.h", &[folder], &program());
}

#[test]
fn the_header_of_cublas_lt_agrees() {
    let named = std::env::var_os(LIBRARY_FOLDERS);
    let folders: Vec<PathBuf> = match &named {
        Some(folders) => std::env::split_paths(folders).collect(),
        None => vec![PathBuf::from("/usr/local/cuda/include")],
    };
    holds(LIBRARY_FOLDERS, "cublasLt.h", &folders, &cublas_lt());
}

/// Names the folders of `cudnn_graph.h`, as PyPI's nvidia-cudnn-cu12 has it, and of the toolkit's headers.
const CUDNN_FOLDERS: &str = "TENSORWIRE_CUDNN_INCLUDE";

#[test]
fn the_header_of_cudnn_agrees() {
    let named = std::env::var_os(CUDNN_FOLDERS);
    let folders: Vec<PathBuf> = match &named {
        Some(folders) => std::env::split_paths(folders).collect(),
        None => vec![PathBuf::from("/usr/include"), PathBuf::from("/usr/local/cuda/include")],
    };
    let mut text = "#include <cudnn_graph.h>\n#include <type_traits>\n".to_owned();
    prototypes(&mut text, CUDNN_PROTOTYPES);
    numbers(&mut text, CUDNN_CONSTANTS);
    holds(CUDNN_FOLDERS, "cudnn_graph.h", &folders, &text);
}

/// Compiles a program with a header that is in one of the folders.
fn holds(variable: &str, header: &str, folders: &[PathBuf], program: &str) {
    if !folders.iter().any(|folder| folder.join(header).exists()) {
        return skip(Some(variable), &format!("no {header} in {folders:?}"));
    }
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join(format!("{header}.cpp"));
    std::fs::write(&source, program).unwrap();
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let mut command = Command::new(compiler);
    command.args(["-std=c++17", "-fsyntax-only"]);
    for folder in folders {
        command.arg("-I").arg(folder);
    }
    match command.arg(&source).output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        Err(error) => skip(Some(variable), &format!("no C++ compiler: {error}")),
    }
}

/// Names the folder of `nccl.h`: that of PyPI's nvidia-nccl-cu12.
const NCCL_FOLDER: &str = "TENSORWIRE_NCCL_INCLUDE";

#[test]
fn nccls_header_agrees() {
    let folder = std::env::var_os(NCCL_FOLDER).map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| PathBuf::from("/usr/include"));
    // what it takes of CUDA's own headers
    let cuda = tempfile::tempdir().unwrap();
    let types = "#include <cstddef>\ntypedef struct CUstream_st* cudaStream_t;\n\
                 typedef struct CUevent_st* cudaEvent_t;\n";
    for (name, text) in [("cuda_runtime.h", types), ("cuda_fp16.h", ""), ("cuda_bf16.h", "")] {
        std::fs::write(cuda.path().join(name), text).unwrap();
    }
    holds(NCCL_FOLDER, "nccl.h", &[folder, cuda.path().to_owned()], &of_nccl());
}

/// Names the folder of `nvrtc.h`: that of PyPI's nvidia-cuda-nvrtc or nvidia-cuda-nvrtc-cu12.
const NVRTC_FOLDER: &str = "TENSORWIRE_NVRTC_INCLUDE";

#[test]
fn nvrtcs_header_agrees() {
    let folder = std::env::var_os(NVRTC_FOLDER).map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| PathBuf::from("/usr/local/cuda/include"));
    holds(NVRTC_FOLDER, "nvrtc.h", &[folder], &of_nvrtc());
}

/// As [`program`], of NVRTC.
fn of_nvrtc() -> String {
    let mut text = "#include <nvrtc.h>\n#include <type_traits>\n".to_owned();
    let mut say = |line: String| writeln!(text, "{line}").unwrap();
    for (name, arguments, result) in NVRTC_PROTOTYPES {
        let arguments: Vec<String> = arguments.iter().map(|argument| c_type(argument)).collect();
        let kind = format!("{} (*)({})", c_type(result), arguments.join(", "));
        say(format!("static_assert(std::is_same<decltype(&{name}), {kind}>::value, \"{name}\");"));
    }
    for (name, value) in NVRTC_CONSTANTS {
        say(format!("static_assert((long long){name} == {value}, \"{name}\");"));
    }
    text
}

/// As [`program`], of NCCL.
fn of_nccl() -> String {
    let mut text = "#include <nccl.h>\n#include <type_traits>\n".to_owned();
    let mut say = |line: String| writeln!(text, "{line}").unwrap();
    for (name, arguments, result) in nccl::NCCL_PROTOTYPES {
        let arguments: Vec<String> = arguments.iter().map(|argument| c_type(argument)).collect();
        let kind = format!("{} (*)({})", c_type(result), arguments.join(", "));
        say(format!("static_assert(std::is_same<decltype(&{name}), {kind}>::value, \"{name}\");"));
    }
    for (name, value) in nccl::NUMBERS {
        say(format!("static_assert({name} == {value}, \"{name}\");"));
    }
    let (id, magic, version) =
        (nccl::NCCL_UNIQUE_ID_BYTES, nccl::NCCL_API_MAGIC, nccl::CONFIG_VERSION);
    say(format!("static_assert(sizeof(ncclUniqueId) == {id}, \"id\");"));
    say(format!("static_assert(NCCL_API_MAGIC == {magic}u, \"magic\");"));
    say(format!("static_assert(NCCL_VERSION(2, 14, 0) == {version}, \"version\");"));
    let fields = [
        ("size", std::mem::offset_of!(nccl::ncclConfig_t, size)),
        ("magic", std::mem::offset_of!(nccl::ncclConfig_t, magic)),
        ("version", std::mem::offset_of!(nccl::ncclConfig_t, version)),
        ("blocking", std::mem::offset_of!(nccl::ncclConfig_t, blocking)),
    ];
    for (field, offset) in fields {
        say(format!("static_assert(offsetof(ncclConfig_t, {field}) == {offset}, \"{field}\");"));
    }
    text
}

/// As [`program`], of cuBLASLt.
fn cublas_lt() -> String {
    let mut text = "#include <cublasLt.h>\n#include <cstddef>\n#include <type_traits>\n".to_owned();
    prototypes(&mut text, CUBLAS_LT_PROTOTYPES);
    numbers(&mut text, CUBLAS_LT_CONSTANTS);
    let mut say = |line: String| writeln!(text, "{line}").unwrap();
    let algorithm = size_of::<cublasLtMatmulAlgo_t>();
    say(format!("static_assert(sizeof(cublasLtMatmulAlgo_t) == {algorithm});"));
    type Answer = cublasLtMatmulHeuristicResult_t;
    let answer = size_of::<Answer>();
    say(format!("static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == {answer});"));
    for (field, offset) in [
        ("algo", std::mem::offset_of!(Answer, algo)),
        ("workspaceSize", std::mem::offset_of!(Answer, workspaceSize)),
        ("state", std::mem::offset_of!(Answer, state)),
        ("wavesCount", std::mem::offset_of!(Answer, wavesCount)),
    ] {
        let found = format!("offsetof(cublasLtMatmulHeuristicResult_t, {field})");
        say(format!("static_assert({found} == {offset}, \"{field}\");"));
    }
    text
}

/// Functions of a library over the runtime, whose headers call some types otherwise than the driver's.
fn prototypes(text: &mut String, all: &[(&str, &[&str], &str)]) {
    for (name, arguments, result) in all {
        let runtimes = |rust: &str| match rust {
            "u64" => "uint64_t".to_owned(),
            "i64" => "int64_t".to_owned(),
            "*mut i64" => "int64_t*".to_owned(),
            "()" => "void".to_owned(),
            "CUstream" => "cudaStream_t".to_owned(),
            other => c_type(other),
        };
        let arguments: Vec<String> = arguments.iter().map(|argument| runtimes(argument)).collect();
        let kind = format!("{} (*)({})", runtimes(result), arguments.join(", "));
        let same = format!("std::is_same<decltype(&{name}), {kind}>::value");
        writeln!(text, "static_assert({same}, \"{name}\");").unwrap();
    }
}

fn numbers(text: &mut String, all: &[(&str, u32)]) {
    for (name, value) in all {
        writeln!(text, "static_assert((long long){name} == {value}, \"{name}\");").unwrap();
    }
}

/// A program that compiles if all agree.
fn program() -> String {
    let mut text = "#include <cuda.h>\n#include <cstddef>\n#include <type_traits>\n".to_owned();
    let mut say = |line: String| writeln!(text, "{line}").unwrap();
    for (name, arguments) in PROTOTYPES {
        let arguments: Vec<String> = arguments.iter().map(|argument| c_type(argument)).collect();
        let kind = format!("CUresult (*)({})", arguments.join(", "));
        say(format!("static_assert(std::is_same<decltype(&{name}), {kind}>::value, \"{name}\");"));
    }
    for (name, value) in CONSTANTS {
        say(format!("static_assert((long long){name} == {value}, \"{name}\");"));
    }
    for (name, bytes, fields) in STRUCTURES {
        // a structure without a name in C
        let (of, within) = match *name {
            "AllocFlags" => ("CUmemAllocationProp".to_owned(), "allocFlags."),
            name => (name.to_owned(), ""),
        };
        let start = match within {
            "" => "0".to_owned(),
            _ => format!("offsetof({of}, allocFlags)"),
        };
        let size = match within {
            "" => format!("sizeof({of})"),
            _ => format!("sizeof({of}::allocFlags)"),
        };
        say(format!("static_assert({size} == {bytes}, \"{name}\");"));
        for (field, offset) in *fields {
            let field = field.trim_end_matches('_');
            let found = format!("offsetof({of}, {within}{field}) - {start}");
            say(format!("static_assert({found} == {offset}, \"{name}.{field}\");"));
        }
    }
    text
}

/// A type of Rust's, in C.
fn c_type(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(of) = rust.strip_prefix("*mut ") {
        return format!("{}*", c_type(of));
    }
    if let Some(of) = rust.strip_prefix("*const ") {
        return format!("{} const*", c_type(of));
    }
    match rust {
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "c_char" => "char",
        "c_uchar" => "unsigned char",
        "c_void" => "void",
        "usize" => "size_t",
        "u64" => "unsigned long long",
        other => other,
    }
    .to_owned()
}
