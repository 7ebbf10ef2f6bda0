//! Where the tests run: each body in a child process, once for each driver, whose environment says what the machine is.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tensorwire_base::Deadline;
use tensorwire_device::{Device, DeviceMemory, Driver, Event, Function, Module, Stream};
use tensorwire_memory::{Arena, Buffer, DeviceLoan, DeviceWriteLoan, Place, Slab};
use tensorwire_testkit::cuda::OnlyDriver;
use tensorwire_testkit::skip::{skip, skip_part};

/// Which driver a child opens: a path, or `real`.
const DRIVER: &str = "DEVICE_TEST_DRIVER";
const REAL: &str = "real";

pub(crate) const PTX: &[u8] = include_bytes!("kernels.ptx");

/// One GPU of a driver.
pub(crate) struct Machine {
    pub(crate) driver: Arc<Driver>,
    pub(crate) device: Arc<Device>,
}

/// Runs `body` on the driver without a GPU, and on a real one where there is one; or on the one that the environment names.
pub(crate) fn on_each(body: impl FnOnce(&Machine)) {
    on_each_with(&[("FAKE_CUDA_GUARD", "1")], body);
}

/// The same, with more of the environment for the driver without a GPU.
pub(crate) fn on_each_with(environment: &[(&str, &str)], body: impl FnOnce(&Machine)) {
    if is_child() {
        return body(&Machine::open());
    }
    if let Some(only) = OnlyDriver::named() {
        let environment = if only.is_stand_in() { environment } else { &[] };
        let library = only.library().unwrap_or_else(|| PathBuf::from(REAL));
        run_child(&library, environment);
        return;
    }
    run_child(&fake_library(), environment);
    match Driver::open(None) {
        Ok(driver) if driver.device_count().is_ok_and(|count| count > 0) => {
            eprintln!("also on {driver:?}");
            run_child(Path::new(REAL), &[]);
        }
        Ok(_) => skip_part(&"the driver of this machine sees no GPU"),
        Err(error) if error.is_absence() => skip_part(&"this machine has no GPU"),
        Err(error) => panic!("{error}"),
    }
}

/// Runs `body` on the driver without a GPU alone: what it is about cannot be had of a real one. The body opens the driver.
pub(crate) fn on_fake(environment: &[(&str, &str)], body: impl FnOnce()) {
    on_fake_said(environment, body);
}

/// The same; returns what the process has said that ran the body, if there was one.
pub(crate) fn on_fake_said(environment: &[(&str, &str)], body: impl FnOnce()) -> Option<String> {
    if is_child() {
        body();
        return None;
    }
    if OnlyDriver::named().is_some_and(|only| !only.is_stand_in()) {
        skip(None, &"it is about the driver without a GPU");
        return None;
    }
    Some(run_child(&fake_library(), environment))
}

/// True in a process that was started for a body.
pub(crate) fn is_child() -> bool {
    std::env::var_os(DRIVER).is_some()
}

fn fake_library() -> PathBuf {
    tensorwire_fakecuda::library().expect("cargo builds the library beside this test")
}

/// Runs the test that calls this in a process with that driver: what it said.
fn run_child(driver: &Path, environment: &[(&str, &str)]) -> String {
    let mut command = child(driver);
    let output = command.envs(environment.iter().copied()).output().unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    eprintln!("{said}");
    assert!(output.status.success(), "{} on {}", output.status, driver.display());
    assert!(said.contains("1 passed"), "no test of this name ran");
    said
}

/// A process that runs the calling test.
fn child(driver: &Path) -> Command {
    // the harness names a test's thread after the test
    let thread = std::thread::current();
    let name = thread.name().expect("a test has a name");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(DRIVER, driver);
    if is_child() {
        // the machine is the same
        return command;
    }
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("FAKE_CUDA_") {
            command.env_remove(variable);
        }
    }
    let kernels = if driver == Path::new(REAL) { None } else { kernel_library() };
    if let Some(kernels) = kernels {
        command.env("FAKE_CUDA_KERNELS", kernels);
    }
    command
}

/// Another process of the same test on the same driver, which finds `role` by [`role`].
pub(crate) fn peer(role: &str) -> Command {
    let driver = std::env::var_os(DRIVER).unwrap();
    let mut command = child(Path::new(&driver));
    command.env("DEVICE_TEST_ROLE", role);
    command
}

/// What this process is to do for another one of the same test.
pub(crate) fn role() -> Option<String> {
    std::env::var("DEVICE_TEST_ROLE").ok()
}

/// The kernels for the CPU, compiled once; none, where there is no compiler.
fn kernel_library() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    LIBRARY.get_or_init(build_kernels).as_deref()
}

fn build_kernels() -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/device/kernels.cu");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (library, fresh) =
        (folder.join("kernels.so"), format!("kernels-{}.so", std::process::id()));
    let fresh = folder.join(fresh);
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let built = Command::new(compiler)
        .args(["-x", "c++", "-std=c++17", "-O1", "-shared", "-fPIC"])
        .args([source.as_os_str(), "-o".as_ref(), fresh.as_os_str()])
        .output();
    match built {
        Ok(output) if output.status.success() => {
            // whoever has the last one open keeps it
            std::fs::rename(fresh, &library).unwrap();
            Some(library)
        }
        Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
        Err(_) => None,
    }
}

impl Machine {
    /// Opens the driver of this child, and its first GPU.
    pub(crate) fn open() -> Machine {
        let driver = open_driver().unwrap();
        let device = Device::open(&driver, 0).unwrap();
        eprintln!("on {driver:?}, {}", device.facts().name);
        Machine { driver, device }
    }

    /// True if no GPU is here but what this project made.
    pub(crate) fn is_fake(&self) -> bool {
        self.driver.looked_for().contains("fakecuda")
    }

    pub(crate) fn stream(&self) -> Stream {
        self.device.stream().unwrap()
    }

    pub(crate) fn event(&self) -> Event {
        self.device.event().unwrap()
    }

    pub(crate) fn memory(&self, bytes: u64) -> DeviceMemory {
        self.device.alloc(bytes).unwrap()
    }

    /// Pinned memory of the host as one buffer.
    pub(crate) fn pinned(&self, bytes: usize) -> Buffer {
        whole(&self.device.pinned(bytes).unwrap())
    }

    /// A kernel of the tests' own; none where nothing can run it, which is said.
    pub(crate) fn kernel(&self, name: &str) -> Option<Function> {
        if self.is_fake() && std::env::var_os("FAKE_CUDA_KERNELS").is_none() {
            skip(None, &"there is no C++ compiler that builds kernels");
            return None;
        }
        Some(Module::load(&self.device, PTX).unwrap().function(name).unwrap())
    }
}

/// Opens the driver of this child.
pub(crate) fn open_driver() -> Result<Arc<Driver>, tensorwire_device::OpenError> {
    let path = PathBuf::from(std::env::var_os(DRIVER).unwrap());
    Driver::open((path != Path::new(REAL)).then_some(path.as_path()))
}

/// All of a slab as one buffer.
pub(crate) fn whole(slab: &Slab) -> Buffer {
    let place = Place { offset: 0, bytes: slab.bytes() };
    Arena::new(slab, &[place]).unwrap().into_buffers().remove(0)
}

pub(crate) fn reading(buffer: &Buffer) -> DeviceLoan {
    buffer.lend_to_device().unwrap()
}

pub(crate) fn writing(buffer: &Buffer) -> DeviceWriteLoan {
    buffer.lend_to_device_for_writing().unwrap()
}

/// A time by which everything here is done.
pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

/// Bytes that are told apart.
pub(crate) fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| ((at * 31 + seed * 7) % 251) as u8).collect()
}

/// Copies bytes to a GPU's memory and waits.
pub(crate) fn upload(machine: &Machine, bytes: &[u8], to: &Buffer) {
    let (stream, host) = (machine.stream(), machine.pinned(bytes.len()));
    host.write().unwrap().copy_from_slice(bytes);
    stream.copy_to_device(&reading(&host), 0..bytes.len(), &writing(to), 0).unwrap();
    stream.synchronize(soon()).unwrap();
}

/// What a GPU's memory holds, behind all that is done.
pub(crate) fn download(machine: &Machine, from: &Buffer) -> Vec<u8> {
    let (stream, host) = (machine.stream(), machine.pinned(from.bytes()));
    stream.copy_to_host(&reading(from), 0..from.bytes(), &writing(&host), 0).unwrap();
    stream.synchronize(soon()).unwrap();
    host.read().unwrap().to_vec()
}

/// A kernel's structure of words.
pub(crate) fn arguments(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// A function of the driver without a GPU that no real one has.
///
/// # Safety
/// `T` is its type.
pub(crate) unsafe fn of_fake<T: Copy>(name: &str) -> T {
    let path = std::env::var_os(DRIVER).unwrap();
    // SAFETY: the library is loaded already, and stays so; the type is the caller's duty.
    unsafe {
        let library = std::mem::ManuallyDrop::new(libloading::Library::new(path).unwrap());
        *library.get::<T>(name.as_bytes()).unwrap()
    }
}

/// How many things of the driver without a GPU are alive.
pub(crate) fn alive() -> u64 {
    // SAFETY: it is of this type.
    unsafe { of_fake::<extern "C" fn() -> u64>("fakeCudaAlive")() }
}
