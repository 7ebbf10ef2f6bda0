//! Partition: one graph per task. Every output that a node of another task uses gets one Send in its
//! own part and one Recv in the user's, however many users are there; a control that crosses becomes
//! a Send of no bytes. A tensor that users of several parts of another host need crosses to that host once: the part that it
//! comes to first sends it on.

use std::collections::{HashMap, HashSet};

use tensorwire_tensor::{DType, Fact};

use crate::error::GraphError;
use crate::graph::{Graph, Hint, Node, NodeId, Output, Task};
use crate::op::{EdgeId, Op};
use tensorwire_base::Space;

/// Smallest tensor that is sent on, in bytes: a smaller one costs less than waiting for who has it first.
pub const RELAYED_BYTES_MIN: usize = 4096;

/// One graph per task and the edges between them.
#[derive(Clone, Debug)]
pub(crate) struct Partition {
    pub(crate) graphs: Vec<Graph>,
    /// For each part: the node made of a node of the whole graph.
    pub(crate) moved: Vec<HashMap<NodeId, NodeId>>,
    pub(crate) cuts: Vec<Cut>,
}

/// A crossing edge, before anything is decided about it. Parts are indices into the task list.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    /// What crosses, in the whole graph.
    pub(crate) crossing: Crossing,
    /// What is sent, in the sender's part; none: only the news that a node is done.
    pub(crate) sent: Option<Output>,
    pub(crate) name: String,
    pub(crate) fact: Fact,
    /// The part that makes it, or one that it came to before.
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) send: NodeId,
    pub(crate) recv: NodeId,
}

/// What names a cut though the graph around it gets further waits and nodes: what crosses, and the part that it goes
/// to.
pub(crate) type CutKey = (Crossing, usize);

impl Cut {
    pub(crate) fn key(&self) -> CutKey {
        (self.crossing, self.to)
    }

    /// True if the cut brings an output of `node`.
    pub(crate) fn brings(&self, node: NodeId) -> bool {
        matches!(self.crossing, Crossing::Tensor(output) if output.node == node)
    }

    /// The node of the whole graph that the cut starts at.
    pub(crate) fn source(&self) -> NodeId {
        self.crossing.source()
    }

    /// Bytes of its tensor; 0 where they are not known.
    pub(crate) fn bytes(&self) -> usize {
        self.fact.spec().and_then(Result::ok).map_or(0, |spec| spec.bytes())
    }
}

/// What crosses: a tensor, or only the news that a node is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Crossing {
    Tensor(Output),
    Control(NodeId),
}

impl Crossing {
    fn source(self) -> NodeId {
        match self {
            Crossing::Tensor(output) => output.node,
            Crossing::Control(node) => node,
        }
    }
}

/// Cuts a placed graph along its tasks. The first outputs of `fetched` come to their task in any case, though nothing
/// uses them there. `hosts`: by task, the number of its host; none: nothing is sent on.
///
/// # Errors
/// When a node has no task, or one that is not in `tasks`.
pub(crate) fn partition(
    graph: &Graph,
    tasks: &[Task],
    fetched: impl Iterator<Item = (NodeId, Task)>,
    hosts: Option<&[u32]>,
) -> Result<Partition, GraphError> {
    let count = tasks.len();
    let fetched: Vec<(NodeId, Task)> = fetched.collect();
    let mut cutter = Cutter {
        whole: graph,
        part_of: parts_of(graph, tasks)?,
        tasks,
        hosts,
        arrived: HashMap::new(),
        first_on_host: HashMap::new(),
        in_both: in_both(graph, &fetched),
        fetched: fetched.iter().copied().collect(),
        out: Partition {
            graphs: vec![Graph::new(); count],
            moved: vec![HashMap::new(); count],
            cuts: Vec::new(),
        },
    };
    for id in graph.ids() {
        cutter.take(id)?;
    }
    for (id, task) in fetched.into_iter().filter(|(id, _)| !graph.node(*id).facts.is_empty()) {
        cutter.bring(id, task)?;
    }
    Ok(cutter.out)
}

/// What goes to a task from a device's memory, and as the host's copy of it as well: both are named for where they lie,
/// whichever is used there first.
fn in_both(graph: &Graph, fetched: &[(NodeId, Task)]) -> HashSet<(Output, Option<Task>)> {
    let mut spaces: HashMap<(Output, Option<Task>), HashSet<Space>> = HashMap::new();
    let used = graph
        .nodes()
        .flat_map(|(_, node)| node.inputs.iter().map(move |input| (*input, node.task)));
    let fetched = fetched.iter().map(|(id, task)| (Output::from(*id), Some(*task)));
    for (output, task) in used.chain(fetched) {
        let from = graph.node(output.node);
        if from.task != task {
            spaces.entry((copied_from(graph, output), task)).or_default().insert(from.space);
        }
    }
    spaces.into_iter().filter(|(_, spaces)| spaces.len() > 1).map(|(key, _)| key).collect()
}

/// What an output is a copy of, between spaces, or it itself.
fn copied_from(graph: &Graph, output: Output) -> Output {
    let node = graph.node(output.node);
    match (&node.op, node.inputs.first()) {
        (Op::CopyTo { .. }, Some(&input)) => copied_from(graph, input),
        _ => output,
    }
}

fn parts_of(graph: &Graph, tasks: &[Task]) -> Result<Vec<usize>, GraphError> {
    let index: HashMap<Task, usize> = tasks.iter().enumerate().map(|(i, t)| (*t, i)).collect();
    graph
        .nodes()
        .map(|(_, node)| {
            let part = node.task.and_then(|task| index.get(&task).copied());
            part.ok_or_else(|| GraphError::Unplaced { node: node.name.clone() })
        })
        .collect()
}

struct Cutter<'a> {
    whole: &'a Graph,
    part_of: Vec<usize>,
    tasks: &'a [Task],
    hosts: Option<&'a [u32]>,
    /// The Recv that already brings a crossing to a part.
    arrived: HashMap<(Crossing, usize), NodeId>,
    /// By what crosses and the number of the host: the part there that it comes to from another host, and its Recv.
    first_on_host: HashMap<(Crossing, u32), (usize, NodeId)>,
    /// What goes to a task from a device's memory, and from the host's as well.
    in_both: HashSet<(Output, Option<Task>)>,
    /// What comes to a task though nothing there may use it.
    fetched: HashSet<(NodeId, Task)>,
    out: Partition,
}

impl Cutter<'_> {
    fn take(&mut self, id: NodeId) -> Result<(), GraphError> {
        let node = self.whole.node(id);
        let part = self.part_of[id.index()];
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for &input in &node.inputs {
            inputs.push(if self.part_of[input.node.index()] == part {
                Output { node: self.out.moved[part][&input.node], index: input.index }
            } else {
                self.cross(Crossing::Tensor(input), part)?.into()
            });
        }
        let mut controls = Vec::with_capacity(node.controls.len());
        for &before in &node.controls {
            controls.push(if self.part_of[before.index()] == part {
                self.out.moved[part][&before]
            } else {
                self.cross(Crossing::Control(before), part)?
            });
        }
        let hint = match node.hint {
            Hint::With(other) => Hint::With(self.out.moved[part][&other]),
            hint => hint,
        };
        let new = self.out.graphs[part].push(Node { inputs, controls, hint, ..node.clone() })?;
        self.out.moved[part].insert(id, new);
        Ok(())
    }

    /// Makes an output of `id` come to a task that is another than its own, if none does yet.
    fn bring(&mut self, id: NodeId, task: Task) -> Result<(), GraphError> {
        let Some(to) = self.tasks.iter().position(|other| *other == task) else { return Ok(()) };
        let comes = self.out.cuts.iter().any(|cut| cut.to == to && cut.brings(id));
        if self.part_of[id.index()] != to && !comes {
            self.cross(Crossing::Tensor(id.into()), to)?;
        }
        Ok(())
    }

    /// What an output is called that crosses: a copy as what it is a copy of.
    fn name_of(&self, output: Output) -> String {
        let output = copied_from(self.whole, output);
        let name = &self.whole.node(output.node).name;
        match output.index {
            0 => name.clone(),
            index => format!("{name}:{index}"),
        }
    }

    /// The host that a crossing from part `from` to part `to` enters, if whoever has it there may send it on.
    fn entered(&self, crossing: Crossing, from: usize, to: usize) -> Option<u32> {
        let hosts = self.hosts?;
        let Crossing::Tensor(output) = crossing else { return None };
        let bytes =
            self.whole.fact(output).spec().and_then(Result::ok).map_or(0, |spec| spec.bytes());
        let is_on_device = self.whole.node(output.node).space.is_device();
        let (there, here) = (hosts.get(to)?, hosts.get(from)?);
        (there != here && bytes >= RELAYED_BYTES_MIN && !is_on_device).then_some(*there)
    }

    /// The Recv that brings `crossing` to part `to`, made with its Send when first asked for.
    fn cross(&mut self, crossing: Crossing, to: usize) -> Result<NodeId, GraphError> {
        if let Some(&recv) = self.arrived.get(&(crossing, to)) {
            return Ok(recv);
        }
        let source = crossing.source();
        let origin = self.part_of[source.index()];
        let entered = self.entered(crossing, origin, to);
        // who only fetches it has no user of it there: nothing would tell whoever sent it on that it was read
        let is_fetched = self.fetched.contains(&(source, self.tasks[to]));
        let relay = entered.filter(|_| !is_fetched);
        let relay = relay.and_then(|host| self.first_on_host.get(&(crossing, host)).copied());
        let (from, moved) = relay.unwrap_or((origin, self.out.moved[origin][&source]));
        // a Recv has one output, whichever it is of
        let sent = |output: Output| match relay {
            Some((_, recv)) => Output::from(recv),
            None => Output { node: moved, index: output.index },
        };
        let (name, fact, inputs, controls) = match crossing {
            Crossing::Control(_) => {
                let name = format!("^{}", self.name_of(source.into()));
                (name, Fact::known(DType::U8, &[0]), vec![], vec![moved])
            }
            Crossing::Tensor(output) => {
                let fact = self.whole.fact(output).clone();
                (self.name_of(output), fact, vec![sent(output)], vec![])
            }
        };
        let space = match crossing {
            Crossing::Tensor(_) => self.whole.node(source).space,
            Crossing::Control(_) => Space::Host,
        };
        let send_name = |name: &str| format!("send {name} to {}", self.tasks[to]);
        let is_in_both = match crossing {
            Crossing::Tensor(output) => {
                let of = copied_from(self.whole, output);
                self.in_both.contains(&(of, Some(self.tasks[to])))
            }
            // of news that a tensor is there, and that its copy is
            Crossing::Control(_) => self.out.graphs[from].find(&send_name(&name)).is_some(),
        };
        let name = match self.whole.node(source).space {
            Space::Device(_) if is_in_both => format!("{name} on the device"),
            Space::Host if is_in_both => format!("{name} on the host"),
            _ => name,
        };
        // fits: an edge needs two nodes, and nodes fit u32
        let edge = EdgeId(self.out.cuts.len() as u32);
        let (send_op, recv_op) = match fact.spec() {
            Some(_) => (Op::Send { edge }, Op::Recv { edge, fact: fact.clone() }),
            None => (Op::SendDynamic { edge }, Op::RecvDynamic { edge, fact: fact.clone() }),
        };
        let send = self.out.graphs[from].push(Node {
            name: send_name(&name),
            op: send_op,
            inputs,
            controls,
            hint: Hint::With(moved),
            task: Some(self.tasks[from]),
            facts: vec![],
            piece: None,
            space,
        })?;
        let recv = self.out.graphs[to].push(Node {
            name: format!("recv {name} from {}", self.tasks[from]),
            op: recv_op,
            inputs: vec![],
            controls: vec![],
            hint: Hint::Shared,
            task: Some(self.tasks[to]),
            facts: vec![fact.clone()],
            piece: None,
            space,
        })?;
        let sent = match crossing {
            Crossing::Tensor(output) => Some(sent(output)),
            Crossing::Control(_) => None,
        };
        self.out.cuts.push(Cut { crossing, sent, name, fact, from, to, send, recv });
        self.arrived.insert((crossing, to), recv);
        if let Some(host) = entered {
            self.first_on_host.entry((crossing, host)).or_insert((to, recv));
        }
        Ok(recv)
    }
}
