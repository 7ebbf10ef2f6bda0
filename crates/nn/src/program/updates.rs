//! What changes variables in a step: the replicas' gradients, folded where they are to be, and the updates that take
//! them.

use tensorwire_graph::{Gradient, Graph, GraphError, Hint, Init, NodeId, Op, Output};

use super::build::{Built, declared};
use super::{ProgramSpec, Sharing};
use crate::scope::{AVERAGE_RATE, Learned};

/// Updates in the making.
pub(super) struct Updates<'a> {
    pub(super) graph: &'a mut Graph,
    pub(super) spec: &'a ProgramSpec,
    /// State of the optimizer.
    pub(super) slots: Vec<String>,
    /// What a training step must compute, besides losses.
    pub(super) roots: Vec<NodeId>,
}

impl Updates<'_> {
    /// Adds the updates of all variables and averages; `found` are the gradients by replica, in the order of
    /// what it learns.
    pub(super) fn add(
        &mut self,
        built: &[Built],
        mut found: Vec<Vec<Gradient>>,
    ) -> Result<(), GraphError> {
        let mut latest: Vec<Vec<Output>> = built
            .iter()
            .map(|copy| copy.made.averages.iter().map(|(_, latest)| *latest).collect())
            .collect();
        let folding = match self.spec.sharing {
            Sharing::All => None,
            Sharing::Clients { clients } => Some(clients),
            // nobody to fold with
            Sharing::Own { clients } => Some(clients).filter(|c| *c < self.spec.replicas),
        };
        if folding.is_some() {
            for (replica, copy) in (0..).zip(built) {
                // fits: replicas are built in memory
                let at = replica as usize;
                found[at] = self.reduce_all(replica, &copy.made.learned, &found[at])?;
                latest[at] = self.reduce_averages(replica, copy, &latest[at])?;
            }
        }
        // who gives a gradient to one variable
        let groups: Vec<(usize, Vec<usize>)> = match self.spec.sharing {
            Sharing::All => vec![(0, (0..built.len()).collect())],
            // fits: replicas are built in memory
            Sharing::Clients { clients } => vec![(0, (0..clients as usize).collect())],
            Sharing::Own { .. } => {
                (0..built.len()).map(|replica| (replica, vec![replica])).collect()
            }
        };
        for (owner, givers) in groups {
            let Some(copy) = built.get(owner) else { continue };
            for (index, Learned { variable, .. }) in copy.made.learned.iter().enumerate() {
                let parts: Vec<Gradient> =
                    givers.iter().map(|giver| found[*giver][index]).collect();
                self.update(*variable, &parts)?;
            }
            for (index, (average, _)) in copy.made.averages.iter().enumerate() {
                let latest: Vec<Output> =
                    givers.iter().map(|giver| latest[*giver][index]).collect();
                self.average(*average, &latest)?;
            }
        }
        Ok(())
    }

    /// The mean of each of a replica's gradients over its client. What is of rows becomes a tensor first.
    fn reduce_all(
        &mut self,
        replica: u32,
        learned: &[Learned],
        gradients: &[Gradient],
    ) -> Result<Vec<Gradient>, GraphError> {
        let hint = Hint::Replica(replica);
        let mut reduced = Vec::with_capacity(gradients.len());
        for (index, (gradient, Learned { variable, read_as })) in
            gradients.iter().zip(learned).enumerate()
        {
            let dense = match *gradient {
                Gradient::Dense(dense) => dense,
                Gradient::Rows { indices, rows } => {
                    let name = format!("replica{replica}/gradient/rows {index}");
                    let inputs = [rows, indices, *read_as];
                    self.graph.add(&name, hint, Op::ScatterRows, &inputs)?.into()
                }
            };
            let name = self.plain_name(*variable, replica);
            // the first numbers are those of what is spread
            let vector = learned.len() + index;
            reduced.push(Gradient::Dense(self.reduce(replica, &name, vector, dense)?));
        }
        Ok(reduced)
    }

    fn reduce_averages(
        &mut self,
        replica: u32,
        copy: &Built,
        latest: &[Output],
    ) -> Result<Vec<Output>, GraphError> {
        let first = 2 * copy.made.learned.len();
        let all = copy.made.averages.iter().zip(latest).enumerate();
        all.map(|(index, ((average, _), latest))| {
            let name = self.plain_name(*average, replica);
            self.reduce(replica, &name, first + index, *latest)
        })
        .collect()
    }

    fn reduce(
        &mut self,
        replica: u32,
        name: &str,
        vector: usize,
        part: Output,
    ) -> Result<Output, GraphError> {
        // fits: variables are few
        let op = Op::AllReduce { vector: vector as u32 };
        let name = format!("replica{replica}/mean/{name}");
        let node = self.graph.add(&name, Hint::Replica(replica), op, &[part])?;
        // whoever is no master gives its part, though nobody here needs the mean
        self.roots.push(node);
        Ok(node.into())
    }

    /// A variable's name without what tells it from another replica's.
    fn plain_name(&self, variable: Output, replica: u32) -> String {
        let name = &self.graph.node(variable.node).name;
        name.strip_prefix(&format!("replica{replica}/")).unwrap_or(name).to_string()
    }

    fn update(&mut self, at: Output, parts: &[Gradient]) -> Result<(), GraphError> {
        let unknown = || GraphError::UnknownOutput { node: format!("{at:?}") };
        let variable = declared(self.graph, at).ok_or_else(unknown)?;
        let hint = Hint::With(at.node);
        let rule = self.spec.optimizer;
        let mut inputs = vec![at];
        let slots = rule
            .slots_of(&variable.spec)
            .map_err(|source| GraphError::Shape { node: variable.name.clone(), source })?;
        for (slot, spec) in slots {
            let name = format!("{}/{slot}", variable.name);
            let op = Op::Variable { spec, init: Init::Zeros };
            inputs.push(self.graph.add(&name, hint, op, &[])?.into());
            self.slots.push(name);
        }
        let all_rows: Option<Vec<[Output; 2]>> = parts
            .iter()
            .map(|part| match *part {
                Gradient::Rows { indices, rows } => Some([indices, rows]),
                Gradient::Dense(_) => None,
            })
            .collect();
        let op = match all_rows {
            Some(pairs) => {
                inputs.extend(pairs.into_iter().flatten());
                Op::ApplyRows { rule }
            }
            // every replica is built alike: none is of rows
            None => {
                inputs.extend(parts.iter().copied().filter_map(Gradient::dense));
                Op::Apply { rule }
            }
        };
        self.roots.push(self.graph.add(&format!("{}/update", variable.name), hint, op, &inputs)?);
        Ok(())
    }

    fn average(&mut self, average: Output, latest: &[Output]) -> Result<(), GraphError> {
        let inputs: Vec<Output> = std::iter::once(average).chain(latest.iter().copied()).collect();
        let name = format!("{}/update", self.graph.node(average.node).name);
        let op = Op::ApplyAverage { rate: AVERAGE_RATE };
        self.roots.push(self.graph.add(&name, Hint::With(average.node), op, &inputs)?);
        Ok(())
    }
}
