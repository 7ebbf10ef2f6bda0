//! Several fabrics in one process with an adversarial network between them: payload lands in random
//! pieces in random order, late, twice, or not at all, all from one seed. It keeps exactly what the
//! API promises and nothing more, which is what proves the code above it. Things happen when some
//! member polls or waits; with one thread, the same seed gives the same run.
//!
//! Arrival rules, one a mode. `write-imm`: a completion raises the slot after every piece of its memcpy,
//! and after every earlier memcpy of its queue pair has ended. `flag-separate`: a write into a flag table
//! that the receiver looks at, behind earlier writes as [`FlagOrder`] says. `flag-tail`: the last 8 bytes
//! of the payload's write, where [`Within`] puts them. Nothing lands for a memcpy that has ended, but a
//! signal may come once more.

mod device;
mod late;
mod progress;
mod queue_pair;
mod region;
mod signal;

pub(crate) use device::{SimDevice, open};
pub use progress::{Between, FlagOrder, NicReach, SimKnobs, SimNetwork, Within};
