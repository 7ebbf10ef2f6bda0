//! CUDA C by NVRTC: by the one that stands in its place, whose kernels run on the driver without a GPU, and on a GPU by the
//! real one. Where the real one is found it compiles without a GPU, too.

use std::path::Path;

use tensorwire_device::{CompileError, CompiledProgram, CudaLibrary, LibrarySearch, Module, Nvrtc};
use tensorwire_testkit::skip::{skip, skip_part};

use crate::support::{Machine, download, on_each, on_fake, soon, upload, whole};

/// Names folders of CUDA's libraries, with colons between.
const FOLDERS: &str = "TENSORWIRE_CUDA_LIBS";

const SCALE: &str = "\
// y = scale*x
extern \"C\" __global__ void scale(const Scalar *x, Scalar *y, long long count, double scale) {
    long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at < count) y[at] = scale * x[at];
}
";

/// Where real libraries are looked for.
fn search() -> LibrarySearch {
    let folders = std::env::var_os(FOLDERS);
    let folders = folders.map(|folders| std::env::split_paths(&folders).collect());
    let mut search =
        LibrarySearch { folders: folders.unwrap_or_default(), ..LibrarySearch::default() };
    search.ask_python();
    search
}

/// The compiler for this machine: a real one, or the one that stands in its place.
fn nvrtc(machine: &Machine) -> Option<Nvrtc> {
    if !machine.is_fake() {
        return Nvrtc::open(&search(), &machine.driver).map_err(|error| skip_part(&error)).ok();
    }
    let folder = tempfile::tempdir().unwrap();
    tensorwire_fakecuda::libraries(folder.path()).unwrap();
    Some(Nvrtc::open(&named(folder.path()), &machine.driver).unwrap())
}

fn named(folder: &Path) -> LibrarySearch {
    LibrarySearch { folders: vec![folder.to_owned()], ..LibrarySearch::default() }
}

fn float() -> Vec<String> {
    vec!["--define-macro=Scalar=float".to_owned()]
}

/// Of the source with something in it replaced.
fn log(nvrtc: &Nvrtc, from: &str, to: &str) -> String {
    let source = SCALE.replace(from, to);
    match nvrtc.compile("Scale", &source, &float(), (9, 0)) {
        Err(CompileError::Source { log }) => log,
        other => panic!("{other:?}"),
    }
}

/// What holds of either compiler.
fn holds(nvrtc: &Nvrtc) {
    let CompiledProgram { ptx, machine_code } =
        nvrtc.compile("Scale", SCALE, &float(), (9, 0)).unwrap();
    assert!(machine_code.is_some_and(|code| code.starts_with(b"\x7fELF")));
    assert!(ptx.contains(".target sm_90"), "{ptx}");
    let (_, declared) = ptx.split_once(".visible .entry scale(").unwrap();
    let (declared, _) = declared.split_once(')').unwrap();
    let types: Vec<&str> = declared.split_whitespace().filter(|word| word.len() == 4).collect();
    assert_eq!(types, [".u64", ".u64", ".u64", ".f64"], "{declared}");
    // a GPU that is newer than the library, whose driver compiles the rest
    let newer = nvrtc.compile("Scale", SCALE, &float(), (99, 0)).unwrap();
    assert_eq!(newer.machine_code, None);
    let older = nvrtc.compile("Scale", SCALE, &float(), (3, 0)).unwrap_err();
    assert!(older.to_string().contains("compute capability 3.0, which NVRTC"), "{older}");
    let wrong = log(nvrtc, "x[at]", "z[at]");
    assert!(wrong.contains("Scale(4): error: "), "{wrong}");
    let options = ["--no-such-option".to_owned()];
    let wrong = nvrtc.compile("Scale", SCALE, &options, (9, 0)).unwrap_err().to_string();
    assert!(wrong.contains("unrecognized option --no-such-option"), "{wrong}");
    let wrong = nvrtc.compile("Scale", "a\0b", &float(), (9, 0)).unwrap_err();
    assert_eq!(wrong, CompileError::Text);
}

#[test]
fn the_real_library_compiles() {
    match Nvrtc::look(&search()) {
        Ok(nvrtc) => {
            eprintln!("{} in {}", nvrtc.library(), nvrtc.library().found().path.display());
            holds(&nvrtc);
        }
        Err(error)
            if search().candidates(CudaLibrary::Nvrtc).iter().any(|found| found.path.exists()) =>
        {
            panic!("{error}")
        }
        Err(error) => skip(Some(FOLDERS), &error),
    }
}

#[test]
fn what_was_compiled_runs() {
    on_each(|machine| {
        let Some(nvrtc) = nvrtc(machine) else { return };
        if machine.is_fake() {
            holds(&nvrtc);
        }
        let compute = machine.device.facts().compute;
        let made = nvrtc.compile("Scale", SCALE, &float(), compute).unwrap();
        for image in [made.ptx.as_bytes(), &made.machine_code.unwrap()] {
            let function = Module::load(&machine.device, image).unwrap();
            let function = function.function("scale").unwrap();
            let x: Vec<u8> = (0..300).flat_map(|at| (at as f32).to_ne_bytes()).collect();
            let (at_x, at_y) = (machine.memory(1200), machine.memory(1200));
            upload(machine, &x, &whole(&at_x.slab()));
            let arguments = [at_x.address(), at_y.address(), 300, 1.5f64.to_bits()];
            let arguments: Vec<u8> = arguments.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let stream = machine.stream();
            // SAFETY: the kernel reads and writes so many numbers of this test's memory, which lives until it has ended.
            unsafe { stream.launch(&function, [2, 1, 1], [256, 1, 1], 0, &arguments) }.unwrap();
            stream.synchronize(soon()).unwrap();
            let found = download(machine, &whole(&at_y.slab()));
            let found = found.chunks_exact(4).map(|x| f32::from_ne_bytes(x.try_into().unwrap()));
            assert!(found.take(300).eq((0..300).map(|at| at as f32 * 1.5)));
        }
    });
}

/// Why the compiler that stands in the real one's place is not used on such a machine.
fn refused_on(machine: &[(&str, &str)], why: &str) {
    on_fake(machine, || {
        let driver = Machine::open().driver;
        let folder = tempfile::tempdir().unwrap();
        tensorwire_fakecuda::libraries(folder.path()).unwrap();
        let found = Nvrtc::open(&named(folder.path()), &driver).unwrap_err().to_string();
        assert!(found.contains(why), "{found}");
    });
}

#[test]
fn a_compiler_that_does_not_start_says_so() {
    refused_on(
        &[("FAKE_CUDA_FAULTS", "nolibrary")],
        "does not start: nvrtcVersion says NVRTC_ERROR",
    );
}

#[test]
fn a_compiler_that_is_newer_than_the_driver_is_not_used() {
    refused_on(&[("FAKE_CUDA_NVRTC", "13000")], "is of version 13.0.0; 12 can be used");
}

#[test]
fn a_compiler_that_fails_says_so() {
    on_fake(&[("FAKE_CUDA_FAULTS", "compile=1")], || {
        let nvrtc = nvrtc(&Machine::open()).unwrap();
        let failed = nvrtc.compile("Scale", SCALE, &float(), (8, 0)).unwrap_err().to_string();
        let call = "nvrtcCompileProgram of NVRTC 12.4.0 says NVRTC_ERROR_INTERNAL_ERROR (11)";
        assert_eq!(failed, call);
        // as a compiler does that ran out of memory once
        nvrtc.compile("Scale", SCALE, &float(), (8, 0)).unwrap();
    });
}

#[test]
fn no_compiler_is_said_with_where_it_was_looked_for() {
    let folder = tempfile::tempdir().unwrap();
    let Err(error) = Nvrtc::look(&named(folder.path())) else {
        return skip(None, &"the dynamic linker has one");
    };
    let said = error.to_string();
    assert!(said.starts_with("no NVRTC was found (libnvrtc.so.13 or libnvrtc.so.12: "), "{said}");
    assert!(said.contains(&folder.path().display().to_string()), "{said}");
}
