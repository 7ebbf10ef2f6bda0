//! The suites of what libraries compute, on the engine with libraries that stand in their place; and what is said where a
//! library is missing or fails.

use tensorwire_graph::Op;
use tensorwire_kernels::DeviceKernels;
use tensorwire_kernels::check::Tensor;
use tensorwire_memory::{TensorMut, TensorRef};
use tensorwire_tensor::DType;

use crate::common::Values;
use crate::engine::{in_a_process, is_own_process};
use crate::gpu::{Gpu, with_kernels};

/// Tests whose operators are products, or have some.
const SUITES: [&str; 12] = [
    "agreement::matmul",
    "agreement::large_operands",
    "agreement_elements::batches_of_products",
    "agreement_families::recurrent_cells",
    "agreement_families::storage_in_bf16",
    "closed_form::matmul",
    "gradient_table::products",
    "gradient_table::recurrent",
    "gradient_table_elements::batches_of_products",
    "images::convolutions_agree",
    "images_closed_form::a_convolution",
    "libraries::in_an_engine_products_are_the_librarys",
];

#[test]
fn suites_of_products_on_a_library() {
    in_a_process(&SUITES, true, &[]);
}

#[test]
fn suites_of_products_without_an_algorithm() {
    in_a_process(&SUITES[..1], true, &[("FAKE_CUDA_FAULTS", "noalgorithm")]);
}

fn library_calls() -> u64 {
    with_kernels(|kernels| kernels.library_calls())
}

fn description() -> String {
    with_kernels(|kernels| kernels.description())
}

fn product(seed: u64, is_aligned: bool) -> Result<Vec<f32>, String> {
    let mut values = Values(seed);
    let mut tensor =
        |dims: &[usize]| Tensor::new(dims, &values.reals::<f32>(dims.iter().product()));
    let inputs = [tensor(&[33, 130]), tensor(&[130, 65])];
    let inputs: Vec<TensorRef<'_>> = inputs.iter().map(Tensor::view).collect();
    let mut y = Tensor::unwritten(DType::F32, &[33, 65]);
    let op = Op::MatMul { transpose_a: false, transpose_b: false };
    let mut outputs: Vec<TensorMut<'_>> = vec![y.view_mut()];
    let gpu = Gpu { is_aligned };
    with_kernels(|kernels| gpu.compute_with(kernels, &op, &inputs, &mut outputs, false))
        .map_err(|failure| failure.to_string())?;
    drop(outputs);
    Ok(y.to_vec())
}

#[test]
fn in_an_engine_products_are_the_librarys() {
    if !is_own_process() {
        return;
    }
    let before = library_calls();
    let found = product(1, true).unwrap();
    assert_eq!(library_calls(), before + 1);
    assert!(description().ends_with("products by cuBLASLt 13.1.0"), "{}", description());
    assert!(product(1, true).unwrap() == found);
    // where a library takes no operands
    let calls = library_calls();
    let near = product(1, false).unwrap();
    assert_eq!(library_calls(), calls);
    // sums of 130 products of numbers up to 2
    let most = 2.0 * 130.0 * f32::EPSILON * 4.0 * 130.0;
    assert!(near.iter().zip(&found).all(|(a, b)| (a - b).abs() <= most));
    assert!(product(1, true).unwrap() == found);
}

/// What the first test of a process with an engine is told.
fn said(libraries: bool, faults: &str) -> Option<String> {
    in_a_process(&["libraries::in_an_engine_it_says"], libraries, &[("FAKE_CUDA_FAULTS", faults)])
}

#[test]
fn in_an_engine_it_says_what_computes_products() {
    if !is_own_process() {
        return;
    }
    eprintln!("{}", description());
    match product(2, true) {
        Ok(_) => eprintln!("computed, {} by a library", library_calls()),
        Err(error) => {
            eprintln!("failed: {error}");
            // nothing is computed after it
            assert_eq!(product(2, true), Err(error));
        }
    }
}

#[test]
fn what_computes_products_is_said() {
    let Some(found) = said(true, "") else { return };
    assert!(found.contains("products by cuBLASLt 13.1.0"), "{found}");
    assert!(found.contains("computed, 1 by a library"), "{found}");
    let without = said(false, "").unwrap();
    assert!(without.contains("products by own kernels (no library is to be used)"), "{without}");
    assert!(without.contains("computed, 0 by a library"), "{without}");
    let broken = said(true, "nolibrary").unwrap();
    let why = "libcublasLt.so.13 does not start: cublasLtCreate says CUBLAS_STATUS_NOT_INITIALIZED";
    assert!(broken.contains(why), "{broken}");
    assert!(broken.contains("computed, 0 by a library"), "{broken}");
}

#[test]
fn a_product_that_fails_is_said_with_what_to_do() {
    let Some(failed) = said(true, "product=1") else { return };
    let why = "failed: cuBLASLt fails on GPU 0: cublasLtMatmul says CUBLAS_STATUS_EXECUTION_FAILED";
    assert!(failed.contains(why), "{failed}");
    assert!(failed.contains("compute without it (--cuda-libs none)"), "{failed}");
}
