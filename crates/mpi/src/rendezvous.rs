//! MPI as the way by which processes find each other; what they do then is over a fabric of our own.

use tensorwire_base::{Deadline, Incarnation, JobId, Rank};
use tensorwire_fabric::handshake::random_bytes;
use tensorwire_fabric::{
    Endpoint, Fabric, FabricConfig, Identity, JobCredentials, OpenFabricError, PeerAddress, Secret,
};

use crate::error::MpiError;
use crate::world::World;

/// A fabric that is connected to those of all other processes, as a [`tensorwire_collectives::Group`] wants it; its
/// ranks are MPI's. Rank 0 makes the job's secret, which MPI tells the others: whoever may read along there may
/// take part. `open` opens the fabric, with what it likes to change in the
/// configuration: the address to listen at, where there are several hosts.
///
/// # Errors
/// When a process does not come before the deadline, or fabrics cannot be opened or connected.
pub fn rendezvous(
    world: &World,
    open: impl FnOnce(FabricConfig) -> Result<Fabric, OpenFabricError>,
    deadline: Deadline,
) -> Result<Fabric, MpiError> {
    let made: [u8; JOB_BYTES] = random_bytes();
    let told = world.broadcast(0, &made, deadline)?;
    let (secret, number) = told.split_first_chunk().ok_or(not_told(0, &told))?;
    let number = number.first_chunk().ok_or(not_told(0, &told))?;
    let job =
        JobCredentials { job_id: JobId(u64::from_le_bytes(*number)), secret: Secret(*secret) };
    // fits: MPI counts processes in 31 bits
    let rank = Rank(world.rank() as u32);
    let me = Identity { rank, incarnation: Incarnation(u64::from_le_bytes(random_bytes())) };
    let fabric = open(FabricConfig::new(me, job))?;
    let mut mine = me.incarnation.0.to_le_bytes().to_vec();
    mine.extend(fabric.endpoint().to_string().into_bytes());
    let mut peers = Vec::new();
    for (rank, told) in world.all_gather(&mine, deadline)?.iter().enumerate() {
        if rank != world.rank() {
            peers.push(peer(rank, told)?);
        }
    }
    fabric.connect(&peers, deadline)?;
    Ok(fabric)
}

/// A secret, and the job's number.
const JOB_BYTES: usize = 32 + 8;

fn peer(rank: usize, told: &[u8]) -> Result<PeerAddress, MpiError> {
    let (life, text) = told.split_first_chunk().ok_or(not_told(rank, told))?;
    let text = std::str::from_utf8(text).map_err(|_| not_told(rank, told))?;
    let endpoint: Endpoint = text.parse().map_err(|source| MpiError::Endpoint { rank, source })?;
    let incarnation = Incarnation(u64::from_le_bytes(*life));
    // fits: MPI counts processes in 31 bits
    Ok(PeerAddress { rank: Rank(rank as u32), incarnation, endpoint })
}

fn not_told(rank: usize, told: &[u8]) -> MpiError {
    MpiError::Peer { rank, bytes: told.len() }
}
