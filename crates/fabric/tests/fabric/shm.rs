//! The suite over shared memory, and what only memory that both processes map can do: reading a peer's
//! tensor where the peer put it.

use tensorwire_fabric::{Backend, RegionDescriptor};
use tensorwire_memory::{Arena, ArenaError, Place};
use tensorwire_testkit::mesh::{
    Setup, await_arrival, completions, fill, mesh, mismatch_in, route, soon,
};

tensorwire_testkit::fabric_suite!(Setup::new(|| Backend::Shm));

#[test]
fn a_peers_memory_is_read_in_place() {
    const BYTES: u64 = 100_001;
    let fabrics = mesh(|| Backend::Shm, 2);
    let way = route(&fabrics[0], &fabrics[1], 1, 0, BYTES);
    let told = route(&fabrics[1], &fabrics[0], 0, 0, 0);
    let taken = route(&fabrics[0], &fabrics[1], 1, 0, 0);
    let slab = way.remote.slab().unwrap();
    assert_ne!(slab.address(), way.target.slab().address(), "a mapping of its own");
    for round in 1..=50 {
        fill(&way.target, round);
        told.write(0, round, 0).unwrap();
        await_arrival(&fabrics[0], told.slot, round);
        assert_eq!(mismatch_in(&slab, 0, BYTES, round), None, "round {round}");
        taken.write(0, round, 0).unwrap();
        await_arrival(&fabrics[1], taken.slot, round);
        completions(&fabrics[0], 1);
        completions(&fabrics[1], 1);
    }
    assert_eq!(fabrics[0].stats().bytes_read, 0, "nothing was copied");
}

#[test]
fn a_peers_memory_stays_mapped_while_its_slab_lives() {
    let fabrics = mesh(|| Backend::Shm, 2);
    let way = route(&fabrics[0], &fabrics[1], 1, 0, 10_000);
    fill(&way.target, 6);
    let slab = way.remote.slab().unwrap();
    drop((way, fabrics));
    assert_eq!(mismatch_in(&slab, 0, 10_000, 6), None);
}

#[test]
fn all_openings_of_a_region_share_their_loans() {
    let fabrics = mesh(|| Backend::Shm, 2);
    let way = route(&fabrics[0], &fabrics[1], 1, 0, 64);
    let place = [Place { offset: 0, bytes: 64 }];
    let here = Arena::new(&way.remote.slab().unwrap(), &place).unwrap();
    let again = Arena::new(&way.remote.clone().slab().unwrap(), &place);
    assert_eq!(again.unwrap_err(), ArenaError::AlreadyCut);
    let opened = way.channel.open_region(&way.target.descriptor(), soon()).unwrap();
    let twice = Arena::new(&opened.slab().unwrap(), &place);
    assert_eq!(twice.unwrap_err(), ArenaError::AlreadyCut, "opened a second time");
    let part = RegionDescriptor { bytes: 32, ..way.target.descriptor() };
    let part = way.channel.open_region(&part, soon()).unwrap();
    assert_eq!(Arena::new(&part.slab().unwrap(), &[]).unwrap_err(), ArenaError::AlreadyCut);
    assert!(Arena::new(&way.target.slab(), &place).is_ok(), "the owner's loans are its own");
    drop(here);
    let there = Arena::new(&opened.slab().unwrap(), &place).unwrap();
    drop(opened);
    let again = Arena::new(&way.remote.slab().unwrap(), &place);
    assert_eq!(again.unwrap_err(), ArenaError::AlreadyCut, "its slab keeps the second opening");
    drop(there);
    assert!(Arena::new(&way.remote.slab().unwrap(), &place).is_ok());
}
