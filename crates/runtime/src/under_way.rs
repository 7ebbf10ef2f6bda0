//! For how long something is under way that a run waits for or has sent, so that it is known how much of that was hidden behind
//! other work. It knows no tensors: nodes that were given a turn in vain, and whether there is more.

use tensorwire_base::Clock;
use tensorwire_graph::NodeId;

#[derive(Debug)]
pub(crate) struct UnderWay {
    /// By node: its last turn was in vain.
    in_vain: Vec<bool>,
    count: usize,
    since_ns: Option<u64>,
}

impl UnderWay {
    /// For a graph of so many nodes.
    pub(crate) fn new(nodes: usize) -> UnderWay {
        UnderWay { in_vain: vec![false; nodes], count: 0, since_ns: None }
    }

    /// A node had a turn.
    pub(crate) fn asked(&mut self, node: NodeId, in_vain: bool) {
        let was = std::mem::replace(&mut self.in_vain[node.index()], in_vain);
        self.count = self.count + usize::from(in_vain) - usize::from(was);
    }

    /// Returns the nanoseconds in which something was under way, when nothing is any more.
    pub(crate) fn goes_on(&mut self, is_more: bool) -> u64 {
        match (is_more || self.count > 0, self.since_ns) {
            (true, None) => self.since_ns = Some(Clock::now_ns()),
            (false, Some(since_ns)) => {
                self.since_ns = None;
                return Clock::now_ns() - since_ns;
            }
            _ => {}
        }
        0
    }

    /// Returns the same where something still is; it counts from here on.
    pub(crate) fn so_far(&mut self) -> u64 {
        let Some(since_ns) = self.since_ns else { return 0 };
        let now_ns = Clock::now_ns();
        self.since_ns = Some(now_ns);
        now_ns - since_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_while_anything_is_under_way() {
        let mut under_way = UnderWay::new(2);
        assert_eq!((under_way.goes_on(false), under_way.so_far()), (0, 0));
        let [first, second] = [0, 1].map(NodeId);
        for node in [first, second, first] {
            under_way.asked(node, true);
            assert_eq!(under_way.goes_on(false), 0, "it is not over");
        }
        under_way.asked(first, false);
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert_eq!(under_way.goes_on(false), 0, "the second is still asked for");
        let so_far = under_way.so_far();
        assert!(so_far >= 2_000_000, "{so_far}");
        under_way.asked(second, false);
        assert_eq!(under_way.goes_on(true), 0, "a send is under way");
        assert!(under_way.goes_on(false) > 0);
        assert_eq!((under_way.goes_on(false), under_way.so_far()), (0, 0));
    }
}
