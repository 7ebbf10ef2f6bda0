//! The kernels, compiled for the CPU, against the reference: every case of crate `kernels`' suites, within their
//! tolerances; every gradient against central differences; the same bits in any order of blocks. Where there is no C++
//! compiler they say that they are skipped. Where there is a GPU they run on it, too, by its driver; `TENSORWIRE_TEST_CUDA`
//! names a driver that they run on alone.
#![allow(clippy::unwrap_used)] // test code: what does not hold ends the test

mod custom;
mod engine;
mod example;
mod faults;
mod gpu;
mod large;
mod libraries;
mod meeting;
mod modules;
mod ranks;
mod rounding;
mod shim;
mod steps;
mod storage;
mod targets;

// The suites of crate `kernels`, whose files they are: they run on what `targets` gives them.
#[path = "../../../kernels/tests/kernels/agreement.rs"]
mod agreement;
#[path = "../../../kernels/tests/kernels/agreement_attention.rs"]
mod agreement_attention;
#[path = "../../../kernels/tests/kernels/agreement_compression.rs"]
mod agreement_compression;
#[path = "../../../kernels/tests/kernels/agreement_elements.rs"]
mod agreement_elements;
#[path = "../../../kernels/tests/kernels/agreement_families.rs"]
mod agreement_families;
#[path = "../../../kernels/tests/kernels/closed_form.rs"]
mod closed_form;
#[path = "../../../kernels/tests/kernels/closed_form_families.rs"]
mod closed_form_families;
#[path = "../../../kernels/tests/kernels/common/mod.rs"]
mod common;
#[path = "../../../kernels/tests/kernels/gradient_table.rs"]
mod gradient_table;
#[path = "../../../kernels/tests/kernels/gradient_table_elements.rs"]
mod gradient_table_elements;
#[path = "../../../kernels/tests/kernels/images.rs"]
mod images;
#[path = "../../../kernels/tests/kernels/images_closed_form.rs"]
mod images_closed_form;
#[path = "../../../kernels/tests/kernels/optimizers.rs"]
mod optimizers;
