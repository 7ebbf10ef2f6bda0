//! Bytes between the processes of one job, one-sided: a process writes straight into the memory
//! where its peer's next reader looks. Knows bytes, peers, keys and file descriptors; never what the
//! bytes mean.
//!
//! [`api`](Fabric) is all that users see. Behind it one small seam (`device.rs`: alloc, connect,
//! post, progress, wait) has one folder per backend, with the same file names in each: `device.rs`
//! (open, connect, close), `region.rs` (memory), `queue_pair.rs` (post), `progress.rs` (what happens
//! behind the poster's back).
//!
//! | file | what |
//! |---|---|
//! | `handshake.rs` | who may talk to whom: mutual proof of the job's secret |
//! | `listener.rs`, `mesh.rs` | accepting, dialling, and waiting until all are there |
//! | `control/` | the connection beside the data: messages, region requests, goodbyes, deaths |
//! | `common.rs`, `board.rs`, `doorbell.rs` | what is told to a process: arrivals, completions, faults |
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
pub mod handshake;
mod listener;
mod mapping;
mod mesh;
mod raw_io;
mod region;
mod shm;
mod sim;
mod tcp;
mod verbs;

pub use api::{
    ArrivalSlot, Channel, Completion, Direction, Fabric, LocalSlice, MESSAGE_BYTES_MAX, Memcpy,
    Message, Posted, RemoteSlice, Signal,
};
pub use arrival::ArrivalMode;
pub use common::{FabricStats, Gone};
pub use config::{
    Backend, Endpoint, EndpointError, FabricConfig, JobCredentials, Member, PeerAddress, Secret,
};
pub use doorbell::{Ticket, Wake};
pub use error::{
    ArrivalError, ChannelError, CloseError, CompletionError, ConnectError, DescriptorError,
    FaultCause, MessageError, OpenError, OpenRegionError, PeerFault, PostError, ReceiveError,
    RegionError, Side,
};
pub use mapping::available_bytes;
pub use region::{Region, RegionDescriptor, RemoteRegion};
pub use sim::{Between, FlagOrder, SimKnobs, SimNetwork, Within};
pub use verbs::{
    Choice, Gid, GidChoice, GidKind, LinkLayer, Nic, Port, PortState, VerbsOptions, VerbsUnusable,
    choose, survey, verbs_usable,
};
