//! The LSTM and GRU of Xue et al.'s table 2: one layer of 1024 over sequences of equal length, and a
//! classifier on its last state.

use tensorwire_nn::{Batch, Cell, Description, Error, Extent, Model, Outputs, Result, Scope};

use super::{Shipped, kind_of};
use crate::data::SampleKind;

const HIDDEN: usize = 1024;

/// Sequences of one length, step by step.
#[derive(Clone, Copy, Debug)]
pub struct Lstm;

/// Sequences of one length, step by step.
#[derive(Clone, Copy, Debug)]
pub struct Gru;

impl Shipped for Lstm {
    fn samples(&self) -> SampleKind {
        SampleKind::Sequences { steps: 80, features: 1024, classes: 1000 }
    }
}

impl Shipped for Gru {
    fn samples(&self) -> SampleKind {
        Lstm.samples()
    }
}

impl Model for Lstm {
    fn name(&self) -> String {
        "lstm".to_string()
    }

    fn check(&self, data: &Description) -> Result<()> {
        kind_of(self, data).map(drop)
    }

    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        classify(s, batch, "lstm", Cell::Lstm)
    }
}

impl Model for Gru {
    fn name(&self) -> String {
        "gru".to_string()
    }

    fn check(&self, data: &Description) -> Result<()> {
        kind_of(self, data).map(drop)
    }

    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        classify(s, batch, "gru", Cell::Gru)
    }
}

/// input: `f[steps·batch, features]`, step by step.
fn classify(s: &mut Scope<'_>, batch: &Batch<'_>, name: &str, cell: Cell) -> Result<Outputs> {
    let x = batch.input("input")?;
    let [Extent::Batch(steps), _] = batch.feature("input")?.dims[..] else {
        return Err(Error::layer(name, "input is no batch of sequences, step by step"));
    };
    let active = s.equal_lengths("active", batch.size(), steps)?;
    let first = s.zeros("first", &[batch.size(), HIDDEN])?;
    let states = vec![first; cell.states()];
    let made = s.recurrent(name, cell, x, HIDDEN, &states, active)?;
    let logits = s.linear("output", made.last[0], batch.classes()?)?;
    Ok(Outputs::classification(logits, batch.labels()?))
}
