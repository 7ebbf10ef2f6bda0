//! What threads share: the types of std and parking_lot, and under `cfg(loom)` those of loom, which tries the orders in
//! which threads may take their steps. Code that loom tries takes them from here, and is the same code otherwise.

#[cfg(not(loom))]
pub use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub use std::{
    sync::{Arc, OnceLock, atomic},
    thread,
};

#[cfg(loom)]
mod modelled;
#[cfg(loom)]
pub use loom::{sync::Arc, thread};
#[cfg(loom)]
pub use modelled::{Condvar, Mutex, MutexGuard, OnceLock, atomic, model, step_outside};
