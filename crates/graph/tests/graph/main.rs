//! The passes over graphs, and the plans made of them.

mod passes;
mod plan;
