//! Prints where the library of the kernels is that runs on any processor of this kind; built, if it was not. Where nothing
//! can build it, says so and ends with 3. `cargo xtask soft-roce` asks it, which uses no crate of the project.

use std::process::ExitCode;

use tensorwire_testkit::shim::portable_cuda_shim;

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a program that another one reads")]
fn main() -> ExitCode {
    match portable_cuda_shim() {
        Ok(library) => {
            println!("{}", library.display());
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::from(3)
        }
    }
}
