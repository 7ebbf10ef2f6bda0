//! How many of the processes that somebody else started are workers, and how many servers.

use super::detect::Detected;

/// Why a job's processes and those that were started do not go together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CountError {
    #[error(
        "--strategy local is one process, and {by} started {world}; give {line}, or another --strategy"
    )]
    OneProcess { by: &'static str, world: u32, line: String },
    #[error(
        "the job has {workers} workers and {servers} servers, and {by} started {world} processes; give {line}, or leave --workers and --servers out"
    )]
    Sum { workers: u32, servers: u32, by: &'static str, world: u32, line: String },
    #[error(
        "--{counted} {count} leaves none of the {world} processes that {by} started for the {others}; give {line}, or lower --{counted}"
    )]
    NoneLeft {
        counted: &'static str,
        count: u32,
        others: &'static str,
        by: &'static str,
        world: u32,
        line: String,
    },
}

/// What processes a job is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Composition {
    /// One process; nobody else is needed.
    OneProcess,
    /// Workers alone.
    Workers,
    WorkersAndServers,
}

/// Workers and servers: as given, else as follows from the processes that were started.
///
/// # Errors
/// When both were given and are others, with what would be right.
pub fn share_out(
    composition: Composition,
    workers: Option<u32>,
    servers: Option<u32>,
    detected: &Detected,
) -> Result<(u32, u32), CountError> {
    let (by, world) = (detected.by, detected.world);
    let (name, line) = (by.name(), |processes| by.line(processes));
    if composition == Composition::OneProcess {
        return Err(CountError::OneProcess { by: name, world, line: line(1) });
    }
    // everybody has the weights
    let servers = if composition == Composition::Workers { Some(0) } else { servers };
    if let Some(counts) = detected.counts {
        let asked = (workers.unwrap_or(counts.0), servers.unwrap_or(counts.1));
        let (workers, servers) = asked;
        let line = format!("DMLC_NUM_WORKER={workers} and DMLC_NUM_SERVER={servers}");
        let sum = CountError::Sum { workers, servers, by: name, world, line };
        return if asked == counts { Ok(counts) } else { Err(sum) };
    }
    let left = |counted, count: u32, others| {
        let none = || CountError::NoneLeft {
            counted,
            count,
            others,
            by: name,
            world,
            line: line(count.saturating_add(1)),
        };
        world.checked_sub(count).filter(|left| *left > 0).ok_or_else(none)
    };
    match (workers, servers) {
        (None, None) => Ok((world.div_ceil(2), world / 2)),
        (Some(workers), None) => Ok((workers, left("workers", workers, "servers")?)),
        (None, Some(servers)) => Ok((left("servers", servers, "workers")?, servers)),
        (Some(workers), Some(servers)) => {
            let sum = workers.saturating_add(servers);
            let wrong = CountError::Sum { workers, servers, by: name, world, line: line(sum) };
            if sum == world { Ok((workers, servers)) } else { Err(wrong) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::{LaunchedAs, Outer, Rendezvous};

    fn of(world: u32) -> Detected {
        let rendezvous = Rendezvous { host: None, ports: vec![20_000] };
        let (by, launched_as, key) = (Outer::OpenMpi, LaunchedAs::Rank(0), String::new());
        Detected::of(by, launched_as, world, rendezvous, key)
    }

    fn shared(
        workers: Option<u32>,
        servers: Option<u32>,
        world: u32,
    ) -> Result<(u32, u32), String> {
        let shared = share_out(Composition::WorkersAndServers, workers, servers, &of(world));
        shared.map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_given_follows_from_the_processes() {
        assert_eq!(shared(None, None, 4), Ok((2, 2)));
        assert_eq!(shared(None, None, 5), Ok((3, 2)));
        assert_eq!(shared(Some(3), None, 4), Ok((3, 1)));
        assert_eq!(shared(None, Some(3), 4), Ok((1, 3)));
        assert_eq!(shared(Some(3), Some(1), 4), Ok((3, 1)));
        let all = share_out(Composition::Workers, None, None, &of(4));
        assert_eq!(all.map_err(|error| error.to_string()), Ok((4, 0)));
    }

    #[test]
    fn what_does_not_go_together_says_the_right_number() {
        let sum = shared(Some(2), Some(2), 3).unwrap_err();
        assert!(sum.contains("2 workers and 2 servers") && sum.contains("mpirun -np 4"), "{sum}");
        let none = shared(Some(4), None, 4).unwrap_err();
        assert!(none.contains("for the servers; give mpirun -np 5"), "{none}");
        let local = share_out(Composition::OneProcess, None, None, &of(2)).unwrap_err();
        assert!(local.to_string().contains("mpirun -np 1"), "{local}");
    }

    #[test]
    fn a_tracker_decides_who_is_what() {
        let tracked = Detected { by: Outer::PsLite, counts: Some((3, 1)), ..of(4) };
        let shared = |workers| share_out(Composition::WorkersAndServers, workers, None, &tracked);
        assert_eq!(shared(None), Ok((3, 1)));
        let error = shared(Some(2)).unwrap_err().to_string();
        assert!(error.contains("DMLC_NUM_WORKER=2 and DMLC_NUM_SERVER=1"), "{error}");
    }
}
