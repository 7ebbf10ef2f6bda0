//! How much a job registers, and memory that two processes share.

use tensorwire_base::Rank;
use tensorwire_fabric::{Backend, Fabric, SimKnobs, SimNetwork};
use tensorwire_kvstore::wire::{Outgoing, RemotePlace, RingOptions, Wire};
use tensorwire_testkit::mesh::{self, Setup, soon};

use super::support::{
    SMALL, await_messages, buffers, exchange, open, remote_place, send, whole, wires,
};

const OPTIONS: RingOptions = RingOptions { ring_bytes: 2 << 20, direct_from: 16 << 10 };

/// Bytes that a job of one server and so many workers registers, after each has heard of all others.
fn registered(workers: u32) -> Vec<u64> {
    let backend = Backend::Sim(SimNetwork::new(1, SimKnobs::default()));
    let fabrics = mesh::open(&backend, workers + 1, |_| {});
    mesh::connect(&fabrics);
    let peers = |me: u32| if me == 0 { (1..=workers).map(Rank).collect() } else { vec![Rank(0)] };
    let end = |(me, fabric): (u32, &Fabric)| (fabric.clone(), peers(me));
    let mut wires = open((0..).zip(&fabrics).map(end).collect(), OPTIONS);
    let (server, workers) = wires.split_first_mut().unwrap();
    for (rank, worker) in (1..).zip(workers) {
        exchange(server, 0, worker, rank);
    }
    wires.iter().map(|wire| wire.stats().registered_bytes).collect()
}

#[test]
fn registered_bytes_are_linear_in_the_number_of_processes() {
    for workers in [1, 8, 32] {
        // a ring and a mirror each, whoever it is and however many peers it has
        assert_eq!(registered(workers), vec![4 << 20; workers as usize + 1]);
    }
}

#[test]
fn values_are_counted_too() {
    let setup = Setup::new(|| Backend::Shm);
    let (mut wires, _fabrics) = wires(setup, 2, SMALL);
    let before = wires[0].stats().registered_bytes;
    wires[0].alloc(1000).unwrap();
    assert_eq!(wires[0].stats().registered_bytes, before + 1000);
}

/// Reads a value of the peer where it lies, if it can be, after the peer has told of it.
fn view(backend: mesh::MakeBackend) -> Option<Vec<u8>> {
    let setup = Setup::new(backend);
    let (mut wires, _fabrics) = wires(setup, 2, SMALL);
    let (source, descriptor) = buffers(&mut wires[1], 2, 128);
    let place = remote_place(descriptor, &source[1]);
    assert!(wires[0].view(Rank(1), &place).is_none(), "not opened");
    wires[0].open_region(Rank(1), descriptor, soon()).unwrap();
    source[1].write().unwrap().fill(9);
    send(&mut wires[1], 0, b"written", &[]);
    wires[1].flush().unwrap();
    await_messages(&mut wires[0], 1);
    let outside = RemotePlace { offset: 129, ..place };
    assert!(wires[0].view(Rank(1), &outside).is_none());
    assert!(wires[0].view(Rank(7), &place).is_none());
    // a window onto it does not keep values from being written there
    let (mine, _) = buffers(&mut wires[0], 1, 128);
    let direct = [whole(&mine[0], remote_place(descriptor, &source[0]), 1)];
    let message = Outgoing { meta: b"", blocks: &[], direct: &direct };
    wires[0].send(Rank(1), &message).unwrap();
    wires[0].view(Rank(1), &place).map(<[u8]>::to_vec)
}

#[test]
fn memory_of_a_peer_of_this_host_is_read_where_it_lies() {
    assert_eq!(view(|| Backend::Shm), Some(vec![9; 128]));
    assert_eq!(view(|| Backend::Tcp), None);
}
