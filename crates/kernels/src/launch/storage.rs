//! bf16 is for storage: what is stored so is computed in f32. Inputs, and outputs that are read, are
//! widened into scratch, and results rounded to nearest even, so that no back end has a loop for it.

use half::bf16;
use tensorwire_graph::Op;
use tensorwire_memory::{TensorMut, TensorRef};
use tensorwire_tensor::{DType, TensorSpec};

use super::operands::{Input, Operands, Output};
use crate::error::{KernelError, Operand};
use crate::real::Real;

/// A tensor's elements in f32.
struct Wide {
    spec: TensorSpec,
    elements: Vec<f32>,
}

/// Gives `compute` the operands with those of bf16 in f32. Of the outputs, the first `read` are read too.
pub(super) fn in_f32(
    mut operands: Operands<'_, '_, '_>,
    read: usize,
    compute: impl FnOnce(&mut Operands<'_, '_, '_>) -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    let (name, in_place) = (operands.op, operands.in_place);
    let (inputs, mut outputs) = operands.parts_unchecked();
    let wide_inputs = inputs.iter().map(widened).collect::<Result<Vec<_>, _>>()?;
    let mut wide_outputs = outputs
        .iter_mut()
        .enumerate()
        .map(|(place, output)| widened_output(output, place < read))
        .collect::<Result<Vec<_>, _>>()?;
    let computed = {
        let inputs: Vec<TensorRef<'_>> = inputs
            .iter()
            .zip(&wide_inputs)
            .map(|(input, wide)| match wide {
                Some(wide) => wide.view(),
                None => Ok(input.tensor()),
            })
            .collect::<Result<_, _>>()?;
        let mut outputs: Vec<TensorMut<'_>> = outputs
            .iter_mut()
            .zip(&mut wide_outputs)
            .map(|(output, wide)| match wide {
                Some(wide) => wide.view_mut(),
                None => output.tensor(),
            })
            .collect::<Result<_, _>>()?;
        compute(&mut Operands { op: name, inputs: &inputs, outputs: &mut outputs, in_place })
    };
    if let Err(error) = computed {
        return Err(renamed(error, &wide_inputs, &wide_outputs, usize::from(in_place)));
    }
    for (output, wide) in outputs.into_iter().zip(wide_outputs) {
        if let Some(wide) = wide {
            for (y, x) in output.elements_mut::<bf16>()?.iter_mut().zip(wide.elements) {
                *y = bf16::from_f32(x);
            }
        }
    }
    Ok(())
}

/// Checks that all floating operands are bf16; but those that stay in f32 are f32.
pub(super) fn check_types(op: &Op, operands: &Operands<'_, '_, '_>) -> Result<(), KernelError> {
    let first = usize::from(operands.in_place);
    let inputs = operands.inputs.iter().enumerate();
    let inputs = inputs.map(|(place, x)| (Operand::Input(first + place), x.dtype()));
    let outputs = operands.outputs.iter().enumerate();
    let outputs = outputs.map(|(place, y)| (Operand::Output(place), y.dtype()));
    for (operand, found) in inputs.chain(outputs) {
        let wanted = type_beside_bf16(op, operand, first);
        if found.is_floating() && found != wanted {
            let expected = wanted.to_string();
            return Err(KernelError::DType { op: operands.op, operand, expected, found });
        }
    }
    Ok(())
}

/// The type of an operand where the first is bf16: f32 for the slots, which follow the variable among the inputs
/// that are changed, and for what a gradient needs of its operator's sums; f64 for what clips.
fn type_beside_bf16(op: &Op, operand: Operand, first: usize) -> DType {
    let stays_f32 = match (op, operand) {
        (Op::SquareSums, Operand::Output(_)) => return DType::F64,
        (Op::Apply { clipped: true, .. }, Operand::Input(place)) if place == first => {
            return DType::F64;
        }
        (Op::Attention(..) | Op::SampleNorm { .. }, Operand::Output(place)) => place > 0,
        (Op::AttentionGrad(..), Operand::Input(place)) => place == 5,
        (Op::SampleNormGrad { by }, Operand::Input(place)) => {
            (2..3 + usize::from(by.is_centred())).contains(&place)
        }
        (op, Operand::Output(place)) => (1..op.mutated_inputs()).contains(&place),
        _ => false,
    };
    if stays_f32 { DType::F32 } else { DType::BF16 }
}

fn widened(input: &Input<'_>) -> Result<Option<Wide>, KernelError> {
    if input.dtype() != DType::BF16 {
        return Ok(None);
    }
    let elements = input.elements::<bf16>()?.iter().map(|x| x.to_f32()).collect();
    Ok(Some(Wide { spec: in_f32_spec(input.spec()), elements }))
}

fn widened_output(output: &mut Output<'_, '_>, read: bool) -> Result<Option<Wide>, KernelError> {
    if output.dtype() != DType::BF16 {
        return Ok(None);
    }
    let spec = in_f32_spec(output.spec());
    let held = output.reborrow().elements_mut::<bf16>()?;
    let elements = match read {
        true => held.iter().map(|x| x.to_f32()).collect(),
        false => vec![f32::narrow(0.0); held.len()],
    };
    Ok(Some(Wide { spec, elements }))
}

fn in_f32_spec(spec: &TensorSpec) -> TensorSpec {
    TensorSpec { dtype: DType::F32, shape: spec.shape.clone() }
}

impl Wide {
    fn view(&self) -> Result<TensorRef<'_>, KernelError> {
        Ok(super::operands::view(&self.spec, &self.elements))
    }

    fn view_mut(&mut self) -> Result<TensorMut<'_>, KernelError> {
        Ok(super::operands::view_mut(&self.spec, &mut self.elements))
    }
}

/// The error as it is of the operands that were given.
fn renamed(
    mut error: KernelError,
    inputs: &[Option<Wide>],
    outputs: &[Option<Wide>],
    first: usize,
) -> KernelError {
    let is_wide = |operand: Operand| match operand {
        Operand::Input(place) => {
            place.checked_sub(first).map_or(outputs.first(), |place| inputs.get(place))
        }
        Operand::Output(place) => outputs.get(place),
    };
    match &mut error {
        KernelError::DType { expected, .. } if *expected == DType::F32.to_string() => {
            *expected = DType::BF16.to_string();
        }
        KernelError::DType { operand, found, .. } => {
            if matches!(is_wide(*operand), Some(Some(_))) {
                *found = DType::BF16;
            }
        }
        KernelError::Shape { operand, found, .. }
        | KernelError::NoElements { operand, found, .. } => {
            if matches!(is_wide(*operand), Some(Some(_))) {
                found.dtype = DType::BF16;
            }
        }
        _ => {}
    }
    error
}
