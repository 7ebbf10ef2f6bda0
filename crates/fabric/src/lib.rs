//! Bytes between the processes of one job, one-sided: a process writes straight into the memory
//! where its peer's next reader looks. Knows bytes, peers, keys and file descriptors; never what the
//! bytes mean.
//!
//! A process opens a [`Fabric`], connects it to its peers, and allocates regions. A peer that was told a region's
//! descriptor writes into it; the signal of a write says that its bytes are there. Every wait has a deadline.
//! Here both processes are one:
//!
//! ```
//! use std::error::Error;
//! use std::time::Duration;
//!
//! use tensorwire_base::{Deadline, Incarnation, JobId, Rank};
//! use tensorwire_fabric::{
//!     Backend, Direction, Fabric, FabricConfig, JobCredentials, LocalSlice, Identity, Memcpy,
//!     OpenFabricError, PeerAddress, RemoteSlice, Secret, Signal, Wake,
//! };
//! use tensorwire_memory::{Arena, Place};
//!
//! fn open(rank: u32) -> Result<(Fabric, PeerAddress), OpenFabricError> {
//!     // drawn at random by a launcher, and told to the processes of the job
//!     let job = JobCredentials { job_id: JobId(1), secret: Secret([7; 32]) };
//!     let (rank, incarnation) = (Rank(rank), Incarnation(0));
//!     let fabric = Fabric::open(Backend::Shm, FabricConfig::new(Identity { rank, incarnation }, job))?;
//!     let address = PeerAddress { rank, incarnation, endpoint: fabric.endpoint() };
//!     Ok((fabric, address))
//! }
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     let deadline = Deadline::after(Duration::from_secs(20));
//!     let ((writer, writer_address), (reader, reader_address)) = (open(0)?, open(1)?);
//!     // each waits for the other
//!     std::thread::scope(|scope| {
//!         let reader = scope.spawn(|| reader.connect(&[writer_address], deadline));
//!         writer.connect(&[reader_address], deadline)?;
//!         reader.join().expect("no panic")
//!     })?;
//!
//!     // the reader allocates; a job sends the descriptor and the slot by message
//!     let target = reader.alloc_region(4096)?;
//!     let (descriptor, slot) = (target.descriptor(), reader.alloc_arrival()?);
//!
//!     // the writer fills memory of its own, and writes it into the reader's
//!     let source = writer.alloc_region(4096)?;
//!     let place = Place { offset: 0, bytes: 5 };
//!     let outgoing = Arena::new(&source.slab(), &[place])?.into_buffers();
//!     outgoing[0].write()?.copy_from_slice(b"hello");
//!     let channel = writer.channel(Rank(1), 0)?;
//!     let remote = channel.open_region(&descriptor, deadline)?;
//!     channel.memcpy(Memcpy {
//!         local: LocalSlice { region: &source, offset: 0 },
//!         remote: RemoteSlice { region: &remote, offset: 0 },
//!         bytes: 5,
//!         direction: Direction::Write,
//!         signal: Some(Signal { slot, epoch: 1 }),
//!         token: 0,
//!     })?;
//!
//!     // the reader waits for the signal; the bytes are there then
//!     loop {
//!         let ticket = reader.ticket();
//!         if reader.arrived(slot) == 1 {
//!             break;
//!         }
//!         if reader.wait(ticket, deadline) == Wake::TimedOut {
//!             return Err("nothing arrived".into());
//!         }
//!     }
//!     let incoming = Arena::new(&target.slab(), &[place])?.into_buffers();
//!     assert_eq!(&*incoming[0].read()?, b"hello");
//!
//!     // goodbye: neither end takes the other's leaving for a fault
//!     std::thread::scope(|scope| {
//!         let reader = scope.spawn(|| reader.close(deadline));
//!         writer.close(deadline)?;
//!         reader.join().expect("no panic")
//!     })?;
//!     Ok(())
//! }
//! ```
//!
//! `examples/memcpy.rs` does it between two processes, over shm, tcp or verbs, and measures it.
//!
//! # Inside
//!
//! `api.rs` is all that users see. Behind it one small seam (`device.rs`: alloc, connect,
//! post, progress, wait) has one folder per backend, with the same file names in each: `device.rs`
//! (open, connect, close), `region.rs` (memory), `queue_pair.rs` (post), `progress.rs` (what happens
//! behind the poster's back). `neighbours.rs` has two of them for one process: shared memory with the peers of its own
//! host, another with all others.
//!
//! | file | what |
//! |---|---|
//! | `handshake.rs` | who may talk to whom: mutual proof of the job's secret |
//! | `seal.rs` | what only the other end of a connection can have sent |
//! | `lobby.rs` | where callers wait who have not said who they are, and strangers are turned away |
//! | `listener.rs`, `mesh.rs` | accepting, dialling, and waiting until all are there |
//! | `control/` | the connection beside the data: messages, region requests, goodbyes, deaths |
//! | `common.rs`, `board.rs`, `doorbell.rs`, `futex.rs` | what is told to a process: arrivals, completions, faults |
//! | `arrival.rs` | when a tensor counts as there: the modes |
//! | `flags.rs` | the memory that is looked at where epochs come as plain writes |
//! | `mapping.rs`, `raw_io.rs` | all `mmap` and all socket I/O on memory that others write |

mod api;
mod arrival;
mod board;
mod common;
mod config;
mod control;
mod device;
mod doorbell;
mod error;
mod flags;
mod futex;
#[doc(hidden)]
pub mod fuzz;
pub mod handshake;
mod limits;
mod listener;
pub mod lobby;
mod mapping;
mod mesh;
mod neighbours;
pub mod pulse;
mod raw_io;
mod region;
pub mod seal;
mod shm;
mod sim;
mod streaming;
mod tcp;
mod verbs;

pub use api::{
    ArrivalSlot, Channel, Completion, Direction, Fabric, LocalSlice, MESSAGE_BYTES_MAX, Memcpy,
    Message, Posted, RemoteSlice, Signal,
};
pub use arrival::ArrivalMode;
pub use common::{FabricStats, Gone};
pub use config::{
    Backend, Endpoint, EndpointError, FabricConfig, Identity, JobCredentials, PeerAddress, Secret,
};
pub use doorbell::{Ticket, Wake};
pub use error::{
    ArrivalError, ChannelError, CloseError, CompletionError, ConnectError, DescriptorError,
    FaultCause, OpenFabricError, OpenRegionError, PeerFault, PostError, ReceiveError, RegionError,
    SendMessageError, Side,
};
pub use limits::{MemoryLimit, MemoryRoom, available_bytes, memory_room};
pub use neighbours::HostId;
pub use region::{Region, RegionDescriptor, RemoteRegion};
pub use sim::{Between, FlagOrder, NicReach, SimKnobs, SimNetwork, Within};
pub use verbs::{
    Gid, GidChoice, GidKind, LinkLayer, Nic, NicChoice, PathChoice, Port, PortState, VerbsOptions,
    VerbsUnusable, choose, survey, verbs_usable,
};
