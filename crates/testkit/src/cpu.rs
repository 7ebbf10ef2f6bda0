//! Processor time, to prove that something sleeps.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Processor time that all threads of this process have used.
pub fn process_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    // fits: processor time is never negative
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Processor time that the calling thread has used.
pub fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    // fits: processor time is never negative
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
