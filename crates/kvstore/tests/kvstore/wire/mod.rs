//! Rings: what they promise over every fabric, over a network that orders as it likes, to peers that lie,
//! and how much memory they register.

mod garbage;
mod memory;
mod seeds;
mod suite;
mod support;
