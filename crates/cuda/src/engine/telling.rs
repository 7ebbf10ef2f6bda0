//! What a stream is told of an operator that was made ready.

use std::collections::HashMap;

use tensorwire_device::{DeviceError, Function, Stream};
use tensorwire_kernels::CudaLaunch;

use super::prepared::Prepared;
use crate::{Command, Launch, LibraryConvolution, LibraryProduct};

/// Tells a stream all commands of an operator.
pub(super) fn tell(
    stream: &Stream,
    functions: &HashMap<&'static str, Function>,
    prepared: &Prepared,
) -> Result<(), DeviceError> {
    let addresses = prepared.addresses();
    let at = |address| addresses.resolve(address).unwrap_or_default();
    let (mut plans, mut own) = (prepared.plans(), prepared.functions());
    for (command, arguments) in prepared.commands() {
        match command {
            Command::Launch(kernel) => launch(stream, functions, kernel, arguments)?,
            Command::Product(LibraryProduct { operands, .. })
            | Command::Convolution(LibraryConvolution { operands, .. }) => {
                let Some(plan) = plans.next() else { continue };
                let operands = operands.map(at);
                // SAFETY: as for a launch. The plan is that of this command, all operands were looked at when it was made,
                // and parts of the workspace begin at multiples of 256; behind the operator's own it has room for any plan's.
                unsafe { plan.launch(stream, operands, prepared.library_workspace())? };
            }
            Command::Program(program) => {
                let Some(function) = own.next() else { continue };
                let CudaLaunch { grid, block, shared_bytes, .. } = program.launch;
                // SAFETY: as for a launch, but for the user's kernel: what it reaches is his duty, as in any program of
                // CUDA's. Its parameters are as many bytes as it is given: that was held against its PTX.
                unsafe { stream.launch(function, grid, block, shared_bytes, arguments)? };
            }
            Command::Copy { from, to, bytes } => {
                // SAFETY: as for a launch; the lowering copies nothing onto itself.
                unsafe { stream.copy_at(at(*from), at(*to), *bytes)? };
            }
            Command::Set { to, bytes, byte } => {
                // SAFETY: as for a launch.
                unsafe { stream.set_at(at(*to), *bytes, *byte)? };
            }
        }
    }
    Ok(())
}

fn launch(
    stream: &Stream,
    functions: &HashMap<&'static str, Function>,
    launch: &Launch,
    arguments: &[u8],
) -> Result<(), DeviceError> {
    let Some(function) = functions.get(launch.kernel) else {
        let kernel = launch.kernel.to_owned();
        return Err(DeviceError::NoSuchKernel { device: stream.device().ordinal(), kernel });
    };
    // SAFETY: the arguments are those that the lowering gives this kernel. They name the operands, which the caller lent
    // and guards by the order of this stream from here on, scratch and words, which only this stream uses and which are
    // given back when it is idle. The lowering's checks and the kernels' suites hold what is reached to these operands'
    // sizes.
    unsafe { stream.launch(function, launch.grid, launch.block, launch.shared_bytes, arguments) }
}
