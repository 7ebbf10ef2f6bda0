//! Several batches of a replica in one step: what the copies of the model come to, as the mean over them. Each is added as
//! soon as it is there, so that a step takes the memory of one copy. Copies on several devices go on side by side; of what
//! the devices come to the mean is made on the first.

use tensorwire_graph::{Gradient, Graph, GraphError, Hint, Op, Output};

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

    /// The means over the copies on one device, whose nodes are named under `place`.
    pub(super) fn mean(mut self, graph: &mut Graph, place: &str) -> Result<Sums, GraphError> {
        if self.copies < 2 {
            return Ok(self);
        }
        // fits: copies are few
        let op = Op::Scale { by: 1.0 / self.copies as f64 };
        for (index, gradient) in self.gradients.iter_mut().enumerate() {
            let Some(sum) = gradient.dense() else { continue };
            let hint = graph.node(sum.node).hint;
            let name = format!("{place}/gradient/mean {index}");
            *gradient = Output::from(graph.add(&name, hint, op.clone(), &[sum])?).into();
        }
        for (index, latest) in self.latest.iter_mut().enumerate() {
            let hint = graph.node(latest.node).hint;
            let name = format!("{place}/latest/mean {index}");
            *latest = graph.add(&name, hint, op.clone(), &[*latest])?.into();
        }
        Ok(self)
    }
}

impl Sums {
    /// The means over what a replica's devices came to, in their order: made on the first, and all that leaves the process.
    pub(super) fn of_devices(
        mut each: Vec<Sums>,
        graph: &mut Graph,
        (owner, first): (&str, Hint),
    ) -> Result<Sums, GraphError> {
        if each.len() < 2 {
            return Ok(each.pop().unwrap_or_default());
        }
        let mut mean = |what: &str, index: usize, parts: Vec<Output>| {
            let pinned = |hint: &Hint| matches!(hint, Hint::Task(_));
            // a layer that is pinned has its gradients there
            let there = parts.iter().map(|part| graph.node(part.node).hint).find(pinned);
            let name = format!("{owner}/{what}/devices {index}");
            graph.add(&name, there.unwrap_or(first), Op::Mean, &parts).map(Output::from)
        };
        let gradients = each.first().map_or(0, |sums| sums.gradients.len());
        let gradients = (0..gradients).map(|index| {
            // with several copies none is of rows
            let parts = each.iter().filter_map(|sums| sums.gradients[index].dense()).collect();
            Ok(Gradient::Dense(mean("gradient", index, parts)?))
        });
        let gradients = gradients.collect::<Result<Vec<_>, GraphError>>()?;
        let latest = each.first().map_or(0, |sums| sums.latest.len());
        let latest = (0..latest).map(|index| {
            mean("latest", index, each.iter().map(|sums| sums.latest[index]).collect())
        });
        let latest = latest.collect::<Result<Vec<_>, GraphError>>()?;
        Ok(Sums { gradients, latest, copies: 1 })
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
