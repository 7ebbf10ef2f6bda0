//! Programs of users: compiled once in this process for each kind of GPU, loaded once on each GPU. Knows no operator but by its
//! name.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tensorwire_device::{
    CompileError, CompiledProgram, CudaLibrary, Device, DeviceError, Function, LibrarySearch,
    Module, Nvrtc,
};
use tensorwire_graph::NodeId;
use tensorwire_kernels::{CudaLaunch, CudaProgram, KernelError, check_entry};

use super::Failed;
use crate::command::{ProgramLaunch, ProgramText};
use crate::gpus::NO_LIBRARY;

/// Errors of a compiler that are shown; how much of what is not understood.
const ERRORS_MAX: usize = 3;
const LOG_CHARS_MAX: usize = 600;

/// What a source was compiled to, by whom.
type Key = (String, (u32, u32), Arc<ProgramText>);

static COMPILED: Mutex<Option<HashMap<Key, Arc<CompiledProgram>>>> = Mutex::new(None);

/// Programs on one GPU.
#[derive(Debug)]
pub(super) struct Programs {
    /// Where to look for the compiler; none: nowhere.
    libraries: Option<LibrarySearch>,
    /// There once it was asked for.
    compiler: Option<Result<Nvrtc, String>>,
    loaded: HashMap<Arc<ProgramText>, Loaded>,
}

/// A program on its GPU.
#[derive(Debug)]
struct Loaded {
    module: Module,
    /// As its compiler or its user declares its kernels.
    ptx: String,
    functions: HashMap<String, Kernel>,
}

/// A kernel, and how much dynamic shared memory its launches may ask for by now.
#[derive(Debug)]
struct Kernel {
    function: Function,
    shared_bytes: u32,
}

impl Programs {
    pub(super) fn new(libraries: Option<&LibrarySearch>) -> Programs {
        Programs { libraries: libraries.cloned(), compiler: None, loaded: HashMap::new() }
    }

    /// The kernel of a launch, of an operator of this name; or why there is none, in words.
    pub(super) fn function(
        &mut self,
        device: &Arc<Device>,
        op: &str,
        launch: &ProgramLaunch,
    ) -> Result<Function, String> {
        let text = &launch.program;
        if !self.loaded.contains_key(text) {
            let loaded = self.load(device, op, text)?;
            self.loaded.insert(text.clone(), loaded);
        }
        let missing = || format!("it has no kernel {}", launch.launch.kernel);
        let Loaded { module, ptx, functions } = self.loaded.get_mut(text).ok_or_else(missing)?;
        // what a compiler made may have none
        check_entry(&CudaProgram::entries(ptx).unwrap_or_default(), &launch.launch)?;
        let CudaLaunch { kernel: name, shared_bytes, .. } = &launch.launch;
        let (wanted, most) = (*shared_bytes, device.facts().shared_bytes_allowed_max);
        if wanted > most {
            return Err(format!(
                "{name} is launched with {wanted} bytes of shared memory a block, of which this GPU has {most}"
            ));
        }
        let words = |error: DeviceError| error.to_string();
        let kernel = match functions.entry(name.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(room) => {
                let function = module.function(name).map_err(words)?;
                room.insert(Kernel { function, shared_bytes: 0 })
            }
        };
        if wanted > kernel.shared_bytes {
            // the driver counts what the kernel declares itself, too
            kernel.function.allow_shared(wanted).map_err(words)?;
            kernel.shared_bytes = wanted;
        }
        Ok(kernel.function.clone())
    }

    fn load(
        &mut self,
        device: &Arc<Device>,
        op: &str,
        text: &Arc<ProgramText>,
    ) -> Result<Loaded, String> {
        let load = |image: &[u8]| Module::load(device, image).map_err(|error| error.to_string());
        let functions = HashMap::new();
        if text.program.is_ptx() {
            let ptx = text.program.text().to_owned();
            return Ok(Loaded { module: load(ptx.as_bytes())?, ptx, functions });
        }
        let compiled = self.compiled(device, op, text)?;
        let image = compiled.machine_code.as_deref().unwrap_or(compiled.ptx.as_bytes());
        Ok(Loaded { module: load(image)?, ptx: compiled.ptx.clone(), functions })
    }

    fn compiled(
        &mut self,
        device: &Arc<Device>,
        op: &str,
        text: &Arc<ProgramText>,
    ) -> Result<Arc<CompiledProgram>, String> {
        let libraries = &self.libraries;
        let compiler = self.compiler.get_or_insert_with(|| open(libraries.as_ref(), device));
        let compiler = compiler.as_ref().map_err(Clone::clone)?;
        let compute = device.facts().compute;
        let (library, path) = (compiler.library(), compiler.library().found().path.display());
        let key = (format!("{path} {library}"), compute, text.clone());
        let mut all = cache();
        let all = all.get_or_insert_default();
        if let Some(known) = all.get(&key) {
            return Ok(known.clone());
        }
        let (source, options) = (text.program.text(), text.program.options(text.scalar));
        let made =
            compiler.compile(op, source, &options, compute).map_err(|error| match error {
                CompileError::Source { log } => explained(op, source, &log, &library.to_string()),
                other => other.to_string(),
            })?;
        let made = Arc::new(made);
        all.insert(key, made.clone());
        Ok(made)
    }
}

/// What a user's program has done wrong.
pub(super) fn of_program(node: Option<NodeId>, op: &'static str, why: String) -> Failed {
    Failed::Kernel(node, KernelError::Program { op, why })
}

fn cache() -> MutexGuard<'static, Option<HashMap<Key, Arc<CompiledProgram>>>> {
    // whoever panicked has put in nothing
    COMPILED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(libraries: Option<&LibrarySearch>, device: &Device) -> Result<Nvrtc, String> {
    let opened = match libraries {
        Some(search) => Nvrtc::open(search, device.driver()).map_err(|error| error.to_string()),
        None => Err(NO_LIBRARY.to_owned()),
    };
    let package = CudaLibrary::Nvrtc.package();
    opened.map_err(|why| {
        format!(
            "its source needs a compiler: {why}; install NVRTC (python3 -m pip install {package}), name its folder with \
             --cuda-libs, or give the operator PTX, which needs none"
        )
    })
}

/// The compiler's log in one line: of each error the line of the source.
fn explained(op: &str, source: &str, log: &str, library: &str) -> String {
    let mut errors = Vec::new();
    for line in log.lines() {
        // name(3): error: what
        let Some(rest) = line.strip_prefix(op).and_then(|rest| rest.strip_prefix('(')) else {
            continue;
        };
        let Some((number, what)) = rest.split_once("): ") else { continue };
        let (kind, what) = what.split_once(": ").unwrap_or(("", what));
        let Some(number) = number.parse::<usize>().ok().filter(|_| kind.ends_with("error")) else {
            continue;
        };
        let text = number.checked_sub(1).and_then(|at| source.lines().nth(at));
        let text = text.unwrap_or_default().trim();
        errors.push(format!("line {number}: {what}, in `{text}`"));
    }
    let mut said = format!("its source does not compile ({library}): ");
    if errors.is_empty() {
        let words: Vec<&str> = log.split_whitespace().collect();
        said.extend(words.join(" ").chars().take(LOG_CHARS_MAX));
        return said;
    }
    said.push_str(&errors[..errors.len().min(ERRORS_MAX)].join("; "));
    if errors.len() > ERRORS_MAX {
        // text takes all that is written
        let _ = write!(said, "; and {} more", errors.len() - ERRORS_MAX);
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_of_nvrtcs_becomes_a_line() {
        // as 12.9 and 13.5 say it
        let log = "Sign(2): warning #177-D: variable \"t\" was declared but never referenced\n  float t;\n\n\
            Sign(2): error: identifier \"y\" is undefined\n  y = 3;\n  ^\n\n1 error detected in the compilation of \"Sign\".\n";
        let said = explained("Sign", "// a\n  y = 3;\n", log, "NVRTC 13.5.0");
        assert_eq!(
            said,
            "its source does not compile (NVRTC 13.5.0): line 2: identifier \"y\" is undefined, in `y = 3;`"
        );
        let log = "Sign(1): error: a\n".repeat(5);
        assert!(explained("Sign", "", &log, "NVRTC").ends_with("; and 2 more"));
        let said =
            explained("Sign", "", "nvrtc: error: unrecognized option\n --foo found", "NVRTC");
        assert!(said.ends_with("(NVRTC): nvrtc: error: unrecognized option --foo found"), "{said}");
    }
}
