//! Tensors of unknown size from one process's device to others' (Xue et al. §3.3, §3.5), between processes that share no memory: by
//! NICs that reach the devices' memory, in pieces by the host's, and where the NICs of some alone reach it. Streams are late, and
//! memory is garbage until it is written.

use std::time::Instant;

use tensorwire_fabric::{SimKnobs, SimNetwork};
use tensorwire_graph::{Hint, Op, RunId, SharedMemory};
use tensorwire_memory::CopyPurpose;
use tensorwire_runtime::{Advance, Session};
use tensorwire_tensor::{DType, Dim};

use crate::devices::{
    Between, HANGS, LATE, OnDevices, PIECE_BYTES, TWO_HOSTS, child, crossing, open_plan, own_seeds,
    run_child,
};
use crate::support::parts::{Parts, feed, open};

/// Rows of three numbers in each step: some pieces, one, none, and many.
const ROWS: [usize; 6] = [40, 2, 0, 300, 0, 7];
const _: () = assert!(12 * ROWS[0] > 3 * PIECE_BYTES, "some go in pieces");

fn number(step: usize, at: usize) -> f32 {
    ((at * 31 + step * 7) % 1009) as f32 - 500.0
}

/// Two workers and a server: what worker 0 scales goes to worker 1 and to the server, and what the latter makes of it to worker 1.
fn graph() -> Parts {
    let mut parts = Parts::new(2);
    let workers = [Hint::Replica(0), Hint::Replica(1)];
    let x = parts.input("x", workers[0], DType::F32, &[open(0), Dim::Known(3)]);
    let scaled = parts.add("scaled", workers[0], Op::Scale { by: 2.0 }, &[x]);
    parts.root("at worker", workers[1], Op::Relu, &[scaled]);
    let server = parts.server;
    let there = parts.root("at server", server, Op::Scale { by: -0.5 }, &[scaled]);
    parts.root("back at worker", workers[1], Op::Relu, &[there]);
    parts
}

fn numbers(session: &Session, name: &str) -> Vec<f32> {
    let (_, bytes) = session.read(session.node(name).unwrap().into()).unwrap();
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

/// One step of all parts, driven by this thread.
fn step(sessions: &mut [Session], network: &SimNetwork) {
    let begun = Instant::now();
    sessions.iter_mut().for_each(|session| session.start(RunId(0)));
    let mut running: Vec<usize> = (0..sessions.len()).collect();
    while !running.is_empty() {
        running.retain(|part| sessions[*part].advance().unwrap() != Advance::Finished);
        network.advance();
        assert!(begun.elapsed() < HANGS, "parts {running:?} hang");
    }
}

/// What was copied by all parts, in bytes.
fn copied(sessions: &[Session], purpose: CopyPurpose) -> u64 {
    sessions.iter().map(|session| session.copies().of(purpose)).sum()
}

fn runs(between: Between, seed: u64) {
    let shared_memory = match between.is_of_hosts() {
        true => SharedMemory::UsedOnHosts(TWO_HOSTS.into()),
        false => SharedMemory::None,
    };
    let plan = graph().plan(crossing(shared_memory));
    let network = between.network(seed, SimKnobs::default());
    let OnDevices { mut sessions, fabrics, network } = open_plan(&plan, (network, between), (4, 1));
    for (at, rows) in ROWS.into_iter().enumerate() {
        for session in &mut sessions {
            feed(session, "x", &[rows, 3], |byte| number(at, byte / 4).to_le_bytes()[byte % 4]);
        }
        let purposes = [CopyPurpose::ToHost, CopyPurpose::ToDevice, CopyPurpose::Staging];
        let before = purposes.map(|purpose| copied(&sessions, purpose));
        step(&mut sessions, &network);
        let bytes = 12 * rows as u64;
        let since = [0, 1, 2].map(|at| copied(&sessions, purposes[at]) - before[at]);
        // where nobody knows yet what is sent, it is copied once, whoever it goes to
        let first = if at == 0 { bytes } else { 0 };
        // what is fed goes to a device anyway
        let expected = match between {
            // two tensors leave, each once, and come to three places
            Between::Pieces | Between::Tcp | Between::FlagsOfNics => [2 * bytes, 4 * bytes, 0],
            // the server's NIC and worker 0's reach theirs, worker 1's does not
            Between::SomeNics => [0, 3 * bytes, 2 * first],
            // worker 0 and the server are on one host
            Between::HostsByPieces => [2 * bytes, 3 * bytes, first],
            _ => [0, bytes, 2 * first],
        };
        assert_eq!(since, expected, "{between:?}, step {at}");
        let expect = |by: f32| -> Vec<f32> {
            (0..3 * rows).map(|place| (number(at, place) * by).max(0.0)).collect()
        };
        let (worker, server) = (&sessions[1], &sessions[2]);
        assert_eq!(numbers(worker, "at worker"), expect(2.0), "{between:?}, step {at}");
        assert_eq!(numbers(worker, "back at worker"), expect(-1.0), "{between:?}, step {at}");
        let there = numbers(server, "at server");
        assert!(there.iter().enumerate().all(|(place, found)| *found == -number(at, place)));
    }
    let read: u64 = fabrics.iter().map(|fabric| fabric.stats().bytes_read).sum();
    let of_one = 12 * ROWS.iter().sum::<usize>() as u64;
    let mapped = if between.is_of_hosts() { of_one } else { 0 };
    assert_eq!(read, 3 * of_one - mapped, "{between:?}");
    assert_eq!(copied(&sessions, CopyPurpose::FromPeers), mapped);
}

#[test]
fn what_has_no_size_crosses_from_device_to_device_between_hosts() {
    let Some(seeds) = own_seeds() else {
        let Some(mut command) = child((1, 3), LATE) else { return };
        run_child(&mut command);
        return;
    };
    for seed in seeds {
        for between in [
            Between::Pieces,
            Between::OpenNics,
            Between::SomeNics,
            Between::Tcp,
            Between::HostsByPieces,
            Between::HostsByNics,
            Between::FlagsOfNics,
        ] {
            runs(between, seed);
        }
    }
}
