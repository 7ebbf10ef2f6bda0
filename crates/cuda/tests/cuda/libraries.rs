//! The suites of what libraries compute, on the engine with libraries that stand in their place; and what is said where a
//! library is missing or fails.

use tensorwire_graph::{Op, Window};
use tensorwire_kernels::DeviceKernels;
use tensorwire_kernels::check::Tensor;
use tensorwire_memory::{TensorMut, TensorRef};
use tensorwire_tensor::DType;
use tensorwire_testkit::long;

use crate::common::Values;
use crate::engine::{in_a_process, is_own_process};
use crate::gpu::{Gpu, with_kernels};

/// Tests whose operators are products or convolutions, or have some.
const SUITES: [&str; 16] = [
    "agreement::matmul",
    "agreement::large_operands",
    "agreement_elements::batches_of_products",
    "agreement_families::recurrent_cells",
    "agreement_families::storage_in_bf16",
    "closed_form::matmul",
    "gradient_table::uneven_windows",
    "images::convolutions_agree",
    "images_closed_form::channels_are_summed",
    "images_closed_form::a_convolution",
    "images_closed_form::padding_stride_and_dilation",
    "libraries::in_an_engine_products_are_the_librarys",
    "libraries::in_an_engine_convolutions_are_the_librarys",
    // by central differences, which compute each operator many times
    "gradient_table::products",
    "gradient_table::recurrent",
    "gradient_table_elements::batches_of_products",
];

#[test]
fn suites_of_products_on_a_library() {
    in_a_process(&SUITES[..long::of(13, 16)], true, &[]);
}

#[test]
fn suites_of_products_without_an_algorithm() {
    let suites = ["agreement::matmul", "libraries::in_an_engine_what_is_refused_is_computed"];
    in_a_process(&suites, true, &[("FAKE_CUDA_FAULTS", "noalgorithm")]);
}

fn library_calls() -> u64 {
    with_kernels(|kernels| kernels.library_calls())
}

fn library_refusals() -> u64 {
    with_kernels(|kernels| kernels.library_refusals())
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

/// A convolution of 3×3 places with a row of padding on one side alone, forward and back: y, dx and dw.
fn convolution(groups: usize) -> Result<[Vec<f32>; 3], String> {
    let mut values = Values(3);
    let mut tensor =
        |dims: &[usize]| Tensor::new(dims, &values.reals::<f32>(dims.iter().product()));
    let [x, w, y] = [[2, 6, 5, 4], [6, 4 / groups, 3, 3], [2, 3, 2, 6]].map(|dims| tensor(&dims));
    let window =
        Window { kernel: [3, 3], stride: [2, 2], dilation: [1, 1], before: [0, 0], after: [1, 0] };
    let compute = |op: &Op, inputs: [&Tensor; 2], dims: &[usize]| {
        let inputs = inputs.map(Tensor::view);
        let mut made = Tensor::unwritten(DType::F32, dims);
        let mut outputs: Vec<TensorMut<'_>> = vec![made.view_mut()];
        let gpu = Gpu { is_aligned: true };
        with_kernels(|kernels| gpu.compute_with(kernels, op, &inputs, &mut outputs, false))
            .map_err(|failure| failure.to_string())?;
        drop(outputs);
        Ok::<Vec<f32>, String>(made.to_vec())
    };
    let [height, width] = [6, 5];
    Ok([
        compute(&Op::Conv2d { window, groups }, [&x, &w], y.spec().dims())?,
        compute(
            &Op::Conv2dGradInput { window, groups, size: [height, width] },
            [&y, &w],
            x.spec().dims(),
        )?,
        compute(&Op::Conv2dGradWeight { window, groups }, [&y, &x], w.spec().dims())?,
    ])
}

#[test]
fn in_an_engine_convolutions_are_the_librarys() {
    if !is_own_process() {
        return;
    }
    for groups in [1, 2] {
        let before = (library_calls(), library_refusals());
        let found = convolution(groups).unwrap();
        assert_eq!((library_calls(), library_refusals()), (before.0 + 3, before.1));
        // the engine that the heuristic names first gives other bits each time
        assert!(convolution(groups).unwrap() == found);
    }
}

#[test]
fn in_an_engine_what_is_refused_is_computed() {
    if !is_own_process() {
        return;
    }
    let before = library_refusals();
    assert!(convolution(2).is_ok());
    assert_eq!((library_calls(), library_refusals()), (0, before + 3));
}

#[test]
fn in_an_engine_products_are_the_librarys() {
    if !is_own_process() {
        return;
    }
    let before = library_calls();
    let found = product(1, true).unwrap();
    assert_eq!(library_calls(), before + 1);
    let by = "products by cuBLASLt 13.1.0, convolutions by cuDNN 9.4.0";
    assert!(description().ends_with(by), "{}", description());
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
    match product(2, true).and_then(|_| convolution(1)) {
        Ok(_) => eprintln!("computed, {} by a library", library_calls()),
        Err(error) => {
            eprintln!("failed: {error}");
            // nothing is computed after it
            assert_eq!(product(2, true), Err(error.clone()));
            assert_eq!(convolution(1), Err(error));
        }
    }
}

#[test]
fn what_computes_products_is_said() {
    let Some(found) = said(true, "") else { return };
    let by = "products by cuBLASLt 13.1.0, convolutions by cuDNN 9.4.0";
    assert!(found.contains(by), "{found}");
    assert!(found.contains("computed, 4 by a library"), "{found}");
    let without = said(false, "").unwrap();
    let why = "products and convolutions by own kernels (no library is to be used)";
    assert!(without.contains(why), "{without}");
    assert!(without.contains("computed, 0 by a library"), "{without}");
    let broken = said(true, "nolibrary").unwrap();
    let why = "libcublasLt.so.13 does not start: cublasLtCreate says CUBLAS_STATUS_NOT_INITIALIZED";
    assert!(broken.contains(why), "{broken}");
    let why = "libcudnn.so.9 does not start: cudnnCreate says CUDNN_STATUS_NOT_INITIALIZED";
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

#[test]
fn a_convolution_that_fails_is_said_with_what_to_do() {
    let Some(failed) = said(true, "convolution=2") else { return };
    let why =
        "failed: cuDNN fails on GPU 0: cudnnBackendExecute says CUDNN_STATUS_EXECUTION_FAILED";
    assert!(failed.contains(why), "{failed}");
    assert!(failed.contains("compute without it (--cuda-libs none)"), "{failed}");
}
