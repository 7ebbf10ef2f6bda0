//! Rings: member i sends to member i + 1 only. Of several rings each has a slice of every piece, and a sequence.

use std::ops::Range;

use super::{Addend, GroupShape, Into, OperationKind, Schedule, Step, Tag, direct, slice};

const TAG: Tag = Tag::First;

/// A ring's share of the vector.
#[derive(Clone, Copy)]
struct Ring<'a> {
    shape: GroupShape<'a>,
    index: usize,
    count: usize,
}

pub(super) fn schedule(kind: OperationKind, shape: GroupShape, rings: usize) -> Schedule {
    let of_ring = |index| Ring { shape, index, count: rings };
    let steps: Option<_> = (0..rings).map(of_ring).map(|ring| ring.steps(kind)).collect();
    let Some(sequences) = steps else { return direct::schedule(kind, shape) };
    let reduces = !matches!(kind, OperationKind::AllGather | OperationKind::Broadcast { .. });
    // in a fixed order, owners must see every addend; else each step of a ring has its place
    let landing = if reduces { (shape.size - 1) * shape.piece_max() } else { 0 };
    let landing =
        if reduces && !shape.deterministic { landing + rings * shape.size } else { landing };
    Schedule { sequences, landing, ..Schedule::default() }
}

impl Ring<'_> {
    /// None for what does not go round.
    fn steps(self, kind: OperationKind) -> Option<Vec<Step>> {
        let mut steps = Vec::new();
        match kind {
            OperationKind::AllReduce => {
                self.scatter(&mut steps);
                self.gather(&mut steps);
            }
            OperationKind::ReduceScatter => self.scatter(&mut steps),
            OperationKind::AllGather => self.gather(&mut steps),
            OperationKind::Reduce { root } => {
                self.scatter(&mut steps);
                self.collect(&mut steps, root);
            }
            OperationKind::Broadcast { root } => self.chain(&mut steps, root),
            OperationKind::Gather { .. }
            | OperationKind::Scatter { .. }
            | OperationKind::AllToAll => return None,
        }
        Some(steps)
    }

    /// This ring's slice of a piece, which is taken round the ring.
    fn piece(self, i: usize) -> Range<usize> {
        slice(self.shape.piece(i % self.shape.size), self.index, self.count)
    }

    fn next(self) -> usize {
        (self.shape.me + 1) % self.shape.size
    }

    fn previous(self) -> usize {
        (self.shape.me + self.shape.size - 1) % self.shape.size
    }

    /// In the end everybody has the reduction of his slice. The sum of a piece begins behind its owner.
    fn scatter(self, steps: &mut Vec<Step>) {
        let GroupShape { me, size, deterministic, .. } = self.shape;
        if deterministic {
            return self.scatter_in_order(steps);
        }
        // the longest slice there can be
        let stride = self.shape.piece_max().div_ceil(self.count);
        let at = |step: usize| (self.index * (size - 1) + step) * stride;
        for step in 0..size - 1 {
            let (out, back) =
                (self.piece(me + 2 * size - step - 1), self.piece(me + 2 * size - step - 2));
            steps.push(Step::Send {
                to: self.next(),
                range: out,
                into: Into::Landing(at(step)),
                tag: TAG,
            });
            steps.push(Step::Receive { from: self.previous(), tag: TAG });
            let addends = vec![Addend::Landed(at(step)), Addend::Own];
            steps.push(Step::Reduce { range: back, addends, is_whole: step + 2 == size });
        }
    }

    /// Addends go to the owner by the straight way, and he reduces them in the order of members.
    fn scatter_in_order(self, steps: &mut Vec<Step>) {
        let GroupShape { me, size, .. } = self.shape;
        let stride = self.shape.piece_max();
        // where a slice is within its piece
        let within = |owner: usize| self.piece(owner).start - self.shape.piece(owner).start;
        for to in self.shape.others() {
            let at = GroupShape::slot(me, to) * stride + within(to);
            steps.push(Step::Send { to, range: self.piece(to), into: Into::Landing(at), tag: TAG });
        }
        steps.extend(self.shape.others().map(|from| Step::Receive { from, tag: TAG }));
        let of = |member: usize| match member {
            member if member == me => Addend::Own,
            member => Addend::Landed(GroupShape::slot(member, me) * stride + within(me)),
        };
        let addends = (0..size).map(of).collect();
        steps.push(Step::Reduce { range: self.piece(me), addends, is_whole: true });
    }

    /// What everybody has of his slice goes round.
    fn gather(self, steps: &mut Vec<Step>) {
        let GroupShape { me, size, .. } = self.shape;
        for step in 0..size - 1 {
            let range = self.piece(me + size - step);
            steps.push(Step::Send { to: self.next(), range, into: Into::Vector, tag: TAG });
            steps.push(Step::Receive { from: self.previous(), tag: TAG });
        }
    }

    /// The root gets everybody's slice.
    fn collect(self, steps: &mut Vec<Step>, root: usize) {
        if root == self.shape.me {
            steps.extend(self.shape.others().map(|from| Step::Receive { from, tag: TAG }));
        } else {
            let range = self.piece(self.shape.me);
            steps.push(Step::Send { to: root, range, into: Into::Vector, tag: TAG });
        }
    }

    /// The root's vector goes from member to member, segment behind segment.
    fn chain(self, steps: &mut Vec<Step>, root: usize) {
        let GroupShape { me, size, len, .. } = self.shape;
        let distance = (me + size - root) % size;
        for range in self.shape.segments(slice(0..len, self.index, self.count)) {
            if distance > 0 {
                steps.push(Step::Receive { from: self.previous(), tag: TAG });
            }
            if distance + 1 < size {
                steps.push(Step::Send { to: self.next(), range, into: Into::Vector, tag: TAG });
            }
        }
    }
}
