//! Matrix products by cuBLASLt: by the one that stands in its place, on the driver without a GPU, and on a GPU by the real
//! one. Where the real one is found and no GPU is, its objects are made all the same.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tensorwire_device::{
    CublasLt, CudaLibrary, LibrarySearch, MatrixProduct, ProductFactor, RealType,
};
use tensorwire_testkit::skip::{skip, skip_part};

use crate::support::{Machine, download, on_each, on_fake, soon, upload, whole};

/// Names folders of CUDA's libraries, with colons between.
pub(crate) const FOLDERS: &str = "TENSORWIRE_CUDA_LIBS";

/// Where real libraries are looked for.
pub(crate) fn search() -> LibrarySearch {
    let folders = std::env::var_os(FOLDERS);
    let folders = folders.map(|folders| std::env::split_paths(&folders).collect());
    let mut search =
        LibrarySearch { folders: folders.unwrap_or_default(), ..LibrarySearch::default() };
    search.ask_python();
    search
}

/// The library for this machine: a real one, or the one that stands in its place, in a folder that lives as long.
fn library(machine: &Machine) -> Option<(Arc<CublasLt>, Option<tempfile::TempDir>)> {
    if !machine.is_fake() {
        return match CublasLt::open(&machine.device, &search()) {
            Ok(library) => Some((Arc::new(library), None)),
            Err(error) => {
                skip_part(&error);
                None
            }
        };
    }
    let folder = tempfile::tempdir().unwrap();
    tensorwire_fakecuda::libraries(folder.path()).unwrap();
    let library = CublasLt::open(&machine.device, &named(folder.path())).unwrap();
    Some((Arc::new(library), Some(folder)))
}

pub(crate) fn named(folder: &Path) -> LibrarySearch {
    LibrarySearch { folders: vec![folder.to_owned()], ..LibrarySearch::default() }
}

#[test]
fn the_real_library_makes_what_the_table_says() {
    // the table needs no GPU
    match CublasLt::look(&search()) {
        Ok(library) => eprintln!("{library} in {}", library.found().path.display()),
        Err(error)
            if search()
                .candidates(CudaLibrary::CublasLt)
                .iter()
                .any(|found| found.path.exists()) =>
        {
            panic!("{error}")
        }
        Err(error) => skip(Some(FOLDERS), &error),
    }
}

const ROWS: usize = 5;
const COLUMNS: usize = 3;
const DEPTH: usize = 70;

/// a and b as they lie, either way round.
fn product(turned: [bool; 2], batch: usize) -> MatrixProduct {
    let factor = |is_turned, [rows, columns]: [usize; 2]| ProductFactor {
        of: RealType::F32,
        is_turned,
        row_step: if is_turned { rows } else { columns },
        batch_step: rows * columns,
    };
    MatrixProduct {
        rows: ROWS,
        columns: COLUMNS,
        depth: DEPTH,
        batch,
        a: factor(turned[0], [ROWS, DEPTH]),
        b: factor(turned[1], [DEPTH, COLUMNS]),
        result: RealType::F32,
        rounds_to_tf32: false,
    }
}

/// Small whole numbers, whose sums are exact in any order.
pub(crate) fn number(at: usize, seed: usize) -> f32 {
    (at * 7 + seed) as f32 % 11.0 - 5.0
}

pub(crate) fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

#[test]
fn products_are_those_of_rows_either_way_round() {
    on_each(|machine| {
        let Some((library, _folder)) = library(machine) else { return };
        for (turned, batch) in
            [([false; 2], 1), ([true, false], 1), ([false, true], 2), ([true; 2], 3)]
        {
            let of = product(turned, batch);
            let plan = library.plan(&of, 1 << 20).unwrap().unwrap();
            let a: Vec<f32> = (0..batch * ROWS * DEPTH).map(|at| number(at, 1)).collect();
            let b: Vec<f32> = (0..batch * DEPTH * COLUMNS).map(|at| number(at, 4)).collect();
            let memory = |bytes: usize| machine.memory(bytes as u64);
            let (at_a, at_b) = (memory(4 * a.len()), memory(4 * b.len()));
            let (at_y, room) = (memory(4 * batch * ROWS * COLUMNS), memory(1 << 20));
            upload(machine, &bytes(&a), &whole(&at_a.slab()));
            upload(machine, &bytes(&b), &whole(&at_b.slab()));
            let stream = machine.stream();
            let launch = || {
                let operands = [at_a.address(), at_b.address(), at_y.address()];
                // SAFETY: all of it is this test's memory, of as many bytes, and lives until the stream has passed.
                unsafe { plan.launch(&stream, operands, room.address()) }.unwrap();
            };
            launch();
            // and as a part of a graph
            stream.begin_capture().unwrap();
            launch();
            let graph = stream.end_capture().unwrap();
            graph.launch(&stream).unwrap();
            stream.synchronize(soon()).unwrap();
            let y = whole(&at_y.slab());
            let found: Vec<f32> = download(machine, &y)
                .chunks_exact(4)
                .map(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap()))
                .collect();
            for (at, found) in found.into_iter().enumerate() {
                let (of, row, column) = (at / (ROWS * COLUMNS), at / COLUMNS % ROWS, at % COLUMNS);
                let sum: f32 = (0..DEPTH)
                    .map(|k| {
                        let a_at = if turned[0] { k * ROWS + row } else { row * DEPTH + k };
                        let b_at =
                            if turned[1] { column * DEPTH + k } else { k * COLUMNS + column };
                        a[of * ROWS * DEPTH + a_at] * b[of * DEPTH * COLUMNS + b_at]
                    })
                    .sum();
                assert_eq!(found, sum, "{turned:?} {at}");
            }
        }
    });
}

#[test]
fn what_no_library_has_is_not_planned() {
    on_each(|machine| {
        let Some((library, _folder)) = library(machine) else { return };
        let of = product([false; 2], 1);
        // a result of another type, and nothing to add up
        let wide = MatrixProduct { result: RealType::F64, ..of };
        assert!(library.plan(&wide, 0).unwrap().is_none());
        assert!(library.plan(&MatrixProduct { depth: 0, ..of }, 0).unwrap().is_none());
        // rows that overlap
        let a = ProductFactor { row_step: 1, ..of.a };
        assert!(library.plan(&MatrixProduct { a, ..of }, 0).unwrap().is_none());
        // a workspace of nothing is enough for some algorithm
        assert_eq!(library.plan(&of, 0).unwrap().unwrap().workspace_bytes(), 0);
    });
}

/// Why the library in a folder cannot be used here.
fn refused(folder: PathBuf) -> String {
    CublasLt::open(&Machine::open().device, &named(&folder)).unwrap_err().to_string()
}

/// Opens the library that stands in the real one's place, on a machine where it cannot be used.
fn refused_on(machine: &[(&str, &str)], why: &str) {
    on_fake(machine, || {
        let folder = tempfile::tempdir().unwrap();
        tensorwire_fakecuda::libraries(folder.path()).unwrap();
        let found = refused(folder.path().to_owned());
        assert!(found.contains(why), "{found}");
    });
}

#[test]
fn a_library_that_does_not_start_says_so() {
    let why = "does not start: cublasLtCreate says CUBLAS_STATUS_NOT_INITIALIZED";
    refused_on(&[("FAKE_CUDA_FAULTS", "nolibrary")], why);
}

#[test]
fn a_library_of_another_time_says_so() {
    refused_on(&[("FAKE_CUDA_CUBLAS", "110800")], "is of version 11.8.0; 12 or 13 can be used");
}

#[test]
fn a_file_that_is_no_library_or_lacks_functions_is_refused() {
    on_fake(&[], || {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libcublasLt.so.13");
        std::fs::write(&file, "no library").unwrap();
        let found = refused(folder.path().to_owned());
        assert!(found.contains("cannot be loaded"), "{found}");
        // a library of something else
        let Some(kernels) = std::env::var_os("FAKE_CUDA_KERNELS") else {
            return skip_part(&"no compiler makes another library");
        };
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(kernels, &file).unwrap();
        let found = refused(folder.path().to_owned());
        assert!(found.contains("has no function cublasLtGetVersion"), "{found}");
    });
}
