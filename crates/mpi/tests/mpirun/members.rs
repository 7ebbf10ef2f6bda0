//! One process of a job under mpirun.

use std::time::Duration;

use tensorwire_base::{Deadline, Rank};
use tensorwire_collectives::{CollectiveCall, Collectives, Group, GroupError, GroupOptions};
use tensorwire_fabric::{Backend, Fabric};
use tensorwire_mpi::{MpiError, MpiGroup, MpiGroupOptions, World, rendezvous};

use crate::calls::{self, Vectors};
use crate::reducers::{OPS, Reduces, TYPES, Type};

pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

pub(crate) fn member(what: &str) {
    let world = World::open(soon()).unwrap();
    match what {
        "world" => tell(&world),
        "calls" => all_calls(&world),
        "bits" => same_bits(&world),
        "mistakes" => mistakes(&world),
        "death" => die(&world),
        other => panic!("{other} is no test"),
    }
    world.close(soon()).unwrap();
}

fn group(world: &World, deterministic: bool) -> MpiGroup {
    MpiGroup::open(world, MpiGroupOptions { deterministic }, soon()).unwrap()
}

/// What one tells everybody, and everybody everybody.
fn tell(world: &World) {
    assert!(world.rank() < world.size() && !world.library().is_empty());
    assert!(matches!(World::open(soon()), Err(MpiError::Opened)));
    for root in 0..world.size() {
        for length in [0, 1, 100_000] {
            let told = |rank: usize| vec![b'a' + rank as u8; length];
            let found = world.broadcast(root, &told(world.rank()), soon()).unwrap();
            assert_eq!(found, told(root));
        }
    }
    let told = |rank: usize| vec![b'a' + rank as u8; rank * 1000];
    let found = world.all_gather(&told(world.rank()), soon()).unwrap();
    assert_eq!(found, (0..world.size()).map(told).collect::<Vec<_>>());
    world.barrier(soon()).unwrap();
}

/// Every call, of every type, against what it must be.
fn all_calls(world: &World) {
    for deterministic in [false, true] {
        let mut group = group(world, deterministic);
        for of in TYPES {
            let mut vectors = Vectors::new(&mut group, of);
            for op in OPS {
                calls::reductions(&mut group, &mut vectors, Reduces { of, op });
            }
            calls::parts(&mut group, Reduces { of, op: OPS[0] });
            calls::moves(&mut group, &mut vectors);
        }
        calls::in_any_order(&mut group);
        assert!(group.stats().operations > 100);
        group.close(soon()).unwrap();
        assert!(group.barrier(soon()).is_err(), "it is closed");
    }
}

/// Reduces in the order of members have the bits of a group of ours, which finds its members by MPI.
fn same_bits(world: &World) {
    let open = |config| Fabric::open(Backend::Shm, config);
    let fabric = rendezvous(world, open, soon()).unwrap();
    let ranks: Vec<Rank> = (0..world.size() as u32).map(Rank).collect();
    let options = GroupOptions { deterministic: true, ..GroupOptions::default() };
    let mut ours = Group::open(fabric.clone(), &ranks, world.rank(), options, soon()).unwrap();
    let mut theirs = group(world, true);
    for of in TYPES {
        let mut of_ours = Vectors::new(&mut ours, of);
        let mut of_theirs = Vectors::new(&mut theirs, of);
        for op in OPS {
            let reducer = Reduces { of, op };
            let ours = calls::bits(&mut ours, &mut of_ours, reducer);
            assert!(ours == calls::bits(&mut theirs, &mut of_theirs, reducer), "{reducer:?}");
        }
    }
    theirs.close(soon()).unwrap();
    ours.close(soon()).unwrap();
    fabric.close(soon()).unwrap();
}

/// What cannot be is refused, and nothing is the worse for it.
fn mistakes(world: &World) {
    let mut group = group(world, false);
    let vectors = Vectors::new(&mut group, Type::F32);
    let (id, buffer) = vectors.longest();
    let start = |group: &mut MpiGroup, call| group.start(id, call).unwrap_err().to_string();
    let reading = buffer.read().unwrap();
    assert!(start(&mut group, CollectiveCall::Broadcast { root: 0 }).contains("lent to a reader"));
    drop(reading);
    let call = CollectiveCall::AllGather { element_bytes: 3 };
    assert!(start(&mut group, call).contains("no elements of 3"));
    let long = group.start_part(id, buffer.bytes() + 4, CollectiveCall::Broadcast { root: 0 });
    assert!(long.unwrap_err().to_string().contains("bind a longer one"));
    let nobody = CollectiveCall::Broadcast { root: world.size() };
    assert!(start(&mut group, nobody).contains("there is no member"));
    // 20,011 elements
    let halves = start(&mut group, CollectiveCall::AllToAll { element_bytes: 4 });
    assert!(halves.contains("no two halves"), "{halves}");
    let handle = group.start(id, CollectiveCall::Broadcast { root: 0 }).unwrap();
    assert!(start(&mut group, CollectiveCall::Broadcast { root: 0 }).contains("under way"));
    assert!(buffer.read().is_err(), "it is the group's");
    group.wait(handle, soon()).unwrap();
    assert!(group.is_done(handle) && buffer.read().is_ok());
    if world.size() > 1 {
        let slab = group.alloc(8 * (1 + world.rank() % 2)).unwrap();
        let vector = calls::cut(&slab, 8 * (1 + world.rank() % 2));
        let error = group.bind(&[vector], soon()).unwrap_err();
        assert!(matches!(error, GroupError::Differs { .. }), "{error}");
        // whoever is late is waited for no longer than was said
        if world.rank() == 0 {
            std::thread::sleep(Duration::from_millis(300));
            group.barrier(soon()).unwrap();
        } else {
            let error = group.barrier(Deadline::after(Duration::from_millis(50))).unwrap_err();
            assert!(matches!(error, GroupError::TimedOut { .. }), "{error}");
        }
    }
    group.barrier(soon()).unwrap();
    group.close(soon()).unwrap();
}

/// One leaves without a word, and the others wait for it.
fn die(world: &World) {
    let mut group = group(world, false);
    let vectors = Vectors::new(&mut group, Type::F32);
    if world.rank() == 1 {
        panic!("this process is to die");
    }
    let (id, _) = vectors.longest();
    let handle = group.start(id, CollectiveCall::AllGather { element_bytes: 4 }).unwrap();
    // longer than the job may take: it is not this that ends it
    group.wait(handle, Deadline::after(Duration::from_secs(600))).unwrap();
}
