//! Builds the kernels of crate `cuda` as a library that runs on the processor, and prints where it is: what a driver without a
//! GPU is given as `FAKE_CUDA_KERNELS`. `CXXFLAGS` as for any C++.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that people run")]

use std::process::ExitCode;

use tensorwire_testkit::shim::cuda_shim;

fn main() -> ExitCode {
    match cuda_shim() {
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
