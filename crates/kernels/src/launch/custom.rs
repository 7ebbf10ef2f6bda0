//! Operators that users bring: a kernel that goes with the operator's rules, and its calls. A call is checked
//! against the operator's own shape rule, and whatever the kernel does, a panic included, becomes an error.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tensorwire_graph::{CustomOp, CustomOperator, GraphError, Op, Refusal, infer};
use tensorwire_memory::{TensorMut, TensorRef};
use tensorwire_tensor::{DType, Element, Fact};

use super::operands::Operands;
use super::storage;
use crate::cpu::Threads;
use crate::error::{KernelError, Operand};
use crate::program::CudaKernel;

/// What computes an operator. With the operator's rules ([`CustomOperator`]) it becomes, by [`custom`], an [`Op`] that
/// is placed, planned, sent and differentiated like any other.
pub trait CustomKernel: CustomOperator {
    /// Computes the outputs, whose types and shapes are those that the operator's shape rule gives for the inputs.
    /// What an output held before is unspecified, but for the first one of a call in place.
    ///
    /// The result must depend on the inputs and the operator's fields alone, not on the number of threads: every
    /// transport and repetition of a job gives the same bits.
    ///
    /// # Errors
    /// When it cannot compute with the inputs' values. This, or a panic, ends the run with an error that names the
    /// operator and its node.
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal>;

    /// True if the kernel reads and writes bf16 itself. Otherwise operands of bf16 reach it as f32, and what it makes
    /// of such outputs is rounded to nearest even, as for all our own operators.
    fn takes_bf16(&self) -> bool {
        false
    }
}

/// The operator with its rules and what computes it.
pub fn custom(operator: impl CustomKernel) -> Op {
    let operator = Arc::new(operator);
    let kernel = Arc::new(Carried { host: operator.clone(), cuda: None });
    CustomOp::with_kernel(operator, kernel).into()
}

/// What a graph carries without knowing it.
pub(crate) struct Carried {
    host: Arc<dyn CustomKernel>,
    cuda: Option<Arc<dyn CudaKernel>>,
}

impl Carried {
    /// The operator with all of it.
    pub(crate) fn with_cuda(operator: impl CudaKernel) -> Op {
        let operator = Arc::new(operator);
        let kernel = Carried { host: operator.clone(), cuda: Some(operator.clone()) };
        CustomOp::with_device_kernel(operator, Arc::new(kernel)).into()
    }

    /// What computes it on GPUs.
    pub(crate) fn cuda(&self) -> Option<&dyn CudaKernel> {
        self.cuda.as_deref()
    }
}

/// One call of a kernel: its operands, and the threads that it may use.
#[derive(Debug)]
pub struct Call<'c> {
    op: &'static str,
    inputs: &'c [TensorRef<'c>],
    outputs: Vec<TensorMut<'c>>,
    in_place: bool,
    threads: Threads<'c>,
}

impl<'c> Call<'c> {
    /// Returns true if the first input lies in the first output, and [`Call::inputs`] starts with the second. Only an
    /// operator that works in place is called so, and not every time.
    pub fn is_in_place(&self) -> bool {
        self.in_place
    }

    /// The element type of the operator's first input, or of its first output if it has no input.
    pub fn dtype(&self) -> Option<DType> {
        let input = self.inputs.first().filter(|_| !self.in_place).map(TensorRef::dtype);
        input.or_else(|| self.outputs.first().map(TensorMut::dtype))
    }

    /// The inputs, in their order.
    pub fn inputs(&self) -> &'c [TensorRef<'c>] {
        self.inputs
    }

    /// The outputs, in their order.
    pub fn outputs(&mut self) -> &mut [TensorMut<'c>] {
        &mut self.outputs
    }

    /// The operands by name: `let ([x, y], [loss]) = call.operands()?;`.
    ///
    /// # Errors
    /// When there are others than asked for. In place there is one input less.
    #[allow(clippy::type_complexity)] // the operands, in their order
    pub fn operands<const I: usize, const O: usize>(
        &mut self,
    ) -> Result<([TensorRef<'c>; I], [&mut TensorMut<'c>; O]), KernelError> {
        let (op, found) = (self.op, self.inputs.len());
        let inputs = self.inputs.try_into();
        let inputs = inputs.map_err(|_| KernelError::InputCount { op, expected: I, found })?;
        let found = self.outputs.len();
        let outputs: &mut [TensorMut<'c>; O] = (&mut self.outputs[..])
            .try_into()
            .map_err(|_| KernelError::OutputCount { op, expected: O, found })?;
        Ok((inputs, outputs.each_mut()))
    }

    /// The threads that the kernel may use.
    pub fn threads(&self) -> Threads<'c> {
        self.threads
    }

    /// Computes an operator by elements, in place or not: each element of the only output from that of the first input
    /// and those of the `N` others, all of which have the output's type and shape. Large ones are computed by all
    /// threads, with the machine's vector instructions where the compiler finds use for them.
    ///
    /// `call.by_elements(|dy: f32, [x]| if x > 0.0 { dy } else { 0.0 })`
    ///
    /// # Errors
    /// When the operands are others.
    pub fn by_elements<T: Element, const N: usize>(
        &mut self,
        f: impl Fn(T, [T; N]) -> T + Copy + Sync,
    ) -> Result<(), KernelError> {
        let Call { op, inputs, in_place, threads, .. } = *self;
        let mut operands = Operands { op, inputs, outputs: &mut self.outputs, in_place };
        let (x, rest, y) = operands.element_wise::<N>()?;
        let mut others = [&[][..]; N];
        for (elements, other) in others.iter_mut().zip(rest) {
            other.expect_dims(x.dims())?;
            *elements = other.elements()?;
        }
        threads.by_elements(x.source()?, others, y.elements_mut()?, f);
        Ok(())
    }
}

/// Checks the operands of a user's operator and has its kernel compute it.
pub(super) fn run(
    op: &Op,
    custom: &CustomOp,
    threads: Threads<'_>,
    operands: Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    let carried =
        custom.kernel().and_then(|kernel: &(dyn Any + Send + Sync)| kernel.downcast_ref());
    let Some(Carried { host: kernel, .. }) = carried else {
        return Err(KernelError::WithoutKernel { op: custom.name() });
    };
    check_outputs(op, &operands)?;
    let is_bf16 = |dtype: DType| dtype == DType::BF16;
    let has_bf16 = operands.inputs.iter().any(|input| is_bf16(input.dtype()))
        || operands.outputs.iter().any(|output| is_bf16(output.dtype()));
    if has_bf16 && !kernel.takes_bf16() {
        let read = usize::from(operands.in_place);
        return storage::in_f32(operands, read, |operands| compute(&**kernel, threads, operands));
    }
    let mut operands = operands;
    compute(&**kernel, threads, &mut operands)
}

/// Checks that the outputs are what the operator's shape rule says.
fn check_outputs(op: &Op, operands: &Operands<'_, '_, '_>) -> Result<(), KernelError> {
    let name = operands.op;
    let first = operands.outputs.first().filter(|_| operands.in_place);
    let specs = first.map(TensorMut::spec).into_iter();
    let specs = specs.chain(operands.inputs.iter().map(TensorRef::spec));
    let inputs: Vec<Fact> = specs.map(Fact::from).collect();
    let wanted = infer(name, op, &inputs).map_err(|error| match error {
        GraphError::Refused { why, .. } => KernelError::Refused { op: name, why },
        GraphError::Panicked { said, .. } => KernelError::Panicked { op: name, said },
        error => KernelError::Refused { op: name, why: error.to_string() },
    })?;
    if wanted.len() != operands.outputs.len() {
        let (expected, found) = (wanted.len(), operands.outputs.len());
        return Err(KernelError::OutputCount { op: name, expected, found });
    }
    for (at, (wanted, output)) in wanted.iter().zip(&*operands.outputs).enumerate() {
        let operand = Operand::Output(at);
        if output.dtype() != wanted.dtype {
            let (expected, found) = (wanted.dtype.to_string(), output.dtype());
            return Err(KernelError::DType { op: name, operand, expected, found });
        }
        if Fact::from(output.spec()) != *wanted {
            let (expected, found) = (wanted.to_string(), output.spec().clone());
            return Err(KernelError::Shape { op: name, operand, expected, found });
        }
    }
    Ok(())
}

fn compute(
    kernel: &dyn CustomKernel,
    threads: Threads<'_>,
    operands: &mut Operands<'_, '_, '_>,
) -> Result<(), KernelError> {
    let (op, inputs, in_place) = (operands.op, operands.inputs, operands.in_place);
    let (_, mut lent) = operands.parts_unchecked();
    let outputs = lent.iter_mut().map(|output| output.tensor()).collect::<Result<_, _>>()?;
    let mut call = Call { op, inputs, outputs, in_place, threads };
    // what the kernel left half done is behind the outputs' loans, whose contents an error leaves unspecified
    match catch_unwind(AssertUnwindSafe(|| kernel.run(&mut call))) {
        Ok(ran) => ran.map_err(|refusal| match refusal.downcast::<KernelError>() {
            Ok(error) => *error,
            Err(refusal) => KernelError::Refused { op, why: refusal.to_string() },
        }),
        Err(panic) => Err(KernelError::Panicked { op, said: said(&*panic) }),
    }
}

/// What a panic said.
pub(crate) fn said(panic: &(dyn Any + Send)) -> String {
    let said = panic.downcast_ref::<String>().map(String::as_str);
    let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
    said.unwrap_or("no message").to_owned()
}
