//! The tests of the Python package, `python/tests/test_*.py`, each in a Python that has PyTorch and imports the package
//! as a wheel would install it. Skipped where there is no PyTorch, unless `TENSORWIRE_PYTORCH` names the python that has it.
#![allow(clippy::print_stdout)] // what Python says of its tests

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tensorwire_testkit::skip::skip;
use tensorwire_testkit::slurm::Slurm;

/// Runs one file of tests; `name` is without `.py`.
fn run(name: &str) {
    let Some(python) = std::env::var_os("TENSORWIRE_PYTORCH") else {
        return skip(
            Some("TENSORWIRE_PYTORCH"),
            &"TENSORWIRE_PYTORCH names no python with PyTorch",
        );
    };
    let mut search = OsString::from(staged());
    search.push(":");
    search.push(source());
    // what is tested under launchers starts tasks by it
    let slurm = (name == "test_launchers").then(Slurm::start).flatten();
    let slurm = slurm.as_ref().map(|slurm| ("SLURM_CONF", slurm.configuration()));
    let tests = Command::new(python)
        .args(["-m", "unittest", "-v", &format!("tests.{name}")])
        .env("PYTHONPATH", search)
        .envs(slurm)
        .output()
        .expect("the python that TENSORWIRE_PYTORCH names runs");
    let said = String::from_utf8_lossy(&tests.stderr);
    println!("{}{said}", String::from_utf8_lossy(&tests.stdout));
    assert!(tests.status.success(), "{name} fails; what it says is above");
}

/// The folder `python` of the project.
fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python")
}

/// A folder with the package and what says that it is installed, made once of links to what was built.
fn staged() -> &'static Path {
    static STAGED: OnceLock<PathBuf> = OnceLock::new();
    STAGED.get_or_init(|| stage().expect("the package can be laid out"))
}

fn stage() -> std::io::Result<PathBuf> {
    let built = std::env::current_exe()?.with_file_name("libtensorwire_python.so");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("package");
    let _ = std::fs::remove_dir_all(&folder);
    link_all(&source().join("tensorwire"), &folder.join("tensorwire"))?;
    symlink(built, folder.join("tensorwire/_native.abi3.so"))?;
    let metadata = folder.join(concat!("tensorwire-", env!("CARGO_PKG_VERSION"), ".dist-info"));
    std::fs::create_dir(&metadata)?;
    let version = env!("CARGO_PKG_VERSION");
    let said = format!("Metadata-Version: 2.1\nName: tensorwire\nVersion: {version}\n");
    std::fs::write(metadata.join("METADATA"), said)?;
    std::fs::write(metadata.join("entry_points.txt"), entry_points()?)?;
    Ok(folder)
}

/// A folder like `from`, whose files are links.
fn link_all(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type()?.is_dir() {
            true if entry.file_name() == "__pycache__" => {}
            true => link_all(&path, &to)?,
            false => symlink(path.canonicalize()?, to)?,
        }
    }
    Ok(())
}

/// The entry points of `pyproject.toml`, as an installation keeps them.
fn entry_points() -> std::io::Result<String> {
    let project = std::fs::read_to_string(source().join("pyproject.toml"))?;
    let head = "[project.entry-points.\"torch.distributed.backends\"]";
    let at = project.find(head).expect("pyproject.toml has the entry point of the backend");
    let lines = project[at + head.len()..].lines().skip(1).take_while(|line| !line.is_empty());
    let points: Vec<String> = lines.map(|line| line.replace('"', "")).collect();
    Ok(format!("[torch.distributed.backends]\n{}\n", points.join("\n")))
}

macro_rules! suites {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            run(stringify!($name));
        })*

        /// No file of tests is forgotten here.
        #[test]
        fn all_files_run() {
            let mut there: Vec<String> = std::fs::read_dir(source().join("tests"))
                .expect("python/tests is there")
                .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                .filter_map(|name| Some(name.strip_suffix(".py")?.to_string()))
                .filter(|name| name.starts_with("test_"))
                .collect();
            there.sort();
            let mut known = vec![$(stringify!($name).to_string()),*];
            known.sort();
            assert_eq!(there, known);
        }
    };
}

suites!(
    test_backend,
    test_contract,
    test_ddp,
    test_examples,
    test_faults,
    test_fuzz,
    test_import,
    test_kv,
    test_launchers,
    test_package,
    test_pytorch_suite,
    test_ray
);
