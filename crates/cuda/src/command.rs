//! What a stream is given: launches, copies and fills as plain data. Addresses are open: an operand, or a place in the
//! workspace, until [`Addresses`] say where these lie.

use std::sync::Arc;

use tensorwire_device::{ImageConvolution, MatrixProduct};
use tensorwire_kernels::{CudaLaunch, CudaProgram};
use tensorwire_tensor::DType;

/// One thing that a stream does, behind what it was given before.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    Launch(Launch),
    /// A matrix product that a library computes.
    Product(LibraryProduct),
    /// A convolution that a library computes.
    Convolution(LibraryConvolution),
    /// A kernel of a user's own.
    Program(ProgramLaunch),
    /// Bytes that do not overlap.
    Copy {
        from: Address,
        to: Address,
        bytes: usize,
    },
    /// Every byte becomes `byte`.
    Set {
        to: Address,
        bytes: usize,
        byte: u8,
    },
}

/// A kernel over a grid of blocks. Its one argument is a structure, all of whose fields are 8 bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// One of [`kernel_names`](crate::kernel_names).
    pub kernel: &'static str,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Dynamic shared memory; what a kernel declares itself is not counted.
    pub shared_bytes: u32,
    /// The structure's fields, in their order.
    pub arguments: Vec<KernelArgument>,
}

/// A kernel of a user's program. It takes its arguments one by one, of 8 bytes each.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramLaunch {
    pub program: Arc<ProgramText>,
    /// Its kernel, grid and block.
    pub launch: CudaLaunch,
    /// Those of `launch`, as places in memory.
    pub arguments: Vec<KernelArgument>,
}

/// A user's program, for elements of a type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProgramText {
    pub program: CudaProgram,
    pub scalar: Option<DType>,
}

/// A matrix product of a library's. Its workspace is the library's own, behind the operator's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LibraryProduct {
    pub product: MatrixProduct,
    /// a, b and y.
    pub operands: [Address; 3],
}

/// A convolution of a library's. Its workspace is as a product's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LibraryConvolution {
    pub convolution: ImageConvolution,
    /// x, w and y, or their gradients.
    pub operands: [Address; 3],
}

/// A field of a kernel's argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KernelArgument {
    Address(Address),
    /// A pointer to nothing: what the operator does not have.
    Nothing,
    Integer(i64),
    Real(f64),
    /// A pointer to the `f64` by which optimizers multiply their rate.
    RateFactor,
    /// A pointer to the [`DeviceFault`](crate::DeviceFault) that the first error is written to.
    Fault,
    /// A pointer to a word that the host reads where all else is lost: 1 and the tag of the user's operator that the device
    /// is at, else 0.
    Progress,
}

/// A place in memory of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    pub of: Memory,
    /// Bytes from its start.
    pub offset: usize,
}

/// What an address is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// An input, counted as the operator counts those that it does not change.
    Input(usize),
    /// An output; variables that are changed come first.
    Output(usize),
    Workspace,
}

/// Where everything lies that a [`Lowered`](crate::Lowered) operator speaks of: addresses of the device.
#[derive(Clone, Copy, Debug)]
pub struct Addresses<'a> {
    /// The first is not read where it lies in the first output.
    pub inputs: &'a [u64],
    pub outputs: &'a [u64],
    /// At a multiple of 256. Anything, where no byte of it is asked for.
    pub workspace: u64,
    pub rate_factor: u64,
    pub fault: u64,
    pub progress: u64,
}

/// An operand that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{of:?} has no address: fewer operands were given than the operator has")]
pub struct MissingAddress {
    pub of: Memory,
}

impl Launch {
    /// Returns the kernel's argument as bytes. They stay the same as long as the addresses do.
    ///
    /// # Errors
    /// When an operand is missing.
    pub fn bytes(&self, addresses: &Addresses<'_>) -> Result<Vec<u8>, MissingAddress> {
        bytes(&self.arguments, addresses)
    }
}

impl ProgramLaunch {
    /// Returns the kernel's arguments as bytes.
    ///
    /// # Errors
    /// When an operand is missing.
    pub fn bytes(&self, addresses: &Addresses<'_>) -> Result<Vec<u8>, MissingAddress> {
        bytes(&self.arguments, addresses)
    }
}

fn bytes(
    arguments: &[KernelArgument],
    addresses: &Addresses<'_>,
) -> Result<Vec<u8>, MissingAddress> {
    let mut bytes = Vec::with_capacity(8 * arguments.len());
    for argument in arguments {
        bytes.extend_from_slice(&argument.bits(addresses)?.to_ne_bytes());
    }
    Ok(bytes)
}

impl KernelArgument {
    fn bits(self, addresses: &Addresses<'_>) -> Result<u64, MissingAddress> {
        Ok(match self {
            KernelArgument::Address(address) => addresses.resolve(address)?,
            KernelArgument::Nothing => 0,
            KernelArgument::Integer(value) => value.cast_unsigned(),
            KernelArgument::Real(value) => value.to_bits(),
            KernelArgument::RateFactor => addresses.rate_factor,
            KernelArgument::Fault => addresses.fault,
            KernelArgument::Progress => addresses.progress,
        })
    }
}

impl Addresses<'_> {
    /// Returns where it is.
    ///
    /// # Errors
    /// When there is no such operand.
    pub fn resolve(&self, address: Address) -> Result<u64, MissingAddress> {
        let start = match address.of {
            Memory::Input(place) => self.inputs.get(place),
            Memory::Output(place) => self.outputs.get(place),
            Memory::Workspace => Some(&self.workspace),
        };
        // offsets are within what is addressed
        let at = |start: &u64| start.wrapping_add(address.offset as u64);
        start.map(at).ok_or(MissingAddress { of: address.of })
    }
}

impl Address {
    /// Returns the address so many bytes behind it.
    pub fn behind(self, bytes: usize) -> Address {
        Address { offset: self.offset + bytes, ..self }
    }
}

impl From<Address> for KernelArgument {
    fn from(address: Address) -> KernelArgument {
        KernelArgument::Address(address)
    }
}

impl From<Option<Address>> for KernelArgument {
    fn from(address: Option<Address>) -> KernelArgument {
        address.map_or(KernelArgument::Nothing, KernelArgument::Address)
    }
}

impl From<f64> for KernelArgument {
    fn from(value: f64) -> KernelArgument {
        KernelArgument::Real(value)
    }
}

impl From<i64> for KernelArgument {
    fn from(value: i64) -> KernelArgument {
        KernelArgument::Integer(value)
    }
}

/// Sizes of tensors, which fit: a tensor's bytes fit an `isize`.
impl From<usize> for KernelArgument {
    fn from(value: usize) -> KernelArgument {
        KernelArgument::Integer(value.cast_signed() as i64)
    }
}

impl From<bool> for KernelArgument {
    fn from(value: bool) -> KernelArgument {
        KernelArgument::Integer(value.into())
    }
}
