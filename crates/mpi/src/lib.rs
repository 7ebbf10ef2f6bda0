//! [`Collectives`](tensorwire_collectives::Collectives) by the collective operations of an MPI library, to compare
//! with and to use where MPI knows the network best; and MPI as the way by which the members of a group of our
//! own find each other. It knows bytes, and of elements what MPI has operations for.
//!
//! Empty without the feature `mpi`, so that whoever builds everything needs no MPI. With it, it is built on any MPI that
//! `mpicc` finds, and runs on Open MPI and on MPICH and what descends from it.
//!
//! ```no_run
//! # #[cfg(feature = "mpi")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use tensorwire_base::Deadline;
//! use tensorwire_collectives::Collectives;
//! use tensorwire_mpi::{MpiGroup, MpiGroupOptions, World};
//!
//! let soon = || Deadline::after(Duration::from_secs(10));
//! let world = World::open(soon())?;
//! let mut group = MpiGroup::open(&world, MpiGroupOptions::default(), soon())?;
//! group.barrier(soon())?;
//! group.close(soon())?;
//! world.close(soon())?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "mpi"))]
//! # fn main() {}
//! ```
#![cfg(feature = "mpi")]

mod calls;
mod error;
mod group;
mod rendezvous;
mod world;

pub use error::MpiError;
pub use group::{MpiGroup, MpiGroupOptions};
pub use rendezvous::rendezvous;
pub use world::World;
