//! Builds the kernels of crate `cuda` for the processor and prints where the library lies: what a driver without a GPU is
//! given as `FAKE_CUDA_KERNELS`. `cargo xtask gpu --stand-in` runs it.
#![allow(clippy::print_stdout)] // a program that people run

use std::process::ExitCode;

fn main() -> ExitCode {
    match tensorwire_testkit::shim::cuda_shim() {
        Ok(library) => {
            println!("{}", library.display());
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}
