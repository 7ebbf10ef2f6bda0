//! The recurrent cells, and their gradients: a launch for each step. How many sequences a step has is data, which the device
//! checks; the launches are for as many as there may be.

use tensorwire_graph::{Cell, Op};
use tensorwire_tensor::DType;

use super::products::{self, Factor, Sides, Sizes, Target};
use crate::builder::{Builder, arguments, computed_bytes, is_narrow, kept_as};
use crate::command::{Address, KernelArgument};
use crate::error::LowerError;
use crate::fault::Check;
use crate::kernels;

/// Sequences and hidden units of a tile.
const TILE_ROWS: usize = 32;
const TILE_UNITS: usize = 16;

const GATES_MAX: usize = 4;

/// What a call is about.
#[derive(Clone, Copy, Debug)]
struct Steps {
    cell: Cell,
    dtype: DType,
    narrow: bool,
    /// Of what is multiplied and not narrow.
    rounding: i64,
    steps: usize,
    batch: usize,
    hidden: usize,
    /// Rows of all steps.
    total: usize,
    /// Where each step's rows begin.
    first_rows: Address,
}

pub(super) fn lower(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    match *builder.op {
        Op::Recurrent { cell } => forward(builder, cell),
        Op::RecurrentGrad { cell, sequence, finals } => backward(builder, cell, sequence, finals),
        _ => Err(builder.no_kernel()),
    }
}

/// Inputs that follow each other: those that `count` counts, from `next` on.
fn take(builder: &Builder<'_>, next: &mut usize, count: usize) -> Vec<Address> {
    let first = *next;
    *next += count;
    builder.input_range(first..*next)
}

/// `values`, and nothing behind them, up to `count` fields.
fn padded(values: &[Address], count: usize) -> Vec<KernelArgument> {
    let mut fields: Vec<KernelArgument> = values.iter().copied().map(Into::into).collect();
    fields.resize(count, KernelArgument::Nothing);
    fields
}

impl Steps {
    /// Of the operator, where `rows` is an input of [total, h], `first` of [batch, h] and `active` is in this place.
    fn of(
        builder: &mut Builder<'_>,
        cell: Cell,
        [rows, first, active]: [usize; 3],
    ) -> Result<Steps, LowerError> {
        let spec = &builder.inputs[rows];
        let (dtype, total, hidden) = (spec.dtype, spec.dims()[0], spec.dims()[1]);
        let (batch, steps) = (builder.inputs[first].dims()[0], builder.inputs[active].elements());
        let op = builder.name();
        let active_code = builder.check(Check::Active { op });
        let total_code = builder.check(Check::Total { op, total });
        let first_rows = builder.workspace(steps + 1, DType::I64.bytes())?;
        let (active, fault) = (builder.input(active), KernelArgument::Fault);
        let fields =
            arguments![steps, batch, total, active, first_rows, fault, active_code, total_code];
        builder.spread_blocks(kernels::FIRST_ROWS, 1, fields);
        let narrow = is_narrow(dtype);
        let rounding = builder.options.rounding.code(kept_as(dtype, false));
        Ok(Steps { cell, dtype, narrow, rounding, steps, batch, hidden, total, first_rows })
    }

    /// Room for numbers of each sequence, as they are computed.
    fn state(&self, builder: &mut Builder<'_>) -> Result<Address, LowerError> {
        builder.workspace(self.batch * self.hidden, computed_bytes(self.dtype))
    }

    /// Room for numbers of each row, as they are computed.
    fn row(&self, builder: &mut Builder<'_>) -> Result<Address, LowerError> {
        builder.workspace(self.total * self.hidden, computed_bytes(self.dtype))
    }

    /// Launches a kernel of the cell over as many sequences as there may be.
    fn launch(
        &self,
        builder: &mut Builder<'_>,
        [rnn, gru, lstm]: [kernels::Reals; 3],
        fields: Vec<KernelArgument>,
    ) -> Result<(), LowerError> {
        let kernels = match self.cell {
            Cell::Rnn => rnn,
            Cell::Gru => gru,
            Cell::Lstm => lstm,
        };
        let kernel = builder.of_reals(kernels, self.dtype)?;
        let units = self.hidden.div_ceil(TILE_UNITS);
        builder.blocks(kernel, self.batch.div_ceil(TILE_ROWS).checked_mul(units), fields)
    }
}

fn forward(builder: &mut Builder<'_>, cell: Cell) -> Result<(), LowerError> {
    let (gates, states) = (cell.gates(), cell.states());
    let steps = Steps::of(builder, cell, [0, 2 * gates, 2 * gates + states])?;
    let mut next = 0;
    let products = take(builder, &mut next, gates);
    let matrices = take(builder, &mut next, gates);
    let first = take(builder, &mut next, states);
    let finals: Vec<Address> = (1..=states).map(|place| builder.output(place)).collect();
    let [mut h, mut new_h, c] =
        [steps.state(builder)?, steps.state(builder)?, steps.state(builder)?];
    begin(builder, &steps, [&first, &[h, c][..states], &finals])?;
    let (y, saved) = (builder.output(0), builder.output(1 + states));
    for step in 0..steps.steps {
        let Steps { hidden, narrow, first_rows, .. } = steps;
        let mut fields = arguments![step, steps.steps, hidden, narrow, steps.rounding, first_rows];
        fields.extend(padded(&products, GATES_MAX));
        fields.extend(padded(&matrices, GATES_MAX));
        fields.extend(arguments![h, new_h, c, y]);
        fields.extend(padded(&finals, 2));
        fields.extend(arguments![saved]);
        steps.launch(builder, kernels::RECURRENT_STEP, fields)?;
        (h, new_h) = (new_h, h);
    }
    Ok(())
}

fn begin(
    builder: &mut Builder<'_>,
    steps: &Steps,
    [first, working, finals]: [&[Address]; 3],
) -> Result<(), LowerError> {
    let count = steps.batch * steps.hidden;
    let kernel = builder.of_reals(kernels::RECURRENT_BEGIN, steps.dtype)?;
    let mut fields = arguments![count, steps.narrow, first.len()];
    for all in [first, working, finals] {
        fields.extend(padded(all, 2));
    }
    builder.spread(kernel, count, fields);
    Ok(())
}

fn backward(
    builder: &mut Builder<'_>,
    cell: Cell,
    sequence: bool,
    finals: [bool; 2],
) -> Result<(), LowerError> {
    let (gates, states) = (cell.gates(), cell.states());
    let finals = [finals[0], finals[1] && states > 1];
    let flowing = [sequence, finals[0], finals[1]].into_iter().filter(|flows| *flows).count();
    let behind = flowing + gates + states;
    let steps = Steps::of(builder, cell, [behind + 1, flowing + gates, behind])?;
    let mut next = 0;
    let dy = sequence.then(|| take(builder, &mut next, 1)[0]);
    let dfinals = finals.map(|flows| flows.then(|| take(builder, &mut next, 1)[0]));
    let matrices = take(builder, &mut next, gates);
    let first = take(builder, &mut next, states);
    let (y, saved) = (builder.input(behind + 1), builder.input(behind + 2));
    let (back, products) = flows(builder, &steps)?;
    let [past, dc] = [steps.state(builder)?, steps.state(builder)?];
    let dfirst: Vec<Address> = (0..states).map(|s| builder.output(2 * gates + s)).collect();
    // the last one has the states before the first step
    for step in (-1..steps.steps as i64).rev() {
        let Steps { batch, hidden, narrow, first_rows, .. } = steps;
        let mut fields = arguments![step, steps.steps, batch, hidden, narrow];
        fields.extend(arguments![steps.rounding, first_rows, dy]);
        fields.extend(dfinals.map(KernelArgument::from));
        fields.extend(padded(&matrices, GATES_MAX));
        fields.extend(padded(&first, 2));
        fields.extend(arguments![y, saved]);
        fields.extend(padded(&back, GATES_MAX));
        fields.extend(products.iter().copied());
        fields.extend(arguments![past, dc]);
        fields.extend(padded(&dfirst, 2));
        steps.launch(builder, kernels::RECURRENT_BACK, fields)?;
    }
    grad_matrices(builder, &steps, &back, [first[0], y])
}

/// Where what reaches each gate's recurrent product lies, and where its product's gradient goes, if that is elsewhere.
fn flows(
    builder: &mut Builder<'_>,
    steps: &Steps,
) -> Result<(Vec<Address>, [KernelArgument; GATES_MAX]), LowerError> {
    let mut products = [KernelArgument::Nothing; GATES_MAX];
    let mut back = Vec::with_capacity(steps.cell.gates());
    for (gate, product) in products.iter_mut().enumerate().take(steps.cell.gates()) {
        // a GRU's reset gate is between the two
        let differs = steps.narrow || (steps.cell, gate) == (Cell::Gru, 2);
        back.push(match differs {
            true => {
                *product = builder.output(gate).into();
                steps.row(builder)?
            }
            false => builder.output(gate),
        });
    }
    Ok((back, products))
}

/// d(recurrent matrix) of each gate: what reached its product, by h before.
fn grad_matrices(
    builder: &mut Builder<'_>,
    steps: &Steps,
    back: &[Address],
    [first, y]: [Address; 2],
) -> Result<(), LowerError> {
    let Steps { dtype, narrow, hidden, total, first_rows, .. } = *steps;
    let before = steps.row(builder)?;
    let kernel = builder.of_reals(kernels::ROWS_BEFORE, dtype)?;
    let fields = arguments![steps.steps, hidden, narrow, first_rows, first, y, before];
    builder.spread(kernel, total * hidden, fields);
    let sizes = Sizes { rows: hidden, columns: hidden, depth: total, batch: 1 };
    let sides = Sides { outer: 1, depth: hidden, batch: 0 };
    for (gate, &back) in back.iter().enumerate() {
        let factors = [back, before].map(|at| Factor { at, narrow: false, sides });
        // behind the gradients of the products
        let y = Target { at: builder.output(steps.cell.gates() + gate), narrow };
        products::product(builder, dtype, sizes, factors, y)?;
    }
    Ok(())
}
