//! Several fabrics in one process with an adversarial network between them: payload lands in random
//! pieces in random order, late, twice, or not at all, all from one seed. It keeps exactly what the
//! API promises and nothing more, which is what proves the code above it. Things happen when some
//! member polls or waits; with one thread, the same seed gives the same run.
//!
//! Arrival rule: a signal is raised after every piece of its memcpy, and after every earlier memcpy
//! of its queue pair has ended; nothing lands for a memcpy that has ended.

mod device;
mod late;
mod progress;
mod queue_pair;
mod region;

pub(crate) use device::open;
pub use progress::{Between, SimKnobs, SimNetwork, Within};
