//! Operators that users bring: what they launch of their own programs. Of bf16 they are given f32, as on the host, unless they
//! take it as it is.

use std::sync::Arc;

use tensorwire_graph::Op;
use tensorwire_kernels::{CudaArgument, CudaLaunches};
use tensorwire_tensor::{DType, TensorSpec};

use crate::builder::{Builder, arguments};
use crate::command::{Address, Command, KernelArgument, ProgramLaunch, ProgramText};
use crate::error::LowerError;
use crate::kernels;

/// Words that a kernel has room for.
const WORDS_MAX: usize = 60;

pub(super) fn lower(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    let Op::Custom(custom) = builder.op else { return Err(builder.no_kernel()) };
    let made = CudaLaunches::of(custom, builder.inputs, builder.outputs)?;
    let Some(made) = made else { return Err(builder.no_kernel()) };
    let is_widened = |spec: &TensorSpec| spec.dtype == DType::BF16 && !made.takes_bf16;
    let scratch = builder.workspace(made.scratch_bytes, 1)?;
    let [_, to_bf16, _, _, from_bf16, _] = kernels::CASTS;
    let (given, wanted) = (builder.inputs, builder.outputs);
    let mut inputs = Vec::with_capacity(given.len());
    for (place, spec) in given.iter().enumerate() {
        let input = builder.input(place);
        inputs.push(match is_widened(spec) {
            true => {
                let wide = builder.workspace(spec.elements(), DType::F32.bytes())?;
                let count = spec.elements();
                builder.spread(from_bf16, count, arguments![count, input, wide]);
                wide
            }
            false => input,
        });
    }
    let mut outputs = Vec::with_capacity(wanted.len());
    for (place, spec) in wanted.iter().enumerate() {
        outputs.push(match is_widened(spec) {
            true => builder.workspace(spec.elements(), DType::F32.bytes())?,
            false => builder.output(place),
        });
    }
    let program = Arc::new(ProgramText { program: made.program, scalar: made.scalar });
    if !made.launches.is_empty() {
        mark(builder, i64::from(builder.options.tag) + 1);
        for launch in made.launches {
            let argument = |argument: &CudaArgument| match *argument {
                CudaArgument::Input(at) => inputs[at].into(),
                CudaArgument::Output(at) => outputs[at].into(),
                CudaArgument::Scratch(at) => scratch.behind(at).into(),
                CudaArgument::Integer(value) => KernelArgument::Integer(value),
                CudaArgument::Real(value) => KernelArgument::Real(value),
            };
            let arguments = launch.arguments.iter().map(argument).collect();
            let program = program.clone();
            builder.command(Command::Program(ProgramLaunch { program, launch, arguments }));
        }
        mark(builder, 0);
    }
    for (place, (spec, wide)) in wanted.iter().zip(outputs).enumerate() {
        if is_widened(spec) {
            let (count, output): (usize, Address) = (spec.elements(), builder.output(place));
            builder.spread(to_bf16, count, arguments![count, wide, output]);
        }
    }
    Ok(())
}

/// Has the GPU say whose kernels it comes to: what it said last is left where one of them ends all.
fn mark(builder: &mut Builder<'_>, who: i64) {
    let mut fields = arguments![KernelArgument::Progress, 1i64, who];
    fields.resize(2 + WORDS_MAX, KernelArgument::Nothing);
    builder.spread(kernels::WRITE_WORDS, 1, fields);
}
