//! One call's operands, checked as they are taken: counts, dimensions, element types.

use tensorwire_memory::{TensorError, TensorMut, TensorRef};
use tensorwire_tensor::{Element, TensorSpec};

use super::Source;
use crate::error::{KernelError, Operand};
use crate::real::Real;

/// All operands of a call of `op`.
pub(super) struct Operands<'c, 'i, 'o> {
    pub(super) op: &'static str,
    pub(super) inputs: &'c [TensorRef<'i>],
    pub(super) outputs: &'c mut [TensorMut<'o>],
    /// The first input is in the first output, and `inputs` start with the second.
    pub(super) in_place: bool,
}

/// The first input of an element-wise operator; its elements are there, or in the output.
pub(super) struct First<'c, 'i> {
    at: Position,
    spec: &'c TensorSpec,
    apart: Option<Input<'i>>,
}

/// One input, with its name for errors.
pub(super) struct Input<'i> {
    at: Position,
    tensor: TensorRef<'i>,
}

/// One output, with its name for errors.
pub(super) struct Output<'c, 'o> {
    at: Position,
    tensor: &'c mut TensorMut<'o>,
}

#[derive(Clone, Copy)]
struct Position {
    op: &'static str,
    operand: Operand,
}

impl<'c, 'i, 'o> Operands<'c, 'i, 'o> {
    /// The operands, if there are `I` inputs and `O` outputs.
    pub(super) fn exactly<const I: usize, const O: usize>(
        &mut self,
    ) -> Result<([Input<'i>; I], [Output<'_, 'o>; O]), KernelError> {
        let op = self.op;
        let inputs = inputs_exactly(op, 0, self.inputs)?;
        Ok((inputs, self.outputs_exactly()?))
    }

    /// The first input, the `R` others and the output, which has the first input's dimensions.
    #[allow(clippy::type_complexity)] // the operands, in their order
    pub(super) fn element_wise<const R: usize>(
        &mut self,
    ) -> Result<(First<'c, 'i>, [Input<'i>; R], Output<'_, 'o>), KernelError> {
        let (op, inputs, in_place) = (self.op, self.inputs, self.in_place);
        let at = Position { op, operand: Operand::Input(0) };
        let (apart, rest) = match inputs.split_first() {
            _ if in_place => (None, inputs),
            Some((&tensor, rest)) => (Some(Input { at, tensor }), rest),
            None => return Err(KernelError::InputCount { op, expected: 1 + R, found: 0 }),
        };
        let rest = inputs_exactly(op, 1, rest)?;
        let [output] = self.outputs_exactly()?;
        let spec = apart.as_ref().map_or(output.tensor.spec(), |first| first.tensor.spec());
        output.expect_dims(spec.dims())?;
        Ok((First { at, spec, apart }, rest, output))
    }

    /// The gradients of all ranks in rank order, and the `O` variables that they update; each has
    /// the first variable's shape.
    #[allow(clippy::type_complexity)] // a pair of what the operator's doc calls them
    pub(super) fn gradients<T: Real, const O: usize>(
        &mut self,
    ) -> Result<(Vec<&'i [T]>, [Output<'_, 'o>; O]), KernelError> {
        let op = self.op;
        let inputs = self.inputs;
        let outputs = self.outputs_exactly::<O>()?;
        if inputs.is_empty() {
            return Err(KernelError::NoGradients { op });
        }
        let mut gradients = Vec::with_capacity(inputs.len());
        for (place, &tensor) in inputs.iter().enumerate() {
            let gradient = Input { at: Position { op, operand: Operand::Input(place) }, tensor };
            gradient.expect_dims(outputs[0].dims())?;
            gradients.push(gradient.elements()?);
        }
        Ok((gradients, outputs))
    }

    fn outputs_exactly<const O: usize>(&mut self) -> Result<[Output<'_, 'o>; O], KernelError> {
        let op = self.op;
        let found = self.outputs.len();
        let outputs: &mut [TensorMut<'o>; O] = (&mut *self.outputs)
            .try_into()
            .map_err(|_| KernelError::OutputCount { op, expected: O, found })?;
        let mut place = 0;
        Ok(outputs.each_mut().map(|tensor| {
            let at = Position { op, operand: Operand::Output(place) };
            place += 1;
            Output { at, tensor }
        }))
    }
}

/// `inputs` by number, counted from `first`, if there are `I` of them.
fn inputs_exactly<'i, const I: usize>(
    op: &'static str,
    first: usize,
    inputs: &[TensorRef<'i>],
) -> Result<[Input<'i>; I], KernelError> {
    let (expected, found) = (first + I, first + inputs.len());
    let inputs: &[TensorRef<'i>; I] =
        inputs.try_into().map_err(|_| KernelError::InputCount { op, expected, found })?;
    let input =
        |i| Input { at: Position { op, operand: Operand::Input(first + i) }, tensor: inputs[i] };
    Ok(std::array::from_fn(input))
}

impl<'c, 'i> First<'c, 'i> {
    pub(super) fn dims(&self) -> &'c [usize] {
        self.spec.dims()
    }

    /// Rows and columns of a tensor of two dimensions.
    pub(super) fn matrix(&self) -> Result<(usize, usize), KernelError> {
        self.at.matrix(self.spec)
    }

    pub(super) fn source<T: Element>(&self) -> Result<Source<'i, T>, KernelError> {
        match &self.apart {
            Some(input) => Ok(Source::Apart(input.elements()?)),
            None => Ok(Source::InPlace),
        }
    }
}

impl<'i> Input<'i> {
    pub(super) fn dims(&self) -> &'i [usize] {
        self.tensor.dims()
    }

    /// Its dimensions are not what the operator takes.
    pub(super) fn refused(&self, expected: String) -> KernelError {
        self.at.shape(expected, self.tensor.spec())
    }

    pub(super) fn no_elements(&self) -> KernelError {
        let Position { op, operand } = self.at;
        KernelError::NoElements { op, operand, found: self.tensor.spec().clone() }
    }

    /// Rows and columns of a tensor of two dimensions.
    pub(super) fn matrix(&self) -> Result<(usize, usize), KernelError> {
        self.at.matrix(self.tensor.spec())
    }

    pub(super) fn expect_dims(&self, expected: &[usize]) -> Result<(), KernelError> {
        self.at.expect_dims(expected, self.tensor.spec())
    }

    pub(super) fn expect_elements(&self) -> Result<(), KernelError> {
        match self.tensor.spec().elements() {
            0 => Err(self.no_elements()),
            _ => Ok(()),
        }
    }

    pub(super) fn elements<T: Element>(&self) -> Result<&'i [T], KernelError> {
        // an empty tensor may lie anywhere, aligned or not
        if self.tensor.spec().elements() == 0 && self.tensor.dtype() == T::DTYPE {
            return Ok(&[]);
        }
        self.tensor.elements().map_err(|e| self.at.explain(e))
    }
}

impl<'c, 'o> Output<'c, 'o> {
    pub(super) fn dims(&self) -> &'o [usize] {
        self.tensor.dims()
    }

    pub(super) fn expect_dims(&self, expected: &[usize]) -> Result<(), KernelError> {
        self.at.expect_dims(expected, self.tensor.spec())
    }

    pub(super) fn elements_mut<T: Element>(self) -> Result<&'c mut [T], KernelError> {
        if self.tensor.spec().elements() == 0 && self.tensor.dtype() == T::DTYPE {
            return Ok(&mut []);
        }
        self.tensor.elements().map_err(|e| self.at.explain(e))
    }
}

impl Position {
    fn expect_dims(self, expected: &[usize], found: &TensorSpec) -> Result<(), KernelError> {
        if found.dims() == expected { Ok(()) } else { Err(self.shape(bracketed(expected), found)) }
    }

    fn matrix(self, found: &TensorSpec) -> Result<(usize, usize), KernelError> {
        match *found.dims() {
            [rows, columns] => Ok((rows, columns)),
            _ => Err(self.shape("[rows×columns]".to_owned(), found)),
        }
    }

    fn shape(self, expected: String, found: &TensorSpec) -> KernelError {
        let Position { op, operand } = self;
        KernelError::Shape { op, operand, expected, found: found.clone() }
    }

    fn explain(self, error: TensorError) -> KernelError {
        let Position { op, operand } = self;
        match error {
            TensorError::WrongDType { found, wanted } => {
                KernelError::DType { op, operand, expected: wanted.to_string(), found }
            }
            source => KernelError::Buffer { op, operand, source },
        }
    }
}

/// Dimensions as a shape is printed.
fn bracketed(dims: &[usize]) -> String {
    let dims: Vec<String> = dims.iter().map(usize::to_string).collect();
    format!("[{}]", dims.join("×"))
}
