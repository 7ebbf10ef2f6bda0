//! Collective operations: their schedules in a machine of its own, and groups over every fabric, of hosts'
//! buffers and of tensors.

mod group;
mod schedules;
mod tensor;
