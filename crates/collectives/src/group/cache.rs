//! Schedules that were made for a vector: short ones would take longer to be scheduled than to be reduced. It does not
//! know when which of them is taken.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::schedule::{GroupShape, OperationKind, Schedule};

/// Of a vector: as many as a program that goes round in a loop has lengths for. The least recently used one goes.
const SCHEDULES_MAX: usize = 16;

/// What a schedule of a vector was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScheduleKey {
    pub(super) kind: OperationKind,
    /// Of the vector, from its first on.
    pub(super) bytes: usize,
    pub(super) element_bytes: usize,
    /// On other memory than the vector's own.
    pub(super) is_away: bool,
    /// Through the vector, on memory outside of it.
    pub(super) is_outside: bool,
}

/// By when they were last used, the latest first.
#[derive(Debug, Default)]
pub(super) struct ScheduleCache(VecDeque<Made>);

/// A schedule, and the same behind a meeting of all.
#[derive(Debug)]
pub(super) struct Made {
    key: ScheduleKey,
    plain: Arc<Schedule>,
    meeting: Option<Arc<Schedule>>,
}

impl ScheduleCache {
    /// As it was made for the same before, or is now.
    pub(super) fn get(&mut self, key: ScheduleKey, make: impl FnOnce() -> Schedule) -> &mut Made {
        let known = self.0.iter().position(|made| made.key == key);
        let made = known.and_then(|at| self.0.remove(at));
        let made = made.unwrap_or_else(|| Made { key, plain: Arc::new(make()), meeting: None });
        self.0.truncate(SCHEDULES_MAX - 1);
        self.0.push_front(made);
        &mut self.0[0]
    }
}

impl Made {
    pub(super) fn plain(&self) -> &Arc<Schedule> {
        &self.plain
    }

    /// All wait for all before anything else.
    pub(super) fn behind_meeting(&mut self, shape: GroupShape) -> &Arc<Schedule> {
        self.meeting.get_or_insert_with(|| {
            let mut meeting = (*self.plain).clone();
            for sequence in &mut meeting.sequences {
                sequence.splice(0..0, shape.meet());
            }
            Arc::new(meeting)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(bytes: usize) -> ScheduleKey {
        ScheduleKey {
            kind: OperationKind::AllReduce,
            bytes,
            element_bytes: 4,
            is_away: false,
            is_outside: false,
        }
    }

    #[test]
    fn what_was_used_last_stays_and_the_number_is_bounded() {
        let mut cache = ScheduleCache::default();
        let mut made = Vec::new();
        let mut get = |cache: &mut ScheduleCache, bytes: usize| {
            cache.get(key(bytes), || {
                made.push(bytes);
                Schedule::default()
            });
        };
        for bytes in 0..100 {
            get(&mut cache, 4 * bytes);
            // used again and again
            get(&mut cache, 0);
        }
        get(&mut cache, 4);
        assert_eq!(cache.0.len(), SCHEDULES_MAX);
        let all: Vec<usize> = (0..100).map(|bytes| 4 * bytes).chain([4]).collect();
        assert_eq!(made, all, "each is made once, and again when it was forgotten");
    }

    #[test]
    fn all_meet_in_every_sequence() {
        let shape = GroupShape {
            size: 3,
            me: 1,
            len: 9,
            segment: 9,
            window: 1,
            rings: 2,
            deterministic: false,
            hosts: &[],
        };
        let mut cache = ScheduleCache::default();
        let of = crate::schedule::Algorithm::MultiRing;
        let made =
            cache.get(key(36), || crate::schedule::schedule(of, OperationKind::AllReduce, shape));
        let plain = made.plain().clone();
        let meeting = made.behind_meeting(shape).clone();
        assert_eq!(meeting.sequences.len(), 2);
        for (plain, meeting) in plain.sequences.iter().zip(&meeting.sequences) {
            assert_eq!(meeting[..4], shape.meet());
            assert_eq!(meeting[4..], plain[..]);
        }
    }
}
