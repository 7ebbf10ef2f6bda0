//! Where CUDA's other libraries lie: in named folders, where the dynamic linker looks, in the toolkit's folder, or in a
//! Python installation, as PyTorch brings them. They are large and never shipped. Knows none of their functions.

use std::ffi::{c_uint, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tensorwire_base::{Deadline, LOADS_NOTHING};

use crate::device::{Device, Handle};
use crate::driver::SONAME;
use crate::error::{Failure, LibraryError, Refused};
use crate::wait::wait;

/// So long a Python may take to say where its packages are.
const PYTHON: Duration = Duration::from_secs(10);

/// Prints a folder of packages a line.
const ASK_PYTHON: &str = "import site, sysconfig
paths = [sysconfig.get_path('purelib'), sysconfig.get_path('platlib'), *site.getsitepackages(), site.getusersitepackages()]
print(*dict.fromkeys(paths), sep='\\n')";

/// A library that makes kernels of ours unnecessary, or makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CudaLibrary {
    /// Matrix products.
    CublasLt,
    /// Convolutions and recurrent layers.
    Cudnn,
    /// Compiles CUDA C.
    Nvrtc,
    /// Collectives.
    Nccl,
}

/// Folders to look in, besides where the dynamic linker looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LibrarySearch {
    /// That the user named: first of all.
    pub folders: Vec<PathBuf>,
    /// The toolkit's folder, with `lib64` in it.
    pub cuda_home: Option<PathBuf>,
    /// Folders of Python's packages, with `nvidia` in them.
    pub site_packages: Vec<PathBuf>,
}

/// A library, and where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundLibrary {
    pub library: CudaLibrary,
    /// A plain name: the dynamic linker found it.
    pub path: PathBuf,
    /// Whose place that is, for people.
    pub place: &'static str,
}

/// A library that was loaded, for good.
#[derive(Debug)]
pub struct LoadedLibrary {
    found: FoundLibrary,
    version: LibraryVersion,
    handle: ManuallyDrop<libloading::Library>,
}

/// A library's own version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LibraryVersion {
    pub major: usize,
    pub minor: usize,
    pub patch: usize,
}

impl CudaLibrary {
    pub const ALL: [CudaLibrary; 4] =
        [CudaLibrary::CublasLt, CudaLibrary::Cudnn, CudaLibrary::Nvrtc, CudaLibrary::Nccl];

    /// Its name, as people write it.
    pub fn name(self) -> &'static str {
        match self {
            CudaLibrary::CublasLt => "cuBLASLt",
            CudaLibrary::Cudnn => "cuDNN",
            CudaLibrary::Nvrtc => "NVRTC",
            CudaLibrary::Nccl => "NCCL",
        }
    }

    /// Its package on PyPI, for CUDA 12.
    pub fn package(self) -> &'static str {
        match self {
            CudaLibrary::CublasLt => "nvidia-cublas-cu12",
            CudaLibrary::Cudnn => "nvidia-cudnn-cu12",
            CudaLibrary::Nvrtc => "nvidia-cuda-nvrtc-cu12",
            CudaLibrary::Nccl => "nvidia-nccl-cu12",
        }
    }

    /// The names of its file, the best first.
    pub fn file_names(self) -> &'static [&'static str] {
        match self {
            CudaLibrary::CublasLt => &["libcublasLt.so.13", "libcublasLt.so.12"],
            CudaLibrary::Cudnn => &["libcudnn.so.9"],
            CudaLibrary::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12"],
            CudaLibrary::Nccl => &["libnccl.so.2"],
        }
    }
}

impl LibrarySearch {
    /// Adds where python3 has its packages. No Python adds nothing.
    pub fn ask_python(&mut self) {
        let python = Command::new("python3")
            .args(["-c", ASK_PYTHON])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let answer = python.ok().and_then(|child| answer_of(child, Deadline::after(PYTHON)));
        let folders = answer.iter().flat_map(|answer| answer.lines()).map(PathBuf::from);
        self.site_packages.extend(folders);
    }

    /// Returns a folder that the user named and that has none of these libraries, if there is one.
    pub fn folder_without(&self) -> Option<&Path> {
        let names = || CudaLibrary::ALL.into_iter().flat_map(CudaLibrary::file_names);
        let has_any = |folder: &Path| names().any(|name| folder.join(name).exists());
        self.folders.iter().map(PathBuf::as_path).find(|folder| !has_any(folder))
    }

    /// Returns what to try, in this order: files that are there, and plain names, for which the dynamic linker looks.
    pub fn candidates(&self, library: CudaLibrary) -> Vec<FoundLibrary> {
        let mut found = Vec::new();
        let mut add = |path: PathBuf, place| found.push(FoundLibrary { library, path, place });
        let names = library.file_names();
        for file in files_in(self.folders.iter().cloned(), names) {
            add(file, "a named folder");
        }
        for name in names {
            add(PathBuf::from(name), "the dynamic linker");
        }
        let toolkit = self.cuda_home.iter().flat_map(|home| {
            ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"]
                .map(|folder| home.join(folder))
        });
        for file in files_in(toolkit, names) {
            add(file, "CUDA_HOME");
        }
        let packages = self.site_packages.iter().flat_map(|folder| {
            let mut packages: Vec<PathBuf> = std::fs::read_dir(folder.join("nvidia"))
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path().join("lib"))
                .collect();
            packages.sort();
            packages
        });
        for file in files_in(packages, names) {
            add(file, "python3's packages");
        }
        found
    }

    /// Returns what `open` makes of the first candidate that it takes.
    pub(crate) fn open<T>(
        &self,
        library: CudaLibrary,
        open: impl Fn(LoadedLibrary) -> Result<T, LibraryError>,
    ) -> Result<T, LibraryError> {
        let mut first = None;
        for found in self.candidates(library) {
            let is_name = !found.path.is_absolute();
            match LoadedLibrary::load(found).and_then(&open) {
                Ok(opened) => return Ok(opened),
                // nobody put a library where the linker has none
                Err(LibraryError::Load { .. }) if is_name => {}
                Err(error) => {
                    first.get_or_insert(error);
                }
            }
        }
        Err(first.unwrap_or_else(|| LibraryError::Missing {
            library: library.name(),
            looked_for: self.looked_for(library),
        }))
    }

    /// What was looked for where, for people.
    pub(crate) fn looked_for(&self, library: CudaLibrary) -> String {
        let folder = |path: &PathBuf| path.display().to_string();
        let named = self.folders.iter().map(folder);
        let places = named.chain(["where the dynamic linker looks".to_owned()]);
        let places = places.chain(self.cuda_home.iter().map(folder));
        let packages = self.site_packages.first().map(|_| "python3's packages".to_owned());
        let places: Vec<String> = places.chain(packages).collect();
        format!("{}: {}", library.file_names().join(" or "), places.join(", "))
    }

    /// Returns the first candidate that can be loaded, and leaves it loaded.
    pub fn find(&self, library: CudaLibrary) -> Option<FoundLibrary> {
        self.candidates(library).into_iter().find(|found| loads(&found.path))
    }
}

impl LoadedLibrary {
    fn load(found: FoundLibrary) -> Result<LoadedLibrary, LibraryError> {
        let failed = |reason| LibraryError::Load { path: found.path.display().to_string(), reason };
        if let Some(program) = LOADS_NOTHING {
            return Err(failed(program.why.to_string()));
        }
        // SAFETY: as for `loads`.
        let handle = unsafe { libloading::Library::new(&found.path) };
        let handle = handle.map_err(|error| failed(error.to_string()))?;
        let handle = ManuallyDrop::new(handle);
        Ok(LoadedLibrary { found, version: LibraryVersion::default(), handle })
    }

    /// Where it was found.
    pub fn found(&self) -> &FoundLibrary {
        &self.found
    }

    /// Its version, as it says it.
    pub fn version(&self) -> LibraryVersion {
        self.version
    }

    pub(crate) fn handle(&self) -> &libloading::Library {
        &self.handle
    }

    /// Notes the version, if it is one of these major ones.
    pub(crate) fn check_version(
        &mut self,
        version: LibraryVersion,
        majors: &[usize],
    ) -> Result<(), LibraryError> {
        self.version = version;
        if majors.contains(&version.major) {
            return Ok(());
        }
        let known: Vec<String> = majors.iter().map(usize::to_string).collect();
        let (found, known) = (version.to_string(), known.join(" or "));
        Err(LibraryError::Version { path: self.path(), found, known })
    }

    pub(crate) fn without(&self, function: &'static str) -> LibraryError {
        LibraryError::Function { path: self.path(), function }
    }

    /// Has it make what it works with on a GPU, by its function of this name; 0 is its success.
    pub(crate) fn start(
        &self,
        device: &Device,
        name: &'static str,
        create: impl FnOnce(*mut *mut c_void) -> c_uint,
        failure: impl FnOnce(c_uint) -> Box<Failure>,
    ) -> Result<Handle<c_void>, LibraryError> {
        let mut handle = std::ptr::null_mut();
        let status = device.in_context(|| create(&mut handle));
        match status.map_err(|error| self.refused(error.to_string()))? {
            0 => Ok(Handle(handle)),
            code => Err(self.refuses(Refused { call: name, failure: failure(code) })),
        }
    }

    /// Refuses a library that works by another driver than the one that this device is of: it has loaded one itself.
    pub(crate) fn check_driver(&self, device: &Device) -> Result<(), LibraryError> {
        let driver = device.driver();
        if driver.is_everybodys() {
            return Ok(());
        }
        let reason = format!("it loads {SONAME}, and the driver is {}", driver.looked_for());
        Err(self.refused(reason))
    }

    /// The error that it refuses a call by which it is tried.
    pub(crate) fn refuses(&self, Refused { call, failure }: Refused) -> LibraryError {
        self.refused(format!("{call} says {failure}"))
    }

    pub(crate) fn refused(&self, reason: String) -> LibraryError {
        LibraryError::Start { path: self.path(), reason }
    }

    fn path(&self) -> String {
        self.found.path.display().to_string()
    }
}

/// As in `cuBLASLt 13.1.0`.
impl fmt::Display for LoadedLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.found.library.name(), self.version)
    }
}

impl fmt::Display for LibraryVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LibraryVersion { major, minor, patch } = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// Files of these names in these folders: the names in their order, and each in all folders.
fn files_in(folders: impl Iterator<Item = PathBuf>, names: &[&str]) -> Vec<PathBuf> {
    let folders: Vec<PathBuf> = folders.collect();
    let all = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    all.filter(|path| path.is_file()).collect()
}

fn loads(path: &Path) -> bool {
    if LOADS_NOTHING.is_some() {
        return false;
    }
    // SAFETY: a library's initialisers run: that those of CUDA's libraries may is what a caller asks for who looks for
    // them. It is never unloaded.
    unsafe { libloading::Library::new(path) }.map(ManuallyDrop::new).is_ok()
}

/// What a process printed, if it ended well in time.
fn answer_of(mut child: Child, deadline: Deadline) -> Option<String> {
    let ended = wait(deadline, || child.try_wait().map(|status| status.is_some()));
    if !matches!(ended, Ok(true)) {
        // its end is not waited for beyond this
        let _ = child.kill();
    }
    let output = child.wait_with_output().ok()?;
    let text = output.status.success().then_some(output.stdout)?;
    String::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with empty files.
    fn folder(root: &Path, files: &[&str]) -> PathBuf {
        for file in files {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        root.to_path_buf()
    }

    #[test]
    fn named_folders_come_before_the_linker_the_toolkit_and_python() {
        let root = tempfile::tempdir().unwrap();
        let in_root = |path: &str| root.path().join(path);
        let named = folder(&in_root("named"), &["libcublasLt.so.12"]);
        let home = folder(&in_root("cuda"), &["lib64/libcublasLt.so.12", "lib64/libcudnn.so.9"]);
        let packages =
            folder(&in_root("site"), &["nvidia/cu13/lib/libcublasLt.so.13", "nvidia/cublas/lib/x"]);
        let search = LibrarySearch {
            folders: vec![named],
            cuda_home: Some(home),
            site_packages: vec![packages, in_root("nowhere")],
        };
        let paths = |library| {
            let found = search.candidates(library).into_iter();
            found.map(|found| (found.path, found.place)).collect::<Vec<_>>()
        };
        assert_eq!(
            paths(CudaLibrary::CublasLt),
            [
                (in_root("named/libcublasLt.so.12"), "a named folder"),
                ("libcublasLt.so.13".into(), "the dynamic linker"),
                ("libcublasLt.so.12".into(), "the dynamic linker"),
                (in_root("cuda/lib64/libcublasLt.so.12"), "CUDA_HOME"),
                (in_root("site/nvidia/cu13/lib/libcublasLt.so.13"), "python3's packages"),
            ]
        );
        let (named, home) = (in_root("named").display().to_string(), in_root("cuda"));
        assert_eq!(
            search.looked_for(CudaLibrary::Cudnn),
            format!(
                "libcudnn.so.9: {named}, where the dynamic linker looks, {}, python3's packages",
                home.display()
            )
        );
        assert_eq!(paths(CudaLibrary::Cudnn).len(), 2);
        assert_eq!(paths(CudaLibrary::Nccl).len(), 1);
        // empty files are no libraries
        assert!(!loads(&in_root("named/libcublasLt.so.12")));
    }

    #[test]
    fn a_python_that_does_not_answer_is_left() {
        let child = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap()
        };
        let far = Deadline::after(Duration::from_secs(60));
        assert_eq!(answer_of(child("echo /a; echo /b"), far).as_deref(), Some("/a\n/b\n"));
        assert_eq!(answer_of(child("echo /a; exit 3"), far), None);
        let near = Deadline::after(Duration::from_millis(20));
        assert_eq!(answer_of(child("exec sleep 60"), near), None);
        assert!(!far.passed());
    }
}
