//! Recurrent layers: over packed sequences of any lengths, and over batches of sequences of one length.

use tensorwire_graph::{Cell, Init, Op, Output};
use tensorwire_tensor::{DType, Dim};

use super::Scope;
use crate::error::{Error, Result};

/// What a recurrent layer makes of packed sequences.
#[derive(Clone, Debug)]
pub struct Recurrent {
    /// h after each step: `f[total, hidden]`.
    pub sequence: Output,
    /// Each state behind its sequence's last step, h first: `f[b, hidden]`.
    pub last: Vec<Output>,
}

/// What a recurrent layer makes of sequences of one length.
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    /// h after each step: `f[b, steps, hidden]`.
    pub all: Output,
    /// h after the last step: `f[b, hidden]`.
    pub last: Output,
}

const SEQUENCES: &str = "sequences [batch, steps, features] of known size are needed";

impl Scope<'_> {
    /// A recurrent layer over packed sequences (see [`Op::Recurrent`] and [`packed`](crate::packed)). x: `f[total, inputs]`;
    /// `states` before the first step: `f[b, hidden]`, as many as the cell has; active: `i32[longest]`. Per gate g an input
    /// matrix `<name>/<g>/input`, `[hidden, inputs]`, a recurrent matrix `<name>/<g>/recurrent`, `[hidden, hidden]`, and a bias
    /// `<name>/<g>/bias`. First values as PyTorch's; an LSTM's forget gate has a bias of 1.
    ///
    /// # Errors
    /// When an operand does not fit the others.
    pub fn recurrent(
        &mut self,
        name: &str,
        cell: Cell,
        x: Output,
        hidden: usize,
        states: &[Output],
        active: Output,
    ) -> Result<Recurrent> {
        let wanted = "packed sequences [total, features] of known width are needed";
        self.check(name, ("x", x), 2, wanted)?;
        let inputs = self.known(name, ("x", x), 1, wanted)?;
        at_least_one(name, hidden)?;
        if states.len() != cell.states() {
            let (wanted, found) = (cell.states(), states.len());
            return Err(Error::layer(name, format!("{found} states; such a cell has {wanted}")));
        }
        let gates: &[&str] = match cell {
            Cell::Rnn => &["hidden"],
            Cell::Gru => &["reset", "update", "new"],
            Cell::Lstm => &["input", "forget", "cell", "output"],
        };
        // as in PyTorch: all in ±1/√hidden
        // fits: a layer's width, exact in f64
        let recurrent = Init::Uniform { limit: 1.0 / (hidden as f64).sqrt() };
        let input = Init::GlorotUniform { fan_in: inputs, fan_out: hidden };
        let (mut products, mut matrices) = (Vec::new(), Vec::new());
        for gate in gates {
            let of = |what: &str| format!("{name}/{gate}/{what}");
            let weight = self.parameter(&of("input"), &[hidden, inputs], input)?;
            matrices.push(self.parameter(&of("recurrent"), &[hidden, hidden], recurrent)?);
            // an LSTM starts by keeping what it has: Jozefowicz et al. 2015, §2.2
            let keeps = cell == Cell::Lstm && *gate == "forget";
            let init = if keeps { Init::Constant { value: 1.0 } } else { Init::Zeros };
            let bias = self.parameter(&of("bias"), &[hidden], init)?;
            products.push(self.project(&format!("{name}/{gate}"), x, weight, bias)?);
        }
        let operands = [&products[..], &matrices, states, &[active]].concat();
        let y = self.op(name, Op::Recurrent { cell }, &operands)?;
        // fits: a cell has two states at most
        let state = |state: usize| Output { node: y.node, index: 1 + state as u32 };
        Ok(Recurrent { sequence: y, last: (0..cell.states()).map(state).collect() })
    }

    /// An LSTM over sequences of one length, x: `f[b, steps, features]`; parameters as [`Scope::recurrent`]'s.
    ///
    /// # Errors
    /// When `x` is no batch of such sequences.
    pub fn lstm(&mut self, name: &str, x: Output, hidden: usize) -> Result<Sequence> {
        self.over_steps(name, Cell::Lstm, x, hidden)
    }

    /// A GRU over sequences of one length; else as [`Scope::lstm`].
    ///
    /// # Errors
    /// As there.
    pub fn gru(&mut self, name: &str, x: Output, hidden: usize) -> Result<Sequence> {
        self.over_steps(name, Cell::Gru, x, hidden)
    }

    /// Elman's recurrent layer over sequences of one length; else as [`Scope::lstm`].
    ///
    /// # Errors
    /// As there.
    pub fn rnn(&mut self, name: &str, x: Output, hidden: usize) -> Result<Sequence> {
        self.over_steps(name, Cell::Rnn, x, hidden)
    }

    fn over_steps(&mut self, name: &str, cell: Cell, x: Output, hidden: usize) -> Result<Sequence> {
        self.check(name, ("x", x), 3, SEQUENCES)?;
        at_least_one(name, hidden)?;
        let size = |axis| self.known(name, ("x", x), axis, SEQUENCES);
        let [batch, steps, features] = [size(0)?, size(1)?, size(2)?];
        let turned = self.transpose(&format!("{name}/steps"), x, &[1, 0, 2])?;
        let rows = batch
            .checked_mul(steps)
            .ok_or_else(|| Error::layer(name, "x has more steps than any memory"))?;
        let to = [rows, features].map(Dim::Known).to_vec();
        let packed = self.op(&format!("{name}/packed"), Op::Reshape { to }, &[turned])?;
        let active = self.equal_lengths(&format!("{name}/active"), batch, steps)?;
        let first = self.zeros(&format!("{name}/first"), &[batch, hidden])?;
        let states = vec![first; cell.states()];
        let Recurrent { sequence, last } =
            self.recurrent(name, cell, packed, hidden, &states, active)?;
        let to = [steps, batch, hidden].map(Dim::Known).to_vec();
        let turned = self.op(&format!("{name}/unpacked"), Op::Reshape { to }, &[sequence])?;
        let all = self.transpose(&format!("{name}/samples"), turned, &[1, 0, 2])?;
        Ok(Sequence { all, last: last[0] })
    }

    /// What [`Scope::recurrent`] takes as `active` where all of `batch` sequences have `steps` steps: `i32[steps]`.
    ///
    /// # Errors
    /// When the name is taken.
    pub fn equal_lengths(&mut self, name: &str, batch: usize, steps: usize) -> Result<Output> {
        let spec = crate::data::spec(name, DType::I32, &[steps])?;
        // fits: a batch is far below 2^53
        self.op(name, Op::Fill { value: batch as f64, spec }, &[])
    }
}

fn at_least_one(name: &str, hidden: usize) -> Result<()> {
    match hidden {
        0 => Err(Error::layer(name, "a hidden size of 0; give at least 1")),
        _ => Ok(()),
    }
}
