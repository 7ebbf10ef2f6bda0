//! When may a receiver's buffer be written again? Xue et al. (§4) argue that the loop's own
//! dependencies order the next write behind the last read. That holds for some edges and fails for
//! others: a worker that has sent the gradient of a layer may still be reading that layer's weights
//! when the server, which has all it waits for, sends the next ones. So it is proved, edge by edge.
//!
//! Each process runs one run after another. The read in run A comes before the write in the later
//! run B if some task does both a descendant of the read in A and an ancestor of the send in B.

use crate::pass::schedule::{At, Schedule};

/// For each part and node, the set of tasks that some closure of it touches.
pub(crate) struct TaskSets {
    words: usize,
    sets: Vec<Vec<u64>>,
}

impl TaskSets {
    /// Tasks of all nodes that come after a node in the run, its own included.
    pub(crate) fn of_descendants(schedule: &Schedule, nodes_per_part: &[usize]) -> TaskSets {
        let mut sets = TaskSets::singletons(schedule, nodes_per_part);
        for (at, before) in schedule.order.iter().zip(&schedule.before).rev() {
            for earlier in before {
                sets.absorb(*earlier, *at);
            }
        }
        sets
    }

    /// Tasks of all nodes that come before a node in the run, its own included.
    pub(crate) fn of_ancestors(schedule: &Schedule, nodes_per_part: &[usize]) -> TaskSets {
        let mut sets = TaskSets::singletons(schedule, nodes_per_part);
        for (at, before) in schedule.order.iter().zip(&schedule.before) {
            for earlier in before {
                sets.absorb(*at, *earlier);
            }
        }
        sets
    }

    /// True if some task is in both sets.
    pub(crate) fn meet(&self, at: At, other: &TaskSets, there: At) -> bool {
        self.set(at).iter().zip(other.set(there)).any(|(a, b)| a & b != 0)
    }

    /// True if the task of part `part` is in a node's set.
    pub(crate) fn touches(&self, at: At, part: usize) -> bool {
        self.set(at)[part / 64] >> (part % 64) & 1 == 1
    }

    fn singletons(schedule: &Schedule, nodes_per_part: &[usize]) -> TaskSets {
        let words = nodes_per_part.len().div_ceil(64);
        let sets = nodes_per_part.iter().map(|nodes| vec![0; nodes * words]).collect();
        let mut all = TaskSets { words, sets };
        for &(part, node) in &schedule.order {
            let start = node.index() * words;
            all.sets[part][start + part / 64] |= 1 << (part % 64);
        }
        all
    }

    fn set(&self, (part, node): At) -> &[u64] {
        &self.sets[part][node.index() * self.words..][..self.words]
    }

    fn absorb(&mut self, into: At, from: At) {
        for word in 0..self.words {
            let bits = self.sets[from.0][from.1.index() * self.words + word];
            self.sets[into.0][into.1.index() * self.words + word] |= bits;
        }
    }
}
