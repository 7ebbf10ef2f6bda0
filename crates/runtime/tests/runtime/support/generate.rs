//! Jobs made of a seed: a graph over several parts with static and dynamic edges, controls, in-place
//! chains, views, variables and their updates, and what is fed in each step. Small, and never infinite:
//! what grows in a step does not come back in the next.

use std::collections::BTreeMap;

use tensorwire_fabric::{Between, SimKnobs, Within};
use tensorwire_graph::{
    Cluster, Graph, GraphError, Hint, Init, NodeId, Op, Output, Placement, Plan, PlanOptions, Rule,
    RunSpec, place, plan,
};
use tensorwire_tensor::{DType, Dim, Fact, Symbol, TensorSpec};

use super::oracle::Value;
use super::random::Random;

/// A job, and what it is put through.
pub(crate) struct Job {
    pub(crate) graph: Graph,
    pub(crate) plan: Plan,
    /// By run: the nodes that must be there after it.
    pub(crate) roots: Vec<Vec<NodeId>>,
    /// A root is a view of what another part sent: the plan has proved that the caller may look at it.
    pub(crate) is_looked_at: bool,
    /// By step: which run.
    pub(crate) steps: Vec<usize>,
    pub(crate) knobs: SimKnobs,
    pub(crate) queue_depth: usize,
    pub(crate) queue_pairs: usize,
    /// Turns that a session gets in a row, at most.
    pub(crate) burst_max: usize,
}

/// The shapes there are; every operator takes and gives some of them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Scalar,
    /// [columns]
    Vector,
    /// [columns, columns]
    Square,
    /// [rows, columns]
    Fixed,
    /// [n, columns], n known in each step only; the number is the symbol.
    Open(u32),
    /// [n] of bytes.
    Bytes(u32),
}

/// Rows of [`Kind::Fixed`].
const ROWS: usize = 3;
const PRODUCTS_MAX: usize = 2;

/// How large the tensors are.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Size {
    /// A few bytes to a few KiB.
    Small,
    /// The same, all known before the first step; and where devices compute, all that crosses is made by them.
    Known,
    /// Most are worth reading where they lie (at least a page).
    Pages,
}

struct Generator<'a> {
    random: &'a mut Random,
    graph: Graph,
    workers: u32,
    servers: u32,
    size: Size,
    columns: usize,
    variables: Vec<Output>,
    /// All tensors so far.
    tensors: Vec<(Output, Kind)>,
    products: usize,
}

impl Job {
    pub(crate) fn new(random: &mut Random, options: PlanOptions, size: Size) -> Job {
        let servers = 1 + random.below(3);
        let workers = 1 + random.below(4 - servers);
        let columns = match size {
            Size::Small => random.of(&[1, 2, 3, 5, 16, 17, 40]),
            Size::Known => random.of(&[2, 5, 17, 40, 64]),
            Size::Pages => random.of(&[1024, 1111]),
        };
        let mut generator = Generator {
            size,
            columns,
            random,
            graph: Graph::new(),
            workers: workers as u32,
            servers: servers as u32,
            variables: Vec::new(),
            tensors: Vec::new(),
            products: 0,
        };
        generator.fill();
        let roots = generator.roots();
        let Generator { random, graph, workers, servers, .. } = generator;
        let cluster = Cluster::ParameterServers { workers, servers };
        let placement = random.of(&[
            Placement::RoundRobin,
            Placement::Balanced { split_above: None },
            Placement::Balanced { split_above: Some(0) },
        ]);
        let whole = graph;
        let graph = place(&whole, cluster, placement).unwrap();
        // the whole of what was split may change under whoever looks at it
        let is_joined = |id: &NodeId| matches!(graph.node(*id).op, Op::Join);
        let placed = |id: &NodeId| graph.find_all(&whole.node(*id).name);
        let roots: Vec<Vec<NodeId>> = roots
            .iter()
            .map(|roots| roots.iter().flat_map(placed).filter(|id| !is_joined(id)).collect())
            .collect();
        let planned = |roots: &[Vec<NodeId>]| {
            let spec = |(index, roots): (usize, &Vec<NodeId>)| RunSpec {
                name: ["train", "look"][index],
                roots: roots.clone(),
                fetch_to: None,
                given: vec![],
                followed_by: vec![0, 1],
            };
            let runs: Vec<RunSpec> = roots.iter().enumerate().map(spec).collect();
            plan(&graph, &cluster.tasks(), &runs, options.clone())
        };
        let views: Vec<NodeId> = graph.ids().filter(|id| is_received_view(&graph, *id)).collect();
        let view = (!views.is_empty()).then(|| random.of(&views));
        let looked_at = view.and_then(|view| {
            let mut roots = roots.clone();
            roots[0].push(view);
            match planned(&roots) {
                Ok(plan) => Some((plan, roots)),
                Err(GraphError::Invalid { what, .. }) if what.contains("may still read") => None,
                Err(other) => panic!("{other}"),
            }
        });
        let is_looked_at = looked_at.is_some();
        let (plan, roots) = looked_at.unwrap_or_else(|| (planned(&roots).unwrap(), roots));
        let steps = (0..3 + random.below(4)).map(|_| usize::from(random.happens(20))).collect();
        let knobs = SimKnobs {
            within: random.of(&[Within::Ascending, Within::Random]),
            between: random.of(&[Between::Ordered, Between::Random]),
            pieces_max: random.of(&[1, 3, 8]),
            delay_turns_max: random.of(&[0, 4, 30]),
            duplicate_per_mille: random.of(&[0, 100, 400]),
            late_turns_max: random.of(&[0, 4, 30]),
            signal_twice_per_mille: random.of(&[0, 100, 500]),
            fail_per_mille: 0,
            full_per_mille: random.of(&[0, 50, 400]),
            ..SimKnobs::default()
        };
        let queue_depth = random.of(&[1, 2, 256]);
        let (queue_pairs, burst_max) = (random.of(&[1, 2, 4]), random.of(&[1, 4, 32, 1000]));
        Job { graph, plan, roots, is_looked_at, steps, knobs, queue_depth, queue_pairs, burst_max }
    }

    /// For people: the nodes in their order, the edges, and how it is run.
    pub(crate) fn describe(&self) -> String {
        let name = |id: &NodeId| self.graph.node(*id).name.as_str();
        let mut lines = Vec::new();
        for (id, node) in self.graph.nodes() {
            let inputs: Vec<&str> = node.inputs.iter().map(|input| name(&input.node)).collect();
            let controls: Vec<&str> = node.controls.iter().map(name).collect();
            let is_root = self.roots.iter().map(|roots| roots.contains(&id)).collect::<Vec<_>>();
            let (task, facts) = (node.task.unwrap(), &node.facts);
            let name = &node.name;
            lines.push(format!(
                "{name} on {task}: {inputs:?} after {controls:?} → {facts:?}, root of {is_root:?}"
            ));
        }
        for edge in &self.plan.edges {
            let [from, to] = [edge.from, edge.to].map(|part| self.plan.parts[part].task);
            let (name, transfer, reuse) = (&edge.name, edge.transfer, &edge.reuse);
            lines.push(format!("'{name}' from {from} to {to}: {transfer:?}, {reuse:?}"));
        }
        lines.push(format!(
            "runs {:?}, {:?}, queues {} × {}, bursts {}",
            self.steps, self.knobs, self.queue_pairs, self.queue_depth, self.burst_max
        ));
        lines.join("\n")
    }

    /// What is fed in a step, by input.
    pub(crate) fn fed(&self, seed: u64, step: usize) -> BTreeMap<NodeId, Value> {
        let mut random = Random::new(seed ^ (step as u64 + 1) << 40);
        let sizes = [0; 3].map(|_| random.of(&[0, 1, 2, 5, 19]));
        let mut fed = BTreeMap::new();
        for (id, node) in self.graph.nodes() {
            let Op::Input { fact } = &node.op else {
                continue;
            };
            let size = |dim: &Dim| match dim {
                Dim::Known(size) => *size,
                Dim::Dynamic(symbol) => sizes[symbol.0 as usize],
            };
            let dims: Vec<usize> = fact.dims.iter().map(size).collect();
            let mut value = Value::zeros(TensorSpec::new(fact.dtype, &dims).unwrap());
            fill(&mut value, &mut random);
            fed.insert(id, value);
        }
        fed
    }

    /// The variables before the first step.
    pub(crate) fn variables(&self, seed: u64) -> BTreeMap<NodeId, Value> {
        let mut random = Random::new(seed ^ 1 << 50);
        let mut values = BTreeMap::new();
        for (id, node) in self.graph.nodes() {
            if let Op::Variable { spec, .. } = &node.op {
                let mut value = Value::zeros(spec.clone());
                fill(&mut value, &mut random);
                values.insert(id, value);
            }
        }
        values
    }
}

/// Numbers that all differ a little, of any sign but zero, none of them large.
fn fill(value: &mut Value, random: &mut Random) {
    let dtype = value.spec.dtype;
    for element in value.bytes_mut().chunks_exact_mut(dtype.bytes()) {
        let number = random.draw();
        if dtype == DType::F32 {
            let magnitude = 0.25 + (number >> 40) as f32 / 16_777_216.0;
            let signed = if number & 1 == 0 { magnitude } else { -magnitude };
            element.copy_from_slice(&signed.to_le_bytes());
        } else {
            element.copy_from_slice(&number.to_le_bytes()[..dtype.bytes()]);
        }
    }
}

/// Is it a view, and not a part's own, of a tensor of known size that another part sent?
fn is_received_view(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    let Op::Reshape { .. } = node.op else {
        return false;
    };
    let viewed = node.inputs[0].node;
    let is_static = graph.fact(id.into()).spec().is_some();
    is_static && (node.task != graph.node(viewed).task || is_received_view(graph, viewed))
}

impl Generator<'_> {
    fn fill(&mut self) {
        for index in 0..self.servers as usize + self.random.below(2) {
            let spec = TensorSpec::new(DType::F32, &[self.columns]).unwrap();
            let variable = self.graph.variable(&format!("v{index}"), spec, Init::Zeros).unwrap();
            self.variables.push(variable);
            self.tensors.push((variable, Kind::Vector));
        }
        let large = (self.size != Size::Pages && self.random.happens(50)).then(|| self.large());
        let kinds = [Kind::Scalar, Kind::Vector, Kind::Fixed, self.factor()];
        let open = [Kind::Open(0), Kind::Open(0), Kind::Open(1), Kind::Bytes(2)];
        let open = open.map(|kind| self.sized(kind));
        for _ in 0..2 + self.random.below(4) {
            let kind = if self.random.happens(50) {
                self.random.of(&kinds)
            } else {
                self.random.of(&open)
            };
            self.input(kind);
        }
        for _ in 0..4 + self.random.below(10) {
            self.operator();
        }
        // before the updates: where a reader comes after one, nothing stays where it lies
        for (output, kind) in self.tensors.clone() {
            if self.is_view_of_received(output.node) && !matches!(kind, Kind::Bytes(_)) {
                self.add_at(Hint::With(output.node), Op::Relu, &[output], kind);
            }
        }
        for variable in self.variables.clone() {
            if self.random.happens(60) {
                self.update(variable, Kind::Vector);
            }
        }
        if let Some(large) = large {
            self.update(large, Kind::Square);
        }
    }

    /// A variable that may be above a server's equal share.
    fn large(&mut self) -> Output {
        let spec = TensorSpec::new(DType::F32, &[self.columns; 2]).unwrap();
        let large = self.graph.variable("large", spec, Init::Zeros).unwrap();
        self.tensors.push((large, Kind::Square));
        large
    }

    /// The second factor of a product, where it is not too large.
    fn factor(&self) -> Kind {
        if self.size == Size::Pages { Kind::Vector } else { Kind::Square }
    }

    /// That kind, or one of known size in its place.
    fn sized(&self, kind: Kind) -> Kind {
        match kind {
            Kind::Open(_) if self.size == Size::Known => Kind::Fixed,
            Kind::Bytes(_) if self.size == Size::Known => Kind::Vector,
            kind => kind,
        }
    }

    fn anywhere(&mut self) -> Hint {
        match self.random.below((self.workers + self.servers) as usize) {
            worker if worker < self.workers as usize => Hint::Replica(worker as u32),
            _ => Hint::With(self.random.of(&self.variables).node),
        }
    }

    fn dims(&self, kind: Kind) -> Vec<Dim> {
        let columns = Dim::Known(self.columns);
        match kind {
            Kind::Scalar => vec![],
            Kind::Vector => vec![columns],
            Kind::Square => vec![columns, columns],
            Kind::Fixed => vec![Dim::Known(ROWS), columns],
            Kind::Open(symbol) => vec![Dim::Dynamic(Symbol(symbol)), columns],
            Kind::Bytes(symbol) => vec![Dim::Dynamic(Symbol(symbol))],
        }
    }

    fn add(&mut self, op: Op, inputs: &[Output], kind: Kind) -> Output {
        let at = self.anywhere();
        self.add_at(at, op, inputs, kind)
    }

    fn add_at(&mut self, at: Hint, op: Op, inputs: &[Output], kind: Kind) -> Output {
        let name = format!("{}{}", op.name(), self.graph.len());
        let node = self.graph.add(&name, at, op, inputs).unwrap();
        // a control may cross like anything else
        if !self.tensors.is_empty() && self.random.happens(20) {
            let (before, _) = self.random.of(&self.tensors);
            self.graph.control(before.node, node);
        }
        self.tensors.push((node.into(), kind));
        node.into()
    }

    fn input(&mut self, kind: Kind) -> Output {
        let dtype = if matches!(kind, Kind::Bytes(_)) { DType::U8 } else { DType::F32 };
        let fact = Fact { dtype, dims: self.dims(kind) };
        let input = self.add(Op::Input { fact }, &[], kind);
        if self.size != Size::Known {
            return input;
        }
        // what is fed lies in the host's memory, and is used where it is fed alone
        self.tensors.pop();
        self.add_at(Hint::With(input.node), Op::Scale { by: 0.5 }, &[input], kind)
    }

    /// One of the tensors of that kind, made if there is none.
    fn one_of(&mut self, fits: impl Fn(Kind) -> bool, otherwise: Kind) -> (Output, Kind) {
        let found: Vec<(Output, Kind)> =
            self.tensors.iter().filter(|(_, kind)| fits(*kind)).copied().collect();
        if found.is_empty() {
            let otherwise = self.sized(otherwise);
            return (self.input(otherwise), otherwise);
        }
        // the later ones rather: chains grow
        let from = if self.random.happens(50) { found.len() / 2 } else { 0 };
        self.random.of(&found[from..])
    }

    fn operator(&mut self) {
        let is_float = |kind: Kind| !matches!(kind, Kind::Bytes(_));
        let is_matrix = |kind: Kind| matches!(kind, Kind::Fixed | Kind::Open(_));
        match self.random.below(10) {
            0..=1 => {
                let (x, kind) = self.one_of(is_float, Kind::Vector);
                self.add(Op::Relu, &[x], kind);
            }
            2..=3 => {
                let (a, kind) = self.one_of(is_float, Kind::Vector);
                let (b, _) = self.one_of(|other| other == kind, kind);
                self.add(Op::Add, &[a, b], kind);
            }
            4 => {
                let (x, kind) = self.one_of(is_float, Kind::Vector);
                let (s, _) = self.one_of(|kind| kind == Kind::Scalar, Kind::Scalar);
                self.add(Op::ScaleBy, &[x, s], kind);
            }
            5..=6 => {
                let (x, kind) = self.one_of(|_| true, Kind::Bytes(2));
                let to = self.dims(kind);
                let view = self.add(Op::Reshape { to }, &[x], kind);
                // in a chain of its own: may be computed over where nobody else uses it
                if is_float(kind) && self.random.happens(50) {
                    self.add_at(Hint::With(view.node), Op::Relu, &[view], kind);
                }
            }
            7 => {
                let (x, kind) = self.one_of(is_matrix, Kind::Open(1));
                let (b, _) = self.one_of(|kind| kind == Kind::Vector, Kind::Vector);
                self.add(Op::BiasAdd, &[x, b], kind);
            }
            8 => {
                let (x, _) = self.one_of(is_matrix, Kind::Open(0));
                self.add(Op::SumRows, &[x], Kind::Vector);
            }
            _ if self.size != Size::Pages && self.products < PRODUCTS_MAX => {
                self.products += 1;
                let (x, kind) = self.one_of(is_matrix, Kind::Open(0));
                let (w, _) = self.one_of(|kind| kind == Kind::Square, Kind::Square);
                let op = Op::MatMul { transpose_a: false, transpose_b: self.random.happens(50) };
                self.add(op, &[x, w], kind);
            }
            _ => {
                let (x, _) = self.one_of(|kind| kind == Kind::Fixed, Kind::Fixed);
                self.add(Op::ReduceMax, &[x], Kind::Scalar);
            }
        }
    }

    /// Gradients of any workers: what is fed there, where what they computed is positive.
    fn update(&mut self, variable: Output, kind: Kind) {
        let mut inputs = vec![variable];
        for _ in 0..1 + self.random.below(2) {
            let (y, _) = self.one_of(|other| other == kind, kind);
            let dy = self.input(kind);
            inputs.push(self.add(Op::ReluGrad, &[dy, y], kind));
        }
        let name = format!("update {}", self.graph.node(variable.node).name);
        let at = Hint::With(variable.node);
        self.graph
            .add(&name, at, Op::Apply { rule: Rule::sgd(0.5), clipped: false }, &inputs)
            .unwrap();
    }

    /// Perhaps a view of what another task sent, or of a variable. That memory may change as soon as the
    /// run's nodes are done with it: the caller must not be given it, unless the plan finds a proof.
    fn is_view_of_received(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        let Some(viewed) = node.inputs.first().filter(|_| matches!(node.op, Op::Reshape { .. }))
        else {
            return false;
        };
        self.task_of(id) != self.task_of(viewed.node) || self.is_view_of_received(viewed.node)
    }

    fn is_dynamic(&self, id: NodeId) -> bool {
        self.graph.fact(id.into()).spec().is_none()
    }

    fn task_of(&self, id: NodeId) -> Hint {
        match self.graph.node(id).hint {
            Hint::With(other) if !self.variables.contains(&other.into()) => self.task_of(other),
            hint => hint,
        }
    }

    /// Of the first run all that nothing uses, and some more; of the second a few tensors.
    fn roots(&mut self) -> Vec<Vec<NodeId>> {
        let successors = self.graph.successors();
        let mut all: Vec<NodeId> = Vec::new();
        for id in self.graph.ids() {
            let is_wanted = successors[id.index()].is_empty() || self.random.happens(15);
            if is_wanted && (!self.is_view_of_received(id) || self.is_dynamic(id)) {
                all.push(id);
            }
        }
        let tensors = self.tensors.iter().map(|(output, _)| output.node);
        let tensors: Vec<NodeId> =
            tensors.filter(|id| !self.is_view_of_received(*id) || self.is_dynamic(*id)).collect();
        let few = (0..2).map(|_| self.random.of(&tensors)).collect();
        vec![all, few]
    }
}
