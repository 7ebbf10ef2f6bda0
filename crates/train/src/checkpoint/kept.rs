//! What is in a checkpoint, and how it is called whoever has it: weights and the optimizer's state where all share them; a
//! centre, and beside it what each client has for itself.

use tensorwire_graph::{Graph, Op, Output};
use tensorwire_nn::{Program, Sharing, Variable, is_residual};
use tensorwire_tensor::TensorSpec;

use crate::topology::Topology;

/// The variables in checkpoints of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    /// Each once, as they are called where all share them. Of a job with a centre: the centre.
    pub(crate) shared: Vec<Variable>,
    /// The optimizer's state among them, in order.
    pub(crate) shared_slots: Vec<String>,
    /// What clients that meet at a centre have for themselves: weights and the optimizer's state.
    pub(crate) of_clients: Vec<Variable>,
    /// What each worker has not sent yet of its gradients. Of workers at their own pace there is none: the bits depend on who was
    /// first anyway.
    pub(crate) of_workers: Vec<Variable>,
}

impl OwnVariable {
    /// True if nobody else has it: what a worker has not sent yet of a gradient.
    pub(crate) fn is_residual(&self) -> bool {
        is_residual(&self.name)
    }
}

impl Kept {
    /// The names of what is no weight of the job's result, in order.
    pub(crate) fn slots(&self) -> Vec<String> {
        let own = self.of_clients.iter().chain(&self.of_workers);
        let own = own.map(|variable| variable.name.clone());
        let mut slots: Vec<String> = self.shared_slots.iter().cloned().chain(own).collect();
        slots.sort();
        slots
    }
}

/// What checkpoints of a program have: parameters, averages, the optimizer's slots, and what is left of gradients.
pub(crate) fn kept(program: &Program, topology: &Topology) -> Kept {
    let sharing = topology.sharing();
    let declared = |name: &String| {
        let node = program.graph.node(program.graph.find(name)?);
        match &node.op {
            Op::Variable { spec, init } => {
                Some(Variable { name: name.clone(), spec: spec.clone(), init: *init })
            }
            _ => None,
        }
    };
    let slots = program.slots.iter().filter(|name| plain_name(name, sharing) == name.as_str());
    let weights: Vec<Variable> = program.weights().cloned().collect();
    let slots: Vec<Variable> = slots.filter_map(declared).collect();
    if topology.averaging.is_none() {
        let shared_slots = slots.iter().map(|slot| slot.name.clone()).collect();
        let shared = weights.into_iter().chain(slots).collect();
        let residuals = program.residuals.iter().filter(|_| !topology.plans_one_worker());
        let of_workers = residuals.filter_map(declared).collect();
        return Kept { shared, shared_slots, of_clients: Vec::new(), of_workers };
    }
    let of_client = |client| {
        let own = weights.iter().chain(&slots);
        own.map(move |own| Variable { name: client_name(client, &own.name), ..own.clone() })
    };
    let of_clients = (0..topology.groups).flat_map(of_client).collect();
    Kept { shared: weights, shared_slots: Vec::new(), of_clients, of_workers: Vec::new() }
}

/// The name of what a client has for itself, where the variable's own is the centre's.
fn client_name(client: u32, name: &str) -> String {
    format!("client{client}/{name}")
}

/// The name of a variable without what tells it from another replica's.
pub(crate) fn plain_name(name: &str, sharing: Sharing) -> &str {
    if !sharing.has_own() {
        return name;
    }
    let replica = name.strip_prefix("replica").and_then(|rest| rest.split_once('/'));
    match replica {
        Some((number, plain)) if number.parse::<u32>().is_ok() => plain,
        _ => name,
    }
}

/// A variable of a part of the graph, and where it is in the whole that it is of.
#[derive(Clone, Debug)]
pub(crate) struct OwnVariable {
    pub(crate) output: Output,
    pub(crate) spec: TensorSpec,
    /// The whole, as it is called in checkpoints.
    pub(crate) name: String,
    /// Of the whole.
    pub(crate) dims: Vec<usize>,
    pub(crate) first_element: usize,
}

/// The variables of a part of the graph; of a client that has them for itself, if one is named.
pub(crate) fn own_variables(
    part: &Graph,
    program: &Program,
    topology: &Topology,
    client: Option<u32>,
) -> Vec<OwnVariable> {
    let (kept, sharing) = (kept(program, topology), topology.sharing());
    let mut whole = if client.is_some() { kept.of_clients } else { kept.shared };
    whole.extend(kept.of_workers);
    let own = part.nodes().filter_map(|(id, node)| {
        let Op::Variable { spec, .. } = &node.op else { return None };
        let (name, first_row) = match &node.piece {
            Some(piece) => (piece.of.as_str(), piece.first_row),
            None => (node.name.as_str(), 0),
        };
        let plain = plain_name(name, sharing);
        let name = client.map_or_else(|| plain.to_string(), |client| client_name(client, plain));
        let whole = whole.iter().find(|whole| whole.name == name)?;
        let dims = whole.spec.dims().to_vec();
        // what is one number for the whole variable is the same for each piece
        let row = dims.split_first().map_or(0, |(_, row)| row.iter().product());
        let (output, spec) = (id.into(), spec.clone());
        Some(OwnVariable { output, spec, name, dims, first_element: first_row * row })
    });
    own.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replicas_variable_is_called_as_the_first_ones() {
        let own = Sharing::Own { clients: 1 };
        assert_eq!(plain_name("replica3/layer/weight", own), "layer/weight");
        assert_eq!(plain_name("replicas/weight", own), "replicas/weight");
        assert_eq!(plain_name("replica3/weight", Sharing::All), "replica3/weight");
    }
}
