//! The plan as text for people (`tensorwire graph --full`), and all of its nodes as a drawing (`--dot --full`).

use std::fmt::Write as _;

use crate::graph::Output;
use crate::op::Op;
use crate::pass::memory::Lane;
use crate::pass::reference::{Transfer, WhyWrite};
use crate::plan::{Edge, Plan, Reuse};

impl Plan {
    /// What crosses, in Graphviz's language: a cluster per task, crossing edges in bold.
    pub fn to_dot(&self) -> String {
        let mut out =
            String::from("digraph plan {\n  rankdir=LR; node [shape=box, fontsize=10];\n");
        for (index, part) in self.parts.iter().enumerate() {
            let _ = writeln!(out, "  subgraph cluster_{index} {{ label=\"{}\";", part.task);
            for (id, node) in part.graph.nodes() {
                let name = escape(&node.name);
                // how it crosses, not the call that announces it
                let how = node.op.edge().map(|edge| self.edges[edge.index()].transfer);
                let how = how.map(|how| format!(", {how}")).unwrap_or_default();
                let op = format!("{}{how}", node.op.name());
                let fact = node.facts.first().map(|f| format!("\\n{f}")).unwrap_or_default();
                let style = match node.op {
                    _ if node.op.edge().is_some() => ", style=filled, fillcolor=lightblue",
                    Op::Variable { .. } => ", style=filled, fillcolor=lightyellow",
                    _ => "",
                };
                let _ =
                    writeln!(out, "    n{index}_{} [label=\"{name}\\n{op}{fact}\"{style}];", id.0);
            }
            let _ = writeln!(out, "  }}");
            for (id, node) in part.graph.nodes() {
                for input in &node.inputs {
                    let _ = writeln!(out, "  n{index}_{} -> n{index}_{};", input.node.0, id.0);
                }
                for before in &node.controls {
                    let _ = writeln!(
                        out,
                        "  n{index}_{} -> n{index}_{} [style=dotted];",
                        before.0, id.0
                    );
                }
            }
        }
        for edge in &self.edges {
            let Edge { from, to, send, recv, .. } = edge;
            let label = match (edge.transfer, edge.bytes()) {
                (Transfer::Signal, _) => String::new(),
                (_, None) => edge.fact.to_string(),
                (Transfer::Reference, Some(bytes)) => format!("{bytes} B by reference"),
                (_, Some(bytes)) => format!("{bytes} B"),
            };
            let _ = writeln!(
                out,
                "  n{from}_{} -> n{to}_{} [style=bold, color=blue, label=\"{label}\"];",
                send.0, recv.0,
            );
        }
        out.push_str("}\n");
        out
    }

    /// Offset of an edge's receive buffer in the receiver's registered arena.
    pub fn receive_offset(&self, edge: &Edge) -> Option<usize> {
        let output = Output { node: edge.recv, index: 0 };
        let spot = self.parts[edge.to].memory.spot(output)?;
        (spot.lane == Lane::Registered).then_some(spot.offset)
    }
}

impl std::fmt::Display for Reuse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reuse::Proved => f.write_str("proved"),
            Reuse::Acknowledged => f.write_str("acknowledged"),
            Reuse::Trusted => f.write_str("not proved"),
            Reuse::Empty => f.write_str("no bytes"),
            Reuse::Credit { readers } => write!(f, "credit after {}", readers.join(", ")),
        }
    }
}

impl std::fmt::Display for Transfer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Transfer::Signal => "signal",
            Transfer::Write(_) => "one write",
            Transfer::Reference => "by reference",
            Transfer::Dynamic => "dynamic: read once its size is told",
        })
    }
}

impl Transfer {
    /// Why this one, for people.
    pub fn reason(self) -> &'static str {
        match self {
            Transfer::Signal => "nothing but an order crosses",
            Transfer::Reference => "size known, memory shared",
            Transfer::Dynamic => "a dimension is known only when the tensor exists",
            Transfer::Write(WhyWrite::Apart) => "size known, memory not shared",
            Transfer::Write(WhyWrite::Told) => "size known, told to write",
            Transfer::Write(WhyWrite::Circle) => "size known, waiting for readers closes a circle",
            Transfer::Write(WhyWrite::Given) => "size known, a later run takes it as given",
            Transfer::Write(WhyWrite::Unplaced) => "size known, its place is not",
            Transfer::Write(WhyWrite::Joined) => "size known, rows of a tensor of several servers",
            Transfer::Write(WhyWrite::Small) => "size known, below a page",
            Transfer::Write(WhyWrite::ManyWriters) => "size known, lanes change the variable",
            Transfer::Write(WhyWrite::SentOn) => "size known, the receiver sends it on",
            Transfer::Write(WhyWrite::GivenOn) => {
                "size known, the receiver's other devices copy it"
            }
            Transfer::Write(WhyWrite::Borrowed) => "size known, the sender received it itself",
            Transfer::Write(WhyWrite::LateReader) => "size known, read after its update began",
        }
    }
}

fn escape(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"")
}
