//! The protocol as state machines. They own no socket, no memory and no clock: events carry the time, actions
//! say what to do, and the same machines run in a driver over a fabric and in a simulation over a network
//! that loses, repeats and delays what it likes.

mod scheduler;

pub use scheduler::{Node, Role, Scheduler, SchedulerAction, SchedulerEvent, SchedulerOptions};
