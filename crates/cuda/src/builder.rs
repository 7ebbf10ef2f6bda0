//! One operator while it is lowered: its operands, which are checked, and the commands so far.

use tensorwire_graph::{Op, infer};
use tensorwire_kernels::{KernelError, Operand};
use tensorwire_tensor::{DType, Fact, TensorSpec};

use crate::command::{Address, Command, KernelArgument, Launch, Memory};
use crate::error::LowerError;
use crate::fault::{Check, code};
use crate::{Lowered, Lowering, kernels};

/// Threads of every block.
pub(crate) const THREADS: usize = 256;

/// Threads that agree without a barrier.
pub(crate) const WARP: usize = 32;

/// Blocks of a kernel that strides over its elements: more than any device runs at a time.
const BLOCKS_MAX: usize = 4096;

/// Of a grid's first dimension.
const GRID_MAX: usize = (1 << 31) - 1;

/// Where parts of the workspace begin.
const ALIGNMENT: usize = 256;

pub(crate) struct Builder<'a> {
    pub(crate) op: &'a Op,
    pub(crate) inputs: &'a [TensorSpec],
    pub(crate) outputs: &'a [TensorSpec],
    in_place: bool,
    pub(crate) options: Lowering,
    commands: Vec<Command>,
    workspace: usize,
    checks: Vec<Check>,
}

/// The fields of a kernel's argument.
macro_rules! arguments {
    ($($value:expr),* $(,)?) => { vec![$($crate::command::KernelArgument::from($value)),*] };
}
pub(crate) use arguments;

impl<'a> Builder<'a> {
    /// The operator with its operands, if they fit.
    pub(crate) fn checked(
        op: &'a Op,
        inputs: &'a [TensorSpec],
        outputs: &'a [TensorSpec],
        in_place: bool,
        options: Lowering,
    ) -> Result<Builder<'a>, LowerError> {
        let name = op.name();
        if !op.is_computed() {
            return Err(KernelError::NoKernel { op: name }.into());
        }
        if in_place && !op.works_in_place() {
            return Err(KernelError::NotInPlace { op: name }.into());
        }
        check_operands(op, inputs, outputs)?;
        let (commands, checks) = (Vec::new(), Vec::new());
        Ok(Builder { op, inputs, outputs, in_place, options, commands, workspace: 0, checks })
    }

    pub(crate) fn finish(self) -> Lowered {
        let Builder { commands, workspace, options, checks, .. } = self;
        Lowered { commands, workspace_bytes: workspace, tag: options.tag, checks }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.op.name()
    }

    pub(crate) fn no_kernel(&self) -> LowerError {
        KernelError::NoKernel { op: self.name() }.into()
    }

    /// Where input `place` lies.
    pub(crate) fn input(&self, place: usize) -> Address {
        match (self.in_place, place) {
            (true, 0) => self.output(0),
            _ => Address { of: Memory::Input(place), offset: 0 },
        }
    }

    pub(crate) fn output(&self, place: usize) -> Address {
        Address { of: Memory::Output(place), offset: 0 }
    }

    /// The addresses of inputs, in their order.
    pub(crate) fn input_range(&self, places: std::ops::Range<usize>) -> Vec<Address> {
        places.map(|place| self.input(place)).collect()
    }

    /// Takes so many elements of so many bytes of the workspace.
    pub(crate) fn workspace(
        &mut self,
        elements: usize,
        bytes: usize,
    ) -> Result<Address, LowerError> {
        let offset = self.workspace;
        let wanted = elements.checked_mul(bytes);
        let end = wanted.and_then(|wanted| offset.checked_add(wanted));
        let end = end.and_then(|end| end.checked_next_multiple_of(ALIGNMENT));
        match end.filter(|end| isize::try_from(*end).is_ok()) {
            Some(end) => {
                self.workspace = end;
                Ok(Address { of: Memory::Workspace, offset })
            }
            None => Err(LowerError::Workspace { op: self.name() }),
        }
    }

    /// Adds a check of values; its code.
    pub(crate) fn check(&mut self, check: Check) -> KernelArgument {
        self.checks.push(check);
        KernelArgument::Integer(code(self.options.tag, self.checks.len() - 1))
    }

    /// Launches a kernel whose threads stride over `threads` places; none where there are none.
    pub(crate) fn spread(
        &mut self,
        kernel: &'static str,
        threads: usize,
        arguments: Vec<KernelArgument>,
    ) {
        self.spread_blocks(kernel, threads.div_ceil(THREADS), arguments);
    }

    /// Launches a kernel whose blocks stride over `blocks` pieces; none where there are none.
    pub(crate) fn spread_blocks(
        &mut self,
        kernel: &'static str,
        blocks: usize,
        arguments: Vec<KernelArgument>,
    ) {
        if blocks > 0 {
            self.push(kernel, blocks.min(BLOCKS_MAX), arguments);
        }
    }

    /// Launches a kernel of a block for each of `blocks` pieces; none where there are none.
    pub(crate) fn blocks(
        &mut self,
        kernel: &'static str,
        blocks: Option<usize>,
        arguments: Vec<KernelArgument>,
    ) -> Result<(), LowerError> {
        let blocks = self.at_most("blocks", blocks, GRID_MAX)?;
        if blocks > 0 {
            self.push(kernel, blocks, arguments);
        }
        Ok(())
    }

    /// `size`, if a kernel can count so far.
    pub(crate) fn at_most(
        &self,
        what: &'static str,
        size: Option<usize>,
        most: usize,
    ) -> Result<usize, LowerError> {
        let found = size.unwrap_or(usize::MAX);
        match found <= most {
            true => Ok(found),
            false => Err(LowerError::TooLarge { op: self.name(), what, found, most }),
        }
    }

    fn push(&mut self, kernel: &'static str, blocks: usize, arguments: Vec<KernelArgument>) {
        // fits: checked by the callers
        let (grid, block) = ([blocks as u32, 1, 1], [THREADS as u32, 1, 1]);
        self.commands.push(Command::Launch(Launch {
            kernel,
            grid,
            block,
            shared_bytes: 0,
            arguments,
        }));
    }

    /// Adds what a library computes.
    pub(crate) fn by_library(&mut self, command: Command) {
        self.commands.push(command);
    }

    /// Adds a command.
    pub(crate) fn command(&mut self, command: Command) {
        self.commands.push(command);
    }

    pub(crate) fn copy(&mut self, from: Address, to: Address, bytes: usize) {
        if bytes > 0 && from != to {
            self.commands.push(Command::Copy { from, to, bytes });
        }
    }

    pub(crate) fn zero(&mut self, to: Address, bytes: usize) {
        if bytes > 0 {
            self.commands.push(Command::Set { to, bytes, byte: 0 });
        }
    }
}

/// Holds the operands against what [`infer`] says of them.
fn check_operands(
    op: &Op,
    inputs: &[TensorSpec],
    outputs: &[TensorSpec],
) -> Result<(), LowerError> {
    let (name, changed) = (op.name(), op.mutated_inputs());
    let Some((state, made)) = outputs.split_at_checked(changed) else {
        let found = outputs.len();
        return Err(KernelError::OutputCount { op: name, expected: changed, found }.into());
    };
    let mut facts: Vec<Fact> = state.iter().chain(inputs).map(Fact::from).collect();
    // rows of any type are moved, as other back ends do it
    let gathered = facts.first().map(|table| table.dtype).filter(|_| *op == Op::Gather);
    facts.iter_mut().take(1).filter(|_| gathered.is_some()).for_each(|x| x.dtype = DType::F32);
    let mut expected = infer(name, op, &facts)?;
    if let Some(dtype) = gathered {
        expected.iter_mut().for_each(|rows| rows.dtype = dtype);
    }
    if expected.len() != made.len() {
        let (expected, found) = (changed + expected.len(), outputs.len());
        return Err(KernelError::OutputCount { op: name, expected, found }.into());
    }
    for (place, (expected, found)) in (changed..).zip(expected.iter().zip(made)) {
        let operand = Operand::Output(place);
        if expected.dtype != found.dtype {
            let (expected, found) = (expected.dtype.to_string(), found.dtype);
            return Err(KernelError::DType { op: name, operand, expected, found }.into());
        }
        if *expected != Fact::from(found) {
            let (expected, found) = (expected.to_string(), found.clone());
            return Err(KernelError::Shape { op: name, operand, expected, found }.into());
        }
    }
    Ok(())
}

/// True if numbers are kept in less than they are computed in.
pub(crate) fn is_narrow(dtype: DType) -> bool {
    dtype == DType::BF16
}

/// What numbers are kept as that are computed in what `dtype` is computed in.
pub(crate) fn kept_as(dtype: DType, is_narrow: bool) -> DType {
    match (dtype, is_narrow) {
        (DType::F64, _) => DType::F64,
        (_, true) => DType::BF16,
        (_, false) => DType::F32,
    }
}

/// Bytes of what numbers of `dtype` are computed in.
pub(crate) fn computed_bytes(dtype: DType) -> usize {
    match dtype {
        DType::BF16 => DType::F32.bytes(),
        dtype => dtype.bytes(),
    }
}

impl Builder<'_> {
    /// The kernel of a floating type.
    pub(crate) fn of_floats(
        &self,
        kernels: kernels::Floats,
        dtype: DType,
    ) -> Result<&'static str, LowerError> {
        kernels.of(dtype).ok_or_else(|| self.no_kernel())
    }

    /// The kernel of what a floating type is computed in.
    pub(crate) fn of_reals(
        &self,
        kernels: kernels::Reals,
        dtype: DType,
    ) -> Result<&'static str, LowerError> {
        kernels.of(dtype).ok_or_else(|| self.no_kernel())
    }
}
