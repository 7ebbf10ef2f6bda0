//! A plan's digest: the same for whoever made the same plan, whatever program and version of it. Every fact on which
//! members must agree goes in by hand, numbers in eight bytes and texts and lists behind their length, so that no two
//! plans give the same bytes.

use sha2::{Digest, Sha256};
use tensorwire_tensor::{DType, Dim, Fact};

use super::{Edge, Plan, Reuse, Run};
use crate::graph::{Job, Task};
use crate::op::Op;
use crate::pass::memory::SendFrom;
use crate::pass::reference::{Transfer, WhyWrite};

impl Plan {
    /// SHA-256 over what all members must have alike: tasks, edges and how they cross, runs, and what each part keeps
    /// from step to step.
    pub fn digest(&self) -> [u8; 32] {
        let mut canon = Canon(Sha256::new());
        let send_from = match self.send_from {
            SendFrom::Origin => 0,
            SendFrom::Staging => 1,
        };
        canon.number(send_from);
        canon.list(&self.parts, |canon, part| {
            canon.task(part.task);
            canon.number(part.graph.len());
            canon.number(part.memory.registered_bytes);
            canon.number(part.memory.private_bytes);
            let is_state = |op: &Op| matches!(op, Op::Variable { .. });
            let state: Vec<_> = part.graph.nodes().filter(|(_, node)| is_state(&node.op)).collect();
            canon.list(&state, |canon, (_, node)| {
                canon.text(&node.name);
                canon.list(&node.facts, Canon::fact);
            });
        });
        canon.list(&self.edges, Canon::edge);
        canon.list(&self.runs, Canon::run);
        canon.0.finalize().into()
    }
}

/// What is hashed, in its one form.
struct Canon(Sha256);

impl Canon {
    fn number(&mut self, number: usize) {
        // fits: usize is 64 bits wide
        self.0.update((number as u64).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len());
        self.0.update(text.as_bytes());
    }

    fn list<T>(&mut self, all: &[T], mut each: impl FnMut(&mut Canon, &T)) {
        self.number(all.len());
        all.iter().for_each(|one| each(self, one));
    }

    fn task(&mut self, task: Task) {
        let job = match task.job {
            Job::Worker => 0,
            Job::Server => 1,
        };
        self.number(job);
        self.number(task.index as usize);
    }

    fn fact(&mut self, fact: &Fact) {
        let dtype = match fact.dtype {
            DType::F32 => 0,
            DType::F64 => 1,
            DType::I32 => 2,
            DType::I64 => 3,
            DType::U8 => 4,
            DType::BF16 => 5,
        };
        self.number(dtype);
        self.list(&fact.dims, |canon, dim| {
            let (kind, value) = match dim {
                Dim::Known(size) => (0, *size),
                Dim::Dynamic(symbol) => (1, symbol.0 as usize),
            };
            canon.number(kind);
            canon.number(value);
        });
    }

    fn edge(&mut self, edge: &Edge) {
        // where a tensor lies follows from the nodes, which are hashed by their numbers
        let Edge { id, name, fact, from, to, send, recv, transfer, reuse, space: _ } = edge;
        self.number(id.index());
        self.text(name);
        self.fact(fact);
        for number in [*from, *to, send.index(), recv.index(), transfer_number(*transfer)] {
            self.number(number);
        }
        let (reuse, readers): (usize, &[String]) = match reuse {
            Reuse::Proved => (0, &[]),
            Reuse::Credit { readers } => (1, readers),
            Reuse::Acknowledged => (2, &[]),
            Reuse::Trusted => (3, &[]),
            Reuse::Empty => (4, &[]),
        };
        self.number(reuse);
        self.list(readers, |canon, reader| canon.text(reader));
    }

    fn run(&mut self, run: &Run) {
        self.text(run.name);
        self.list(&run.nodes, |canon, nodes| {
            canon.list(nodes, |canon, node| canon.number(node.index()));
        });
    }
}

/// Each way to cross has a number of its own, which it keeps.
fn transfer_number(transfer: Transfer) -> usize {
    match transfer {
        Transfer::Signal => 0,
        Transfer::Reference => 1,
        Transfer::Dynamic => 2,
        Transfer::Write(why) => match why {
            WhyWrite::Apart => 16,
            WhyWrite::Told => 17,
            WhyWrite::Circle => 18,
            WhyWrite::Small => 19,
            WhyWrite::ManyWriters => 20,
            WhyWrite::SentOn => 21,
            WhyWrite::Borrowed => 22,
            WhyWrite::LateReader => 23,
            WhyWrite::Given => 24,
            WhyWrite::Unplaced => 25,
            WhyWrite::Joined => 26,
            WhyWrite::GivenOn => 27,
        },
    }
}
