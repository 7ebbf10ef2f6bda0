//! An operator that was lowered once, with the bytes of its launches as they were last.

use std::sync::atomic::{AtomicU64, Ordering};

use tensorwire_device::{DeviceError, Function, LIBRARY_ALIGNMENT};
use tensorwire_graph::Op;
use tensorwire_kernels::{DeviceCall, DeviceOperand, KernelError};
use tensorwire_tensor::TensorSpec;

use super::libraries::{Libraries, LibraryPlan};
use crate::error::LowerError;
use crate::{
    Addresses, Command, DeviceFault, Launch, LibraryConvolution, LibraryProduct, Lowered, Lowering,
    MissingAddress, ProgramLaunch, Rounding, lower,
};

/// Why an operator is not made ready.
#[derive(Debug)]
pub(super) enum PrepareError {
    Lower(LowerError),
    Device(DeviceError),
}

impl From<LowerError> for PrepareError {
    fn from(error: LowerError) -> PrepareError {
        PrepareError::Lower(error)
    }
}

impl From<DeviceError> for PrepareError {
    fn from(error: DeviceError) -> PrepareError {
        PrepareError::Device(error)
    }
}

/// Numbers that nothing else was given.
static VERSIONS: AtomicU64 = AtomicU64::new(1);

#[derive(Debug)]
pub(super) struct Prepared {
    op: Op,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    in_place: bool,
    lowered: Lowered,
    /// A library takes the operands where they lie: whose kernels compute depends on that, and not on what came before.
    is_aligned: bool,
    /// A library that there is does not take it.
    is_refused: bool,
    /// Of the libraries' commands, in their order.
    plans: Vec<LibraryPlan>,
    /// Of a user's program, in the order of its launches.
    functions: Vec<Function>,
    /// Where operands and workspace lay when `arguments` were made.
    at: Vec<u64>,
    words: [u64; 3],
    /// Another one whenever anything of it changes.
    version: u64,
    /// By command: what a launch is given.
    arguments: Vec<Vec<u8>>,
}

impl Prepared {
    /// Lowers an operator, with commands of the libraries that there are where these have an algorithm for each of them and
    /// all operands lie where they take them; else with kernels of ours alone.
    pub(super) fn new(
        call: &DeviceCall<'_>,
        rounding: Rounding,
        libraries: &Libraries,
    ) -> Result<Prepared, PrepareError> {
        let mut inputs = specs(call.inputs);
        if call.in_place {
            // the lowering has the first input as well, which is in the first output
            inputs.splice(..0, call.outputs.first().map(|output| output.spec.clone()));
        }
        let outputs = specs(call.outputs);
        let by_ours = Lowering { tag: call.node.0, rounding, ..Lowering::default() };
        let lowered =
            |options: &Lowering| lower(call.op, &inputs, &outputs, call.in_place, options);
        let (op, in_place, is_aligned) = (call.op.clone(), call.in_place, is_aligned(call));
        let by_library = libraries.lowering(by_ours);
        let (lowered, plans, is_refused) = if is_aligned && by_library != by_ours {
            let by_library = lowered(&by_library)?;
            match libraries.planned(&by_library)? {
                Some(plans) => (by_library, plans, false),
                None => (lowered(&by_ours)?, Vec::new(), true),
            }
        } else {
            (lowered(&by_ours)?, Vec::new(), false)
        };
        let (at, arguments, words, version) = (Vec::new(), Vec::new(), [0; 3], 0);
        Ok(Prepared {
            op,
            inputs,
            outputs,
            in_place,
            lowered,
            is_aligned,
            is_refused,
            plans,
            functions: Vec::new(),
            at,
            words,
            version,
            arguments,
        })
    }

    /// True if it was made ready for such operands.
    pub(super) fn is_for(&self, call: &DeviceCall<'_>) -> bool {
        let inputs = &self.inputs[usize::from(self.in_place).min(self.inputs.len())..];
        self.in_place == call.in_place
            && self.is_aligned == is_aligned(call)
            && are_of(inputs, call.inputs)
            && are_of(&self.outputs, call.outputs)
            && self.op == *call.op
    }

    /// The operator's own, and behind it the libraries', which commands use one after the other.
    pub(super) fn workspace_bytes(&self) -> usize {
        let of_library = self.plans.iter().map(LibraryPlan::workspace_bytes).max();
        self.lowered.workspace_bytes.saturating_add(of_library.unwrap_or(0))
    }

    /// Where the libraries' workspace is.
    pub(super) fn library_workspace(&self) -> u64 {
        // both are of this machine, and the operator's own ends at a multiple of 256
        self.addresses().workspace.wrapping_add(self.lowered.workspace_bytes as u64)
    }

    /// The libraries' plans, in the order of their commands.
    pub(super) fn plans(&self) -> impl Iterator<Item = &LibraryPlan> {
        self.plans.iter()
    }

    /// How many commands libraries compute.
    pub(super) fn library_calls(&self) -> usize {
        self.plans.len()
    }

    /// True if kernels of ours compute what a library was asked for.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused
    }

    pub(super) fn has_checks(&self) -> bool {
        self.lowered.has_checks()
    }

    pub(super) fn explain(&self, fault: &DeviceFault) -> Option<KernelError> {
        self.lowered.explain(fault)
    }

    pub(super) fn launches(&self) -> impl Iterator<Item = &Launch> {
        self.lowered.commands.iter().filter_map(|command| match command {
            Command::Launch(launch) => Some(launch),
            _ => None,
        })
    }

    /// The launches of a user's program.
    pub(super) fn programs(&self) -> impl Iterator<Item = &ProgramLaunch> {
        self.lowered.commands.iter().filter_map(|command| match command {
            Command::Program(launch) => Some(launch),
            _ => None,
        })
    }

    /// Takes the kernels of the user's program, in the order of its launches.
    pub(super) fn set_functions(&mut self, functions: Vec<Function>) {
        self.functions = functions;
    }

    pub(super) fn functions(&self) -> impl Iterator<Item = &Function> {
        self.functions.iter()
    }

    /// The name of the user's operator, if it has a program.
    pub(super) fn name_of_program(&self) -> Option<&'static str> {
        self.programs().next().map(|_| self.op.name())
    }

    /// Takes note of where everything lies; returns how often that has changed. `words` are the addresses of the rate's factor,
    /// of the fault and of the progress.
    pub(super) fn give(
        &mut self,
        call: &DeviceCall<'_>,
        workspace: u64,
        words: [u64; 3],
    ) -> Result<u64, MissingAddress> {
        // fits: addresses of this machine
        let of = |tensor: &DeviceOperand<'_>| tensor.address as u64;
        let first = call.outputs.first().filter(|_| call.in_place).map(of);
        let inputs = first.into_iter().chain(call.inputs.iter().map(of));
        let all = inputs.chain(call.outputs.iter().map(of)).chain([workspace]);
        if all.clone().eq(self.at.iter().copied()) {
            return Ok(self.version);
        }
        self.at = all.collect();
        self.words = words;
        let mut arguments = Vec::with_capacity(self.lowered.commands.len());
        let addresses = self.addresses();
        for command in &self.lowered.commands {
            arguments.push(match command {
                Command::Launch(launch) => launch.bytes(&addresses)?,
                Command::Program(launch) => launch.bytes(&addresses)?,
                Command::Product(LibraryProduct { operands, .. })
                | Command::Convolution(LibraryConvolution { operands, .. }) => {
                    for operand in operands {
                        addresses.resolve(*operand)?;
                    }
                    Vec::new()
                }
                Command::Copy { from, to, .. } => {
                    addresses.resolve(*from)?;
                    addresses.resolve(*to)?;
                    Vec::new()
                }
                Command::Set { to, .. } => {
                    addresses.resolve(*to)?;
                    Vec::new()
                }
            });
        }
        self.arguments = arguments;
        self.version = VERSIONS.fetch_add(1, Ordering::Relaxed);
        Ok(self.version)
    }

    /// Its commands with what each launch is given.
    pub(super) fn commands(&self) -> impl Iterator<Item = (&Command, &[u8])> {
        self.lowered.commands.iter().zip(self.arguments.iter().map(Vec::as_slice))
    }

    /// How many launches a stream is told at most. What a library makes of a product or a convolution is its own matter: a pass
    /// that adds parts, or passes that turn operands.
    pub(super) fn launches_max(&self) -> usize {
        let of = |command: &Command| match command {
            Command::Product(_) => 3,
            Command::Convolution(_) => 6,
            Command::Launch(_)
            | Command::Program(_)
            | Command::Copy { .. }
            | Command::Set { .. } => 1,
        };
        self.lowered.commands.iter().map(of).sum()
    }

    pub(super) fn addresses(&self) -> Addresses<'_> {
        addresses(&self.at, self.inputs.len(), self.words)
    }
}

/// `at` has the inputs, of which there are so many, the outputs and the workspace.
fn addresses(at: &[u64], inputs: usize, [rate_factor, fault, progress]: [u64; 3]) -> Addresses<'_> {
    let (inputs, rest) = at.split_at(inputs.min(at.len()));
    let (workspace, outputs) = rest.split_last().map_or((0, rest), |(last, rest)| (*last, rest));
    Addresses { inputs, outputs, workspace, rate_factor, fault, progress }
}

/// True if a library takes all operands where they lie.
fn is_aligned(call: &DeviceCall<'_>) -> bool {
    let mut all = call.inputs.iter().chain(call.outputs);
    // fits: an address of this machine
    all.all(|operand| (operand.address as u64).is_multiple_of(LIBRARY_ALIGNMENT))
}

fn specs(tensors: &[DeviceOperand<'_>]) -> Vec<TensorSpec> {
    tensors.iter().map(|tensor| tensor.spec.clone()).collect()
}

fn are_of(specs: &[TensorSpec], tensors: &[DeviceOperand<'_>]) -> bool {
    specs.iter().eq(tensors.iter().map(|tensor| tensor.spec))
}
