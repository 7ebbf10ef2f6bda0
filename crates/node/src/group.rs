//! Groups of processes in a job: what the rooms of collectives and kernels know nothing of each other.

mod fold;

pub use fold::VectorFold;
