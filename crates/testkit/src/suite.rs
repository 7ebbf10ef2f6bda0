//! One suite per seam, as functions over "a way to make the thing".

pub mod fabric;
pub mod fabric_events;
pub mod fabric_faults;
