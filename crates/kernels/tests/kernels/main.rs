//! The operators' arithmetic on every back end: against closed forms, against each other, against central
//! differences, and with operands that do not fit.
#![allow(clippy::unwrap_used)] // test code: what does not hold ends the test

mod agreement;
mod agreement_attention;
mod agreement_compression;
mod agreement_elements;
mod agreement_families;
mod closed_form;
mod closed_form_families;
mod common;
mod custom;
mod determinism;
mod errors;
mod gradient_table;
mod gradient_table_elements;
mod gradients;
mod images;
mod images_closed_form;
mod images_errors;
mod onednn;
mod optimizers;
mod targets;
mod transformer_errors;
