//! The suite where some peers are on this host and others are not, and what that alone can do.

use tensorwire_base::Rank;
use tensorwire_fabric::{Backend, Direction, Endpoint};
use tensorwire_testkit::mesh::{
    Setup, await_arrival, close, completions, fill, mismatch, mismatch_in, route,
};

const TCP: Setup = Setup::new(|| Backend::Tcp);

mod one_host {
    use tensorwire_testkit::mesh::Setup;

    tensorwire_testkit::fabric_suite!(Setup { host: Some(|_| 7), ..super::TCP });
}

mod hosts_of_their_own {
    use tensorwire_testkit::mesh::Setup;

    tensorwire_testkit::fabric_suite!(Setup { host: Some(|rank| rank), ..super::TCP });
}

/// Ranks 0 and 2 share a host, 1 and 3 another: memory of one region is read in place by one peer, and written by the other
/// over the wire. What crosses hosts is counted apart.
pub(crate) fn three_ways(setup: Setup) {
    const BYTES: u64 = 100_001;
    let fabrics = setup.mesh(4);
    for (fabric, near) in fabrics.iter().zip([2, 3, 0, 1]) {
        for rank in (0..4).map(Rank) {
            assert_eq!(fabric.shares_memory(rank), rank == Rank(near), "rank {rank}");
        }
        let said = fabric.choices().join("; ");
        assert!(said.contains(&format!("rank {near} on this host: shared memory")), "{said}");
    }
    let target = fabrics[0].alloc_region(BYTES).unwrap();
    let slot = fabrics[0].alloc_arrival().unwrap();
    for (epoch, writer) in (1..).zip([1, 2, 3]) {
        let mut way = route(&fabrics[writer], &fabrics[0], 0, 0, BYTES);
        let channel = fabrics[writer].channel(Rank(0), 0).unwrap();
        let soon = tensorwire_testkit::mesh::soon();
        (way.remote, way.slot) = (channel.open_region(&target.descriptor(), soon).unwrap(), slot);
        assert_eq!(way.remote.slab().is_some(), writer == 2, "mapped on its own host alone");
        fill(&way.source, epoch);
        way.write(BYTES, epoch, 9).unwrap();
        await_arrival(&fabrics[0], slot, epoch);
        assert_eq!(mismatch(&target, 0, BYTES, epoch), None, "from rank {writer}");
        if let Some(slab) = way.remote.slab() {
            assert_eq!(mismatch_in(&slab, 0, BYTES, epoch), None, "where it lies");
        }
        way.channel.memcpy(way.memcpy(Direction::Read, BYTES, 0, 10)).unwrap();
        let done = completions(&fabrics[writer], 2);
        assert!(done.iter().all(|completion| completion.result.is_ok()), "{done:?}");
        let stats = fabrics[writer].stats();
        assert_eq!((stats.bytes_written, stats.bytes_read), (BYTES, BYTES));
        assert_eq!(stats.bytes_near, if writer == 2 { 2 * BYTES } else { 0 });
    }
    // a file goes to peers of the same host
    let offered = fabrics[0].offer_file(tempfile::tempfile().unwrap().into()).unwrap();
    for (peer, is_near) in [(1, false), (2, true), (3, false)] {
        let channel = fabrics[peer].channel(Rank(0), 0).unwrap();
        let taken = channel.take_file(&offered.descriptor(), tensorwire_testkit::mesh::soon());
        assert_eq!(taken.is_ok(), is_near, "{taken:?}");
    }
    close(&fabrics);
}

#[test]
fn two_hosts() {
    three_ways(Setup { host: Some(|rank| rank % 2), ..TCP });
}

/// Ranks 0 and 1 share a host. Rank 2 is alone on its own, and knows one way only.
pub(crate) fn one_is_alone(setup: Setup) {
    const BYTES: u64 = 100_001;
    let fabrics = setup.mesh_with(3, |config| {
        if config.me.rank == Rank(2) {
            config.host = None;
        }
    });
    for (epoch, (from, to)) in (1..).zip([(0, 2), (2, 0), (1, 2), (2, 1), (0, 1)]) {
        let is_near = (from, to) == (0, 1);
        assert_eq!(fabrics[from].shares_memory(Rank(to as u32)), is_near);
        // fits: there are three
        let way = route(&fabrics[from], &fabrics[to], to as u32, 0, BYTES);
        fill(&way.source, epoch);
        way.write(BYTES, epoch, 9).unwrap();
        await_arrival(&fabrics[to], way.slot, epoch);
        assert_eq!(mismatch(&way.target, 0, BYTES, epoch), None, "{from} to {to}");
        assert!(completions(&fabrics[from], 1)[0].result.is_ok());
    }
    close(&fabrics);
}

#[test]
fn one_that_is_alone_on_its_host_reaches_those_that_are_not() {
    one_is_alone(Setup { host: Some(|_| 1), ..TCP });
}

/// One that shares the machine, and whose job calls its host otherwise, is on another host.
#[test]
fn a_name_makes_a_host() {
    let of = |name| tensorwire_fabric::HostId::here(name);
    assert_eq!((of("a"), of("a") == of("b")), (of("a"), false));
    let fabrics = Setup { host: Some(|_| 1), ..TCP }.open(1);
    let Endpoint::Near { host, far, .. } = fabrics[0].endpoint() else { panic!("one way only") };
    assert_eq!(host, of("host 1"));
    assert!(matches!(*far, Endpoint::Tcp(_)));
}
