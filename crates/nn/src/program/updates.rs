//! What changes variables in a step: the replicas' gradients, folded where they are to be, and the updates that take
//! them.

use tensorwire_graph::{Gradient, Graph, GraphError, Hint, Init, NodeId, Op, Output};

use super::accumulate::{Sums, dense};
use super::build::{Built, declared};
use super::decay::rule_of;
use super::{Program, ProgramSpec, Sharing};
use crate::scope::{Average, Learned};

/// Updates in the making.
pub(super) struct Updates<'a> {
    pub(super) graph: &'a mut Graph,
    pub(super) spec: &'a ProgramSpec,
    /// State of the optimizer.
    pub(super) slots: Vec<String>,
    /// What replicas have not sent yet of gradients.
    pub(super) residuals: Vec<String>,
    /// What a training step must compute, besides losses.
    pub(super) roots: Vec<NodeId>,
}

impl Updates<'_> {
    /// Adds the updates of all variables and averages; `sums` are what the replicas came to, and `built` the first copy of
    /// each.
    pub(super) fn add(&mut self, built: &[&Built], sums: Vec<Sums>) -> Result<(), GraphError> {
        let (mut found, mut latest): (Vec<Vec<Gradient>>, Vec<Vec<Output>>) =
            sums.into_iter().map(|sums| (sums.gradients, sums.latest)).unzip();
        if let Some(compression) = self.spec.compression {
            for (replica, (copy, found)) in (0..).zip(built.iter().zip(&mut found)) {
                for (gradient, learned) in found.iter_mut().zip(&copy.made.learned) {
                    let variable = self.plain_name(learned.variable, replica);
                    let to = (replica, variable.as_str());
                    if let Some((made, left)) = compression.add(self.graph, to, *gradient)? {
                        *gradient = made.into();
                        self.residuals.push(left);
                    }
                }
            }
        }
        let folding = match self.spec.sharing {
            Sharing::All => None,
            Sharing::Clients { clients } => Some(clients),
            // nobody to fold with
            Sharing::Own { clients } | Sharing::Reduced { clients } => {
                Some(clients).filter(|c| *c < self.spec.replicas)
            }
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
            Sharing::Own { .. } | Sharing::Reduced { .. } => {
                (0..built.len()).map(|replica| (replica, vec![replica])).collect()
            }
        };
        let is_reduced = matches!(self.spec.sharing, Sharing::Reduced { .. });
        if self.spec.clip_norm.is_some() || self.spec.optimizer.method.needs_whole() || is_reduced {
            for (replica, copy) in (0..).zip(built) {
                // fits: replicas are built in memory
                let found = &mut found[replica as usize];
                for (index, learned) in copy.made.learned.iter().enumerate() {
                    found[index] = self.dense(replica, index, learned, found[index])?.into();
                }
            }
        }
        if let Sharing::Reduced { clients } = self.spec.sharing {
            self.mean_of_all(built, clients, &mut found, &mut latest)?;
        }
        for (owner, givers) in groups {
            let Some(copy) = built.get(owner) else { continue };
            let learned = copy.made.learned.iter().enumerate();
            let all: Vec<(Output, Vec<Gradient>)> = learned
                .map(|(index, Learned { variable, .. })| {
                    (*variable, givers.iter().map(|giver| found[*giver][index]).collect())
                })
                .collect();
            let scale = self.clip(&all)?;
            for (variable, parts) in &all {
                self.update(*variable, parts, scale)?;
            }
            for (index, average) in copy.made.averages.iter().enumerate() {
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
        all: &[Learned],
        gradients: &[Gradient],
    ) -> Result<Vec<Gradient>, GraphError> {
        let mut reduced = Vec::with_capacity(gradients.len());
        for (index, (gradient, learned)) in gradients.iter().zip(all).enumerate() {
            let dense = self.dense(replica, index, learned, *gradient)?;
            let name = self.plain_name(learned.variable, replica);
            // the first numbers are those of what is spread
            let vector = all.len() + index;
            reduced.push(Gradient::Dense(self.reduce(replica, &name, vector, dense)?));
        }
        Ok(reduced)
    }

    /// Puts the mean of what the clients' masters have in the place of what each replica has. Masters get it from where it is
    /// made, and give it to the others of their clients.
    fn mean_of_all(
        &mut self,
        built: &[&Built],
        clients: u32,
        found: &mut [Vec<Gradient>],
        latest: &mut [Vec<Output>],
    ) -> Result<(), GraphError> {
        let Some(first) = built.first() else { return Ok(()) };
        let learned = first.made.learned.iter().map(|learned| learned.variable);
        let changed: Vec<Output> =
            learned.chain(first.made.averages.iter().map(|average| average.variable)).collect();
        let (of_gradients, averages) = (first.made.learned.len(), first.made.averages.len());
        for (index, variable) in changed.into_iter().enumerate() {
            let name = self.plain_name(variable, 0);
            let of_average = index.checked_sub(of_gradients);
            let of_replicas: Vec<Output> = match of_average {
                None => found.iter().filter_map(|all| all[index].dense()).collect(),
                Some(index) => latest.iter().map(|all| all[index]).collect(),
            };
            // fits: clients are few
            let parts = &of_replicas[..of_replicas.len().min(clients as usize)];
            let mean = self.graph.add(&Program::mean_of(&name), Hint::Shared, Op::Mean, parts)?;
            let fact = self.graph.fact(mean.into()).clone();
            let refused = |source| GraphError::Shape { node: name.clone(), source };
            let Some(spec) = fact.spec().transpose().map_err(refused)? else {
                return Err(GraphError::UnknownOutput { node: name });
            };
            // the first numbers are of what is spread, which nothing else is here
            let vector = match of_average {
                None => index,
                Some(at) => 2 * of_gradients + averages + at,
            };
            for replica in 0..self.spec.replicas {
                let mut own = Output::from(mean);
                if clients < self.spec.replicas {
                    // fits: variables are few
                    let op = Op::Broadcast { vector: vector as u32, spec: spec.clone() };
                    let from: &[Output] = if replica < clients { &[own] } else { &[] };
                    let name = format!("replica{replica}/mean of all/{name}");
                    own = self.graph.add(&name, Hint::Replica(replica), op, from)?.into();
                }
                // fits: replicas are built in memory
                match of_average {
                    None => found[replica as usize][index] = own.into(),
                    Some(at) => latest[replica as usize][at] = own,
                }
            }
        }
        Ok(())
    }

    /// A gradient as a tensor of the variable's shape.
    fn dense(
        &mut self,
        replica: u32,
        index: usize,
        learned: &Learned,
        gradient: Gradient,
    ) -> Result<Output, GraphError> {
        let name = format!("replica{replica}/gradient/rows {index}");
        dense(self.graph, &name, learned.read_as, gradient)
    }

    /// What all gradients of one owner are multiplied by, if they are to be clipped: where each variable is, the sums of the
    /// squares of its gradient; of all sums the factor, where the first variable is.
    fn clip(&mut self, all: &[(Output, Vec<Gradient>)]) -> Result<Option<Output>, GraphError> {
        let (Some(norm), Some((first, _))) = (self.spec.clip_norm, all.first()) else {
            return Ok(None);
        };
        let mut sums = Vec::with_capacity(all.len());
        for (variable, parts) in all {
            let name = format!("{}/squares", self.graph.node(variable.node).name);
            let inputs: Vec<Output> = parts.iter().copied().filter_map(Gradient::dense).collect();
            let hint = Hint::With(variable.node);
            sums.push(self.graph.add(&name, hint, Op::SquareSums, &inputs)?.into());
        }
        let name = format!("{}/clip", self.graph.node(first.node).name);
        let hint = Hint::With(first.node);
        Ok(Some(self.graph.add(&name, hint, Op::ClipScale { norm }, &sums)?.into()))
    }

    fn reduce_averages(
        &mut self,
        replica: u32,
        copy: &Built,
        latest: &[Output],
    ) -> Result<Vec<Output>, GraphError> {
        let first = 2 * copy.made.learned.len();
        let all = copy.made.averages.iter().zip(latest).enumerate();
        all.map(|(index, (average, latest))| {
            let name = self.plain_name(average.variable, replica);
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

    fn update(
        &mut self,
        at: Output,
        parts: &[Gradient],
        scale: Option<Output>,
    ) -> Result<(), GraphError> {
        let unknown = || GraphError::UnknownOutput { node: format!("{at:?}") };
        let variable = declared(self.graph, at).ok_or_else(unknown)?;
        let hint = Hint::With(at.node);
        let rule = rule_of(self.spec.optimizer, &variable, &self.spec.no_decay);
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
                inputs.extend(scale);
                inputs.extend(parts.iter().copied().filter_map(Gradient::dense));
                Op::Apply { rule, clipped: scale.is_some() }
            }
        };
        self.roots.push(self.graph.add(&format!("{}/update", variable.name), hint, op, &inputs)?);
        Ok(())
    }

    fn average(&mut self, average: Average, latest: &[Output]) -> Result<(), GraphError> {
        let inputs: Vec<Output> =
            std::iter::once(average.variable).chain(latest.iter().copied()).collect();
        let name = format!("{}/update", self.graph.node(average.variable.node).name);
        let op = Op::ApplyAverage { rate: average.rate };
        self.roots.push(self.graph.add(&name, Hint::With(average.variable.node), op, &inputs)?);
        Ok(())
    }
}
