//! The memory plan: where each tensor of a part lives. What crosses lives in the registered lane, so
//! that a send copies nothing and a receive lands where the next operator reads; the rest is private.
//! In each lane, tensors of which one is dead before the other is made share bytes.

use std::collections::{HashMap, HashSet};

use tensorwire_tensor::TensorSpec;

use crate::error::GraphError;
use crate::graph::{Graph, NodeId, Output};
use crate::op::Op;
use crate::pass::in_place::{Class, Classes, is_view};
use crate::pass::infer::known_spec;
use tensorwire_base::Space;

/// Offsets are multiples of this, in bytes: a cache line, and an AVX-512 vector.
const ALIGNMENT: usize = 64;
/// Parts of more nodes give every tensor a place of its own: who comes before whom is a bit for each
/// pair of nodes and run.
const SHARING_NODES_MAX: usize = 8192;

/// The arenas of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Registered with the fabric: peers write here, and sends read from here.
    Registered,
    /// This process's own.
    Private,
    /// The memory of the device of that number.
    Device(u32),
}

/// The place of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spot {
    pub lane: Lane,
    /// Bytes from the lane's start.
    pub offset: usize,
    pub spec: TensorSpec,
}

/// Where the sender's tensor is when its write starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendFrom {
    /// Where the operator that made it put it: in the registered lane. No copy (RDMA.zerocp).
    #[default]
    Origin,
    /// In a registered place of the Send's own, copied there first: Xue et al.'s RDMA.cp (§5.1).
    Staging,
}

/// The places of all tensors of a part whose size is known.
#[derive(Clone, Debug, Default)]
pub struct MemoryPlan {
    pub registered_bytes: usize,
    pub private_bytes: usize,
    /// By device.
    pub device_bytes: Vec<usize>,
    /// What the lanes would take together if every operator's output had a place of its own.
    pub unshared_bytes: usize,
    spots: HashMap<Output, Spot>,
    staging: HashMap<NodeId, Spot>,
    kept: HashSet<Output>,
    in_place: HashSet<NodeId>,
    read_by_peers: HashSet<Output>,
}

/// What the memory plan of a part depends on.
pub(crate) struct MemoryNeeds<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) classes: &'a Classes,
    /// For each run, its nodes in an order in which each comes after what it waits for, with that.
    pub(crate) runs: Vec<Vec<(NodeId, Vec<NodeId>)>>,
    /// Nodes whose outputs must be there after a run.
    pub(crate) kept: &'a HashSet<NodeId>,
    /// Recvs that read the sender's tensor where it lies.
    pub(crate) elsewhere: HashSet<NodeId>,
    /// Outputs that a peer reads where they lie.
    pub(crate) read_by_peers: HashSet<Output>,
    pub(crate) send_from: SendFrom,
}

impl MemoryPlan {
    /// Where an output lives; none: allocated while the part runs, or at a peer.
    pub fn spot(&self, output: Output) -> Option<&Spot> {
        self.spots.get(&output)
    }

    /// Where a Send copies its tensor first; none: it writes from where the tensor is.
    pub fn staging(&self, send: NodeId) -> Option<&Spot> {
        self.staging.get(&send)
    }

    /// True if the output is there after a run. What is not may have been overwritten by a later node.
    pub fn is_kept(&self, output: Output) -> bool {
        self.kept.contains(&output)
    }

    /// True if a peer reads the output where it lies.
    pub fn is_read_by_peers(&self, output: Output) -> bool {
        self.read_by_peers.contains(&output)
    }

    /// True if the node computes over its first input's bytes.
    pub fn is_in_place(&self, node: NodeId) -> bool {
        self.in_place.contains(&node)
    }
}

/// Gives every tensor of known size its place.
///
/// # Errors
/// When the sum does not fit an address space.
pub(crate) fn plan_memory(needs: &MemoryNeeds<'_>) -> Result<MemoryPlan, GraphError> {
    let MemoryNeeds { graph, classes, .. } = needs;
    let mut plan = MemoryPlan {
        in_place: classes.in_place.clone(),
        read_by_peers: needs.read_by_peers.clone(),
        ..MemoryPlan::default()
    };
    let lives = (graph.len() <= SHARING_NODES_MAX).then(|| Lives::new(needs));
    let sent = sent_classes(needs);
    let mut shelves: HashMap<Lane, Shelf> = HashMap::new();
    let mut pieces = Vec::new();
    for (index, class) in classes.classes.iter().enumerate() {
        let root = class.root();
        let name = &graph.node(root.node).name;
        let is_exclusive = is_state(needs, class);
        if is_exclusive {
            plan.kept.extend(&class.members);
        }
        if known_spec(name, graph.fact(root))?.is_none() {
            continue;
        }
        if needs.elsewhere.contains(&root.node) {
            continue;
        }
        // what is received lies with what is computed where both are joined
        let receives = |output: &Output| matches!(graph.node(output.node).op, Op::Recv { .. });
        let is_received = class.members.iter().any(receives);
        let is_registered = is_received || sent.contains(&index) || has_vector(graph, class);
        let lane = match graph.node(root.node).space {
            Space::Device(device) => Lane::Device(device),
            Space::Host if is_registered => Lane::Registered,
            Space::Host => Lane::Private,
        };
        let bytes = extent(graph, classes, class)?;
        pieces.push((lane, Piece { class: index, bytes, is_exclusive }));
    }
    // large ones first: small ones fill the gaps; equals in the graph's order
    pieces.sort_by_key(|(_, piece)| (std::cmp::Reverse(piece.bytes), piece.class));
    for (lane, piece) in pieces {
        let members = &classes.classes[piece.class].members;
        let too_large = || GraphError::Invalid {
            node: graph.node(members[0].node).name.clone(),
            what: "the tensors up to here exceed the address space".to_string(),
        };
        let shelf = shelves.entry(lane).or_default();
        let offset = shelf.place(piece, lives.as_ref()).ok_or_else(too_large)?;
        for &output in members {
            let name = &graph.node(output.node).name;
            if let Some(spec) = known_spec(name, graph.fact(output))? {
                let own = if is_view(graph.node(output.node)) { 0 } else { spec.bytes() };
                plan.unshared_bytes = advance(plan.unshared_bytes, own).ok_or_else(too_large)?;
                let offset = offset + classes.offset(output);
                plan.spots.insert(output, Spot { lane, offset, spec });
            }
        }
    }
    let end = |lane: Lane| shelves.get(&lane).map_or(0, |shelf| shelf.end);
    (plan.registered_bytes, plan.private_bytes) = (end(Lane::Registered), end(Lane::Private));
    let spaces = graph.nodes().filter_map(|(_, node)| match node.space {
        Space::Device(device) => Some(device),
        Space::Host => None,
    });
    // a device that computes has memory, if none of the plan's: what it makes may be of unknown size
    let devices = spaces.max().map_or(0, |last| last + 1);
    plan.device_bytes = (0..devices).map(|device| end(Lane::Device(device))).collect();
    if needs.send_from == SendFrom::Staging {
        plan.add_staging(graph)?;
    }
    Ok(plan)
}

impl MemoryPlan {
    fn add_staging(&mut self, graph: &Graph) -> Result<(), GraphError> {
        for (id, node) in graph.nodes() {
            let (Op::Send { .. }, [sent], Space::Host) = (&node.op, &node.inputs[..], node.space)
            else {
                continue;
            };
            let Some(spec) = known_spec(&node.name, graph.fact(*sent))? else {
                continue;
            };
            let offset = self.registered_bytes;
            let too_large = || GraphError::Invalid {
                node: node.name.clone(),
                what: "the tensors up to here exceed the address space".to_string(),
            };
            self.registered_bytes = advance(offset, spec.bytes()).ok_or_else(too_large)?;
            self.unshared_bytes =
                advance(self.unshared_bytes, spec.bytes()).ok_or_else(too_large)?;
            self.staging.insert(id, Spot { lane: Lane::Registered, offset, spec });
        }
        Ok(())
    }
}

/// The bytes of a class of known size: as far as its last member reaches.
fn extent(graph: &Graph, classes: &Classes, class: &Class) -> Result<usize, GraphError> {
    let mut extent = 0;
    for &output in &class.members {
        let name = &graph.node(output.node).name;
        let bytes = known_spec(name, graph.fact(output))?.map_or(0, |spec| spec.bytes());
        let end = classes.offset(output).checked_add(bytes);
        extent = extent.max(end.ok_or_else(|| GraphError::Invalid {
            node: name.clone(),
            what: "it exceeds the address space".to_string(),
        })?);
    }
    Ok(extent)
}

/// True if other processes reduce or broadcast it where it lies.
fn has_vector(graph: &Graph, class: &Class) -> bool {
    class.members.iter().any(|output| graph.node(output.node).op.vector().is_some())
}

/// True if it is written from outside of a run, or read there.
fn is_state(needs: &MemoryNeeds<'_>, class: &Class) -> bool {
    has_vector(needs.graph, class)
        || class.members.iter().any(|output| {
            let op = &needs.graph.node(output.node).op;
            op.is_state()
                || matches!(op, Op::Recv { .. })
                // its parts are made at different times
                || needs.classes.is_joined(*output)
                || needs.kept.contains(&output.node)
                || needs.read_by_peers.contains(output)
        })
}

/// The classes that a Send writes from where they are.
fn sent_classes(needs: &MemoryNeeds<'_>) -> HashSet<usize> {
    if needs.send_from == SendFrom::Staging {
        return HashSet::new();
    }
    let sends = needs.graph.nodes().filter(|(_, node)| matches!(node.op, Op::Send { .. }));
    sends.flat_map(|(_, node)| &node.inputs).map(|sent| needs.classes.class_index(*sent)).collect()
}

/// A class's memory, to be placed.
#[derive(Clone, Copy)]
struct Piece {
    class: usize,
    bytes: usize,
    /// Shares bytes with nobody.
    is_exclusive: bool,
}

/// A lane that is being filled.
#[derive(Default)]
struct Shelf {
    placed: Vec<(usize, Piece)>,
    end: usize,
}

impl Shelf {
    /// The lowest place where a piece meets none that may be alive at the same time.
    fn place(&mut self, piece: Piece, lives: Option<&Lives>) -> Option<usize> {
        if piece.bytes == 0 {
            return Some(0);
        }
        let shares = |other: &Piece| {
            !piece.is_exclusive
                && !other.is_exclusive
                && lives.is_some_and(|lives| lives.are_apart(piece.class, other.class))
        };
        let mut offset = if piece.is_exclusive || lives.is_none() { self.end } else { 0 };
        // sorted by place: the first gap between those it cannot share with is the lowest
        for (at, other) in self.placed.iter().filter(|(_, other)| !shares(other)) {
            if offset.checked_add(piece.bytes)? <= *at {
                break;
            }
            offset = offset.max(advance(*at, other.bytes)?);
        }
        let index = self.placed.partition_point(|(at, _)| *at <= offset);
        self.placed.insert(index, (offset, piece));
        self.end = self.end.max(advance(offset, piece.bytes)?);
        Some(offset)
    }
}

/// When classes are alive: proved by dependencies, not by the order in which a run happens to go.
struct Lives {
    /// By class: the node that makes it.
    makers: Vec<NodeId>,
    /// By class: all nodes that make or use a member.
    users: Vec<Vec<NodeId>>,
    runs: Vec<Ancestors>,
}

/// For each node of a run, the set of nodes that are done when it starts.
struct Ancestors {
    words: usize,
    member: Vec<bool>,
    sets: Vec<u64>,
}

impl Lives {
    fn new(needs: &MemoryNeeds<'_>) -> Lives {
        let MemoryNeeds { graph, classes, runs, .. } = needs;
        let makers = classes.classes.iter().map(|class| class.root().node).collect();
        let mut users: Vec<Vec<NodeId>> = classes
            .classes
            .iter()
            .map(|class| class.members.iter().map(|output| output.node).collect())
            .collect();
        for (id, node) in graph.nodes() {
            for input in &node.inputs {
                users[classes.class_index(*input)].push(id);
            }
        }
        let runs = runs.iter().map(|run| Ancestors::new(graph.len(), run)).collect();
        Lives { makers, users, runs }
    }

    /// True if in every run one of the two is dead before the other is made.
    fn are_apart(&self, a: usize, b: usize) -> bool {
        self.runs.iter().all(|run| self.ends_before(run, a, b) || self.ends_before(run, b, a))
    }

    fn ends_before(&self, run: &Ancestors, first: usize, then: usize) -> bool {
        let maker = self.makers[then];
        let done = |user: &NodeId| !run.member[user.index()] || run.precedes(*user, maker);
        !run.member[maker.index()] || self.users[first].iter().all(done)
    }
}

impl Ancestors {
    fn new(nodes: usize, run: &[(NodeId, Vec<NodeId>)]) -> Ancestors {
        let words = nodes.div_ceil(64);
        let mut all = Ancestors { words, member: vec![false; nodes], sets: vec![0; nodes * words] };
        for (id, before) in run {
            all.member[id.index()] = true;
            for earlier in before {
                let (from, to) = (earlier.index() * words, id.index() * words);
                for word in 0..words {
                    let bits = all.sets[from + word];
                    all.sets[to + word] |= bits;
                }
                all.sets[to + earlier.index() / 64] |= 1 << (earlier.index() % 64);
            }
        }
        all
    }

    fn precedes(&self, first: NodeId, then: NodeId) -> bool {
        self.sets[then.index() * self.words + first.index() / 64] >> (first.index() % 64) & 1 == 1
    }
}

fn advance(offset: usize, bytes: usize) -> Option<usize> {
    offset.checked_add(bytes)?.checked_next_multiple_of(ALIGNMENT)
}
