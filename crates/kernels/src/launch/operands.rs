//! One call's operands, checked as they are taken: counts, dimensions, element types.

use tensorwire_memory::{TensorError, TensorMut, TensorRef};
use tensorwire_tensor::{DType, Element, TensorSpec};

use super::Source;
use crate::error::{KernelError, Operand};
use crate::real::Real;

/// The elements of a tensor as a view of it: as many as `spec` says.
pub(super) fn view<'a>(spec: &'a TensorSpec, elements: &'a [f32]) -> TensorRef<'a> {
    // f32 has no invalid bytes, and the caller made both of one tensor
    TensorRef::new(spec, bytemuck::cast_slice(elements)).expect("as many elements as the spec says")
}

/// As [`view`].
pub(super) fn view_mut<'a>(spec: &'a TensorSpec, elements: &'a mut [f32]) -> TensorMut<'a> {
    TensorMut::new(spec, bytemuck::cast_slice_mut(elements))
        .expect("as many elements as the spec says")
}

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

    /// All inputs, however many, and the outputs, if there are `O`.
    #[allow(clippy::type_complexity)] // the operands, in their order
    pub(super) fn any<const O: usize>(
        &mut self,
    ) -> Result<(Vec<Input<'i>>, [Output<'_, 'o>; O]), KernelError> {
        let inputs = self.inputs();
        Ok((inputs, self.outputs_exactly()?))
    }

    /// The operands, if there are `inputs` inputs and `outputs` outputs.
    #[allow(clippy::type_complexity)] // the operands, in their order
    pub(super) fn counted(
        &mut self,
        inputs: usize,
        outputs: usize,
    ) -> Result<(Vec<Input<'i>>, Vec<Output<'_, 'o>>), KernelError> {
        let (op, found) = (self.op, self.inputs.len());
        if found != inputs {
            return Err(KernelError::InputCount { op, expected: inputs, found });
        }
        self.parts(outputs)
    }

    /// All inputs, however many, and the outputs, if there are `outputs`.
    #[allow(clippy::type_complexity)] // the operands, in their order
    pub(super) fn parts(
        &mut self,
        outputs: usize,
    ) -> Result<(Vec<Input<'i>>, Vec<Output<'_, 'o>>), KernelError> {
        let (op, found) = (self.op, self.outputs.len());
        if found != outputs {
            return Err(KernelError::OutputCount { op, expected: outputs, found });
        }
        Ok(self.parts_unchecked())
    }

    /// All operands, however many.
    pub(super) fn parts_unchecked(&mut self) -> (Vec<Input<'i>>, Vec<Output<'_, 'o>>) {
        let (op, inputs) = (self.op, self.inputs());
        let outputs = self.outputs.iter_mut().enumerate();
        let output = |(place, tensor)| Output {
            at: Position { op, operand: Operand::Output(place) },
            tensor,
        };
        (inputs, outputs.map(output).collect())
    }

    /// The gradients of all ranks in rank order, each of the shape of the first of `outputs` variables, and
    /// these. Where they are `clipped`, their factor comes before them.
    #[allow(clippy::type_complexity)] // a pair of what the operator's doc calls them
    pub(super) fn gradients<T: Real>(
        &mut self,
        outputs: usize,
        clipped: bool,
    ) -> Result<(Option<f64>, Vec<&'i [T]>, Vec<Output<'_, 'o>>), KernelError> {
        let op = self.op;
        let (mut inputs, outputs) = self.parts(outputs)?;
        let mut scale = None;
        if clipped && !inputs.is_empty() {
            let factor = inputs.remove(0);
            factor.expect_dims(&[])?;
            scale = Some(factor.elements::<f64>()?[0]);
        }
        if inputs.is_empty() {
            return Err(KernelError::NoGradients { op });
        }
        let mut gradients = Vec::with_capacity(inputs.len());
        for gradient in inputs {
            gradient.expect_dims(outputs[0].dims())?;
            gradients.push(gradient.elements()?);
        }
        Ok((scale, gradients, outputs))
    }

    fn inputs(&self) -> Vec<Input<'i>> {
        let (op, first) = (self.op, usize::from(self.in_place));
        let input = |(place, &tensor): (usize, &TensorRef<'i>)| Input {
            at: Position { op, operand: Operand::Input(first + place) },
            tensor,
        };
        self.inputs.iter().enumerate().map(input).collect()
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

    /// Rows, and how long they are, of a tensor of two dimensions or more.
    pub(super) fn rows(&self) -> Result<(usize, usize), KernelError> {
        self.at.rows(self.spec)
    }

    pub(super) fn source<T: Element>(&self) -> Result<Source<'i, T>, KernelError> {
        match &self.apart {
            Some(input) => Ok(Source::Apart(input.elements()?)),
            None => Ok(Source::InPlace),
        }
    }
}

impl<'i> Input<'i> {
    pub(super) fn tensor(&self) -> TensorRef<'i> {
        self.tensor
    }

    pub(super) fn spec(&self) -> &'i TensorSpec {
        self.tensor.spec()
    }

    pub(super) fn dtype(&self) -> DType {
        self.tensor.dtype()
    }

    pub(super) fn dims(&self) -> &'i [usize] {
        self.tensor.dims()
    }

    /// The operator, and which operand of it this is.
    pub(super) fn name(&self) -> (&'static str, Operand) {
        (self.at.op, self.at.operand)
    }

    /// The error that says so.
    pub(super) fn misshapen(&self, expected: String) -> KernelError {
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

    /// Rows, and how long they are, of a tensor of two dimensions or more.
    pub(super) fn rows(&self) -> Result<(usize, usize), KernelError> {
        self.at.rows(self.tensor.spec())
    }

    /// Dimensions, and rows and columns of the matrices that lie along them.
    pub(super) fn matrices(&self) -> Result<(&'i [usize], usize, usize), KernelError> {
        match self.dims() {
            [many @ .., rows, columns] => Ok((many, *rows, *columns)),
            _ => Err(self.misshapen("[…×rows×columns]".to_owned())),
        }
    }

    /// The last dimension.
    pub(super) fn columns(&self) -> Result<usize, KernelError> {
        let columns = self.dims().last().copied();
        columns.ok_or_else(|| self.misshapen("[…×columns]".to_owned()))
    }

    pub(super) fn expect_axis(&self, axis: usize) -> Result<(), KernelError> {
        match axis < self.dims().len() {
            true => Ok(()),
            false => Err(self.misshapen(format!("of which one is dimension {axis}"))),
        }
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
    /// The tensor, lent on.
    pub(super) fn tensor(&mut self) -> Result<TensorMut<'_>, KernelError> {
        let (at, spec) = (self.at, self.tensor.spec());
        TensorMut::new(spec, self.tensor.bytes()).map_err(|e| at.explain(e))
    }

    /// The output, lent on.
    pub(super) fn reborrow(&mut self) -> Output<'_, 'o> {
        Output { at: self.at, tensor: self.tensor }
    }

    pub(super) fn spec(&self) -> &'o TensorSpec {
        self.tensor.spec()
    }

    pub(super) fn dtype(&self) -> DType {
        self.tensor.dtype()
    }

    pub(super) fn dims(&self) -> &'o [usize] {
        self.tensor.dims()
    }

    /// Rows and columns of a tensor of two dimensions.
    pub(super) fn matrix(&self) -> Result<(usize, usize), KernelError> {
        self.at.matrix(self.tensor.spec())
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

    fn rows(self, found: &TensorSpec) -> Result<(usize, usize), KernelError> {
        match found.dims().split_last() {
            Some((&columns, rows @ [_, ..])) => Ok((rows.iter().product(), columns)),
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
