//! The processors that a process may run on. A launcher that binds its processes gives each some of the host's.

use serde::{Deserialize, Serialize};

/// Processors by their numbers: the first and the last of each range. Empty: nobody has said which.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CpuMask(Vec<(u32, u32)>);

impl CpuMask {
    /// That of this thread; empty where the system does not say.
    pub(crate) fn here() -> CpuMask {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        CpuMask::parsed(list.unwrap_or_default())
    }

    fn parsed(list: &str) -> CpuMask {
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
        };
        CpuMask(list.split(',').filter_map(range).collect())
    }

    /// True if a processor is in both, or nobody has said which are in one of them.
    pub(crate) fn overlaps(&self, other: &CpuMask) -> bool {
        let are_known = !self.0.is_empty() && !other.0.is_empty();
        let both = |(first, last): &(u32, u32)| {
            other
                .0
                .iter()
                .any(|(others_first, others_last)| first <= others_last && others_first <= last)
        };
        !are_known || self.0.iter().any(both)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_overlap_where_a_processor_is_in_both() {
        let overlap = |one: &str, other: &str| {
            let (one, other) = (CpuMask::parsed(one), CpuMask::parsed(other));
            assert_eq!(one.overlaps(&other), other.overlaps(&one));
            one.overlaps(&other)
        };
        assert!(overlap("\t0-7", "0-7") && overlap("0-63", "8") && overlap("0-3,32-35", "35-40"));
        assert!(
            !overlap("0-7", "8-15") && !overlap("0-3,32-35", "4-7,36-39") && !overlap("0", "1")
        );
        // an overlap that nobody knows of is one
        assert!(overlap("", "0-7") && overlap("", ""));
        assert_ne!(CpuMask::here(), CpuMask::default(), "Linux says it");
    }
}
