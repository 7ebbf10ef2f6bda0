//! The passes, one a file; each takes a graph and gives a graph or facts about it.

pub(crate) mod expand;
pub(crate) mod gradient;
pub(crate) mod in_place;
pub(crate) mod infer;
pub(crate) mod memory;
pub(crate) mod order;
pub(crate) mod partition;
pub(crate) mod place;
pub(crate) mod reduce;
pub(crate) mod reduce_order;
pub(crate) mod reference;
pub(crate) mod reuse;
pub(crate) mod rings;
pub(crate) mod schedule;
pub(crate) mod sequence;
pub(crate) mod simplify;
pub(crate) mod space;
pub(crate) mod verify;
pub(crate) mod wire;
