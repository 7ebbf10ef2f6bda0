//! Several batches of a replica in one step: what the copies of the model come to, as the mean over them. Each is added as
//! soon as it is there, so that a step takes the memory of one copy.

use tensorwire_graph::{Gradient, Graph, GraphError, Op, Output};

use super::build::Built;

/// What a replica's copies came to so far.
#[derive(Debug, Default)]
pub(super) struct Sums {
    /// By what is learned.
    pub(super) gradients: Vec<Gradient>,
    /// By moving average: the value that it takes up.
    pub(super) latest: Vec<Output>,
    copies: usize,
}

impl Sums {
    /// Adds a copy's. With others, what is of rows becomes a tensor first.
    pub(super) fn add(
        &mut self,
        graph: &mut Graph,
        copy: &Built,
        of_several: bool,
        found: Vec<Gradient>,
    ) -> Result<(), GraphError> {
        let mut gradients = found;
        let mut latest: Vec<Output> =
            copy.made.averages.iter().map(|average| average.latest).collect();
        if of_several {
            for (index, (gradient, learned)) in
                gradients.iter_mut().zip(&copy.made.learned).enumerate()
            {
                let name = format!("{}/gradient/rows {index}", copy.prefix);
                *gradient = dense(graph, &name, learned.read_as, *gradient)?.into();
            }
        }
        if self.copies > 0 {
            let before = self.gradients.iter().filter_map(|gradient| gradient.dense());
            for (index, (gradient, before)) in gradients.iter_mut().zip(before).enumerate() {
                let Some(own) = gradient.dense() else { continue };
                let name = format!("{}/gradient/sum {index}", copy.prefix);
                *gradient = add(graph, &name, before, own)?.into();
            }
            for (index, (own, before)) in latest.iter_mut().zip(&self.latest).enumerate() {
                let name = format!("{}/latest/sum {index}", copy.prefix);
                *own = add(graph, &name, *before, *own)?;
            }
        }
        *self = Sums { gradients, latest, copies: self.copies + 1 };
        Ok(())
    }

    /// The means over the copies, of a replica whose nodes are named under `owner`.
    pub(super) fn mean(mut self, graph: &mut Graph, owner: &str) -> Result<Sums, GraphError> {
        if self.copies < 2 {
            return Ok(self);
        }
        // fits: copies are few
        let op = Op::Scale { by: 1.0 / self.copies as f64 };
        for (index, gradient) in self.gradients.iter_mut().enumerate() {
            let Some(sum) = gradient.dense() else { continue };
            let hint = graph.node(sum.node).hint;
            let name = format!("{owner}/gradient/mean {index}");
            *gradient = Output::from(graph.add(&name, hint, op.clone(), &[sum])?).into();
        }
        for (index, latest) in self.latest.iter_mut().enumerate() {
            let hint = graph.node(latest.node).hint;
            let name = format!("{owner}/latest/mean {index}");
            *latest = graph.add(&name, hint, op.clone(), &[*latest])?.into();
        }
        Ok(self)
    }
}

/// A gradient of what is read as `read_as`, as a tensor, which is made where its rows are.
pub(super) fn dense(
    graph: &mut Graph,
    name: &str,
    read_as: Output,
    gradient: Gradient,
) -> Result<Output, GraphError> {
    match gradient {
        Gradient::Dense(dense) => Ok(dense),
        Gradient::Rows { indices, rows } => {
            let hint = graph.node(rows.node).hint;
            Ok(graph.add(name, hint, Op::ScatterRows, &[rows, indices, read_as])?.into())
        }
    }
}

fn add(graph: &mut Graph, name: &str, a: Output, b: Output) -> Result<Output, GraphError> {
    let hint = graph.node(b.node).hint;
    Ok(graph.add(name, hint, Op::Add, &[a, b])?.into())
}
